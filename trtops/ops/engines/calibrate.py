"""Calibrate: from a model and real data to a calibration cache for INT8, evaluated by building an engine with it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.common import save_bytes
from trtops.backend.onnx.model import Model
from trtops.calibration.cache import CalibrationCache
from trtops.calibration.choice import AlgorithmOrBest, Comparison
from trtops.calibration.data import batches, data_source, is_same_source
from trtops.calibration.histogram import DEFAULT_PERCENTILE, Algorithm, check_algorithm
from trtops.comparator.report import iterations_of
from trtops.comparator.results import RunResults
from trtops.metadata import TensorMetadata, check_feed
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult, builds_frame, builds_table
from trtops.ops.engines.request import CommandData, check_names
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import open_feeds
from trtops.ops.evaluation.shapes import points
from trtops.ops.result import OnProgress, OpResult, model_file, model_source, op_run, run_step, tracker_or_default
from trtops.record import Config, setting
from trtops.reports.document import Table
from trtops.spec import BuildConfig
from trtops.system.processes import temporary_prefix
from trtops.tables import counted, markdown_table
from trtops.tracking import schema
from trtops.tracking.base import Run, Tracker, Verdict

if TYPE_CHECKING:
    import pandas as pd

    from trtops.backend.onnxrt.calibration import Collected

_EVALUATED_FEEDS = 32


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(
    Config, uses={"build": "profiles calibration_samples calibration_fit keep qdq_op_types qdq_rules mark options"}
):
    """What to calibrate with, how, and how to evaluate the result.

    Attributes:
        calibration_data: Data source for the ranges; the check's own data by default. Random data is refused, because
            its ranges are meaningless. Data of other shapes than ``check.input_shapes`` is refused.
        algorithm: How ranges are chosen: by a named algorithm (:meth:`trtops.calibration.histogram.Histogram.choose`),
            or by the one whose INT8 model has the smallest error on data that was held out: the data of ``check``, or
            every second feed of the first 32 of the calibration data.
        percentile: For the algorithm of that name: the share of values that are not clipped, in percent.
        batch: Samples per feed; None uses feeds as they come.
        samples: Maximum number of samples; None uses all.
        min_samples: Minimum number of samples.
        build: How the INT8 engine is built: its back end, and the layers it keeps in higher precision.
        check: How the engine is evaluated, best on data that was held out; by default on the calibration data.
        output: File to write the cache to as well: our JSON if it ends in ``.json``, else TensorRT's text.
    """

    calibration_data: str | None = setting(None, convert=data_source, file="reads")
    algorithm: AlgorithmOrBest = "best"
    percentile: float = setting(DEFAULT_PERCENTILE, most=100)
    batch: int | None = setting(None, least=1)
    samples: int | None = setting(512, least=1)
    min_samples: int = setting(2, least=1)
    build: BuildConfig = field(default_factory=lambda: BuildConfig(precision="int8"))
    check: CheckConfig = field(default_factory=CheckConfig)
    output: str | None = setting(None, file="writes")

    def __post_init__(self) -> None:
        check_algorithm("minmax" if self.algorithm == "best" else self.algorithm, self.percentile)

    @property
    def has_check_data(self) -> bool:
        """Whether engines are evaluated on other data than that of calibration."""
        sources = self.calibration_data, self.check.data
        return None not in sources and not is_same_source(*sources)


@dataclass(frozen=True, kw_only=True)
class CalibrateResult(OpResult):
    """The result of calibrating; caches and tables are in the run."""

    verdict: Verdict  # of the INT8 engine
    reasons: tuple[str, ...]
    algorithm: Algorithm
    comparison: Comparison | None = None  # of the algorithms; None if one was named
    cache_sha256: str
    data_sha256: str
    samples: int
    feeds: int
    tensors: int  # with a range
    excluded: tuple[str, ...]  # tensors without a range, because NaN or infinity occurred in them
    seconds: float  # of collecting the ranges, without comparing algorithms, building and evaluating
    engine: ConvertResult  # in INT8, in a child run
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config that are not the default

    @property
    def next_step(self) -> NextStep | None:
        """Measure the cost of each layer if INT8 is not good enough; build FP32 if INT8 does not pay."""
        if self.verdict == "good" and not self.engine.pays:
            return self.engine.next_step
        data = self.options.get("data") or self.options.get("calibration_data")
        if not (self.run_id and self.verdict == "bad" and self.subject and data):
            return super().next_step
        arguments = {"model": self.subject, "calibration_cache": f"run:{self.run_id}", "data": data}
        arguments["experiment"] = self.experiment
        style = self.engine.backend
        arguments |= {"style": style} if style == "tensorrt" else {}
        return NextStep.after(self.options, "sensitivity", arguments)

    @property
    def evidence(self) -> str:
        """What the verdict on the INT8 engine rests on."""
        return self.engine.evidence

    @property
    def figures(self) -> str:
        """The ranges, and the data they come from."""
        ranges = f"ranges of {counted(self.tensors, 'tensor')} by {self.algorithm}, {counted(self.samples, 'sample')}"
        return f"{ranges}; INT8 {self.engine.gain}" if self.engine.gain else ranges

    def overview(self) -> Table:
        """Return a row for the engine."""
        return builds_table([self.engine], ("build", "verdict", "accuracy", "p50", "engine", "run"))

    def to_frame(self) -> pd.DataFrame:
        """Return a row for the engine, as :func:`~trtops.ops.engines.convert_result.builds_frame`."""
        return builds_frame([self.engine])

    def body(self) -> Iterable[str]:
        """A summary of the ranges, and a row for the engine."""
        yield (
            f"Ranges of {self.tensors} tensors by {self.algorithm}, from {counted(self.samples, 'sample')} in "
            f"{self.seconds:.2f} s (data `{self.data_sha256[:12]}`, ranges `{self.cache_sha256[:12]}`)."
        )
        if self.comparison is not None:
            yield from ("", self.comparison.sentence(), "", markdown_table(Comparison.COLUMNS, self.comparison.rows()))
        if self.excluded:
            names = ", ".join(f"`{name}`" for name in self.excluded)
            yield from ("", f"Without a range, since NaN or infinity occurred: {names}.")
        table = builds_table([self.engine])
        yield from ("", markdown_table(table.columns, table.rows))


@checked_arguments
def calibrate(
    model: str | Path | Model,
    config: CalibrateConfig = CalibrateConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> CalibrateResult:
    """Calibrate a model, build INT8 from the cache, evaluate it, and log everything to runs.

    The cache is logged as our JSON and as TensorRT's text, with a table of the ranges. An INT8 engine that is not good
    enough is a result, not an error.

    CalibrationError if the data is bad, missing or too little. What was collected before is logged as
    ``caches/calibration.partial.json`` to the failed run, and is the error's ``partial``.

    >>> result = trtops.calibrate("model.onnx", calibration_data="feed.npz", algorithm="entropy")
    >>> result.verdict, result.algorithm, result.samples, result.tensors
    ('good', 'entropy', 2, 10)
    """
    tracker = tracker_or_default(tracker)
    path = model_file(model)
    name = f"{path.stem} calibrate {config.algorithm}"
    calibration_data = config.check.data if config.calibration_data is None else config.calibration_data
    if calibration_data is None:
        raise errors.ConfigError("There is no calibration data; expected real inputs (calibration_data=...).")
    loaded = run_step("load", Model.load, model)
    check_names(loaded, config.build, config.check)
    if config.build.backend == "onnxruntime":
        from trtops.backend.onnxrt.builder import refuse_large  # imports ONNX Runtime

        refuse_large(loaded)  # before ranges are collected, which takes minutes for such a model
    with (
        op_run(tracker, experiment, name, kind="calibrate", model=path, tags=tags) as op,
        tempfile.TemporaryDirectory(prefix=temporary_prefix("calibration")) as folder,
    ):
        run = op.run
        run.log_params(config)
        run.set_tags({schema.Tag.MODEL_SHA256: loaded.info.sha256})
        start = time.perf_counter()
        inputs = _inputs(loaded, config)
        source = open_feeds(calibration_data, inputs)
        collected = run_step("collect ranges", _collect, loaded, config, source, inputs, run, progress)
        seconds = time.perf_counter() - start
        check = config.check
        if check.data is None and check.golden is None:
            check = replace(check, data=calibration_data)  # random data would leave its ranges
        is_open = check.data is not None and not config.has_check_data
        evaluated = CommandData(loaded, check, source=source if is_open else None)
        if config.has_check_data:
            for feed in evaluated.feeds().first(_EVALUATED_FEEDS):
                check_feed(inputs, feed)
        build = evaluated.profiled(replace(config.build, precision="int8"))
        golden = evaluated.golden(build.profiles)  # once for the engine, and to compare algorithms
        algorithm, comparison = config.algorithm, None
        if algorithm == "best":
            comparison = _compare_algorithms(collected, config, evaluated, golden, run)
            algorithm = comparison.chosen
        cache = collected.cache(algorithm, config.percentile)
        _log_cache(run, cache, config, seconds)
        cache_file = Path(folder, "calibration.json")
        cache_file.write_bytes(cache.to_bytes())
        convert_config = ConvertConfig(build=build, check=evaluated.check, calibration_cache=str(cache_file))
        logged: dict[str, Any] = {"tracker": tracker, "experiment": op.experiment, "tags": tags, "parent": run.id}
        engine = convert(model, convert_config, opened=evaluated, **logged)
        result = CalibrateResult(
            title=f"calibrate {path.name}",
            subject=model_source(model),
            verdict=engine.verdict,
            reasons=engine.reasons,
            algorithm=algorithm,
            comparison=comparison,
            cache_sha256=cache.digest,
            data_sha256=cache.data_sha256 or "",
            samples=cache.samples,
            feeds=cache.feeds,
            tensors=len(cache),
            excluded=cache.excluded,
            seconds=seconds,
            engine=engine,
            options=arguments_of(config),
        )
        return op.finish(result)


def _inputs(model: Model, config: CalibrateConfig) -> TensorMetadata:
    """The model's inputs, with the requested shapes; ConfigError if these do not fit the model."""
    inputs, input_shapes = TensorMetadata.of(model.info.inputs), config.check.input_shapes
    shapes = points(inputs, input_shapes)[0].shapes if input_shapes else {}
    for name, requested in input_shapes.items():
        declared = inputs[name].shape or requested
        shape = tuple(size if dim >= 0 else old for dim, size, old in zip(requested, shapes[name], declared))
        inputs.add(name, inputs[name].dtype, shape)
    return inputs


