"""Convert: from an ONNX model to an evaluated engine in the tracking store.

Other ops that build engines use :class:`BuildJob` as well, so that the same build has the same spec.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.base import Build, Caches, EngineBackend, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend, may_crash
from trtops.calibration.cache import read_cache
from trtops.comparator.results import RunResults
from trtops.comparator.table import RECORDED
from trtops.extras import installed, sentence
from trtops.metadata import TensorMetadata, check_feed
from trtops.next_step import OF_8_BITS, NextStep, arguments_of, option_text
from trtops.ops.evaluation.check import (
    CheckConfig,
    EngineConfig,
    Evaluation,
    describe,
    describe_measurements,
    evaluate,
    log_evaluation,
    with_power,
)
from trtops.ops.evaluation.data import Feeds, golden_outputs, open_feeds
from trtops.ops.evaluation.precision_check import check_precision, log_kernels
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.registry.deny import deny_list
from trtops.ops.result import (
    OpResult,
    model_file,
    op_run,
    run_name,
    run_step,
    step_time,
    tracker_or_default,
)
from trtops.reports.document import Section
from trtops.spec import (
    SHORT_NAMES,
    BackendName,
    BuildConfig,
    BuildSpec,
    Environment,
    OnnxRuntimeOptions,
    Precision,
    TensorRTOptions,
)
from trtops.system.activity import needs_child
from trtops.system.worker import warm_worker
from trtops.tables import listed, size, table
from trtops.tactics.record import CarriedOver, TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import Run, Tracker, Verdict, run_id_of
from trtops.tracking.builds import log_materials
from trtops.tracking.memory import MemoryTracker
from trtops.verdict import PASSED

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

    timing_cache: str | None = None
    replay: str | None = None
    carry_over: bool = False
    measure_ranges: bool = True
    use_deny_list: bool = True
    rebuild: bool = False
    keep_model: bool = True
    isolated: bool | None = None
    timeout_seconds: float | None = None
    max_engine_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ConvertResult(OpResult):
    """The result of convert; arrays and files are in the run."""

    verdict: Verdict
    reasons: tuple[str, ...]  # why the engine is not good enough, one sentence each
    reused_from: str | None  # the run whose engine was reused, because everything that decides an engine is the same
    precision: Precision  # the requested one
    spec_sha256: str
    engine_sha256: str
    engine_bytes: int
    build_seconds: float  # of the earlier build if reused
    evaluation: Evaluation
    crashed: tuple[str, ...] = ()  # settings that were left out because they crashed the builder's process
    skipped: tuple[str, ...] = ()  # settings that the builder had no time to try
    tuning: str = ""  # what timing settings gained
    left_out: str = ""  # choices that the deny-list excluded
    fallback: str = ""  # layers of a GPU's engine that run on the CPU
    carried: str = ""  # from a replay of another release or device
    ranges: str = ""  # whether the values of all tensors fit FP16 or BF16, and the layers kept where they do not
    speed: str = ""  # of 8 bits, compared with FP16 or FP32
    faster: Mapping[str, Any] | None = None  # options of a build that is predicted to be faster than this one
    quantization: str = ""  # layers that this build quantized, and those that placement rules exclude
    backend: BackendName = "onnxruntime"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config, as given, that are not the default

    def body(self) -> Iterable[str]:
        """The engine's origin, and the numbers."""
        origin = f"reused from run `{self.reused_from}`" if self.reused_from else f"built in {self.build_seconds:.2f} s"
        yield from (f"{self.called} engine, {size(self.engine_bytes)}, {origin}.", "")
        yield from (*self._left_out(), *describe(self.evaluation))

    def sections(self) -> Iterable[Section]:
        """The engine's origin, and the numbers missing from the report's table of outputs."""
        reused = (f"The engine is that of run `{self.reused_from}`.", "") if self.reused_from else ()
        return (Section(text="\n".join((*reused, *self._left_out(), *describe_measurements(self.evaluation)))),)

    def _left_out(self) -> Iterable[str]:
        if self.crashed:
            yield from (f"The builder crashed with {', '.join(self.crashed)}; the engine is built without.", "")
        notes = (self.carried, self.ranges, self.quantization, self.speed, self.tuning, self.left_out, self.fallback)
        for note in filter(None, notes):
            yield from (f"{note}.", "")
        if self.skipped:
            yield from (f"No time to try {', '.join(self.skipped)}; `--tune` tries all.", "")

    @property
    def needed(self) -> str:
        """Data, if the verdict or the calibration rests on random data without proof."""
        data, evidence = ("data", "calibration_data", "calibration_cache"), self.evaluation.evidence
        at_random = self.precision in ("int8", "fp8") and self.quantization and not set(data) & self.options.keys()
        if self.verdict not in PASSED or not (at_random or self.verdict == "unproven"):
            return ""
        if evidence is not None and evidence.undefined:  # other shapes or data of the same kind do not help
            return ""
        inputs = listed(map(repr, evidence.shapes[0].shapes), 4) if evidence and evidence.shapes else "each input"
        example = f"for example an .npz file with an array for {inputs}"
        if at_random:
            return (
                "real data to calibrate with: the ranges come from random data, so this engine says little about "
                f"8 bits on real data. Give it with --calibration-data or --load-inputs, {example}"
            )
        # Where rounding alone exceeds the limits on random data, shapes do not help.
        shapes = "; or with --input-shapes the shapes that the model is used at" if self.evaluation.report else ""
        return f"data, given with --load-inputs, {example}{shapes}"

    @property
    def next_step(self) -> NextStep | None:
        """Promote a good engine, or record or build a faster one; explain a bad one."""
        # Triage does not answer why an engine is too large.
        is_large = self.verdict == "bad" and self.evaluation.verdict in PASSED
        if self.needed or self.verdict == "unproven" or is_large or not self.subject or self.evaluation.foreign_golden:
            return super().next_step
        if self.verdict == "good" and self.run_id and self.faster is None:
            return NextStep("runs promote", {"run": self.run_id})
        experiment, emulated = self.experiment if self.run_id else None, self.evaluation.emulated
        if self.verdict == "good":
            options = self.options
            if self.faster == {"precision": "fp32"}:
                options = {name: value for name, value in options.items() if name not in OF_8_BITS}
            again = {"model": self.subject, **options, **(self.faster or {}), "experiment": self.experiment}
            return NextStep("convert", again)
        arguments: dict[str, Any] = {"model": self.subject, "experiment": experiment}
        if emulated is not None and emulated.verdict == "bad":
            # The precision is the cause, whatever the engine is: the tensor where it begins is what helps.
            arguments |= {"emulate": emulated.precision}
            if "profiles" in self.options and not {"data", "input_shapes"} & self.options.keys():
                arguments["input_shapes"] = {
                    bounds["name"]: bounds["opt"] for bounds in self.options["profiles"][0]["shapes"]
                }
            return NextStep.after(self.options, "debug accuracy", arguments)
        return NextStep.after(self.options, "triage", arguments)

    @property
    def called(self) -> str:
        """The engine's precision: the requested one, or the one of its kernels."""
        computed = self.evaluation.computed
        return self.precision.upper() if computed is None else computed.name


