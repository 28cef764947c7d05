"""Adaptive bisection: find the cause of a bad build among its differences from a good one, by mixing the two.

The two builds differ in *units*: layers and settings that can be taken from either. A *trial* takes some units from the
bad build and the others from the good one. Each trial is the one with the largest information gain about the
explanation (:mod:`trtops.tactics.model`).

Until there is enough evidence against chance, a coin decides between the trial and its opposite. Suppose that verdicts
do not depend on the units: whatever they depend on, be it the time of day or the machine, they do not depend on the
coin. So for every explanation the ratio ::

    P(verdict | trial) / (P(verdict | trial) / 2 + P(verdict | opposite) / 2)

has the mean 1, and products of such ratios, averaged over explanations, are a test martingale. See Vovk and Wang,
Annals of Statistics 2021, on e-values; Fisher, The Design of Experiments, 1935, on randomisation.

No coin is needed where builds repeat: if the good and the bad build, built again as mixtures, have the errors that they
had to the last bit, and another mixture has others, then outputs follow the units. A bad build with no larger errors
than a good one contradicts that, and coins count again.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from trtops.tactics.model import ALWAYS, Bools, Clauses, Counts, Floats, Likelihood, Prior, clauses_of_pair, marginals

BisectionDecision: TypeAlias = Literal["confirmed", "chance", "combination", "units missing"]
"""How a bisection ends: with its best explanation, with verdicts that follow no unit, without an explanation, or with
two good builds that have all units of the bad one."""
SearchOutcome: TypeAlias = Literal[
    "confirmed",
    "sufficient",
    "contributions",
    "not replayable",
    "not repeatable",
    "units missing",
    "combination",
    "undecided",
]
"""How a search ends: with culprits; with the held units alone being bad in the good build; with errors that add up over
units; with verdicts that follow a layer that is no unit; with verdicts that follow nothing; with units that do not make
a build bad even all together; with a combination that is neither one unit nor a pair; or without a decision."""
Repeatability: TypeAlias = Literal["unknown", "repeats", "contradicted"]
"""Whether builds repeat to the last bit, so that chance needs no coins; ``contradicted`` where a bad build has no
larger errors than a good one, so that verdicts do not follow from errors."""
Errors: TypeAlias = Mapping[tuple[str, ...], float]
"""Errors of a build by the names of their metrics. Builds with the same outputs have the same errors."""

CHANCE = 0.2  # prior probability that no unit decides
_ONE, _TOGETHER, _EITHER = 0.86, 0.07, 0.07  # prior shares of one unit, both of two, and either of two
# Priors of the rates of bad builds: replays repeat, so builds without the culprit are seldom bad.
_PRIORS: tuple[Prior, ...] = (ALWAYS, (3.0, 0.5, 0.5, 45.0))
_SHARES, _SHARES_OF_REPEATS = (0.85, 0.15), (0.98, 0.02)  # of these priors; outputs that repeat seldom fail sometimes
_CHANCE_FACTOR = 2  # times the confidence that chance needs, since later pairs of a campaign have the rest
MAX_PAIRED = 256  # units that pairs are made of; the matrix is updated at every trial
_SUSPECTS = 3  # units, the most probable ones, whose partners are searched
_SUSPECTED = 0.5  # probability from which a unit is reported as part of a combination
_BAD_VERDICTS, _GOOD_VERDICTS = 2, 4  # verdicts after which held units alone make the good build bad, or do not
_MISSING = 2  # good builds with all units of the bad one, after which something else makes it bad
_MAX_FAILURES = 12  # trials that could not be built as wanted, after which the search ends
_COMBINATION_TRIALS = 40  # trials after which evidence without a probable explanation is an unresolved combination


@dataclass(frozen=True)
class BestExplanation:
    """The most probable explanation, its probability, and the number of trials so far."""

    clauses: Clauses
    probability: float
    trials: int

    @property
    def units(self) -> tuple[int, ...]:
        """All units in it, in ascending order."""
        return tuple(sorted(set(chain.from_iterable(self.clauses))))


class Bisection:
    """Trials and their verdicts: chooses the next trial, and decides when one explanation is confirmed.

    Explanations are numbered: first the single units, then the cells of a matrix of pairs, with both of two units above
    the diagonal, and either of two below it.

    Args:
        units: Number of units.
        seed: Of the coin.
        confidence: What the posterior probability of an explanation needs. At most half of ``1 - confidence`` of
            bisections blame a unit where verdicts depend on none.
        first: Units, of shape ``(units,)``, that one trial takes from the others before all halves. No probability
            depends on them, so if that trial contradicts them, they cost this trial.
    """

    def __init__(self, units: int, seed: int = 0, confidence: float = 0.95, first: Bools | None = None) -> None:
        self.units = units
        self._first = [] if first is None or first.all() or not first.any() else [(first, ~first)]
        self._confidence = confidence
        self._coin = np.random.default_rng(seed)
        self._size = size = min(units, MAX_PAIRED)
        pairs = size * (size - 1) / 2
        pair_prior = np.full((size, size), math.log(_TOGETHER / pairs) if pairs else -np.inf)
        pair_prior[np.tril_indices(size, -1)] = math.log(_EITHER / pairs) if pairs else -np.inf
        np.fill_diagonal(pair_prior, -np.inf)
        unit_prior = np.full(units, math.log(_ONE / units if pairs else 1.0))
        self._log_prior = np.concatenate((unit_prior, pair_prior.ravel()))
        self._taken: list[Bools] = []
        self._bad: list[bool] = []
        self._log_e_values = np.zeros((len(_PRIORS), len(self._log_prior)))  # for each prior of rates
        self.repeatability: Repeatability = "unknown"
        self._shunned: set[bytes] = set()
        self._update()

    def _expected(self, taken: Bools) -> Bools:
        """Which explanations expect a trial to be bad."""
        among = taken[: self._size]
        pairs_taken = np.triu(among[:, None] & among) | np.tril(among[:, None] | among, -1)
        return np.concatenate((taken, pairs_taken.ravel()))

    @property
    def trials(self) -> int:
        """Number of verdicts so far."""
        return len(self._bad)

    def add(self, taken: Bools, bad: bool, opposite: Bools | None = None) -> None:
        """Add a verdict; ``opposite`` is the trial rejected by the coin, None without a coin."""
        # The ratio of the module's docstring, with rates of bad builds as the trials before this one estimate them.
        if opposite is not None:
            expected_bad, opposite_bad = self._expected(taken), self._expected(opposite)
            for prior, log_e_values in zip(_PRIORS, self._log_e_values):
                inside = (self._hits + prior[0]) / (self._sizes + prior[0] + prior[1])
                outside = (sum(self._bad) - self._hits + prior[2]) / (self.trials - self._sizes + prior[2] + prior[3])
                inside, outside = (inside, outside) if bad else (1 - inside, 1 - outside)
                p_trial = np.where(expected_bad, inside, outside)
                p_opposite = np.where(opposite_bad, inside, outside)
                log_e_values -= np.log((p_trial + p_opposite) / 2 / p_trial)
        self._taken.append(taken)
        self._bad.append(bad)
        self._update()

    def _update(self) -> None:
        """Compute the posterior of all explanations and of chance, and the evidence, from all trials."""
        present = np.array(self._taken, np.bool_).reshape(self.trials, self.units)
        bad = np.array(self._bad, np.bool_)
        counts = Counts.of(present, bad, np.arange(self._size))
        self._sizes = np.concatenate((counts.single_size, counts.pair_size.ravel()))
        self._hits = np.concatenate((counts.single_hits, counts.pair_hits.ravel()))
        likelihood = Likelihood(len(bad), int(bad.sum()))
        log_shares = np.log(_SHARES_OF_REPEATS if self._excludes_chance else _SHARES)[:, None]
        log_likelihoods = [likelihood(self._sizes, self._hits, prior) for prior in _PRIORS]
        log_masses = np.logaddexp.reduce(log_shares + self._log_prior + log_likelihoods) + math.log(1 - CHANCE)
        log_chance = -math.inf if self._excludes_chance else math.log(CHANCE) + _log_chance(self._bad)
        peak = max(float(log_masses.max(initial=-np.inf)), log_chance)
        masses, chance = np.exp(log_masses - peak), math.exp(log_chance - peak)
        total = float(masses[: self.units].sum() + masses[self.units :].sum()) + chance
        self._posterior: Floats = masses / total
        self.p_chance = chance / total
        self.log_e_value = float(np.logaddexp.reduce((log_shares + (self._log_prior + self._log_e_values)).ravel()))

    def _probability_of(self, explanations: Bools) -> float:
        # Units and pairs by themselves: rounding breaks ties between trials, which must be the same in every run.
        of_units, of_pairs = self._posterior[: self.units], self._posterior[self.units :]
        in_units, in_pairs = explanations[: self.units], explanations[self.units :]
        return float(of_units[in_units].sum()) + float(of_pairs[in_pairs].sum())

    @property
    def _pair_posterior(self) -> Floats:
        return self._posterior[self.units :].reshape(self._size, self._size)

    @property
    def probabilities(self) -> Floats:
        """Posterior probability of each unit to be among the culprits, of shape ``(units,)``."""
        return marginals(self._posterior[: self.units], self._pair_posterior, np.arange(self._size))

    @property
    def best(self) -> BestExplanation:
        """The most probable explanation."""
        best = int(self._posterior.argmax())
        is_unit = best < self.units
        clauses = ((best,),) if is_unit else clauses_of_pair(best - self.units, np.arange(self._size))
        return BestExplanation(clauses, float(self._posterior[best]), self.trials)

    def decided(self) -> BisectionDecision | None:
        """The conclusion; None if more trials are needed. Valid after every trial."""
        if self.p_chance >= 1 - (1 - self._confidence) / _CHANCE_FACTOR:
            return "chance"
        if not self._is_evident:
            return None
        if self.best.probability >= self._confidence:
            return "confirmed"
        return "combination" if self.trials >= _COMBINATION_TRIALS else None

    @property
    def _excludes_chance(self) -> bool:
        return self.repeatability == "repeats"

    @property
    def _is_evident(self) -> bool:
        return self._excludes_chance or self.log_e_value >= -math.log((1 - self._confidence) / _CHANCE_FACTOR)

    def set_repeatability(self, repeatability: Repeatability) -> None:
        """State if outputs follow the units, and verdicts the outputs: then chance needs no coin."""
        self.repeatability = repeatability
        self._update()

    def next(self) -> tuple[Bools, Bools | None]:
        """The next trial, and its opposite if a coin decided between the two. The first is one of the two builds."""
        candidates: Iterable[tuple[Bools, Bools]] = self._splits()
        if self.trials and self._first:
            candidates, self._first = self._first, []
        splits = [pair for pair in candidates if not self._shunned & {taken.tobytes() for taken in pair}]
        while not splits:  # no informative trial can be built: share the units out at random
            trial = self._coin.random(self.units) < 0.5
            if not self._shunned & {trial.tobytes(), (~trial).tobytes()}:
                splits.append((trial, ~trial))
        trials = np.array(splits).reshape(-1, self.units)
        gains = self._gains(trials)
        if self._is_evident:
            best: Bools = trials[int(gains.argmax())]
            return best, None
        # Trials whose two sides are expected to differ also add evidence against chance: by the mass of explanations
        # that expect so.
        differing = []
        for trial, opposite in splits:
            differing.append(self._probability_of(self._expected(trial) != self._expected(opposite)))
        worth = gains.reshape(-1, 2).mean(axis=1) + differing
        trial, opposite = splits[int(worth.argmax()) if self.trials else 0]
        return (trial, opposite) if self._coin.random() < 0.5 else (opposite, trial)

    def shun(self, taken: Bools) -> None:
        """Never ask for this trial again: it cannot be built as wanted."""
        self._shunned.add(taken.tobytes())

    def _gains(self, trials: Bools) -> Floats:
        """Expected information about the explanation from each trial, in bits, of shape ``(trials,)``."""
        rate = 0.5 if not self._bad else (sum(self._bad) + 0.5) / (self.trials + 1)
        p_bad = [self._probability_of(self._expected(trial)) for trial in trials]
        of_chance = self.p_chance * _entropy_bits(np.array(rate))
        gains: Floats = _entropy_bits(np.array(p_bad) + self.p_chance * rate) - of_chance
        return gains

    def _splits(self) -> Iterator[tuple[Bools, Bools]]:
        """Trials and their opposites: both builds, halves by probability, and halves of a suspect's partners."""
        yield np.ones(self.units, np.bool_), np.zeros(self.units, np.bool_)
        order = self.probabilities
        yield self._halved(order, taken=None, left=None)
        # With one of two that fail together always taken, or one of two alternatives never, the other one is searched
        # as a single culprit is.
        joint, either = np.triu(self._pair_posterior), np.tril(self._pair_posterior)
        for suspect in np.argsort(-order, kind="stable")[:_SUSPECTS].tolist():
            if suspect >= self._size:
                continue
            for pairs, taken, left in ((joint, suspect, None), (either, None, suspect)):
                partners = np.zeros(self.units)
                partners[: self._size] = pairs[suspect] + pairs[:, suspect]
                yield self._halved(partners, taken=taken, left=left)

    def _halved(self, weights: Floats, taken: int | None, left: int | None) -> tuple[Bools, Bools]:
        """Two opposite trials with half of the weight each, but both have the unit ``taken`` and not ``left``."""
        fixed = [unit for unit in (taken, left) if unit is not None]
        order = [unit for unit in np.argsort(-weights, kind="stable").tolist() if unit not in fixed]
        cumulated = np.cumsum(weights[order])
        size = 1 + int(np.argmin(np.abs(cumulated - cumulated[-1] / 2))) if order else 0
        trial, opposite = np.zeros(self.units, np.bool_), np.zeros(self.units, np.bool_)
        trial[order[:size]] = True
        opposite[order[size:]] = True
        if taken is not None:
            trial[taken] = opposite[taken] = True
        return trial, opposite


