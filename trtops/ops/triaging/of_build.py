"""Questions about the engine: is it bad every time, is it the precision or the builder, where, and what mends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Build, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnxrt.calibration import collect
from trtops.backend.worker import IsolatedBackend, may_crash, warm_worker
from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.metadata import TensorMetadata
from trtops.ops.campaign.config import DebugBuildConfig, Vary
from trtops.ops.campaign.debug_build import DebugBuildResult, debug_build
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.engines.sensitivity import SensitivityConfig, sensitivity
from trtops.ops.evaluation.emulation import emulate
from trtops.ops.search.accuracy import AccuracyConfig, AccuracyResult, TensorError, accuracy
from trtops.ops.search.accuracy_sides import Emulated
from trtops.ops.search.precision import PrecisionConfig
from trtops.ops.search.precision import precision as find_nodes_to_keep
from trtops.ops.triaging.answer import Answer
from trtops.ops.triaging.of_model import first_lines
from trtops.ops.triaging.subject import Subject
from trtops.spec import BuildConfig
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema

_LARGEST = 65504.0
_DIVIDING = frozenset({"Div", "Log", "Reciprocal", "Pow", "Sqrt"})
_ADDING = frozenset({"Sub", "Add", "Sum", "ReduceSum", "ReduceMean"})
_CANCELS = 0.25
"""What is left of the larger operand where it is called cancellation."""


@dataclass(frozen=True)
class Pinned:
    """A side under test: engines of any model, built with the settings that a record pins, where the back end has such.

    Attributes:
        config: How to build.
        caches: A record of settings, and the calibration cache.
    """

    config: BuildConfig
    caches: Caches

    def build(self, model: onnx.ModelProto) -> Build:
        """Build an engine."""
        opened = Model.from_proto(model)
        if not may_crash(self.config):
            return engine_backend(self.config.backend).build(opened, self.config, caches=self.caches)
        with warm_worker() as worker:
            return IsolatedBackend(self.config.backend, worker=worker).build(opened, self.config, caches=self.caches)

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """A runner, whose engine is built when it is activated."""
        backend = engine_backend(self.config.backend)
        return backend.runner(lambda: self.build(model).engine, self.config.backend)


def _converted(
    subject: Subject, parent: str, build: BuildConfig, *, rebuild: bool, plain: bool = False
) -> ConvertResult:
    config = subject.config
    asked = ConvertConfig(
        build=build,
        check=config.check,
        calibration_data=config.calibration_data,
        calibration_cache=config.calibration_cache if build.precision == "int8" else None,
        replay=None if plain else config.replay,
        rebuild=rebuild,
    )
    return convert(
        subject.path, asked, tracker=subject.tracker, experiment=subject.experiment, tags=subject.tags, parent=parent
    )


def _builds_of(result: ConvertResult) -> int:
    return 0 if result.reused_from else 1


def bad_build(subject: Subject, parent: str) -> Build:
    """The engine that the triage is about, as it was built first."""
    found = _converted(subject, parent, subject.config.build, rebuild=False)
    stored = builds.holder_of_engine(subject.tracker, subject.tracker.info(found.run_id))
    return builds.load_build(stored)


def _settings(record: TacticRecord) -> TacticRecord:
    """The settings of a record alone, which any model can be built with."""
    return replace(record, choices=())


def pinned_side(subject: Subject, parent: str) -> Pinned:
    """Builds as the bad engine was built, also of parts of the model."""
    record = bad_build(subject, parent).tactics
    replay = _settings(record) if record.settings else None
    config = replace(subject.config.build, options=replace(subject.config.build.options, tactic_seed=None))
    return Pinned(config, Caches(replay=replay, calibration=subject.caches.calibration))


def ask_build(subject: Subject, parent: str) -> Answer:
    """Whether the engine is bad at all."""
    try:
        found = _converted(subject, parent, subject.config.build, rebuild=False)
    except errors.BackendError as exc:
        remedy = f"mend what the builder refuses; `trtops inspect capability {subject.path.name}` says what it can run"
        return Answer("it fails", (" ".join(str(exc).split())[:500],), kind="build", remedy=remedy, builds=1)
    made = _builds_of(found)
    evidence = (f"A {found.called} engine: {found.verdict}.", *first_lines(found.reasons))
    if found.verdict == "good":
        return Answer("good", evidence, ruled_out=("a bad engine",), builds=made)
    if found.evaluation.report:
        said = (*evidence, "The engine's outputs are right, since it does not compute in what was asked for.")
        return Answer("bad when rounded", said, builds=made)
    return Answer("bad", evidence, builds=made)


def ask_again(subject: Subject, parent: str) -> Answer:
    """Whether the same engine gives the same twice, and whether new ones are bad too."""
    first = bad_build(subject, parent)
    backend = engine_backend(subject.config.build.backend)
    with backend.runner(first.engine) as runner:
        runs = [[{n: np.array(a) for n, a in runner.infer(feed).items()} for feed in subject.feeds] for _ in range(2)]
    alike = Tolerances(atol=1e-6, rtol=1e-5, atol_of_scale=1e-5, nans_equal=True, infinities_equal=True)
    report = compare_outputs(runs[1], runs[0], alike)
    if not report:
        evidence = (f"One engine gives other outputs each time: {'; '.join(report.reasons)[:300]}",)
        remedy = "leave out what adds up in an order that is not fixed (split-K, atomic reductions): deny the tactic"
        return Answer("one engine differs from run to run", evidence, kind="not repeatable", remedy=remedy)
    verdicts = []
    for _ in range(subject.config.rebuilds):
        found = _converted(subject, parent, subject.config.build, rebuild=True)
        verdicts.append("good" if found.evaluation.report else "bad")
    told = f"Built {len(verdicts)} times more: {verdicts.count('bad')} bad, {verdicts.count('good')} good."
    if "good" in verdicts:
        return Answer("not every time", (told,), kind="intermittent", builds=len(verdicts))
    return Answer("every time", (told,), ruled_out=("a coin in the builder",), builds=len(verdicts))


def ask_campaign(subject: Subject, parent: str) -> Answer:
    """Which choice of the builder is guilty, by builds that differ and mixtures of them."""
    found = _campaign(subject, random=False)
    return _guilty_answer(found, "intermittent")


def _campaign(subject: Subject, *, random: bool) -> DebugBuildResult:
    config = subject.config
    build = replace(config.build, options=replace(config.build.options, tactic_seed=None))
    asked = DebugBuildConfig(
        build=build,
        check=config.check,
        calibration_data=config.calibration_data,
        calibration_cache=config.calibration_cache,
        vary=Vary(random_tactics=random),
        until="decided",
        max_iterations=config.campaign_builds,
        max_minutes=config.minutes,
    )
    return debug_build(subject.path, asked, tracker=subject.tracker, experiment=subject.experiment, tags=subject.tags)


def _guilty_answer(found: DebugBuildResult, otherwise: Any) -> Answer:
    counted = f"{found.good} builds good, {found.bad} bad, {found.errors} crashed; {found.mixtures} mixtures. Campaign `{found.run_id}`."
    made = found.iterations + found.mixtures
    if not found.guilty:
        return Answer("none is convicted", (counted, found.found.conclusion), kind=otherwise, builds=made)
    remedy = f"deny it: `trtops debug prove {found.run_id}` and `trtops runs deny`, and build again"
    return Answer("convicted", (counted, *found.guilty), kind="tactic", places=found.guilty, remedy=remedy, builds=made)


def ask_precision(subject: Subject, parent: str) -> Answer:
    """Whether the precision alone makes it bad, or the builder."""
    config = subject.config.build
    if config.precision == "fp32":
        return Answer(
            "the builder", ("FP32 was asked for, and the model itself is right in it.",), ruled_out=("rounding",)
        )
    if config.precision in ("fp16", "bf16"):
        golden = RunResults([("golden", [IterationResult(dict(o)) for o in subject.outputs])])
        floor = emulate(subject.model, config.precision, subject.feeds, golden, subject.tolerances)
        if floor.verdict == "bad":
            evidence = (
                f"Rounded after each node, without any builder: {floor.sentence()}",
                *first_lines(floor.reasons),
            )
            return Answer("the precision", evidence, ruled_out=("the builder",))
        evidence = (f"Rounded after each node, without any builder: {floor.sentence()}",)
        return Answer("the builder", evidence, ruled_out=("rounding",))
    plain = _converted(subject, parent, replace(config, precision="fp32"), rebuild=False, plain=True)
    evidence = (f"The same build in FP32 is {plain.verdict}.", *first_lines(plain.reasons))
    if plain.verdict == "good":
        return Answer("quantization", evidence, ruled_out=("the builder",), builds=_builds_of(plain))
    return Answer("the builder", evidence, ruled_out=("quantization",), builds=_builds_of(plain))


def ask_divergence(subject: Subject, parent: str) -> Answer:
    """Where rounding goes wrong, and how."""
    side = Emulated("bf16" if subject.config.build.precision == "bf16" else "fp16")
    looked = AccuracyConfig(tolerances=subject.config.check.tolerances)
    found = accuracy(
        str(subject.path), side, looked, feeds=subject.feeds, tracker=subject.tracker, experiment=subject.experiment,
        tags=subject.tags, parent=parent,
    )  # fmt: skip
    flushed = lower_precision(subject.model.proto(), side.to).flushed
    return _rounding_answer(found, flushed)


def _rounding_answer(found: AccuracyResult, flushed: Mapping[str, int]) -> Answer:
    known = {tensor.name: tensor for tensor in found.tensors}
    too_large = next((t for t in found.tensors if t.magnitude > _LARGEST), None)
    if too_large is not None and (found.first_nonfinite is not None or found.verdict == "bad"):
        maker = f"{too_large.op} {too_large.node!r}"
        said = f"{too_large.name!r}, made by {maker}, reaches {too_large.magnitude:,.0f}; FP16 ends at 65,504."
        return Answer("a value overflows", (said,), kind="overflow", places=(too_large.node, too_large.name))
    if found.first_nonfinite is not None:
        return _answer_of_nan(known[found.first_nonfinite], tuple(flushed))
    origin = known.get(found.origin or found.first or "")
    if origin is None:
        return Answer("nowhere to be seen", (found.text().splitlines()[0],), kind="rounding")
    said = f"Most of the error comes in at {origin.name!r}, made by {origin.op} {origin.node!r}: relative error {origin.error:.3g}"
    if origin.growth is not None:
        said += f", {origin.growth:.3g} times that of what it reads"
    larger = max((known[n].magnitude for n in found.chain if n in known and n != origin.name), default=0.0)
    places = (origin.node, origin.name)
    if origin.op in _ADDING and (origin.growth or 0) > 1 / _CANCELS and _is_left_over(origin, larger, found):
        return Answer("what is left of a difference", (f"{said}.",), kind="cancellation", places=places)
    return Answer("rounding adds up", (f"{said}.",), kind="rounding", places=places)


def _answer_of_nan(place: TensorError, lost: tuple[str, ...]) -> Answer:
    """What a NaN or an infinity that no overflow explains comes from."""
    said = (
        f"{place.name!r}, made by {place.op} {place.node!r}, is NaN or infinite, and nothing before it is beyond FP16."
    )
    zeros = f"Weights that are 0 in FP16 and not in FP32: {', '.join(map(repr, lost))}."
    evidence = (said, zeros) if lost else (said,)
    places = (place.node, place.name, *lost)
    if place.op in _DIVIDING:
        return Answer("NaN comes in", evidence, kind="underflow", places=places)
    return Answer("NaN comes in", evidence, kind="nan", places=places)


def _is_left_over(origin: TensorError, larger: float, found: AccuracyResult) -> bool:
    """Whether a sum is much smaller than what it is made of; of inputs and weights not all are known."""
    before = [t.magnitude for t in found.tensors[: found.tensors.index(origin)]]
    return origin.magnitude < _CANCELS * max([larger, *before[-3:]], default=0.0)


def ask_keep(subject: Subject, parent: str) -> Answer:
    """Which nodes have to stay in FP32."""
    config = subject.config
    to: LowPrecision = "bf16" if config.build.precision == "bf16" else "fp16"
    asked = PrecisionConfig(
        to=to, tolerances=config.check.tolerances, max_checks=max(config.keep_checks, 2), latency_runs=0
    )
    found = find_nodes_to_keep(
        str(subject.path), asked, feeds=subject.feeds, tracker=subject.tracker, experiment=subject.experiment,
        tags=subject.tags, parent=parent,
    )  # fmt: skip
    evidence = (f"{found.checks} sets of the {found.nodes} nodes that can be lowered were tried.",)
    if found.outcome == "bad":
        return Answer("keeping nodes does not help", evidence)
    if found.outcome == "good":
        return Answer("none", (*evidence, "The outputs are within tolerance: only values inside overflow."))
    named = ", ".join(found.keep[:8]) + (f" and {len(found.keep) - 8} more" if len(found.keep) > 8 else "")
    return Answer(
        f"{len(found.keep)} nodes", (*evidence, f"Right with these in FP32: {named}."),
        remedy=f"keep in FP32: {named} (`trtops debug precision`)",
    )  # fmt: skip


def ask_ranges(subject: Subject, parent: str) -> Answer:
    """Whether a calibrated range cuts off what really flows there; if so, whether the range that was seen mends it."""
    cache_bytes = subject.caches.calibration
    if cache_bytes is None:
        return Answer("calibrated here", ("The ranges come from this data itself.",), ruled_out=("a range cut short",))
    cache = CalibrationCache.from_bytes(cache_bytes)
    proto = subject.model.proto()
    inputs = TensorMetadata.of(subject.model.info.inputs)
    seen = {r.name: r for r in collect(proto, subject.feeds, inputs=inputs, min_samples=1, counted=False).cache.ranges}
    ratios = {r.name: seen[r.name].amax / r.amax for r in cache.ranges if r.name in seen and r.amax > 0}
    worst = sorted((name for name in ratios if ratios[name] > 1), key=lambda name: -ratios[name])[:3]
    if not worst:
        return Answer(
            "all fit", (f"{len(ratios)} ranges hold all that this data gives.",), ruled_out=("a range cut short",)
        )
    for count in range(1, len(worst) + 1):
        mended = _with_ranges(cache, [seen[name] for name in worst[:count]])
        report = _evaluated_int8(subject, mended.to_bytes())
        if report:
            name = worst[0]
            evidence = (
                f"{name!r} reaches {seen[name].amax:.4g}, {ratios[name]:.3g} times what its range holds.",
                f"With the range that was seen for {', '.join(map(repr, worst[:count]))} the engine is good.",
            )
            remedy = f"calibrate again on data like this; the range of {name!r} has to reach {seen[name].amax:.4g}"
            return Answer(
                "one is cut short", evidence, kind="range", places=tuple(worst[:count]), remedy=remedy, builds=count
            )
    said = f"{worst[0]!r} reaches {ratios[worst[0]]:.3g} times what its range holds, and mending that does not help."
    return Answer("others are to blame", (said,), builds=len(worst))


def _with_ranges(cache: CalibrationCache, ranges: Sequence[TensorRange]) -> CalibrationCache:
    others = {r.name: r for r in ranges}
    return replace(cache, ranges=tuple(others.get(r.name, r) for r in cache.ranges))


def _evaluated_int8(subject: Subject, cache: bytes) -> bool:
    """Whether the engine is right with another calibration cache."""
    side = Pinned(subject.config.build, Caches(calibration=cache))
    with side(subject.model.proto()) as runner:
        outputs = [{n: np.array(a) for n, a in runner.infer(feed).items()} for feed in subject.feeds]
    return bool(compare_outputs(outputs, subject.outputs, subject.tolerances))


def ask_layers(subject: Subject, parent: str) -> Answer:
    """Which layers INT8 costs most."""
    cache = bad_build(subject, parent).calibration_cache
    if cache is None:
        return Answer("not known", ("The build left no calibration cache.",), kind="quantization")
    file = subject.files / "int8.json"
    file.write_bytes(cache)
    asked = SensitivityConfig(data=subject.config.check.data, budget=_budget(subject))
    found = sensitivity(
        subject.path,
        str(file),
        asked,
        tracker=subject.tracker,
        experiment=subject.experiment,
        tags=subject.tags,
        parent=parent,
    )
    worst = [layer.layer for layer in found.layers if layer.kept] or [layer.layer for layer in found.layers[:3]]
    evidence = (
        f"Relative error with every layer in INT8 {found.error:.3g}; {found.error_kept:.3g} with {len(found.keep)} kept.",
    )
    remedy = f"keep in higher precision: {', '.join(found.keep)}" if found.keep else ""
    return Answer(f"{len(found.keep)} layers", evidence, kind="quantization", places=tuple(worst), remedy=remedy)


def _budget(subject: Subject) -> float:
    limit = subject.tolerances.max_nrmse
    return float(limit) if limit is not None else 0.2


def ask_tactic(subject: Subject, parent: str) -> Answer:
    """Which choice of the builder makes the engine bad: out of it, the engine is right; alone in the usual one, wrong."""
    bad = bad_build(subject, parent)
    if not bad.tactics.settings:
        return _guilty_answer(_campaign(subject, random=True), "builder")
    side = pinned_side(subject, parent)
    made = 0

    def is_right(settings: tuple[tuple[str, str], ...]) -> bool:
        nonlocal made
        made += 1
        record = replace(bad.tactics, settings=settings, choices=())
        return _is_right(subject, replace(side, caches=replace(side.caches, replay=record)))

    guilty = []
    for name, value in bad.tactics.settings:
        other = "off" if value == "on" else "on"
        if is_right(tuple((n, other if n == name else v) for n, v in bad.tactics.settings)):
            guilty.append((name, value))
    if not guilty:
        told = f"The engine stays bad whichever of its {len(bad.tactics.settings)} settings is the other way round."
        return Answer("none is convicted", (told,), kind="builder", builds=made)
    name, value = guilty[0]
    evidence = [
        f"With {n} {v} it is bad, the other way round it is right; all other settings are the same." for n, v in guilty
    ]
    remedy = f"deny the setting {name}={value}, or leave {name} out of the tactics that the builder may choose"
    return Answer(
        "convicted", tuple(evidence), kind="tactic", places=tuple(n for n, _ in guilty), remedy=remedy, builds=made
    )


def _is_right(subject: Subject, side: Pinned) -> bool:
    try:
        with side(subject.model.proto()) as runner:
            outputs = [{n: np.array(a) for n, a in runner.infer(feed).items()} for feed in subject.feeds]
    except errors.BackendError:
        return False
    return bool(compare_outputs(outputs, subject.outputs, subject.tolerances))


def fails_emulated(subject: Subject) -> Any:
    """A check of sub-models: whether they are wrong in 16 bit as a GPU rounds it, or overflow."""
    to: Any = "bf16" if subject.config.build.precision == "bf16" else "fp16"

    def check(part: Any) -> bool:
        golden = RunResults([("golden", [IterationResult(dict(each)) for each in part.golden])])
        tolerances = replace(subject.tolerances, per_output={})
        return emulate(Model.from_proto(part.proto), to, part.feeds, golden, tolerances).verdict == "good"

    return check


def fails_to_build(subject: Subject) -> Any:
    """A check of sub-models: whether the builder refuses them; where it takes the whole, whether they do not run."""
    side = Pinned(subject.config.build, Caches(calibration=subject.caches.calibration))
    try:
        side.build(subject.model.proto())
    except errors.BackendError:
        refused = True  # what it builds need not run here
    else:
        refused = False

    def check(part: Any) -> bool:
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


def log_files(run: Any, folder: Path) -> None:
    """Keep what a step left."""
    for file in sorted(folder.iterdir()):
        run.log_file(file, f"{schema.Artifact.TRIAGE_FILES}{file.name}")