_TOP1 = next(metric for metric in RECORDED if metric.name == "top1_agreement")


def builds_table(results: Iterable[ConvertResult], write: Callable[..., str] = table) -> str:
    """One line per engine, in plain text unless another function writes the table, and notes on slow 8-bit ones."""
    rows, slower = [], []
    for result in results:
        evaluation, computed = result.evaluation, result.evaluation.computed
        outputs = evaluation.report.outputs
        agreements = [share for output in outputs if (share := output.value(_TOP1)) is not None]
        row = {
            "build": result.called,
            "kernels in it": "-" if computed is None or computed.share is None else f"{computed.share:.0%}",
            "verdict": result.verdict,
            "decided by": evaluation.report.decided_by,
            "top-1 agreement": f"{min(agreements):.2%}" if agreements else "-",
            "accuracy": f"{evaluation.accuracy.actual:.2%}" if evaluation.accuracy else "-",
            "p50": f"{evaluation.latency.p50_ms:.3f} ms" if evaluation.latency else "-",
            "engine": size(result.engine_bytes),
            "build time": "reused" if result.reused_from else f"{result.build_seconds:.2f} s",
            "run": result.run_id[:8],
        }
        rows.append(row)
        if "slower" in result.speed:
            slower.append(f"\n{Path(result.subject).name} in {result.backend}: {result.speed}.")
    return "\n".join((write(list(rows[0]), [list(row.values()) for row in rows]), *slower))


