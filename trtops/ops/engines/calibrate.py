"""Calibrate: from a model and real data to a calibration cache that any build can use, evaluated by accuracy."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.common import open_atomically
from trtops.backend.onnx.model import Model
from trtops.calibration.cache import CalibrationCache
from trtops.calibration.compare import DEFAULT_RATIO, CacheDiff, diff
from trtops.calibration.data import FeedDigest, batches, samples_in
from trtops.calibration.histogram import DEFAULT_PERCENTILE, Algorithm, Histogram, check_algorithm
from trtops.json import save_json
from trtops.metadata import TensorMetadata
from trtops.ops.engines.convert import ROW_HEADER, ConvertConfig, ConvertResult, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.feeds import open_feeds
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run
from trtops.processes import temporary_prefix
from trtops.record import Record
from trtops.spec import BuildConfig, Precision, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker, Verdict
from trtops.tracking.calibrations import load_cache
from trtops.tracking.tables import log_table

Calibrator: TypeAlias = Literal["onnxruntime", "tensorrt"]

_EVALUATED_FEEDS = 32
_TENSORRT_ALGORITHMS = {"entropy": "entropy2", "minmax": "minmax"}


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(Record):
    """What to calibrate with, how, and how to evaluate what comes out.

    Attributes:
        data: Where calibration data comes from (:func:`trtops.ops.evaluation.feeds.open_feeds`). Random data is not taken: its ranges
            say nothing.
        calibrator: What runs the model: ONNX Runtime on the CPU, or TensorRT with its own calibrator (up to 10.16).
        algorithm: How ranges are chosen (:meth:`trtops.calibration.histogram.Histogram.choose`). TensorRT's own
            calibrators know ``entropy`` and ``minmax``.
        percentile: For the algorithm of that name.
        batch: Samples per feed; None uses feeds as they come.
        samples: How many samples to use at most; None uses all.
        min_samples: Fewer are refused.
        build: How the INT8 engine is built: its back end, and the layers it keeps in higher precision.
        beside: Precisions to build and evaluate as well, to compare INT8 with.
        check: How engines are evaluated; best with data that was held out. Without data of its own, on the calibration data:
            of what random data goes through the network, ranges of real data say nothing.
        pictures: Tensors whose histograms are drawn, the most clipped first.
        output: File to write the cache to as well: our JSON if it ends in ``.json``, else TensorRT's text.
    """

    data: str | None = None
    calibrator: Calibrator = "onnxruntime"
    algorithm: Algorithm = "entropy"
    percentile: float = DEFAULT_PERCENTILE
    batch: int | None = None
    samples: int | None = 512
    min_samples: int = 2
    build: BuildConfig = field(default_factory=lambda: BuildConfig(precision="int8"))
    beside: tuple[Precision, ...] = ("fp32", "fp16")
    check: CheckConfig = field(default_factory=CheckConfig)
    pictures: int = 48
    output: str | None = None

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm, self.percentile)
        if self.calibrator == "tensorrt" and self.algorithm not in _TENSORRT_ALGORITHMS:
            raise errors.ConfigError(
                f"TensorRT's calibrators do not know {self.algorithm!r}. Take one of "
                f"{', '.join(_TENSORRT_ALGORITHMS)}, or calibrator='onnxruntime': its cache builds on TensorRT as well."
            )


@dataclass(frozen=True, kw_only=True)
class CalibrateResult(OpResult):
    """What came out, in numbers and names; caches, tables and pictures are in the run.

    Attributes:
        verdict: Whether the INT8 engine is good enough.
        reasons: Why not, one sentence each.
        algorithm: How the ranges were chosen.
        cache_sha256: Digest of the ranges.
        data_sha256: Digest of the data they are of.
        samples: Samples used.
        feeds: Feeds they came in.
        tensors: Tensors that have a range.
        excluded: Tensors that have none, since NaN or infinity occurred in them.
        seconds: Wall time of the calibration, without building and evaluating.
        engines: The engines, in the order of the config's ``beside``, INT8 last; each has a run of its own below this one.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    algorithm: str
    cache_sha256: str
    data_sha256: str
    samples: int
    feeds: int
    tensors: int
    excluded: tuple[str, ...]
    seconds: float
    engines: tuple[ConvertResult, ...]

    def engine(self, precision: Precision) -> ConvertResult:
        """The engine of a precision.

        Raises:
            KeyError: If none was built.
        """
        return {engine.precision: engine for engine in self.engines}[precision]

    @property
    def next_step(self) -> str:
        """Of an INT8 engine that is not good enough, ask which layers cost the most."""
        if self.run_id and self.verdict == "bad" and self.subject:
            return f"trtops sensitivity {shlex.quote(self.subject)} --calibration-cache run:{self.run_id}"
        return super().next_step

    def body(self) -> Iterable[str]:
        """Why INT8 is not good enough, what the ranges are of, and a row for each engine."""
        yield from (f"- {reason}" for reason in self.reasons)
        yield ""
        yield (
            f"Ranges of {self.tensors} tensors by {self.algorithm}, from {self.samples} samples in "
            f"{self.seconds:.2f} s (data `{self.data_sha256[:12]}`, ranges `{self.cache_sha256[:12]}`)."
        )
        if self.excluded:
            names = ", ".join(f"`{name}`" for name in self.excluded)
            yield from ("", f"Without a range, since NaN or infinity occurred: {names}.")
        yield from ("", f"| precision | {ROW_HEADER[1]} | verdict | largest error | accuracy | p50 | engine | run |")
        yield "|---" * 8 + "|"
        for engine in self.engines:
            row = engine.row()
            yield f"| {' | '.join((*row[:4], *row[5:8]))} | `{row[9]}` |"


