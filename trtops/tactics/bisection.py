"""Which differences between a good and a bad build make it bad: builds that mix the two, chosen so that each tells most.

Plain numbers in, plain numbers out; :mod:`trtops.ops.campaign.bisect` makes the builds, and :mod:`trtops.tactics.narrowing`
goes from many units to a few where that is needed.

The two builds differ in *units*: layers and settings that can be taken from either. A *trial* takes some units from the
bad build and the others from the good one. A *hypothesis* says which trials come out bad: those with one certain unit;
with two units together; or with either of two; and, among a few units, with any, all, or some number of several, or with
one together with any of others. Verdicts may be wrong and culprits may fail only sometimes, so a
hypothesis is not struck out by one trial against it. It is weighed by the probability of all verdicts, averaged over a
few rates at which trials that it expects to be bad, and others, come out bad (:data:`RATES`).

**Which trial is next.** Units are put in the order of their guilt; a trial takes the first few of them, as many as make
its verdict least certain beforehand. Then a coin decides whether it takes these units or all *others*. Once there is enough
evidence against chance, no coin is thrown any more: the next trial is the one that tells most.

**The coin is the guard against accusing chance.** Suppose that verdicts have nothing to do with the units: whatever they
depend on, be it chance, the time of day or the machine, they do not depend on the coin. So for every hypothesis the ratio

    P(verdict | trial) / (P(verdict | trial) / 2 + P(verdict | its opposite) / 2)

has the mean 1, whatever happened before, and products of such ratios, averaged over hypotheses by their prior, are a
test martingale: it exceeds ``1 / alpha`` at any time with a probability of at most ``alpha`` (Ville's inequality). This
holds however often one looks and however verdicts drift. See Vovk and Wang, Annals of Statistics 2021, on e-values;
Fisher, The Design of Experiments, 1935, on why randomisation is the basis of inference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops.tactics.several import MAX_SEVERAL, Bools, Clauses, Several

Floats: TypeAlias = npt.NDArray[np.float64]

RATES = (
    (0.995, 0.005, 0.72),
    (0.94, 0.06, 0.18),
    (0.6, 0.03, 0.1),
)
"""How often trials are bad that are expected to be, how often others are, and the prior of both: builds that repeat, a
few wrong verdicts, and a culprit that fails only sometimes."""

_SEEN_RATES = RATES[1]
_SEEN_BAD = 0.5
_ONE, _TOGETHER, _EITHER, _SEVERAL = 0.8, 0.06, 0.06, 0.08
"""Shares of the prior: one unit, two together, either of two, and whatever else a few units can do."""
CHANCE = 0.2
"""Prior probability that no unit decides: what was replayed does not decide the verdict."""
_BELIEF = 0.9
"""How much of the prior follows builds that nobody mixed. They may lead astray, as where a culprit good in them failed by
chance, but then each misleading hypothesis costs a few trials only."""
_DOUBTED = 0.95
"""Probability of chance after which a conviction needs so many times the evidence (:data:`_DOUBT_OF_CHANCE`)."""
_DOUBT_OF_CHANCE = 5
"""How many times as sure one has to be that no unit decides as that one does: the good build may have the culprit too."""
_CHANCE_RATES = np.array([0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
_KEPT_RATES = np.array([0.95, 0.8, 0.05])
"""How often a verdict is that of the build before, where chance drifts, or two machines take turns."""
_MAX_PAIRED = 256
"""Units that pairs are made of, the most suspicious ones."""
_SUSPECTS = 3
"""Units whose partners are searched for."""


class Seen(NamedTuple):
    """A build that was there before, and nobody mixed.

    Attributes:
        taken: Units that it has from the bad build, of shape ``(units,)``.
        bad: Whether it was bad.
        other: Units in which it has neither what the good build has nor what the bad one has.
    """

    taken: Bools
    bad: bool
    other: Bools


@dataclass(frozen=True)
class Culprits:
    """A hypothesis.

    Attributes:
        clauses: What makes trials bad.
        probability: Its posterior probability, among all hypotheses and chance.
    """

    clauses: Clauses
    probability: float

    @property
    def units(self) -> tuple[int, ...]:
        """All units in it, in ascending order."""
        return tuple(sorted({unit for clause in self.clauses for unit in clause}))


class Bisection:
    """Verdicts on mixtures of two builds, and what they say. Grows by :meth:`add`.

    Args:
        prior: Guilt of each unit from what is known already, of shape ``(units,)``; not negative, and not all zero.
        seed: Of the coin.
        seen: Builds that were there before, which nobody mixed: units that they had from the bad build, and whether they were
            bad. They say whom to suspect first, and nothing against chance.
        chance: Prior probability that no unit decides.
        log_e_value: Evidence against chance from trials before these; natural logarithm. A product of e-values, each of
            which is about trials that come after those of the ones before, is one again.
    """

    def __init__(
        self,
        prior: Sequence[float] | Floats,
        seed: int = 0,
        seen: Sequence[Seen] = (),
        chance: float = CHANCE,
        log_e_value: float = 0.0,
    ) -> None:
        weights = np.asarray(prior, np.float64)
        weights = weights / weights.sum()
        # A guess that is wrong costs one trial at most: half of the prior is shared equally.
        self._weights = 0.5 * weights + 0.5 / len(weights)
        self._seed = seed
        self._coin = np.random.default_rng(seed)
        self._prior_of_chance = chance
        self._log_e_before = log_e_value
        self.units = len(weights)
        self._paired = np.sort(np.argsort(-self._weights, kind="stable")[:_MAX_PAIRED])
        self._first, self._second = np.triu_indices(len(self._paired), 1)
        self._several = Several.of(self.units)
        self._prior = self._suspecting(self._log_prior(), seen)
        count = len(self._prior)
        self._log_p = np.zeros((len(RATES), count))
        self._log_mean = np.zeros((len(RATES), count))
        self._chance = np.zeros(len(_CHANCE_RATES) + len(_KEPT_RATES))
        self._last: bool | None = None
        self._was_doubted = False
        self._shunned: set[bytes] = set()
        self.trials = 0

    def begun_again(self, units: int) -> Bisection:
        """One of so many other units that nothing is known of, with the evidence against chance that there is so far."""
        return Bisection(np.ones(units), self._seed, (), self._prior_of_chance, self.log_e_value)

    def _log_prior(self) -> Floats:
        """Of every hypothesis: singles, pairs together, either of pairs, several, in this order."""
        one = _ONE * self._weights
        if self.units == 1:
            alone: Floats = np.log(one / one.sum())
            return alone
        pair = self._weights[self._paired[self._first]] * self._weights[self._paired[self._second]]
        pair = pair / pair.sum()
        count = len(self._several.least)
        several = np.full(count, _SEVERAL / max(count, 1))
        joined: Floats = np.concatenate((one, _TOGETHER * pair, _EITHER * pair, several))
        logs: Floats = np.log(joined / joined.sum())
        return logs

    def _suspecting(self, prior: Floats, seen: Sequence[Seen]) -> Floats:
        """A prior that mostly believes what builds say that differ in more than the units."""
        if not seen:
            return prior
        p_with, p_without, _ = _SEEN_RATES
        logs = prior.copy()
        for taken, bad, other in seen:
            expected = self.expected_bad(taken)
            p_bad = np.where(expected, p_with, p_without)
            # Of what has neither build's choice nobody knows whether it is bad as well.
            p_bad[expected != self.expected_bad(taken | other)] = _SEEN_BAD
            logs += np.log(p_bad if bad else 1 - p_bad)
        logs -= np.logaddexp.reduce(logs)
        mixed: Floats = np.logaddexp(logs + math.log(_BELIEF), prior + math.log(1 - _BELIEF))
        return mixed

    def expected_bad(self, taken: Bools) -> Bools:
        """Whether each hypothesis expects a trial to be bad that takes these units from the bad build."""
        if self.units == 1:
            alone: Bools = taken.copy()
            return alone
        among = taken[self._paired]
        a, b = among[self._first], among[self._second]
        expected: Bools = np.concatenate((taken, a & b, a | b, self._several.expected_bad(taken)))
        return expected

    def add(self, taken: Bools, bad: bool, opposite: Bools | None = None) -> None:
        """Take in a verdict.

        Args:
            taken: Units that the build got from the bad one, of shape ``(units,)``.
            bad: Its verdict.
            opposite: The trial that a coin decided against; None if there was no coin: then it says nothing against
                chance.
        """
        expected = self.expected_bad(taken)
        other = expected if opposite is None else self.expected_bad(opposite)
        for k, (p_with, p_without, _) in enumerate(RATES):
            with_culprit, without = (p_with, p_without) if bad else (1 - p_with, 1 - p_without)
            here = np.where(expected, with_culprit, without)
            there = np.where(other, with_culprit, without)
            self._log_p[k] += np.log(here)
            self._log_mean[k] += np.log((here + there) / 2)
        rates = self._chance_rates
        self._chance += np.log(rates if bad else 1 - rates)
        self._last = bad
        self.trials += 1
        self._was_doubted |= self.p_chance >= _DOUBTED

    @property
    def _mass(self) -> tuple[Floats, float]:
        """Posterior of every hypothesis, and of chance."""
        logs = np.array([math.log(rate[2]) for rate in RATES])
        peak = max(float((self._prior + (logs[:, None] + self._log_p)).max()), float(self._chance.max()))
        mass = (1 - self._prior_of_chance) * np.exp(self._prior + logs[:, None] + self._log_p - peak).sum(axis=0)
        chance = self._prior_of_chance * float(np.exp(self._chance - peak).mean())
        total = float(mass.sum()) + chance
        return mass / total, chance / total

    @property
    def p_chance(self) -> float:
        """Posterior probability that no unit decides."""
        return self._mass[1]

    @property
    def guilt(self) -> Floats:
        """Posterior probability of each unit to be among the culprits, of shape ``(units,)``."""
        mass, _ = self._mass
        return self._guilt(mass)

    def _guilt(self, mass: Floats) -> Floats:
        guilt: Floats = mass[: self.units].copy()
        if self.units > 1:
            together, either, several = self._pairs(mass)
            for of in (self._first, self._second):
                np.add.at(guilt, self._paired[of], together + either)
            guilt += several @ (self._several.among | self._several.needed)
        return guilt

    def _pairs(self, mass: Floats) -> tuple[Floats, Floats, Floats]:
        """The mass of pairs together, of either of pairs, and of several."""
        count = len(self._first)
        together, either, several = np.split(mass[self.units :], [count, 2 * count])
        return together, either, several

    @property
    def log_e_value(self) -> float:
        """Evidence against chance, see the module; natural logarithm."""
        logs = np.array([math.log(rate[2]) for rate in RATES])
        ratios = self._prior + logs[:, None] + self._log_p - self._log_mean
        peak = float(ratios.max())
        return self._log_e_before + peak + math.log(float(np.exp(ratios - peak).sum()))

    @property
    def best(self) -> Culprits:
        """The most probable hypothesis."""
        mass, _ = self._mass
        return self._culprits(int(np.argmax(mass)), mass)

    def _culprits(self, index: int, mass: Floats) -> Culprits:
        probability = float(mass[index])
        if index < self.units:
            return Culprits(((index,),), probability)
        kind, pair = divmod(index - self.units, len(self._first))
        if kind > 1:
            return Culprits(self._several.clauses(index - self.units - 2 * len(self._first)), probability)
        a, b = sorted(int(self._paired[of[pair]]) for of in (self._first, self._second))
        return Culprits(((a,), (b,)) if kind else ((a, b),), probability)

    def decided(
        self, confidence: float = 0.95, confidence_of_one: float | None = None
    ) -> Literal["convicted", "chance"] | None:
        """What the trials come to; None if more are needed. May be asked after every trial.

        Args:
            confidence: At most ``1 - confidence`` of bisections convict where verdicts depend on no unit; and a hypothesis
                needs that posterior probability. Chance needs more, see :data:`_DOUBT_OF_CHANCE`.
            confidence_of_one: What suffices against chance where one unit alone is most probable, and further builds will weigh
                it again. Of the hypotheses without chance it has to be the surer: it takes half the doubt.
        """
        if self.p_chance >= 1 - (1 - confidence) / _DOUBT_OF_CHANCE:
            return "chance"
        against_chance = self._against_chance(confidence, confidence_of_one)
        needed = against_chance
        if confidence_of_one is not None:
            needed = max(needed, (1 + confidence) / 2 * (1 - self.p_chance))
        if self.log_e_value >= self._needed(against_chance) and self.best.probability >= needed:
            return "convicted"
        return None

    def _against_chance(self, confidence: float, confidence_of_one: float | None) -> float:
        """How sure the most probable hypothesis has to be that chance did not make it so."""
        is_one = sum(map(len, self.best.clauses)) == 1
        return confidence if confidence_of_one is None or not is_one else confidence_of_one

    def _needed(self, confidence: float) -> float:
        """The evidence against chance that a conviction needs: more, once chance has seemed certain."""
        return -math.log((1 - confidence) / (_DOUBT_OF_CHANCE if self._was_doubted else 1))

    def next(self, confidence: float = 0.95, confidence_of_one: float | None = None) -> tuple[Bools, Bools | None]:
        """The next trial: units taken from the bad build. And its opposite, if a coin decided between the two.

        Args:
            confidence: As :meth:`decided` is asked: a coin is thrown for as long as evidence against chance is lacking.
            confidence_of_one: As it is asked.
        """
        aim = _Aim(*self._mass, self._chance_rate)
        if self.log_e_value >= self._needed(self._against_chance(confidence, confidence_of_one)):
            return self._most_telling(aim), None
        one, other = self._best_of_all(aim) if self.units <= MAX_SEVERAL else self._best_of_splits(aim)
        return (one, other) if self._coin.random() < 0.5 else (other, one)

    @property
    def _chance_rate(self) -> float:
        """The rate of bad trials that chance is expected to have."""
        weights = np.exp(self._chance - self._chance.max())
        return float(weights @ self._chance_rates / weights.sum())

    @property
    def _chance_rates(self) -> Floats:
        """The rates of bad trials, by each kind of chance, for the trial that comes next."""
        kept = _KEPT_RATES if self._last else 1 - _KEPT_RATES
        return np.concatenate((_CHANCE_RATES, np.full(len(kept), 0.5) if self._last is None else kept))

    def _best_of_all(self, aim: _Aim) -> tuple[Bools, Bools]:
        """The best of all pairs of trials, where there are few enough."""
        trials, expected = self._all_trials
        p_bad = expected @ aim.mass
        told = aim.told(p_bad)
        differing = p_bad[:, None] + p_bad - 2 * (expected * aim.mass) @ expected.T
        worth = (told[:, None] + told) / 2 + differing
        known = [taken.tobytes() in self._shunned for taken in trials]
        worth[known, :] = worth[:, known] = -1.0
        np.fill_diagonal(worth, -1.0)
        one, other = np.unravel_index(int(worth.argmax()), worth.shape)
        return trials[one], trials[other]

    @cached_property
    def _all_trials(self) -> tuple[Bools, Floats]:
        """Every trial, of shape ``(trials, units)``, and what each hypothesis expects of it, ``(trials, hypotheses)``."""
        trials = np.array(list(itertools.product((False, True), repeat=self.units)))
        return trials, np.array([self.expected_bad(taken) for taken in trials], np.float64)

    def _best_of_splits(self, aim: _Aim) -> tuple[Bools, Bools]:
        """The best of a few ways to share many units out."""
        return max(self._buildable_splits(aim), key=lambda pair: aim.worth(*map(self.expected_bad, pair)))

    def _most_telling(self, aim: _Aim) -> Bools:
        """The trial that tells most of which hypothesis holds."""
        if self.units > MAX_SEVERAL:
            trials = np.array([taken for pair in self._buildable_splits(aim) for taken in pair])
            expected = np.array([self.expected_bad(taken) for taken in trials], np.float64)
        else:
            trials, expected = self._all_trials
        told = aim.told(expected @ aim.mass)
        told[[taken.tobytes() in self._shunned for taken in trials]] = -1.0
        best: Bools = trials[int(told.argmax())]
        return best

    def _buildable_splits(self, aim: _Aim) -> list[tuple[Bools, Bools]]:
        """A few ways to share many units out, without those that cannot be built."""
        splits = [pair for pair in self._splits(aim.mass) if not self._shunned & {taken.tobytes() for taken in pair}]
        while not splits:  # what tells most cannot be built: some other way of sharing the units out
            one = self._coin.random(self.units) < 0.5
            if not self._shunned & {one.tobytes(), (~one).tobytes()}:
                splits.append((one, ~one))
        return splits

    def shun(self, taken: Bools) -> None:
        """Ask for this mixture no more: it cannot be built as wanted."""
        self._shunned.add(taken.tobytes())

    def _splits(self, mass: Floats) -> Iterator[tuple[Bools, Bools]]:
        """Trials and their opposites: both builds as they were; the units halved by their guilt; the partners of a suspect.

        With one of two that fail together always taken, or one of two alternatives never, the other one is searched for
        as a single culprit is.
        """
        guilt = self._guilt(mass)
        yield np.ones(self.units, np.bool_), np.zeros(self.units, np.bool_)
        yield self._halved(guilt, taken=None, left=None)
        together, either, _ = self._pairs(mass)
        for suspect in np.argsort(-guilt, kind="stable")[:_SUSPECTS].tolist():
            yield self._halved(self._partners(together, suspect), taken=suspect, left=None)
            yield self._halved(self._partners(either, suspect), taken=None, left=suspect)

    def _partners(self, pairs: Floats, suspect: int) -> Floats:
        """Mass of the pairs of a unit, by the other unit."""
        partners = np.zeros(self.units)
        for of, other in ((self._first, self._second), (self._second, self._first)):
            among = self._paired[of] == suspect
            np.add.at(partners, self._paired[other[among]], pairs[among])
        return partners

    def _halved(self, weights: Floats, taken: int | None, left: int | None) -> tuple[Bools, Bools]:
        """Two trials that share the units out, half of the weight each, but for one that both take or leave."""
        fixed = [unit for unit in (taken, left) if unit is not None]
        order = [unit for unit in np.argsort(-weights, kind="stable").tolist() if unit not in fixed]
        cumulated = np.cumsum(weights[order])
        size = 1 + int(np.argmin(np.abs(cumulated - cumulated[-1] / 2)))
        one, other = np.zeros(self.units, np.bool_), np.zeros(self.units, np.bool_)
        one[order[:size]] = True
        other[order[size:]] = True
        if taken is not None:
            one[taken] = other[taken] = True
        return one, other


@dataclass(frozen=True)
class _Aim:
    """What the next trial is to tell.

    Attributes:
        mass: Posterior of every hypothesis.
        chance: Posterior of chance.
        rate: How often chance makes trials bad.
    """

    mass: Floats
    chance: float
    rate: float

    def told(self, p_bad: Floats) -> Floats:
        """Bits that trials are expected to tell of which hypothesis holds, or chance, verdicts being right.

        Args:
            p_bad: Mass of the hypotheses that expect a trial to be bad; any shape, elementwise.
        """
        of_chance = float(_entropy_bits(np.array(self.rate)))
        told: Floats = _entropy_bits(p_bad + self.chance * self.rate) - self.chance * of_chance
        return told

    def worth(self, here: Bools, there: Bools) -> float:
        """Of a trial and its opposite, given what every hypothesis expects of both: bits told, and evidence against chance."""
        told = self.told(np.array([self.mass[here].sum(), self.mass[there].sum()]))
        return float(told.mean() + self.mass[here != there].sum())


def _entropy_bits(p: Floats) -> Floats:
    """Of a coin that falls with probability ``p``, in bits; elementwise."""
    inside = np.clip(p, 1e-12, 1 - 1e-12)
    bits: Floats = -inside * np.log2(inside) - (1 - inside) * np.log2(1 - inside)
    return bits
