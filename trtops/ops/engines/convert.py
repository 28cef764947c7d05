"""Convert: from an ONNX model to an evaluated engine that the memory keeps."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches, EngineBackend, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend, may_crash, warm_worker
from trtops.comparator.results import RunResults
from trtops.comparator.table import RECORDED
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops.engines.deny import deny_list
from trtops.ops.engines.job import BuildJob, read_cache_file
from trtops.ops.engines.timing_caches import TimingCacheSource
from trtops.ops.evaluation.attributing import Seen, attribute
from trtops.ops.evaluation.check import (
    CheckConfig,
    Evaluation,
    describe,
    describe_beside,
    evaluate,
    golden_outputs,
    log_evaluation,
    shown_value,
    tolerances_for,
)
from trtops.ops.evaluation.computed import computed, log_computed, weight_bytes
from trtops.ops.evaluation.emulated import with_emulated
from trtops.ops.result import OpResult, finish_with, model_file, op_run
from trtops.record import Record, sha256
from trtops.reports.document import Section
from trtops.spec import BuildConfig
from trtops.tables import size, table
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, Tracker, Verdict
from trtops.tracking.materials import log_materials

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(Record):
    """What to build, from what, and how to evaluate it.

    Attributes:
        build: How the engine is built.
        check: How it is evaluated.
        calibration_data: Data source for INT8 calibration; the check's own data unless given.
        timing_cache: A timing cache to build with: a file; ``run:<id>``, the one that a run left; ``accepted``, that of the
            model's newest accepted engine; or ``shared``, the one that builds of this device and release have in common,
            which grows by what this build times. The last two only where there is one yet.
        calibration_cache: A calibration cache file to build INT8 with, instead of calibrating.
        replay: A tactic record (``tactics/replay.json`` of a run) to be replayed.
        mind_deny_list: Leave out tactics that are on the deny-list of this device and release; a replay that has one is
            refused.
        attribute_error: Say how much of the engine's error is the precision's own, how much is noise and how much the builder's
            (:mod:`trtops.ops.evaluation.attribution`), which runs the model four times more.
        rebuild: Build even if the memory holds an engine of the same spec from the same environment.
        keep_model: Log the model file itself, with its external data, so that the run can be rebuilt from the memory
            alone.
        isolated: Build, and run the new engine for the first time, in a child process. Where a setting of the builder takes
            the child down, the build goes on without it, and later builds of the model do; any other crash is an error
            here. Unless given, builds of ONNX Runtime below FP32 are isolated.
        timeout_seconds: How long the child may take over each; None waits for ever. Only for isolated builds.
    """

    build: BuildConfig = field(default_factory=BuildConfig)
    check: CheckConfig = field(default_factory=CheckConfig)
    calibration_data: str | None = None
    timing_cache: str | None = None
    calibration_cache: str | None = None
    replay: str | None = None
    mind_deny_list: bool = True
    attribute_error: bool = False
    rebuild: bool = False
    keep_model: bool = True
    isolated: bool | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ConvertResult(OpResult):
    """What came out, in numbers and names; the arrays and files are in the run.

    Attributes:
        verdict: Whether the engine is good enough.
        reasons: Why not, one sentence each; empty for a good one.
        reused_from: Run whose engine was reused because nothing that decides an engine differs; None if built now.
        precision: What was asked for.
        spec_sha256: Digest of what was asked for.
        engine_sha256: Digest of the engine.
        engine_bytes: Its size.
        build_seconds: Wall time of the build; of the earlier one if reused.
        evaluation: The comparison, latency and accuracy.
        crashed: Settings that were left out, since the builder took its process down under them.
        skipped: Settings that the builder had no time to try.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    reused_from: str | None
    precision: str
    spec_sha256: str
    engine_sha256: str
    engine_bytes: int
    build_seconds: float
    evaluation: Evaluation
    crashed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def body(self) -> Iterable[str]:
        """Why the engine is not good enough, where it comes from, and the numbers."""
        made = f"reused from run `{self.reused_from}`" if self.reused_from else f"built in {self.build_seconds:.2f} s"
        yield from (f"- {reason}" for reason in self.reasons)
        yield from ("", f"{self.called} engine, {size(self.engine_bytes)}, {made}.", "")
        yield from self._left_out()
        yield from describe(self.evaluation)

    def sections(self) -> Iterable[Section]:
        """Where the engine comes from, and what the table of outputs, which the report has, does not say."""
        reused = (f"The engine is that of run `{self.reused_from}`.", "") if self.reused_from else ()
        return (Section(text="\n".join((*reused, *self._left_out(), *describe_beside(self.evaluation)))),)

    def _left_out(self) -> Iterable[str]:
        """Settings that the builder did without, in sentences."""
        if self.crashed:
            named = ", ".join(f"`{name}`" for name in self.crashed)
            yield from (f"The builder took its process down under {named}; the engine is built without.", "")
        if self.skipped:
            named = ", ".join(f"`{name}`" for name in self.skipped)
            yield from (f"There was no time to try {named}; the option `timing_seconds` gives more.", "")

    @property
    def next_step(self) -> str:
        """A good engine can be accepted for everybody; of a bad one it can be asked where the error begins."""
        if not self.run_id:
            return ""
        if self.verdict == "good":
            return f"trtops runs promote {self.run_id}"
        if self.precision in ("fp16", "bf16") and self.subject:
            return f"trtops debug accuracy {shlex.quote(self.subject)} --emulate {self.precision}"
        return super().next_step

    @property
    def called(self) -> str:
        """What the engine may be called: the precision that was asked for, or what it computes in instead."""
        found = self.evaluation.computed
        return self.precision.upper() if found is None else found.name

    def row(self) -> tuple[str, ...]:
        """The engine in one line of a table that has :data:`ROW_HEADER`."""
        evaluation = self.evaluation
        report = evaluation.report
        statistics = [output.statistics for output in report.outputs if output.statistics is not None]
        top1 = (shown_value(report, output, _TOP1) for output in report.outputs)
        agreements = [share for share in top1 if share is not None]
        found = evaluation.computed
        return (
            self.called,
            "-" if found is None or found.share is None else f"{found.share:.0%}",
            self.verdict,
            f"{max((s.max_abs for s in statistics), default=float('nan')):.3g}",
            f"{min(agreements):.2%}" if agreements else "-",
            f"{evaluation.accuracy.actual:.2%}" if evaluation.accuracy else "-",
            f"{evaluation.latency.p50_ms:.3f} ms" if evaluation.latency else "-",
            size(self.engine_bytes),
            "reused" if self.reused_from else f"{self.build_seconds:.2f} s",
            self.run_id[:8],
        )