def convert(
    model: str | Path,
    config: ConvertConfig = ConvertConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    built: Callable[[Build], object] | None = None,
    known_golden: RunResults | None = None,
) -> ConvertResult:
    """Build an engine from an ONNX file, compare it with the model itself, and log everything to a run.

    An engine of the same spec from the same environment is not built twice: the earlier one is evaluated again, with
    the current data and tolerances. A bad engine is a result, not an error. ``built`` is called with the build, made
    now or read from the store, before it is evaluated. ``known_golden`` are the golden outputs of the feeds; by default
    they are computed, or read from the config's file. Without a tracker and without MLflow, nothing is recorded.
    """
    is_recorded = tracker is not None or installed("mlflow")
    if not is_recorded:
        log.warning("Nothing is recorded. %s", sentence("mlflow"))
    tracker = tracker_or_default(tracker) if is_recorded else MemoryTracker()
    path = Path(model)
    loaded = run_step("load", Model.load, model_file(path))
    options = arguments_of(config)
    # Data and back end are checked before a run starts, so that a mistake leaves no run.
    inputs = TensorMetadata.of(loaded.info.inputs)
    feeds = config.check.open_for(loaded, profiles=config.build.profiles)
    # A script may take minutes to make its data, so it only runs when the data is needed.
    if config.check.data is not None and ".py" not in config.check.data:
        check_feed(inputs, next(iter(feeds)))
    # TensorRT and a GPU may be missing.
    if not isinstance(config.build.options, OnnxRuntimeOptions) or config.build.options.on_gpu:
        engine_backend(config.build.backend).environment(config.build)
    config = replace(config, build=config.check.profiled(config.build, loaded, config.calibration_data))
    backend_name = SHORT_NAMES[config.build.backend]
    name = run_name(path.stem, config.build.precision.upper(), backend_name)
    with op_run(tracker, experiment, name, kind="build", model=path, tags=tags, parent=parent) as op:
        with _open_backend(config) as backend:
            result = _build_and_evaluate(backend, loaded, config, op.run, tracker, built, known_golden)
            device = backend.environment(config.build).device
        result = replace(result, title=f"convert {path.name}", subject=str(path), options=options)
        title = f"convert {path.name} to {result.called} on {config.build.backend}"
        device = device.partition(" ")[2] or device  # without the maker
        op.run.rename(run_name(path.stem, result.called, backend_name, device, verdict=result.verdict))
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
        yield engine_backend(config.build.backend)


