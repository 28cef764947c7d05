"""Bisect: which layers or settings make a build bad, found by building mixtures of a good and a bad build.

A campaign that waits for chance needs dozens of builds to tell layers apart. A mixture is made to tell most: half of what is
still suspected comes from the bad build, and a coin decides which half (:mod:`trtops.tactics.bisection`). Once a culprit is
convicted, everything but the culprit is taken from the bad build: if that is good, the set is complete; if it is bad,
something else is guilty as well, and the search goes on without the first.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.ops.campaign.benches import close_benches
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import EngineJudge, make
from trtops.ops.campaign.mixture import Mixture, Unit
from trtops.ops.campaign.opened import open_campaign
from trtops.ops.campaign.prove import most_alike
from trtops.ops.result import OnProgress, OpResult, op_run
from trtops.ops.tables import table
from trtops.record import Record
from trtops.tactics.bisection import Bisection, Bools, Clauses
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.diff import diff
from trtops.tactics.noise import student_quantile
from trtops.tracking import campaigns, schema
from trtops.tracking.base import RunInfo, Tracker, Verdict, tracked

Outcome: TypeAlias = Literal["convicted", "not repeatable", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class BisectConfig(Record):
    """How long to search, and how sure to be.

    Attributes:
        confidence: What a conviction needs, between 0.5 and 1: at most ``1 - confidence`` of bisections convict where
            verdicts do not depend on what is mixed, and the named set needs that posterior probability.
        max_builds: Builds at most.
        max_minutes: No build is begun after so many minutes; None for no limit.
        max_culprits: How many sets of culprits to look for, each of which makes builds bad without the others.
        seed: Of the coin that chooses between a mixture and its opposite.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them; the campaign's unless given.
    """

    confidence: float = 0.95
    max_builds: int = 60
    max_minutes: float | None = None
    max_culprits: int = 4
    seed: int = 0
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise errors.ConfigError(f"confidence is {self.confidence}; expected at least 0.5 and less than 1.")
        for name, value in (("max_builds", self.max_builds), ("max_culprits", self.max_culprits)):
            if value < 1:
                raise errors.ConfigError(f"{name} is {value}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """One mixture.

    Attributes:
        run_id: Its run.
        taken: Names of the units that were to come from the bad build.
        verdict: How the build was judged; ``error`` if it failed.
        counted: Whether it says something: the build was made, and each unit came from one of the two builds.
        strayed: Units that got something else than was wanted.
        also_changed: Layers that changed beside.
        error: Largest absolute difference from the golden outputs, over all outputs; None if nothing was compared.
        reason: Why it is not good, in words.
    """

    run_id: str
    taken: tuple[str, ...]
    verdict: Verdict
    counted: bool
    strayed: tuple[str, ...] = ()
    also_changed: tuple[str, ...] = ()
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """How much larger the error is with a culprit.

    Attributes:
        ratio: Geometric mean of the largest absolute error with it, divided by that without.
        low: Lower end of the interval of 95 %, by Welch's t on the logarithms (Biometrika, 1947).
        high: Its upper end.
    """

    ratio: float
    low: float
    high: float

    def describe(self) -> str:
        """The effect in words."""
        return f"makes max_abs {self.ratio:.3g} times larger (95 %: {self.low:.3g} to {self.high:.3g})"


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
        return ", or ".join(" together with ".join(self.units[i].describe() for i in clause) for clause in self.clauses)


@dataclass(frozen=True, kw_only=True)
class BisectResult(OpResult):
    """How a bisection ended.

    Attributes:
        outcome: ``convicted``; ``not repeatable`` where the verdicts do not follow what is mixed: replayed choices do not
            decide them; ``cannot be told`` where the budget was too small, or nothing differs that can be chosen.
        summary: The same in sentences.
        culprits: Every set that was convicted.
        complete: Whether the bad build is good without them: nothing else makes it bad.
        good_run: The good build.
        bad_run: The bad build.
        units: How many layers and settings could be chosen.
        consequences: Layers that differ and cannot be chosen; what they got follows from the others.
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
    trials: tuple[Trial, ...]
    seconds: float
    overhead_seconds: float

    @property
    def verdict(self) -> Verdict:
        """``good`` if a culprit was convicted, else ``bad``."""
        return "good" if self.outcome == "convicted" else "bad"

    @property
    def headline(self) -> str:
        """The outcome."""
        return self.outcome

    def body(self) -> Iterable[str]:
        """The summary, the culprits, and every build."""
        yield self.summary
        for culprit in self.culprits:
            effect = f"; {culprit.effect.describe()}" if culprit.effect is not None else ""
            yield f"- **{culprit.describe()}** (probability {culprit.probability:.3f}, {culprit.builds} builds){effect}"
        if self.consequences:
            shown = ", ".join(f"`{name}`" for name in self.consequences[:8])
            more = f" and {len(self.consequences) - 8} more" if len(self.consequences) > 8 else ""
            yield f"\n{len(self.consequences)} layers differ that cannot be chosen, and follow from others: {shown}{more}."
        rows = [
            (
                str(number),
                t.verdict if t.counted else f"{t.verdict}, not counted",
                _error_text(t.error),
                _names_text(t.taken),
            )
            for number, t in enumerate(self.trials, 1)
        ]
        if rows:
            yield f"\n```\n{table(('build', 'verdict', 'max_abs', 'from the bad build'), rows)}\n```"


