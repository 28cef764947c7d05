"""Questions about the engine: does the fault repeat, is it the precision or the builder, and its first tensor."""

from dataclasses import replace
from typing import Literal

from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.onnxrt.calibration import collect
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.calibration.cache import CalibrationCache
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.json import load_json
from trtops.metadata import TensorMetadata
from trtops.next_step import NextStep, arguments_of
from trtops.ops.bundling.case import Case, emulated_case, engine_case
from trtops.ops.bundling.op import BundleConfig, write_bundle
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.engines.sensitivity import SensitivityConfig, sensitivity
from trtops.ops.evaluation.data import collect as run_feeds
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.search.accuracy import AccuracyConfig, Emulated, accuracy
from trtops.ops.search.precision import PrecisionConfig, precision
from trtops.ops.search.reduce import ReduceConfig, reduce
from trtops.ops.search.submodel import Check, CheckVerdict, ComparisonCheck, EngineRunner
from trtops.ops.triaging.model_questions import Subject, first_lines
from trtops.ops.triaging.result import Answer, Kind
from trtops.spec import BuildConfig
from trtops.tables import counted, listed
from trtops.tracking import builds
from trtops.tracking.memory import MemoryTracker

MINIMAL = "minimal.onnx"
INPUTS = "minimal_inputs.json"
BUNDLE = "bundle.zip"

# Each costs a build: enough to find engines that are good more often than not.
_REBUILDS = 2
_MAX_CHECKS = 200  # of sub-models, and of sets of nodes to keep
_LARGEST = 65504.0  # in FP16
# These make infinity or NaN of a value that rounding made zero.
_DIVIDING = frozenset({"Div", "Log", "Reciprocal", "Pow", "Sqrt"})
_ADDING = frozenset({"Sub", "Add", "Sum", "ReduceSum", "ReduceMean"})
# A result smaller than this share of its operands is called cancellation.
_CANCELS = 0.25


def _is_right(subject: Subject, side: EngineRunner) -> bool:
    """Whether an engine of the whole model gives the outputs of the model itself."""
    try:
        build = side.build(subject.model.proto())
        with engine_backend(side.config.backend).runner(build.engine) as runner:
            outputs = run_feeds(runner, subject.feeds)
    except errors.BackendError:
        return False
    right = subject.right_model(side.config, build.calibration_cache)
    given = subject.config.check.tolerances
    tolerances = right.tolerances(given)
    return bool(compare_outputs(outputs if given else right.aligned(outputs), subject.outputs, tolerances))


def _convert(
    subject: Subject, parent: str, build: BuildConfig, *, rebuild: bool = False, replay: bool = True
) -> ConvertResult:
    config = subject.config
    convert_config = ConvertConfig(
        build=build,
        check=config.check,
        calibration_data=config.calibration_data,
        calibration_cache=config.calibration_cache if build.calibrates else None,
        replay=config.replay if replay else None,
        measure_ranges=False,  # an overflow is to be found, not avoided
        rebuild=rebuild,
    )
    return convert(subject.path, convert_config, **subject.below(parent))


def bad_build(subject: Subject, parent: str) -> Build:
    """The engine under triage, as it was built first."""
    conversion = _convert(subject, parent, subject.config.build)
    return builds.load_build(subject.tracker.load(conversion.run_id))


def pinned_side(subject: Subject, parent: str) -> EngineRunner:
    """Builds as the bad engine was built, also of parts of the model."""
    record = bad_build(subject, parent).tactics
    # Settings alone fit any model, while choices name layers of this one.
    replay = replace(record, choices=()) if record.settings else None
    # A seed would choose other tactics for each part.
    config = replace(subject.config.build, options=replace(subject.config.build.options, tactic_seed=None))
    return EngineRunner(config, Caches(replay=replay, calibration=subject.calibration), subject.feeds[0])


def _low_precision(subject: Subject) -> LowPrecision:
    return "bf16" if subject.config.build.precision == "bf16" else "fp16"


