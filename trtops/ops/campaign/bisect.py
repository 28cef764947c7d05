"""Bisect: find the layers or settings behind a bad build, by building mixtures of a good and a bad build.

:mod:`trtops.tactics.bisection` chooses the mixtures.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trtops import errors
from trtops.ops.campaign.bisect_result import (
    AddedErrors,
    BisectConfig,
    BisectCulprit,
    BisectPlan,
    BisectResult,
    Contribution,
    Trial,
    Unit,
)
from trtops.ops.campaign.bisection_planner import most_alike
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import (
    EngineEvaluator,
    build_and_evaluate,
    denial_scope,
    errors_of,
    own_check,
    tested_aspect,
    verdict_in,
)
from trtops.ops.campaign.mixture import Mixture
from trtops.ops.campaign.open_campaign import open_campaign
from trtops.ops.devices import close_workers
from trtops.ops.result import OnProgress, finish_with, tracker_or_default
from trtops.tactics.bisection import MAX_PAIRED, CulpritSearch, Errors, SearchResult, TrialResult
from trtops.tactics.contributions import MIN_BUILDS, SOUND_SPREAD, find_sum, separating_mixture
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.model import Bools, Counts, Likelihood
from trtops.tactics.table import CampaignTable
from trtops.tracking import campaigns, schema
from trtops.tracking.base import MetricName, Run, RunInfo, Tracker, ended_if_whole, run_id_of, tracked
from trtops.tracking.schema import Kind
from trtops.verdict import PASSED, Verdict

_KIND: Kind = "bisect"
_WANTED: tuple[tuple[Verdict, ...], ...] = (PASSED, ("bad",))  # verdicts of the builds that are mixed
_HISTORY = 50  # proofs and bisections of the store, the last ones, that suspects are taken from
_DOUBT = 8  # times the confidence that a layer needs which no replay sets, since no coin decides about it
_TIED = 2  # further mixtures where a layer that no replay sets fits as well as a confirmed unit
_MOST_OF_MISSING = 30  # mixtures after which missing units are reported as known then
_MOST_OF_SUM, _LEAST_OF_SUM = 20, 5  # builds and mixtures after which a sum is reported as known then; least mixtures
_CUT_SHORT = "The bisection's process ended in the middle of this build, which was repeated."


def bisect(
    run: str,
    bad: str | None = None,
    config: BisectConfig | None = None,
    *,
    tracker: Tracker | None = None,
    tags: Mapping[str, str] | None = None,
    evaluate: EngineEvaluator | None = None,
    progress: OnProgress | None = None,
    held_units: Sequence[Unit] = (),
) -> BisectResult:
    """Find the cause of a bad build, by building mixtures of it and a good one.

    A bisection can be killed at any moment and resumed: no mixture whose run is complete is built again.

    Args:
        run: A campaign's run: its most similar good and bad builds are mixed. Or the run of
            a good build, with ``bad``. Or that of a bisection, which is resumed, with its own config but for
            ``allow_scripts``; one that has ended gives its result.
        bad: The run of a bad build of the same campaign.
        config: How long, and how sure.
        tracker: The tracking store.
        tags: Further tags of all runs.
        evaluate: The Python callable that evaluated the campaign's engines, if one did.
        progress: Called with the number of builds made, and the maximum.
        held_units: Confirmed choices of the bad build that every mixture gets. If the good build with them is bad, the
            outcome is ``sufficient``; else the bisection searches what else they need.

    Raises ConfigError if there is no good or no bad build, or the two are not of one campaign; LogError if the process
    of a bisection to resume may still be alive.
    """
    tracker = tracker_or_default(tracker)
    info = ended_if_whole(tracker, tracker.info(run_id_of(run, tracker)))
    if bad is None and info.kind == _KIND and info.status == "finished":
        return BisectResult.from_json(tracker.load(info.id).read_bytes(schema.Artifact.BISECTION))
    resumed: list[RunInfo] = []
    if bad is None and info.kind == _KIND:
        parent, plan, mixture, resumed = _resume(tracker, info)
        # A stored config is no permission: everybody with write access to the store could change it.
        allow_scripts = config is not None and config.allow_scripts
        campaign = open_campaign(tracker, str(info.parent), allow_scripts=allow_scripts)
    else:
        config = BisectConfig() if config is None else config
        campaign = campaign_of(tracker, run, bad, allow_scripts=config.allow_scripts)
        plan, mixture = _plan_pair(tracker, campaign, run, bad, config, tuple(held_units))
        parent = tracker.start(campaign.experiment, _title_of(plan), kind=_KIND, tags=tags, parent=campaign.run_id)
        parent.log_json(plan, schema.Artifact.BISECTION_PLAN)
        parent.set_tags({schema.Tag.EVIDENCE: f"{plan.good_run} {plan.bad_run}"})
        parent.log_params(config)
    try:
        campaign = replace(campaign.on(plan.config.devices), tags=tuple((tags or {}).items()))
        session = BisectSession(campaign, mixture, plan, tracker, parent.id, evaluate, progress, resumed)
        result = session.run().kept_in(parent, campaign.experiment)
        if (entry := _denied(result, mixture, campaigns.load_table(tracker, campaign.run_id))) is not None:
            scope = denial_scope(campaign, mixture.bad, tracker, own_check(campaign, evaluate))
            parent.log_json(replace(entry, **scope), schema.Artifact.DENIED)
            # As of a proof, so that the deny-list takes it.
            parent.set_tags({schema.Tag.PROOF: "confirmed"})
        counts = {"builds": len(result.trials), "units": result.units}
        parent.log_metrics({(schema.Metric.BISECT, name): count for name, count in counts.items()})
        finish_with(parent, result, tracker, artifact=schema.Artifact.BISECTION, evaluated=False)
    except BaseException as exc:
        parent.fail(exc)
        raise
    finally:
        close_workers()
    return result


def _title_of(plan: BisectPlan) -> str:
    return f"bisect {plan.good_run[:8]} and {plan.bad_run[:8]}"


def campaign_of(tracker: Tracker, run: str, bad: str | None = None, *, allow_scripts: bool = False) -> Campaign:
    """Return the campaign of a bisection; arguments as in :func:`bisect` and its config."""
    run_id = run_id_of(run, tracker)
    if bad is not None:
        parents = [tracker.info(build_run).parent for build_run in (run_id, run_id_of(bad, tracker))]
        if parents[0] is None or parents[0] != parents[1]:
            raise errors.ConfigError(
                f"Runs {run_id} and {bad} are not builds of one campaign (`trtops debug build`), which defines how "
                "to build and evaluate."
            )
        run_id = parents[0]
    return open_campaign(tracker, run_id, allow_scripts=allow_scripts)


def _plan_pair(
    tracker: Tracker,
    campaign: Campaign,
    run: str,
    bad: str | None,
    config: BisectConfig,
    held_units: tuple[Unit, ...],
) -> tuple[BisectPlan, Mixture]:
    """The two builds to mix."""
    table = campaigns.load_table(tracker, campaign.run_id)
    if bad is None:
        for verdicts in _WANTED:
            if not table.named(*verdicts):
                raise errors.ConfigError(
                    f"Campaign {campaign.run_id} has no {verdicts[0]} build yet, so there is nothing to mix."
                )
        pair = most_alike(table, table.named(*PASSED), table.named("bad"))
    else:
        pair = run_id_of(run, tracker), run_id_of(bad, tracker)
    stored = [tracker.load(name) for name in pair]
    for build, allowed_verdicts in zip(stored, _WANTED):
        if build.info.verdict not in allowed_verdicts:
            raise errors.ConfigError(
                f"Run {build.info.id} has the verdict {build.info.verdict}; expected a {allowed_verdicts[0]} build."
            )
    mixture = Mixture(*stored)
    return BisectPlan(
        builds=len(table),
        good_run=mixture.good.info.id,
        bad_run=mixture.bad.info.id,
        config=config,
        held=held_units,
        suspected=suspected_units(tracker, mixture),
    ), mixture


def suspected_units(tracker: Tracker, mixture: Mixture) -> tuple[Unit, ...]:
    """The units to ask about first.

    They have a kernel or setting that a proof or bisection of the same store confirmed; or belong to the first tensor,
    in the engine's order, whose error in the bad build is more than twice that in the good one.
    """
    proofs = tracker.find(tags={schema.Tag.PROOF: "confirmed"}, status="finished", limit=_HISTORY)
    confirmed: set[tuple[str, str]] = set()
    for info in proofs:
        if (document := tracker.peek(info.id, schema.Artifact.DENIED)) is not None:
            entry = DeniedTactic.from_json(document)
            confirmed |= {("layer", choice.tactic) for choice in entry.choices}
            confirmed |= {("setting", f"{name}={value}") for name, value in entry.settings}
    good, bad = errors_of(mixture.good.info), errors_of(mixture.bad.info)
    diverges = {n[1]: bad[n] > SOUND_SPREAD * good.get(n, math.inf) for n in bad if len(n) == 3 and n[2] == "max_abs"}
    # If all outputs diverge, the first one shows nothing.
    layers = [] if all(diverges.values()) else [c.layer for c in mixture.bad_tactics.choices if diverges.get(c.layer)]
    return tuple(
        unit
        for unit in mixture.units
        if unit.name in layers[:1] or (unit.kind, unit.bad if unit.kind == "layer" else unit.describe()) in confirmed
    )


def _resume(tracker: Tracker, info: RunInfo) -> tuple[Run, BisectPlan, Mixture, list[RunInfo]]:
    """An interrupted bisection, with its complete mixtures, the oldest first; the others are closed and built again."""
    data = tracker.peek(info.id, schema.Artifact.BISECTION_PLAN)
    if data is None or info.parent is None:
        raise errors.ConfigError(f"Bisection {info.id} was killed before it had begun. Bisect its campaign again.")
    plan = BisectPlan.from_json(data)
    run = tracker.reopen(info.id)
    done = []
    for child in reversed(tracker.find(info.experiment, parent=info.id, tags={schema.Tag.KIND: "iteration"})):
        if child.status == "running":
            child = tracker.close(child.id, _CUT_SHORT)
        if child.status == "finished" and child.verdict is not None:
            done.append(child)
    return run, plan, Mixture(tracker.load(plan.good_run), tracker.load(plan.bad_run)), done


def _denied(result: BisectResult, mixture: Mixture, table: CampaignTable) -> DeniedTactic | None:
    """The entry for the deny-list: a culprit sufficient by itself, if one was found."""
    if result.held or not result.culprits:
        return None
    culprit = result.culprits[0]
    # A culprit that good builds have as well needs something that both builds of the pair have.
    passed = np.isin(table.names, table.named(*PASSED))
    if np.logical_and.reduce([passed, *(unit.is_bad_in(table) for unit in culprit.units)]).any():
        return None
    # Of two layers that fail only together neither fails by itself, and the deny-list takes each layer by itself;
    # settings it takes together.
    only_settings = all(unit.kind == "setting" for unit in culprit.units)
    if len(culprit.clauses) > 1 or (len(culprit.units) > 1 and not only_settings):
        return None
    return DeniedTactic.of(mixture.bad_tactics, {unit.column for unit in culprit.units}, result.run_id)


@dataclass(frozen=True)
class MeasuredBuild:
    """One of the two builds, or a counted mixture."""

    taken: Bools  # which units are as in the bad build, of shape ``(units,)``
    followed: tuple[bool, ...]  # which consequences are as in the bad build
    bad: bool
    errors: Mapping[MetricName, float]


@dataclass
class BisectSession:
    """A bisection in progress; ``resumed`` are the complete mixtures of earlier processes."""

    campaign: Campaign
    mixture: Mixture
    plan: BisectPlan
    tracker: Tracker
    parent: str
    evaluate: EngineEvaluator | None
    progress: OnProgress | None
    resumed: list[RunInfo]
    trials: list[Trial] = field(default_factory=list)
    measured: list[MeasuredBuild] = field(default_factory=list)  # the good build, the bad one, and the mixtures

    def run(self) -> BisectResult:
        """Search until the culprit of the bad build is known, or the budget is used up."""
        config, units, began = self.plan.config, self.mixture.units, time.perf_counter()
        held_columns = {unit.column for unit in self.plan.held}
        held = np.array([unit.column in held_columns for unit in units], np.bool_)
        followers = len(self.mixture.consequences)
        most_of_sum = max(_LEAST_OF_SUM, _MOST_OF_SUM - self.plan.builds)
        self.measured = [
            MeasuredBuild(np.full(len(units), bad), (bad,) * followers, bad, errors_of(build.info))
            for build, bad in ((self.mixture.good, False), (self.mixture.bad, True))
        ]
        good, bad = (self._fingerprint(measured_build.errors) for measured_build in self.measured)
        steps = CulpritSearch(
            units=len(units),
            held=held,
            errors=(good, bad),
            confidence=config.confidence,
            seed=config.seed,
            first=np.array([unit in self.plan.suspected for unit in units], np.bool_),
        ).run()

        def is_spent() -> bool:
            is_late = config.max_minutes is not None and time.perf_counter() - began > 60 * config.max_minutes
            return is_late or len(self.trials) >= config.max_builds

        def add_builds_while(max_trials: int, is_open: Callable[[], bool]) -> None:
            while len(self.trials) < max_trials and not is_spent() and is_open():
                rng = np.random.default_rng([config.seed, len(self.trials)])
                added = self._error_sum()
                contributing = [contribution.unit for contribution in added.contributions] if added else []
                left = np.array([unit in contributing for unit in units], np.bool_) & ~held
                self.build(
                    separating_mixture(
                        np.array([measured_build.taken for measured_build in self.measured]), held, left, rng
                    )
                )

        sure_odds = math.log(config.confidence / (1 - config.confidence))
        # The search yields the mixtures that it wants, and is sent what came of them; None ends it.
        answer: TrialResult | None = None
        while True:
            try:
                mixture_units = steps.send(answer)
            except StopIteration as ended:
                search_result: SearchResult = ended.value
                break
            answer = None if is_spent() else self.build(mixture_units)
            # Where no choice is broken, these show more than halves.
            add_builds_while(MIN_BUILDS - 2, lambda: self._error_sum() is not None)
            if answer is not None and (added := self._error_sum()) and added.log_odds >= sure_odds:
                add_builds_while(most_of_sum, lambda: (added := self._error_sum()) is not None and not added.settled)
                # One wrong verdict gives a sum without contributions, until the bad build, built again, is good.
                is_bad_again = any(
                    measured_build.bad and measured_build.taken.all() for measured_build in self.measured[2:]
                )
                is_known = is_bad_again and len(self.trials) >= most_of_sum
                if (added := self._error_sum()) is not None and (added.contributions or is_known):
                    search_result = SearchResult("contributions")
                    break
            if self._follower()[1] >= 1:
                search_result = SearchResult("not replayable")
                break
        # Before a step is reported, its errors must be no sum.
        if search_result.outcome == "confirmed":
            add_builds_while(
                most_of_sum, lambda: (added := self._error_sum()) is not None and abs(added.log_odds) < sure_odds
            )
            if (added := self._error_sum()) is not None and added.log_odds >= sure_odds:
                search_result = SearchResult("contributions")
        if search_result.outcome == "contributions":
            add_builds_while(most_of_sum, lambda: (added := self._error_sum()) is not None and not added.settled)
        elif (
            search_result.outcome == "units missing" and self.mixture.consequences
        ):  # a layer that no replay sets may decide
            add_builds_while(_MOST_OF_MISSING, lambda: self._follower()[1] < 1)
        elif search_result.explanation is not None:
            # Where a layer that no replay sets fits as well, only its name shows that it follows from the unit.
            min_trials = len(self.trials) + _TIED
            names = tuple(f" {units[unit].name}" for unit in search_result.explanation.units)

            def is_open() -> bool:
                name, lead = self._follower()
                return 0 < lead < 1 or (lead == 0 and len(self.trials) < min_trials and not name.endswith(names))

            add_builds_while(_MOST_OF_MISSING, is_open)
        follows, lead = self._follower()
        if lead >= 1 and search_result.outcome not in ("sufficient", "contributions"):
            search_result = SearchResult("not replayable")
        return BisectResult(
            title=_title_of(self.plan),
            outcome=search_result.outcome,
            culprits=tuple(
                BisectCulprit(
                    units=tuple(units[unit_index] for unit_index in explanation.units),
                    clauses=tuple(tuple(map(explanation.units.index, clause)) for clause in explanation.clauses),
                    probability=explanation.probability,
                    builds=explanation.trials,
                )
                for explanation in filter(None, (search_result.explanation,))
            ),
            suspects=tuple(units[unit_index] for unit_index in search_result.suspects),
            good_run=self.plan.good_run,
            good_verdict="unproven" if self.mixture.good.info.verdict == "unproven" else "good",
            bad_run=self.plan.bad_run,
            units=len(units),
            consequences=self.mixture.consequences,
            follows=follows if search_result.outcome == "not replayable" else "",
            held=self.plan.held,
            suspected=self.plan.suspected,
            added=self._error_sum() if search_result.outcome == "contributions" else None,
            repeatability=search_result.repeatability,
            trials=tuple(self.trials),
        )

    def _error_sum(self) -> AddedErrors | None:
        """The errors as a sum, for the output with the best separation of bad and good builds, if any."""
        taken, bad = (
            np.array([measured_build.taken for measured_build in self.measured]),
            np.array([measured_build.bad for measured_build in self.measured]),
        )
        output, error, ratio = "", np.empty(0), 1.0
        for name in self.measured[0].errors:
            values = np.array([measured_build.errors.get(name, math.inf) for measured_build in self.measured])
            if len(name) != 3 or name[2] != "max_abs" or not (np.isfinite(values) & (values > 0)).all():
                continue
            if (bad_to_good := float(values[bad].min() / values[~bad].max())) > ratio:
                output, error, ratio = name[1], values, bad_to_good
        if not output or (total := find_sum(taken, error, bad, self.plan.config.confidence)) is None:
            return None
        named = zip(total.units, total.values.tolist(), total.margins.tolist())
        return AddedErrors(
            output=output,
            low=float(error.min()),
            high=float(error.max()),
            highest=max(float(error.max()), float(error[0] + total.values.clip(0).sum())),
            contributions=tuple(
                Contribution(unit=self.mixture.units[unit], value=value, margin=margin)
                for unit, value, margin in named
                if unit in total.named
            ),
            settled=total.settled,
            log_odds=total.log_odds,
        )

    def _follower(self) -> tuple[str, float]:
        """The unreplayable layer with the best fit to the verdicts, and its lead over units and pairs of them.

        The lead is 0 where one of those fits as well. From 1 on the layer decides.
        """
        # Without the two builds: all these layers differ between them, because of how they were chosen.
        mixtures = self.measured[2:]
        if not mixtures or not self.mixture.consequences or self.mixture.is_by_settings:  # settings decide all layers
            return "", -math.inf
        taken, bad = (
            np.array([measured_build.taken for measured_build in mixtures]),
            np.array([measured_build.bad for measured_build in mixtures]),
        )
        likelihood = Likelihood(len(bad), int(bad.sum()))
        followed = np.array([measured_build.followed for measured_build in mixtures])
        scores = likelihood.mixed(followed.sum(axis=0), followed[bad].sum(axis=0))
        best = int(scores.argmax())
        counts = Counts.of(taken, bad, np.arange(min(taken.shape[1], MAX_PAIRED)))
        of_units = likelihood.mixed(counts.single_size, counts.single_hits).max()
        # With thousands of pairs, some fit by chance.
        of_pairs = likelihood.mixed(counts.pair_size, counts.pair_hits).max() - math.log(taken.shape[1]) / 2
        sure = math.log(_DOUBT * len(scores) / (1 - self.plan.config.confidence))
        lead = float(scores[best] - max(likelihood.chance, of_units, of_pairs))
        return self.mixture.consequences[best], lead / sure

    def _fingerprint(self, errors: Mapping[MetricName, float]) -> Errors | None:
        """The errors of a build, if its verdict in the aspect under test follows from them."""
        return tuple(errors.values()) if errors and tested_aspect(self.mixture.bad.info) == "outputs" else None

    def build(self, bad_units: Bools) -> TrialResult:
        """Build and evaluate a mixture, or take it from an earlier process."""
        # The search is deterministic, so a resumed bisection requests the same mixtures in the same order.
        tag = json.dumps(np.flatnonzero(bad_units).tolist())[: schema.MAX_TAG]
        if self.resumed and self.resumed[0].tags.get(schema.Tag.TRIAL) != tag:
            self.resumed = []  # another release of this code made other steps
        if self.resumed:
            info = self.resumed.pop(0)
            tactics = campaigns.load_record(self.tracker.load(info.id))
        else:
            tags = {**dict(self.campaign.tags), schema.Tag.TRIAL: tag}
            name = f"{int(bad_units.sum())} of {len(bad_units)} from the bad build"
            experiment = self.campaign.experiment
            with tracked(self.tracker, experiment, name, kind="iteration", tags=tags, parent=self.parent) as run:
                request = self.mixture.request(bad_units)
                built = build_and_evaluate(
                    self.campaign, request, run, tracker=self.tracker, evaluate_engine=self.evaluate
                )
            info, tactics = self.tracker.info(run.id), built.tactics
        verdict = verdict_in(tested_aspect(self.mixture.bad.info), info)
        assert verdict is not None
        outcome = self.mixture.outcome(bad_units, tactics)
        counted = outcome.taken is not None and verdict != "error" and not outcome.also_changed
        errors = errors_of(info)
        trial = Trial(
            run_id=info.id,
            taken=tuple(unit.name for unit, is_taken in zip(self.mixture.units, bad_units) if is_taken),
            verdict=verdict,
            counted=counted,
            strayed=outcome.strayed,
            error=errors.get((schema.Metric.ERROR, "max_abs")),
        )
        self.trials.append(trial)
        if counted and outcome.taken is not None:
            self.measured.append(MeasuredBuild(outcome.taken, outcome.followed, verdict == "bad", errors))
        if self.progress is not None:
            self.progress(len(self.trials), self.plan.config.max_builds)
        return TrialResult(outcome.taken if counted else None, verdict == "bad", self._fingerprint(errors))
