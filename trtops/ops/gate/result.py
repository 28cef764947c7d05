"""The result of a gate: how it is shown and logged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trtops.ops.evaluation.check import Evaluation, log_evaluation
from trtops.ops.gate.findings import VERDICTS, Decision, EngineFacts, Finding, Measured, decide
from trtops.ops.gate.policy import Policy
from trtops.ops.gate.ratio import RatioEstimate, estimate
from trtops.ops.result import OpResult
from trtops.reports.document import Chart, Point, Section, Table
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import MetricName, Run, Verdict

_SHOWN = {"refuse": "**refused**", "error": "**error**", "open": "**open**", "note": "note", "pass": "passes"}
_MAX_OUTPUTS = 50
_ENGINE_COLUMNS = (
    "engine", "release", "driver", "precision", "latency", "size", "build", "host memory", "device memory", "run",
)  # fmt: skip
_OUTPUT_COLUMNS = (
    "output", "noise width", "rounding", "accepted error", "run to run", "candidate's error", "distance in widths",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GateResult(OpResult):
    """The decision on a candidate.

    Attributes:
        findings: All checks.
        device: Requested device; empty for the CPU or the first GPU.
        measured: The numbers; None if the candidate could not be built or run.
        holder: Id of the run that holds the candidate's engine; empty without one.
        alias: Its alias; empty unless it was registered.
        version: The registered version; empty unless it was registered.
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
        """``accept``, ``refuse`` or ``measure more``."""
        return decide(self.findings)

    @property
    def verdict(self) -> Verdict:
        """``good`` if accepted, ``bad`` if refused, ``error`` if more measurement is needed."""
        return VERDICTS[self.decision]

    @property
    def headline(self) -> str:
        """The decision, and the checks that refused."""
        subjects = dict.fromkeys(finding.subject for finding in self.findings if finding.outcome == "refuse")
        words = {
            "accept": "accepted",
            "refuse": "refused",
            "measure more": "more measurement is needed",
            "error": "error",
        }
        return words[self.decision] + (f" because of {', '.join(subjects)}" if subjects else "")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not accepted."""
        return tuple(finding.line for finding in self.findings if finding.outcome in ("refuse", "error", "open"))

    @property
    def ratio(self) -> RatioEstimate | None:
        """The ratio of latencies; None if not measured or not checked."""
        limit = self.policy.of(self.precision).latency
        if limit is None or self.measured is None or self.measured.rounds is None:
            return None
        return estimate(self.measured.rounds.starts, limit.ratio, limit.confidence)

    def sections(self) -> Iterable[Section]:
        """The checks, both engines side by side with the latencies by round, and the outputs."""
        findings = sorted(self.findings, key=lambda each: [*_SHOWN].index(each.outcome))
        lines = [f"- {_SHOWN[finding.outcome]}: {finding.line}" for finding in findings]
        if self.version:
            lines += ["", f"Accepted as version {self.version}, alias `{self.alias}`."]
        yield Section(text="\n".join(lines))
        measured = self.measured
        if measured is None:
            return
        rounds, chart = measured.rounds, None
        if rounds is not None:
            ratios = [math.exp(value) for start in rounds.starts for value in start]
            points = [Point(label=f"round {n}: {r:.4f}", x=float(n), y=r) for n, r in enumerate(ratios, start=1)]
            title = "Latency of the candidate relative to the accepted engine"
            chart = Chart(title=title, form="points", x="round", y="ratio", points=tuple(points))
        rows = [_engine_row("candidate", measured.candidate, None if rounds is None else rounds.candidate_ms)]
        if measured.accepted is not None:
            rows.append(_engine_row("accepted", measured.accepted, None if rounds is None else rounds.accepted_ms))
        yield Section(title="Side by side", table=Table(columns=_ENGINE_COLUMNS, rows=tuple(rows)), chart=chart)
        if measured.widths:
            refused = {finding.output for finding in self.findings if finding.outcome == "refuse"}
            outputs = sorted(measured.widths, key=lambda each: -each.distance_widths)[:_MAX_OUTPUTS]
            bars = [
                Point(label=o.name, y=o.distance_widths, tone="bad" if o.name in refused else "good") for o in outputs
            ]
            title = "Distance of each output from the accepted one"
            yield Section(
                title="Outputs",
                table=Table(
                    columns=_OUTPUT_COLUMNS,
                    rows=tuple(
                        (
                            o.name,
                            o.width,
                            o.rounding,
                            o.accepted_error,
                            o.run_to_run,
                            o.candidate_error,
                            o.distance_widths,
                        )
                        for o in outputs
                    ),
                ),
                chart=Chart(title=title, form="bars", x="noise widths", points=tuple(bars)),
            )


def _engine_row(name: str, facts: EngineFacts, latency_ms: float | None) -> tuple[str | None, ...]:
    environment = facts.environment
    return (
        name,
        f"{environment.backend} {environment.backend_version}",
        environment.driver,
        facts.precision,
        None if latency_ms is None else f"{latency_ms:.4g} ms",
        size(facts.engine_bytes),
        f"{facts.build_seconds:.2f} s",
        None if facts.memory_bytes is None else size(facts.memory_bytes),
        None if facts.device_bytes is None else size(facts.device_bytes),
        facts.run_id[:8],
    )


def log_result(run: Run, result: GateResult) -> None:
    """Log the result as an artifact and a page, its numbers as metrics, and the decision as a tag."""
    measured = result.measured
    if measured is not None:
        log_evaluation(run, Evaluation(report=measured.reference, accuracy=measured.candidate_top1))
        if measured.rounds is not None:
            run.log_metrics({(schema.Metric.LATENCY, "p50_ms"): measured.rounds.candidate_ms})
        run.log_metrics(gate_metrics(result))
    run.log_json(result, schema.Artifact.GATE)
    run.log_text(result.page(), schema.Artifact.GATE_PAGE)
    run.set_tags({schema.Tag.GATE: result.decision})


def gate_metrics(result: GateResult) -> dict[MetricName, float]:
    """Metrics of a gate: ratios to the accepted engine, distances in widths, memory."""
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
