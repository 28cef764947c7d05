"""Questions about the engine: does the fault repeat, is it the precision or the builder, and its first tensor."""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from trtops import errors
from trtops.backend.base import Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.emulation import LARGEST_FLOAT16
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.onnxrt.calibration import collect as collect_ranges
from trtops.calibration.cache import CalibrationCache
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.metadata import TensorMetadata
from trtops.next_step import NextStep, arguments_of
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.sensitivity import SensitivityConfig, sensitivity
from trtops.ops.evaluation.data import collect
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.search.accuracy import AccuracyConfig, Emulated, TensorError, accuracy
from trtops.ops.search.precision import PrecisionConfig, precision
from trtops.ops.search.reduce import ReduceConfig, reduce
from trtops.ops.search.submodel import Check, CheckVerdict, ComparisonCheck, EngineRunner
from trtops.ops.triaging.result import Answer, Kind
from trtops.ops.triaging.subject import Subject, first_lines
from trtops.spec import BuildConfig
from trtops.system.processes import temporary_prefix
from trtops.tables import counted, listed
from trtops.tracking.memory import MemoryTracker

MINIMAL = "minimal.onnx"
INPUTS = "minimal_inputs.json"
BUNDLE = "bundle.zip"

# Each costs a build: enough to find engines that are good more often than not.
_REBUILDS = 2
_MAX_CHECKS = 200  # of sub-models, and of sets of nodes to keep
# These make infinity or NaN of a value that rounding made zero.
_DIVIDING = frozenset({"Div", "Log", "Reciprocal", "Pow", "Sqrt"})
_ADDING = frozenset({"Sub", "Add", "Sum", "ReduceSum", "ReduceMean"})
# A result smaller than this share of its operands is called cancellation.
_CANCELS = 0.25
# Wider than equal bits: the order of additions may differ from run to run without harm.
_ALIKE = Tolerances(atol=1e-6, rtol=1e-5, atol_of_scale=1e-5, nans_equal=True, infinities_equal=True)


def ask_build(subject: Subject, parent: str) -> Answer:
    """Whether the engine is bad at all."""
    try:
        conversion = subject.convert(parent)
    except errors.BackendError as exc:
        verb = "inspect capability" if subject.config.build.backend == "tensorrt" else "check lint"
        remedy = f"change what the builder refuses; see `{NextStep(verb, {'model': subject.path})}`"
        return Answer("it fails", tuple(first_lines([str(exc)])), kind="build", remedy=remedy, builds=1)
    subject.build_run = conversion.run_id
    answer, remedy = "bad", ""
    evidence = (f"The {conversion.called} engine is {conversion.verdict}.", *first_lines(conversion.reasons))
    if conversion.verdict == "good":
        answer = "good"
    elif conversion.verdict == "unproven":
        answer = "unproven"
        evidence += ("Its outputs agree on this data, which does not rule out a bad engine.",)
        remedy = "repeat the triage with real inputs (--load-inputs), or shapes that are used (--input-shapes)"
    elif conversion.evaluation.report:
        answer = "bad when rounded"
        evidence += ("The engine's outputs are right, since it does not compute in the requested precision.",)
    return Answer(answer, evidence, remedy=remedy, builds=0 if conversion.reused_from else 1)


def ask_again(subject: Subject, parent: str) -> Answer:
    """Run the same engine twice, and build new engines, to see if the fault repeats."""
    with engine_backend(subject.config.build.backend).runner(subject.build.engine) as runner:
        first = collect(runner, subject.feeds)
        report = compare_outputs(collect(runner, subject.feeds), first, _ALIKE)
    if not report:
        evidence = (f"One engine gives different outputs each time: {'; '.join(report.reasons)[:300]}",)
        remedy = "deny tactics that add up in no fixed order (split-K, atomic reductions)"
        return Answer("one engine differs from run to run", evidence, kind="not repeatable", remedy=remedy)
    good = 0
    for _ in range(_REBUILDS):
        good += bool(subject.convert(parent, rebuild=True).evaluation.report)
    counts = f"Built {_REBUILDS} times more: {_REBUILDS - good} bad, {good} good."
    if good:
        return Answer("not every time", (counts,), kind="intermittent", builds=_REBUILDS)
    return Answer("every time", (counts,), builds=_REBUILDS)


