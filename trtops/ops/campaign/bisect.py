"""Bisect: which layers or settings make a build bad, found by building mixtures of a good and a bad build.

A campaign that waits for chance needs dozens of builds to tell layers apart. A mixture is made to tell most: half of what is
still suspected comes from the bad build, and a coin decides which half (:mod:`trtops.tactics.bisection`). Once a culprit is
convicted, everything but the culprit is taken from the bad build: if that is good, the set is complete; if it is bad,
something else is guilty as well, and the search goes on without the first.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.ops.campaign.benches import close_benches
from trtops.ops.campaign.bisected import BisectConfig, BisectPlan, BisectResult, Culprit, Outcome, Trial, summary_text
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import EngineEvaluator, asked_of, largest_error, make, verdict_in
from trtops.ops.campaign.mixture import Mixture, Unit
from trtops.ops.campaign.opened import open_campaign
from trtops.ops.campaign.pairs import most_alike
from trtops.ops.result import OnProgress, finish_with
from trtops.tactics.bisection import CHANCE, Bisection, Seen
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.narrowing import Narrowing
from trtops.tactics.record import TacticRecord
from trtops.tactics.several import Bools, Clauses
from trtops.tactics.sizes import Effect, welch
from trtops.tracking import campaigns, schema
from trtops.tracking.base import Run, RunInfo, Tracker, Verdict, ended_if_whole, tracked
from trtops.tracking.campaigns import load_record
from trtops.tracking.schema import Kind
from trtops.verdict import VERDICTS, BadIn

_KIND: Kind = "bisect"


def bisect(
    run: str,
    bad: str | None = None,
    config: BisectConfig | None = None,
    *,
    tracker: Tracker,
    tags: Mapping[str, str] | None = None,
    evaluate: EngineEvaluator | None = None,
    progress: OnProgress | None = None,
    given: Sequence[Unit] = (),
    together: Sequence[Unit] = (),
    chance: float = CHANCE,
) -> BisectResult:
    """Find what makes a build bad, by building mixtures of it and a good one.

    A bisection can be killed at any moment and resumed: no mixture whose run is whole is built again.

    Args:
        run: A campaign's run, or what its id begins with: its good and bad builds that are most alike are taken. Or the run
            of a good build, with ``bad``. Or that of a bisection, which is resumed, with its own config but for
            ``allow_scripts``; one that has ended gives the result it had.
        bad: The run of a bad build of the same campaign, or of a bad mixture.
        config: How long, and how sure.
        tracker: The memory.
        tags: Further tags of all runs.
        evaluate: What evaluated the campaign's engines, if it was a Python callable.
        progress: Told how many builds are done, of how many at most.
        given: What was convicted in the bad build before, and every mixture is to have. If the good build with it is bad,
            the outcome is ``enough``; else something that the good build lacks is needed beside, and is searched for.
        together: What is asked about, if nothing is to be searched for: ``given``, and what the good build has of it already.
        chance: Probability beforehand that the bad build was misclassified, or that replayed choices do not decide.

    Raises:
        ConfigError: If there is no good or no bad build, or the two are not of one campaign.
        LogError: If the process of a bisection that is to be resumed may still be alive.
        TrtopsError: Whatever keeps all builds from being made or evaluated.
    """
    info = ended_if_whole(tracker, tracker.info(tracker.whole_id(run)))
    if bad is not None or info.kind != _KIND:
        begun = _start_bisection(
            tracker,
            run,
            bad,
            BisectConfig() if config is None else config,
            tags,
            given=tuple(given),
            together=tuple(together),
            chance=chance,
        )
    elif info.status == "finished":
        return BisectResult.from_json(tracker.load(info.id).read_bytes(schema.Artifact.BISECTION))
    else:
        begun = _resume_bisection(tracker, info, allow_scripts=config is not None and config.allow_scripts)
    parent, plan, experiment = begun.run, begun.plan, begun.campaign.experiment
    try:
        campaign = replace(begun.campaign.on(plan.config.devices), tags=tuple((tags or {}).items()))
        search = _Search(campaign, begun.mixture, plan, tracker, parent.id, evaluate, progress, begun.made)
        result = replace(search.run(), title=_title_of(plan)).kept_in(parent, experiment)
        parent.log_json(result, schema.Artifact.BISECTION)
        for entry in search.denied(result, parent.id):
            parent.log_json(entry, schema.Artifact.DENIED)
            parent.set_tags({schema.Tag.PROOF: "confirmed"})
        counts = {"builds": len(result.trials), "units": result.units}
        parent.log_metrics({(schema.Metric.BISECT, name): count for name, count in counts.items()})
        finish_with(parent, result, tracker, evaluated=False)
    except BaseException as exc:
        parent.fail(exc)
        raise
    finally:
        close_benches()
    return result


@dataclass(frozen=True)
class _Begun:
    """A bisection that was started or resumed; ``made`` are the runs of mixtures that are there already, the oldest first."""

    run: Run
    plan: BisectPlan
    campaign: Campaign
    mixture: Mixture
    made: tuple[RunInfo, ...] = ()


def _title_of(plan: BisectPlan) -> str:
    return f"bisect {plan.good_run[:8]} and {plan.bad_run[:8]}"


def _start_bisection(
    tracker: Tracker,
    run: str,
    bad: str | None,
    config: BisectConfig,
    tags: Mapping[str, str] | None,
    *,
    given: tuple[Unit, ...],
    together: tuple[Unit, ...],
    chance: float,
) -> _Begun:
    campaign, mixture, seen = _open_pair(tracker, run, bad, config, given)
    plan = BisectPlan(
        good_run=mixture.good.info.id,
        bad_run=mixture.bad.info.id,
        seen=seen,
        config=config,
        given=given,
        together=together,
        chance=chance,
    )
    parent = tracker.start(campaign.experiment, _title_of(plan), kind=_KIND, tags=tags, parent=campaign.run_id)
    parent.log_json(plan, schema.Artifact.BISECTION_PLAN)
    parent.set_tags({schema.Tag.EVIDENCE: f"{plan.good_run} {plan.bad_run}"})
    parent.log_params(schema.flat_params(config))
    return _Begun(parent, plan, campaign, mixture)


def _resume_bisection(tracker: Tracker, info: RunInfo, *, allow_scripts: bool) -> _Begun:
    """A bisection that was interrupted; mixtures that were cut short are marked, and will be built again."""
    data = tracker.peek(info.id, schema.Artifact.BISECTION_PLAN)
    if data is None or info.parent is None:
        raise errors.ConfigError(f"Bisection {info.id} was killed before it had begun. Bisect its campaign again.")
    plan = BisectPlan.from_json(data)
    run = tracker.reopen(info.id)
    made = []
    for child in reversed(tracker.find(info.experiment, parent=info.id, tags={schema.Tag.KIND: "iteration"})):
        if child.status == "running":
            child = tracker.close(
                child.id, "The bisection's process ended in the middle of this build, which was repeated."
            )
        if child.status == "finished" and child.verdict is not None:
            made.append(child)
    mixture = Mixture(tracker.load(plan.good_run), tracker.load(plan.bad_run))
    return _Begun(run, plan, open_campaign(tracker, info.parent, allow_scripts=allow_scripts), mixture, tuple(made))


def campaign_of(tracker: Tracker, run: str, bad: str | None = None, *, allow_scripts: bool = False) -> Campaign:
    """The campaign that a bisection belongs to; arguments as :func:`bisect` and its config take them.

    Raises:
        ConfigError: If there is none, the builds are not of one, or it names code that was not allowed.
    """
    run_id = tracker.whole_id(run)
    if bad is not None:
        run_id = _common_campaign(tracker, tracker.info(run_id), tracker.info(tracker.whole_id(bad)))
    return open_campaign(tracker, run_id, allow_scripts=allow_scripts)


def _open_pair(
    tracker: Tracker, run: str, bad: str | None, config: BisectConfig, given: Sequence[Unit]
) -> tuple[Campaign, Mixture, tuple[tuple[str, bool], ...]]:
    """The campaign, the two builds, and what its builds have of the bad one; the last ones of a long campaign.

    Of what is given, only builds say what it needs beside that have it.
    """
    campaign = campaign_of(tracker, run, bad, allow_scripts=config.allow_scripts)
    builds = campaigns.load_table(tracker, campaign.run_id)
    if bad is None:
        good_names, bad_names = list(builds.named("good")), list(builds.named("bad"))
        if not good_names or not bad_names:
            lacking = "good" if not good_names else "bad"
            raise errors.ConfigError(
                f"Campaign {campaign.run_id} has no {lacking} build yet, so there is nothing to mix."
            )
        pair = most_alike(builds, good_names, bad_names)
    else:
        pair = tracker.whole_id(run), tracker.whole_id(bad)
    stored = [tracker.load(name) for name in pair]
    for build, wanted in zip(stored, ("good", "bad")):
        if build.info.verdict != wanted:
            raise errors.ConfigError(
                f"Run {build.info.id} has the verdict {build.info.verdict}; expected a {wanted} build."
            )
    mixture = Mixture(*stored)
    having = np.logical_and.reduce([builds.verdicts != VERDICTS.index("error"), *(u.taken_by(builds) for u in given)])
    evaluated = np.flatnonzero(having)[-_SEEN:]
    shape = len(mixture.units), len(evaluated)
    taken = np.array([unit.taken_by(builds)[evaluated] for unit in mixture.units], np.bool_).reshape(shape)
    kept = np.array([unit.kept_by(builds)[evaluated] for unit in mixture.units], np.bool_).reshape(shape)
    texts = ("".join(map(str, column)) for column in np.where(taken, 1, np.where(kept, 0, 2)).T.tolist())
    likewise = set(builds.named("bad")) - _bad_otherwise(tracker, campaign, asked_of(mixture.bad.info))
    return campaign, mixture, tuple(zip(texts, (builds.names[row] in likewise for row in evaluated)))


def _bad_otherwise(tracker: Tracker, campaign: Campaign, asked: BadIn | None) -> set[str]:
    """Builds of a campaign that are bad, but not in what is asked about."""
    if asked is None:
        return set()
    other = "precision" if asked == "outputs" else "outputs"
    found = tracker.find(campaign.experiment, parent=campaign.run_id, tags={schema.Tag.BAD_IN: other})
    return {info.id for info in found}


def _common_campaign(tracker: Tracker, good: RunInfo, bad: RunInfo) -> str:
    of_good, of_bad = (_campaign_id(tracker, info) for info in (good, bad))
    if of_good is None or of_good != of_bad:
        raise errors.ConfigError(
            f"Runs {good.id} and {bad.id} are not builds of one campaign (`trtops debug build`), which says how to build and evaluate."
        )
    return of_good


def _campaign_id(tracker: Tracker, build: RunInfo) -> str | None:
    """The run of the campaign that a build belongs to, or the bisection that a mixture belongs to."""
    parent = None if build.parent is None else tracker.info(build.parent)
    return parent.parent if parent is not None and parent.kind == _KIND else build.parent


@dataclass
class _Search:
    """A bisection under way; ``made`` are the runs that earlier processes have built, which are not built again."""

    campaign: Campaign
    mixture: Mixture
    plan: BisectPlan
    tracker: Tracker
    parent: str
    evaluate: EngineEvaluator | None
    progress: OnProgress | None
    made: tuple[RunInfo, ...] = ()
    trials: list[Trial] = field(default_factory=list)
    masks: list[Bools] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    building: float = 0.0

    @property
    def config(self) -> BisectConfig:
        """How long, and how sure."""
        return self.plan.config

    def run(self) -> BisectResult:
        """Search until all culprits of the bad build are known, or the budget is used up."""
        units = self.mixture.units
        culprits: list[Culprit] = []
        outcome: Outcome = "cannot be told"
        complete = False
        free = ~self.held  # what is still suspected; the others stay as in the good build
        enough = self._is_enough() if self.plan.given else False
        if enough is not False or self.plan.together:
            outcome = "enough" if enough else "cannot be told" if enough is None else "not repeatable"
            free = np.zeros(len(units), np.bool_)
        while free.any() and len(culprits) < self.config.max_culprits and not complete:
            found = self._culprit(free)
            if not isinstance(found, Culprit):
                outcome = "convicted" if culprits else found
                break
            culprits.append(found)
            outcome = "convicted"
            free &= ~np.array([unit in found.units for unit in units])
            complete = not free.any() or self._is_good(free | self.held)
        complete = complete and outcome == "convicted"
        return BisectResult(
            outcome=outcome,
            summary=summary_text(outcome, culprits, complete, self.mixture, self.trials, self.plan),
            culprits=tuple(culprits),
            complete=complete,
            good_run=self.mixture.good.info.id,
            bad_run=self.mixture.bad.info.id,
            units=len(units),
            consequences=self.mixture.consequences,
            asked=asked_of(self.mixture.bad.info),
            given=self.plan.given,
            together=self.plan.together,
            trials=tuple(self.trials),
            seconds=time.perf_counter() - self.began,
            overhead_seconds=time.perf_counter() - self.began - self.building,
        )

    @functools.cached_property
    def held(self) -> Bools:
        """Units that every mixture has from the bad build, of shape ``(units,)``."""
        given = {(unit.kind, unit.name) for unit in self.plan.given}
        held: Bools = np.array([(unit.kind, unit.name) in given for unit in self.mixture.units], np.bool_)
        return held

    def _is_enough(self) -> bool | None:
        """Whether the good build is bad with what is given; None if it cannot be built, or there is no budget to tell.

        A good verdict may be wrong, and culprits may fail only sometimes: it takes :data:`_GOOD_ONES` of them, the good
        build's own among them if that has what is given. What nobody suspected before is bad twice, or it is not.
        """
        wanted = 2 if self.plan.together else 1
        left = _GOOD_ONES - (not self.held.any())
        while left >= wanted:
            if self._spent():
                return None
            trial, taken = self._build(self.held)
            if taken is None or not np.array_equal(taken, self.held):
                return None
            left -= 1
            wanted -= trial.verdict == "bad"
            if not wanted:
                return True
        return False

    def _culprit(self, free: Bools) -> Culprit | Outcome:
        """One set of culprits among the units that are still suspected."""
        places = np.flatnonzero(free)
        units = [self.mixture.units[place] for place in places]
        seen = []
        for text, bad in self.plan.seen:
            digits = np.array([int(text[place]) for place in places])
            seen.append(Seen(digits == 1, bad, digits == 2))
        bisection = Narrowing(Bisection(np.ones(len(units)), self.config.seed, seen, self.plan.chance))
        first, failed = len(self.trials), 0
        needed = self.config.confidence, self.config.confidence_of_one
        while (decided := bisection.decided(*needed)) is None:
            if self._spent() or failed >= _FAILURES:
                return "cannot be told"
            wanted, opposite = bisection.next(*needed)
            trial, taken = self._build(self._whole(places, wanted))
            if taken is None:
                failed += 1
                bisection.shun(wanted)
                continue
            got = taken[places]
            if not np.array_equal(taken[~free], self.held[~free]):
                failed += 1  # a unit that is to stay as it is did not
                bisection.shun(wanted)
                continue
            followed = np.array_equal(got, wanted)
            if not followed:
                bisection.shun(wanted)  # or it would be asked for again, and stray again
            # Where the build strayed, the coin did not choose what was built.
            bisection.add(got, trial.verdict == "bad", opposite if followed else None)
        if decided == "chance":
            return "not repeatable"
        best = bisection.best
        places_of = {unit: place for place, unit in enumerate(best.units)}
        return Culprit(
            units=tuple(units[unit] for unit in best.units),
            clauses=tuple(tuple(places_of[unit] for unit in clause) for clause in best.clauses),
            probability=best.probability,
            log10_e_value=bisection.log_e_value / math.log(10),
            builds=len(self.trials) - first,
            effect=self._effect(places, best.clauses),
        )

    def _whole(self, places: np.ndarray[Any, Any], wanted: Bools) -> Bools:
        """A mask over all units from one over those that are still suspected."""
        mask: Bools = self.held.copy()
        mask[places[wanted]] = True
        return mask

    def _is_good(self, taken: Bools) -> bool:
        """Whether a mixture is good that has these units from the bad build: built unless it was, and again if it is bad."""
        known = [t.verdict for t, mask in zip(self.trials, self.masks) if t.counted and np.array_equal(mask, taken)]
        if "good" in known:
            return True
        return any(self._build(taken)[0].verdict == "good" for _ in range(1 if known or self._spent() else 2))

    def _spent(self) -> bool:
        minutes = self.config.max_minutes
        late = minutes is not None and time.perf_counter() - self.began > 60 * minutes
        return late or len(self.trials) >= self.config.max_builds

    def _build(self, taken: Bools) -> tuple[Trial, Bools | None]:
        """Build and evaluate a mixture; and say which units it really has from the bad build, if that can be said."""
        began = time.perf_counter()
        run_id, evaluated, tactics, reason = self._found(taken) or self._made(taken)
        info = self.tracker.info(run_id)
        verdict = verdict_in(asked_of(self.mixture.bad.info), info) or evaluated
        outcome = self.mixture.outcome(taken, tactics)
        counted = outcome.taken is not None and verdict != "error" and not outcome.also_changed
        trial = Trial(
            run_id=run_id,
            taken=self._names(taken),
            verdict=verdict,
            bad_otherwise=verdict != evaluated,
            counted=counted,
            strayed=outcome.strayed,
            also_changed=outcome.also_changed,
            error=largest_error(info),
            reason=reason,
        )
        self.trials.append(trial)
        self.masks.append(taken if outcome.taken is None else outcome.taken)
        self.building += time.perf_counter() - began
        if self.progress is not None:
            self.progress(len(self.trials), self.config.max_builds)
        return trial, outcome.taken if counted else None

    def _names(self, taken: Bools) -> tuple[str, ...]:
        return tuple(unit.name for unit, t in zip(self.mixture.units, taken) if t)

    def _found(self, taken: Bools) -> _Built | None:
        """A mixture that an earlier process has built, where that is the one it built next."""
        if not self.made:
            return None
        info, *rest = self.made
        if info.tags.get(schema.Tag.TRIAL) != _trial_tag(taken):
            self.made = ()  # it took another way, as with another release of this code
            return None
        self.made = tuple(rest)
        assert info.verdict is not None
        return info.id, info.verdict, load_record(self.tracker.load(info.id)), info.tags.get(schema.Tag.ERROR, "")

    def _made(self, taken: Bools) -> _Built:
        """A mixture, built and evaluated."""
        order = self.mixture.order(taken)
        tags = {
            **dict(self.campaign.tags),
            schema.Tag.TRIAL: _trial_tag(taken),
            schema.Tag.VARIED: json.dumps(order.varied),
        }
        name = f"{int(taken.sum())} of {len(taken)} from the bad build"
        with tracked(
            self.tracker, self.campaign.experiment, name, kind="iteration", tags=tags, parent=self.parent
        ) as run:
            made = make(self.campaign, order, run, tracker=self.tracker, evaluate_engine=self.evaluate)
        return run.id, made.verdict, made.tactics, "; ".join(made.reasons)[:1000]

    def _effect(self, places: np.ndarray[Any, Any], clauses: Clauses) -> Effect | None:
        """The errors of all builds so far, with the culprits and without."""
        groups: tuple[list[float], list[float]] = ([], [])
        for trial, mask in zip(self.trials, self.masks):
            guilty = any(mask[places[list(clause)]].all() for clause in clauses)
            if trial.counted and trial.error:
                groups[guilty].append(math.log(trial.error))
        return welch(groups[1], groups[0])

    def denied(self, result: BisectResult, run_id: str) -> Iterator[DeniedTactic]:
        """What ``trtops runs deny`` may put on the deny-list: a single culprit, or settings that are denied together only.

        Of two layers that fail only together neither is guilty by itself, and the deny-list takes each layer by itself. So it
        is with a culprit that good builds have as well: it needs something beside that both builds of the pair have.
        """
        for culprit in () if self.plan.given else result.culprits[:1]:
            places = [self.mixture.units.index(unit) for unit in culprit.units]
            if any(not bad and all(text[place] == "1" for place in places) for text, bad in self.plan.seen):
                continue
            only_settings = all(unit.kind == "setting" for unit in culprit.units)
            if len(culprit.clauses) == 1 and (len(culprit.units) == 1 or only_settings):
                entry = self.mixture.denied(culprit.units, run_id)
                effect = culprit.effect.describe() if culprit.effect is not None else ""
                evaluated = self.campaign
                yield replace(
                    entry, model_sha256=evaluated.model_sha256, tolerance=evaluated.tolerance_text, effect=effect
                )


_Built: TypeAlias = "tuple[str, Verdict, TacticRecord | None, str]"
"""A build's run, its verdict, its tactics, and why it is not good."""


def _trial_tag(taken: Bools) -> str:
    return json.dumps(np.flatnonzero(taken).tolist())[: schema.MAX_TAG]


_SEEN = 200
"""Builds of a campaign that say beforehand who is suspicious."""
_GOOD_ONES = 3
"""Good verdicts after which something that was convicted is not guilty by itself."""
_FAILURES = 12
"""Mixtures that could not be built, or not as wanted, after which the search gives up."""
