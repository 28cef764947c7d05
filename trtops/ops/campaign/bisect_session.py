"""The mixtures of one bisection: built, evaluated, and weighed until the cause of the bad build is known."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trtops.ops.campaign.bisect_result import AddedErrors, BisectCulprit, BisectPlan, BisectResult, Contribution, Trial
from trtops.ops.campaign.iteration import CampaignBuilder, errors_of, tested_aspect, verdict_in
from trtops.ops.campaign.mixture import Mixture
from trtops.ops.result import OnProgress
from trtops.tactics.bisection import MAX_PAIRED, CulpritSearch, Errors, SearchOutcome, TrialResult
from trtops.tactics.contributions import MIN_BUILDS, find_sum, separating_mixture
from trtops.tactics.model import Bools, Counts, Likelihood
from trtops.tracking import campaigns, schema
from trtops.tracking.base import RunInfo

_DOUBT = 8  # times the confidence that a layer needs which no replay sets, since no coin decides about it
_TIED = 2  # further mixtures where a layer that no replay sets fits as well as a confirmed unit
_MOST_OF_MISSING = 30  # mixtures after which missing units are reported as known then
_MOST_OF_SUM, _LEAST_OF_SUM = 20, 5  # builds and mixtures after which a sum is reported as known then; least mixtures


@dataclass
class BisectSession:
    """A bisection in progress; ``resumed`` are the complete mixtures of earlier processes."""

    builder: CampaignBuilder
    mixture: Mixture
    plan: BisectPlan
    parent: str
    progress: OnProgress | None
    resumed: list[RunInfo]
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        units = self.mixture.units
        held_columns = {unit.column for unit in self.plan.held}
        self.held = np.array([unit.column in held_columns for unit in units], np.bool_)
        # The good build, the bad one, and the counted mixtures.
        self.measured = []
        for build, is_bad in ((self.mixture.good, False), (self.mixture.bad, True)):
            followed = (is_bad,) * len(self.mixture.consequences)
            self.measured.append(TrialResult(np.full(len(units), is_bad), is_bad, self.errors_in(build.info), followed))
        config = self.plan.config
        self._sure_odds = math.log(config.confidence / (1 - config.confidence))  # from which errors are a sum
        self._most_of_sum = max(_LEAST_OF_SUM, _MOST_OF_SUM - self.plan.builds)

    def run(self) -> BisectResult:
        """Search until the culprit of the bad build is known, or the budget is used up."""
        search = CulpritSearch(
            held=self.held,
            errors=(self.measured[0].errors, self.measured[1].errors),
            confidence=self.plan.config.confidence,
            seed=self.plan.config.seed,
            first=np.array([unit in self.plan.suspected for unit in self.mixture.units], np.bool_),
        )
        outcome: SearchOutcome | None = None
        while outcome is None and not self._is_spent and (bad_units := search.next()) is not None:
            search.add(self.build(bad_units))
            outcome = self._outcome_without_unit()
        return self._reported(self._checked(outcome or search.outcome, search), search)

    @property
    def _is_spent(self) -> bool:
        config, seconds = self.plan.config, time.perf_counter() - self._began
        is_late = config.max_minutes is not None and seconds > 60 * config.max_minutes
        return is_late or len(self.trials) >= config.max_builds

    def _outcome_without_unit(self) -> SearchOutcome | None:
        """``contributions`` or ``not replayable``, if errors are a sum or a layer that is no unit decides."""
        # Where no choice is broken, these show more than halves.
        self._build_while(MIN_BUILDS - 2, lambda: self._error_sum() is not None)
        if self._is_sum():
            self._build_while(self._most_of_sum, self._sum_is_open)
            # One wrong verdict gives a sum without contributions, until the bad build, built again, is good.
            is_bad_again = any(
                build.bad and build.taken is not None and build.taken.all() for build in self.measured[2:]
            )
            is_known = is_bad_again and len(self.trials) >= self._most_of_sum
            if (error_sum := self._error_sum()) is not None and (error_sum.contributions or is_known):
                return "contributions"
        return "not replayable" if self._follower()[1] >= 1 else None

    def _checked(self, outcome: SearchOutcome, search: CulpritSearch) -> SearchOutcome:
        """The outcome, after the further mixtures that it needs."""
        if outcome == "confirmed":  # its errors must be no sum
            self._build_while(self._most_of_sum, self._sum_is_possible)
            outcome = "contributions" if self._is_sum() else outcome
        if outcome == "contributions":
            self._build_while(self._most_of_sum, self._sum_is_open)
        elif outcome == "units missing" and self.mixture.consequences:
            self._build_while(_MOST_OF_MISSING, lambda: self._follower()[1] < 1)  # a layer that is no unit may decide
        elif outcome == "confirmed" and search.explanation is not None:
            # Where a layer that is no unit fits as well, only its name shows that it follows from the unit.
            min_trials = len(self.trials) + _TIED
            names = tuple(f" {self.mixture.units[unit].name}" for unit in search.explanation.units)

            def is_open() -> bool:
                name, lead = self._follower()
                return 0 < lead < 1 or (lead == 0 and len(self.trials) < min_trials and not name.endswith(names))

            self._build_while(_MOST_OF_MISSING, is_open)
        is_followed = self._follower()[1] >= 1 and outcome not in ("sufficient", "contributions")
        return "not replayable" if is_followed else outcome

    def _reported(self, outcome: SearchOutcome, search: CulpritSearch) -> BisectResult:
        units, culprits = self.mixture.units, []
        is_of_search = outcome == search.outcome  # and not of all errors, or of a layer that is no unit
        if is_of_search and (explanation := search.explanation) is not None:
            culprit = BisectCulprit(
                units=tuple(units[unit] for unit in explanation.units),
                clauses=tuple(tuple(map(explanation.units.index, clause)) for clause in explanation.clauses),
                probability=explanation.probability,
                builds=explanation.trials,
            )
            culprits.append(culprit)
        return BisectResult(
            title=self.plan.title,
            outcome=outcome,
            culprits=tuple(culprits),
            suspects=tuple(units[unit] for unit in search.suspects),
            good_run=self.plan.good_run,
            good_verdict="unproven" if self.mixture.good.info.verdict == "unproven" else "good",
            bad_run=self.plan.bad_run,
            units=len(units),
            consequences=self.mixture.consequences,
            follows=self._follower()[0] if outcome == "not replayable" else "",
            held=self.plan.held,
            suspected=self.plan.suspected,
            added=self._error_sum() if outcome == "contributions" else None,
            repeatability=search.repeatability if is_of_search else "unknown",
            trials=tuple(self.trials),
        )

    def _build_while(self, max_trials: int, is_open: Callable[[], bool]) -> None:
        """Build mixtures that separate the units, as long as a condition holds and the budget lasts."""
        while len(self.trials) < max_trials and not self._is_spent and is_open():
            rng = np.random.default_rng([self.plan.config.seed, len(self.trials)])
            error_sum = self._error_sum()
            contributing = [] if error_sum is None else [contribution.unit for contribution in error_sum.contributions]
            left = np.array([unit in contributing for unit in self.mixture.units], np.bool_) & ~self.held
            self.build(separating_mixture(_masks_of(self.measured)[0], self.held, left, rng))

    def _is_sum(self) -> bool:
        return (error_sum := self._error_sum()) is not None and error_sum.log_odds >= self._sure_odds

    def _sum_is_possible(self) -> bool:
        return (error_sum := self._error_sum()) is not None and abs(error_sum.log_odds) < self._sure_odds

    def _sum_is_open(self) -> bool:
        return (error_sum := self._error_sum()) is not None and not error_sum.settled

    def _error_sum(self) -> AddedErrors | None:
        """The errors as a sum, for the output with the best separation of bad and good builds, if any."""
        taken, bad = _masks_of(self.measured)
        output, error, ratio = "", np.empty(0), 1.0
        for name in self.measured[0].errors or ():
            values = np.array([(build.errors or {}).get(name, math.inf) for build in self.measured])
            if len(name) != 3 or name[2] != "max_abs" or not (np.isfinite(values) & (values > 0)).all():
                continue
            if (bad_to_good := float(values[bad].min() / values[~bad].max())) > ratio:
                output, error, ratio = name[1], values, bad_to_good
        if not output or (total := find_sum(taken, error, bad, self.plan.config.confidence)) is None:
            return None
        contributions = []
        for unit, value, margin in total.contributions:
            contributions.append(Contribution(unit=self.mixture.units[unit], value=value, margin=margin))
        return AddedErrors(
            output=output,
            low=float(error.min()),
            high=float(error.max()),
            highest=max(float(error.max()), float(error[0]) + total.increase),
            contributions=tuple(contributions),
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
        taken, bad = _masks_of(mixtures)
        followed = np.array([build.followed for build in mixtures])
        likelihood = Likelihood(len(bad), int(bad.sum()))
        scores = likelihood.mixed(followed.sum(axis=0), followed[bad].sum(axis=0))
        best = int(scores.argmax())
        counts = Counts.of(taken, bad, np.arange(min(taken.shape[1], MAX_PAIRED)))
        of_units = likelihood.mixed(counts.single_size, counts.single_hits).max()
        # With thousands of pairs, some fit by chance.
        of_pairs = likelihood.mixed(counts.pair_size, counts.pair_hits).max() - math.log(taken.shape[1]) / 2
        sure = math.log(_DOUBT * len(scores) / (1 - self.plan.config.confidence))
        lead = float(scores[best] - max(likelihood.chance, of_units, of_pairs))
        return self.mixture.consequences[best], lead / sure

    def errors_in(self, info: RunInfo) -> Errors | None:
        """The errors of a build, if its verdict in the aspect under test follows from them."""
        return errors_of(info) or None if tested_aspect(self.mixture.bad.info) == "outputs" else None

    def build(self, bad_units: Bools) -> TrialResult:
        """Build and evaluate a mixture, or take it from an earlier process."""
        # The search is deterministic, so a resumed bisection requests the same mixtures in the same order.
        tag = json.dumps(np.flatnonzero(bad_units).tolist())[: schema.MAX_TAG]
        if self.resumed and self.resumed[0].tags.get(schema.Tag.TRIAL) != tag:
            self.resumed = []  # another release of this code made other steps
        if self.resumed:
            info = self.resumed.pop(0)
            tactics = campaigns.load_record(self.builder.tracker.load(info.id))
        else:
            name, tags = f"{int(bad_units.sum())} of {len(bad_units)} from the bad build", {schema.Tag.TRIAL: tag}
            built = self.builder.build(self.mixture.request(bad_units), name, parent=self.parent, tags=tags)
            info, tactics = self.builder.tracker.info(built.run_id), built.tactics
        verdict = verdict_in(tested_aspect(self.mixture.bad.info), info)
        assert verdict is not None
        outcome = self.mixture.outcome(bad_units, tactics)
        is_counted = outcome.taken is not None and verdict != "error" and not outcome.also_changed
        trial = Trial(
            run_id=info.id,
            taken=tuple(unit.name for unit, is_taken in zip(self.mixture.units, bad_units) if is_taken),
            verdict=verdict,
            counted=is_counted,
            strayed=outcome.strayed,
            error=errors_of(info).get((schema.Metric.ERROR, "max_abs")),
        )
        self.trials.append(trial)
        taken = outcome.taken if is_counted else None
        result = TrialResult(taken, verdict == "bad", self.errors_in(info), outcome.followed)
        if is_counted:
            self.measured.append(result)
        if self.progress is not None:
            self.progress(len(self.trials), self.plan.config.max_builds)
        return result


def _masks_of(builds: Sequence[TrialResult]) -> tuple[Bools, Bools]:
    """The units of builds, of shape ``(builds, units)``, and which builds are bad."""
    return np.array([build.taken for build in builds]), np.array([build.bad for build in builds])