class TrialResult(NamedTuple):
    """A mixture as it was built, and its verdict."""

    taken: Bools | None  # the units that it really got from the bad build; None if some are as in neither of the two
    bad: bool
    errors: Errors | None = None  # None where the verdict does not follow from them
    followed: tuple[bool, ...] = ()  # which layers that are no units are as in the bad build


class CulpritSearch:
    """The bisection of a bad build: :meth:`next` and :meth:`add` in turns, until the verdicts decide.

    ``held`` are the units that every mixture takes from the bad build, of shape ``(units,)``; ``errors`` those of the
    good and of the bad build. The others are as for :class:`Bisection`.
    """

    def __init__(
        self,
        held: Bools,
        errors: tuple[Errors | None, Errors | None] = (None, None),
        confidence: float = 0.95,
        seed: int = 0,
        first: Bools | None = None,
    ) -> None:
        self._held, self._errors = held, errors
        self._free = np.flatnonzero(~held)  # the bisection numbers these units only
        self._bisection = Bisection(len(self._free), seed, confidence, None if first is None else first[self._free])
        self.outcome: SearchOutcome = "undecided"  # the conclusion so far
        self._has_ended = not len(held)
        self._tests_held = bool(held.any())  # first, whether the held units are enough
        self._held_verdicts: list[bool] = []
        self._trial = np.empty(0, np.bool_)  # the last one of the bisection
        self._opposite: Bools | None = None  # of the last trial, if a coin decided between the two
        self._next_end: Bools | None = None  # one of the two builds, if it is to be built next
        self._ends: dict[bool, list[TrialResult]] = {False: [], True: []}  # the good and the bad build, built again
        self._results = [TrialResult(None, is_bad, errors[is_bad]) for is_bad in (False, True)]
        self._built: set[bytes] = set()
        self._failed = 0

    @property
    def repeatability(self) -> Repeatability:
        """Whether builds repeat to the last bit."""
        return self._bisection.repeatability

    @property
    def explanation(self) -> BestExplanation | None:
        """The explanation, if one is confirmed."""
        if self.outcome != "confirmed":
            return None
        best = self._bisection.best
        return replace(best, clauses=tuple(tuple(self._free[list(clause)].tolist()) for clause in best.clauses))

    @property
    def suspects(self) -> tuple[int, ...]:
        """The units that probably take part in a combination."""
        if self.outcome != "combination":
            return ()
        return tuple(self._free[self._bisection.probabilities >= _SUSPECTED].tolist())

    def next(self) -> Bools | None:
        """Return the units to take from the bad build next; None once the search has ended."""
        if self._has_ended or self._tests_held:
            return None if self._has_ended else self._held
        trial, opposite = self._bisection.next() if self._next_end is None else (self._next_end, None)
        # If one of two opposites was built, the other one is built: its errors may show that outputs follow the units.
        # This must not depend on the coin, or the evidence would be biased.
        if self._ends_repeat and opposite is not None:
            is_built = trial.tobytes() in self._built
            if is_built != (opposite.tobytes() in self._built):
                trial, opposite = opposite if is_built else trial, None
        self._trial, self._opposite = trial, opposite
        mask: Bools = self._held.copy()
        mask[self._free[trial]] = True
        return mask

    def add(self, result: TrialResult) -> None:
        """Add the build of the last mixture from :meth:`next`."""
        if self._tests_held:
            self._add_held(result)
            return
        trial, bisection, self._next_end = self._trial, self._bisection, None
        if result.taken is None or not result.taken[self._held].all():
            bisection.shun(trial)
            self._failed += 1
            self._has_ended = self._failed == _MAX_FAILURES
            return
        built_trial = result.taken[self._free]
        self._built.add(built_trial.tobytes())
        followed = np.array_equal(built_trial, trial)
        if not followed:
            bisection.shun(trial)  # or it would be chosen again, and fail again
        # Where the build differs from the request, the coin did not choose it.
        bisection.add(built_trial, result.bad, self._opposite if followed else None)
        self._results.append(result)
        if self._is_contradicted():
            bisection.set_repeatability("contradicted")
        if followed and (trial.all() or not trial.any()):
            self._ends[bool(trial.all())].append(result)
            if sum(not rebuilt.bad for rebuilt in self._ends[True]) == _MISSING:
                self._end("units missing")
                return
            # With one or two units coins need no more builds, and no third mixture is likely to differ.
            self._next_end = self._end_after(trial) if len(trial) > 2 else None
        elif self._ends_repeat and result.errors is not None and result.errors not in self._errors:
            bisection.set_repeatability("repeats")
        if (decision := bisection.decided()) is not None:
            self._end("not repeatable" if decision == "chance" else decision)

    def _end(self, outcome: SearchOutcome) -> None:
        self.outcome, self._has_ended = outcome, True

    def _add_held(self, result: TrialResult) -> None:
        """Add a good build with the held units: either it is bad with them, or the bisection begins."""
        if result.taken is None or not np.array_equal(result.taken, self._held):
            self._has_ended = True  # it cannot be built
            return
        # A verdict may be wrong, and culprits may fail only sometimes, so it takes several.
        self._held_verdicts.append(result.bad)
        if self._held_verdicts.count(True) == _BAD_VERDICTS:
            self._end("sufficient")
        elif self._held_verdicts.count(False) == _GOOD_VERDICTS:
            self._tests_held = False
            self._has_ended = not len(self._free)

    def _is_contradicted(self) -> bool:
        """Whether some bad build has no larger error of any output than a good one."""
        measured: dict[bool, list[Errors]] = {False: [], True: []}
        for result in self._results:
            if result.errors is not None:
                measured[result.bad].append(result.errors)
        for low, high in itertools.product(measured[True], measured[False]):
            if low.keys() == high.keys() and all(error <= high[name] for name, error in low.items()):
                return True
        return False

    def _end_after(self, last: Bools) -> Bools | None:
        """Return the end to build again, if any; ``last`` is the one built last."""
        ends = self._ends
        if last.all() and not ends[True][-1].bad:
            return last  # with all units it must be bad, but the verdict may be wrong
        if not ends[True]:
            return ~last
        if not ends[False]:
            return None if ends[True][-1].errors is None else ~last
        # Layers that cannot be chosen may make a difference to the bad build, so it is compared with itself.
        is_open = len(ends[True]) == 1 and self._repeats(False) and not self._repeats(True)
        return np.ones_like(last) if is_open else None

    @property
    def _ends_repeat(self) -> bool:
        return self._bisection.repeatability == "unknown" and self._repeats(False) and self._repeats(True)

    def _repeats(self, is_bad: bool) -> bool:
        """Whether one of the two builds, built again, had the same errors to the last bit."""
        rebuilt = [trial.errors for trial in self._ends[is_bad]]
        if not rebuilt or rebuilt[0] is None:
            return False
        return rebuilt.count(self._errors[is_bad]) == len(rebuilt) or rebuilt[1:] == rebuilt[:1]


def _log_chance(bad: Sequence[bool]) -> float:
    """Log-probability of verdicts independent of units: at one rate, drifting, or alternating between machines."""
    same = [verdict == following for verdict, following in itertools.pairwise(bad)]
    at_a_rate = Likelihood(len(bad), sum(bad)).chance
    of_neighbours = Likelihood(len(same), sum(same)).chance - (math.log(2) if bad else 0.0)
    return float(np.logaddexp(math.log(0.7) + at_a_rate, math.log(0.3) + of_neighbours))


def _entropy_bits(p: Floats) -> Floats:
    inside = np.clip(p, 1e-12, 1 - 1e-12)
    bits: Floats = -inside * np.log2(inside) - (1 - inside) * np.log2(1 - inside)
    return bits
