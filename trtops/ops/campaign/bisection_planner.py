"""Decide the next step of a campaign (build, mix or stop), and the confirmed culprits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trtops.ops.campaign.bisect_result import BisectResult, ChoiceKey, Unit
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.model import Bools
from trtops.tactics.record import Column
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.campaigns import closed_if_abandoned, load_record
from trtops.verdict import PASSED

MAX_UNREPEATABLE_PAIRS = 4  # pairs without a result, after which choices do not decide, or only in a combination
BUILDS_PER_GOOD_ONE = 2  # builds per required good one after which the campaign stops waiting for good ones
MAX_TRANSFERS = 5  # good builds that a culprit is put into, to see whether it needs anything else
REFUTATIONS = 2  # good builds that stay good with a culprit, repeatedly, after which it is dropped
_MAX_COMPARED = 200  # builds per verdict that pairs are made of
_KILLED = "The bisection's process ended in the middle of it."


@dataclass(frozen=True)
class CampaignCulprit:
    """Jointly sufficient choices: a clause of a bisection's culprit, with its later checks."""

    units: tuple[Unit, ...]
    good_run: str  # the good build of the bisection that confirmed it
    bad_run: str  # the bad build of that bisection
    settled: bool = False  # whether everything it needs was found
    # Good builds that it was put into and that are bad with it; ``good_with`` those that are not.
    bad_with: tuple[str, ...] = ()
    good_with: tuple[str, ...] = ()

    @property
    def choices(self) -> frozenset[ChoiceKey]:
        """Identifies it, whatever good builds have instead."""
        return frozenset(unit.choice for unit in self.units)

    @property
    def tried_in(self) -> tuple[str, ...]:
        """All good builds tested with it."""
        return self.bad_with + self.good_with

    def is_in(self, table: CampaignTable) -> Bools:
        """Which builds of a table have all of it."""
        return have_all(table, self.units)

    def describe(self) -> str:
        """The culprit in words."""
        return " together with ".join(unit.describe() for unit in self.units)


@dataclass(frozen=True)
class BuildPair:
    """A good and a bad build to mix; ``held`` as in a ``BisectPlan``."""

    good: str
    bad: str
    held: tuple[Unit, ...] = ()


