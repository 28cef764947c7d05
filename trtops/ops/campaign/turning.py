"""When a campaign turns from builds as they come to mixtures of two of them, and when it knows enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trtops.ops.campaign.bisected import BisectResult
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.guilty import Guilty, joined, kept_out, of_several, unasked
from trtops.ops.campaign.mixture import Unit
from trtops.ops.campaign.pairs import most_alike, most_telling
from trtops.ops.campaign.weighing import odds_against_chance, with_mixtures
from trtops.tactics.bisection import CHANCE
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tactics.several import Bools
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.campaigns import closed_if_abandoned, load_record
from trtops.verdict import VERDICTS

_KILLED = "The bisection's process ended in the middle of it."
_DOUBTS = 3  # pairs whose mixtures follow nothing, after which nothing is looked for any more
_PATIENCE = (
    2  # builds per good one that is waited for: what was convicted may not be kept out, and leave few good builds
)
_ELSEWHERE = 5  # good builds that something convicted is put into, to see whether it needs anything beside
_AT_ONCE = 2  # of them at once, and not when there are good builds enough to choose from
_MUCH = 0.4  # share of what it may need that a build has to lack for that
_SURE = 2  # builds that have to show that it does not need a choice, since one may be misclassified
_NAMED_SOONER = 4  # times the campaign's doubt, with which one choice alone is convicted at first
_MISCLASSIFIED = 0.5  # probability that a bad build is, of those that what was convicted does not explain


@dataclass(frozen=True)
class Pair:
    """A good and a bad build to mix.

    Attributes:
        good: Run of the good build.
        bad: Run of the bad one.
        given: What was convicted in the bad build, and all mixtures have.
        together: What is asked about, and nothing else is searched for: whether it makes the good build bad, which has what
            is not in ``given``. Empty if culprits are searched for.
        chance: Probability beforehand that replayed choices do not decide.
    """

    good: str
    bad: str
    given: tuple[Unit, ...] = ()
    together: tuple[Unit, ...] = ()
    chance: float = CHANCE


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
        """What the memory has of a campaign with these iterations; a bisection that its process did not end is closed.

        One that was killed before its plan was there has built nothing: another is begun in its place.
        """
        found = [closed_if_abandoned(tracker, info, _KILLED) for info in bisections(tracker, campaign)]
        found = [info for info in found if tracker.peek(info.id, schema.Artifact.BISECTION_PLAN) is not None]
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

    def pair(self, table: CampaignTable) -> Pair | None:
        """The good and the bad build to mix next, the most alike ones.

        First a good build that has what was convicted, which then needs something beside. Then two choices that were convicted
        with others, and may be bad with one another: that takes two builds, and a dozen where a bad build has to show it. Then a
        good build that shows whether what seems to be guilty alone needs one of such choices. Then a bad build that nothing
        convicted explains. At last, with good builds enough, one that shows whether what was convicted is bad there too.
        """
        found = joined(self.done)
        for guilty in (guilty for guilty in found if not guilty.settled):
            having = dict(zip(table.names, guilty.held_by(table).tolist()))
            against = [name for name in table.named("good") if having[name] and name not in guilty.asked]
            if against:
                alike, _ = most_alike(table, against, [guilty.good_run])
                return Pair(alike, guilty.mixed_run, given=guilty.units)
        if (two := _unasked_pair(found, self.done, table)) is not None:
            return two
        if (alone := _without_others(found, table)) is not None:
            return alone
        tried = {result.bad_run for result in self.done if not result.given}
        # Mixtures with a good build that failed only by chance not to be bad follow nothing.
        unsafe = {result.good_run for result in self.done if result.outcome == "not repeatable" and not result.given}
        explained = dict(zip(table.names, self.explained(table).tolist()))
        good = [name for name in table.named("good") if name not in unsafe]
        bad = [name for name in table.named("bad") if name not in tried and not explained[name]]
        if good and bad:
            choose = most_telling if self._not_repeatable else most_alike
            return Pair(*choose(table, good, bad), chance=_MISCLASSIFIED if found else CHANCE)
        waited = self._has_waited(table)
        return next(filter(None, (_elsewhere(guilty, table, waited=waited) for guilty in found)), None)

    def is_answered(self, table: CampaignTable) -> bool:
        """Whether nothing is left to ask.

        Either mixtures of several pairs follow nothing: choices do not decide. Or enough builds are good without what was
        convicted, and what was convicted is bad in others of them as well, so that it needs nothing beside.
        """
        found = joined(self.done)
        if not found:
            return self._not_repeatable >= _DOUBTS
        return self._has_waited(table) and not self._may_tell_more(found, table) and self.pair(table) is None

    def _may_tell_more(self, found: Sequence[Guilty], table: CampaignTable) -> bool:
        """Whether builds without what was convicted may still show what its choices do with one another, or alone."""
        if len(table) - self.after >= self.config.clean_builds:
            return False
        return bool(unasked(found, self.done)) or any(g.may_be_guilty_without_others(table) for g in found)

    def guilty(self, table: CampaignTable) -> list[Guilty]:
        """What is guilty, by all builds and mixtures together: of what was convicted, what chance does not explain as well."""
        return self.guilty_and_doubted(table)[0]

    def guilty_and_doubted(self, table: CampaignTable) -> tuple[list[Guilty], list[Guilty]]:
        """Of what was convicted, what is guilty, and what chance explains nearly as well, all builds and mixtures together."""
        found = joined(self.done)
        odds = odds_against_chance(found, with_mixtures(table, self.done))
        doubt = 1 - self.config.confidence
        parts: tuple[list[Guilty], list[Guilty]] = ([], [])
        for guilty, log_odds in zip(found, odds):
            parts[log_odds < math.log(guilty.suspects / doubt)].append(guilty)
        return parts

    def confidence(self) -> float:
        """What the next bisection needs to convict: more, where one before found that choices do not decide."""
        doubt = 1 - self.config.confidence
        return 1 - doubt / 5 if self._not_repeatable else self.config.confidence

    def confidence_of_one(self, pair: Pair) -> float | None:
        """What it needs where one choice alone is most probable: less, since the builds that follow show who was convicted by chance.

        They are made without it and with it in any case, and all are weighed in the end.
        """
        doubt = 1 - self.config.confidence
        return None if pair.given or self._not_repeatable else max(0.5, 1 - _NAMED_SOONER * doubt)

    def denied(self, tracker: Tracker, table: CampaignTable) -> DenyList:
        """What the next builds are not to choose: what was convicted. Nothing, where a build has failed since."""
        if (table.verdicts[self.after :] == VERDICTS.index("error")).any():
            return DenyList()
        found = joined(self.done)
        return DenyList(entries=tuple(_denied(tracker, *each) for each in zip(found, kept_out(found, len(table)))))

    def _has_waited(self, table: CampaignTable) -> bool:
        wanted = self.config.clean_builds
        return len(table.named("good")) >= wanted or len(table) - self.after >= _PATIENCE * wanted

    @property
    def _not_repeatable(self) -> int:
        return sum(result.outcome == "not repeatable" and not result.given for result in self.done)

    def explained(self, table: CampaignTable) -> Bools:
        """Which builds have what was convicted, of shape ``(builds,)``."""
        explained = np.zeros(len(table), np.bool_)
        for guilty in joined(self.done):
            explained |= guilty.held_by(table)
        return explained


def _elsewhere(guilty: Guilty, table: CampaignTable, *, waited: bool) -> Pair | None:
    """The good build that says most about what a culprit needs beside: it lacks most of what the bad build has.

    None where the culprit was bad already in builds without each other choice of the bad build, or in enough of them; and,
    until enough good builds are there, where none of them says much.
    """
    of_settings = all(unit.kind == "setting" for unit in guilty.units)
    # Layers that follow from settings cannot be chosen, and so cannot be needed.
    codes = table.setting_codes if of_settings else np.hstack((table.codes, table.setting_codes))
    columns = table.settings if of_settings else (*table.layers, *table.settings)
    place = {name: row for row, name in enumerate(table.names)}
    # What the mixture has: the good build's choices, but for the culprit's.
    taken = np.isin(columns, [unit.name for unit in guilty.units])
    mixed = np.where(taken, codes[place[guilty.bad_run]], codes[place[guilty.good_run]])
    lacks: npt.NDArray[np.bool_] = codes != mixed
    # A bad build that has the culprit and lacks a choice says as much, and so does the pair that convicted it.
    seen = lacks[[place[name] for name in (guilty.bad_run, *guilty.enough)]].sum(axis=0)
    having = guilty.held_by(table)
    good = [n for n in table.named("good") if n not in guilty.asked and not having[place[n]]]
    if (
        guilty.settled
        or not good
        or Counter(having[place[n]] for n in guilty.asked)[False] >= (_ELSEWHERE if waited else _AT_ONCE)
    ):
        return None
    needed = lacks.any(axis=0) & (seen < _SURE) & ~taken
    told = (lacks[[place[name] for name in good]] & needed).sum(axis=1)
    best = int(np.argmax(told))
    says = told[best] > 0 and (waited or told[best] >= _MUCH * needed.sum())
    return Pair(good[best], guilty.mixed_run, given=guilty.units) if says else None


def _without_others(found: Sequence[Guilty], table: CampaignTable) -> Pair | None:
    """A good build that shows whether a culprit needs one of the choices that were convicted with others: it has none of them.

    Of several choices two of which make a build bad, one seems to be guilty alone where most builds have one of the others.
    """
    rows = {name: row for row, name in enumerate(table.names)}
    good = table.verdicts == VERDICTS.index("good")
    for guilty in (guilty for guilty in found if not guilty.settled):
        others = [unit.taken_by(table) for choice, unit in of_several(found).items() if choice not in guilty.choices]
        if not others:
            continue
        without = ~np.logical_or.reduce(others)
        if sum(without[rows[name]] for name in guilty.asked) >= _SURE:
            continue
        free = without & good & ~guilty.held_by(table)
        names = (table.names[row] for row in np.flatnonzero(free))
        if (name := next((name for name in names if name not in guilty.asked), None)) is not None:
            return Pair(name, guilty.mixed_run, given=guilty.units)
    return None


def _unasked_pair(found: Sequence[Guilty], done: Sequence[BisectResult], table: CampaignTable) -> Pair | None:
    """A good and a bad build that show whether two choices are bad together, each of which was convicted with others.

    Of four, two of which make a build bad, a campaign convicts the pairs that it happens to meet. The good build may have one
    of the two already, and has nothing else that was convicted with others; the bad build has the rest.
    """
    units = of_several(found)
    has = {choice: unit.taken_by(table) for choice, unit in units.items()}
    good, bad = (table.verdicts == VERDICTS.index(verdict) for verdict in ("good", "bad"))
    for two in map(sorted, unasked(found, done)):
        others = np.logical_or.reduce([has[choice] for choice in units if choice not in two] or [np.zeros_like(good)])
        # What the good build lacks of the two. Settings are denied together, as one build has them.
        for given in (two,) if "setting" in (two[0][0], two[1][0]) else (two, two[:1], two[1:]):
            there = np.logical_and.reduce([has[choice] == (choice not in given) for choice in two])
            from_good = np.flatnonzero(good & there & ~others)
            from_bad = np.flatnonzero(bad & np.logical_and.reduce([has[choice] for choice in given]))
            if len(from_good) and len(from_bad):
                lacking = tuple(units[choice] for choice in given)
                rest = tuple(units[choice] for choice in two if choice not in given)
                names = table.names
                return Pair(names[from_good[0]], names[from_bad[0]], given=lacking, together=(*lacking, *rest))
    return None


def _denied(tracker: Tracker, guilty: Guilty, kept: Unit | None) -> DeniedTactic:
    """The entry that keeps a culprit out of builds: of one of its layers' choices, or of all its settings."""
    record = load_record(tracker.load(guilty.bad_run))
    if record is not None and kept is not None and not _chosen(record, kept):
        # Of two choices that are bad together, the good build may have had one.
        record = load_record(tracker.load(guilty.good_run))
    assert record is not None  # or there would have been nothing to mix
    names = {unit.name for unit in guilty.units} if kept is None else set()
    return DeniedTactic(
        backend_version=record.backend_version,
        device_sha256=record.device_sha256,
        choices=() if kept is None else _chosen(record, kept),
        settings=tuple(pair for pair in record.settings if pair[0] in names),
        evidence=guilty.bad_run,
    )


