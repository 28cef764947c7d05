"""What a policy finds in the measurements of a candidate.

Measuring is left to other modules, so that any past run can be evaluated again with another policy.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trtops.backend.ratio import MIN_STARTS, Metric, starts_needed
from trtops.comparator.report import ComparisonReport
from trtops.comparator.tasks.scores import TaskScore, parse_loss
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.gate.engine_process import Rounds
from trtops.ops.gate.noise_widths import OutputWidth
from trtops.ops.gate.policy import AccuracyLimit, LatencyLimit, Policy
from trtops.record import Record
from trtops.spec import Environment, Precision
from trtops.tables import counted, size

FindingOutcome: TypeAlias = Literal["pass", "refuse", "error", "open", "note"]
Decision: TypeAlias = Literal["accept", "refuse", "undecided", "error"]

EVIDENCE = "evidence"
"""The subject of the finding on data that cannot support a verdict."""

_ACCEPTED = "the accepted engine"
_OF_LOSS: dict[str, FindingOutcome] = {"within": "pass", "open": "open", "beyond": "refuse"}

CLAIMS: dict[Metric, str] = {"wall": "Latency", "cpu-time": "CPU time", "instructions": "Instructions"}


@dataclass(frozen=True, kw_only=True)
class EngineFacts(Record):
    """Facts about one engine, and its run."""

    run_id: str
    environment: Environment
    model_sha256: str
    precision: Precision  # as requested
    engine_bytes: int
    # Equal for equally fast engines: of engine and options; in ONNX Runtime of model, tactics, size and options.
    speed_digest: str
    interface: tuple[tuple[str, str], ...]  # inputs and outputs in order, each with dtype and shape
    build_seconds: float
    kernels: tuple[tuple[str, int], ...]  # by the precision that they compute in

    def kernel_share(self, precision: str) -> float:
        """The share of the kernels that compute in a precision."""
        counts = dict(self.kernels)
        return counts.get(precision, 0) / max(1, sum(counts.values()))


@dataclass(frozen=True, kw_only=True)
class Measured(Record):
    """All measurements of one candidate; without an accepted engine, its parts are None or empty."""

    candidate: EngineFacts
    accepted: EngineFacts | None = None
    evaluation: Evaluation  # of the candidate against the golden outputs
    agreement: ComparisonReport | None = None  # of the candidate's outputs with the accepted ones
    widths: tuple[OutputWidth, ...] = ()
    tasks: tuple[TaskScore, ...] = ()  # task metrics, compared with those of the accepted engine
    rounds: Rounds | None = None
    differences: tuple[str, ...] = ()  # between the builder's choices for both, in phrases

    @property
    def same_engine(self) -> bool:
        """Whether candidate and accepted engine are equally fast, since they have the same digest."""
        return self.accepted is not None and self.accepted.speed_digest == self.candidate.speed_digest


@dataclass(frozen=True)
class Finding(Record):
    """The result of one check, with the number and its limit as a text."""

    subject: str  # what was checked, such as "latency"
    outcome: FindingOutcome
    text: str
    output: str = ""

    @property
    def line(self) -> str:
        """Subject and text."""
        return f"{self.subject}{f' of `{self.output}`' if self.output else ''}: {self.text}"


def decide(findings: Iterable[Finding]) -> Decision:
    """The decision from all checks."""
    # A refusal needs no further measurement, so it comes before open questions.
    outcomes = {finding.outcome for finding in findings}
    if "refuse" in outcomes:
        return "refuse"
    return "error" if "error" in outcomes else "undecided" if "open" in outcomes else "accept"


def evaluate_measured(measured: Measured, policy: Policy, *, accept_unproven: bool = False) -> tuple[Finding, ...]:
    """Compare measured numbers with a policy. Data without proof leaves it open, unless accepted."""
    limits = policy.of(measured.candidate.precision)
    candidate, accepted = measured.candidate, measured.accepted
    findings: list[Finding] = []
    evaluation = measured.evaluation
    missing = "" if evaluation.evidence is None else evaluation.evidence.missing
    if missing and accept_unproven:
        findings.append(Finding(EVIDENCE, "note", f"{missing}; accepted by --accept-unproven"))
    elif missing:
        findings.append(Finding(EVIDENCE, "open", f"{missing}, or --accept-unproven"))
    if limits.accuracy is not None:
        findings += _reference_findings(evaluation)
    if (checked := evaluation.self_check) is not None:
        findings += [Finding("self-check", "refuse", reason.removeprefix("self-check: ")) for reason in checked.reasons]
        if not checked.reasons:
            findings.append(Finding("self-check", "pass", checked.sentence()))
    if evaluation.power is not None:
        findings.append(Finding("power", "note", evaluation.power.sentence(evaluation.blind)))
    elif evaluation.evidence is not None and evaluation.blind:
        findings.append(Finding("data", "note", evaluation.evidence.coverage()))
    denied = () if evaluation.evidence is None else evaluation.evidence.denied
    if denied:
        findings.append(Finding("deny-list", "note", f"{counted(len(denied), 'choice')} left out: {'; '.join(denied)}"))
    if accepted is None:
        text = "there is no accepted engine to compare with (--require-accepted refuses then)"
        return (*findings, Finding("accepted", "note", text))
    if measured.differences:
        findings.append(Finding("settings", "note", "; ".join(measured.differences)))
    if candidate.model_sha256 != accepted.model_sha256:
        text = f"another model ({candidate.model_sha256[:12]}) than the accepted one ({accepted.model_sha256[:12]})"
        findings.append(Finding("model", "note", text))
    if limits.accuracy is not None:
        findings += _output_findings(measured, limits.accuracy)
    if limits.interface:
        findings.append(_interface_finding(dict(candidate.interface), dict(accepted.interface)))
    if limits.latency is not None and measured.same_engine:
        text = "nothing to measure, since the candidate is the accepted engine, with the same kernels and options"
        findings.append(Finding("latency", "pass", text))
    elif limits.latency is not None:
        latency = latency_finding(measured.rounds, limits.latency)
        if latency.outcome != "pass" and (causes := (*measured.differences, *denied)):
            latency = replace(latency, text=f"{latency.text}. Possible causes: {'; '.join(causes)}")
        findings.append(latency)
    if limits.size is not None:
        mine, theirs, limit = candidate.engine_bytes, accepted.engine_bytes, limits.size
        over = mine > limit.ratio * theirs and mine - theirs > limit.slack
        allowed = f"{limit.ratio:g} times that plus {size(limit.slack)} is allowed"
        findings.append(
            Finding("size", "refuse" if over else "pass", f"{size(mine)}, {size(theirs)} before; {allowed}")
        )
    if limits.precision_share is not None:
        findings.append(_precision_finding(candidate, accepted, limits.precision_share))
    return tuple(findings)


def _reference_findings(evaluation: Evaluation) -> Sequence[Finding]:
    """Checks of the outputs against the golden ones."""
    findings = []
    for output in evaluation.report.outputs:
        if output.verdict == "bad":
            findings.append(Finding("reference", "refuse", "; ".join(output.reasons), output.name))
    if evaluation.evidence is not None and not findings:  # at some shapes only
        for shape in evaluation.evidence.shapes:
            if shape.verdict == "bad":
                findings.append(Finding("reference", "refuse", f"{'; '.join(shape.reasons)}, at {shape.text()}"))
    allowed = evaluation.allowed_loss
    for score in evaluation.tasks:
        if allowed is not None and (reason := score.reason(allowed)):
            findings.append(Finding("reference", _OF_LOSS[score.decision(allowed)], reason, score.metric))
    count = len(evaluation.report.outputs)
    return findings or [Finding("reference", "pass", f"{counted(count, 'output')} within the tolerances")]


def _output_findings(measured: Measured, limit: AccuracyLimit) -> Iterator[Finding]:
    """Checks of the outputs against those of the accepted engine, and of the accuracy on labels."""
    assert measured.agreement is not None
    refused = 0
    for output in measured.widths:
        allowed = limit.widths_per_output.get(output.name, limit.widths)
        if allowed is not None and output.distance_widths > allowed:
            refused += 1
            text = (
                f"{output.distance_widths:.3g} noise widths from the accepted output ({output.distance:.3g}; a width "
                f"is {output.width:.3g}); the limit is {allowed:g}"
            )
            yield Finding("accepted outputs", "refuse", text, output.name)
    with_width = {output.name for output in measured.widths}
    for bad in measured.agreement.outputs:  # of another shape, or missing
        if bad.name not in with_width and bad.statistics is None and bad.verdict == "bad":
            refused += 1
            yield Finding("accepted outputs", "refuse", "; ".join(bad.reasons), bad.name)
    if not refused:
        furthest = max((output.distance_widths for output in measured.widths), default=0.0)
        yield Finding("accepted outputs", "pass", f"the largest distance is {furthest:.2g} noise widths")
    if limit.loss is None:
        return
    for score in measured.tasks:
        outcome = _OF_LOSS[score.decision(parse_loss(limit.loss))]
        yield Finding("accuracy", outcome, f"{score.sentence(_ACCEPTED)}; {limit.loss} is allowed", score.metric)


def _interface_finding(candidate: dict[str, str], accepted: dict[str, str]) -> Finding:
    """Whether inputs and outputs have the same names, order, dtypes and shapes."""
    changes = []
    for name in dict.fromkeys((*candidate, *accepted)):
        if name not in accepted:
            changes.append(f"{name} is new")
        elif name not in candidate:
            changes.append(f"{name} is missing")
        elif candidate[name] != accepted[name]:
            changes.append(f"{name} is {candidate[name]}, {accepted[name]} before")
    if not changes and [*candidate] != [*accepted]:
        changes.append(f"the order is {', '.join(candidate)}; before it was {', '.join(accepted)}")
    text = "; ".join(changes) or "inputs and outputs have the same names, order, dtypes and shapes"
    return Finding("interface", "refuse" if changes else "pass", text)


def latency_finding(rounds: Rounds | None, limit: LatencyLimit) -> Finding:
    """The deciding ratio, with the interval and the limit; without a decision, the missing effort."""
    ratio = None if rounds is None else rounds.ratio(limit)
    if rounds is None or ratio is None:
        return Finding("latency", "open", "not measured before the budget ended; raise --minutes")
    starts = len(rounds.starts[ratio.metric])
    text = (
        f"{CLAIMS[ratio.metric]} is {ratio.ratio:.3f} times the accepted engine's, between {ratio.low:.3f} and "
        f"{min(ratio.high, 999):.3f} after {ratio.rounds} rounds in {starts} starts; {limit.ratio:g} is allowed "
        f"(latency {rounds.candidate_ms:.3g} ms against {rounds.accepted_ms:.3g} ms)"
    )
    if ratio.decision != "open":
        return Finding("latency", "pass" if ratio.decision == "below" else "refuse", text)
    change = max(abs(limit.ratio - 1), 0.005)
    needed = starts_needed(ratio.noise, 1 + change, limit.confidence) if math.isfinite(ratio.noise) else MIN_STARTS
    if needed > starts:
        text += (
            f". This machine's noise is {ratio.noise:.1%}: a change of {change:.1%} needs about "
            f"{math.ceil(needed * ratio.rounds / starts)} rounds ({needed * rounds.seconds / starts / 60:.1f} minutes)"
        )
    else:
        text += f". This ratio is too close to the limit for this machine's noise of {ratio.noise:.1%}"
    metrics = [metric for metric in ("cpu-time", "instructions") if metric not in rounds.starts]
    wider = [f"allow {ratio.high - 1:.0%}"] if limit.ratio < ratio.high < 2 else []
    advice = ["raise --minutes", "pin cores", *(["use --clock " + " or ".join(metrics)] if metrics else []), *wider]
    return Finding("latency", "open", f"{text}; {', '.join(advice)}")


def _precision_finding(candidate: EngineFacts, accepted: EngineFacts, allowed: float) -> Finding:
    names = sorted({name for name, _ in (*candidate.kernels, *accepted.kernels)}) or ["fp32"]
    name = max(names, key=lambda name: abs(candidate.kernel_share(name) - accepted.kernel_share(name)))
    after, before = candidate.kernel_share(name), accepted.kernel_share(name)
    over = abs(after - before) > allowed + 1e-9
    text = f"{after:.0%} of the kernels compute in {name}, {before:.0%} before; a change of {allowed:.0%} is allowed"
    return Finding("precision", "refuse" if over else "pass", text)
