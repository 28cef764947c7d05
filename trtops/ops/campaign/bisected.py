"""What a bisection begins with, and what it comes to: records that are kept, and their pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops import errors
from trtops.ops.campaign.mixture import Mixture, Unit
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import table
from trtops.tactics.bisection import CHANCE
from trtops.tactics.several import Clauses, clauses_text
from trtops.tactics.sizes import Effect
from trtops.tracking.base import Verdict
from trtops.verdict import BadIn

Outcome: TypeAlias = Literal["convicted", "enough", "not repeatable", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class BisectConfig(Record):
    """How long to search, and how sure to be.

    Attributes:
        confidence: What a conviction needs, between 0.5 and 1: at most ``1 - confidence`` of bisections convict where
            verdicts do not depend on what is mixed, and the named set needs that posterior probability.
        confidence_of_one: What suffices against chance where one layer or setting alone is most probable, and further builds will
            weigh it again, as a campaign's do; ``confidence`` unless given.
        max_builds: Builds at most.
        max_minutes: No build is begun after so many minutes; None for no limit.
        max_culprits: How many sets of culprits to look for, each of which makes builds bad without the others.
        seed: Of the coin that chooses between a mixture and its opposite.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them; the campaign's unless given.
        allow_scripts: Run scripts and commands that the campaign's run names, which whoever may write to the store can change.
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
class Trial(Record):
    """One mixture.

    Attributes:
        run_id: Its run.
        taken: Names of the units that were to come from the bad build.
        verdict: How the build was evaluated in what is asked about, outputs or precision; ``error`` if it failed.
        bad_otherwise: Whether it is bad all the same, in the other one of these.
        counted: Whether it says something: the build was made, and each unit came from one of the two builds.
        strayed: Units that got something else than was wanted.
        also_changed: Layers that changed beside.
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

    def describe_verdict(self) -> str:
        """The verdict, and what is to be known of it."""
        otherwise = ", bad otherwise" if self.bad_otherwise else ""
        return f"{self.verdict}{otherwise}{'' if self.counted else ', not counted'}"


@dataclass(frozen=True, kw_only=True)
class Culprit(Record):
    """A set of units that makes builds bad.

    Attributes:
        units: The units, all of those in ``clauses``.
        clauses: Positions in ``units``: a build is bad that has all units of any clause. ``((0,),)`` is one culprit,
            ``((0, 1),)`` two that fail only together, ``((0,), (1,))`` two of which either does.
        probability: Posterior probability of the very set.
        log10_e_value: Evidence that the verdict depends on the units at all, as a power of ten.
        builds: How many builds it took.
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
        return clauses_text(self.clauses, lambda unit: self.units[unit].describe(), ",")


@dataclass(frozen=True, kw_only=True)
class BisectResult(OpResult):
    """How a bisection ended.

    Attributes:
        outcome: ``convicted``; ``enough`` where what was given makes the good build bad too, and needs nothing beside;
            ``not repeatable`` where the verdicts do not follow what is mixed: replayed choices do not decide them; ``cannot
            be told`` where the budget was too small, or nothing differs that can be chosen.
        summary: The same in sentences.
        culprits: Every set that was convicted.
        complete: Whether the bad build is good without them: nothing else makes it bad.
        good_run: The good build.
        bad_run: The bad build.
        units: How many layers and settings could be chosen.
        consequences: Layers that differ and cannot be chosen; what they got follows from the others.
        asked: What the culprits are to have made bad: outputs, where those of the bad build are, else the precision that it
            computes in; None where its run does not say.
        given: What was convicted before, and every mixture has.
        together: What was asked about, if no culprits were searched for.
        trials: The builds.
        seconds: Wall time.
        overhead_seconds: What of it was spent on choosing and weighing, not on building.
    """

    outcome: Outcome
    summary: str
    culprits: tuple[Culprit, ...]
    complete: bool
    good_run: str
    bad_run: str
    units: int
    consequences: tuple[str, ...]
    asked: BadIn | None = None
    given: tuple[Unit, ...] = ()
    together: tuple[Unit, ...] = ()
    trials: tuple[Trial, ...]
    seconds: float
    overhead_seconds: float

    @property
    def verdict(self) -> Verdict:
        """``good`` if a culprit was convicted, or convicted again, else ``bad``."""
        return "good" if self.outcome in ("convicted", "enough") else "bad"

    @property
    def headline(self) -> str:
        """The outcome."""
        return self.outcome

    @property
    def bad_share(self) -> float:
        """The share of bad mixtures among those that say something; 0 if there were none."""
        verdicts = [trial.verdict for trial in self.trials if trial.counted]
        return verdicts.count("bad") / len(verdicts) if verdicts else 0.0

    @property
    def next_step(self) -> str:
        """Pin the good build, which has none of the culprits."""
        return f"trtops runs promote {self.good_run}" if self.run_id and self.good_run else super().next_step

    def bad_mixture(self, units: Sequence[Unit]) -> str:
        """The run of a bad mixture that has what was convicted, nothing else that was, and least else of the bad build.

        Empty if there is none. It says of its culprit what the bad build says, and is surer to be bad: that one may have been
        misclassified.
        """
        wanted = {unit.name for unit in units}
        clauses = [{c.units[place].name for place in clause} for c in self.culprits for clause in c.clauses]
        others = [clause for clause in clauses if clause != wanted]
        having = [
            trial
            for trial in self.trials
            if trial.counted
            and trial.verdict == "bad"
            and not trial.strayed
            and wanted <= set(trial.taken)
            and not any(other <= set(trial.taken) for other in others)
        ]
        return min(having, key=lambda trial: len(trial.taken)).run_id if having else ""

    def body(self) -> Iterable[str]:
        """The summary, the culprits, and every build."""
        yield self.summary
        if self.asked == "precision":
            yield "\nThe bad build's outputs are good: the question is why it does not compute in the precision asked for.\n"
        for culprit in self.culprits:
            effect = f"; {culprit.effect.describe()}" if culprit.effect is not None else ""
            yield f"- **{culprit.describe()}** (probability {culprit.probability:.3f}, {culprit.builds} builds){effect}"
        if self.consequences:
            shown = ", ".join(f"`{name}`" for name in self.consequences[:8])
            more = f" and {len(self.consequences) - 8} more" if len(self.consequences) > 8 else ""
            yield f"\n{len(self.consequences)} layers differ that cannot be chosen, and follow from others: {shown}{more}."
        others = [trial for trial in self.trials if trial.bad_otherwise]
        if others:
            yield f"\n{len(others)} builds count as good, which are bad for another reason: {others[0].reason[:300]}"
        rows = [
            (str(number), trial.describe_verdict(), _error_text(trial.error), _names_text(trial.taken))
            for number, trial in enumerate(self.trials, 1)
        ]
        if rows:
            yield f"\n```\n{table(('build', 'verdict', 'max_abs', 'from the bad build'), rows)}\n```"