def ask_campaign(subject: Subject, parent: str, *, random: bool = False, otherwise: Kind = "intermittent") -> Answer:
    """Find the builder's choice behind bad builds, from differing builds and mixtures of them."""
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
    counts = (
        f"{campaign.good + campaign.unproven} builds good, {campaign.bad} bad, {campaign.errors} crashed; "
        f"{campaign.mixtures} mixtures. Campaign `{campaign.run_id}`."
    )
    spent, places = campaign.iterations + campaign.mixtures, campaign.confirmed
    if not places:
        return Answer("none is confirmed", (counts, campaign.diff.conclusion), kind=otherwise, builds=spent)
    remedy = "deny it, then build again"
    if not isinstance(subject.tracker, MemoryTracker):
        remedy = f"prove it, which denies it, then build again: `{NextStep('debug prove', {'run': campaign.run_id})}`"
    return Answer("confirmed", (counts, *places), kind="tactic", places=places, remedy=remedy, builds=spent)


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
    plain = subject.convert(parent, build=replace(config, precision="fp32"), calibration_cache=None, replay=None)
    evidence = (f"The same build in FP32 is {plain.verdict}.", *first_lines(plain.reasons))
    # The builder makes the same kinds of choices in FP32, but nothing is quantized.
    answer = "the builder" if plain.verdict == "bad" else "quantization"
    return Answer(answer, evidence, builds=0 if plain.reused_from else 1)


def _low_precision(subject: Subject) -> LowPrecision:
    return "bf16" if subject.config.build.precision == "bf16" else "fp16"


def _made_by(tensor: TensorError) -> str:
    return f"{tensor.name!r}, made by {tensor.op} {tensor.node!r}"


def ask_divergence(subject: Subject, parent: str) -> Answer:
    """Where rounding goes wrong, and how."""
    to = _low_precision(subject)
    config = AccuracyConfig(tolerances=subject.config.check.tolerances)
    comparison = accuracy(str(subject.path), Emulated(to), config, feeds=subject.feeds, **subject.below(parent))
    too_large = next((tensor for tensor in comparison.tensors if tensor.magnitude > LARGEST_FLOAT16), None)
    if too_large is not None and (comparison.first_nonfinite is not None or comparison.verdict == "bad"):
        sentence = f"{_made_by(too_large)}, reaches {too_large.magnitude:,.0f}; FP16 ends at 65,504."
        return Answer("a value overflows", (sentence,), kind="overflow", places=(too_large.node, too_large.name))
    if comparison.first_nonfinite is not None:
        nonfinite = comparison.tensor(comparison.first_nonfinite)
        sentence = f"{_made_by(nonfinite)}, is NaN or infinite; no tensor before it exceeds FP16."
        # Weights that are 0 in FP16 only.
        flushed = tuple(lower_precision(subject.model.proto(), to).flushed)
        kind: Kind = "underflow" if nonfinite.op in _DIVIDING else "nan"
        return Answer("NaN appears", (sentence, *flushed), kind=kind, places=(nonfinite.node, nonfinite.name, *flushed))
    name = comparison.origin or comparison.first
    if name is None:
        return Answer("no tensor shows it", (comparison.because[0],), kind="rounding")
    origin = comparison.tensor(name)
    sentence = f"Most of the error appears at {_made_by(origin)}: {origin.error:.3g}"
    if origin.growth is not None:
        sentence += f", {origin.growth:.3g} times that of its inputs"
    places = (origin.node, origin.name)
    # Cancellation: the result is much smaller than the operands; only some of these are known.
    operands = list(comparison.tensors[: comparison.tensors.index(origin)][-3:])
    operands += [tensor for tensor in comparison.tensors if tensor.name in comparison.chain and tensor != origin]
    largest = max((tensor.magnitude for tensor in operands), default=0.0)
    if origin.op in _ADDING and (origin.growth or 0) > 1 / _CANCELS and origin.magnitude < _CANCELS * largest:
        return Answer("a difference cancels", (f"{sentence}.",), kind="cancellation", places=places)
    return Answer("rounding adds up", (f"{sentence}.",), kind="rounding", places=places)


def ask_keep(subject: Subject, parent: str) -> Answer:
    """Which nodes have to stay in FP32."""
    tolerances = subject.config.check.tolerances
    config = PrecisionConfig(to=_low_precision(subject), tolerances=tolerances, max_checks=_MAX_CHECKS)
    lowering = precision(str(subject.path), config, feeds=subject.feeds, **subject.below(parent))
    evidence: tuple[str, ...] = (
        f"{lowering.checks} sets of the {lowering.nodes} nodes that can be lowered were checked.",
    )
    if lowering.outcome == "bad":
        return Answer("keeping nodes does not help", evidence)
    if lowering.outcome == "good":
        return Answer("none", (*evidence, "The outputs are within tolerance: only values inside overflow."))
    names = listed(lowering.keep, 8)
    options = arguments_of(subject.config.build) | arguments_of(subject.config.check)
    search = {"model": subject.path, "precision": config.to, "output": "mixed.onnx"}
    remedy = f"keep in FP32: {names} (`{NextStep.after(options, 'debug precision', search)}`)"
    evidence += (f"Right with these in FP32: {names}.",)
    return Answer(counted(len(lowering.keep), "node"), evidence, remedy=remedy)