_TOP1 = next(metric for metric in RECORDED if metric.name == "top1_agreement")
ROW_HEADER = (
    "build",
    "kernels in it",
    "verdict",
    "largest error",
    "top-1 agreement",
    "accuracy",
    "p50",
    "engine",
    "build time",
    "run",
)


def builds_table(results: Iterable[ConvertResult]) -> str:
    """One line per engine, in plain text."""
    return table(ROW_HEADER, (result.row() for result in results))


def convert(
    model: str | Path,
    config: ConvertConfig | None = None,
    *,
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    built: Callable[[Build], object] | None = None,
) -> ConvertResult:
    """Build an engine from an ONNX file, compare it with the model itself, and keep everything in a run.

    An engine of the same spec from the same environment is not built twice: the earlier one is re-evaluated, with
    today's data and tolerances. A changed file at the same path is another model.

    Args:
        model: The ONNX file.
        config: What to build and how to evaluate it; by default an FP32 engine on ONNX Runtime with random data.
        tracker: The memory.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.
        built: Called with the build, made now or taken from the memory, before anything of it is evaluated or logged.

    Returns:
        The result. A bad engine is a result; only what prevents a verdict raises.

    Raises:
        TrtopsError: Whatever went wrong; the run, if it could be started, is marked failed with the error's message.
    """
    config = ConvertConfig() if config is None else config
    path = Path(model)
    experiment = experiment or path.stem
    name = f"{path.stem} {config.build.precision} {config.build.backend}"
    loaded = _readable(path, config)
    with op_run(tracker, experiment, name, kind="build", model=path, tags=tags, parent=parent) as run:
        with _opened_backend(config) as backend:
            result = _build_and_evaluate(backend, loaded, config, run, tracker, built)
        result = replace(
            result, title=f"convert {path.name} to {result.called} on {config.build.backend}", subject=str(path)
        )
        finish_with(run, result, tracker)
        return replace(result, title=f"convert {path.name}").kept_in(run, experiment)