@dataclass(frozen=True, kw_only=True)
class BisectPlan(Record):
    """What a bisection begins with. With it and the verdicts of its builds it takes the same way again.

    Attributes:
        good_run: The good build.
        bad_run: The bad build.
        seen: The campaign's builds: a digit for each unit of the mixture, 1 where a build has what the bad one has, 2 where it
            has something else than either of the two, and whether it was bad.
        config: How long, and how sure.
        given: What every mixture has, since it is convicted already: the question is what it needs beside.
        together: What is asked about: whether it makes the good build bad. Empty if culprits are searched for.
        chance: Prior probability that the bad build was misclassified, or replayed choices do not decide.
    """

    good_run: str
    bad_run: str
    seen: tuple[tuple[str, bool], ...]
    config: BisectConfig
    given: tuple[Unit, ...] = ()
    together: tuple[Unit, ...] = ()
    chance: float = CHANCE


def summary_text(
    outcome: Outcome,
    culprits: Sequence[Culprit],
    complete: bool,
    mixture: Mixture,
    trials: Sequence[Trial],
    plan: BisectPlan,
) -> str:
    """How a bisection ended, in sentences."""
    builds, given = f"{len(trials)} builds", plan.given
    if not mixture.units:
        return "The two builds differ in nothing that can be chosen" + (
            f"; {len(mixture.consequences)} layers differ that cannot." if mixture.consequences else "."
        )
    convicted = " together with ".join(unit.describe() for unit in given)
    if plan.together and outcome != "cannot be told":
        asked = " together with ".join(unit.describe() for unit in plan.together)
        return f"{asked}: {'bad as well' if outcome == 'enough' else 'not bad'} in a good build, by {builds}."
    if outcome == "enough":
        return f"With {convicted} the good build is bad too, so it needs nothing beside that the good build lacks."
    if outcome == "convicted" and given:
        names = "; and ".join(culprit.describe() for culprit in culprits)
        return f"{convicted} is not enough. It needs beside, found in {builds}: {names}."
    if outcome == "convicted":
        names = "; and ".join(culprit.describe() for culprit in culprits)
        rest = "Without it the bad build is good." if complete else "Something else makes the bad build bad as well."
        return f"Convicted in {builds}: {names}. {rest}"
    if outcome == "not repeatable":
        return (
            f"After {builds} the verdicts do not follow what was mixed: choices that can be replayed do not decide them. "
            "Measure the noise from run to run."
        )
    failed = sum(not trial.counted for trial in trials)
    why = f" {failed} of them could not be built as wanted." if failed else ""
    return f"{builds} did not suffice to tell.{why} Give a larger budget, or another pair of builds."


def _error_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _names_text(names: Sequence[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more if names else "nothing"
