"""Decide the next step of a campaign (build, mix or stop), and the confirmed culprits."""

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
        has: Bools = np.logical_and.reduce([unit.is_bad_in(table) for unit in self.units])
        return has

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
        rows = {name: row for row, name in enumerate(table.names)}
        # First a good build that has a culprit, which then needs something else.
        for culprit in culprits:
            has = culprit.is_in(table)
            against = [name for name in table.named(*PASSED) if has[rows[name]] and name not in culprit.tried_in]
            if against and not culprit.settled:
                alike, _ = most_alike(table, against, [culprit.good_run])
                return BuildPair(alike, culprit.bad_run, held=culprit.units)
        # Then a bad build that no culprit explains.
        tried = {result.bad_run for result in self.done if not result.held}
        explained = np.logical_or.reduce(
            [np.zeros(len(table), np.bool_), *(explaining.is_in(table) for explaining in culprits)]
        )
        # A good build whose mixtures follow nothing may have the culprit and be good by chance.
        unsafe = {result.good_run for result in self.done if result.outcome == "not repeatable" and not result.held}
        good = [name for name in table.named(*PASSED) if name not in unsafe]
        bad = [name for name in table.named("bad") if name not in tried and not explained[rows[name]]]
        if good and bad:
            return BuildPair(*most_alike(table, good, bad))
        # At last a good build that shows whether a culprit is bad there too.
        transfers = (_transfer(culprit, table) for culprit in culprits if self._has_waited(table))
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
            return not any((culprit.is_in(table) & passed).any() for culprit in self.culprits if not culprit.settled)
        return self._has_waited(table) and self.pair(table) is None

    def _has_waited(self, table: CampaignTable) -> bool:
        """True with enough good builds, or too few among many to wait for more."""
        required_builds = self.config.clean_builds
        return (
            len(table.named(*PASSED)) >= required_builds
            or len(table) - self.after >= BUILDS_PER_GOOD_ONE * required_builds
        )

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
        if (table.verdicts[self.after :] == VERDICTS.index("error")).any():
            return DenyList()
        entries = []
        if self.draws(table):
            records = {name: load_record(tracker.load(name)) for name in table.names}
            for name, record in records.items():
                # ONNX Runtime offers few combinations. Not all can be denied, or nothing would be built.
                if (
                    record is not None
                    and len(records) < 2 ** len(record.settings)
                    and record.mechanism == "onnxruntime"
                ):
                    entries.append(
                        DeniedTactic.of(record, {("setting", setting) for setting, _ in record.settings}, name)
                    )
        for culprit in self.culprits:
            record = load_record(tracker.load(culprit.bad_run))
            assert record is not None  # or there would have been nothing to mix
            # Any one layer keeps the culprit out of a build; settings are denied together.
            layers = [unit.column for unit in culprit.units if unit.kind == "layer"]
            columns = set(layers[:1] or [unit.column for unit in culprit.units])
            entries.append(DeniedTactic.of(record, columns, culprit.bad_run))
        return DenyList(entries=tuple(entries))


def merge_culprits(done: Sequence[BisectResult]) -> list[CampaignCulprit]:
    """Merge the culprits of all bisections, without refuted ones and supersets of others."""
    # If both builds of a pair have one of two choices that fail only together, the bisection names the other one alone.
    # A later bisection with that one as ``held`` adds what it needs.
    culprits: list[CampaignCulprit] = []
    for result in done:
        new: list[tuple[Unit, ...]] = []
        for bisected in result.culprits:
            new += [tuple(bisected.units[i] for i in clause) for clause in bisected.clauses]
        if not result.held:
            culprits += [CampaignCulprit(units, result.good_run, result.bad_run) for units in new]
            continue
        for position, culprit in [(p, c) for p, c in enumerate(culprits) if set(c.units) == set(result.held)][::-1]:
            if new:
                needed = [(*culprit.units, *(unit for unit in units if unit not in culprit.units)) for units in new]
                culprits[position : position + 1] = [replace(culprit, units=units, settled=True) for units in needed]
            elif result.outcome == "sufficient":
                culprits[position] = replace(culprit, bad_with=(*culprit.bad_with, result.good_run))
            else:
                culprits[position] = replace(culprit, good_with=(*culprit.good_with, result.good_run))
    unrefuted = [
        c for c in culprits if c.settled or len(c.good_with) < REFUTATIONS or len(c.good_with) <= len(c.bad_with)
    ]
    sets = [culprit.choices for culprit in unrefuted]
    return [
        culprit
        for position, culprit in enumerate(unrefuted)
        if not any(other < sets[position] for other in sets) and sets[position] not in sets[:position]
    ]


def _transfer(culprit: CampaignCulprit, table: CampaignTable) -> BuildPair | None:
    """The good build for the next test of a culprit: the one least like its pair; None after some."""
    rows = {name: row for row, name in enumerate(table.names)}
    has = culprit.is_in(table)
    good = [name for name in table.named(*PASSED) if name not in culprit.tried_in and not has[rows[name]]]
    if culprit.settled or not good or sum(not has[rows[name]] for name in culprit.tried_in) >= MAX_TRANSFERS:
        return None
    # A choice that all builds so far share may be needed.
    culprit_rows = [rows[name] for name in (culprit.good_run, culprit.bad_run, *culprit.tried_in)]
    lacking = [(table.codes[rows[name]] != table.codes[culprit_rows]).all(axis=0).sum() for name in good]
    best = int(np.argmax(lacking))
    return BuildPair(good[best], culprit.bad_run, held=culprit.units) if lacking[best] else None


def most_alike(table: CampaignTable, good: Sequence[str], bad: Sequence[str]) -> tuple[str, str]:
    """The good and the bad build with the fewest differing layers and settings."""
    rows = {name: row for row, name in enumerate(table.names)}
    good, bad = good[:_MAX_COMPARED], bad[:_MAX_COMPARED]
    theirs = table.codes[[rows[name] for name in bad]]
    distances = np.array([(theirs != table.codes[rows[name]]).sum(axis=1) for name in good])
    i, j = np.unravel_index(int(distances.argmin()), distances.shape)
    return good[int(i)], bad[int(j)]
