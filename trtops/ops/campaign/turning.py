"""When a campaign turns from builds as they come to mixtures of two of them, and when it knows enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from trtops.ops.campaign.bisect import BisectResult
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.mixture import Unit
from trtops.ops.campaign.prove import most_alike
from trtops.tactics.bisection import Bools
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, Tracker

_DOUBTS = 2  # bad builds that mixtures do not repeat, after which nothing is looked for any more
_PATIENCE = 4  # builds per clean one that is waited for, since a culprit that is chosen often leaves few builds without


@dataclass
class Turning:
    """What a campaign's bisections say about its builds.

    Attributes:
        config: The campaign's config.
        done: Bisections that have ended, the oldest first.
        unfinished: The run of one that was interrupted.
        after: How many builds there were when the last one ended.
    """

    config: DebugBuildConfig
    done: list[BisectResult] = field(default_factory=list)
    unfinished: RunInfo | None = None
    after: int = 0

    @classmethod
    def read(
        cls, tracker: Tracker, campaign: RunInfo, config: DebugBuildConfig, iterations: Iterable[RunInfo]
    ) -> Turning:
        """What the memory has of a campaign with these iterations."""
        found = bisections(tracker, campaign)
        if not found:
            return cls(config)
        whole = [info for info in found if info.status == "finished"]
        last = None if found[-1].status == "finished" else found[-1]
        # No iteration is under way while mixtures are made.
        after = sum((info.end_time or 0.0) <= found[-1].start_time for info in iterations)
        return cls(config, results(tracker, whole), last, after)

    def take(self, result: BisectResult, builds: int) -> None:
        """Take in a bisection that has ended when there were so many builds."""
        self.done.append(result)
        self.unfinished, self.after = None, builds

    @property
    def trials(self) -> int:
        """How many mixtures were built."""
        return sum(len(result.trials) for result in self.done)

    def pair(self, table: CampaignTable) -> tuple[str, str] | None:
        """The good and the bad build to mix next, the most alike ones.

        First a good build that has what was convicted: something else, which it lacks and the bad build has, is needed beside.
        Then a bad build that nothing convicted explains.
        """
        good, bad = list(table.named("good")), list(table.named("bad"))
        for guilty in joined(self.done, table):
            having = guilty.held_by(table)
            against = [name for name in good if having[table.names.index(name)]]
            if against and not guilty.settled:
                return most_alike(table, against, [guilty.bad_run])
        tried = {result.bad_run for result in self.done}
        explained = self.explained(table)
        bad = [name for name in bad if name not in tried and not explained[table.names.index(name)]]
        return most_alike(table, good, bad) if good and bad else None

    def is_answered(self, table: CampaignTable) -> bool:
        """Whether nothing is left to ask.

        Either choices do not decide, for two bad builds, since one may have been misjudged. Or enough builds without what was
        convicted are good, and some more with it are bad, so that it needs nothing beside.
        """
        found, wanted = joined(self.done, table), self.config.clean_builds
        if not found:
            return self._not_repeatable >= _DOUBTS
        if self.pair(table) is not None:
            return False
        since = np.arange(len(table)) >= self.after
        if int(since.sum()) >= _PATIENCE * wanted:
            return True
        good, bad = (np.isin(np.array(table.names), list(table.named(verdict))) for verdict in ("good", "bad"))
        clean = int((since & good & ~self.explained(table)).sum())
        alike = all(int((bad & guilty.held_by(table)).sum()) > wanted // 2 for guilty in found)
        return clean >= wanted and alike

    def confidence(self) -> float:
        """What the next bisection needs to convict: more, where one before found that choices do not decide."""
        doubt = 1 - self.config.confidence
        return 1 - doubt / 5 if self._not_repeatable else self.config.confidence

    @property
    def _not_repeatable(self) -> int:
        return sum(result.outcome == "not repeatable" for result in self.done)

    def explained(self, table: CampaignTable) -> Bools:
        """Which builds have what was convicted, of shape ``(builds,)``."""
        explained = np.zeros(len(table), np.bool_)
        for guilty in joined(self.done, table):
            explained |= guilty.held_by(table)
        return explained


@dataclass(frozen=True)
class Guilty:
    """What makes builds bad, all of it together.

    Attributes:
        units: With what the bad build has.
        bad_run: The bad build.
        settled: Whether a good build that has it was mixed with the bad one already.
    """

    units: tuple[Unit, ...]
    bad_run: str
    settled: bool = False

    def held_by(self, table: CampaignTable) -> Bools:
        """Which builds of a table have all of it."""
        held: Bools = np.logical_and.reduce([unit.taken_by(table) for unit in self.units])
        return held

    def describe(self) -> str:
        """In words."""
        return " together with ".join(unit.describe() for unit in self.units)


def joined(done: Sequence[BisectResult], table: CampaignTable) -> list[Guilty]:
    """What bisections convicted, one after the other.

    Two builds that both have one of two that fail only together differ in the other one, and that alone is convicted. Where a
    good build has it too, that one is mixed with the bad build, and what is found belongs to it.
    """
    found: list[Guilty] = []
    for result in done:
        good = table.names.index(result.good_run) if result.good_run in table.names else None
        clauses = [tuple(c.units[i] for i in clause) for c in result.culprits for clause in c.clauses]
        extended = [
            g for g in found if good is not None and g.bad_run == result.bad_run and bool(g.held_by(table)[good])
        ]
        for guilty in extended:
            found.remove(guilty)
            new = [unit for clause in clauses for unit in clause if unit not in guilty.units]
            found.append(Guilty((*guilty.units, *dict.fromkeys(new)), guilty.bad_run, settled=True))
        if not extended:
            found += [Guilty(clause, result.bad_run) for clause in clauses]
    return found


def bisections(tracker: Tracker, campaign: RunInfo) -> list[RunInfo]:
    """Runs of a campaign's bisections, the oldest first."""
    return tracker.find(campaign.experiment, parent=campaign.id, tags={schema.Tag.KIND: "bisect"})[::-1]


def results(tracker: Tracker, infos: Sequence[RunInfo]) -> list[BisectResult]:
    """What bisections came to that have ended."""
    stored = (tracker.load(info.id) for info in infos)
    return [BisectResult.from_json(run.read_bytes(schema.Artifact.BISECTION)) for run in stored]


def summaries(done: Sequence[BisectResult], guilty: Sequence[str]) -> Iterator[str]:
    """Bisections in words, for a page."""
    yield from (f"**Guilty**: {text}" for text in guilty)
    if guilty:
        yield ""
    for result in done:
        yield f"**Mixtures of `{result.good_run[:8]}` and `{result.bad_run[:8]}`**: {result.summary}"
        for culprit in result.culprits:
            effect = f", {culprit.effect.describe()}" if culprit.effect is not None else ""
            yield f"- {culprit.describe()} (probability {culprit.probability:.3f}){effect}"
        yield ""
