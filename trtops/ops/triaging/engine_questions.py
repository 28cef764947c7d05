"""Questions about the engine: is it bad, is it the precision or the builder, where, and how small a case shows it."""

import contextlib
from dataclasses import replace

from trtops import errors
from trtops.backend.onnx.emulation import LARGEST_FLOAT16
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.onnxrt.calibration import collect as collect_ranges
from trtops.calibration.cache import CalibrationCache
from trtops.calibration.data import data_source
from trtops.comparator.report import compare_outputs
from trtops.metadata import TensorMetadata
from trtops.next_step import NextStep
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.sensitivity import SensitivityConfig, sensitivity
from trtops.ops.evaluation.limits import EIGHT_BITS
from trtops.ops.search.accuracy import AccuracyConfig, Emulated, accuracy
from trtops.ops.search.precision import PrecisionConfig, precision
from trtops.ops.search.reduce import ReduceConfig, reduce
from trtops.ops.search.submodel import Check, ComparisonCheck
from trtops.ops.triaging.result import Kind, Step
from trtops.ops.triaging.subject import Subject, first_lines
from trtops.spec import BuildConfig
from trtops.tables import counted, listed
from trtops.tracking.memory import MemoryTracker

MINIMAL, INPUTS, BUNDLE = "minimal.onnx", "minimal_inputs.json", "bundle.zip"

_MAX_CHECKS = 200  # of sub-models, and of sets of nodes to keep
# These make infinity or NaN of a value that rounding made zero.
_DIVIDING = frozenset({"Div", "Log", "Reciprocal", "Pow", "Sqrt"})
_ADDING = frozenset({"Sub", "Add", "Sum", "ReduceSum", "ReduceMean"})
# A result smaller than this share of its operands is called cancellation.
_CANCELS = 0.25


def low_precision(subject: Subject) -> LowPrecision:
    """The precision to emulate."""
    return "bf16" if subject.config.build.precision == "bf16" else "fp16"


def ask_build(subject: Subject) -> Step:
    """Whether the engine is bad at all."""
    builds = 0
    if subject.engine is None:
        try:
            conversion = subject.convert()
        except errors.BackendError as exc:
            if isinstance(exc, errors.WorkerError) and exc.timed_out:
                raise
            verb = "inspect capability" if subject.config.build.backend == "tensorrt" else "check lint"
            command, remedy = NextStep(verb, {"model": subject.path}), "change what the builder refuses"
            return Step("it fails", first_lines([str(exc)]), kind="build", remedy=remedy, builds=1, command=command)
        builds = 0 if conversion.reused_from else 1
        subject.engine = subject.read_engine(conversion.run_id)
    evaluation = subject.engine.evaluation
    evidence = (f"{subject.engine.evidence} The engine is {evaluation.verdict}.", *first_lines(evaluation.reasons))
    if evaluation.verdict == "unproven":
        remedy = "repeat the triage with real inputs (--load-inputs), or shapes that are used (--input-shapes)"
        return Step("unproven", evidence, remedy=remedy, builds=builds)
    if evaluation.verdict == "good":
        return Step("good", evidence, builds=builds)
    if evaluation.self_check is not None and "repeated inference" in evaluation.self_check.named("broken"):
        remedy = "deny tactics that add up in no fixed order (split-K, atomic reductions)"
        return Step("differs from run to run", evidence, kind="not repeatable", remedy=remedy, builds=builds)
    return Step("bad when rounded" if evaluation.report else "bad", evidence, builds=builds)


