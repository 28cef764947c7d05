"""Repair: kept nodes, denied tactics, fusion breakers, optimization level and INT8 ranges, together, for speed.

Every engine that is tried is a build of its own below the repair's run, as ``convert`` makes it, so that what earlier runs of
this model have in the memory is taken from there and costs no build.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import lower_precision
from trtops.backend.onnx.quantize import quantizable_layers
from trtops.backend.onnxrt import tactics
from trtops.backend.onnxrt.calibration import collect
from trtops.calibration.cache import CalibrationCache
from trtops.files import open_atomically
from trtops.metadata import TensorMetadata
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.evaluation.feeds import check_source, open_feeds
from trtops.ops.repairing.config import RepairConfig, RepairResult, as_trials
from trtops.ops.repairing.finals import retimed
from trtops.ops.repairing.space import Outcome, Point, Search, Space, SpentError, fastest
from trtops.ops.result import finish_with, model_file, op_run
from trtops.ops.search.isolation.marking import IsolationConfig, find_marks
from trtops.processes import temporary_prefix
from trtops.spec import BuildConfig, OnnxRuntimeOptions, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker
from trtops.tracking.memory import MemoryTracker

_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
_GIVEN = "given"


def repair(
    model: str | Path,
    config: RepairConfig | None = None,
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    progress: Callable[[Point, Outcome], None] | None = None,
) -> RepairResult:
    """Find the fastest engine that passes.

    Args:
        model: The ONNX file.
        config: What may be changed, and what it may cost.
        tracker: The memory, which gets a run with one below it for each engine; without one it ends with this process.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of all runs.
        parent: Id of a parent run.
        progress: Called after each engine.

    Returns:
        The chosen engine's config, and all engines with error and latency. That none passes is a result.

    Raises:
        ModelError: If the model cannot be used.
        CalibrationError: If INT8 cannot be calibrated.
        ConfigError: If the config cannot be meant.
        OSError: If a file cannot be written.
    """
    config = RepairConfig() if config is None else config
    check_source(config.check.data)
    memory: Tracker = MemoryTracker() if tracker is None else tracker
    path = model_file(model)
    experiment = experiment or path.stem
    with op_run(memory, experiment, f"{path.stem} repair", kind="repair", model=path, tags=tags, parent=parent) as run:
        started = time.perf_counter()
        opened = Model.load(path)
        run.set_tags({schema.Tag.MODEL_SHA256: opened.info.sha256})
        trying = Trying(path, opened, config, memory, experiment, tags or {}, run, started)
        search = Search(trying.space(), trying, config.max_builds, config.patience, progress)
        chosen = search.run()
        if chosen is None and "mark" in config.change and not config.mark:
            search = _with_marks(trying, search, progress)
            chosen = search.best
        if chosen is not None:
            feed = next(iter(config.check.open_for(opened)))
            final = retimed(search.trials, memory, feed, rounds=max(config.check.latency_runs // 3, 3))
            search.trials |= final
            chosen = fastest(final)
        result = RepairResult(
            title=f"repair {path.name}",
            subject=str(path),
            verdict="bad" if chosen is None else "good",
            chosen=chosen,
            config=None if chosen is None else trying.converted(chosen),
            trials=as_trials(search.trials),
            size=search.space.size,
            builds=search.builds + trying.builds_beside,
            reused=sum(outcome.builds == 0 for outcome in search.trials.values()),
            ended=search.ended,
            seconds=time.perf_counter() - started,
            output=config.output if chosen is not None else None,
        ).kept_in(run, experiment)
        _write_files(result, config)
        _log_result(run, result, config, opened)
        finish_with(run, result, memory)
        return result


def _with_marks(trying: Trying, before: Search, progress: Callable[[Point, Outcome], None] | None) -> Search:
    """Search again with the tensors that are found to take the error away, where nothing else does."""
    config = trying.config
    asked = IsolationConfig(**_data_of(config), tolerances=config.check.tolerances, max_builds=config.max_builds)
    found = find_marks(
        trying.model, config.build, asked, tracker=trying.tracker, experiment=trying.experiment, tags=trying.tags,
        parent=trying.run.id or None, file=trying.path,
    )  # fmt: skip
    trying.builds_beside += found.builds
    if not found.marked:
        return before
    trying.config = replace(config, mark=found.marked)
    search = Search(trying.space(), trying, config.max_builds, config.patience, progress, dict(before.trials))
    search.run()
    return search


def _data_of(config: RepairConfig) -> dict[str, Any]:
    check = config.check
    return {"data": check.data, "iterations": check.iterations, "seed": check.seed}


@dataclass
class Trying:
    """Builds and evaluates the engines of a search; what a point stands for is known here.

    Attributes:
        path: The model's file.
        model: The model.
        config: The repair.
        tracker: The memory.
        experiment: The experiment of all runs.
        tags: Further tags of all runs.
        run: The repair's run.
        started: When it began.
        builds_beside: Builds that were made to find out what may be changed.
    """

    path: Path
    model: Model
    config: RepairConfig
    tracker: Tracker
    experiment: str
    tags: Mapping[str, str]
    run: Run
    started: float
    builds_beside: int = 0
    _caches: dict[str, str] | None = None

    def space(self) -> Space:
        """What may be changed."""
        measures = [
            *(f"keep {name}" for name in self._keepable),
            *(f"deny {name}" for name in self._deniable()),
            *(f"mark {name}" for name in (self.config.mark if "mark" in self.config.change else ())),
        ]
        settings: list[tuple[str, tuple[str, ...]]] = []
        if self.config.build.precision == "int8" and "calibration" in self.config.change:
            given = (_GIVEN,) if self.config.calibration_cache is not None else ()
            settings.append(("ranges", (*given, *self.config.algorithms)))
        if self.config.on_tensorrt and "level" in self.config.change and self.config.levels:
            settings.append(("level", tuple(map(str, self.config.levels))))
        return Space(measures=tuple(measures), settings=tuple(settings))

    @functools.cached_property
    def _keepable(self) -> list[str]:
        if "keep" not in self.config.change or self.config.build.precision == "fp32":
            return []
        if self.config.keep:
            return list(self.config.keep)
        proto = self.model.proto()
        if self.config.build.precision == "int8":
            return list(quantizable_layers(proto))
        if self.config.build.precision in ("fp16", "bf16"):
            return list(lower_precision(proto, self.config.build.precision).lowered)
        return []

    def _deniable(self) -> list[str]:
        options = self.config.build.options
        if "deny" not in self.config.change:
            return []
        if isinstance(options, TensorRTOptions):
            return list(options.tactic_sources or _SOURCES)
        if options.tactic_seed is None and not options.allow_approximation:
            return []  # what is exact differs by rounding alone
        return [t.name for t in tactics.allowed(options.tactics, allow_approximation=options.allow_approximation)]

    def __call__(self, point: Point) -> Outcome:
        """Build and evaluate one engine, in a run of its own."""
        minutes = (time.perf_counter() - self.started) / 60
        if self.config.minutes is not None and minutes >= self.config.minutes:
            raise SpentError(f"{self.config.minutes:g} minutes are over")
        try:
            found = convert(
                self.path, self.converted(point), tracker=self.tracker, experiment=self.experiment, tags=self.tags,
                parent=self.run.id or None,
            )  # fmt: skip
        except (errors.BackendError, errors.ConfigError) as exc:
            return Outcome(
                good=False, error=float("inf"), latency_ms=float("inf"), why=" ".join(str(exc).split())[:300]
            )
        return _outcome_of(found)

    def converted(self, point: Point) -> ConvertConfig:
        """What a point stands for."""
        taken: dict[str, list[str]] = {"keep": [], "deny": [], "mark": []}
        for measure in point.measures:
            kind, _, name = measure.partition(" ")
            taken[kind].append(name)
        settings = dict(point.settings)
        build = self.config.build
        build = replace(
            build,
            keep=(*build.keep, *taken["keep"]),
            mark=(*build.mark, *taken["mark"]),
            options=_with_options(build, taken["deny"], settings.get("level")),
        )
        if taken["keep"] and not self.config.keep and set(taken["keep"]) >= set(self._keepable):
            return ConvertConfig(build=_in_fp32(build), check=self.config.check)
        return ConvertConfig(
            build=build,
            check=self.config.check,
            calibration_data=self.config.calibration_data,
            calibration_cache=self._cache_of(settings.get("ranges", _GIVEN)),
        )

    def _cache_of(self, algorithm: str) -> str | None:
        if algorithm == _GIVEN:
            return self.config.calibration_cache
        if self._caches is None:
            self._caches = self._calibrate()
        return self._caches[algorithm]

    def _calibrate(self) -> dict[str, str]:
        """A calibration cache in a file for each way to choose ranges, beside the config that is to name it."""
        inputs = TensorMetadata.of(self.model.info.inputs)
        source = self.config.calibration_data
        feeds = self.config.check.open_for(self.model) if source is None else open_feeds(source, inputs)
        collected = collect(
            self.model.proto(), feeds, inputs=inputs, algorithm="entropy", max_feeds=self.config.build.calibration_samples,
            model_sha256=self.model.info.sha256,
        )  # fmt: skip
        folder = Path(self.config.output).absolute().parent if self.config.output else Path(self._folder())
        stem = Path(self.config.output).stem if self.config.output else self.path.stem
        files: dict[str, str] = {}
        for algorithm in self.config.algorithms:
            cache = _chosen(collected, algorithm)
            file = folder / f"{stem}_{algorithm}.cache.json"
            with open_atomically(file) as handle:
                handle.write(cache.to_json().encode("utf-8"))
            files[algorithm] = str(file)
        return files

    def _folder(self) -> str:
        self._held: Any = tempfile.TemporaryDirectory(prefix=temporary_prefix("repair"))
        return str(self._held.name)


def _chosen(collected: Any, algorithm: Any) -> CalibrationCache:
    """Ranges chosen in another way from the same histograms."""
    cache: CalibrationCache = collected.cache
    ranges = []
    for each in cache.ranges:
        histogram = collected.histograms[each.name]
        amax = histogram.choose(algorithm)
        ranges.append(replace(each, amax=amax, clipped=histogram.beyond(amax)))
    percentile = cache.percentile if algorithm == "percentile" else None
    return replace(cache, algorithm=algorithm, percentile=percentile, ranges=tuple(ranges))


def _with_options(build: BuildConfig, denied: list[str], level: str | None) -> Any:
    options = build.options
    if isinstance(options, OnnxRuntimeOptions):
        if not denied:
            return options
        allowed = tactics.allowed(options.tactics, allow_approximation=options.allow_approximation)
        left = tuple(tactic for tactic in allowed if tactic.name not in denied)
        inexact = any(not tactic.exact for tactic in left)
        return replace(options, tactics=tuple(tactic.name for tactic in left), allow_approximation=inexact)
    if level is not None:
        options = replace(options, optimization_level=int(level))
    if denied:
        sources = options.tactic_sources or _SOURCES
        options = replace(options, tactic_sources=tuple(source for source in sources if source not in denied))
    return options


def _in_fp32(build: BuildConfig) -> BuildConfig:
    """A build that keeps every node: one in FP32, and called so, since an FP16 engine that computes nothing in FP16 is bad."""
    options = build.options
    if isinstance(options, TensorRTOptions):
        options = replace(options, also=())
    return replace(build, precision="fp32", keep=(), options=options)


def _outcome_of(found: ConvertResult) -> Outcome:
    evaluation = found.evaluation
    reports = [evaluation.report, *([evaluation.emulated.report] if evaluation.emulated is not None else [])]
    measured = [o.statistics.nrmse for report in reports for o in report.outputs if o.statistics is not None]
    worst = [float("inf") if value is None or np.isnan(value) else float(value) for value in measured]
    known = [value for value, error in zip(worst, measured) if error is not None] or worst
    overflows = evaluation.emulated is not None and evaluation.emulated.overflows
    latency = evaluation.latency
    return Outcome(
        good=found.verdict == "good",
        error=float("inf") if overflows else max(known, default=float("inf")),
        latency_ms=float("inf") if latency is None else latency.device_p50_ms or latency.p50_ms,
        builds=0 if found.reused_from else 1,
        run_id=found.run_id,
        why="; ".join(found.reasons)[:300],
    )


def _write_files(result: RepairResult, config: RepairConfig) -> None:
    if config.output is not None and result.config is not None:
        with open_atomically(config.output) as file:
            file.write(result.config.to_json().encode("utf-8"))
    if config.picture is not None:
        with open_atomically(config.picture) as file:
            file.write(result.picture())


def _log_result(run: Run, result: RepairResult, config: RepairConfig, model: Model) -> None:
    if run is NO_RUN:
        return
    run.log_params({"model": model.name, **schema.flat_params(config.build)})
    run.log_metrics(
        {
            ("repair", "builds"): float(result.builds),
            ("repair", "reused"): float(result.reused),
            ("repair", "seconds"): result.seconds,
        }
    )
    run.log_json(result, schema.Artifact.REPAIR_RESULT)
    if result.config is not None:
        run.log_json(result.config, schema.Artifact.REPAIR_CONFIG)
        if result.config.calibration_cache is not None:
            run.log_file(result.config.calibration_cache, schema.Artifact.CALIBRATION_JSON)
    run.log_bytes(result.picture(), schema.Artifact.REPAIR_PICTURE)
    run.log_text(result.page(), schema.Artifact.REPAIR_PAGE)