def ask_build(subject: Subject, parent: str) -> Answer:
    """Whether the engine is bad at all."""
    try:
        conversion = _convert(subject, parent, subject.config.build)
    except errors.BackendError as exc:
        verb = "inspect capability" if subject.config.build.backend == "tensorrt" else "check lint"
        remedy = f"change what the builder refuses; see `{NextStep(verb, {'model': subject.path})}`"
        return Answer("it fails", tuple(first_lines([str(exc)])), kind="build", remedy=remedy, builds=1)
    builds = 0 if conversion.reused_from else 1
    evidence = (f"The {conversion.called} engine is {conversion.verdict}.", *first_lines(conversion.reasons))
    if conversion.verdict == "good":
        return Answer("good", evidence, builds=builds)
    if conversion.verdict == "unproven":
        evidence += ("Its outputs agree on this data, which does not rule out a bad engine.",)
        remedy = "repeat the triage with real inputs (--load-inputs), or shapes that are used (--input-shapes)"
        return Answer("unproven", evidence, remedy=remedy, builds=builds)
    if conversion.evaluation.report:
        evidence += ("The engine's outputs are right, since it does not compute in the requested precision.",)
        return Answer("bad when rounded", evidence, builds=builds)
    return Answer("bad", evidence, builds=builds)


def ask_again(subject: Subject, parent: str) -> Answer:
    """Run the same engine twice, and build new engines, to see if the fault repeats."""
    first = bad_build(subject, parent)
    with engine_backend(subject.config.build.backend).runner(first.engine) as runner:
        runs = [run_feeds(runner, subject.feeds) for _ in range(2)]
    # Wider than equal bits: the order of additions may differ from run to run without harm.
    alike = Tolerances(atol=1e-6, rtol=1e-5, atol_of_scale=1e-5, nans_equal=True, infinities_equal=True)
    report = compare_outputs(runs[1], runs[0], alike)
    if not report:
        evidence = (f"One engine gives different outputs each time: {'; '.join(report.reasons)[:300]}",)
        remedy = "deny tactics that add up in no fixed order (split-K, atomic reductions)"
        return Answer("one engine differs from run to run", evidence, kind="not repeatable", remedy=remedy)
    results = [_convert(subject, parent, subject.config.build, rebuild=True) for _ in range(_REBUILDS)]
    good = sum(bool(result.evaluation.report) for result in results)
    counts = f"Built {_REBUILDS} times more: {_REBUILDS - good} bad, {good} good."
    if good:
        return Answer("not every time", (counts,), kind="intermittent", builds=_REBUILDS)
    return Answer("every time", (counts,), builds=_REBUILDS)


def ask_campaign(subject: Subject, parent: str) -> Answer:
    """Find the builder's choice behind bad builds, from differing builds and mixtures of them."""
    return _run_campaign(subject, random=False, otherwise="intermittent")


def _run_campaign(subject: Subject, *, random: bool, otherwise: Kind) -> Answer:
    config = subject.config
    campaign_config = DebugBuildConfig(
        build=replace(config.build, options=replace(config.build.options, tactic_seed=None)),
        check=config.check,
        calibration_data=config.calibration_data,
        calibration_cache=config.calibration_cache,
        random_tactics=random,
        until="decided",
        max_iterations=config.campaign_builds,
        max_minutes=config.minutes,
    )
    campaign = debug_build(
        subject.path, campaign_config, tracker=subject.tracker, experiment=subject.experiment, tags=subject.tags
    )
    counted = (
        f"{campaign.good + campaign.unproven} builds good, {campaign.bad} bad, {campaign.errors} crashed; "
        f"{campaign.mixtures} mixtures. Campaign `{campaign.run_id}`."
    )
    builds_spent, places = campaign.iterations + campaign.mixtures, campaign.confirmed
    if not places:
        return Answer("none is confirmed", (counted, campaign.diff.conclusion), kind=otherwise, builds=builds_spent)
    remedy = "deny it, then build again"
    if not isinstance(subject.tracker, MemoryTracker):
        remedy = f"prove it, which denies it, then build again: `{NextStep('debug prove', {'run': campaign.run_id})}`"
    return Answer("confirmed", (counted, *places), kind="tactic", places=places, remedy=remedy, builds=builds_spent)


