"""Records of a bisection: its options, its plan, its trials and its result."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops import errors
from trtops.next_step import NextStep
from trtops.ops.result import OpResult
from trtops.record import Config, Record, setting
from trtops.tables import listed
from trtops.tables import table as text_table
from trtops.tactics.bisection import Repeatability, SearchOutcome
from trtops.tactics.contributions import SOUND_SPREAD
from trtops.tactics.model import Clauses
from trtops.tactics.record import Column
from trtops.tracking.base import Verdict

_REPEATS = "Both builds, built again, had the same errors to the last bit, so chance needed no further builds."
_CONTRADICTED = (
    "A bad build has no larger errors than a good one, so something else decides the verdict, or chance does. Chance "
    "was excluded by further builds."
)
_ANSWERED = ("confirmed", "sufficient", "contributions", "not replayable")

ChoiceKey: TypeAlias = tuple[str, str, str]
"""What identifies a unit, whatever the good build has instead: its kind, its name, and the choice of the bad build."""


@dataclass(frozen=True, kw_only=True)
class Unit(Record):
    """A layer or setting, replayable from either of two differing builds, with each build's choice in words."""

    kind: Literal["layer", "setting"]
    name: str
    good: str
    bad: str

    @property
    def column(self) -> Column:
        """The layer or setting."""
        return self.kind, self.name

    @property
    def choice(self) -> ChoiceKey:
        """What identifies the unit."""
        return self.kind, self.name, self.bad

    def describe(self) -> str:
        """The unit with the bad build's choice."""
        return f"{self.name}={self.bad}" if self.kind == "setting" else f"{self.name}: {self.bad}"


@dataclass(frozen=True, kw_only=True)
class BisectConfig(Config):
    """How long to search, and how sure to be.

    Attributes:
        confidence: The posterior probability that a named set needs, between 0.5 and 1. At most half of ``1 -
            confidence`` of bisections name a culprit where verdicts do not depend on what is mixed.
        max_builds: Maximum number of builds.
        max_minutes: No build starts after this many minutes; None for no limit.
        seed: Of the coin that chooses between a mixture and its opposite.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them (default: the campaign's).
        allow_scripts: Run scripts and commands that the campaign's run names. Anyone with write access to the store can
            change them.
    """

    confidence: float = 0.95
    max_builds: int = setting(60, least=1)
    max_minutes: float | None = None
    seed: int = 0
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise errors.ConfigError(f"confidence is {self.confidence}; expected at least 0.5 and less than 1.")


@dataclass(frozen=True, kw_only=True)
class BisectPlan(Record):
    """The start of a bisection. With it and the verdicts of its builds, a resumed bisection repeats the same steps."""

    good_run: str
    bad_run: str
    builds: int = 2  # of the campaign
    config: BisectConfig
    held: tuple[Unit, ...] = ()  # choices of the bad build that every mixture has
    suspected: tuple[Unit, ...] = ()  # known from earlier campaigns, or next to the first divergence; asked first

    @property
    def title(self) -> str:
        """The name of its run."""
        return f"bisect {self.good_run[:8]} and {self.bad_run[:8]}"


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """One mixture, with the verdict in the aspect under test, outputs or precision.

    It is counted as evidence if the build was made, and each unit came from one of the two builds; ``strayed`` are
    units that got something else than requested. ``error`` is the largest absolute one, against the golden outputs.
    """

    run_id: str
    taken: tuple[str, ...]
    verdict: Verdict
    counted: bool
    strayed: tuple[str, ...] = ()
    error: float | None = None


@dataclass(frozen=True, kw_only=True)
class BisectCulprit(Record):
    """A culprit set of units, with the number of builds behind it and its posterior probability.

    ``clauses`` are positions in ``units``: a build is bad that has all units of any clause. ``((0,),)`` is one culprit,
    ``((0, 1),)`` two that fail only together, ``((0,), (1,))`` either of two.
    """

    units: tuple[Unit, ...]
    clauses: Clauses
    probability: float
    builds: int

    def describe(self) -> str:
        """The set in words."""
        clauses = [" together with ".join(self.units[unit].describe() for unit in clause) for clause in self.clauses]
        return ", or ".join(clauses)


@dataclass(frozen=True, kw_only=True)
class Contribution(Record):
    """The contribution of a unit to an output's error; 95 % interval: ``value`` +- ``margin``."""

    unit: Unit
    value: float
    margin: float


@dataclass(frozen=True, kw_only=True)
class AddedErrors(Record):
    """Errors of an output as a sum over several units.

    ``contributions`` are the units that surely take part, the largest first. ``low`` and ``high`` are the smallest and
    the largest error among the builds, ``highest`` is the largest that the sum predicts. It is settled if more
    mixtures would not change which units are named.
    """

    output: str
    low: float
    high: float
    highest: float
    contributions: tuple[Contribution, ...]
    settled: bool
    log_odds: float = 0.0  # of a sum, compared with one choice or pair that decides

    def describe(self, builds: str) -> str:
        """The sum in sentences."""
        spread = self.high - self.low
        parts = [
            f"{c.unit.describe()} adds {c.value:.2g} (+-{c.margin:.1g}), {c.value / spread:.0%} of the spread"
            for c in self.contributions
        ]
        broken = "no choice is broken" if self.high <= SOUND_SPREAD * self.low else "no choice decides alone"
        return (
            f"The errors of output {self.output!r} add up over choices, found in {builds}: "
            f"{'; '.join(parts) or 'each adds too little to name it'}. The limit lies inside the spread of the builds, "
            f"{self.low:.3g} to {self.high:.3g}: {broken}. A limit above {self.highest:.3g} accepts them all."
        )