def _build_and_evaluate(
    backend: EngineBackend,
    model: Model,
    config: ConvertConfig,
    run: Run,
    tracker: Tracker,
    built: Callable[[Build], object] | None,
    golden: RunResults | None,
) -> ConvertResult:
    config, ranges = _fit_precision(model, config)
    check, environment = config.check, backend.environment(config.build)
    feeds = check.open_for(model, profiles=config.build.profiles)
    replay = read_cache_file(config.replay, "replay")
    caches = Caches(
        calibration=read_cache_file(config.calibration_cache, "calibration_cache"),
        timing=read_timing_cache(config.timing_cache, tracker, environment),
        replay=None if replay is None else TacticRecord.from_json(replay),
        carry_over=config.carry_over,
    )
    if config.use_deny_list:
        caches = replace(caches, denied=deny_list(tracker, environment, check.tolerances))
    job = BuildJob.prepare(
        model, config.build, environment, caches=caches, check=check, calibration_data=config.calibration_data
    )
    key = builds.build_key(job.spec, environment)
    builds.log_spec(run, job.spec, environment)
    # Spec and check have params of their own names, so only the rest of the config is added.
    convert_params = {name: value for name, value in config.to_dict().items() if name not in ("build", "check")}
    run.log_params(convert_params)
    log_materials(run, caches=caches, check=check, feeds=feeds, data=check.data, golden=check.golden)

    stored_build = None if config.rebuild else builds.find_build(tracker, key)
    crashed: tuple[str, ...] = ()
    if stored_build is not None:
        source_run, build = stored_build
        log.info("Reusing the engine of run %s: same spec, same environment.", source_run.info.id)
    else:
        source_run = None
        try:
            # Builds would blame each of their settings for a crash of the model, or for shapes that it does not accept.
            if golden is None and (needs_child() or feeds.assumed):
                golden = run_step("run reference", golden_outputs, model, feeds, check.golden)
            # The device's clock, for example, can explain why the builder chose other tactics than before.
            run.log_params({schema.DEVICE_STATE.strip("."): backend.device_state(job.spec.config)})
            build, crashed = run_step("build", _build, job, backend, tracker, run, next(iter(feeds)))
        except errors.BackendError:
            # With its model, a failed build can be bundled and sent to the makers of the back end.
            with contextlib.suppress(errors.TrtopsError, OSError):  # the builder's error matters more
                _log_model(run, model, config)
            raise
    if built is not None:
        built(build)
    if source_run is None:
        with step_time("record build"):
            builds.log_build(run, build, backend.engine_suffix, key)
            _log_model(run, model, config)
    else:
        builds.log_reuse(run, build, source_run)

    if golden is None:
        golden = run_step("run reference", golden_outputs, model, feeds, check.golden)
    evaluation, outputs = _evaluate(model, build, backend, feeds, config, golden)
    log_evaluation(run, evaluation, engine="" if source_run is None else source_run.info.id)
    log_kernels(run, build)
    if check.plots == "always" or (check.plots == "bad" and evaluation.verdict == "bad"):
        from trtops.comparator.plot import error_figures

        for path, figure in run_step("plot errors", lambda: [*error_figures(outputs, golden)]):
            run.log_bytes(figure, f"{schema.Artifact.ACCURACY_PLOTS}{path}")
    verdict, reasons, allowed = evaluation.verdict, evaluation.reasons, config.max_engine_bytes
    if allowed is not None and len(build.engine.plan) > allowed:
        verdict = "bad"
        reasons += (f"The engine has {len(build.engine.plan)} bytes; at most {allowed} are allowed.",)
    speed, faster = "", None
    if config.build.calibrates and evaluation.latency:
        speed_notes = [_against_fp16(tracker, run)]
        # Times of kernels are known on the CPU.
        on_cpu = build.tactics.mechanism == "onnxruntime" and all(choice.replayable for choice in build.tactics.choices)
        if on_cpu and build.quantization is not None:
            against, faster = _against_fp32(model, config.build, build, next(iter(feeds)), backend)
            speed_notes.append(against)
        speed = "; ".join(filter(None, speed_notes)) or _NOT_COMPARED
    return ConvertResult(
        verdict=verdict,
        backend=config.build.backend,
        reasons=reasons,
        reused_from=None if source_run is None else source_run.info.id,
        precision=config.build.precision,
        spec_sha256=job.spec.digest,
        engine_sha256=build.engine.sha256,
        engine_bytes=len(build.engine.plan),
        build_seconds=build.seconds,
        evaluation=evaluation,
        crashed=crashed,
        skipped=build.skipped,
        tuning=build.tuning,
        left_out=build.left_out,
        fallback=build.fallback,
        carried=CarriedOver.between(caches.replay, build.tactics).sentence()
        if caches.replay and config.carry_over
        else "",
        ranges=ranges,
        speed=speed,
        faster=faster,
        quantization="" if build.quantization is None else build.quantization.sentence(),
    )