def ask_precision(subject: Subject, parent: str) -> Answer:
    """Whether the precision alone makes it bad, or the builder."""
    config = subject.config.build
    if config.precision == "fp32":
        return Answer("the builder", ("The precision is FP32, and the model itself is right in it.",))
    if config.precision in ("fp16", "bf16"):
        floor = subject.right_model(config).emulation(subject.config.check.tolerances)
        if floor is None:
            return Answer("the builder", (f"The model does not run rounded to {config.precision.upper()}.",))
        answer = "the precision" if floor.verdict == "bad" else "the builder"
        evidence_line = f"Rounded after each node, without a builder: {floor.sentence()}"
        return Answer(answer, (evidence_line, *first_lines(floor.reasons)))
    plain = _convert(subject, parent, replace(config, precision="fp32"), replay=False)
    evidence = (f"The same build in FP32 is {plain.verdict}.", *first_lines(plain.reasons))
    # The builder makes the same kinds of choices in FP32, but nothing is quantized.
    answer = "the builder" if plain.verdict == "bad" else "quantization"
    return Answer(answer, evidence, builds=0 if plain.reused_from else 1)


def ask_divergence(subject: Subject, parent: str) -> Answer:
    """Where rounding goes wrong, and how."""
    to = _low_precision(subject)
    config = AccuracyConfig(tolerances=subject.config.check.tolerances)
    comparison = accuracy(str(subject.path), Emulated(to), config, feeds=subject.feeds, **subject.below(parent))
    tensors = {tensor.name: tensor for tensor in comparison.tensors}
    too_large = next((t for t in comparison.tensors if t.magnitude > _LARGEST), None)
    if too_large is not None and (comparison.first_nonfinite is not None or comparison.verdict == "bad"):
        maker = f"{too_large.op} {too_large.node!r}"
        sentence = f"{too_large.name!r}, made by {maker}, reaches {too_large.magnitude:,.0f}; FP16 ends at 65,504."
        return Answer("a value overflows", (sentence,), kind="overflow", places=(too_large.node, too_large.name))
    if comparison.first_nonfinite is not None:
        nonfinite = tensors[comparison.first_nonfinite]
        maker = f"{nonfinite.op} {nonfinite.node!r}"
        sentence = f"{nonfinite.name!r}, made by {maker}, is NaN or infinite; no tensor before it exceeds FP16."
        # Weights that are 0 in FP16 only.
        flushed = tuple(lower_precision(subject.model.proto(), to).flushed)
        kind: Kind = "underflow" if nonfinite.op in _DIVIDING else "nan"
        return Answer("NaN appears", (sentence, *flushed), kind=kind, places=(nonfinite.node, nonfinite.name, *flushed))
    origin = tensors.get(comparison.origin or comparison.first or "")
    if origin is None:
        return Answer("no tensor shows it", (comparison.text().splitlines()[0],), kind="rounding")
    sentence = f"Most of the error appears at {origin.name!r}, made by {origin.op} {origin.node!r}: {origin.error:.3g}"
    if origin.growth is not None:
        sentence += f", {origin.growth:.3g} times that of its inputs"
    places = (origin.node, origin.name)
    # Cancellation: the result is much smaller than the operands; only some of these are known.
    before = [t.magnitude for t in comparison.tensors[: comparison.tensors.index(origin)]][-3:]
    above = [tensors[name].magnitude for name in comparison.chain if name in tensors and name != origin.name]
    cancels = origin.magnitude < _CANCELS * max([0.0, *above, *before])
    if origin.op in _ADDING and (origin.growth or 0) > 1 / _CANCELS and cancels:
        return Answer("a difference cancels", (f"{sentence}.",), kind="cancellation", places=places)
    return Answer("rounding adds up", (f"{sentence}.",), kind="rounding", places=places)


def ask_keep(subject: Subject, parent: str) -> Answer:
    """Which nodes have to stay in FP32."""
    tolerances = subject.config.check.tolerances
    config = PrecisionConfig(to=_low_precision(subject), tolerances=tolerances, max_checks=_MAX_CHECKS)
    lowering = precision(str(subject.path), config, feeds=subject.feeds, **subject.below(parent))
    evidence = (f"{lowering.checks} sets of the {lowering.nodes} nodes that can be lowered were checked.",)
    if lowering.outcome == "bad":
        return Answer("keeping nodes does not help", evidence)
    if lowering.outcome == "good":
        return Answer("none", (*evidence, "The outputs are within tolerance: only values inside overflow."))
    named = listed(lowering.keep, 8)
    options = arguments_of(subject.config.build) | arguments_of(subject.config.check)
    search = {"model": subject.path, "precision": config.to, "output": "mixed.onnx"}
    remedy = f"keep in FP32: {named} (`{NextStep.after(options, 'debug precision', search)}`)"
    return Answer(
        f"{counted(len(lowering.keep), 'node')}", (*evidence, f"Right with these in FP32: {named}."), remedy=remedy
    )


