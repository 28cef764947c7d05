"""What an audit is asked for, and the grades that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from trtops import errors
from trtops.record import Record

Grade: TypeAlias = Literal[
    "bytes equal", "tactics equal", "outputs equal", "within tolerance", "drifted", "cannot be rebuilt"
]
"""How well a build came out again, the best first."""

GRADES: tuple[Grade, ...] = get_args(Grade)

AtLeast: TypeAlias = Literal["bytes", "tactics", "outputs", "tolerance"]
"""The grade that a run must reach, in a word."""

LEAST: dict[AtLeast, Grade] = {
    "bytes": "bytes equal",
    "tactics": "tactics equal",
    "outputs": "outputs equal",
    "tolerance": "within tolerance",
}

WayName: TypeAlias = Literal["replay", "timing cache", "plain"]
"""How a build is made again: its tactics prescribed, with the timings that it knew, or as it was asked for at first."""

WAYS: tuple[WayName, ...] = get_args(WayName)


def reaches(grade: Grade, least: AtLeast) -> bool:
    """Whether a grade is as good as the one asked for, or better."""
    return GRADES.index(grade) <= GRADES.index(LEAST[least])


@dataclass(frozen=True, kw_only=True)
class AuditConfig(Record):
    """Which runs are audited, and how.

    Attributes:
        runs: Ids of runs, or what they begin with.
        experiment: All finished runs of an experiment.
        kind: Of a filter: only runs of this kind.
        verdict: Of a filter: only runs with this verdict.
        tags: Of a filter: only runs with these tags, as names and values.
        accepted: All runs that an alias of the registry points to.
        sample: So many of the runs found, drawn at random; all unless given.
        seed: Of the draw.
        rebuild: Build each run again and grade it; without, runs are only held against themselves.
        ways: How they are built again.
        at_least: The grade that every run must reach.
        materials: A folder in which what was not logged is looked for, by digest.
        keys: Public keys, as PEM files: every build must be signed with one of them.
        repeats: How often an engine is run to see what differs from run to run.
        timeout_seconds: How long a build may take, and how long the first inferences with it; None waits for ever.
        resume: Resume an audit of the same that was cut short, if there is one.
    """

    runs: tuple[str, ...] = ()
    experiment: str | None = None
    kind: str | None = None
    verdict: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    accepted: bool = False
    sample: int | None = None
    seed: int = 0
    rebuild: bool = True
    ways: tuple[WayName, ...] = WAYS
    at_least: AtLeast = "tactics"
    materials: str | None = None
    keys: tuple[str, ...] = ()
    repeats: int = 3
    timeout_seconds: float | None = 1800.0
    resume: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (("at_least", self.at_least, tuple(LEAST)), *(("ways", w, WAYS) for w in self.ways)):
            if value not in known:
                raise errors.ConfigError(f"{name}: {value!r}. {errors.near(value, known)}")
        if self.rebuild and not self.ways:
            raise errors.ConfigError(f"There is no way to rebuild: ways is empty. Expected some of {', '.join(WAYS)}.")
        counts = {"repeats": self.repeats, "sample": 1 if self.sample is None else self.sample}
        for name, count in counts.items():
            if count < 1:
                raise errors.ConfigError(f"{name} is {count}; expected 1 or more.")
        if self.runs and (self.filters or self.accepted):
            raise errors.ConfigError("Runs are given by their ids and by a filter; give one of the two.")

    @property
    def filters(self) -> bool:
        """Whether runs are chosen by what they are."""
        return bool(self.experiment or self.kind or self.verdict or self.tags)