def ask_precision(subject: Subject) -> Step:
    """Whether the precision alone makes it bad, or the builder: the model is rounded without one."""
    assert subject.engine is not None
    evaluation, requested = subject.engine.evaluation, subject.config.check.tolerances
    right = subject.right_model(subject.config.build, subject.engine.build.calibration_cache)
    name, answer = right.precision.upper(), "quantization" if right.precision in EIGHT_BITS else "the precision"
    if evaluation.noise is not None and (reasons := evaluation.noise.reasons(evaluation.report)):
        return Step(answer, first_lines(reasons))
    if right.precision in ("fp16", "bf16"):
        emulated = evaluation.emulated or right.emulation(requested)
        if emulated is None:
            return Step("the builder", (f"The model does not run rounded to {name}.",))
        evidence = (emulated.sentence(), *first_lines(emulated.reasons))
        return Step(answer if emulated.verdict == "bad" else "the builder", evidence)
    try:
        rounded = right.moved if right.precision == "fp32" else right.rounded[0]
    except errors.TrtopsError as exc:
        return Step("the builder", first_lines([f"{name} cannot be emulated: {exc}"]))
    report = None if rounded is None else compare_outputs(rounded, right.golden, right.tolerances(requested))
    if report is None or report:
        return Step("the builder", (f"With {name}'s rounding alone, the outputs are within the limits.",))
    evidence = (f"With {name}'s rounding alone, the outputs exceed the limits.", *first_lines(report.reasons))
    if right.precision in EIGHT_BITS:
        return Step(answer, evidence)
    return Step("the limits", evidence, kind="rounding", remedy=f"allow errors of {name}'s rounding")


def ask_tactic(subject: Subject) -> Step:
    """Which choice of the builder makes builds bad, from differing builds and mixtures of them."""
    config, settings = subject.config, () if subject.engine is None else subject.engine.build.tactics.settings
    # Where no combination of a few settings is good, more builds do not help.
    most_builds = min(config.campaign_builds, 8 << len(settings)) if settings else config.campaign_builds
    campaign_config = DebugBuildConfig(
        build=replace(config.build, options=replace(config.build.options, tactic_seed=None)),
        check=config.check,
        calibration_data=config.calibration_data,
        calibration_cache=config.calibration_cache,
        random_tactics=True,
        max_iterations=most_builds,
        max_minutes=None if config.minutes is None else subject.seconds_left / 60,
    )
    campaign = debug_build(
        subject.path, campaign_config, tracker=subject.tracker, experiment=subject.experiment, tags=subject.tags
    )
    counts = f"Campaign `{campaign.run_id}`: {next(iter(campaign.body()))}"
    builds, culprits = campaign.iterations + campaign.mixtures, dict[str, None]()
    if not campaign.confirmed:
        kind: Kind = "intermittent" if campaign.good + campaign.unproven and campaign.bad else "builder"
        return Step("none is confirmed", (counts, f"{campaign.headline}."), kind=kind, builds=builds)
    for culprit in (culprit for bisection in campaign.bisections for culprit in bisection.culprits):
        culprits |= dict.fromkeys(unit.name for unit in culprit.units)
    remedy, command = "deny it, then build again", None
    if not isinstance(subject.tracker, MemoryTracker):
        remedy = "prove it, which denies it, then build again"
        command = NextStep("debug prove", {"run": campaign.run_id})
    evidence, places = (counts, *campaign.confirmed), tuple(culprits)
    return Step("confirmed", evidence, kind="tactic", places=places, remedy=remedy, builds=builds, command=command)


