"""What an audit found: of each run, of all of them, and as pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trtops.ops.auditing.config import GRADES, AtLeast, Grade, WayName, reaches
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section, Table
from trtops.tracking.base import Verdict


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A value, and where it is told.

    Attributes:
        place: Where.
        value: What is told there.
    """

    place: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Contradiction(Record):
    """Something that is told in several places, and not alike.

    Attributes:
        what: The file, or the fact.
        claims: What each place says.
        why: What is wrong, where two values side by side do not say it.
    """

    what: str
    claims: tuple[Claim, ...] = ()
    why: str = ""

    def text(self) -> str:
        """It in a line."""
        told = "; ".join(f"{claim.place} says {claim.value}" for claim in self.claims)
        return f"{self.what}: {'. '.join(filter(None, (self.why, told)))}"


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """Something that was not as it was then.

    Attributes:
        what: A field of the environment, a package, a layer, an output's statistic.
        then: As it was logged.
        now: As it is here.
    """

    what: str
    then: str
    now: str

    def text(self) -> str:
        """It in a few words."""
        return f"{self.what}: {self.then or 'none'} -> {self.now or 'none'}"


@dataclass(frozen=True, kw_only=True)
class Rebuild(Record):
    """A build made again in one way.

    Attributes:
        way: In which.
        grade: How well it came out.
        why: Why it could not be made, or what the grade rests on.
        engine_sha256: Digest of the engine; empty if there is none.
        seconds: Wall time of the build.
        tactics: Layers and settings that chose differently.
        precisions: Layers of another precision.
        outputs: Outputs whose statistics differ.
    """

    way: WayName
    grade: Grade
    why: str = ""
    engine_sha256: str = ""
    seconds: float = 0.0
    tactics: tuple[Difference, ...] = ()
    precisions: tuple[Difference, ...] = ()
    outputs: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PutBack(Record):
    """A build made again here with one thing as it was then.

    Attributes:
        what: What was put back.
        grade: How well the build came out.
        why: Why it could not be made, if it could not.
    """

    what: str
    grade: Grade
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class RunAudit(Record):
    """One run, audited.

    Attributes:
        id: Its id.
        name: Its name.
        experiment: Its experiment.
        kind: What it is of.
        whole: Whether it has its manifest and every file matches it.
        files: How many files were read and matched.
        contradictions: What is not told alike everywhere.
        signature: Whose key signed it; empty if nobody's.
        dropped: Artifacts that were dropped to make room, by their paths.
        grade: How well it was built again, in the best way; None if it was not tried, or is no build.
        rebuilds: Each way.
        differences: What was another environment then.
        put_back: What putting single things back changed.
        explanation: Which difference explains why it is not the same, if one does.
        missing: What was not logged, and what stood in for it.
        seconds: How long the audit of it took.
    """

    id: str
    name: str = ""
    experiment: str = ""
    kind: str = ""
    whole: bool = True
    files: int = 0
    contradictions: tuple[Contradiction, ...] = ()
    signature: str = ""
    dropped: tuple[str, ...] = ()
    grade: Grade | None = None
    rebuilds: tuple[Rebuild, ...] = ()
    differences: tuple[Difference, ...] = ()
    put_back: tuple[PutBack, ...] = ()
    explanation: str = ""
    missing: tuple[str, ...] = ()
    seconds: float = 0.0

    def passes(self, least: AtLeast) -> bool:
        """Whether nothing contradicts itself, and the grade is good enough where there is one."""
        return self.whole and not self.contradictions and (self.grade is None or reaches(self.grade, least))

    def headline(self) -> str:
        """The outcome in a few words."""
        if not self.whole:
            return f"not whole: {self.contradictions[0].text() if self.contradictions else 'no manifest'}"
        said = [f"whole, {self.files} files"]
        if self.contradictions:
            said = [f"{len(self.contradictions)} contradictions in {self.files} files"]
        if self.dropped:
            said.append(f"{len(self.dropped)} dropped")
        if self.signature:
            said.append(f"signed by {self.signature[:12]}")
        return ", ".join([*said, *([self.grade] if self.grade else [])])

    def details(self) -> Iterable[str]:
        """What is to be said of it beyond the headline, in lines of plain text."""
        yield from (each.text() for each in self.contradictions)
        for rebuild in self.rebuilds:
            yield f"by {rebuild.way}: {rebuild.grade}{f' ({rebuild.why})' if rebuild.why else ''}"
            for name in ("tactics", "precisions", "outputs"):
                found: tuple[Difference, ...] = getattr(rebuild, name)
                yield from (f"  {name}: {each.text()}" for each in found[:8])
                if len(found) > 8:
                    yield f"  {name}: and {len(found) - 8} more"
        yield from (f"environment: {each.text()}" for each in self.differences)
        yield from (f"with {each.what} put back: {each.grade}" for each in self.put_back)
        yield from filter(None, (self.explanation,))
        yield from (f"missing: {each}" for each in self.missing)
        yield from (f"dropped: {each}" for each in self.dropped)


