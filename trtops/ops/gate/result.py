"""What the gate says of one candidate, and how it is shown and kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trtops.ops.evaluation.check import Evaluation, log_evaluation
from trtops.ops.gate.findings import VERDICTS, Decision, Finding, decide, estimate_latency
from trtops.ops.gate.measured import Measured
from trtops.ops.gate.policy import Limits, Policy
from trtops.ops.gate.ratio import RatioEstimate
from trtops.ops.result import OpResult
from trtops.reports.document import Chart, Point, Section
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import MetricName, Run, Verdict

_MARKS = {"pass": "passes", "refuse": "**refused**", "open": "**open**", "tell": "note"}


@dataclass(frozen=True, kw_only=True)
class GateResult(OpResult):
    """What became of a candidate.

    Attributes:
        findings: Everything that was looked at.
        policy: What it was held against.
        precision: What the candidate was asked for.
        release: What its release is called.
        device: The device that was asked for; empty for the processor, or the first GPU.
        measured: The numbers; None if no candidate could be made or run.
        holder: The run that holds the candidate's engine; empty if there is none.
        alias: The alias that it got; empty unless it was accepted and registered.
        version: The registered version likewise.
        seconds: Wall time of the gate, with the build.
    """

    title: str = "gate"
    findings: tuple[Finding, ...]
    policy: Policy
    precision: str
    release: str
    device: str = ""
    measured: Measured | None = None
    holder: str = ""
    alias: str = ""
    version: str = ""
    seconds: float = 0.0

    @property
    def decision(self) -> Decision:
        """``accept``, ``refuse`` or ``measure more``; follows from the findings."""
        return decide(self.findings)

    @property
    def verdict(self) -> Verdict:
        """``good`` if accepted, ``bad`` if refused, ``error`` if more measurement is needed."""
        return VERDICTS[self.decision]

    @property
    def headline(self) -> str:
        """The decision, and for what."""
        reasons = [*dict.fromkeys(finding.subject for finding in self.findings if finding.outcome == "refuse")]
        words = {"accept": "accepted", "refuse": "refused", "measure more": "more measurement is needed"}
        return words[self.decision] + (f" for its {', '.join(reasons)}" if reasons else "")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not accepted, a sentence each."""
        wanted = [finding for finding in self.findings if finding.outcome in ("refuse", "open")]
        return tuple(f"{_subject_text(finding)}: {finding.text}" for finding in wanted)

    @property
    def limits(self) -> Limits:
        """The policy's limits for the candidate's precision."""
        return next(
            (found for name, found in self.policy.precisions.items() if name == self.precision), self.policy.limits
        )

    @property
    def ratio(self) -> RatioEstimate | None:
        """The ratio of latencies; None if they were not measured, or are not evaluated."""
        limit = self.limits.latency
        return None if limit is None or self.measured is None else estimate_latency(self.measured, limit)

    def sections(self) -> Iterable[Section]:
        """What was found, latencies round by round and distances of outputs as charts, and the tables."""
        yield Section(text="\n".join(self._findings_lines()))
        if self.measured is None:
            return
        yield Section(
            title="Side by side", text="\n".join(_side_by_side(self.measured)), chart=_rounds_chart(self.measured)
        )
        if self.measured.widths:
            refused = {finding.output for finding in self.findings if finding.outcome == "refuse"}
            points = tuple(
                Point(label=o.name, y=o.distance_widths, tone="bad" if o.name in refused else "good")
                for o in self.measured.widths
            )
            chart = Chart(
                title="Distance of each output from the accepted one", form="bars", x="noise widths", points=points
            )
            yield Section(title="Outputs", text="\n".join(_outputs_table(self.measured)), chart=chart)

    def _findings_lines(self) -> Iterable[str]:
        """All findings, those that decide first."""
        order = ("refuse", "open", "tell", "pass")
        for finding in sorted(self.findings, key=lambda each: order.index(each.outcome)):
            yield f"- {_MARKS[finding.outcome]}: {_subject_text(finding)} {finding.text}"
        if self.version:
            yield from ("", f"Accepted as version {self.version}, alias `{self.alias}`.")

    def body(self) -> Iterable[str]:
        """All findings, then both engines side by side, then outputs and layers."""
        yield from self._findings_lines()
        if self.measured is not None:
            yield from ("", *_side_by_side(self.measured), "", *_outputs_table(self.measured))