def _fit_precision(model: Model, config: ConvertConfig) -> tuple[ConvertConfig, str]:
    """Keep layers in FP32 if FP16 or BF16 cannot hold their values; return the config, and a line on the ranges.

    Ranges are those of a calibration cache, or are measured on the data of calibration or of the check. A quantized
    model has the precisions of its author: its layers are named, and not kept.
    """
    # The last imports ONNX Runtime.
    from trtops.backend.onnx.precision import LowPrecision, beyond_range, without_functions
    from trtops.backend.onnx.quantize import is_quantized
    from trtops.backend.onnxrt.calibration import collect

    build, inputs = config.build, TensorMetadata.of(model.info.inputs)
    further = build.options.also if isinstance(build.options, TensorRTOptions) else ()
    low: LowPrecision | None = next((name for name in ("fp16", "bf16") if name in (build.precision, *further)), None)
    if low is None or not config.measure_ranges:
        return config, ""
    called, proto = low.upper(), without_functions(model.proto(lean=True))
    if config.calibration_cache is not None:
        cache = read_cache(read_cache_file(config.calibration_cache, "calibration_cache") or b"")
    elif config.calibration_data is None and config.check.data is None:
        return config, f"Without data or a calibration cache, no ranges show whether all values fit {called}"
    else:
        source = config.calibration_data
        feeds = config.check.open_for(model) if source is None else open_feeds(source, inputs)
        try:
            max_feeds = build.calibration_samples
            cache = run_step(
                "measure ranges",
                collect,
                proto,
                feeds,
                inputs=inputs,
                max_feeds=max_feeds,
                min_samples=1,
                counted=False,
            ).cache()
        except errors.TrtopsError as exc:
            return config, f"Ranges were not measured, so that values may not fit {called}: {exc}"
    nodes = beyond_range(proto, cache, low)
    if isinstance(build.options, TensorRTOptions):  # a precision that was asked for by layer stays
        nodes = {name: peak for name, peak in nodes.items() if name not in dict(build.options.layer_precisions)}
    overflowing = ", ".join(f"{node} ({tensor}: {size:.3g})" for node, (tensor, size) in nodes.items())
    measured = f"{len(cache.ranges)} tensors have ranges, of {cache.feeds} feeds"
    if nodes and is_quantized(proto):
        option = option_text("keep", tuple(dict.fromkeys((*build.keep, *nodes))))
        return (
            config,
            f"{measured}; values do not fit {called}, but the model sets its precisions: {overflowing} ({option})",
        )
    kept_note = f"kept in FP32, since their values do not fit {called}: {overflowing or 'none'}"
    build = replace(build, keep=tuple(dict.fromkeys((*build.keep, *nodes))))
    if build.calibrates and isinstance(build.options, TensorRTOptions):  # what 8 bits leave alone may be in 16
        layer_precisions = dict.fromkeys(nodes, "float32") | dict(build.options.layer_precisions)
        build = replace(build, options=replace(build.options, layer_precisions=tuple(layer_precisions.items())))
    return replace(config, build=build), f"{measured}; {kept_note}"


_WORTH_A_BUILD = 1.05
_NOT_COMPARED = (
    "Whether 8 bits are faster than FP16 was not measured: the store has no FP16 engine for these shapes here"
)


