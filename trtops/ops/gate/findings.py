"""From numbers to a verdict: each limit of a policy held against what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trtops.comparator.report import ComparisonReport, OutputTolerances, Tolerances
from trtops.ops.gate.measured import Facts, Measured
from trtops.ops.gate.policy import AccuracyLimit, LatencyLimit, LayerLimit, Limits, Policy
from trtops.ops.gate.ratio import RatioEstimate, estimate
from trtops.record import Record
from trtops.tables import size
from trtops.verdict import Verdict

Subject: TypeAlias = Literal[
    "release", "device", "build", "accepted", "reference", "accepted outputs", "accuracy", "latency", "size", "memory",
    "build time", "precision", "tactics", "model",
]  # fmt: skip
Outcome: TypeAlias = Literal["pass", "refuse", "open", "tell"]
Decision: TypeAlias = Literal["accept", "refuse", "measure more"]


@dataclass(frozen=True, kw_only=True)
class Finding(Record):
    """One thing that was looked at.

    Attributes:
        subject: What.
        outcome: ``refuse`` and ``open`` decide; ``tell`` is worth knowing and decides nothing.
        text: In words, with the number and the limit.
        output: The output that it is about, if it is about one.
    """

    subject: Subject
    outcome: Outcome
    text: str
    output: str = ""


def decide(findings: Iterable[Finding]) -> Decision:
    """What findings come to together: one reason to refuse is enough; without one, what is open comes first."""
    outcomes = {finding.outcome for finding in findings}
    return "refuse" if "refuse" in outcomes else "measure more" if "open" in outcomes else "accept"


VERDICTS: dict[Decision, Verdict] = {"accept": "good", "refuse": "bad", "measure more": "error"}


def evaluate_measured(measured: Measured, policy: Policy) -> tuple[Finding, ...]:
    """Hold what was measured against a policy. Needs nothing but the numbers, so that history can be re-evaluated."""
    limits = policy.of(measured.candidate.precision)
    return tuple(_all_findings(measured, limits, policy))


def _all_findings(measured: Measured, limits: Limits, policy: Policy) -> Iterator[Finding]:
    candidate, accepted = measured.candidate, measured.accepted
    if limits.accuracy is not None:
        tolerances = with_axes(limits.accuracy.tolerances or measured.usual, measured.usual)
        yield from _of_report(measured.reference.evaluate(tolerances), "reference", "refuse")
    if accepted is None:
        outcome: Outcome = "tell" if policy.first == "accept" else "refuse"
        yield Finding(
            subject="accepted", outcome=outcome, text="nothing was accepted before that it could be compared with"
        )
        return
    if candidate.model_sha256 != accepted.model_sha256:
        yield Finding(
            subject="model",
            outcome="tell",
            text=f"another model ({candidate.model_sha256[:12]}) than the accepted one ({accepted.model_sha256[:12]})",
        )
    if limits.accuracy is not None:
        yield from _of_outputs(measured, limits.accuracy)
    if limits.latency is not None and measured.rounds is not None:
        yield _of_latency(measured, limits.latency)
    yield from _of_cost(candidate, accepted, limits)
    if limits.layers is not None and measured.layers is not None:
        yield from _of_layers(measured, limits.layers)


def with_axes(tolerances: Tolerances, known: Tolerances) -> Tolerances:
    """Tolerances with the axes of classes put in that others know of outputs that hold scores."""
    merged = dict(tolerances.per_output)
    for name, own in known.per_output.items():
        if own.class_axis is not None:
            given = merged.get(name, OutputTolerances())
            merged[name] = given if given.class_axis is not None else replace(given, class_axis=own.class_axis)
    return replace(tolerances, per_output=merged)


def _of_report(report: ComparisonReport, subject: Subject, outcome: Outcome) -> Iterator[Finding]:
    """A refusal for each output that is bad, or one line that all are good."""
    for output in report.outputs:
        if output.verdict == "bad":
            yield Finding(subject=subject, outcome=outcome, text="; ".join(output.reasons), output=output.name)
    if report.verdict == "good":
        yield Finding(subject=subject, outcome="pass", text=f"{len(report.outputs)} outputs are within the tolerances")


def _of_outputs(measured: Measured, limit: AccuracyLimit) -> Iterator[Finding]:
    assert measured.agreement is not None and measured.accepted is not None
    another = measured.candidate.model_sha256 != measured.accepted.model_sha256
    outcome: Outcome = "tell" if another and limit.other_model == "tell" else "refuse"
    told = {output.name for output in measured.widths}
    refused = False
    for finding in _of_widths(measured, limit, outcome):
        refused = True
        yield finding
    for output in measured.agreement.outputs:
        if output.name not in told and output.statistics is None and output.verdict == "bad":
            refused = True
            yield Finding(
                subject="accepted outputs", outcome=outcome, text="; ".join(output.reasons), output=output.name
            )
    if limit.accepted is not None:
        agreement = measured.agreement.evaluate(with_axes(limit.accepted, measured.usual))
        found = [*_of_report(agreement, "accepted outputs", outcome)]
        refused = refused or any(each.outcome != "pass" for each in found)
        yield from (each for each in found if each.outcome != "pass")
    if not refused:
        furthest = max(measured.widths, key=lambda o: o.distance_widths, default=None)
        which = (
            ""
            if furthest is None
            else f"; the furthest, {furthest.name!r}, by {furthest.distance_widths:.2g} noise widths"
        )
        yield Finding(subject="accepted outputs", outcome="pass", text=f"agrees with the accepted engine{which}")
    yield from _of_labels(measured, limit)


def _of_widths(measured: Measured, limit: AccuracyLimit, outcome: Outcome) -> Iterator[Finding]:
    for output in measured.widths:
        allowed = limit.widths_of(output.name)
        if allowed is None:
            continue
        if output.distance_widths > allowed:
            yield Finding(
                subject="accepted outputs",
                outcome=outcome,
                text=f"is {output.distance_widths:.3g} noise widths from the accepted output ({output.distance:.3g}; a width "
                f"is {output.width:.3g}); at most {allowed:g} are allowed",
                output=output.name,
            )
        if output.growth_widths > allowed:
            yield Finding(
                subject="reference",
                outcome="refuse",
                text=f"is {output.growth_widths:.3g} noise widths further from the reference than the accepted engine "
                f"({output.candidate_error:.3g} against {output.accepted_error:.3g}); at most {allowed:g} are allowed",
                output=output.name,
            )


def _of_labels(measured: Measured, limit: AccuracyLimit) -> Iterator[Finding]:
    mine, theirs = measured.candidate_top1, measured.accepted_top1
    if mine is None or theirs is None or limit.top1_drop is None:
        return
    drop = theirs.actual - mine.actual
    yield Finding(
        subject="accuracy",
        outcome="refuse" if drop > limit.top1_drop else "pass",
        text=f"{mine.actual:.2%} of {mine.samples} samples are right, {theirs.actual:.2%} before; a drop of "
        f"{limit.top1_drop:.2%} is allowed",
    )


def estimate_latency(measured: Measured, limit: LatencyLimit) -> RatioEstimate | None:
    """The ratio of latencies by a limit; None if none were measured."""
    return None if measured.rounds is None else estimate(measured.rounds.starts, limit.ratio, limit.confidence)


def _of_latency(measured: Measured, limit: LatencyLimit) -> Finding:
    found, rounds = estimate_latency(measured, limit), measured.rounds
    assert found is not None and rounds is not None
    where = "on the device, " if rounds.on_device else ""
    text = (
        f"{where}{found.ratio:.3f} times the accepted engine's ({rounds.candidate_ms:.3g} ms against {rounds.accepted_ms:.3g} ms), "
        f"between {found.low:.3f} and {found.high:.3f} after {found.rounds} rounds; {limit.ratio:g} is allowed"
    )
    if found.decision == "open":
        if found.more_rounds is None:
            text += ". It is so close to the limit that more rounds will not tell: choose another limit"
        else:
            minutes = rounds.seconds / max(found.rounds, 1) * found.more_rounds / 60
            text += f". More measurement is needed: about {found.more_rounds} more rounds ({minutes:.1f} min)"
    outcomes: dict[str, Outcome] = {"below": "pass", "above": "refuse", "open": "open"}
    return Finding(subject="latency", outcome=outcomes[found.decision], text=text)


def _of_cost(candidate: Facts, accepted: Facts, limits: Limits) -> Iterator[Finding]:
    if limits.size is not None:
        growth = candidate.engine_bytes - accepted.engine_bytes
        ratio = candidate.engine_bytes / max(accepted.engine_bytes, 1)
        over = ratio > limits.size.ratio and growth > limits.size.slack_bytes
        yield Finding(
            subject="size",
            outcome="refuse" if over else "pass",
            text=f"{size(candidate.engine_bytes)}, {ratio:.3f} times {size(accepted.engine_bytes)}; {limits.size.ratio:g} is "
            "allowed",
        )
    if limits.memory is not None:
        places = (
            ("on the host", candidate.memory_bytes, accepted.memory_bytes),
            ("on the device", candidate.device_bytes, accepted.device_bytes),
        )
        for where, mine, theirs in places:
            if mine is None or theirs is None:
                continue
            over = mine > limits.memory.ratio * theirs and mine - theirs > limits.memory.slack_bytes
            yield Finding(
                subject="memory",
                outcome="refuse" if over else "pass",
                text=f"takes {size(mine)} {where}, {size(theirs)} before; {limits.memory.ratio:g} times that and "
                f"{size(limits.memory.slack_bytes)} more are allowed",
            )
    if limits.build_time is not None:
        mine_s, theirs_s = candidate.build_seconds, accepted.build_seconds
        over = mine_s > limits.build_time.ratio * theirs_s and mine_s - theirs_s > limits.build_time.slack_seconds
        yield Finding(
            subject="build time",
            outcome="refuse" if over else "pass",
            text=f"{mine_s:.2f} s, {theirs_s:.2f} s before; {limits.build_time.ratio:g} times that and "
            f"{limits.build_time.slack_seconds:g} s more are allowed",
        )


def _of_layers(measured: Measured, limit: LayerLimit) -> Iterator[Finding]:
    layers = measured.layers
    assert layers is not None
    name, before, after = layers.largest_shift()
    changed = [change for change in layers.changes if change.what == "precision"]
    which = ", ".join(f"{c.layer} {c.accepted} -> {c.candidate}" for c in changed[:5])
    over = abs(after - before) > limit.precision_share + 1e-9
    yield Finding(
        subject="precision",
        outcome=limit.precision if over else "pass",
        text=f"{after:.0%} of its layers compute in {name}, {before:.0%} before; a change of {limit.precision_share:.0%} is "
        f"allowed{f' ({which})' if which else ''}",
    )
    tactics = [change for change in layers.changes if change.what == "tactic"]
    if tactics or layers.accepted != layers.candidate:
        named = ", ".join(f"{c.layer}: {c.accepted} -> {c.candidate}" for c in tactics[:5])
        yield Finding(
            subject="tactics",
            outcome=limit.tactics,
            text=f"{len(tactics)} of {layers.shared} layers that both engines have got another tactic; {layers.candidate} layers, "
            f"{layers.accepted} before{f' ({named})' if named else ''}",
        )
