"""Records of a bisection: its options, its plan, its trials and its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import table as text_table
from trtops.tactics.bisection import CHANCE, Outcome
from trtops.tactics.effect import Effect
from trtops.tactics.model import Bools, Clauses
from trtops.tactics.table import CampaignTable
from trtops.tracking.base import Verdict
from trtops.verdict import BadIn

Key: TypeAlias = "tuple[str, str, str]"
"""Kind, name and bad choice of a unit."""


@dataclass(frozen=True, kw_only=True)
class Unit(Record):
    """A layer or a setting in which two builds differ, and that can be taken from either.

    Attributes:
        kind: Which of the two it is.
        name: Its name.
        good: What the good build has, in words.
        bad: What the bad build has.
    """

    kind: Literal["layer", "setting"]
    name: str
    good: str
    bad: str

    @property
    def choice(self) -> Key:
        """Identifies the unit, whatever the good build has instead."""
        return self.kind, self.name, self.bad

    def describe(self) -> str:
        """The unit with what the bad build has."""
        return f"{self.name}={self.bad}" if self.kind == "setting" else f"{self.name}: {self.bad}"

    def is_bad_in(self, table: CampaignTable) -> Bools:
        """Which builds of a table have what the bad build has, of shape ``(builds,)``."""
        return self._has(table, self.bad)

    def is_good_in(self, table: CampaignTable) -> Bools:
        """Which builds have what the good build has, of shape ``(builds,)``."""
        return self._has(table, self.good)

    def _has(self, table: CampaignTable, choice: str) -> Bools:
        names, values = (
            (table.settings, table.values)
            if self.kind == "setting"
            else (table.layers, [known.tactic for known in table.choices])
        )
        if self.name not in names:
            return np.zeros(len(table), np.bool_)
        codes = table.setting_codes if self.kind == "setting" else table.codes
        wanted = [code for code, value in enumerate(values) if value == choice]
        has: Bools = np.isin(codes[:, names.index(self.name)], wanted)
        return has


@dataclass(frozen=True, kw_only=True)
class BisectConfig(Record):
    """How long to search, and how sure to be.

    Attributes:
        confidence: What a confirmation needs, between 0.5 and 1: at most ``1 - confidence`` of bisections name a
            culprit where verdicts do not depend on what is mixed, and the named set needs that posterior probability.
        confidence_of_one: What suffices against chance where a single layer or setting is most probable and later
            builds check it again, as a campaign's do; ``confidence`` unless given.
        max_builds: Maximum number of builds.
        max_minutes: No build starts after this many minutes; None for no limit.
        max_culprits: Maximum number of sets of culprits, each making builds bad alone.
        seed: Of the coin that chooses between a mixture and its opposite.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them; the campaign's unless given.
        allow_scripts: Run scripts and commands that the campaign's run names. Anyone with write access to the store can
            change them.
    """

    confidence: float = 0.95
    confidence_of_one: float | None = None
    max_builds: int = 60
    max_minutes: float | None = None
    max_culprits: int = 4
    seed: int = 0
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False

    def __post_init__(self) -> None:
        for name, value in (("confidence", self.confidence), ("confidence_of_one", self.confidence_of_one)):
            if value is not None and not 0.5 <= value < 1:
                raise errors.ConfigError(f"{name} is {value}; expected at least 0.5 and less than 1.")
        for name, count in (("max_builds", self.max_builds), ("max_culprits", self.max_culprits)):
            if count < 1:
                raise errors.ConfigError(f"{name} is {count}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class BisectPlan(Record):
    """The start of a bisection. With it and the verdicts of its builds, a resumed bisection repeats the same steps.

    Attributes:
        good_run: The good build.
        bad_run: The bad build.
        seen: The campaign's builds: a digit for each unit, 1 where a build has what the bad one has, 0 where it has
            what the good one has, 2 otherwise; and whether it was bad.
        config: How long, and how sure.
        given: Confirmed choices that every mixture has: the question is what else they need.
        chance: Prior probability that the bad build's verdict is wrong, or that replayed choices do not decide.
    """

    good_run: str
    bad_run: str
    seen: tuple[tuple[str, bool], ...]
    config: BisectConfig
    given: tuple[Unit, ...] = ()
    chance: float = CHANCE


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """One mixture.

    Attributes:
        run_id: Its run.
        taken: Names of the units requested from the bad build.
        verdict: The verdict in the aspect under test, outputs or precision; ``error`` if the build failed.
        bad_otherwise: Whether the build is bad in the other aspect.
        counted: Whether it is evidence: the build was made, and each unit came from one of the two builds.
        strayed: Units that got something else than requested.
        also_changed: Other layers that changed.
        error: Largest absolute difference from the golden outputs, over all outputs; None if nothing was compared.
        reason: Why it is not good, in words.
    """

    run_id: str
    taken: tuple[str, ...]
    verdict: Verdict
    bad_otherwise: bool = False
    counted: bool
    strayed: tuple[str, ...] = ()
    also_changed: tuple[str, ...] = ()
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Culprit(Record):
    """A set of units that makes builds bad.

    Attributes:
        units: The units, all of those in ``clauses``.
        clauses: Positions in ``units``: a build is bad that has all units of any clause. ``((0,),)`` is one culprit,
            ``((0, 1),)`` two that fail only together, ``((0,), (1,))`` either of two.
        probability: Posterior probability of exactly this set.
        log10_e_value: Evidence that the verdict depends on the units at all, as a power of ten.
        builds: Number of builds it took.
        effect: What it does to the error; None if the errors of too few builds are known.
    """

    units: tuple[Unit, ...]
    clauses: Clauses
    probability: float
    log10_e_value: float
    builds: int
    effect: Effect | None = None

    def describe(self) -> str:
        """The set in words."""
        clauses = [" together with ".join(self.units[unit].describe() for unit in clause) for clause in self.clauses]
        return ", or ".join(clauses)


@dataclass(frozen=True, kw_only=True)
class BisectResult(OpResult):
    """How a bisection ended.

    Attributes:
        outcome: ``confirmed``; ``sufficient`` where the given choices make the good build bad too; ``not repeatable``
            where verdicts do not follow what is mixed; ``combination`` where they follow more than two units;
            ``undecided`` where the budget was too small, or nothing differs that can be chosen.
        summary: The same in sentences.
        culprits: Every confirmed set.
        suspects: With ``combination``, the units that probably take part.
        complete: Whether the bad build is good without the culprits.
        good_run: The good build.
        bad_run: The bad build.
        units: Number of layers and settings that could be chosen.
        consequences: Layers that differ and cannot be chosen; they follow from the others.
        asked: The aspect under test: outputs, where those of the bad build are bad, else the precision it computes in;
            None where its run does not say.
        given: Confirmed choices that every mixture has.
        trials: The builds.
        seconds: Wall time.
        overhead_seconds: The part of it that was not spent on building.
    """

    outcome: Outcome
    summary: str
    culprits: tuple[Culprit, ...]
    suspects: tuple[Unit, ...] = ()
    complete: bool
    good_run: str
    bad_run: str
    units: int
    consequences: tuple[str, ...]
    asked: BadIn | None = None
    given: tuple[Unit, ...] = ()
    trials: tuple[Trial, ...]
    seconds: float
    overhead_seconds: float

    @property
    def verdict(self) -> Verdict:
        """``good`` if a culprit was confirmed, now or again, else ``bad``."""
        return "good" if self.outcome in ("confirmed", "sufficient") else "bad"

    @property
    def headline(self) -> str:
        """The outcome."""
        return self.outcome

    @property
    def bad_share(self) -> float:
        """The share of bad mixtures among those that count; 0 without any."""
        verdicts = [trial.verdict for trial in self.trials if trial.counted]
        return verdicts.count("bad") / len(verdicts) if verdicts else 0.0

    @property
    def next_step(self) -> str:
        """Pin the good build, which has no culprit."""
        return f"trtops runs promote {self.good_run}" if self.run_id and self.good_run else super().next_step

    def bad_mixture(self, units: Sequence[Unit]) -> str:
        """The run of the bad mixture with only these culprits and the fewest other units; empty without one.

        Its verdict is surer than that of the bad build, which may be wrong.
        """
        wanted = {unit.name for unit in units}
        clauses = [{c.units[place].name for place in clause} for c in self.culprits for clause in c.clauses]
        having = [
            trial
            for trial in self.trials
            if trial.counted
            and trial.verdict == "bad"
            and not trial.strayed
            and wanted <= set(trial.taken)
            and not any(other <= set(trial.taken) for other in clauses if other != wanted)
        ]
        return min(having, key=lambda trial: len(trial.taken)).run_id if having else ""

    def body(self) -> Iterable[str]:
        """The summary, the culprits, and every build."""
        yield self.summary
        if self.asked == "precision":
            yield "\nThe bad build's outputs are good: why does it not compute in the requested precision?\n"
        for culprit in self.culprits:
            effect = f"; {culprit.effect.describe()}" if culprit.effect is not None else ""
            yield f"- **{culprit.describe()}** (probability {culprit.probability:.3f}, {culprit.builds} builds){effect}"
        if self.consequences:
            names = _shorten([f"`{name}`" for name in self.consequences], 8)
            yield f"\n{len(self.consequences)} layers differ that cannot be chosen, and follow from others: {names}."
        others = [trial for trial in self.trials if trial.bad_otherwise]
        if others:
            yield f"\n{len(others)} builds count as good, which are bad for another reason: {others[0].reason[:300]}"
        rows = []
        for number, trial in enumerate(self.trials, 1):
            verdict = trial.verdict + ", bad otherwise" * trial.bad_otherwise + ", not counted" * (not trial.counted)
            error = "-" if trial.error is None else f"{trial.error:.3g}"
            rows.append((str(number), verdict, error, _shorten(trial.taken, 4) or "nothing"))
        if rows:
            yield f"\n```\n{text_table(('build', 'verdict', 'max_abs', 'from the bad build'), rows)}\n```"


def summarize(result: BisectResult) -> str:
    """How a bisection ended, in sentences."""
    builds = f"{len(result.trials)} builds"
    names = "; and ".join(culprit.describe() for culprit in result.culprits)
    given = " together with ".join(unit.describe() for unit in result.given)
    if not result.units:
        more = f"; {len(result.consequences)} layers differ that cannot." if result.consequences else "."
        return f"The two builds differ in nothing that can be chosen{more}"
    if result.outcome == "sufficient":
        return f"With {given} the good build is bad too, so it needs nothing that the good build lacks."
    if result.outcome == "confirmed" and given:
        return f"{given} is not enough. It also needs, found in {builds}: {names}."
    if result.outcome == "confirmed":
        rest = (
            "Without it the bad build is good."
            if result.complete
            else "Something else makes the bad build bad as well."
        )
        return f"Confirmed in {builds}: {names}. {rest}"
    if result.outcome == "not repeatable":
        return (
            f"After {builds} the verdicts do not follow what was mixed: replayed choices do not decide them. "
            "Measure the noise from run to run."
        )
    if result.outcome == "combination":
        suspects = ", ".join(unit.describe() for unit in result.suspects) or "none stands out"
        return f"A combination of choices, not resolved by {builds}. Most suspicious: {suspects}."
    failed = sum(not trial.counted for trial in result.trials)
    why = f" {failed} of them could not be built as requested." if failed else ""
    return f"{builds} were too few to decide.{why} Give a larger budget, or another pair of builds."


def _shorten(names: Sequence[str], shown: int) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
