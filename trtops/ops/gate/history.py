"""Re-evaluate history: which accepted engines would fail under a proposed policy, and which limits good runs support.

Nothing is run, and nothing is changed in the memory: all follows from numbers that runs keep.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtops import errors
from trtops.comparator.report import ComparisonReport
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.gate.accepted import precision_of
from trtops.ops.gate.findings import Decision, Finding, decide, evaluate_measured, with_axes
from trtops.ops.gate.policy import Policy
from trtops.ops.gate.result import GateResult
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.spec import PRECISIONS, Precision
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, StoredRun, Tracker, Verdict
from trtops.tracking.schema import Tag

_ACCEPTING = ("gate", "promote")
_COVERED, _SURE = 0.99, 0.95
_Z_COVERED, _Z_SURE = 2.3263, 1.6449  # normal quantiles of the two
_FEWEST = 3  # runs from which on a spread says something
_WIDTHS = 3.0


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(Record):
    """Which runs are re-evaluated, and by what.

    Attributes:
        policy: The proposed policy.
        runs: Ids of runs, or what they begin with; found by the filters unless given.
        experiment: Only runs of this experiment.
        tags: Only runs with these tags.
        accepted_only: Only runs by which an engine was accepted; otherwise all good runs that hold a comparison.
        limit: So many at most, the newest.
    """

    policy: Policy = field(default_factory=Policy)
    runs: tuple[str, ...] = ()
    experiment: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    accepted_only: bool = True
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reevaluation(Record):
    """One run under the proposed policy.

    Attributes:
        run_id: The run.
        name: Its name.
        model: Name of its model.
        precision: What it was asked for; empty if it does not say.
        before: Its verdict as it was logged.
        decision: What the gate would decide by its numbers now; None if they cannot be read.
        reasons: Why it would not be accepted.
        evaluated: How much of the policy its numbers cover: ``all`` for runs of the gate, ``reference`` for others.
    """

    run_id: str
    name: str
    model: str
    precision: str
    before: str
    decision: Decision | None
    reasons: tuple[str, ...] = ()
    evaluated: str = "all"


@dataclass(frozen=True, kw_only=True)
class Proposal(Record):
    """A limit for the largest absolute error of one output, as its good runs support it.

    Attributes:
        model: Name of the model.
        model_sha256: Its digest.
        precision: Of the runs.
        output: The output.
        runs: How many good runs there are.
        median: Median of their largest absolute errors, in the output's own unit.
        largest: The largest of them.
        spread: Standard deviation of their decimal logarithms, in decades; 0 if all are equal.
        noise: The output's noise width, as the gate measured it last; None if it never did.
        limit: The proposed limit.
        basis: What it rests on, in words.
    """

    model: str
    model_sha256: str
    precision: str
    output: str
    runs: int
    median: float
    largest: float
    spread: float
    noise: float | None
    limit: float
    basis: str


@dataclass(frozen=True, kw_only=True)
class HistoryResult(OpResult):
    """What a proposed policy would have said.

    Attributes:
        evaluated: Every run, newest first.
        proposals: Limits by model, precision and output.
    """

    title: str = "evaluate history again"
    evaluated: tuple[Reevaluation, ...]
    proposals: tuple[Proposal, ...] = ()

    @property
    def failing(self) -> tuple[Reevaluation, ...]:
        """Those that would not be accepted, or cannot be read."""
        return tuple(each for each in self.evaluated if each.decision != "accept")

    @property
    def verdict(self) -> Verdict:
        """``good`` if every run would be accepted."""
        return "bad" if self.failing else "good"

    @property
    def headline(self) -> str:
        """How many would fail."""
        return f"{len(self.failing)} of {len(self.evaluated)} would not be accepted"

    def body(self) -> Iterable[str]:
        """Those that would fail and why, then the proposed limits with their numbers, then the same as a policy."""
        for each in self.failing:
            yield f"- `{each.run_id[:8]}` {each.name}: {each.decision or 'cannot be evaluated'}. {'; '.join(each.reasons)}"
        if not self.proposals:
            return
        yield from (
            "",
            "| model | precision | output | runs | median | largest | decades | noise | limit |",
            "|---" * 9 + "|",
        )
        for p in self.proposals:
            noise = "-" if p.noise is None else f"{p.noise:.3g}"
            yield (
                f"| {p.model} {p.model_sha256[:8]} | {p.precision} | `{p.output}` | {p.runs} | {p.median:.3g} | {p.largest:.3g} | "
                f"{p.spread:.2g} | {noise} | {p.limit:.3g} |"
            )
        for basis in dict.fromkeys(p.basis for p in self.proposals):
            yield from ("", basis)
        yield from ("", *self._policies())

    def _policies(self) -> Iterator[str]:
        """For each model, what a policy file would say."""
        groups: dict[tuple[str, str], dict[str, list[Proposal]]] = defaultdict(lambda: defaultdict(list))
        for proposal in self.proposals:
            groups[proposal.model, proposal.model_sha256][proposal.precision].append(proposal)
        for (model, sha256), precisions in groups.items():
            yield from (f"A policy for {model} {sha256[:8]}:", "", "```yaml", "precisions:")
            for precision, proposals in precisions.items():
                yield f"  {precision}: {{accuracy: {{tolerances: {{check_error_stat: max, rtol: 0, per_output: {{"
                yield from (f"    {_quoted_name(p.output)}: {{atol: {p.limit:.3e}}}," for p in proposals)
                yield "  }}}}"
            yield "```"


def evaluate_history(config: HistoryConfig, *, tracker: Tracker) -> HistoryResult:
    """Re-evaluate stored runs by a proposed policy, and propose limits from those that are good.

    Args:
        config: Which runs, and the policy.
        tracker: The memory.

    Raises:
        RunNotFoundError: If a run that is named is not there. One that is not whole is a result.
    """
    evaluated: list[Reevaluation] = []
    seen = _Seen()
    for info in _chosen_runs(config, tracker):
        try:
            stored = tracker.load(info.id)
            again = _evaluate_run(stored, config.policy)
            if again is None:
                continue
            seen.add(stored)
        except (errors.IncompleteRunError, errors.FormatError, errors.ComparisonError) as exc:
            again = _reevaluation(info, None, (f"{type(exc).__name__}: {exc}",))
        evaluated.append(again)
    return HistoryResult(evaluated=tuple(evaluated), proposals=tuple(seen.proposals()))


def _chosen_runs(config: HistoryConfig, tracker: Tracker) -> Iterator[RunInfo]:
    if config.runs:
        yield from (tracker.info(tracker.whole_id(run)) for run in config.runs)
        return
    wanted = {**dict(config.tags), Tag.VERDICT: "good"}
    found = tracker.find(config.experiment, tags=wanted, status="finished")
    chosen = [info for info in found if not config.accepted_only or info.kind in _ACCEPTING]
    yield from chosen[: config.limit]


def _evaluate_run(stored: StoredRun, policy: Policy) -> Reevaluation | None:
    """A run re-evaluated; None if it holds nothing to evaluate."""
    info = stored.info
    if schema.Artifact.GATE in stored.manifest and info.kind == "gate":
        result = GateResult.from_json(stored.read_bytes(schema.Artifact.GATE))
        if result.measured is None:
            return _reevaluation(info, decide(result.findings), result.reasons)
        return _of_findings(info, evaluate_measured(result.measured, policy))
    if schema.Artifact.ACCURACY not in stored.manifest:
        return None
    report = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY)).report
    limits = policy.of(_known_precision(info))
    if limits.accuracy is None:
        return _reevaluation(info, "accept", (), evaluated="reference")
    again = report.evaluate(with_axes(limits.accuracy.tolerances or report.tolerances, report.tolerances))
    return _reevaluation(info, "accept" if again.verdict == "good" else "refuse", again.reasons, evaluated="reference")


def _known_precision(info: RunInfo) -> Precision:
    return next((known for known in PRECISIONS if known == precision_of(info)), "fp32")


def _of_findings(info: RunInfo, findings: Sequence[Finding]) -> Reevaluation:
    against = [finding for finding in findings if finding.outcome in ("refuse", "open")]
    reasons = tuple(f"{f.subject}{f' of {f.output}' if f.output else ''}: {f.text}" for f in against)
    return _reevaluation(info, decide(findings), reasons)


def _reevaluation(
    info: RunInfo, decision: Decision | None, reasons: tuple[str, ...], *, evaluated: str = "all"
) -> Reevaluation:
    return Reevaluation(
        run_id=info.id,
        name=info.name,
        model=_model_name(info),
        precision=precision_of(info),
        before=info.verdict or "",
        decision=decision,
        reasons=reasons,
        evaluated=evaluated,
    )


def _model_name(info: RunInfo) -> str:
    return Path(info.tags.get(Tag.MODEL_PATH, info.experiment)).stem


class _Seen:
    """Errors and noise of good runs, by model, precision and output."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
        self._noise: dict[tuple[str, str, str, str], float] = {}

    def add(self, stored: StoredRun) -> None:
        info = stored.info
        if info.verdict != "good" or schema.Artifact.ACCURACY not in stored.manifest:
            return
        key = (_model_name(info), info.tags.get(Tag.MODEL_SHA256, ""), precision_of(info))
        report = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY)).report
        for output, error in _largest_errors(report):
            place = (*key, output)
            self._errors[place].append(error)
        if info.kind == "gate" and schema.Artifact.GATE in stored.manifest:
            measured = GateResult.from_json(stored.read_bytes(schema.Artifact.GATE)).measured
            for width in () if measured is None else measured.widths:
                place = (*key, width.name)
                self._noise.setdefault(place, width.width)  # the newest run comes first

    def proposals(self) -> Iterator[Proposal]:
        for key, values in sorted(self._errors.items()):
            yield propose(key, values, self._noise.get(key))