def _subject_text(finding: Finding) -> str:
    return f"{finding.subject} of `{finding.output}`" if finding.output else finding.subject


def _side_by_side(measured: Measured) -> Iterable[str]:
    """Both engines in a table of Markdown."""
    rounds = measured.rounds
    yield "| | release | driver | precision | latency | engine | build | host memory | device memory | run |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    sides = [("candidate", measured.candidate, rounds and rounds.candidate_ms)]
    if measured.accepted is not None:
        sides.append(("accepted", measured.accepted, rounds and rounds.accepted_ms))
    for name, facts, latency in sides:
        cells = (
            name,
            f"{facts.environment.backend} {facts.environment.backend_version}",
            facts.environment.driver or "-",
            facts.precision,
            "-" if latency is None else f"{latency:.4g} ms",
            size(facts.engine_bytes),
            f"{facts.build_seconds:.2f} s",
            "-" if facts.memory_bytes is None else size(facts.memory_bytes),
            "-" if facts.device_bytes is None else size(facts.device_bytes),
            f"`{facts.run_id[:8]}`",
        )
        yield f"| {' | '.join(cells)} |"


def _rounds_chart(measured: Measured) -> Chart | None:
    """The candidate's latency over the accepted engine's, round by round; none if none were measured in turn."""
    if measured.rounds is None:
        return None
    ratios = [math.exp(value) for start in measured.rounds.starts for value in start]
    points = tuple(
        Point(label=f"round {number}: {ratio:.4f}", x=float(number), y=ratio)
        for number, ratio in enumerate(ratios, start=1)
    )
    title = "Latency of the candidate over that of the accepted engine"
    return Chart(title=title, form="points", x="round", y="ratio", points=points) if points else None


def _outputs_table(measured: Measured) -> Iterable[str]:
    if not measured.widths:
        return
    yield "| output | noise width | of rounding | accepted error | run to run | candidate's error | distance in widths |"
    yield "|---|---|---|---|---|---|---|"
    for output in sorted(measured.widths, key=lambda each: -each.distance_widths)[:50]:
        numbers = (output.width, output.rounding, output.accepted_error, output.run_to_run, output.candidate_error)
        cells = [f"{number:.3g}" for number in (*numbers, output.distance_widths)]
        yield f"| `{output.name}` | {' | '.join(cells)} |"


def log_result(run: Run, result: GateResult) -> None:
    """Log what was found: the whole as an artifact and a page, its numbers as metrics, the decision as a tag."""
    measured = result.measured
    if measured is not None:
        evaluation = Evaluation(report=measured.reference, accuracy=measured.candidate_top1)
        log_evaluation(run, evaluation)
        if measured.rounds is not None:
            run.log_metrics({(schema.Metric.LATENCY, "p50_ms"): measured.rounds.candidate_ms})
        run.log_metrics(gate_metrics(result))
    run.log_json(result, schema.Artifact.GATE)
    run.log_text(result.page(), schema.Artifact.GATE_PAGE)
    run.set_tags({schema.Tag.GATE: result.decision})


def gate_metrics(result: GateResult) -> dict[MetricName, float]:
    """The numbers of a gate's run that are its own, as MLflow has them: ratios to the accepted engine, widths, memory."""
    family, measured, ratio = schema.Metric.GATE, result.measured, result.ratio
    found: dict[MetricName, float] = {}
    if measured is None:
        return found
    if ratio is not None:
        found |= {
            (family, "latency_ratio"): ratio.ratio,
            (family, "latency_ratio_low"): ratio.low,
            (family, "latency_ratio_high"): ratio.high,
            (family, "rounds"): float(ratio.rounds),
        }
    if measured.accepted is not None:
        found[family, "size_ratio"] = measured.candidate.engine_bytes / max(1, measured.accepted.engine_bytes)
        found |= {(family, "widths", output.name): output.distance_widths for output in measured.widths}
    if measured.candidate.memory_bytes is not None:
        found[family, "memory_bytes"] = float(measured.candidate.memory_bytes)
    return found