def bisect(
    run: str,
    bad: str | None = None,
    config: BisectConfig | None = None,
    *,
    tracker: Tracker,
    tags: Mapping[str, str] | None = None,
    judge: EngineJudge | None = None,
    progress: OnProgress | None = None,
) -> BisectResult:
    """Find what makes a build bad, by building mixtures of it and a good one.

    Args:
        run: A campaign's run, or what its id begins with: its good and bad builds that are most alike are taken. Or the run
            of a good build, with ``bad``.
        bad: The run of a bad build of the same campaign.
        config: How long, and how sure.
        tracker: The memory.
        tags: Further tags of all runs.
        judge: What judged the campaign's engines, if it was a Python callable.
        progress: Told how many builds are done, of how many at most.

    Raises:
        ConfigError: If there is no good or no bad build, or the two are not of one campaign.
        TrtopsError: Whatever keeps all builds from being made or judged.
    """
    config = BisectConfig() if config is None else config
    campaign, mixture, guilt = _open_pair(tracker, run, bad, config)
    campaign = replace(campaign, tags=tuple((tags or {}).items()))
    pair = f"{mixture.good.info.id[:8]} and {mixture.bad.info.id[:8]}"
    try:
        with op_run(
            tracker, campaign.experiment, f"bisect {pair}", kind="bisect", tags=tags, parent=campaign.run_id
        ) as parent:
            parent.set_tags({schema.Tag.EVIDENCE: f"{mixture.good.info.id} {mixture.bad.info.id}"})
            parent.log_params(schema.flat_params(config))
            search = _Search(campaign, mixture, config, tracker, parent.id, judge, progress)
            result = replace(search.run(guilt), title=f"bisect {pair}").kept_in(parent, campaign.experiment)
            parent.log_json(result, schema.Artifact.BISECTION)
            for entry in search.denied(result, parent.id):
                parent.log_json(entry, schema.Artifact.DENIED)
                parent.set_tags({schema.Tag.PROOF: "confirmed"})
            parent.log_metrics(
                {(schema.Metric.BISECT, "builds"): len(result.trials), (schema.Metric.BISECT, "units"): result.units}
            )
            parent.set_tags({schema.Tag.NOTE: result.page()[: schema.MAX_TAG]})
    finally:
        close_benches()
    return result


def campaign_of(tracker: Tracker, run: str, bad: str | None = None) -> Campaign:
    """The campaign that a bisection belongs to; arguments as :func:`bisect` takes them.

    Raises:
        ConfigError: If there is none, or the builds are not of one.
    """
    run_id = tracker.whole_id(run)
    if bad is not None:
        run_id = _common_campaign(tracker.info(run_id), tracker.info(tracker.whole_id(bad)))
    return open_campaign(tracker, run_id)


