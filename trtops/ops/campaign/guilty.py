"""What bisections of a campaign convicted, all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from trtops.ops.campaign.bisected import BisectResult
from trtops.ops.campaign.mixture import Key, Unit
from trtops.tactics.several import Bools
from trtops.tactics.table import CampaignTable
from trtops.verdict import VERDICTS

_REFUTING = 2  # good builds with what was convicted, each seen to be good repeatedly, that refute it
_GOOD_ALONE = 3  # good builds with a choice that show that it is not guilty without what it was convicted with
_WITHDRAWING = 6  # pairs whose mixtures follow nothing, after which convictions by others are withdrawn
_WITHDRAWING_SINCE = 3  # of them, such as came after the first conviction and whose mixtures were bad quite often
_SEEN_AGAIN = (
    2  # good builds that are bad with it, after which what is rarely bad by chance was not convicted by chance
)
_BY_CHANCE = 0.2  # share of bad mixtures that is more than a few wrong verdicts


@dataclass(frozen=True)
class Guilty:
    """What makes builds bad, all of it together.

    Attributes:
        units: With what the bad build has.
        good_run: The good build of the mixtures that convicted it.
        bad_run: The bad one.
        mixed_run: A bad mixture of the two that has it; the bad build itself if there is none.
        suspects: Layers and settings among which it was found.
        settled: Whether what it needs beside was found.
        enough: Good builds that are bad with it.
        lacking: Good builds that were not, and whose mixtures did not say why.
    """

    units: tuple[Unit, ...]
    good_run: str
    bad_run: str
    mixed_run: str
    suspects: int = 1
    settled: bool = False
    enough: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def choices(self) -> frozenset[Key]:
        """What it is, whatever good builds have in its place."""
        return frozenset(unit.choice for unit in self.units)

    @property
    def refuted(self) -> bool:
        """Whether it was good in several other builds, more than it was bad in, and nothing was found that it needs."""
        return not self.settled and len(self.lacking) >= _REFUTING and len(self.lacking) > len(self.enough)

    @property
    def asked(self) -> tuple[str, ...]:
        """All good builds that it was put into."""
        return self.enough + self.lacking

    def held_by(self, table: CampaignTable) -> Bools:
        """Which builds of a table have all of it."""
        held: Bools = np.logical_and.reduce([unit.taken_by(table) for unit in self.units])
        return held

    def may_be_guilty_without_others(self, table: CampaignTable) -> bool:
        """Whether a choice of several was not good often enough without the others; settings are not asked about."""
        if len(self.units) < 2 or any(unit.kind == "setting" for unit in self.units):
            return False
        without = (table.verdicts == VERDICTS.index("good")) & ~self.held_by(table)
        return any((unit.taken_by(table) & without).sum() < _GOOD_ALONE for unit in self.units)

    def describe(self) -> str:
        """In words."""
        return " together with ".join(unit.describe() for unit in self.units)


def joined(done: Sequence[BisectResult]) -> list[Guilty]:
    """What bisections convicted, one after the other.

    Two builds that both have one of two that fail only together differ in the other one, and that alone is convicted, until a
    good build has it too and is mixed with the bad one: what is found then belongs to it. And what is guilty alone, needs
    nothing that was convicted with it before. What was refuted since is left out, and all of it where so many bad builds follow
    nothing that a few convictions are to be expected by chance.
    """
    found: list[Guilty] = []
    for result in done:
        if result.together:
            if result.outcome == "enough":
                found.append(Guilty(result.together, result.good_run, result.bad_run, result.bad_run, settled=True))
            continue
        new = [tuple(c.units[i] for i in clause) for c in result.culprits for clause in c.clauses]
        before = [g for g in found if result.given and set(g.units) == set(result.given)]
        for guilty in before:
            place = found.index(guilty)
            if new:
                with_each = [(*guilty.units, *(unit for unit in clause if unit not in guilty.units)) for clause in new]
                found[place : place + 1] = [replace(guilty, units=units, settled=True) for units in with_each]
            elif result.outcome == "enough":
                found[place] = replace(guilty, enough=(*guilty.enough, result.good_run))
            else:
                found[place] = replace(guilty, lacking=(*guilty.lacking, result.good_run))
        if not result.given:
            mixed = [result.bad_mixture(clause) or result.bad_run for clause in new]
            found += [
                Guilty(clause, result.good_run, result.bad_run, run, result.units) for clause, run in zip(new, mixed)
            ]
    found = [guilty for guilty in found if not guilty.refuted and not _is_withdrawn(guilty, done)]
    sets = [guilty.choices for guilty in found]
    return [
        guilty
        for place, guilty in enumerate(found)
        if not any(of < sets[place] for of in sets) and sets[place] not in sets[:place]
    ]


def _is_withdrawn(guilty: Guilty, done: Sequence[BisectResult]) -> bool:
    """Whether builds are bad by chance so often that a culprit was probably convicted by chance as well.

    Of several culprits, each bad build that the ones known do not explain has another one. One that is bad by mistake is rare,
    and most mixtures of it are good. Where that is so, chance does not make a build bad each time that something is put in.
    """
    pairs = [result for result in done if not result.given]
    first = next((place for place, result in enumerate(pairs) if result.culprits), len(pairs))
    followed_nothing = [result for result in pairs if result.outcome == "not repeatable"]
    by_chance = [r for r in pairs[first:] if r.outcome == "not repeatable" and r.bad_share >= _BY_CHANCE]
    if len(by_chance) >= _WITHDRAWING_SINCE:
        return True
    if len(followed_nothing) < _WITHDRAWING:
        return False
    verdicts = [trial.verdict for result in followed_nothing for trial in result.trials if trial.counted]
    seen_again = guilty.settled or len(guilty.enough) - len(guilty.lacking) >= _SEEN_AGAIN
    return not seen_again or verdicts.count("bad") >= _BY_CHANCE * len(verdicts)


def of_several(found: Sequence[Guilty]) -> dict[Key, Unit]:
    """The choices that were convicted with others."""
    return {unit.choice: unit for guilty in found if len(guilty.units) > 1 for unit in guilty.units}


def unasked(found: Sequence[Guilty], done: Sequence[BisectResult] = ()) -> list[frozenset[Key]]:
    """Pairs of choices that were convicted with others, and of which nobody knows whether they are bad together.

    Args:
        found: What was convicted.
        done: Bisections, some of which may have asked about a pair.
    """
    known = [guilty.choices for guilty in found]
    asked = [frozenset(unit.choice for unit in result.together) for result in done]
    pairs = (frozenset(two) for two in combinations(of_several(found), 2) if two[0][:2] != two[1][:2])
    return [pair for pair in pairs if pair not in asked and not any(choices <= pair for choices in known)]


def kept_out(found: Sequence[Guilty], turn: int = 0) -> list[Unit | None]:
    """What keeps each culprit out of a build: a choice of one of its layers; None for settings, all of which it takes.

    Few choices, and not always the same ones: of two that are both kept out nobody sees whether they are bad together.

    Args:
        found: What is to be kept out.
        turn: A number that grows from build to build.
    """
    layers = [{unit.choice: unit for unit in guilty.units if unit.kind == "layer"} for guilty in found]
    wondered = Counter(choice for pair in unasked(found) for choice in pair)
    chosen: set[Key] = set()
    while left := [units for units in layers if units and not chosen & set(units)]:
        counts = Counter(choice for units in left for choice in units)
        best = max((count, -wondered[choice]) for choice, count in counts.items())
        equal = [choice for choice, count in counts.items() if (count, -wondered[choice]) == best]
        chosen.add(equal[turn % len(equal)])
    return [next((unit for choice, unit in units.items() if choice in chosen), None) for units in layers]