def ask_divergence(subject: Subject) -> Step:
    """Where rounding goes wrong, and how."""
    low, tolerances = low_precision(subject), subject.config.check.tolerances
    config = AccuracyConfig(data=data_source(subject.feeds), tolerances=tolerances)
    comparison = accuracy(str(subject.path), Emulated(low), config, **subject.below())
    evidence = comparison.because
    too_large = next((tensor for tensor in comparison.tensors if tensor.magnitude > LARGEST_FLOAT16), None)
    if too_large is not None and (comparison.first_nonfinite is not None or comparison.verdict == "bad"):
        evidence += (f"{too_large.name!r} reaches {too_large.magnitude:,.0f}; FP16 ends at 65,504.",)
        return Step("a value overflows", evidence, kind="overflow", places=(too_large.node, too_large.name))
    if comparison.first_nonfinite is not None:
        nonfinite = comparison.tensor(comparison.first_nonfinite)
        # Weights that are 0 in FP16 only.
        flushed = tuple(lower_precision(subject.model.proto(), low).flushed)
        kind: Kind = "underflow" if nonfinite.op in _DIVIDING else "nan"
        return Step("NaN appears", evidence, kind=kind, places=(nonfinite.node, nonfinite.name, *flushed))
    name = comparison.origin or comparison.first
    if name is None:
        return Step("no tensor shows it", evidence, kind="rounding")
    origin, index = comparison.tensor(name), [tensor.name for tensor in comparison.tensors].index(name)
    # Cancellation: the result is much smaller than the operands; only some of these are known.
    operands = [tensor for tensor in comparison.tensors if tensor.name in comparison.chain and tensor != origin]
    operands += comparison.tensors[max(index - 3, 0) : index]
    largest = max((tensor.magnitude for tensor in operands), default=0.0)
    cancels = origin.op in _ADDING and (origin.growth or 0) > 1 / _CANCELS and origin.magnitude < _CANCELS * largest
    answer = "a difference cancels" if cancels else "rounding adds up"
    return Step(answer, evidence, kind="cancellation" if cancels else "rounding", places=(origin.node, name))


def ask_keep(subject: Subject) -> Step:
    """Which nodes have to stay in FP32."""
    tolerances, checks = subject.config.check.tolerances, subject.affordable(_MAX_CHECKS)
    data, low = data_source(subject.feeds), low_precision(subject)
    config = PrecisionConfig(data=data, to=low, tolerances=tolerances, max_checks=checks)
    lowering = precision(str(subject.path), config, **subject.below())
    evidence = first_lines((*lowering.because, lowering.figures))
    if lowering.outcome != "mixed":
        return Step("keeping nodes does not help" if lowering.outcome == "bad" else "none", evidence)
    remedy = f"keep in FP32: {listed(lowering.keep, 8)}"
    command = subject.command("convert", keep=lowering.keep)
    return Step(counted(len(lowering.keep), "node"), evidence, remedy=remedy, command=command)


def ask_ranges(subject: Subject) -> Step:
    """Find truncating calibration ranges, and check if the observed range corrects the engine."""
    if subject.calibration is None:
        return Step("calibrated here", ("The ranges come from this data.",))
    cache = CalibrationCache.from_bytes(subject.calibration)
    inputs = TensorMetadata.of(subject.model.info.inputs)
    collector = collect_ranges(subject.model.proto(), subject.feeds, inputs=inputs, min_samples=1, counted=False)
    observed = {observed_range.name: observed_range for observed_range in collector.cache().ranges}
    excess: dict[str, float] = {}
    for calibrated in cache.ranges:
        if calibrated.name in observed and 0 < calibrated.amax < observed[calibrated.name].amax:
            excess[calibrated.name] = observed[calibrated.name].amax / calibrated.amax
    if not excess:
        return Step("all fit", (f"{len(cache.ranges)} ranges hold all values of this data.",))
    places = tuple(sorted(excess, key=excess.__getitem__, reverse=True))
    amax = observed[places[0]].amax
    sentence = f"{places[0]!r} reaches {amax:.4g}, {excess[places[0]]:.3g} times what its range holds."
    corrected = replace(cache, ranges=tuple(observed[r.name] if r.name in excess else r for r in cache.ranges))
    file = subject.files / "ranges.json"
    file.write_bytes(corrected.to_bytes())
    conversion = subject.convert(calibration_cache=str(file))
    evidence = sentence, f"With the observed ranges of {', '.join(places)} the engine is {conversion.verdict}."
    if conversion.verdict == "bad":
        return Step("other causes", evidence, builds=1)
    remedy = f"calibrate again on data like this; the range of {places[0]!r} has to reach {amax:.4g}"
    command = subject.command("calibrate") if subject.config.check.data is not None else None
    return Step("one is too short", evidence, kind="range", places=places, remedy=remedy, builds=1, command=command)