def _against_fp16(tracker: Tracker, run: Run) -> str:
    """Whether an engine in 8 bits is faster than the newest one in FP16 of its model and environment, in a line."""
    try:
        current = tracker.info(run.id)
        same_model = {schema.Tag.MODEL_SHA256: current.tags[schema.Tag.MODEL_SHA256], schema.Tag.KIND: "build"}
        candidates = tracker.find(tags=same_model, status="finished")
    except errors.TrackingError:
        return ""
    compared = ("profiles", "options.kind", "evidence.shapes", "env.sha256")
    for other in candidates:
        same = all(other.params.get(name) == current.params.get(name) for name in compared)
        if not same or other.params.get("precision") != "fp16":
            continue
        for metric in ((schema.Metric.LATENCY, name) for name in ("device_p50_ms", "p50_ms")):
            if metric in current.metrics and metric in other.metrics:
                ours, theirs = current.metrics[metric], other.metrics[metric]
                verdict = "slower than" if ours > theirs else "as fast as" if ours == theirs else "faster than"
                name = other.params.get("computes_in", "FP16")
                return f"In 8 bits {ours:.3f} ms, {verdict} {name} with {theirs:.3f} ms (run {other.id})"
    return ""


def _against_fp32(
    model: Model, config: BuildConfig, build: Build, feed: Feed, backend: EngineBackend
) -> tuple[str, Mapping[str, Any] | None]:
    """Compare INT8 with FP32 in ONNX Runtime; return a sentence, and the options of a faster build.

    It is slower if its fastest inference takes more than FP32's median, and by more than 5 % longer than the fastest:
    smaller differences are noise, or not worth another build.
    """
    from trtops.backend.onnxrt.profile import timed
    from trtops.backend.trt.describe.alignment import EngineLayers, losing_in_8_bits

    assert build.quantization is not None and isinstance(config.options, OnnxRuntimeOptions)
    plain = replace(config, precision="fp32", options=replace(config.options, tactics=()))
    try:
        low = backend.build(model, plain, timing_feed=feed)
        (low_samples, low_ms), (samples, eight_ms) = timed((low, build), feed)
    except errors.TrtopsError as exc:
        return f"Whether 8 bits are faster than FP32 was not measured: {exc}", None
    theirs, ours = min(low_samples), min(samples)
    slower = ours > max(statistics.median(low_samples), _WORTH_A_BUILD * theirs)
    quantized = build.quantization.layers
    sides = EngineLayers.of(low.layers, low_ms), EngineLayers.of(build.layers, eight_ms)
    losing, saved = losing_in_8_bits(*sides, quantized)
    share = (sum(eight_ms.values()) - saved) / (sum(low_ms.values()) or 1e-3)  # less than the profiler's unit
    verdict = "slower than" if slower else "no longer than" if ours <= theirs else "within the noise of"
    sentence = f"INT8 takes {ours:.3f} ms, {verdict} FP32 with {theirs:.3f} ms"
    if losing:
        sentence += (
            f"; it does not speed up {listed(losing, 8)}, and is predicted to take {share:.2f} of FP32's time without"
        )
    if not slower:
        return sentence, None
    partly = share < 1 and 0 < len(losing) < len(quantized)
    return sentence, {"keep": (*config.keep, *losing)} if partly else {"precision": "fp32"}


def _build(
    job: BuildJob, backend: EngineBackend, tracker: Tracker, run: Run, feed: Feed
) -> tuple[Build, tuple[str, ...]]:
    """The build, and the settings left out because they crash the builder."""
    if not isinstance(backend, IsolatedBackend):
        return replace(job.build(backend), spec=job.spec), ()
    avoid = builds.crashed_settings(tracker, job.spec.model_sha256, job.environment)

    # Logged at once: if this process dies as well, the next build of the model still avoids the settings.
    def log_crash(settings: tuple[str, ...]) -> None:
        nonlocal avoid
        avoid = settings
        builds.log_crash(run, settings, job.spec.model_sha256, job.environment)

    build = backend.build_surviving(
        job.model,
        job.spec.config,
        caches=replace(job.caches, avoid=avoid),
        calibration_data=job.calibration,
        timing_feed=job.timing_feed,
        feed=feed,
        crashed=log_crash,
    )
    return replace(build, spec=job.spec), avoid


