"""Decides the next step of a campaign, build, mix or stop; and which culprits are confirmed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trtops.ops.campaign.bisect_result import BisectResult, ChoiceKey, Unit
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.model import Bools
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.campaigns import closed_if_abandoned, load_record
from trtops.verdict import PASSED, VERDICTS

MAX_UNREPEATABLE_PAIRS = 3  # pairs without a result, after which choices do not decide, or only in a combination
BUILDS_PER_GOOD_ONE = 2  # builds per required good one after which the campaign stops waiting for good ones
MIN_CONFIRMATIONS = 2  # builds that must show that a culprit does not need another choice: one verdict may be wrong
MAX_TRANSFERS = 5  # good builds that a culprit is put into, to see whether it needs anything else
EARLY_TRANSFERS = 2  # the number of these before there are enough good builds to choose from
MIN_LACKING_SHARE = 0.4  # share of possibly needed choices that a good build must lack for an early transfer
REFUTATIONS = 2  # good builds that stay good with a culprit, repeatedly, after which it is dropped
_MAX_COMPARED = 200  # builds per verdict that pairs are made of
_KILLED = "The bisection's process ended in the middle of it."


@dataclass(frozen=True)
class CampaignCulprit:
    """Choices that make builds bad, all of them together: a clause of a bisection's culprit, and what became of it."""

    units: tuple[Unit, ...]
    good_run: str  # the good build of the bisection that confirmed it
    bad_run: str  # the bad build of that bisection
    mixed_run: str  # a bad mixture of the two that has it; the bad build itself if absent
    settled: bool = False  # whether everything it needs was found
    # Good builds that it was put into and that are bad with it; ``good_with`` those that are not.
    bad_with: tuple[str, ...] = ()
    good_with: tuple[str, ...] = ()
    resolved: bool = True  # false for a combination of more than two choices whose rule is unknown

    @property
    def choices(self) -> frozenset[ChoiceKey]:
        """Identifies it, whatever good builds have instead."""
        return frozenset(unit.choice for unit in self.units)

    @property
    def tried_in(self) -> tuple[str, ...]:
        """All good builds that it was put into."""
        return self.bad_with + self.good_with

    def is_in(self, table: CampaignTable) -> Bools:
        """Which builds of a table have all of it."""
        has: Bools = np.logical_and.reduce([unit.is_bad_in(table) for unit in self.units])
        return has

    def describe(self) -> str:
        """The culprit in words."""
        texts = [unit.describe() for unit in self.units]
        if self.resolved:
            return " together with ".join(texts)
        return f"a combination of choices, not resolved: {', '.join(texts)}"


@dataclass(frozen=True)
class BuildPair:
    """A good and a bad build to mix; ``given`` as in a ``BisectPlan``."""

    good: str
    bad: str
    given: tuple[Unit, ...] = ()


