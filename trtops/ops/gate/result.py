"""The result of a gate: the decision, with the findings and all measurements."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtops.backend.ratio import RatioEstimate
from trtops.next_step import NextStep
from trtops.ops.facts import NOTHING, Facts, SharedReads
from trtops.ops.gate.findings import CLAIMS, Decision, Finding, FindingOutcome, Measured, decide
from trtops.ops.gate.policy import Policy
from trtops.ops.result import OpResult
from trtops.reports.document import Chart, Point, Section, Table
from trtops.spec import Precision
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import MetricName, StoredRun, Verdict

_OUTCOME_LABELS = {"refuse": "**refused**", "error": "**error**", "open": "**open**", "note": "note", "pass": "passes"}
_MAX_OUTPUTS = 50
_ENGINE_COLUMNS = ("engine", "release", "precision", "size", "build", "run")
_OUTPUT_COLUMNS = ("output", "noise width", "error", "distance from the accepted output", "distance in widths")
DECIDED: dict[Decision, str] = {
    "accept": "accepted", "refuse": "refused", "undecided": "undecided", "error": "error",
}  # fmt: skip
EXIT_CODES: dict[Decision, int] = {"accept": 0, "refuse": 1, "error": 3, "undecided": 4}


@dataclass(frozen=True, kw_only=True)
class GateResult(OpResult):
    """The decision on a candidate."""

    title: str = "gate"
    findings: tuple[Finding, ...]
    policy: Policy
    precision: Precision
    options: Mapping[str, Any] = field(default_factory=dict)  # of build and check that are not the default
    release: str
    measured: Measured | None = None  # None if the candidate could not be built or run
    holder: str = ""  # id of the run that holds the engine
    alias: str = ""  # empty unless it was registered, as is the version
    version: str = ""
    seconds: float = 0.0

    @property
    def decision(self) -> Decision:
        """``accept``, ``refuse`` or ``undecided``; ``error`` if the gate itself failed."""
        return decide(self.findings)

    @property
    def verdict(self) -> Verdict:
        """``good`` if accepted, ``bad`` if refused, ``unproven`` if undecided, else ``error``."""
        verdicts: dict[Decision, Verdict] = {"accept": "good", "refuse": "bad", "undecided": "unproven"}
        return verdicts.get(self.decision, "error")

    @property
    def exit_code(self) -> int:
        """0 if accepted, 1 if refused, 3 after an error, 4 if undecided."""
        return EXIT_CODES[self.decision]

    def subjects(self, outcome: FindingOutcome) -> tuple[str, ...]:
        """What was checked with an outcome, such as ``("latency", "size")``."""
        return tuple(dict.fromkeys(finding.subject for finding in self.findings if finding.outcome == outcome))

    @property
    def headline(self) -> str:
        """The decision, and the checks not passed."""
        subjects = self.subjects("open" if self.decision == "undecided" else "refuse")
        return DECIDED[self.decision] + (f" because of {', '.join(subjects)}" if subjects else "")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not accepted."""
        return tuple(finding.line for finding in self.findings if finding.outcome in ("refuse", "error", "open"))

    @property
    def because(self) -> tuple[str, ...]:
        """Why it is not accepted, or else what is to be noted."""
        return self.reasons or tuple(finding.line for finding in self.findings if finding.outcome == "note")

    @property
    def next_step(self) -> NextStep | None:
        """Find the first wrong tensor of a candidate with wrong outputs."""
        if self.measured is None or "reference" not in self.subjects("refuse"):
            return super().next_step
        limit = self.policy.of(self.precision).accuracy
        arguments: dict[str, Any] = {"model": self.subject, "experiment": self.experiment}
        if limit is not None and limit.tolerances is not None:
            arguments["tolerances"] = limit.tolerances.to_dict()
        return NextStep.after(self.options, "debug accuracy", arguments)

    @property
    def evidence(self) -> str:
        """What the comparison with the golden outputs rests on, in a line."""
        golden_evidence = None if self.measured is None else self.measured.evaluation.evidence
        return "" if golden_evidence is None else golden_evidence.sentence()

    @property
    def figures(self) -> str:
        """The latency ratio to the accepted engine, and the version, if there are any."""
        ratio = "" if self.ratio is None else f"latency {self.ratio.ratio:.3f} times the accepted engine's"
        version = f"accepted as version {self.version}, alias {self.alias}" if self.version else ""
        return "; ".join(filter(None, (ratio, version)))

    @property
    def ratio(self) -> RatioEstimate | None:
        """The deciding ratio of the latency; None if not measured or not checked."""
        limit = self.policy.of(self.precision).latency
        rounds = None if self.measured is None else self.measured.rounds
        return None if limit is None or rounds is None else rounds.ratio(limit)

    def sections(self) -> Iterable[Section]:
        """The checks, both engines side by side with the latencies by round, and the outputs."""
        lines = []
        for outcome, label in _OUTCOME_LABELS.items():
            lines += [f"- {label}: {finding.line}" for finding in self.findings if finding.outcome == outcome]
        if self.version:
            lines += ["", f"Accepted as version {self.version}, alias `{self.alias}`."]
        yield Section(text="\n".join(lines))
        if self.measured is None:
            return
        rounds, chart = self.measured.rounds, None
        if rounds is not None and self.ratio is not None:
            ratios = [math.exp(value) for start in rounds.starts[self.ratio.metric] for value in start]
            points = tuple(Point(label=f"round {n}: {r:.4f}", x=float(n), y=r) for n, r in enumerate(ratios, start=1))
            title = f"{CLAIMS[self.ratio.metric]} of the candidate relative to the accepted engine"
            chart = Chart(title=title, form="points", x="round", y="ratio", points=points)
        rows = []
        for name, facts in (("candidate", self.measured.candidate), ("accepted", self.measured.accepted)):
            if facts is not None:
                release = f"{facts.environment.backend} {facts.environment.backend_version}"
                seconds = f"{facts.build_seconds:.2f} s"
                rows.append((name, release, facts.precision, size(facts.engine_bytes), seconds, facts.run_id[:8]))
        yield Section(title="Side by side", table=Table(columns=_ENGINE_COLUMNS, rows=tuple(rows)), chart=chart)
        if self.measured.widths:
            outputs = sorted(self.measured.widths, key=lambda output: -output.distance_widths)[:_MAX_OUTPUTS]
            cells = tuple((o.name, o.width, o.error, o.distance, o.distance_widths) for o in outputs)
            yield Section(title="Outputs", table=Table(columns=_OUTPUT_COLUMNS, rows=cells))

    def metrics(self) -> dict[MetricName, float]:
        """Ratios to the accepted engine, distances in widths, and the candidate's latency."""
        family, measured, ratio = schema.Metric.GATE, self.measured, self.ratio
        values: dict[MetricName, float] = {}
        if measured is None:
            return values
        if measured.rounds is not None:
            values[schema.Metric.LATENCY, "p50_ms"] = measured.rounds.candidate_ms
        if ratio is not None:
            bounds = {"latency_ratio_low": ratio.low, "latency_ratio_high": ratio.high}
            values |= schema.family(family, latency_ratio=ratio.ratio, rounds=ratio.rounds, **bounds)
        if measured.accepted is not None:
            values[family, "size_ratio"] = measured.candidate.engine_bytes / max(1, measured.accepted.engine_bytes)
            values |= {(family, "widths", output.name): output.distance_widths for output in measured.widths}
        return values


def audit_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the decision of a gate with its findings, and metrics with its measurements."""
    result = GateResult.from_json(run.read_bytes(schema.Artifact.GATE))
    facts.tag("the gate's decision", schema.Tag.GATE, schema.Artifact.GATE, result.decision, NOTHING)
    facts.tag("verdict", schema.Tag.VERDICT, schema.Artifact.GATE, result.verdict)
    facts.metrics(result.metrics(), schema.Artifact.GATE, (schema.Metric.GATE,))