def ask_ranges(subject: Subject, parent: str) -> Answer:
    """Find truncating calibration ranges, and check if the observed range corrects the engine."""
    if subject.calibration is None:
        return Answer("calibrated here", ("The ranges come from this data.",))
    cache = CalibrationCache.from_bytes(subject.calibration)
    inputs = TensorMetadata.of(subject.model.info.inputs)
    collector = collect_ranges(subject.model.proto(), subject.feeds, inputs=inputs, min_samples=1, counted=False)
    observed = {observed_range.name: observed_range for observed_range in collector.cache().ranges}
    excess, compared = {}, 0
    for calibrated in cache.ranges:
        if calibrated.name in observed and calibrated.amax > 0:
            compared += 1
            if (ratio := observed[calibrated.name].amax / calibrated.amax) > 1:
                excess[calibrated.name] = ratio
    if not excess:
        return Answer("all fit", (f"{compared} ranges hold all values of this data.",))
    places = tuple(sorted(excess, key=excess.__getitem__, reverse=True))
    worst, amax = places[0], observed[places[0]].amax
    sentence = f"{worst!r} reaches {amax:.4g}, {excess[worst]:.3g} times what its range holds."
    corrected = replace(cache, ranges=tuple(observed[r.name] if r.name in excess else r for r in cache.ranges))
    side = EngineRunner(subject.config.build, Caches(calibration=corrected.to_bytes()), subject.feeds[0])
    if not subject.is_right(side):
        return Answer("other causes", (sentence, "Correcting that does not help."), builds=1)
    evidence = (sentence, f"With the observed ranges of {', '.join(map(repr, places))} the engine is good.")
    remedy = f"calibrate again on data like this; the range of {worst!r} has to reach {amax:.4g}"
    return Answer("one is too short", evidence, kind="range", places=places, remedy=remedy, builds=1)


def ask_layers(subject: Subject, parent: str) -> Answer:
    """Which layers INT8 costs most."""
    cache = subject.build.calibration_cache
    if cache is None:
        return Answer("unknown", ("The build left no calibration cache.",), kind="quantization")
    file = subject.files / "int8.json"
    file.write_bytes(cache)
    limit = subject.tolerances.max_nrmse
    config = SensitivityConfig(budget=0.2 if limit is None else float(limit))
    measured = sensitivity(subject.path, str(file), config, data=subject.feeds, **subject.below(parent))
    places, kept_count = measured.keep or [layer.layer for layer in measured.layers[:3]], len(measured.keep)
    sentence = f"Relative error with all layers in INT8 {measured.error:.3g}; "
    sentence += f"{measured.error_kept:.3g} with {kept_count} kept."
    remedy = f"keep in higher precision: {', '.join(measured.keep)}" if kept_count else ""
    return Answer(f"{kept_count} layers", (sentence,), kind="quantization", places=tuple(places), remedy=remedy)


def ask_tactic(subject: Subject, parent: str) -> Answer:
    """Which setting of the builder makes the engine bad: with the other value, and all others the same, it is right."""
    record = subject.build.tactics
    if not record.settings:
        return ask_campaign(subject, parent, random=True, otherwise="builder")
    side = subject.pinned_side()
    culprits = {}
    for name, value in record.settings:
        settings = {**dict(record.settings), name: "off" if value == "on" else "on"}
        replay = replace(record, settings=tuple(settings.items()), choices=())
        if subject.is_right(replace(side, caches=replace(side.caches, replay=replay))):
            culprits[name] = value
    tried = len(record.settings)
    if not culprits:
        sentence = f"The engine stays bad if any one of its {tried} settings is reversed."
        return Answer("none is confirmed", (sentence,), kind="builder", builds=tried)
    evidence = []
    for name, value in culprits.items():
        evidence.append(f"With {name} {value} it is bad, reversed it is right; all other settings are equal.")
    name, value = next(iter(culprits.items()))
    remedy = f"deny the setting {name}={value}, or remove {name} from the tactics that the builder may choose"
    return Answer("confirmed", tuple(evidence), kind="tactic", places=tuple(culprits), remedy=remedy, builds=tried)