@dataclass(frozen=True, kw_only=True)
class AuditResult(OpResult):
    """What an audit found.

    Attributes:
        runs: Each run.
        at_least: The grade that each had to reach.
        seconds: How long it took, of an audit that was resumed without the time in between.
    """

    runs: tuple[RunAudit, ...]
    at_least: AtLeast = "tactics"
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[RunAudit, ...]:
        """The runs that contradict themselves or did not reach the grade."""
        return tuple(run for run in self.runs if not run.passes(self.at_least))

    @property
    def verdict(self) -> Verdict:
        """``good`` if every run passes."""
        return "bad" if self.failed else "good"

    @property
    def grades(self) -> dict[Grade, int]:
        """How many runs have each grade, the best first."""
        counts = Counter(run.grade for run in self.runs if run.grade is not None)
        return {grade: counts[grade] for grade in GRADES if counts[grade]}

    @property
    def headline(self) -> str:
        """How many pass."""
        return f"{len(self.runs) - len(self.failed)} of {len(self.runs)} runs pass"

    def sections(self) -> Iterable[Section]:
        """Grades, a table of the runs, and what is to be said of each, folded away where it passes."""
        asked = f"Every run had to be free of contradictions and, where it is a build, at least: {self.at_least}."
        grades = "\n".join(f"- {grade}: {count}" for grade, count in self.grades.items())
        rows = tuple(
            (r.name, r.kind, "good" if r.passes(self.at_least) else "bad", r.grade, r.headline(), r.id)
            for r in self.runs
        )
        columns = ("run", "kind", "passes", "grade", "found", "id")
        yield Section(
            title="Runs",
            text=f"{asked}\n\n{grades}",
            chart=self._grades_chart(),
            table=Table(columns=columns, rows=rows),
        )
        for run in self.runs:
            if lines := list(run.details()):
                table = Table(columns=("what was found",), rows=tuple((line.strip(),) for line in lines))
                yield Section(title=f"{run.name} {run.id[:8]}", table=table, folded=run.passes(self.at_least))

    def _grades_chart(self) -> Chart | None:
        """How many builds have each grade; none where nothing was built again."""
        points = tuple(
            Point(label=grade, y=float(count), tone="good" if reaches(grade, self.at_least) else "bad")
            for grade, count in self.grades.items()
        )
        return Chart(title="Builds of each grade", form="bars", x="builds", points=points) if points else None

    def body(self) -> Iterable[str]:
        """Grades, a line for each run, and what is wrong with those that do not pass."""
        yield f"Every run had to be free of contradictions and, where it is a build, at least: {self.at_least}."
        yield ""
        yield from (f"- {grade}: {count}" for grade, count in self.grades.items())
        yield from ("", "| run | name | kind | passes | grade | found |", "|---|---|---|---|---|---|")
        for run in self.runs:
            passes = "yes" if run.passes(self.at_least) else "**no**"
            name = run.name.replace("|", "\\|")
            found = run.headline().replace("|", "\\|")
            yield f"| `{run.id[:8]}` | {name} | {run.kind} | {passes} | {run.grade or '-'} | {found} |"
        for run in self.runs:
            if lines := list(run.details()):
                yield from ("", f"## {run.name} `{run.id}`", "", *(f"- {line.strip()}" for line in lines))
