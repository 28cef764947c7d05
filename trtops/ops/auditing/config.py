"""Options of an audit, and the grades of rebuilt engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from trtops import errors
from trtops.record import Record

Grade: TypeAlias = Literal[
    "bytes equal", "tactics equal", "outputs equal", "within tolerance", "drifted", "cannot be rebuilt"
]
"""Agreement of a rebuilt engine with the logged one, best first."""

GRADES: tuple[Grade, ...] = get_args(Grade)

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


def reaches(grade: Grade, least: AtLeast) -> bool:
    """True if a grade is at least as good as required."""
    return GRADES.index(grade) <= GRADES.index(LEAST[least])


@dataclass(frozen=True, kw_only=True)
class AuditConfig(Record):
    """Which runs are audited, and how.

    Attributes:
        runs: Run ids.
        experiment: All finished runs of an experiment.
        kind: Only runs of this kind.
        verdict: Only runs with this verdict.
        tags: Only runs with these tags, as names and values.
        accepted: All runs that an alias of the registry points to.
        sample: Number of runs drawn at random from those found; all if None.
        seed: Seed of the draw.
        rebuild: Rebuild each engine and grade it; otherwise only check integrity.
        ways: How engines are rebuilt.
        at_least: The grade that every run must reach.
        materials: Folder that is searched by digest for models that were not logged.
        keys: PEM files of public keys; every build must be signed with one of them.
        timeout_seconds: Time limit of a build and of its first inferences; None waits without limit.
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
    timeout_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        for name, value, known in (("at_least", self.at_least, tuple(LEAST)), *(("ways", w, WAYS) for w in self.ways)):
            if value not in known:
                raise errors.ConfigError(f"{name}: {value!r}. {errors.near(value, known)}")
        if self.rebuild and not self.ways:
            raise errors.ConfigError(f"ways is empty; expected some of {', '.join(WAYS)}.")
        if self.sample is not None and self.sample < 1:
            raise errors.ConfigError(f"sample is {self.sample}; expected 1 or more.")
        if self.runs and (self.filters or self.accepted):
            raise errors.ConfigError("Both run ids and a filter are given; give one of the two.")

    @property
    def filters(self) -> bool:
        """True if runs are selected by a filter."""
        return bool(self.experiment or self.kind or self.verdict or self.tags)
