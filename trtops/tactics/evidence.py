"""What verdicts say about choices: exact tests, and the probability of every plausible set of culprits.

Numbers in, numbers out; :mod:`trtops.tactics.diff` puts names to them.

A *hypothesis* is a set of groups (:mod:`trtops.tactics.features`) that makes builds bad: one group; two that fail only
together; either of two; grown from the best of these, any of several; and larger sets (:mod:`trtops.tactics.sets`).

Each hypothesis splits the builds into those that it expects to be bad and the others. It is weighed by the probability
of the verdicts under it, with the two rates of bad builds integrated over Beta priors (3, 1/2) and (1/2, 3): builds with a
culprit mostly fail, the others mostly pass, and neither always, so a few wrong verdicts do no harm. (For the evidence the
prior has a part in which they do so always, :meth:`~trtops.tactics.rates.Likelihood.for_evidence`.) The prior pays for
searching among many hypotheses: one half is for "no tactic is guilty", the other half is shared by all single groups (1/2)
and all pairs of both kinds (1/4 each).

There are two priors of groups, since one cannot serve both purposes. For probabilities all groups are alike. For the
evidence a group's share must not depend on later builds
(:func:`~trtops.tactics.features.groups_of`), so that groups that show late have less.

A pair that expects the same builds as a single group says the same in more words: verdicts on these builds can never tell
them apart. Its probability counts as the single group's (:meth:`_Search.merged`).

Two guards against accusing chance, both valid if verdicts have nothing to do with choices, whatever the rate of bad
builds and however the choices depend on each other:

* :attr:`Evidence.p_value`: exact hypergeometric (Fisher) tail of the best hypothesis, Bonferroni-corrected for all that
  were tried. Valid for a number of builds fixed beforehand.
* :attr:`Evidence.log_e_value`: a test martingale over its supremum under the null ("universal inference", Wasserman,
  Ramdas and Balakrishnan, PNAS 2020). Of builds in their order of arrival it exceeds ``1 / alpha`` at any time, however
  often one looks, with a probability of at most ``alpha`` (Ville's inequality). Of builds without an order it does so
  for a number of builds fixed beforehand (Markov's inequality): each look at more of them runs that risk again.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trtops.tactics.exact import FisherTest
from trtops.tactics.features import Floats, Groups, Ints
from trtops.tactics.rates import Likelihood
from trtops.tactics.sets import weigh_sets
from trtops.tactics.several import Bools, Clauses

_ONE, _PAIR = math.log(1 / 2), math.log(1 / 4) + math.log(2)  # a pair can be drawn in two orders
_MAX_PAIRED = 1024  # groups, the most suspicious, of which pairs are made: 1024 x 1024 doubles are 8 MiB
_MAX_CLAUSES = 6  # alternatives in a grown hypothesis
_IMPROBABLE = 12.0  # how far below the best, as a logarithm, hypotheses do not matter
_MAX_MERGED = 4_000_000  # builds times pairs that are compared with single groups


@dataclass(frozen=True)
class Evidence:
    """What the verdicts say about all groups together.

    Attributes:
        innocent: Posterior probability that no group is guilty.
        guilt: Posterior probability that a group is among the culprits, of shape ``(groups,)``.
        best: The most probable set of culprits.
        best_probability: Its posterior probability; and that it is all there is, see :func:`_p_whole`.
        expected_bad: The builds that it expects to be bad, of shape ``(builds,)``.
        rival_expected_bad: Likewise for the most probable set without the most suspicious group.
        best_prior: Logarithm of the best set's share of the prior of the evidence.
        p_value: See the module; in ``[0, 1]``.
        log_e_value: See the module; natural logarithm.
    """

    innocent: float
    guilt: Floats
    best: Clauses
    best_probability: float
    expected_bad: Bools
    rival_expected_bad: Bools
    best_prior: float
    p_value: float
    log_e_value: float


def average_prior(groups: int, culprits: Literal[1, 2]) -> float:
    """Logarithm of the prior of a single group, or of one kind of pair, of average weight."""
    return (_ONE if culprits == 1 else _PAIR) - culprits * math.log(groups)


def weigh(groups: Groups, bad: Bools) -> Evidence:
    """Weigh every hypothesis against the verdicts.

    Args:
        groups: At least one.
        bad: Verdicts, of shape ``(builds,)``.
    """
    search = _Search(groups, bad)
    search.merge()
    small = search.enumerated()
    grown = search.grown(small[0])
    # Scores are logarithms far below zero; taken relative to the largest, their exponentials do not all vanish.
    peak = max(search.likelihood.innocent, small[0].score, *(step.best.score for step in grown))
    innocent = math.exp(search.likelihood.innocent - peak)
    guilt, found = search.summed(peak)
    for step in grown:
        mass = np.exp(step.scores - peak)
        guilt += mass
        guilt[list(itertools.chain(*step.base.clauses))] += mass.sum()
        found += mass.sum()
    best = max([small[0], *(step.best for step in grown)], key=lambda guess: guess.score)
    starts = [guess.clauses for guess in (*small, best)]
    sets = weigh_sets(groups, bad, search.likelihood, starts, guilt, best.expected)
    if sets is not None:
        if sets.best_score > peak:
            shrunk = math.exp(peak - sets.best_score)
            innocent, found, guilt, peak = innocent * shrunk, found * shrunk, guilt * shrunk, sets.best_score
        of_sets = math.exp(sets.log_sum - peak)
        guilt += of_sets * sets.share
        found += of_sets
        if sets.best_score > best.score:
            best = search.guess(sets.best, 0.0, sets.best_score)
    total = innocent + found
    return Evidence(
        innocent=innocent / total,
        guilt=np.minimum(guilt / total, 1.0),
        best=best.clauses,
        best_probability=math.exp(best.score - peak) / total * _p_whole(best.clauses, best.expected, groups, bad),
        expected_bad=best.expected,
        rival_expected_bad=search.enumerated(without=int(np.argmax(guilt)))[0].expected,
        best_prior=search.evidence_prior(best.clauses),
        p_value=search.p_value(small),
        log_e_value=search.log_e_value,
    )


def _p_whole(clauses: Clauses, expected: Bools, groups: Groups, bad: Bools) -> float:
    """Probability that culprits are all there is: they need nothing beside, and nothing else makes builds bad.

    Beforehand it is as probable as not that culprits need some group beside, and that some group is guilty as well. Ruled out are
    groups that a bad build with the culprits lacks, and those that a good build without them has. The same odds hold for what the
    record does not show: if a share q of builds has it, all of m builds have it with a probability of q ** m, and none of them with
    (1 - q) ** m. With any q equally probable, both are 1 / (m + 1).
    """
    having, without = bad & expected, ~bad & ~expected
    beside = np.ones(len(groups.members), np.bool_)
    beside[list(itertools.chain(*clauses))] = False
    needed = beside & groups.present[having].all(axis=0)
    guilty = beside & ~groups.present[without].any(axis=0)
    recorded = (needed.sum() + guilty.sum()) / len(beside)
    unrecorded = 1 / (having.sum() + 1) + 1 / (without.sum() + 1)
    return float(1 / (1 + recorded + unrecorded))


@dataclass(frozen=True)
class _Guess:
    """A hypothesis, with the logarithm of its prior and of its prior times the verdicts' probability."""

    clauses: Clauses
    prior: float
    score: float
    expected: Bools