def _collect(
    model: Model,
    config: CalibrateConfig,
    data: Iterable[Feed],
    inputs: TensorMetadata,
    run: Run,
    progress: OnProgress | None,
) -> Collected:
    """The values of the model's tensors. What was collected before the data failed is logged to the run."""
    from trtops.backend.onnxrt.calibration import Collected, collect

    # Feeds are read once and one at a time: calibration data is often larger than memory.
    try:
        return collect(
            model.proto(lean=True),
            batches(data, config.batch, config.samples),
            inputs=inputs,
            min_samples=config.min_samples,
            model_sha256=model.info.sha256,
            counted=config.algorithm != "minmax",
            hold_out=config.algorithm == "best" and not config.has_check_data,
            progress=None if progress is None else lambda samples: progress(samples, None),
        )
    except errors.CalibrationError as exc:
        if not isinstance(exc.partial, Collected):
            raise
        # Without the rest of the data algorithms are not compared.
        partial = exc.partial.cache("minmax" if config.algorithm == "best" else config.algorithm, config.percentile)
        run.log_json(partial, schema.Artifact.CALIBRATION_PARTIAL)
        where = f" It is in run {run.id}, {schema.Artifact.CALIBRATION_PARTIAL}." if run.id else ""
        raise errors.CalibrationError(f"{exc}{where}", partial=partial) from exc