def _symptom(subject: Subject) -> Literal["rounded", "built", "failing"]:
    """The symptom of the fault: rounding after each node, an engine's outputs, or a failing build or run."""
    if subject.answers.get("build") == "it fails":
        return "failing"
    return "rounded" if "divergence" in subject.answers else "built"


def ask_minimal(subject: Subject, parent: str) -> Answer:
    """How small the failing case gets."""
    symptom = _symptom(subject)
    checks = {"rounded": _rounded_check, "built": _built_check, "failing": _failing_check}
    config = ReduceConfig(output=str(subject.files / MINIMAL), max_checks=_MAX_CHECKS)
    check = checks[symptom](subject)
    reduction = reduce(str(subject.path), check, config, feeds=subject.feeds, **subject.below(parent))
    spent = 0 if symptom == "rounded" else reduction.checks
    if (culprit := reduction.culprit) is None:
        return Answer("parts do not show it", (reduction.detail,), builds=spent)
    evidence = (f"{len(culprit.nodes)} of {reduction.nodes} nodes still fail: {', '.join(culprit.labels)}.",)
    places = culprit.labels if symptom == "failing" else ()
    return Answer(counted(len(culprit.nodes), "node"), evidence, places=places, builds=spent)


def _rounded_check(subject: Subject) -> Check:
    """A check that fails for parts with wrong outputs when rounded after each node."""

    def check(part: SubModel) -> CheckVerdict:
        golden = RunResults([("golden", [IterationResult(dict(outputs)) for outputs in part.golden])])
        build = BuildConfig(precision=_low_precision(subject))
        right = RightModel(model=Model.from_proto(part.proto), build=build, feeds=part.feeds, golden=golden)
        floor = right.emulation(subject.tolerances)
        return "error" if floor is None else "pass" if floor.verdict == "good" else "fail"

    return check


def _built_check(subject: Subject) -> Check:
    """A check that fails for parts whose engines have wrong outputs."""
    return ComparisonCheck(runner=subject.pinned_side(), tolerances=subject.tolerances)


def _failing_check(subject: Subject) -> Check:
    """A check that fails for parts refused by the builder, or, if it builds the whole, for parts with a failing run."""
    side = EngineRunner(subject.config.build, Caches(calibration=subject.calibration), subject.feeds[0])

    def builds(part: SubModel) -> bool:
        with contextlib.suppress(errors.BackendError):
            side.build(part.proto)
            return True
        return False

    def runs(part: SubModel) -> bool:
        with contextlib.suppress(errors.BackendError), side(part.proto) as runner:
            collect(runner, part.feeds)
            return True
        return False

    try:
        side.build(subject.model.proto())
    except errors.BackendError:
        return builds  # engines that are built here need not run here
    return runs


def ask_bundle(subject: Subject, parent: str) -> Answer:
    """Whether the smallest case can be reproduced without trtops."""
    path = subject.files / MINIMAL
    if not path.is_file():
        return Answer("nothing to bundle", ("There is no smallest case.",))
    check = replace(subject.config.check, data=str(subject.files / INPUTS), golden=None, tolerances=subject.tolerances)
    symptom, build, conversion = _symptom(subject), subject.config.build, None
    try:
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("triage")) as folder:
            replay = None
            if symptom == "rounded":
                build = BuildConfig(precision=_low_precision(subject))
            elif symptom == "built":
                side = subject.pinned_side()
                build = side.config
                if side.caches.replay is not None:
                    replay = Path(folder, "replay.json")
                    replay.write_text(side.caches.replay.to_json(), encoding="utf-8")
            build = replace(build, profiles=())  # inputs of a part have other names
            with contextlib.suppress(errors.BackendError):  # a failed build is a case as well
                conversion = subject.convert(
                    parent, path=path, check=check, build=build, replay=None if replay is None else str(replay)
                )
        if conversion is not None and conversion.verdict != "bad":
            return Answer("no", (f"Built alone, the smallest case is {conversion.verdict}.",), builds=1)
        [run] = subject.tracker.find(parent=parent)
        bundled = bundle(run.id, BundleConfig(output=str(subject.files / BUNDLE)), tracker=subject.tracker)
    except errors.TrtopsError as exc:
        return Answer("no", tuple(first_lines([str(exc)])), builds=1)
    last_line = (bundled.printed.strip().splitlines() or ["It could not be tried here."])[-1]
    return Answer("yes", (f"{BUNDLE}, {bundled.size} bytes.", last_line), builds=1)