@dataclass(frozen=True, kw_only=True)
class BisectResult(OpResult):
    """The outcome of a bisection: ``undecided`` if the budget was too small, or no difference can be chosen.

    ``suspects`` probably take part in a combination.
    ``consequences`` are layers that differ and cannot be chosen; they follow from the ``units`` that can, or from
    timing. ``follows`` is the one that explains verdicts better than any units. ``suspected`` were asked first, because
    of the store's history or the first tensor that diverges.
    """

    is_named_by_outcome = True

    outcome: SearchOutcome
    culprits: tuple[BisectCulprit, ...]
    suspects: tuple[Unit, ...] = ()
    good_run: str
    good_verdict: Verdict = "good"  # or ``unproven``
    bad_run: str
    units: int
    consequences: tuple[str, ...] = ()
    follows: str = ""
    held: tuple[Unit, ...] = ()
    suspected: tuple[Unit, ...] = ()
    added: AddedErrors | None = None  # with the outcome ``contributions``
    repeatability: Repeatability = "unknown"
    trials: tuple[Trial, ...]

    @property
    def verdict(self) -> Verdict:
        """``good`` if a culprit was confirmed, now or again, or a sum was measured; else ``bad``."""
        return "good" if self.outcome in _ANSWERED else "bad"

    @property
    def next_step(self) -> NextStep | None:
        """Pin the good build as free of culprits, unless its data proves nothing."""
        if not (self.run_id and self.good_run and self.good_verdict == "good"):
            return super().next_step
        return NextStep("runs promote", {"run": self.good_run})

    @property
    def summary(self) -> str:
        """How it ended, in sentences."""
        builds = f"{len(self.trials)} builds"
        names = "; and ".join(culprit.describe() for culprit in self.culprits)
        held = " together with ".join(unit.describe() for unit in self.held)
        if not self.units:
            return f"The two builds differ in nothing that can be chosen; {len(self.consequences)} layers cannot be."
        if self.outcome == "sufficient":
            return f"With {held} the good build is bad too, so it needs nothing that the good build lacks."
        doubt = f" {_CONTRADICTED}" if self.repeatability == "contradicted" else ""
        if self.outcome == "confirmed" and held:
            return f"{held} is not enough. It also needs, found in {builds}: {names}.{doubt}"
        if self.outcome == "confirmed":
            return f"Confirmed in {builds}: {names}.{doubt}"
        if self.added is not None:
            return self.added.describe(builds)
        if self.outcome == "not replayable":
            return (
                f"The verdicts of {builds} follow layer {self.follows!r} better than anything that can be chosen. It "
                "differs between the two builds, and no replay sets it: compare its choices with trtops inspect "
                "diff-tactics."
            )
        if self.outcome == "units missing":
            return (
                f"With all {self.units} differences of the bad build, the good build stays good. What makes the bad "
                "build bad was not recorded, or its verdict was chance."
            )
        if self.outcome == "not repeatable":
            return f"After {builds} the verdicts do not follow what was mixed. Is the check repeatable?"
        if self.outcome == "combination":
            suspects = ", ".join(unit.describe() for unit in self.suspects) or "none stands out"
            return f"A combination of choices, not resolved by {builds}. Most suspicious: {suspects}."
        failed = sum(not trial.counted for trial in self.trials)
        failures = f" {failed} of them could not be built as requested." if failed else ""
        return f"{builds} were too few to decide.{failures} Give a larger budget, or another pair of builds."

    @property
    def because(self) -> tuple[str, ...]:
        """How it ended."""
        return (self.summary,)

    def body(self) -> Iterable[str]:
        """The summary, the culprits, and every build."""
        yield self.summary
        for culprit in self.culprits:
            yield f"- **{culprit.describe()}** (probability {culprit.probability:.3f}, {culprit.builds} builds)"
        if self.repeatability == "repeats":
            yield f"\n{_REPEATS}"
        if self.suspected:
            suspected = ", ".join(unit.describe() for unit in self.suspected)
            yield f"\nAsked first, since confirmed in earlier campaigns or first to diverge: {suspected}."
        if self.consequences:
            names = listed([f"`{name}`" for name in self.consequences], 8)
            yield f"\n{len(self.consequences)} layers differ that cannot be chosen, and follow from others: {names}."
        rows = []
        for number, trial in enumerate(self.trials, 1):
            error = "-" if trial.error is None else f"{trial.error:.3g}"
            verdict = trial.verdict if trial.counted else f"{trial.verdict}, not counted"
            rows.append((str(number), verdict, error, listed(trial.taken, 4) or "nothing"))
        if rows:
            yield f"\n```\n{text_table(('build', 'verdict', 'max_abs', 'from the bad build'), rows)}\n```"