def calibrate(
    model: str | Path,
    config: CalibrateConfig | None = None,
    *,
    tracker: Tracker,
    data: Iterable[Feed] | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    progress: OnProgress | None = None,
) -> CalibrateResult:
    """Calibrate a model, build INT8 from the cache, evaluate it beside other precisions, and keep everything in runs.

    Feeds are read once, one at a time. The cache is logged as our JSON and as TensorRT's text, with the ranges as a table
    and histograms as pictures.

    Args:
        model: The ONNX file.
        config: What to calibrate with and how to evaluate.
        tracker: The memory.
        data: Calibration data, in place of the config's source.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.
        progress: Called after every feed with the number of samples.

    Returns:
        The result. An INT8 engine that is not good enough is a result.

    Raises:
        CalibrationError: If the data is bad, missing or too little. What was collected before is logged as
            ``caches/calibration.partial.json`` to the run, which is marked failed, and is the error's ``partial``.
        ConfigError: If there is no source of data.
        TrtopsError: Whatever else went wrong.
    """
    config = CalibrateConfig() if config is None else config
    path = Path(model)
    experiment = experiment or path.stem
    name = f"{path.stem} calibrate {config.algorithm}"
    if config.data is None and data is None:
        raise errors.ConfigError("No calibration data is given; expected a source of real inputs (data=...).")
    loaded = Model.load(path)
    with op_run(tracker, experiment, name, kind="calibrate", model=path, tags=tags, parent=parent) as run:
        run.log_params(schema.flat_params(config))
        run.set_tags({schema.Tag.MODEL_SHA256: loaded.info.sha256})
        start = time.perf_counter()
        remembered = None if data is None else _RememberedFeeds(open_feeds(data, TensorMetadata.of(loaded.info.inputs)))
        cache, histograms = collect_ranges(loaded, config, data=remembered, run=run, progress=progress)
        seconds = time.perf_counter() - start
        _log_cache(run, cache, histograms, config, seconds)
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("calibration")) as folder:
            evaluated = replace(config, check=_check_on_real_data(config, remembered, Path(folder)))
            engines = _build_engines(
                path, cache, evaluated, tracker=tracker, experiment=experiment, tags=tags, parent=run.id
            )
        _log_engines(run, engines)
        result = replace(_calibrate_result(cache, engines, seconds), title=f"calibrate {path.name}", subject=str(path))
        finish_with(run, result, tracker)
        return result.kept_in(run, experiment)