@dataclass(frozen=True)
class _Step:
    """Every way of adding one group to the alternatives of ``base``; ``scores`` has one entry per group."""

    base: _Guess
    scores: Floats
    best: _Guess


class _Search:
    """Scores of all single groups and pairs, as arrays: logarithms of prior times probability of the verdicts.

    Attributes:
        log_e_value: See the module. Of all single groups and pairs, as they are enumerated: grown hypotheses and larger sets are
            chosen by the verdicts, and no share of the prior was set aside for them.
    """

    def __init__(self, groups: Groups, bad: Bools) -> None:
        self.groups, self.bad = groups, bad
        self.likelihood = Likelihood(len(bad), int(bad.sum()))
        self.size = groups.present.sum(axis=0)
        self.hits = groups.present[bad].sum(axis=0)
        alone = self.likelihood(self.size, self.hits)
        self.single = _ONE + groups.log_weight + alone
        self.paired = np.argsort(-self.single, kind="stable")[:_MAX_PAIRED]
        sizes, hits, differ = self._pairs()
        pairs = self.likelihood(sizes, hits)
        self.pair = np.where(differ, _PAIR + 2 * groups.log_weight + pairs, -np.inf)
        share = groups.log_share[self.paired]
        # Pairs that expect what one of the two does count here as well: their shares are part of the prior. Pairs that are not among
        # the most suspicious are left out, which only makes the evidence smaller.
        logs = (
            _ONE + groups.log_share + self.likelihood.for_evidence(self.size, self.hits, alone),
            _PAIR + share[:, None] + share + self.likelihood.for_evidence(sizes, hits, pairs),
        )
        peak = max(float(of.max()) for of in logs)
        self.log_e_value = (
            peak + math.log(sum(float(np.exp(of - peak).sum()) for of in logs)) - self.likelihood.supremum
        )

    def _pairs(self) -> tuple[Ints, Ints, Bools]:
        """Of pairs, of shape ``(paired, paired)``: above the diagonal "only together", below it "either".

        Returns:
            How many builds each expects to be bad; how many of these are; and whether it expects any, and other ones than one of
            the two alone does.
        """
        size, hits = self.size[self.paired], self.hits[self.paired]
        # In float32, whose matrix product is the fastest, and which counts exactly up to 2**24.
        present = self.groups.present[:, self.paired].astype(np.float32)
        common = (present.T @ present).astype(np.int64)
        common_hits = (present[self.bad].T @ present[self.bad]).astype(np.int64)
        together = np.triu(np.ones(common.shape, np.bool_), 1)
        sizes = np.where(together, common, size[:, None] + size - common)
        all_hits = np.where(together, common_hits, hits[:, None] + hits - common_hits)
        nested = common == np.minimum(size[:, None], size)
        return sizes, all_hits, ~nested & (sizes > 0) & ~np.eye(len(common), dtype=np.bool_)

    def merge(self) -> None:
        """Count the probability of pairs that expect the same builds as a single group as that group's.

        Only of what is probable at all: the rest changes nothing. Not the evidence, whose hypotheses stay as they are.
        """
        peak = max(float(self.single.max()), float(self.pair.max()))
        # As many pairs may come to what one group alone does as there are groups, each that much less probable.
        least = peak - _IMPROBABLE + self.groups.log_weight
        singles = np.flatnonzero(self.single > least)
        places = np.argwhere(self.pair > least)
        places = places[np.argsort(-self.pair[tuple(places.T)], kind="stable")[: _MAX_MERGED // len(self.bad)]]
        if not len(singles) or not len(places):
            return
        packed = np.packbits(self.groups.present, axis=0)
        first, second = (packed[:, self.paired[place]] for place in places.T)
        expected = np.where(places[:, 0] < places[:, 1], first & second, first | second).T
        owner = {packed[:, one].tobytes(): one for one in singles.tolist()}
        for place, row in zip(places.tolist(), expected):
            one = owner.get(row.tobytes())
            if one is not None:
                self.single[one] = np.logaddexp(self.single[one], self.pair[tuple(place)])
                self.pair[tuple(place)] = -np.inf

    def evidence_prior(self, clauses: Clauses) -> float:
        """Logarithm of a hypothesis's share of the prior of the evidence."""
        groups = sorted(set(itertools.chain(*clauses)))
        return (_ONE if len(groups) == 1 else _PAIR) + float(self.groups.log_share[groups].sum())

    def enumerated(self, without: int | None = None) -> list[_Guess]:
        """The best hypothesis of each kind (one group, two that fail only together, either of two), the most probable first.

        Args:
            without: A group to leave out.
        """
        single, pair = self.single.copy(), self.pair.copy()
        if without is not None and len(single) > 1:
            single[without] = pair[self.paired == without, :] = pair[:, self.paired == without] = -np.inf
        one = int(np.argmax(single))
        guesses = [self.guess(((one,),), _ONE + self.groups.log_weight, float(single[one]))]
        upper = np.triu(np.ones(pair.shape, np.bool_), 1)
        for kind, scores in (
            ("together", np.where(upper, pair, -np.inf)),
            ("either", np.where(upper.T, pair, -np.inf)),
        ):
            best = int(np.argmax(scores))
            if np.isfinite(scores.flat[best]):
                a, b = (int(self.paired[i]) for i in divmod(best, len(pair)))
                clauses = ((a, b),) if kind == "together" else ((a,), (b,))
                guesses.append(self.guess(clauses, _PAIR + 2 * self.groups.log_weight, float(scores.flat[best])))
        return sorted(guesses, key=lambda guess: -guess.score)

    def grown(self, base: _Guess) -> list[_Step]:
        """Steps that add alternatives to a pair, as long as each makes the verdicts more probable by more than its prior costs."""
        steps: list[_Step] = []
        while sum(map(len, base.clauses)) > 1 and len(base.clauses) < _MAX_CLAUSES:
            rest = ~base.expected
            added, added_hits = self.groups.present[rest].sum(axis=0), self.groups.present[rest & self.bad].sum(axis=0)
            size, hits = int(base.expected.sum()), int(self.bad[base.expected].sum())
            prior = base.prior + self.groups.log_weight
            scores = np.where(added > 0, prior + self.likelihood(size + added, hits + added_hits), -np.inf)
            new = int(np.argmax(scores))
            if not scores[new] > base.score:
                break
            best = self.guess((*base.clauses, (new,)), prior, float(scores[new]))
            steps.append(_Step(base=base, scores=scores, best=best))
            base = best
        return steps

    def summed(self, peak: float) -> tuple[Floats, float]:
        """Sums of prior times probability of the verdicts, per group and in all, in units of ``exp(peak)``."""
        single, pair = np.exp(self.single - peak), np.exp(self.pair - peak)
        guilt = single.copy()
        guilt[self.paired] += pair.sum(axis=0) + pair.sum(axis=1)
        return guilt, float(single.sum() + pair.sum())

    def p_value(self, guesses: list[_Guess]) -> float:
        """The smallest p-value of the given hypotheses, corrected for all: single groups share half the level, pairs the rest.

        Each kind of pair has a quarter of it for ``groups (groups - 1) / 2`` pairs, also those that were not scored.
        """
        test = FisherTest(len(self.bad), int(self.bad.sum()))
        groups = len(self.groups.members)
        corrected = [1.0]
        for guess in guesses:
            tries = 2 * groups if guess.clauses == ((guess.clauses[0][0],),) else 2 * groups * (groups - 1)
            expected = guess.expected
            corrected.append(tries * test(int(expected.sum()), int(self.bad[expected].sum())))
        return min(corrected)

    def guess(self, clauses: Clauses, prior: float, score: float) -> _Guess:
        """A hypothesis, with the builds that it expects to be bad."""
        expected = np.zeros(len(self.bad), np.bool_)
        for clause in clauses:
            expected |= self.groups.present[:, list(clause)].all(axis=1)
        return _Guess(clauses=clauses, prior=prior, score=score, expected=expected)
