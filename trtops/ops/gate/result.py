"""The result of a gate, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trtops.ops.gate.findings import Decision, Finding, Measured, decide
from trtops.ops.gate.policy import Policy
from trtops.ops.gate.ratio import RatioEstimate, estimate
from trtops.ops.result import OpResult
from trtops.reports.document import Chart, Point, Section, Table
from trtops.spec import Precision
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import MetricName, Verdict

_SHOWN = {"refuse": "**refused**", "error": "**error**", "open": "**open**", "note": "note", "pass": "passes"}
_MAX_OUTPUTS = 50
_ENGINE_COLUMNS = ("engine", "release", "precision", "size", "build", "run")
_OUTPUT_COLUMNS = ("output", "noise width", "error", "distance from the accepted output", "distance in widths")
DECIDED: dict[Decision, str] = {
    "accept": "accepted", "refuse": "refused", "measure more": "more measurement is needed", "error": "error",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GateResult(OpResult):
    """The decision on a candidate."""

    title: str = "gate"
    findings: tuple[Finding, ...]
    policy: Policy
    precision: Precision
    release: str
    measured: Measured | None = None  # None if the candidate could not be built or run
    holder: str = ""  # id of the run that holds the engine
    alias: str = ""  # empty unless it was registered, as is the version
    version: str = ""
    seconds: float = 0.0

    @property
    def decision(self) -> Decision:
        """``accept``, ``refuse`` or ``measure more``."""
        return decide(self.findings)

    @property
    def verdict(self) -> Verdict:
        """``good`` if accepted, ``bad`` if refused, ``error`` if more measurement is needed."""
        return "good" if self.decision == "accept" else "bad" if self.decision == "refuse" else "error"

    @property
    def headline(self) -> str:
        """The decision, and the checks that refused."""
        subjects = dict.fromkeys(finding.subject for finding in self.findings if finding.outcome == "refuse")
        return DECIDED[self.decision] + (f" because of {', '.join(subjects)}" if subjects else "")

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
        if self.measured is None:
            return
        rounds, chart = self.measured.rounds, None
        if rounds is not None:
            ratios = [math.exp(value) for start in rounds.starts for value in start]
            points = tuple(Point(label=f"round {n}: {r:.4f}", x=float(n), y=r) for n, r in enumerate(ratios, start=1))
            title = "Latency of the candidate relative to the accepted engine"
            chart = Chart(title=title, form="points", x="round", y="ratio", points=points)
        rows = []
        for name, facts in (("candidate", self.measured.candidate), ("accepted", self.measured.accepted)):
            if facts is not None:
                release = f"{facts.environment.backend} {facts.environment.backend_version}"
                seconds = f"{facts.build_seconds:.2f} s"
                rows.append((name, release, facts.precision, size(facts.engine_bytes), seconds, facts.run_id[:8]))
        yield Section(title="Side by side", table=Table(columns=_ENGINE_COLUMNS, rows=tuple(rows)), chart=chart)
        if self.measured.widths:
            outputs = sorted(self.measured.widths, key=lambda each: -each.distance_widths)[:_MAX_OUTPUTS]
            cells = tuple((o.name, o.width, o.error, o.distance, o.distance_widths) for o in outputs)
            yield Section(title="Outputs", table=Table(columns=_OUTPUT_COLUMNS, rows=cells))

    def metrics(self) -> dict[MetricName, float]:
        """Ratios to the accepted engine, distances in widths."""
        family, measured, ratio = schema.Metric.GATE, self.measured, self.ratio
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
        return found