def _compare_algorithms(
    collected: Collected, config: CalibrateConfig, evaluated: CommandData, golden: RunResults, run: Run
) -> Comparison:
    """Compare the algorithms, quantized as for the config's back end, and log the comparison."""
    from trtops.backend.onnxrt.calibration import Quantizer, compare
    from trtops.backend.onnxrt.log import SessionLog

    held_out = None
    if config.has_check_data:
        held_out = list(zip(evaluated.feeds().first(_EVALUATED_FEEDS), iterations_of(golden, "golden")))
    quantizer = Quantizer(evaluated.model.proto(lean=True), SessionLog(), config.build)
    comparison = run_step("compare algorithms", compare, collected, quantizer, config.percentile, held_out)
    run.log_table(schema.Artifact.CALIBRATION_ALGORITHMS, Comparison.COLUMNS, comparison.rows())
    run.log_params({"chosen_algorithm": comparison.chosen})
    run.log_metrics({(schema.Metric.CALIBRATION, "error", entry.algorithm): entry.error for entry in comparison.errors})
    return comparison


def _log_cache(run: Run, cache: CalibrationCache, config: CalibrateConfig, seconds: float) -> None:
    # TensorRT's text has only scales; the JSON also has what they were chosen from.
    run.log_bytes(cache.to_tensorrt(), schema.Artifact.CALIBRATION_CACHE)
    run.log_json(cache, schema.Artifact.CALIBRATION_JSON)
    run.log_table(
        schema.Artifact.CALIBRATION_RANGES,
        ("tensor", "amax", "scale", "lowest", "highest", "clipped"),
        ((e.name, e.amax, e.scale, e.low, e.high, e.clipped) for e in cache.ranges),
    )
    run.set_tags({schema.Tag.DATA_SHA256: cache.data_sha256 or ""})
    counts = {"samples": cache.samples, "feeds": cache.feeds, "tensors": len(cache), "excluded": len(cache.excluded)}
    run.log_metrics(schema.family(schema.Metric.CALIBRATION, seconds=seconds, **counts))
    if config.output is not None:
        save_bytes(cache.to_bytes() if config.output.endswith(".json") else cache.to_tensorrt(), config.output)