def _readable(path: Path, config: ConvertConfig) -> Model:
    """The model, once model, data and back end are known to be there: a mistake leaves no run behind.

    A script that makes data is not asked for any here, since it may take its time.
    """
    loaded = Model.load(model_file(path))
    inputs = TensorMetadata.of(loaded.info.inputs)
    feeds = config.check.open(inputs)
    if config.check.data is not None and ".py" not in config.check.data:
        check_feed(inputs, next(iter(feeds)))
    if config.build.backend != "onnxruntime":
        engine_backend(config.build.backend).environment()
    return loaded


@contextlib.contextmanager
def _opened_backend(config: ConvertConfig) -> Iterator[EngineBackend]:
    """The back end, in a child process of its own if that is asked for."""
    isolated = config.isolated
    if isolated is None:
        isolated = may_crash(config.build)
    if not isolated:
        yield engine_backend(config.build.backend)
        return
    with warm_worker() as worker:
        yield IsolatedBackend(config.build.backend, config.timeout_seconds, worker)


def _build_and_evaluate(
    backend: EngineBackend,
    model: Model,
    config: ConvertConfig,
    run: Run,
    tracker: Tracker,
    built: Callable[[Build], object] | None,
) -> ConvertResult:
    """Build or reuse, evaluate, and log all of it; the run is not ended."""
    run.reserve(builds.expected_bytes(model, keep_model=config.keep_model))
    feeds = config.check.open_for(model)
    job = _prepared_job(model, config, backend, tracker)
    builds.log_spec(run, job.spec, job.environment)
    check = config.check
    log_materials(run, caches=job.caches, check=check, feeds=feeds, data=check.data, golden=check.golden)
    try:
        build, reused_from, crashed = _build_or_reuse(job, config, backend, tracker, run, feeds)
    except errors.BackendError:
        with contextlib.suppress(errors.TrtopsError, OSError):  # what the builder said is what counts
            _log_model(run, model, config)  # whoever has to mend the builder needs it
        raise
    if built is not None:
        built(build)
    if reused_from is None:
        builds.log_build(run, build, backend.engine_suffix)
        TimingCacheSource(config.timing_cache, tracker, job.environment).share(build, backend, run.id)
        _log_model(run, model, config)
    else:
        builds.log_reuse(run, build, reused_from)
    evaluation, outputs, golden = _evaluate_build(model, build, backend, feeds, config)
    log_evaluation(run, evaluation)
    log_computed(run, build)
    verdict = evaluation.verdict
    if check.plots == "always" or (check.plots == "bad" and verdict == "bad"):
        _log_plots(run, outputs, golden)
    return ConvertResult(
        verdict=verdict,
        reasons=evaluation.reasons,
        reused_from=reused_from,
        precision=config.build.precision,
        spec_sha256=job.spec.digest,
        engine_sha256=sha256(build.engine.plan),
        engine_bytes=len(build.engine.plan),
        build_seconds=build.seconds,
        evaluation=evaluation,
        crashed=crashed,
        skipped=build.skipped,
    )


