"""Results of an audit: an answer for each run, contradictions, and grades of rebuilt engines."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from trtops.ops.facts import Contradiction
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.reports.document import Section, Table
from trtops.tracking.base import Verdict

Grade: TypeAlias = Literal[
    "bytes equal", "tactics equal", "outputs equal", "within tolerance", "drifted", "cannot be rebuilt"
]
"""Agreement of a rebuilt engine with the logged one, best first. Equal tactics include equal outputs."""

GRADES: tuple[Grade, ...] = get_args(Grade)

Answer: TypeAlias = Literal["verified", "not verified", "contradicted"]
"""The answer about a run; only a verified run passes. A run is not verified if something could not be compared."""

AtLeast: TypeAlias = Literal["bytes", "tactics", "outputs", "tolerance"]
"""The grade that a run must reach."""

LEAST: dict[AtLeast, Grade] = {
    "bytes": "bytes equal",
    "tactics": "tactics equal",
    "outputs": "outputs equal",
    "tolerance": "within tolerance",
}

WayName: TypeAlias = Literal["replay", "timing cache", "plain"]
"""How an engine is rebuilt: with its recorded tactics, with its timing cache, or with its original inputs only."""

WAYS: tuple[WayName, ...] = get_args(WayName)


_MAX_DIFFERENCES = 8  # of a rebuild, in the details of a run


def reaches(grade: Grade, required: AtLeast) -> bool:
    """True if a grade is at least as good as required."""
    return GRADES.index(grade) <= GRADES.index(LEAST[required])


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """A logged and a current value: of the environment, a package, a layer, a statistic of an output."""

    name: str
    logged: str
    current: str

    def text(self) -> str:
        """The difference in a few words."""
        return f"{self.name}: {self.logged or 'none'} -> {self.current or 'none'}"


@dataclass(frozen=True, kw_only=True)
class Rebuild(Record):
    """One rebuild of an engine: its grade with the reason, and differing layers, settings and outputs."""

    way: WayName
    grade: Grade
    reason: str = ""
    engine_sha256: str = ""
    seconds: float = 0.0
    tactics: tuple[Difference, ...] = ()
    outputs: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunAudit(Record):
    """The audit of one run."""

    id: str
    name: str = ""
    experiment: str = ""
    kind: str = ""
    whole: bool = True  # it has a manifest that every file matches
    files: int = 0  # that match
    contradictions: tuple[Contradiction, ...] = ()
    unverified: tuple[str, ...] = ()  # facts that could not be compared
    signature: str = ""  # id of the key that signed it
    grade: Grade | None = None  # the best of its rebuilds; None if it was not rebuilt
    rebuilds: tuple[Rebuild, ...] = ()
    differences: tuple[Difference, ...] = ()  # between the environments
    explanation: str = ""  # why it cannot be rebuilt
    missing: tuple[str, ...] = ()  # files that were not logged, and what was used instead

    def answer(self, required: AtLeast) -> Answer:
        """``verified`` if nothing is contradicted, all was compared, and the grade, if any, is good enough."""
        if not self.whole or self.contradictions:
            return "contradicted"
        enough = self.grade is None or reaches(self.grade, required)
        return "verified" if enough and not self.unverified else "not verified"

    def passes(self, required: AtLeast) -> bool:
        """True for a verified run."""
        return self.answer(required) == "verified"

    def headline(self, required: AtLeast = "tactics") -> str:
        """The result in a few words."""
        if not self.whole:
            reason = self.contradictions[0].text() if self.contradictions else "no manifest"
            return f"contradicted, incomplete: {reason}"
        parts = [self.answer(required), f"whole, {self.files} files"]
        if self.contradictions:
            parts[1] = f"{len(self.contradictions)} contradictions in {self.files} files"
        if self.signature:
            parts.append(f"signed by {self.signature[:12]}")
        return ", ".join([*parts, *([self.grade] if self.grade else [])])

    def details(self) -> Iterable[str]:
        """Everything beyond the headline, in lines of plain text."""
        yield from map(Contradiction.text, self.contradictions)
        yield from map("not verified: {}".format, self.unverified)
        for rebuild in self.rebuilds:
            yield f"by {rebuild.way}: {rebuild.grade}{f' ({rebuild.reason})' if rebuild.reason else ''}"
            for label, differences in (("tactics", rebuild.tactics), ("outputs", rebuild.outputs)):
                for difference in differences[:_MAX_DIFFERENCES]:
                    yield f"  {label}: {difference.text()}"
                if len(differences) > _MAX_DIFFERENCES:
                    yield f"  {label}: and {len(differences) - _MAX_DIFFERENCES} more"
        for difference in self.differences:
            yield f"environment: {difference.text()}"
        if self.explanation:
            yield self.explanation
        yield from map("missing: {}".format, self.missing)


@dataclass(frozen=True, kw_only=True)
class LogAudit(Record):
    """What the log of the store shows beyond the audited runs. ``head`` is today's; empty without a log."""

    head: str = ""
    contradictions: tuple[Contradiction, ...] = ()
    unverified: tuple[str, ...] = ()
    signed: str = ""  # by whom the given heads are signed

    def lines(self) -> Iterable[str]:
        """Contradictions, unverified facts, and the heads, in lines of plain text."""
        yield from map(Contradiction.text, self.contradictions)
        yield from map("not verified: {}".format, self.unverified)
        if self.signed:
            yield self.signed
        yield f"head of the store's log: {self.head or 'not verified, since there is no log'}"