def _open_pair(
    tracker: Tracker, run: str, bad: str | None, config: BisectConfig
) -> tuple[Campaign, Mixture, Mapping[tuple[str, str], float]]:
    """The campaign, the two builds, and how guilty the campaign's diff finds what the bad build has."""
    campaign = campaign_of(tracker, run, bad)
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
    found = diff(builds, by="tactic", confidence=config.confidence)
    guilt: dict[tuple[str, str], float] = {}
    for suspect in found.suspects:
        shares = len(suspect.choices) + len(suspect.settings)
        for layer in suspect.choices:
            guilt[layer.layer, layer.choice or ""] = suspect.guilt / shares
        for name, value in suspect.settings:
            guilt[name, value] = max(guilt.get((name, value), 0.0), suspect.guilt / shares)
    return campaign.on(config.devices), Mixture(*stored), guilt


def _common_campaign(good: RunInfo, bad: RunInfo) -> str:
    if good.parent is None or good.parent != bad.parent:
        raise errors.ConfigError(
            f"Runs {good.id} and {bad.id} are not builds of one campaign (`trtops debug build`), which says how to build and judge."
        )
    return good.parent


@dataclass
class _Search:
    """A bisection under way."""

    campaign: Campaign
    mixture: Mixture
    config: BisectConfig
    tracker: Tracker
    parent: str
    judge: EngineJudge | None
    progress: OnProgress | None
    trials: list[Trial] = field(default_factory=list)
    masks: list[Bools] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    building: float = 0.0

    def run(self, guilt: Mapping[tuple[str, str], float]) -> BisectResult:
        """Search until all culprits of the bad build are known, or the budget is used up."""
        units = self.mixture.units
        culprits: list[Culprit] = []
        outcome: Outcome = "cannot be told"
        complete = False
        free = np.ones(len(units), np.bool_)  # what is still suspected; the others stay as in the good build
        while free.any() and len(culprits) < self.config.max_culprits and not complete:
            found = self._culprit(free, guilt)
            if not isinstance(found, Culprit):
                outcome = "convicted" if culprits else found
                break
            culprits.append(found)
            outcome = "convicted"
            free &= ~np.array([unit in found.units for unit in units])
            complete = not free.any() or self._is_good(free)
        complete = complete and outcome == "convicted"
        return BisectResult(
            outcome=outcome,
            summary=_summary_text(outcome, culprits, complete, self.mixture, self.trials),
            culprits=tuple(culprits),
            complete=complete,
            good_run=self.mixture.good.info.id,
            bad_run=self.mixture.bad.info.id,
            units=len(units),
            consequences=self.mixture.consequences,
            trials=tuple(self.trials),
            seconds=time.perf_counter() - self.began,
            overhead_seconds=time.perf_counter() - self.began - self.building,
        )

    def _culprit(self, free: Bools, guilt: Mapping[tuple[str, str], float]) -> Culprit | Outcome:
        """One set of culprits among the units that are still suspected."""
        places = np.flatnonzero(free)
        units = [self.mixture.units[place] for place in places]
        prior = np.array([guilt.get((unit.name, unit.bad), 0.0) for unit in units])
        bisection = Bisection(prior if prior.sum() > 0 else np.ones(len(units)), self.config.seed)
        first, failed = len(self.trials), 0
        while (decided := bisection.decided(self.config.confidence)) is None:
            if self._spent() or failed >= _FAILURES:
                return "cannot be told"
            wanted, opposite = bisection.next()
            trial, taken = self._build(self._whole(places, wanted))
            if taken is None:
                failed += 1
                bisection.shun(wanted)
                continue
            got = taken[places]
            if (taken & ~free).any():
                failed += 1  # a unit that is to stay as in the good build did not
                bisection.shun(wanted)
                continue
            # Where the build strayed, the coin did not choose what was built.
            bisection.add(got, trial.verdict == "bad", opposite if np.array_equal(got, wanted) else None)
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
        mask = np.zeros(len(self.mixture.units), np.bool_)
        mask[places[wanted]] = True
        return mask

    def _is_good(self, taken: Bools) -> bool:
        """Whether a mixture is good that has these units from the bad build: asked once, and again if it is bad."""
        return any(self._build(taken)[0].verdict == "good" for _ in range(1 if self._spent() else 2))

    def _spent(self) -> bool:
        minutes = self.config.max_minutes
        late = minutes is not None and time.perf_counter() - self.began > 60 * minutes
        return late or len(self.trials) >= self.config.max_builds

    def _build(self, taken: Bools) -> tuple[Trial, Bools | None]:
        """Build and judge a mixture; and say which units it really has from the bad build, if that can be said."""
        began = time.perf_counter()
        order = self.mixture.order(taken)
        names = tuple(unit.name for unit, t in zip(self.mixture.units, taken) if t)
        tags = {
            **dict(self.campaign.tags),
            schema.Tag.TRIAL: json.dumps(np.flatnonzero(taken).tolist())[: schema.MAX_TAG],
        }
        name = f"{len(names)} of {len(taken)} from the bad build"
        with tracked(
            self.tracker, self.campaign.experiment, name, kind="iteration", tags=tags, parent=self.parent
        ) as run:
            made = make(self.campaign, order, run, tracker=self.tracker, judge_engine=self.judge)
        outcome = self.mixture.outcome(taken, made.tactics)
        counted = outcome.taken is not None and made.verdict != "error" and not outcome.also_changed
        trial = Trial(
            run_id=run.id,
            taken=names,
            verdict=made.verdict,
            counted=counted,
            strayed=outcome.strayed,
            also_changed=outcome.also_changed,
            error=_largest_error(self.tracker.info(run.id)),
            reason="; ".join(made.reasons)[:1000],
        )
        self.trials.append(trial)
        self.masks.append(taken if outcome.taken is None else outcome.taken)
        self.building += time.perf_counter() - began
        if self.progress is not None:
            self.progress(len(self.trials), self.config.max_builds)
        return trial, outcome.taken if counted else None

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

        Of two layers that fail only together neither is guilty by itself, and the deny-list takes each layer by itself.
        """
        for culprit in result.culprits[:1]:
            only_settings = all(unit.kind == "setting" for unit in culprit.units)
            if len(culprit.clauses) == 1 and (len(culprit.units) == 1 or only_settings):
                yield self.mixture.denied(culprit.units, run_id)


_FAILURES = 12
"""Mixtures that could not be built, or not as wanted, after which the search gives up."""


def _largest_error(info: RunInfo) -> float | None:
    """The largest absolute difference of a judged build, over its outputs."""
    found = [value for name, value in info.metrics.items() if name[0] == "error" and name[-1] == "max_abs"]
    return max(found, default=None)


def welch(larger: Sequence[float], smaller: Sequence[float]) -> Effect | None:
    """The ratio of two groups of errors, given as natural logarithms; None if one group has fewer than two.

    Errors of one group that are equal to the last bit still get an interval: a spread of 1e-6 is taken for the least.
    """
    if len(larger) < 2 or len(smaller) < 2:
        return None
    means = [float(np.mean(group)) for group in (larger, smaller)]
    parts = [max(float(np.var(group, ddof=1)), 1e-12) / len(group) for group in (larger, smaller)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, (larger, smaller)))
    middle, half = means[0] - means[1], student_quantile(0.95, freedom) * math.sqrt(sum(parts))
    return Effect(ratio=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half))


def _summary_text(
    outcome: Outcome, culprits: Sequence[Culprit], complete: bool, mixture: Mixture, trials: Sequence[Trial]
) -> str:
    builds = f"{len(trials)} builds"
    if not mixture.units:
        return "The two builds differ in nothing that can be chosen" + (
            f"; {len(mixture.consequences)} layers differ that cannot." if mixture.consequences else "."
        )
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