class _RememberedFeeds:
    """Feeds that are in memory, of which the first are kept as they pass, to evaluate engines with."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = feeds
        self.first: list[Feed] = []

    def __iter__(self) -> Iterator[Feed]:
        self.first = []
        for feed in self._feeds:
            if len(self.first) < _EVALUATED_FEEDS:
                self.first.append(feed)
            yield feed


def _check_on_real_data(config: CalibrateConfig, remembered: _RememberedFeeds | None, folder: Path) -> CheckConfig:
    """The check, on the calibration data if it has none of its own."""
    check = config.check
    if check.data is not None or check.golden is not None:
        return check
    if remembered is None:
        return replace(check, data=config.data)
    file = folder / "feeds.json"
    save_json([dict(feed) for feed in remembered.first], str(file), "the first feeds of the calibration")
    return replace(check, data=str(file))


def _calibrate_result(cache: CalibrationCache, engines: tuple[ConvertResult, ...], seconds: float) -> CalibrateResult:
    """The result, whose verdict is that of the INT8 engine, the last one."""
    return CalibrateResult(
        verdict=engines[-1].verdict,
        reasons=engines[-1].reasons,
        algorithm=cache.algorithm,
        cache_sha256=cache.digest,
        data_sha256=cache.data_sha256 or "",
        samples=cache.samples,
        feeds=cache.feeds,
        tensors=len(cache),
        excluded=cache.excluded,
        seconds=seconds,
        engines=engines,
    )


def collect_ranges(
    model: Model,
    config: CalibrateConfig,
    *,
    data: Iterable[Feed] | None = None,
    run: Run = NO_RUN,
    progress: OnProgress | None = None,
) -> tuple[CalibrationCache, Mapping[str, Histogram]]:
    """The calibration itself: a cache, and the histograms behind it (none from TensorRT's calibrators).

    Args:
        model: The model.
        config: What to calibrate with.
        data: Calibration data, in place of the config's source.
        run: Where what was collected is kept if the data fails half-way.
        progress: Called after every feed with the number of samples; not by TensorRT's calibrators.

    Raises:
        CalibrationError: If the data is bad, missing or too little.
        ConfigError: If there is no source of data.
    """
    source = config.data if data is None else data
    if source is None:
        raise errors.ConfigError("No calibration data is given; expected a source of real inputs (data=...).")
    inputs = TensorMetadata.of(model.info.inputs)
    feeds = batches(open_feeds(source, inputs), config.batch, config.samples)
    if config.calibrator == "tensorrt":
        return _collect_with_tensorrt(model, config, feeds), {}
    from trtops.backend.onnxrt.calibration import collect

    try:
        collected = collect(
            model.proto(lean=True),
            feeds,
            inputs=inputs,
            algorithm=config.algorithm,
            percentile=config.percentile,
            min_samples=config.min_samples,
            model_sha256=model.info.sha256,
            counted=config.pictures > 0,
            progress=None if progress is None else lambda done: progress(done.samples, None),
        )
    except errors.CalibrationError as exc:
        raise _keep_partial(exc, config, run) from exc
    return collected.cache, collected.histograms


def _keep_partial(exc: errors.CalibrationError, config: CalibrateConfig, run: Run) -> errors.CalibrationError:
    """Keep what was collected before the data failed, and say where."""
    if not isinstance(exc.partial, CalibrationCache):
        return exc
    places = []
    if run.id:
        run.log_json(exc.partial, schema.Artifact.CALIBRATION_PARTIAL)
        places.append(f"run {run.id}, {schema.Artifact.CALIBRATION_PARTIAL}")
    if config.output is not None:
        path = f"{config.output}.partial"
        write_cache(exc.partial, path)
        places.append(path)
    where = f" It is in {' and in '.join(places)}." if places else ""
    return errors.CalibrationError(f"{exc}{where}", partial=exc.partial)


def _collect_with_tensorrt(model: Model, config: CalibrateConfig, feeds: Iterable[Feed]) -> CalibrationCache:
    """Let TensorRT calibrate in a build, whose engine is thrown away."""
    from trtops.backend.trt.build.backend import TensorRTBackend

    backend = TensorRTBackend(calibration_algorithm=_TENSORRT_ALGORITHMS[config.algorithm])
    options = config.build.options if isinstance(config.build.options, TensorRTOptions) else TensorRTOptions()
    counted = _CountedFeeds(feeds)
    # The feeds are limited already.
    build_config = replace(config.build, precision="int8", options=options, calibration_samples=2**31 - 1)
    build = backend.build(model, build_config, calibration_data=counted)
    if build.calibration_cache is None:
        raise errors.CalibrationError("TensorRT calibrated nothing; does the model have Q/DQ nodes already?")
    if counted.samples < config.min_samples:
        raise errors.CalibrationError(
            f"The calibration data has {counted.samples} samples; expected {config.min_samples} or more."
        )
    return replace(
        CalibrationCache.from_bytes(build.calibration_cache),
        samples=counted.samples,
        feeds=counted.feeds,
        data_sha256=counted.digest.hexdigest(),
        model_sha256=model.info.sha256,
    )


class _CountedFeeds:
    """Feeds, counted and digested as they pass."""

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = feeds
        self.digest = FeedDigest()
        self.feeds = 0
        self.samples = 0

    def __iter__(self) -> Iterator[Feed]:
        for feed in self._feeds:
            self.digest.add(feed)
            self.feeds += 1
            self.samples += samples_in(feed)
            yield feed


def write_cache(cache: CalibrationCache, path: str | Path) -> None:
    """Write a cache to a file, whole or not at all: our JSON if its name ends in ``.json``, else TensorRT's text.

    A partial cache, ``<name>.partial``, is written like ``<name>``, with what it is partial of only in our JSON.
    """
    name = str(path).removesuffix(".partial")
    with open_atomically(path) as file:
        file.write(cache.to_bytes() if name.endswith(".json") else cache.to_tensorrt())


def _log_cache(
    run: Run, cache: CalibrationCache, histograms: Mapping[str, Histogram], config: CalibrateConfig, seconds: float
) -> None:
    run.log_bytes(cache.to_tensorrt(), schema.Artifact.CALIBRATION_CACHE)
    run.log_json(cache, schema.Artifact.CALIBRATION_JSON)
    log_table(
        run,
        schema.Artifact.CALIBRATION_RANGES,
        ("tensor", "amax", "scale", "lowest", "highest", "clipped"),
        ((e.name, e.amax, e.scale, e.low, e.high, e.clipped) for e in cache.ranges),
    )
    if config.pictures > 0 and histograms:
        from trtops.calibration.picture import histogram_pages

        for number, page in enumerate(histogram_pages(cache, histograms, config.pictures)):
            run.log_bytes(page, f"{schema.Artifact.CALIBRATION_PICTURES}histograms_{number:02d}.png")
    run.set_tags({schema.Tag.DATA_SHA256: cache.data_sha256 or ""})
    run.log_metrics(
        {
            (schema.Metric.CALIBRATION, "samples"): float(cache.samples),
            (schema.Metric.CALIBRATION, "feeds"): float(cache.feeds),
            (schema.Metric.CALIBRATION, "tensors"): float(len(cache)),
            (schema.Metric.CALIBRATION, "excluded"): float(len(cache.excluded)),
            (schema.Metric.CALIBRATION, "seconds"): seconds,
        }
    )
    if config.output is not None:
        write_cache(cache, config.output)


def _build_engines(
    path: Path,
    cache: CalibrationCache,
    config: CalibrateConfig,
    *,
    tracker: Tracker,
    experiment: str,
    tags: Mapping[str, str] | None,
    parent: str,
) -> tuple[ConvertResult, ...]:
    """One run each for the precisions to compare with, then for INT8 from the cache."""
    beside = [precision for precision in dict.fromkeys(config.beside) if precision != "int8"]
    precisions: list[Precision] = [*beside, "int8"]
    results = []
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("calibration")) as folder:
        file = Path(folder, "calibration.json")
        file.write_bytes(cache.to_bytes())
        for precision in precisions:
            convert_config = ConvertConfig(
                build=replace(config.build, precision=precision),
                check=config.check,
                calibration_cache=str(file) if precision == "int8" else None,
            )
            results.append(
                convert(path, convert_config, tracker=tracker, experiment=experiment, tags=tags, parent=parent)
            )
    return tuple(results)


def _log_engines(run: Run, engines: Iterable[ConvertResult]) -> None:
    """The engines' accuracy and largest error, side by side."""
    metrics: dict[tuple[str, ...], float] = {}
    for engine in engines:
        if engine.evaluation.accuracy is not None:
            metrics[schema.Metric.ACCURACY, engine.precision] = engine.evaluation.accuracy.actual
            metrics[schema.Metric.ACCURACY, "golden"] = engine.evaluation.accuracy.golden
        if engine.evaluation.latency is not None:
            metrics[schema.Metric.LATENCY, engine.precision] = engine.evaluation.latency.p50_ms
        for output in engine.evaluation.report.outputs:
            if output.statistics is not None:
                metrics[schema.Metric.ERROR, output.name, f"{engine.precision}_max_abs"] = output.statistics.max_abs
    run.log_metrics(metrics)


def diff_caches(before: str, after: str, *, ratio: float = DEFAULT_RATIO, tracker: Tracker | None = None) -> CacheDiff:
    """What differs between two calibration caches, given as :func:`load_cache` takes them.

    Args:
        before: One cache.
        after: The other.
        ratio: Ranges further apart than this, larger divided by smaller, are listed.
        tracker: The memory, if one of them is in a run.
    """
    return diff(load_cache(before, tracker), load_cache(after, tracker), ratio)