def _log_model(run: Run, model: Model, config: ConvertConfig) -> None:
    for file in model.files() if config.keep_model else ():
        run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")


def _evaluate(
    model: Model, build: Build, backend: EngineBackend, feeds: Feeds, config: ConvertConfig, golden: RunResults
) -> tuple[Evaluation, RunResults]:
    check = config.check
    right = RightModel(
        model=model,
        build=config.build,
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
    return evaluation, outputs


@dataclass(frozen=True)
class BuildJob:
    """One build, ready to be made.

    ``calibration`` is data to calibrate INT8 with, unless there is a cache; ``timing_feed`` the first feed of the
    evaluation, if the back end times tactics on it.
    """

    model: Model
    caches: Caches
    calibration: Feeds | None
    environment: Environment
    spec: BuildSpec
    timing_feed: Feed | None

    @classmethod
    def prepare(
        cls,
        model: Model,
        config: BuildConfig,
        environment: Environment,
        *,
        caches: Caches,
        check: CheckConfig,
        calibration_data: str | None,
    ) -> BuildJob:
        """Compute the spec. INT8 and FP8 are calibrated with the data of the check by default."""
        inputs = TensorMetadata.of(model.info.inputs)
        feeds, data_sha256, timing_feed = None, None, None
        if config.backend == "onnxruntime" and caches.replay is None and config.options.tactic_seed is None:
            timing_feed = next(iter(check.open_for(model, profiles=config.profiles)))
            check_feed(inputs, timing_feed)
        # Calibration data is read for its digest: other data gives other ranges, and so another engine.
        if config.calibrates and caches.calibration is None:
            samples = config.calibration_samples
            if calibration_data is not None:
                source = open_feeds(calibration_data, inputs)
            elif check.data is not None:
                source = check.open_for(model)
            else:  # the first feeds of random data have the shapes that the first profile is optimized for
                source, samples = check.open_for(model, profiles=config.profiles), min(samples, check.iterations)
            feeds = source.first(samples)
            data_sha256 = feeds.digest()
        spec = caches.spec(model.info, config, environment, data_sha256, timing_feed)
        return cls(model, caches, feeds, environment, spec, timing_feed)

    def build(self, backend: EngineBackend) -> Build:
        """Build the engine; see :meth:`trtops.backend.base.EngineBackend.build`."""
        return backend.build(
            self.model,
            self.spec.config,
            caches=self.caches,
            calibration_data=self.calibration,
            timing_feed=self.timing_feed,
        )


def read_cache_file(path: str | None, field_name: str) -> bytes | None:
    """The content of an option's file; None without the option, ConfigError if it is unreadable."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise errors.ConfigError(f"{field_name}={path!r} cannot be read: {exc.strerror}.") from None


def read_timing_cache(source: str | None, tracker: Tracker, environment: Environment) -> bytes | None:
    """A timing cache from a file, or from a run (``run:ID``); None if the option is not given.

    TimingCacheError if the run's cache is of another device or release.
    """
    if source is None or not source.startswith("run:"):
        return read_cache_file(source, "timing_cache")
    run_id = run_id_of(source, tracker)
    stored = tracker.load(run_id)
    origin = Environment.from_json(stored.read_bytes(schema.Artifact.ENVIRONMENT))
    if origin.device_key != environment.device_key:
        raise errors.TimingCacheError(
            f"The timing cache of run {run_id} is for {origin.device_key}; this is {environment.device_key}. "
            "Timings of another device or release choose wrong tactics. Use a cache of this device, or none."
        )
    cache = stored.get(schema.Artifact.TIMING_CACHE)
    if cache is None:
        raise errors.ConfigError(
            f"Run {run_id} has no timing cache (timing_cache={source!r}). Name a run with a build."
        )
    return cache