def _chosen(record: TacticRecord, unit: Unit) -> tuple[TacticChoice, ...]:
    """A build's choice of a layer, if it is the one that a unit has from bad builds."""
    return tuple(choice for choice in record.choices if (choice.layer, choice.tactic) == (unit.name, unit.bad))


def bisections(tracker: Tracker, campaign: RunInfo) -> list[RunInfo]:
    """Runs of a campaign's bisections, the oldest first."""
    return tracker.find(campaign.experiment, parent=campaign.id, tags={schema.Tag.KIND: "bisect"})[::-1]


def results(tracker: Tracker, infos: Sequence[RunInfo]) -> list[BisectResult]:
    """What bisections came to that have ended."""
    stored = (tracker.load(info.id) for info in infos)
    return [BisectResult.from_json(run.read_bytes(schema.Artifact.BISECTION)) for run in stored]


def summaries(done: Sequence[BisectResult], guilty: Sequence[str], doubted: Sequence[str] = ()) -> Iterator[str]:
    """Bisections in words, for a page."""
    yield from (f"**Guilty**: {text}" for text in guilty)
    yield from (
        f"**In doubt**: {text}. Mixtures convicted it, but all builds and mixtures together do not rule out chance. "
        "Where the budget ended the campaign, a larger one tells."
        for text in doubted
    )
    if guilty or doubted:
        yield ""
    for result in done:
        yield f"**Mixtures of `{result.good_run[:8]}` and `{result.bad_run[:8]}`**: {result.summary}"
        for culprit in result.culprits:
            effect = f", {culprit.effect.describe()}" if culprit.effect is not None else ""
            yield f"- {culprit.describe()} (probability {culprit.probability:.3f}){effect}"
        yield ""