def ask_layers(subject: Subject) -> Step:
    """Which layers INT8 costs most."""
    cache = None if subject.engine is None else subject.engine.build.calibration_cache
    if cache is None:
        return Step("unknown", ("The build left no calibration cache.",), kind="quantization")
    limit = subject.tolerances.max_nrmse
    config = SensitivityConfig(data=data_source(subject.feeds), budget=0.2 if limit is None else float(limit))
    ranges = CalibrationCache.from_bytes(cache)
    measured = sensitivity(subject.path, ranges, config, **subject.below())
    places = measured.keep or tuple(layer.layer for layer in measured.layers[:3])
    evidence = tuple(line for line in [*measured.body()][:3] if line)
    remedy = f"keep in higher precision: {listed(measured.keep, 8)}" if measured.keep else ""
    command = subject.command("convert", keep=measured.keep) if measured.keep else None
    answer = f"{len(measured.keep)} layers"
    return Step(answer, evidence, kind="quantization", places=places, remedy=remedy, command=command)


def ask_minimal(subject: Subject) -> Step:
    """How small the failing case gets."""
    check, is_built = _check(subject), "divergence" not in subject.answers
    checks = subject.affordable(_MAX_CHECKS, builds=int(is_built))
    config = ReduceConfig(data=data_source(subject.feeds), output=str(subject.files / MINIMAL), max_checks=checks)
    reduction = reduce(str(subject.path), check, config, **subject.below())
    builds, evidence = reduction.checks * is_built, first_lines(reduction.because[:1])
    if (culprit := reduction.culprit) is None:
        return Step("parts do not show it", evidence, builds=builds)
    places = culprit.labels if subject.engine is None else ()
    return Step(counted(len(culprit.nodes), "node"), evidence, places=places, builds=builds)


def _check(subject: Subject) -> Check:
    """A check that fails for parts with the symptom: rounding after each node, an engine's outputs, or a failure."""
    if "divergence" in subject.answers:
        return ComparisonCheck(runner=Emulated(low_precision(subject)), tolerances=subject.tolerances)
    side = subject.side()
    if subject.engine is not None:
        return ComparisonCheck(runner=side, tolerances=subject.tolerances)

    def builds(part: SubModel) -> bool:
        with contextlib.suppress(errors.BackendError):
            side.build(part.proto)
            return True
        return False

    try:
        side.build(subject.model.proto())
    except errors.BackendError:
        return builds  # engines that are built here need not run here
    return ComparisonCheck(runner=side, tolerances=subject.tolerances, failures=("build", "inference"))


def ask_bundle(subject: Subject) -> Step:
    """Whether the smallest case can be reproduced without trtops."""
    path = subject.files / MINIMAL
    if not path.is_file():
        return Step("nothing to bundle", ("There is no smallest case.",))
    check = replace(subject.config.check, data=str(subject.files / INPUTS), golden=None, tolerances=subject.tolerances)
    side, replay = subject.side(), None
    build = BuildConfig(precision=low_precision(subject)) if "divergence" in subject.answers else side.config
    if side.caches.replay is not None and "divergence" not in subject.answers:
        replay = subject.files / "replay.json"
        replay.write_text(side.caches.replay.to_json(), encoding="utf-8")
    changes = {"check": check, "build": replace(build, profiles=())}  # inputs of a part have other names
    try:
        with contextlib.suppress(errors.BackendError):  # a failed build is a case as well
            conversion = subject.convert(path=path, replay=None if replay is None else str(replay), **changes)
            if conversion.verdict != "bad":
                return Step("no", (f"Built alone, the smallest case is {conversion.verdict}.",), builds=1)
        [run] = subject.tracker.find(parent=subject.parent)
        bundled = bundle(run.id, BundleConfig(output=str(subject.files / BUNDLE)), tracker=subject.tracker)
    except errors.TrtopsError as exc:
        return Step("no", first_lines([str(exc)]), builds=1)
    last_line = (bundled.printed.strip().splitlines() or ["It could not be tried here."])[-1]
    return Step("yes", (f"{BUNDLE}, {bundled.size} bytes.", last_line), builds=1)