def ask_ranges(subject: Subject, parent: str) -> Answer:
    """Find truncating calibration ranges, and check if the observed range corrects the engine."""
    if subject.calibration is None:
        return Answer("calibrated here", ("The ranges come from this data.",))
    cache = CalibrationCache.from_bytes(subject.calibration)
    inputs = TensorMetadata.of(subject.model.info.inputs)
    observed = collect(subject.model.proto(), subject.feeds, inputs=inputs, min_samples=1, counted=False).cache().ranges
    seen = {r.name: r for r in observed}
    ratios = {r.name: seen[r.name].amax / r.amax for r in cache.ranges if r.name in seen and r.amax > 0}
    worst = sorted((name for name in ratios if ratios[name] > 1), key=lambda name: -ratios[name])
    if not worst:
        return Answer("all fit", (f"{len(ratios)} ranges hold all values of this data.",))
    sentence = f"{worst[0]!r} reaches {seen[worst[0]].amax:.4g}, {ratios[worst[0]]:.3g} times what its range holds."
    corrected = replace(cache, ranges=tuple(seen[r.name] if r.name in worst else r for r in cache.ranges))
    side = EngineRunner(subject.config.build, Caches(calibration=corrected.to_bytes()), subject.feeds[0])
    if not _is_right(subject, side):
        return Answer("other causes", (sentence, "Correcting that does not help."), builds=1)
    evidence = (sentence, f"With the observed ranges of {', '.join(map(repr, worst))} the engine is good.")
    remedy = f"calibrate again on data like this; the range of {worst[0]!r} has to reach {seen[worst[0]].amax:.4g}"
    return Answer("one is too short", evidence, kind="range", places=tuple(worst), remedy=remedy, builds=1)


def ask_layers(subject: Subject, parent: str) -> Answer:
    """Which layers INT8 costs most."""
    cache = bad_build(subject, parent).calibration_cache
    if cache is None:
        return Answer("unknown", ("The build left no calibration cache.",), kind="quantization")
    file = subject.files / "int8.json"
    file.write_bytes(cache)
    limit = subject.tolerances.max_nrmse
    config = SensitivityConfig(budget=0.2 if limit is None else float(limit))
    measured = sensitivity(subject.path, str(file), config, data=subject.feeds, **subject.below(parent))
    worst, kept_count = measured.keep or [layer.layer for layer in measured.layers[:3]], len(measured.keep)
    sentence = f"Relative error with all layers in INT8 {measured.error:.3g}; "
    sentence += f"{measured.error_kept:.3g} with {kept_count} kept."
    remedy = f"keep in higher precision: {', '.join(measured.keep)}" if kept_count else ""
    return Answer(f"{kept_count} layers", (sentence,), kind="quantization", places=tuple(worst), remedy=remedy)


def ask_tactic(subject: Subject, parent: str) -> Answer:
    """Which setting of the builder makes the engine bad: with the other value, and all others the same, it is right."""
    bad = bad_build(subject, parent).tactics
    if not bad.settings:
        return _run_campaign(subject, random=True, otherwise="builder")
    side = pinned_side(subject, parent)
    culprits = []
    for name, value in bad.settings:
        other = "off" if value == "on" else "on"
        settings = tuple((n, other if n == name else v) for n, v in bad.settings)
        replay = replace(bad, settings=settings, choices=())
        if _is_right(subject, replace(side, caches=replace(side.caches, replay=replay))):
            culprits.append((name, value))
    tried = len(bad.settings)
    if not culprits:
        sentence = f"The engine stays bad if any one of its {tried} settings is reversed."
        return Answer("none is confirmed", (sentence,), kind="builder", builds=tried)
    right = "reversed it is right; all other settings are equal."
    evidence = tuple(f"With {name} {value} it is bad, {right}" for name, value in culprits)
    name, value = culprits[0]
    remedy = f"deny the setting {name}={value}, or remove {name} from the tactics that the builder may choose"
    places = tuple(name for name, _ in culprits)
    return Answer("confirmed", evidence, kind="tactic", places=places, remedy=remedy, builds=tried)