@dataclass(frozen=True, kw_only=True)
class AuditResult(OpResult):
    """The result of an audit; ``at_least`` is the required grade."""

    runs: tuple[RunAudit, ...]
    at_least: AtLeast = "tactics"
    seconds: float = 0.0
    log: LogAudit = LogAudit()

    @property
    def failed(self) -> tuple[RunAudit, ...]:
        """Runs without a verified answer."""
        return tuple(run for run in self.runs if not run.passes(self.at_least))

    @property
    def verdict(self) -> Verdict:
        """``good`` if every run is verified, ``bad`` if one is contradicted, else ``unproven``."""
        answers = {run.answer(self.at_least) for run in self.runs}
        wrong = "contradicted" in answers or self.log.contradictions
        return "bad" if wrong else "unproven" if "not verified" in answers or self.log.unverified else "good"

    @property
    def grades(self) -> dict[Grade, int]:
        """Number of runs by grade, best first."""
        counts = Counter(run.grade for run in self.runs if run.grade is not None)
        return {grade: counts[grade] for grade in GRADES if counts[grade]}

    @property
    def headline(self) -> str:
        """The number of passing runs."""
        wrong = f"; {len(self.log.contradictions)} contradictions with the log" if self.log.contradictions else ""
        unsigned = "; the given head is not signed" if self.log.unverified else ""
        return f"{len(self.runs) - len(self.failed)} of {len(self.runs)} runs pass{wrong}{unsigned}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Contradictions with the log, and each unverified run with its first problem."""
        reasons = [*map(Contradiction.text, self.log.contradictions), *self.log.unverified]
        for run in self.failed:
            problem = next(iter(run.details()), run.headline(self.at_least))
            reasons.append(f"{' '.join(filter(None, (run.name, run.id[:8])))}: {problem}")
        return tuple(reasons)

    @property
    def figures(self) -> str:
        """The head of the store's log, to be kept."""
        return self.log.head and f"the log's head is {self.log.head}"

    def overview(self) -> Table | None:
        """Return a row for each run, those that do not pass first."""
        rows = []
        for run in sorted(self.runs, key=lambda run: run.passes(self.at_least)):
            counts = str(run.files), str(len(run.contradictions))
            rows.append((run.id[:8], run.answer(self.at_least), run.grade or "-", *counts, run.name))
        columns = ("run", "answer", "rebuilt with", "files", "contradictions", "name")
        return Table(columns=columns, rows=tuple(rows)) if rows else None

    def sections(self) -> Iterable[Section]:
        """Grades, a table of the runs, and details of each; those of passing runs are folded."""
        rows = []
        for run in self.runs:
            outcome = run.answer(self.at_least), run.grade, run.headline(self.at_least)
            rows.append((run.name, run.kind, *outcome, run.id))
        yield Section(
            title="Runs",
            text=f"Only verified runs pass. Every build that was rebuilt must reach at least: {self.at_least}.",
            table=Table(columns=("run", "kind", "answer", "grade", "found", "id"), rows=tuple(rows)),
        )
        yield Section(title="Log of the store", text="\n".join(map("- {}".format, self.log.lines())))
        for run in self.runs:
            if lines := list(run.details()):
                table = Table(columns=("details",), rows=tuple((line.strip(),) for line in lines))
                yield Section(title=f"{run.name} {run.id[:8]}", table=table, folded=run.passes(self.at_least))