@dataclass
class Planner:
    """The bisections of a campaign that have ended, the oldest first, and what follows from them.

    ``unfinished`` is the run of an interrupted one; ``after`` is the number of builds when the last one ended.
    """

    config: DebugBuildConfig
    done: list[BisectResult] = field(default_factory=list)
    unfinished: RunInfo | None = None
    after: int = 0

    @classmethod
    def read(
        cls, tracker: Tracker, campaign: RunInfo, config: DebugBuildConfig, iterations: Iterable[RunInfo]
    ) -> "Planner":
        """Read a campaign's bisections from the tracking store; those whose process has died are closed.

        A bisection that was killed before its plan was logged has built nothing and is ignored.
        """
        tags = {schema.Tag.KIND: "bisect"}
        runs = tracker.find(campaign.experiment, parent=campaign.id, tags=tags)[::-1]
        runs = [closed_if_abandoned(tracker, info, _KILLED) for info in runs]
        runs = [info for info in runs if tracker.peek(info.id, schema.Artifact.BISECTION_PLAN) is not None]
        if not runs:
            return cls(config)
        ended = [tracker.load(info.id) for info in runs if info.status == "finished"]
        done = [BisectResult.from_json(run.read_bytes(schema.Artifact.BISECTION)) for run in ended]
        after = sum((info.end_time or 0.0) <= runs[-1].start_time for info in iterations)
        return cls(config, done, None if runs[-1].status == "finished" else runs[-1], after)

    def add(self, result: BisectResult, builds: int) -> None:
        """Add a bisection that ended when the campaign had this many builds."""
        self.done.append(result)
        self.unfinished, self.after = None, builds

    @property
    def trials(self) -> int:
        """Number of mixtures built."""
        return sum(len(result.trials) for result in self.done)

    @property
    def culprits(self) -> list[CampaignCulprit]:
        """All culprits found so far that no later bisection has refuted."""
        return merge_culprits(self.done)

    @property
    def _unexplained_pairs(self) -> int:
        unexplained = ("not repeatable", "units missing", "combination")
        return sum(not r.culprits and r.outcome in unexplained and not r.given for r in self.done)

    def pair(self, table: CampaignTable) -> BuildPair | None:
        """The next good and bad build to mix; None if builds are needed first."""
        found = self.culprits
        rows = {name: row for row, name in enumerate(table.names)}
        # First a good build that has a culprit, which then needs something else.
        for culprit in found:
            has = culprit.is_in(table)
            against = [name for name in table.named(*PASSED) if has[rows[name]] and name not in culprit.tried_in]
            if against and not culprit.settled:
                alike, _ = most_alike(table, against, [culprit.good_run])
                return BuildPair(alike, culprit.mixed_run, given=culprit.units)
        # Then a bad build that no culprit explains.
        tried = {result.bad_run for result in self.done if not result.given}
        # A good build whose mixtures follow nothing may have the culprit and be good by chance.
        unsafe = {result.good_run for result in self.done if result.outcome == "not repeatable" and not result.given}
        explained = np.logical_or.reduce([np.zeros(len(table), np.bool_), *(each.is_in(table) for each in found)])
        good = [name for name in table.named(*PASSED) if name not in unsafe]
        bad = [name for name in table.named("bad") if name not in tried and not explained[rows[name]]]
        if good and bad:
            return BuildPair(*most_alike(table, good, bad))
        # At last a good build that shows whether a culprit is bad there too.
        waited = self._has_waited(table)
        transfers = (_transfer(culprit, table, waited=waited) for culprit in found)
        return next((pair for pair in transfers if pair is not None), None)

    def is_answered(self, table: CampaignTable) -> bool:
        """Whether a culprit is confirmed and contradicted by no build, or something other than choices decides.

        With ``complete``, whether enough builds are good without the culprits as well.
        """
        if any(result.outcome in ("contributions", "not replayable") for result in self.done):
            return True
        if not self.culprits:
            return self._unexplained_pairs >= MAX_UNREPEATABLE_PAIRS
        if not self.config.complete:
            passed = np.isin(table.verdicts, [VERDICTS.index(verdict) for verdict in PASSED])
            return not any((each.is_in(table) & passed).any() for each in self.culprits if not each.settled)
        return self._has_waited(table) and self.pair(table) is None

    def _has_waited(self, table: CampaignTable) -> bool:
        """Whether there are enough good builds, or so few among many that the campaign stops waiting for more."""
        wanted = self.config.clean_builds
        return len(table.named(*PASSED)) >= wanted or len(table) - self.after >= BUILDS_PER_GOOD_ONE * wanted

    def confidence(self) -> float:
        """What the next bisection needs: more, where an earlier one found that choices do not decide."""
        doubt = 1 - self.config.confidence
        return 1 - doubt / 5 if self._unexplained_pairs else self.config.confidence

    def denied(self, tracker: Tracker, table: CampaignTable) -> DenyList:
        """What the next builds must not choose: the culprits. Nothing, where a build has failed since."""
        if (table.verdicts[self.after :] == VERDICTS.index("error")).any():
            return DenyList()
        entries = []
        for culprit, excluded in zip(found := self.culprits, choose_exclusions(found, len(table))):
            record = load_record(tracker.load(culprit.bad_run))
            assert record is not None  # or there would have been nothing to mix
            columns = {unit.column for unit in culprit.units} if excluded is None else {excluded.column}
            entries.append(DeniedTactic.of(record, columns, culprit.bad_run))
        return DenyList(entries=tuple(entries))


def merge_culprits(done: Sequence[BisectResult]) -> list[CampaignCulprit]:
    """Merge the culprits of all bisections. A refuted culprit is dropped, and so is one that contains another."""
    # If both builds of a pair have one of two choices that fail only together, the bisection names the other one alone.
    # A later bisection with that one as ``given`` adds what it needs.
    found: list[CampaignCulprit] = []
    for result in done:
        new = [tuple(c.units[i] for i in clause) for c in result.culprits for clause in c.clauses]
        if not result.given:
            for units in new:
                mixed = result.bad_mixture(units) or result.bad_run
                found.append(CampaignCulprit(units, result.good_run, result.bad_run, mixed))
            continue
        for place, culprit in [(p, c) for p, c in enumerate(found) if set(c.units) == set(result.given)][::-1]:
            if new:
                needed = [(*culprit.units, *(unit for unit in units if unit not in culprit.units)) for units in new]
                found[place : place + 1] = [replace(culprit, units=units, settled=True) for units in needed]
            elif result.outcome == "sufficient":
                found[place] = replace(culprit, bad_with=(*culprit.bad_with, result.good_run))
            else:
                found[place] = replace(culprit, good_with=(*culprit.good_with, result.good_run))
    kept = [c for c in found if c.settled or len(c.good_with) < REFUTATIONS or len(c.good_with) <= len(c.bad_with)]
    sets = [culprit.choices for culprit in kept]
    return [
        culprit
        for place, culprit in enumerate(kept)
        if not any(other < sets[place] for other in sets) and sets[place] not in sets[:place]
    ]