def _what_shows(subject: Subject) -> Literal["rounded", "built", "failing"]:
    """The symptom of the fault: rounding after each node, an engine's outputs, or a failing build or run."""
    if subject.answers.get("build") == "it fails":
        return "failing"
    return "rounded" if "divergence" in subject.answers else "built"


def ask_minimal(subject: Subject, parent: str) -> Answer:
    """How small the failing case gets."""
    shows = _what_shows(subject)
    # A part has other outputs, to which limits by name do not apply.
    tolerances = replace(subject.tolerances, per_output={})
    check: Check
    if shows == "built":
        check = ComparisonCheck(runner=pinned_side(subject, parent), tolerances=tolerances)
    elif shows == "failing":
        check = _fails_to_build(subject)
    else:

        def check(part: SubModel) -> CheckVerdict:
            golden = RunResults([("golden", [IterationResult(dict(outputs)) for outputs in part.golden])])
            build = BuildConfig(precision=_low_precision(subject))
            right = RightModel(model=Model.from_proto(part.proto), build=build, feeds=part.feeds, golden=golden)
            floor = right.emulation(tolerances)
            return "error" if floor is None else "pass" if floor.verdict == "good" else "fail"

    config = ReduceConfig(output=str(subject.files / MINIMAL), max_checks=_MAX_CHECKS)
    reduction = reduce(str(subject.path), check, config, feeds=subject.feeds, **subject.below(parent))
    builds_spent = 0 if shows == "rounded" else reduction.checks
    if (culprit := reduction.culprit) is None:
        return Answer("parts do not show it", (reduction.detail,), builds=builds_spent)
    evidence = (f"{len(culprit.nodes)} of {reduction.nodes} nodes still fail: {', '.join(culprit.labels)}.",)
    places = culprit.labels if shows == "failing" else ()
    return Answer(f"{counted(len(culprit.nodes), 'node')}", evidence, places=places, builds=builds_spent)


def _fails_to_build(subject: Subject) -> Check:
    """A check failing for parts refused by the builder, or, if it builds the whole, for parts with a failing run."""
    side = EngineRunner(subject.config.build, Caches(calibration=subject.calibration), subject.feeds[0])
    try:
        side.build(subject.model.proto())
        refused = False
    except errors.BackendError:
        # Engines that are built here need not run here, so parts are only built.
        refused = True

    def check(part: SubModel) -> bool:
        try:
            if refused:
                side.build(part.proto)
                return True
            with side(part.proto) as runner:
                for feed in part.feeds:
                    runner.infer(feed)
        except errors.BackendError:
            return False
        return True

    return check


def ask_bundle(subject: Subject, parent: str) -> Answer:
    """Whether the smallest case can be reproduced without trtops."""
    path = subject.files / MINIMAL
    if not path.is_file():
        return Answer("nothing to bundle", ("There is no smallest case.",))
    shows = _what_shows(subject)
    try:
        proto = Model.load(path).proto()
        feeds = [dict(feed) for feed in load_json(str(subject.files / INPUTS))]
        built = BuildConfig() if shows == "rounded" else subject.config.build
        case = Case(
            name=f"{subject.experiment}, smallest case",
            backend=built.backend,
            model=proto,
            feeds=feeds,
            golden=[dict(outputs) for outputs in reference_outputs(proto, feeds)],
            tolerances=replace(subject.tolerances, per_output={}),
            verdict="error" if shows == "failing" else "bad",
            settings={},
        )
        environment = engine_backend(case.backend).environment(built)
        if shows == "rounded":
            case = emulated_case(case, _low_precision(subject))
        elif shows == "failing":
            case = engine_case(case, subject.config.build, None, subject.calibration, environment)
        else:
            side = pinned_side(subject, parent)
            build = side.build(proto)
            case = engine_case(case, build.spec.config, build.tactics, side.caches.calibration, environment)
        bundled = write_bundle(case, BundleConfig(output=str(subject.files / BUNDLE)), environment)
    except errors.TrtopsError as exc:
        return Answer("no", tuple(first_lines([str(exc)])))
    output_lines = bundled.printed.strip().splitlines()
    return Answer("yes", (f"{BUNDLE}, {bundled.size} bytes.", *(output_lines[-1:] or ["It could not be tried here."])))