@dataclass
class Planner:
    """The finished bisections of a campaign, oldest first, and the next step.

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
        """Read a campaign's bisections from the tracking store, and close those of dead processes.

        A bisection that was killed before its plan was logged has built nothing and is ignored.
        """
        planner = cls(config)
        runs = tracker.find(campaign.experiment, parent=campaign.id, tags={schema.Tag.KIND: "bisect"})
        for info in reversed(runs):
            info = closed_if_abandoned(tracker, info, _KILLED)
            if tracker.peek(info.id, schema.Artifact.BISECTION_PLAN) is None:
                continue
            planner.after = sum((iteration.end_time or 0.0) <= info.start_time for iteration in iterations)
            planner.unfinished = info
            if info.status == "finished":
                planner.done.append(BisectResult.from_json(tracker.load(info.id).read_bytes(schema.Artifact.BISECTION)))
                planner.unfinished = None
        return planner

    def add(self, result: BisectResult, builds: int) -> None:
        """Add a finished bisection, with the number of builds at its end."""
        self.done.append(result)
        self.unfinished, self.after = None, builds

    @property
    def trials(self) -> int:
        """Number of mixtures built."""
        return sum(len(result.trials) for result in self.done)

    @property
    def culprits(self) -> list[CampaignCulprit]:
        """All culprits found so far, without refuted ones."""
        return merge_culprits(self.done)

    @property
    def _unexplained_pairs(self) -> int:
        # A bad build that is good when built again may be one wrong verdict, so it counts for half.
        halves = {"not repeatable": 2, "units missing": 1, "combination": 2}
        return sum(halves.get(r.outcome, 0) for r in self.done if not r.culprits and not r.held) // 2

    def pair(self, table: CampaignTable) -> BuildPair | None:
        """The next good and bad build to mix; None if builds are needed first."""
        culprits = self.culprits
        passed, unexplained = table.with_verdict(*PASSED), table.with_verdict("bad")
        # First a good build that has a culprit, which then needs something else.
        for culprit in culprits:
            has = culprit.is_in(table)
            unexplained &= ~has
            against = passed & has & ~table.is_named(*culprit.tried_in)
            if not culprit.settled and against.any():
                alike, _ = most_alike(table, against, table.is_named(culprit.good_run))
                return BuildPair(alike, culprit.bad_run, held=culprit.units)
        # Then a bad build that no culprit explains.
        for result in self.done:
            if not result.held:
                unexplained &= ~table.is_named(result.bad_run)
            if not result.held and result.outcome == "not repeatable":
                # A good build whose mixtures follow nothing may have the culprit and be good by chance.
                passed &= ~table.is_named(result.good_run)
        if passed.any() and unexplained.any():
            return BuildPair(*most_alike(table, passed, unexplained))
        # At last a good build that shows whether a culprit is bad there too.
        for culprit in culprits if self._has_waited(table) else ():
            if (pair := _transfer(culprit, table)) is not None:
                return pair
        return None

    def is_answered(self, table: CampaignTable) -> bool:
        """Whether a culprit is confirmed and contradicted by no build, or something other than choices decides.

        With ``complete``, whether enough builds are good without the culprits as well.
        """
        if any(result.outcome in ("contributions", "not replayable") for result in self.done):
            return True
        if not self.culprits:
            return self._unexplained_pairs >= MAX_UNREPEATABLE_PAIRS
        if self.config.complete:
            return self._has_waited(table) and self.pair(table) is None
        passed = table.with_verdict(*PASSED)
        return not any((culprit.is_in(table) & passed).any() for culprit in self.culprits if not culprit.settled)

    def _has_waited(self, table: CampaignTable) -> bool:
        """True with enough good builds, or too few among many to wait for more."""
        required_builds = self.config.clean_builds
        is_enough = table.with_verdict(*PASSED).sum() >= required_builds
        return bool(is_enough or len(table) - self.after >= BUILDS_PER_GOOD_ONE * required_builds)

    def confidence(self) -> float:
        """The confidence for the next bisection: higher after one with undecided choices."""
        doubt = 1 - self.config.confidence
        return 1 - doubt / 5 if self._unexplained_pairs else self.config.confidence

    def draws(self, table: CampaignTable) -> bool:
        """True if timed builds are to draw tactics at random: without a good or a bad build to mix."""
        if self.config.until != "decided" or not self.config.bisect or self.config.random_tactics or self.done:
            return False
        return bool(table.named(*PASSED)) != bool(table.named("bad"))

    def denied(self, tracker: Tracker, table: CampaignTable) -> DenyList:
        """Choices excluded from the next builds: the culprits; built settings if builds draw them.

        Nothing, where a build has failed since.
        """
        if table.with_verdict("error")[self.after :].any():
            return DenyList()
        entries = []
        for name in table.names if self.draws(table) else ():
            record = load_record(tracker.load(name))
            # ONNX Runtime offers few combinations. Not all can be denied, or nothing would be built.
            if record is not None and record.mechanism == "onnxruntime" and len(table) < 2 ** len(record.settings):
                settings: list[Column] = [("setting", setting) for setting, _ in record.settings]
                entries.append(DeniedTactic.of(record, settings, name))
        for culprit in self.culprits:
            record = load_record(tracker.load(culprit.bad_run))
            assert record is not None  # or there would have been nothing to mix
            # Any one layer keeps the culprit out of a build; settings are denied together.
            layers = [unit.column for unit in culprit.units if unit.kind == "layer"]
            denied = layers[:1] or [unit.column for unit in culprit.units]
            entries.append(DeniedTactic.of(record, denied, culprit.bad_run))
        return DenyList(entries=tuple(entries))


def merge_culprits(done: Sequence[BisectResult]) -> list[CampaignCulprit]:
    """Merge the culprits of all bisections, without refuted ones and supersets of others."""
    # If both builds of a pair have one of two choices that fail only together, the bisection names the other one alone.
    # A later bisection with that one as ``held`` adds what it needs.
    culprits: list[CampaignCulprit] = []
    for result in done:
        clauses: list[tuple[Unit, ...]] = []
        for bisected in result.culprits:
            clauses += [tuple(bisected.units[i] for i in clause) for clause in bisected.clauses]
        if not result.held:
            culprits += [CampaignCulprit(units, result.good_run, result.bad_run) for units in clauses]
            continue
        merged: list[CampaignCulprit] = []
        for culprit in culprits:
            if set(culprit.units) != set(result.held):
                merged.append(culprit)
            elif clauses:
                for units in clauses:
                    needed = dict.fromkeys((*culprit.units, *units))
                    merged.append(replace(culprit, units=tuple(needed), settled=True))
            elif result.outcome == "sufficient":
                merged.append(replace(culprit, bad_with=(*culprit.bad_with, result.good_run)))
            else:
                merged.append(replace(culprit, good_with=(*culprit.good_with, result.good_run)))
        culprits = merged
    unrefuted: dict[frozenset[ChoiceKey], CampaignCulprit] = {}
    for culprit in culprits:
        if culprit.settled or len(culprit.good_with) < max(REFUTATIONS, len(culprit.bad_with) + 1):
            unrefuted.setdefault(culprit.choices, culprit)
    return [culprit for choices, culprit in unrefuted.items() if not any(other < choices for other in unrefuted)]


def _transfer(culprit: CampaignCulprit, table: CampaignTable) -> BuildPair | None:
    """The good build for the next test of a culprit: the one least like its pair; None after some."""
    is_tried, has = table.is_named(*culprit.tried_in), culprit.is_in(table)
    good = np.flatnonzero(table.with_verdict(*PASSED) & ~is_tried & ~has)
    if culprit.settled or not len(good) or (is_tried & ~has).sum() >= MAX_TRANSFERS:
        return None
    # A choice that all builds so far share may be needed.
    tested = table.codes[is_tried | table.is_named(culprit.good_run, culprit.bad_run)]
    lacking = [(table.codes[row] != tested).all(axis=0).sum() for row in good]
    best = int(np.argmax(lacking))
    return BuildPair(table.names[good[best]], culprit.bad_run, held=culprit.units) if lacking[best] else None


def have_all(table: CampaignTable, units: Sequence[Unit]) -> Bools:
    """Which builds of a table have the bad build's choice of each unit."""
    have: Bools = np.ones(len(table), np.bool_)
    for unit in units:
        have &= table.has(unit.column, unit.bad)
    return have


def most_alike(table: CampaignTable, good: Bools, bad: Bools) -> tuple[str, str]:
    """The good and the bad build with the fewest differing layers and settings; of masks over all builds."""
    good_rows, bad_rows = np.flatnonzero(good)[:_MAX_COMPARED], np.flatnonzero(bad)[:_MAX_COMPARED]
    distances = np.array([(table.codes[bad_rows] != table.codes[row]).sum(axis=1) for row in good_rows])
    i, j = np.unravel_index(int(distances.argmin()), distances.shape)
    return table.names[good_rows[i]], table.names[bad_rows[j]]