def _largest_errors(report: ComparisonReport) -> Iterator[tuple[str, float]]:
    for output in report.outputs:
        if output.statistics is not None and math.isfinite(output.statistics.max_abs):
            yield output.name, output.statistics.max_abs


def propose(key: tuple[str, str, str, str], values: Sequence[float], noise: float | None) -> Proposal:
    """A limit for an output's largest absolute error, from good runs.

    The limit is the upper end of a one-sided tolerance interval of the errors' logarithms, which covers 99% of good runs with a
    confidence of 95%; the factor is that of Natrella (NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3). It is never
    below the largest good error plus three noise widths.

    Args:
        key: Model, its digest, precision, output.
        values: Largest absolute errors of good runs, in the output's own unit; at least one.
        noise: The output's noise width, if it is known.
    """
    positive = [math.log10(value) for value in values if value > 0]
    spread = statistics.stdev(positive) if len(positive) > 1 else 0.0
    largest = max(values)
    limit = largest + _WIDTHS * (noise or 0.0)
    if len(positive) >= _FEWEST and spread > 0:
        limit = max(limit, 10 ** (statistics.fmean(positive) + _tolerance_factor(len(positive)) * spread))
    basis = (
        f"Limits cover {_COVERED:.0%} of good runs with a confidence of {_SURE:.0%} where {_FEWEST} or more runs differ, and are "
        f"never below the largest good error plus {_WIDTHS:g} noise widths. Few runs make wide limits."
    )
    model, sha256, precision, output = key
    return Proposal(
        model=model,
        model_sha256=sha256,
        precision=precision,
        output=output,
        runs=len(values),
        median=statistics.median(values),
        largest=largest,
        spread=spread,
        noise=noise,
        limit=limit,
        basis=basis,
    )


def _tolerance_factor(runs: int) -> float:
    """How many standard deviations above the mean the limit of a one-sided normal tolerance interval is."""
    a = 1 - _Z_SURE**2 / (2 * (runs - 1))
    b = _Z_COVERED**2 - _Z_SURE**2 / runs
    return (_Z_COVERED + math.sqrt(_Z_COVERED**2 - a * b)) / a


def _quoted_name(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
