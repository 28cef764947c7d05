"""Compare the numbers of a gate with a policy. No function measures: any past run can be evaluated again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trtops.comparator.report import ComparisonReport, OutputTolerances, Tolerances
from trtops.ops.evaluation.check import Accuracy
from trtops.ops.gate.engine_process import Rounds
from trtops.ops.gate.noise_widths import OutputWidth
from trtops.ops.gate.policy import AccuracyLimit, GrowthLimit, LatencyLimit, LayerLimit, Limits, Policy
from trtops.ops.gate.ratio import estimate
from trtops.record import Record
from trtops.spec import Environment, Layer, Precision
from trtops.tables import size
from trtops.verdict import Verdict

Subject: TypeAlias = Literal[
    "release", "device", "build", "accepted", "reference", "accepted outputs", "accuracy", "latency", "size", "memory",
    "build time", "precision", "tactics", "model", "gate",
]  # fmt: skip
FindingOutcome: TypeAlias = Literal["pass", "refuse", "error", "open", "note"]
Decision: TypeAlias = Literal["accept", "refuse", "measure more", "error"]

_PRECISIONS = {
    "float": "fp32", "float32": "fp32", "fp32": "fp32", "float16": "fp16", "half": "fp16", "fp16": "fp16",
    "bfloat16": "bf16", "bf16": "bf16", "int8": "int8", "uint8": "int8", "float8": "fp8", "fp8": "fp8",
}  # fmt: skip
"""How back ends name the precisions of layers. Others, such as int64, do not describe the accuracy of a layer."""


@dataclass(frozen=True, kw_only=True)
class EngineFacts(Record):
    """Facts about one engine.

    Attributes:
        run_id: The run that holds it.
        precision: Requested precision.
        memory_bytes: Host memory to load and run it; None if not measured.
        device_bytes: Device memory to load and run it; None for engines on the CPU.
    """

    run_id: str
    environment: Environment
    model_sha256: str
    precision: Precision
    engine_bytes: int
    build_seconds: float
    layers: tuple[Layer, ...] = ()
    memory_bytes: int | None = None
    device_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measured(Record):
    """All that was measured of one candidate. What needs an accepted engine is None or empty without one.

    Attributes:
        reference: The candidate's outputs compared with the reference.
        default_tolerances: Tolerances against the reference if the policy has none.
        agreement: The candidate's outputs compared with the accepted ones.
        widths: Noise and distance of each output.
        candidate_top1: Accuracy on labelled data, if there are labels.
    """

    candidate: EngineFacts
    accepted: EngineFacts | None = None
    reference: ComparisonReport
    default_tolerances: Tolerances
    agreement: ComparisonReport | None = None
    widths: tuple[OutputWidth, ...] = ()
    candidate_top1: Accuracy | None = None
    accepted_top1: Accuracy | None = None
    rounds: Rounds | None = None


@dataclass(frozen=True)
class Finding(Record):
    """The result of one check.

    Attributes:
        outcome: ``refuse``, ``error`` and ``open`` decide, in this order; ``note`` is information.
        text: The number and its limit.
    """

    subject: Subject
    outcome: FindingOutcome
    text: str
    output: str = ""

    @property
    def line(self) -> str:
        """Subject and text in one line."""
        return f"{self.subject}{f' of `{self.output}`' if self.output else ''}: {self.text}"


VERDICTS: dict[Decision, Verdict] = {"accept": "good", "refuse": "bad", "measure more": "error", "error": "error"}


def decide(findings: Iterable[Finding]) -> Decision:
    """Refuse if any check refuses; otherwise measure more if any is open."""
    outcomes = {finding.outcome for finding in findings}
    if "refuse" in outcomes:
        return "refuse"
    return "error" if "error" in outcomes else "measure more" if "open" in outcomes else "accept"


def evaluate_measured(measured: Measured, policy: Policy) -> tuple[Finding, ...]:
    """Compare measured numbers with a policy."""
    limits = policy.of(measured.candidate.precision)
    candidate, accepted = measured.candidate, measured.accepted
    found: list[Finding] = []
    if limits.accuracy is not None:
        given = limits.accuracy.tolerances or measured.default_tolerances
        report = measured.reference.evaluate(with_class_axes(given, measured.default_tolerances))
        within = Finding("reference", "pass", f"{len(report.outputs)} outputs are within the tolerances")
        found += _bad_outputs(report, "reference", "refuse") or [within]
    if accepted is None:
        outcome: FindingOutcome = "note" if policy.first == "accept" else "refuse"
        return (*found, Finding("accepted", outcome, "there is no accepted engine to compare with"))
    if candidate.model_sha256 != accepted.model_sha256:
        text = f"another model ({candidate.model_sha256[:12]}) than the accepted one ({accepted.model_sha256[:12]})"
        found.append(Finding("model", "note", text))
    if limits.accuracy is not None:
        found += _output_findings(measured, limits.accuracy)
    if limits.latency is not None and measured.rounds is not None:
        found.append(_latency_finding(measured.rounds, limits.latency))
    found += _cost_findings(candidate, accepted, limits)
    if limits.layers is not None:
        found += _layer_findings(candidate.layers, accepted.layers, limits.layers)
    return tuple(found)


def with_class_axes(tolerances: Tolerances, known: Tolerances) -> Tolerances:
    """Tolerances with the class axes that ``known`` has for outputs with scores."""
    merged = dict(tolerances.per_output)
    for name, own in known.per_output.items():
        given = merged.get(name, OutputTolerances())
        if own.class_axis is not None:
            merged[name] = given if given.class_axis is not None else replace(given, class_axis=own.class_axis)
    return replace(tolerances, per_output=merged)


def _bad_outputs(report: ComparisonReport, subject: Subject, outcome: FindingOutcome) -> list[Finding]:
    return [
        Finding(subject, outcome, "; ".join(output.reasons), output.name)
        for output in report.outputs
        if output.verdict == "bad"
    ]


def _output_findings(measured: Measured, limit: AccuracyLimit) -> Iterator[Finding]:
    """Checks of the outputs against those of the accepted engine, and of the accuracy on labels."""
    assert measured.agreement is not None and measured.accepted is not None
    other_model = measured.candidate.model_sha256 != measured.accepted.model_sha256
    outcome: FindingOutcome = limit.other_model if other_model else "refuse"
    found: list[Finding] = []
    for output in measured.widths:
        allowed = limit.widths_per_output.get(output.name, limit.widths)
        if allowed is not None and output.distance_widths > allowed:
            text = (
                f"{output.distance_widths:.3g} noise widths from the accepted output ({output.distance:.3g}; a width "
                f"is {output.width:.3g}); the limit is {allowed:g}"
            )
            found.append(Finding("accepted outputs", outcome, text, output.name))
        if allowed is not None and output.growth_widths > allowed:
            text = (
                f"{output.growth_widths:.3g} noise widths further from the reference than the accepted engine "
                f"({output.candidate_error:.3g} against {output.accepted_error:.3g}); the limit is {allowed:g}"
            )
            found.append(Finding("reference", "refuse", text, output.name))
    with_width = {output.name for output in measured.widths}
    found += [
        Finding("accepted outputs", outcome, "; ".join(output.reasons), output.name)
        for output in measured.agreement.outputs
        if output.name not in with_width and output.statistics is None and output.verdict == "bad"
    ]
    if limit.accepted is not None:
        agreement = measured.agreement.evaluate(with_class_axes(limit.accepted, measured.default_tolerances))
        found += _bad_outputs(agreement, "accepted outputs", outcome)
    yield from found
    if not found:
        text = "all agree with the accepted engine"
        if measured.widths:
            furthest = max(measured.widths, key=lambda output: output.distance_widths)
            text += f"; the largest distance is {furthest.distance_widths:.2g} noise widths ({furthest.name!r})"
        yield Finding("accepted outputs", "pass", text)
    mine, theirs = measured.candidate_top1, measured.accepted_top1
    if mine is not None and theirs is not None and limit.top1_drop is not None:
        text = (
            f"{mine.actual:.2%} of {mine.samples} samples are correct, {theirs.actual:.2%} before; a drop of "
            f"{limit.top1_drop:.2%} is allowed"
        )
        yield Finding("accuracy", "refuse" if theirs.actual - mine.actual > limit.top1_drop else "pass", text)


def _latency_finding(rounds: Rounds, limit: LatencyLimit) -> Finding:
    found = estimate(rounds.starts, limit.ratio, limit.confidence)
    text = (
        f"{'on the device, ' if rounds.on_device else ''}{found.ratio:.3f} times the accepted engine's "
        f"({rounds.candidate_ms:.3g} ms against {rounds.accepted_ms:.3g} ms), between {found.low:.3f} and "
        f"{found.high:.3f} after {found.rounds} rounds; {limit.ratio:g} is allowed"
    )
    if found.decision == "open" and found.more_rounds is None:
        text += ". This is too close to the limit to be decided by more rounds: choose another limit"
    elif found.decision == "open":
        minutes = rounds.seconds / max(found.rounds, 1) * (found.more_rounds or 0) / 60
        text += f". More measurement is needed: about {found.more_rounds} more rounds ({minutes:.1f} min)"
    outcomes: dict[str, FindingOutcome] = {"below": "pass", "above": "refuse", "open": "open"}
    return Finding("latency", outcomes[found.decision], text)


def _cost_findings(candidate: EngineFacts, accepted: EngineFacts, limits: Limits) -> Iterator[Finding]:
    costs: tuple[tuple[Subject, str, GrowthLimit | None, float | None, float | None], ...] = (
        ("size", "", limits.size, candidate.engine_bytes, accepted.engine_bytes),
        ("memory", " on the host", limits.memory, candidate.memory_bytes, accepted.memory_bytes),
        ("memory", " on the device", limits.memory, candidate.device_bytes, accepted.device_bytes),
        ("build time", "", limits.build_time, candidate.build_seconds, accepted.build_seconds),
    )
    for subject, where, limit, mine, theirs in costs:
        if limit is not None and mine is not None and theirs is not None:
            values = (mine, theirs, limit.slack)
            new, old, slack = (f"{v:.2f} s" if subject == "build time" else size(int(v)) for v in values)
            text = f"{new}{where}, {old} before; {limit.ratio:g} times that plus {slack} is allowed"
            yield Finding(subject, "refuse" if limit.exceeded(mine, theirs) else "pass", text)


def _layer_findings(candidate: Sequence[Layer], accepted: Sequence[Layer], limit: LayerLimit) -> Iterator[Finding]:
    """Checks of precisions and tactics, of layers with the same name."""
    before, after = _precision_shares(accepted), _precision_shares(candidate)
    name = max(sorted({*before, *after}) or ["fp32"], key=lambda n: abs(after.get(n, 0.0) - before.get(n, 0.0)))
    old = {layer.name: layer for layer in accepted}
    shared = [(old[layer.name], layer) for layer in candidate if layer.name in old]
    changed = [f"{b.name} {b.precision} -> {a.precision}" for b, a in shared if _precision_of(b) != _precision_of(a)]
    over = abs(after.get(name, 0.0) - before.get(name, 0.0)) > limit.precision_share + 1e-9
    which = f" ({', '.join(changed[:5])})" if changed else ""
    text = (
        f"{after.get(name, 0.0):.0%} of the layers compute in {name}, {before.get(name, 0.0):.0%} before; a change of "
        f"{limit.precision_share:.0%} is allowed{which}"
    )
    yield Finding("precision", limit.precision if over else "pass", text)
    tactics = [f"{b.name}: {b.tactic} -> {a.tactic}" for b, a in shared if b.tactic != a.tactic]
    which = f" ({', '.join(tactics[:5])})" if tactics else ""
    if tactics or len(candidate) != len(accepted):
        text = f"{len(tactics)} of {len(shared)} common layers have another tactic; {len(candidate)} layers, "
        yield Finding("tactics", limit.tactics, f"{text}{len(accepted)} before{which}")


def _precision_of(layer: Layer) -> str | None:
    text = layer.precision.lower()
    return _PRECISIONS.get(text) or next((name for known, name in _PRECISIONS.items() if known in text), None)


def _precision_shares(layers: Sequence[Layer]) -> dict[str, float]:
    counts = Counter(name for layer in layers if (name := _precision_of(layer)) is not None)
    return {name: count / sum(counts.values()) for name, count in counts.items()}
