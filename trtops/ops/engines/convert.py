"""Convert: from an ONNX model to an evaluated engine in the tracking store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Caches, EngineBackend, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend, may_crash
from trtops.extras import installed, sentence
from trtops.metadata import check_feed
from trtops.next_step import arguments_of
from trtops.ops.arguments import checked_with_export
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.fit_precision import fit_precision
from trtops.ops.engines.request import CommandData, check_names, read_cache_file, read_timing_cache
from trtops.ops.evaluation.check import CheckConfig, EngineConfig, Evaluation, evaluate, log_evaluation, with_power
from trtops.ops.evaluation.precision_check import check_precision, log_kernels
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.registry.deny import deny_list
from trtops.ops.result import (
    model_file,
    model_source,
    op_run,
    op_times,
    run_name,
    run_step,
    step_time,
    tracker_or_default,
)
from trtops.record import setting, sha256
from trtops.spec import SHORT_NAMES, BuildSpec, Environment, OnnxRuntimeOptions, short_device
from trtops.system.activity import needs_child
from trtops.system.worker import warm_worker
from trtops.tactics.record import TacticRecord, carried_over
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, Tracker
from trtops.tracking.builds import log_materials
from trtops.tracking.memory import MemoryTracker

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(EngineConfig):
    """The build, its inputs, and its evaluation.

    Attributes:
        timing_cache: Timing cache to build with: a file, or ``run:ID`` for the cache of a run.
        replay: A tactic record to replay (``tactics/replay.json`` of a run).
        carry_over: Follow a replay of another release, CUDA release or device as far as its choices exist here. The
            builder makes the other choices, and the result names each of them. Without this such a replay is refused.
        measure_ranges: Keep layers in FP32 whose values on the given data do not fit FP16 or BF16.
        use_deny_list: Leave out tactics on the deny-list of this device and release, which the result names; a replay
            that has one is refused.
        rebuild: Build even if the tracking store holds an engine of the same spec from the same environment.
        keep_model: Log the model file itself, with its external data, so that the run can be rebuilt without it.
        isolated: Build, and run the new engine for the first time, in a child process. If a setting of the builder
            crashes the child, this build and later ones of the model continue without it; any other crash is an error.
            By default every build of a flow or a script is isolated, and one of ONNX Runtime below FP32 everywhere.
        timeout_seconds: Time limit of the child for each; None sets no limit. Only for isolated builds.
        max_engine_bytes: Largest size of a good engine, such as that of a device's partition; None sets no limit.
    """

    timing_cache: str | None = setting(None, file="reads")
    replay: str | None = setting(None, file="reads")
    carry_over: bool = False
    measure_ranges: bool = True
    use_deny_list: bool = True
    rebuild: bool = False
    keep_model: bool = True
    isolated: bool | None = None
    timeout_seconds: float | None = None
    max_engine_bytes: int | None = setting(None, least=1)


@op_times()
@checked_with_export
def convert(
    model: str | Path | Model,
    config: ConvertConfig = ConvertConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    built: Callable[[Build], object] | None = None,
    opened: CommandData | None = None,
) -> ConvertResult:
    """Build an engine from an ONNX file, compare it with the model itself, and log everything to a run.

    An engine of the same spec from the same environment is not built twice: the earlier one is evaluated again, with
    the current data and tolerances. A bad engine is a result, not an error. ``built`` is called with the build, made
    now or read from the store, before it is evaluated. ``opened`` is data that the caller has opened already (default:
    the config's). Without a tracker and without MLflow, nothing is recorded.

    >>> config = ConvertConfig(build=trtops.BuildConfig(precision="fp16"), check=trtops.CheckConfig(data="feed.npz"))
    >>> result = convert("model.onnx", config)
    >>> result.verdict
    'good'
    >>> print(result.next_step)
    trtops runs promote ...
    """
    is_recorded = tracker is not None or installed("mlflow")
    if not is_recorded:
        log.warning("Nothing is recorded. %s", sentence("mlflow"))
    with step_time("open store"):
        tracker = tracker_or_default(tracker) if is_recorded else MemoryTracker()
    path = model_file(model)
    loaded = run_step("load", Model.load, model)
    check_names(loaded, config.build, config.check)
    options = arguments_of(config)
    # Data and back end are checked before a run starts, so that a mistake leaves no run.
    with step_time("open data"):
        data = opened or CommandData(loaded, config.check, config.calibration_data)
        # A script may take minutes to make its data, so it only runs when the data is needed.
        if config.check.data is not None and ".py" not in config.check.data:
            check_feed(data.inputs, next(iter(data.feeds(config.build.profiles))))
    # TensorRT and a GPU may be missing.
    if not isinstance(config.build.options, OnnxRuntimeOptions) or config.build.options.on_gpu:
        with step_time("open back end"):
            engine_backend(config.build.backend).environment(config.build)
    config = replace(config, build=data.profiled(config.build))
    if config.check.metrics:  # labels that do not fit fail before the build
        data.golden(config.build.profiles)
    backend_name = SHORT_NAMES[config.build.backend]
    name = run_name(path.stem, config.build.precision.upper(), backend_name)
    with op_run(tracker, experiment, name, kind="build", model=path, tags=tags, parent=parent) as op:
        with _open_backend(config) as backend:
            result = _build_and_evaluate(backend, data, config, op.run, tracker, built)
            device = backend.environment(config.build).device
        result = replace(result, title=f"convert {path.name}", subject=model_source(model), options=options)
        title = f"convert {path.name} to {result.called} on {config.build.backend}"
        with step_time("log"):
            op.run.rename(
                run_name(path.stem, result.called, backend_name, short_device(device), verdict=result.verdict)
            )
        result = op.finish(result, title=title)
        return result if is_recorded else replace(result, run_id="", url="")


@contextlib.contextmanager
def _open_backend(config: ConvertConfig) -> Iterator[EngineBackend]:
    """The back end, in a child process if the config requires one."""
    # ONNX Runtime's optimizers crash on some models below FP32, and would take the whole process with them.
    if may_crash(config.build) if config.isolated is None else config.isolated:
        with warm_worker() as worker:
            yield IsolatedBackend(config.build.backend, config.timeout_seconds, worker)
    else:
        with step_time("open back end"):
            backend = engine_backend(config.build.backend)
        yield backend


def _build_and_evaluate(
    backend: EngineBackend,
    data: CommandData,
    config: ConvertConfig,
    run: Run,
    tracker: Tracker,
    built: Callable[[Build], object] | None,
) -> ConvertResult:
    ranges = ""
    if config.measure_ranges:
        with step_time("fit precision"):
            build_config, ranges = fit_precision(config.build, data, config.calibration_cache)
        config = replace(config, build=build_config)
    with step_time("open back end"):
        environment = backend.environment(config.build)
    with step_time("record request"):
        request, spec = data.request(config.build, environment, _read_caches(config, tracker, environment))
        key = builds.build_key(spec, environment)
        _log_request(run, request, spec, data, config, environment)
    with step_time("find engine"):
        stored_build = None if config.rebuild else builds.find_build(tracker, key)
    crashed: tuple[str, ...] = ()
    if stored_build is not None:
        source_run, build = stored_build
        log.info("Reusing the engine of run %s: same spec, same environment.", source_run.info.id[:8])
    else:
        source_run = None
        build, crashed = _build(request, spec, data, config, backend, tracker, run)
    if built is not None:
        built(build)
    if source_run is None:
        with step_time("record build"):
            builds.log_build(run, build, data.model.info, backend.engine_suffix, key)
            log_model(run, data.model, keep=config.keep_model)
    else:
        with step_time("record build"):
            builds.log_reuse(run, build, source_run)

    evaluation = evaluate_build(
        build, backend, data, config.check, run, engine="" if source_run is None else source_run.info.id
    )
    verdict, reasons, max_bytes = evaluation.verdict, evaluation.reasons, config.max_engine_bytes
    if max_bytes is not None and len(build.engine.plan) > max_bytes:
        verdict = "bad"
        reasons += (f"The engine has {len(build.engine.plan)} bytes; at most {max_bytes} are allowed.",)
    carried = ""
    if request.caches.replay is not None and config.carry_over:
        carried = carried_over(request.caches.replay, build.tactics)
    return ConvertResult(
        verdict=verdict,
        backend=config.build.backend,
        reasons=reasons,
        reused_from=None if source_run is None else source_run.info.id,
        precision=config.build.precision,
        spec_sha256=spec.digest,
        engine_sha256=build.engine.sha256,
        engine_bytes=len(build.engine.plan),
        build_seconds=build.seconds,
        evaluation=evaluation,
        crashed=crashed,
        skipped=build.skipped,
        tuning=build.tuning,
        gain=build.gain,
        left_out=build.left_out,
        fallback=build.fallback,
        carried=carried,
        ranges=ranges,
        quantization="" if build.quantization is None else build.quantization.sentence(),
    )


def _read_caches(config: ConvertConfig, tracker: Tracker, environment: Environment) -> Caches:
    replay = read_cache_file(config.replay, "replay")
    caches = Caches(
        calibration=read_cache_file(config.calibration_cache, "calibration_cache"),
        timing=read_timing_cache(config.timing_cache, tracker, environment),
        replay=None if replay is None else TacticRecord.from_json(replay),
        carry_over=config.carry_over,
    )
    if not config.use_deny_list:
        return caches
    return replace(caches, denied=deny_list(tracker, environment))


def _log_request(
    run: Run, request: BuildRequest, spec: BuildSpec, data: CommandData, config: ConvertConfig, environment: Environment
) -> None:
    builds.log_spec(run, spec, environment)
    # Spec and check have params of their own names, so only the rest of the config is added.
    params = {name: value for name, value in config.to_dict().items() if name not in ("build", "check")}
    if request.caches.calibration is not None:  # its place may be temporary, and says nothing about its content
        params["calibration_cache"] = sha256(request.caches.calibration)[:8]
    run.log_params(params)
    check, feeds = config.check, data.feeds(config.build.profiles)
    log_materials(run, caches=request.caches, check=check, feeds=feeds, data=check.data, golden=check.golden)


def _build(
    request: BuildRequest,
    spec: BuildSpec,
    data: CommandData,
    config: ConvertConfig,
    backend: EngineBackend,
    tracker: Tracker,
    run: Run,
) -> tuple[Build, tuple[str, ...]]:
    """Build the engine; return it with the settings left out because they crash the builder."""
    feeds = data.feeds(request.config.profiles)
    try:
        # Builds would blame each of their settings for a crash of the model, or for shapes that it does not accept.
        if needs_child() or feeds.assumed:
            data.golden(request.config.profiles)
        # The device's clock, for example, can explain why the builder chose other tactics than before.
        run.log_params({schema.DEVICE_STATE.strip("."): backend.device_state(request.config)})
        build, crashed = run_step("build", _build_surviving, request, spec, backend, tracker, run, next(iter(feeds)))
    except errors.BackendError:
        # With its model, a failed build can be bundled and sent to the makers of the back end.
        with contextlib.suppress(errors.TrtopsError, OSError):  # the builder's error matters more
            log_model(run, data.model, keep=config.keep_model)
        raise
    return replace(build, spec=spec), crashed


def _build_surviving(
    request: BuildRequest, spec: BuildSpec, backend: EngineBackend, tracker: Tracker, run: Run, feed: Feed
) -> tuple[Build, tuple[str, ...]]:
    if not isinstance(backend, IsolatedBackend):
        return backend.build(request), ()
    environment = backend.environment(request.config)
    avoid = builds.crashed_settings(tracker, spec.model_sha256, environment)

    # Logged at once: if this process dies as well, the next build of the model still avoids the settings.
    def log_crash(settings: tuple[str, ...]) -> None:
        nonlocal avoid
        avoid = settings
        builds.log_crash(run, settings, spec.model_sha256, environment)

    avoiding = replace(request, caches=replace(request.caches, avoid=avoid))
    return backend.build_surviving(avoiding, feed=feed, crashed=log_crash), avoid


def log_model(run: Run, model: Model, *, keep: bool) -> None:
    """Log the files of a model, if they are to be kept."""
    for file in model.files() if keep else ():
        run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")


def evaluate_build(
    build: Build, backend: EngineBackend, data: CommandData, check: CheckConfig, run: Run, *, engine: str = ""
) -> Evaluation:
    """Evaluate an engine by its model, and log the evaluation; ``engine`` is the run that has the engine, if another.

    The engine runs in this process, so one that may crash it has to run in a child before.
    """
    config = build.spec.config
    feeds, golden = data.feeds(config.profiles), data.golden(config.profiles)
    right = RightModel(
        model=data.model,
        build=config,
        feeds=feeds,
        golden=golden,
        golden_given=check.golden is not None,
        calibration=build.calibration_cache,
    )
    # Before the engine is loaded, since each takes as much memory as it has weights.
    run_step("measure noise", right.tolerances, check.tolerances)
    computed = check_precision(build, check.min_precision_share)
    with backend.runner(build.engine) as runner:
        evaluation, outputs = evaluate(runner, golden, feeds, check, right)
    # Whether the model in this precision is bad on any hardware, or only this engine of it.
    emulated = None if computed.low_precision is None else right.emulation(check.tolerances)
    evaluation = replace(evaluation.leaving_out(build.denied), computed=computed, emulated=emulated)
    evaluation = with_power(evaluation, golden, check, right.tolerances(check.tolerances))
    with step_time("record evaluation"):
        log_evaluation(run, evaluation, engine=engine)
        log_kernels(run, build)
    if check.plots == "always" or (check.plots == "bad" and evaluation.verdict == "bad"):
        from trtops.comparator.plot import error_figures

        for path, figure in run_step("plot errors", lambda: [*error_figures(outputs, golden)]):
            run.log_bytes(figure, f"{schema.Artifact.ACCURACY_PLOTS}{path}")
    return evaluation