def _log_model(run: Run, model: Model, config: ConvertConfig) -> None:
    if config.keep_model:
        for file in model.files():
            run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")


def _prepared_job(model: Model, config: ConvertConfig, backend: EngineBackend, tracker: Tracker) -> BuildJob:
    environment = backend.environment()
    timing = TimingCacheSource(config.timing_cache, tracker, environment).read(model.info.sha256)
    caches = replace(read_caches(config), timing=timing)
    if config.mind_deny_list:
        caches = replace(caches, denied=deny_list(tracker, environment))
    source = config.calibration_data
    return BuildJob.prepare(
        model, config.build, environment, caches=caches, check=config.check, calibration_data=source
    )


def _build_or_reuse(
    job: BuildJob, config: ConvertConfig, backend: EngineBackend, tracker: Tracker, run: Run, feeds: Iterable[Feed]
) -> tuple[Build, str | None, tuple[str, ...]]:
    """The build, the run it was taken from if it was not made now, and the settings that crashed on the way."""
    if not config.rebuild:
        found = builds.find_build(tracker, builds.build_key(job.spec, job.environment))
        if found is not None:
            run_id, build = found
            log.info("Reusing the engine of run %s: same spec, same environment.", run_id)
            return build, run_id, ()
    run.set_tags({schema.Tag.DEVICE_STATE + name: value for name, value in backend.device_state().items()})
    if not isinstance(backend, IsolatedBackend):
        return replace(job.build(backend), spec=job.spec), None, ()
    avoid = builds.crashed_settings(tracker, job.spec.model_sha256, job.environment)

    def remember(settings: tuple[str, ...]) -> None:
        nonlocal avoid
        avoid = settings
        # at once, should this process not come to its end
        run.set_tags(builds.crash_tags(settings, job.spec.model_sha256, job.environment))

    build = backend.build_surviving(
        job.model, job.spec.config, caches=replace(job.caches, avoid=avoid), calibration_data=job.calibration,
        feed=next(iter(feeds)), crashed=remember,
    )  # fmt: skip
    return replace(build, spec=job.spec), None, avoid


def read_caches(config: ConvertConfig) -> Caches:
    """Read the calibration cache and the tactic record that a config names.

    Raises:
        ConfigError: If one does not exist.
        FormatError: If the tactic record cannot be read.
    """
    replay = read_cache_file(config.replay, "replay")
    return Caches(
        calibration=read_cache_file(config.calibration_cache, "calibration_cache"),
        replay=None if replay is None else TacticRecord.from_json(replay),
    )


def _evaluate_build(
    model: Model, build: Build, backend: EngineBackend, feeds: Iterable[Feed], config: ConvertConfig
) -> tuple[Evaluation, RunResults, RunResults]:
    check = config.check
    tolerances = tolerances_for(config.build.precision, check.tolerances, model)
    if config.build.mark:
        tolerances = replace(tolerances, allow_extra_outputs=True)
    golden = golden_outputs(model, feeds, check.golden)
    with backend.runner(build.engine) as runner:
        evaluation, outputs, _ = evaluate(runner, golden, feeds, check, tolerances)
        evaluation = replace(evaluation, computed=computed(build, weight_bytes(model), check.min_precision_share))
        if config.attribute_error:
            evaluation = with_emulated(evaluation, model, config.build, feeds, golden, tolerances)
            seen = Seen(runner, outputs, golden, golden_given=check.golden is not None)
            found = attribute(model, build, evaluation, seen, list(feeds), tolerances)
            return replace(evaluation, attribution=found), outputs, golden
    return with_emulated(evaluation, model, config.build, feeds, golden, tolerances), outputs, golden


def _log_plots(run: Run, outputs: RunResults, golden: RunResults) -> None:
    from trtops.comparator.plot import error_figures

    for path, png in error_figures(outputs, golden):
        run.log_bytes(png, f"{schema.Artifact.ACCURACY_PLOTS}{path}")