def merge_overlapping(culprits: Sequence[CampaignCulprit]) -> list[CampaignCulprit]:
    """Merge pairs that share a choice into one unresolved combination, such as any two of four choices."""
    merged: list[CampaignCulprit] = []
    for culprit in culprits:
        sharing = [m for m in merged if min(len(m.units), len(culprit.units)) > 1 and m.choices & culprit.choices]
        for other in sharing:
            merged.remove(other)
            units = {unit.choice: unit for unit in (*other.units, *culprit.units)}
            culprit = replace(culprit, units=tuple(units.values()), resolved=False)
        merged.append(culprit)
    return merged


def choose_exclusions(culprits: Sequence[CampaignCulprit], turn: int) -> list[Unit | None]:
    """The layer's choice that keeps each culprit out of a build; None for settings, which are denied together."""
    # A choice that several culprits share comes first. Others take turns, so that each is also seen without the rest.
    counts = Counter(unit.choice for culprit in culprits for unit in culprit.units)
    chosen: list[Unit | None] = []
    for culprit in culprits:
        layers = [unit for unit in culprit.units if unit.kind == "layer"]
        most = max((counts[unit.choice] for unit in layers), default=0)
        best = [unit for unit in layers if counts[unit.choice] == most]
        chosen.append(best[turn % len(best)] if best else None)
    return chosen


def _transfer(culprit: CampaignCulprit, table: CampaignTable, *, waited: bool) -> BuildPair | None:
    """The good build to put a culprit into, which shows most about what else it needs; None if none shows enough.

    It is the one that lacks most of what may be needed: choices without which no build was bad with the culprit yet.
    """
    rows = {name: row for row, name in enumerate(table.names)}
    has = culprit.is_in(table)
    good = [name for name in table.named(*PASSED) if name not in culprit.tried_in and not has[rows[name]]]
    transfers = sum(not has[rows[name]] for name in culprit.tried_in)
    if culprit.settled or not good or transfers >= (MAX_TRANSFERS if waited else EARLY_TRANSFERS):
        return None
    # Layers that follow from settings cannot be chosen, and so cannot be needed.
    of_settings = all(unit.kind == "setting" for unit in culprit.units)
    free = [place for place, (kind, _) in enumerate(table.columns) if kind == "setting" or not of_settings]
    codes, columns = table.codes[:, free], [table.columns[place] for place in free]
    # The mixture that confirmed the culprit has it from the bad build, and all else from the good one.
    own = {unit.column for unit in culprit.units}
    taken = np.array([column in own for column in columns], np.bool_)
    mixed = np.where(taken, codes[rows[culprit.bad_run]], codes[rows[culprit.good_run]])
    lacks = codes != mixed
    # A bad build that has the culprit and lacks a choice shows as much, and so does the pair that confirmed it.
    shown = lacks[[rows[name] for name in (culprit.bad_run, *culprit.bad_with)]].sum(axis=0)
    needed = lacks.any(axis=0) & (shown < MIN_CONFIRMATIONS) & ~taken
    lacking = (lacks[[rows[name] for name in good]] & needed).sum(axis=1)
    best = int(np.argmax(lacking))
    is_worth_it = lacking[best] > 0 and (waited or lacking[best] >= MIN_LACKING_SHARE * needed.sum())
    return BuildPair(good[best], culprit.mixed_run, given=culprit.units) if is_worth_it else None


def most_alike(table: CampaignTable, good: Sequence[str], bad: Sequence[str]) -> tuple[str, str]:
    """The good and the bad build that differ in the fewest layers and settings."""
    rows = {name: row for row, name in enumerate(table.names)}
    good, bad = good[:_MAX_COMPARED], bad[:_MAX_COMPARED]
    theirs = table.codes[[rows[name] for name in bad]]
    distances = np.array([(theirs != table.codes[rows[name]]).sum(axis=1) for name in good])
    i, j = np.unravel_index(int(distances.argmin()), distances.shape)
    return good[int(i)], bad[int(j)]
