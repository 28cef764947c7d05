"""What verdicts say about choices: exact tests, and the probability of every plausible set of culprits.

Numbers in, numbers out; :mod:`trtops.tactics.diff` puts names to them.

A *feature* is "this layer got this tactic" or "this setting had this value", true or false for each build. Features
that are true of the same builds cannot be told apart by verdicts on these: they form one *group*. A *hypothesis* is a set
of groups that makes builds bad: one group; two that fail only together; either of two; grown from the best of these, any of
several; and, among the few most suspicious groups, whatever several can do (:mod:`trtops.tactics.several`).

Each hypothesis splits the builds into those that it expects to be bad and the others. It is weighed by the probability
of the verdicts under it, with the two rates of bad builds integrated over Beta priors (3, 1/2) and (1/2, 3): builds with a
culprit mostly fail, the others mostly pass, and neither always, so a few wrong verdicts do no harm. The prior pays for
searching among many hypotheses: one half is for "no tactic is guilty", the other half is shared by all single groups (1/2)
and all pairs of both kinds (1/4 each).

There are two priors of groups, since one cannot serve both purposes. For probabilities all groups are alike. For the
evidence a group's share must not depend on later builds (:func:`groups_of`), so that groups that show late have less.

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

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops.tactics.several import MAX_SEVERAL, Bools, Several

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Clauses: TypeAlias = tuple[tuple[int, ...], ...]
"""Groups that make a build bad: any of the clauses, in each of which all groups must come together."""

GUILTY_PRIOR = (3.0, 0.5)
"""Beta prior of the rate of bad builds among those with the culprit; reversed, of the rate among those without."""

_ONE, _PAIR = math.log(1 / 2), math.log(1 / 4) + math.log(2)  # a pair can be drawn in two orders
_SEVERAL = math.log(1 / 4)  # as either kind of pair; beyond the half, as grown ones are, and so no part of the evidence
_MAX_PAIRED = 1024  # groups, the most suspicious, of which pairs are made: 1024 x 1024 doubles are 8 MiB
_MAX_CLAUSES = 6  # alternatives in a grown hypothesis
_IMPROBABLE = 12.0  # how far below the best, as a logarithm, hypotheses do not matter
_MAX_MERGED = 4_000_000  # builds times pairs that are compared with single groups


@dataclass(frozen=True)
class Features:
    """Choices that differ between builds.

    Attributes:
        present: Of shape ``(builds, features)``.
        column: The layer's (or setting's) position, of shape ``(features,)``.
        code: What it got; -1 for features that say "the build has no such layer".
        birth: The build (from 0) with which the column began to vary or the code was first seen, whichever is later. It
            has a meaning only if builds are in their order of arrival.
    """

    present: Bools
    column: Ints
    code: Ints
    birth: Ints


def features_of(codes: npt.NDArray[np.integer]) -> Features:
    """The features of a matrix of codes.

    Args:
        codes: Of shape ``(builds, columns)``, -1 for absent.
    """
    # No loop over columns: a campaign has thousands. A feature's key is its column times the number of codes, plus its code,
    # moved up by one so that absent (-1) becomes 0; of all possible keys those that occur become features.
    differs = codes != codes[:1]
    columns = np.flatnonzero(differs.any(axis=0))
    varying = np.asarray(codes[:, columns], np.int64) + 1
    limit = int(varying.max(initial=0)) + 1
    keys = varying + np.arange(len(columns)) * limit
    seen = np.zeros(len(columns) * limit, np.bool_)
    seen[keys] = True
    used = np.flatnonzero(seen)
    position = np.cumsum(seen) - 1
    present = np.zeros((len(codes), len(used)), np.bool_)
    present[np.arange(len(codes))[:, None], position[keys]] = True
    owner = used // limit
    # A column can vary from the second build on, so no birth is 0.
    first_change = differs[:, columns].argmax(axis=0) if len(columns) else np.empty(0, np.int64)
    birth = np.maximum(first_change[owner], present.argmax(axis=0) if len(used) else 0)
    return Features(present=present, column=columns[owner], code=used % limit - 1, birth=birth)


@dataclass(frozen=True)
class Groups:
    """Features, those that no verdict can tell apart taken as one.

    Attributes:
        present: Of shape ``(builds, groups)``.
        members: Positions of each group's features.
        log_share: Logarithm of each group's share of the evidence's prior, of shape ``(groups,)``.
    """

    present: Bools
    members: tuple[tuple[int, ...], ...]
    log_share: Floats

    @property
    def log_weight(self) -> float:
        """Logarithm of the share that every group has of the prior of probabilities."""
        return -math.log(len(self.members))


def groups_of(features: Features, *, ordered: bool = True) -> Groups:
    """Group the features that are true of the same builds, and divide the prior of the evidence among the groups.

    Args:
        features: The features.
        ordered: Whether builds are in their order of arrival. If not, every group has the same share.
    """
    packed = np.ascontiguousarray(np.packbits(features.present, axis=0).T)
    found: dict[bytes, list[int]] = {}
    for feature, row in enumerate(packed):
        found.setdefault(row.tobytes(), []).append(feature)
    members = tuple(map(tuple, found.values()))
    shares = _shares_by_birth(features, members) if ordered else np.ones(len(members)) / len(members)
    return Groups(
        present=features.present[:, [group[0] for group in members]],
        members=members,
        log_share=np.log(shares),
    )


def _shares_by_birth(features: Features, members: tuple[tuple[int, ...], ...]) -> Floats:
    """Each group's share of the prior, where builds are in their order of arrival.

    The evidence is valid at any time only if hypotheses keep their prior as builds come, so a feature's share must not depend
    on later ones. The features born with build ``i`` divide ``1 / (i (i + 1))``, which over all ``i`` sums to one. A group's
    share is the sum of its features', so that nothing changes when later builds split the group.
    """
    births, counts = np.unique(features.birth, return_counts=True)
    share = dict(zip(births.tolist(), (1.0 / (births * (births + 1.0) * counts)).tolist()))
    return np.array([math.fsum(share[int(features.birth[f])] for f in group) for group in members], np.float64)


@dataclass(frozen=True)
class Evidence:
    """What the verdicts say about all groups together.

    Attributes:
        innocent: Posterior probability that no group is guilty.
        guilt: Posterior probability that a group is among the culprits, of shape ``(groups,)``.
        best: The most probable set of culprits.
        best_probability: Its posterior probability.
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


class Likelihood:
    """Logarithms of the probability of verdicts, ``bad`` of ``builds`` being bad, under hypotheses that split the builds.

    The probability is that of the sequence of verdicts, with the rates of both parts integrated over their Beta priors: a
    quotient of Beta functions for each part. Gamma functions are tabulated, since every one needed is of an integer plus a
    constant.

    Attributes:
        innocent: The same where no choice is guilty: one rate for all builds, integrated over Jeffreys' prior (1/2, 1/2).
        supremum: The same at the one rate that makes the verdicts most probable: the null that the e-value is against.
    """

    def __init__(self, builds: int, bad: int) -> None:
        self.builds, self.bad = builds, bad
        fails, passes = GUILTY_PRIOR
        self._fails, self._passes, self._both = (_log_gammas(x, builds) for x in (fails, passes, fails + passes))
        self._norm = 2 * (self._both[0] - self._fails[0] - self._passes[0])
        rate = bad / builds if builds else 0.0
        self.supremum = sum(count * math.log(p) for count, p in ((bad, rate), (builds - bad, 1 - rate)) if count)
        half = _log_gammas(0.5, builds)
        self.innocent = float(half[bad] + half[builds - bad] - 2 * half[0] - math.lgamma(builds + 1))

    def __call__(self, size: Ints | np.int64, hits: Ints | np.int64) -> Floats:
        """For hypotheses that expect ``size`` builds to be bad, of which ``hits`` are; arrays of any shape, elementwise."""
        outside, misses = self.builds - size, self.bad - hits
        inside = self._fails[hits] + self._passes[size - hits] - self._both[size]
        rest = self._passes[misses] + self._fails[outside - misses] - self._both[outside]
        result: Floats = inside + rest + self._norm
        return result


@dataclass(frozen=True)
class Trend:
    """Rates that a campaign is expected to keep: of builds with the culprit, and of bad ones among those with and without it.

    Posterior means rather than shares seen, which after one bad build with the culprit would say that it always fails.
    """

    seen: float
    fails: float
    fails_without: float

    @classmethod
    def of(cls, builds: int, bad: int, size: int, hits: int) -> Trend:
        """From the builds so far: ``size`` have the culprit, ``hits`` of these are bad."""
        fails, passes = GUILTY_PRIOR
        return cls(
            seen=(size + 0.5) / (builds + 1),
            fails=(hits + fails) / (size + fails + passes),
            fails_without=(bad - hits + passes) / (builds - size + fails + passes),
        )

    def log_e_value(self, builds: int, prior: float) -> float:
        """The evidence expected after so many builds for a hypothesis, given the logarithm of its prior."""
        size = round(builds * self.seen)
        hits, misses = round(size * self.fails), round((builds - size) * self.fails_without)
        likelihood = Likelihood(builds, hits + misses)
        return prior + float(likelihood(np.int64(size), np.int64(hits))) - likelihood.supremum

    def builds_until(self, log_e_value: float, prior: float, start: int, limit: int = 1 << 17) -> int | None:
        """Builds in all until the evidence is expected to suffice; None if ``limit`` builds would not."""
        enough = start
        while self.log_e_value(enough, prior) < log_e_value:
            enough *= 2
            if enough > limit:
                return None
        return start + bisect.bisect_left(range(start, enough), log_e_value, key=lambda n: self.log_e_value(n, prior))

    def builds_to_tell_apart(self, best: Bools, rival: Bools, missing: float) -> int | None:
        """Builds until verdicts favour one of two hypotheses enough, if they differ as often as they have so far.

        Each build on which they differ is expected to add the Kullback-Leibler divergence of the two rates to the logarithm of
        the odds.

        Args:
            best: The builds that the better one expects to be bad.
            rival: Those that the other does.
            missing: How much the logarithm of the odds must grow.
        """
        p, q = self.fails, self.fails_without
        gain = float((best & ~rival).mean()) * _kl_divergence(p, q) + float((rival & ~best).mean()) * _kl_divergence(
            q, p
        )
        return max(1, math.ceil(missing / gain)) if gain > 0 else None


def _kl_divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of a coin of probability ``q`` from one of ``p``, in nats."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def _log_gammas(start: float, count: int) -> Floats:
    """Logarithms of the gamma function at ``start, start + 1, ... start + count``."""
    return math.lgamma(start) + np.concatenate(([0.0], np.cumsum(np.log(start + np.arange(count)))))


@dataclass(frozen=True)
class Confounder:
    """Something beside choices that the rate of bad builds depends on.

    Attributes:
        gain: Logarithm of how much more probable verdicts are with a rate for each part than with one for all.
        parts: The parts' names, each with its builds and the bad ones among them.
    """

    gain: float
    parts: tuple[tuple[str, int, int], ...]


def drift(bad: Bools) -> Confounder:
    """The change of the rate at that build which explains verdicts best, builds being in their order of arrival."""
    builds, hits = len(bad), int(bad.sum())
    before = np.cumsum(bad, dtype=np.int64)[1:-2]
    count = np.arange(2, 2 + len(before))
    if not len(before):
        return Confounder(0.0, ())
    gains = _at_own_rate(count, before) + _at_own_rate(builds - count, hits - before) - _at_own_rate(builds, hits)
    best = int(np.argmax(gains))
    # The best of many builds to change at is better than chance would be at one; half of its logarithm, as in BIC.
    searched = math.log(builds) / 2
    k, m = int(count[best]), int(before[best])
    parts = ((f"the first {k} builds", k, m), (f"the {builds - k} after them", builds - k, hits - m))
    return Confounder(float(gains[best]) - searched, parts)


def blocked(bad: Bools, labels: Sequence[str]) -> Confounder:
    """A rate for the builds of each label: of each machine, say."""
    parts = []
    for label in dict.fromkeys(labels):
        has = np.array([other == label for other in labels])
        parts.append((label, int(has.sum()), int(bad[has].sum())))
    apart = sum(float(_at_own_rate(size, hits)) for _, size, hits in parts)
    return Confounder(apart - float(_at_own_rate(len(bad), int(bad.sum()))), tuple(parts))


def _at_own_rate(size: Ints | int, hits: Ints | int) -> Floats:
    """Logarithm of the probability of verdicts at the rate that makes them most probable; elementwise."""
    rate = np.clip(np.asarray(hits) / np.maximum(size, 1), 1e-12, 1 - 1e-12)
    logs: Floats = hits * np.log(rate) + (size - np.asarray(hits)) * np.log1p(-rate)
    return logs


class FisherTest:
    """Fisher's exact test, one-sided, for one campaign: are builds with a choice bad more often than by chance?"""

    def __init__(self, builds: int, bad: int) -> None:
        self.builds, self.bad = builds, bad
        self._factorials = _log_gammas(1.0, builds)

    def __call__(self, size: int, hits: int) -> float:
        """Probability that at least ``hits`` of ``size`` builds are bad if chance alone chose which are.

        The upper tail of the hypergeometric distribution.
        """
        if hits <= max(0, size + self.bad - self.builds):
            return 1.0
        hit = np.arange(hits, min(size, self.bad) + 1)
        logs = self._choose(self.bad, hit) + self._choose(self.builds - self.bad, size - hit)
        return float(min(1.0, np.exp(logs - self._choose(self.builds, size)).sum()))

    def _choose(self, n: int, k: int | Ints) -> Floats:
        chosen: Floats = self._factorials[n] - self._factorials[k] - self._factorials[n - k]
        return chosen


def holm(p_values: Floats) -> Floats:
    """Holm's step-down correction (Scandinavian Journal of Statistics, 1979); in the order given."""
    order = np.argsort(p_values)
    stepped = p_values[order] * (len(p_values) - np.arange(len(p_values)))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected


def wilson(hits: int, size: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval for a rate (Journal of the American Statistical Association, 1927); (0, 1) without data."""
    from statistics import NormalDist

    if not size:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, spread = hits / size, z * z / size
    middle = (rate + spread / 2) / (1 + spread)
    half = math.sqrt(rate * (1 - rate) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < size else 1.0


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
    several = search.several(guilt, best)
    if several is not None:
        if (higher := several.best.score) > peak:
            shrunk = math.exp(peak - higher)
            innocent, found, guilt, peak = innocent * shrunk, found * shrunk, guilt * shrunk, higher
        mass = np.exp(several.scores - peak)
        guilt[several.groups] += mass @ several.members
        found += float(mass.sum())
        best = max(best, several.best, key=lambda guess: guess.score)
    total = innocent + found
    return Evidence(
        innocent=innocent / total,
        guilt=np.minimum(guilt / total, 1.0),
        best=best.clauses,
        best_probability=math.exp(best.score - peak) / total,
        expected_bad=best.expected,
        rival_expected_bad=search.enumerated(without=int(np.argmax(guilt)))[0].expected,
        best_prior=search.evidence_prior(best.clauses),
        p_value=search.p_value(small),
        log_e_value=search.log_e_value,
    )


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


@dataclass(frozen=True)
class _OfSeveral:
    """What a few groups can do that more than two take part in.

    Attributes:
        groups: The groups, of shape ``(few,)``.
        members: Which of them take part, of shape ``(hypotheses, few)``.
        scores: Of shape ``(hypotheses,)``.
        best: The most probable one.
    """

    groups: Ints
    members: Bools
    scores: Floats
    best: _Guess


class _Search:
    """Scores of all single groups and pairs, as arrays: logarithms of prior times probability of the verdicts.

    Attributes:
        log_e_value: See the module. Of all single groups and pairs, as they are enumerated: grown hypotheses, and those of several groups, are chosen by the
            verdicts, and no share of the prior was set aside for them.
    """

    def __init__(self, groups: Groups, bad: Bools) -> None:
        self.groups, self.bad = groups, bad
        self.likelihood = Likelihood(len(bad), int(bad.sum()))
        self.size = groups.present.sum(axis=0)
        self.hits = groups.present[bad].sum(axis=0)
        alone = self.likelihood(self.size, self.hits)
        self.single = _ONE + groups.log_weight + alone
        self.paired = np.argsort(-self.single, kind="stable")[:_MAX_PAIRED]
        pairs = self._pairs()
        self.pair = _PAIR + 2 * groups.log_weight + pairs
        share = groups.log_share[self.paired]
        logs = (_ONE + groups.log_share + alone, _PAIR + share[:, None] + share + pairs)
        peak = max(float(of.max()) for of in logs)
        self.log_e_value = (
            peak + math.log(sum(float(np.exp(of - peak).sum()) for of in logs)) - self.likelihood.supremum
        )

    def _pairs(self) -> Floats:
        """Likelihoods of shape ``(paired, paired)``: above the diagonal for "only together", below it for "either"."""
        size, hits = self.size[self.paired], self.hits[self.paired]
        # In float32, whose matrix product is the fastest, and which counts exactly up to 2**24.
        present = self.groups.present[:, self.paired].astype(np.float32)
        common = (present.T @ present).astype(np.int64)
        common_hits = (present[self.bad].T @ present[self.bad]).astype(np.int64)
        together = np.triu(np.ones(common.shape, np.bool_), 1)
        sizes = np.where(together, common, size[:, None] + size - common)
        all_hits = np.where(together, common_hits, hits[:, None] + hits - common_hits)
        logs = self.likelihood(sizes, all_hits)
        nested = common == np.minimum(size[:, None], size)  # the pair expects what one of the two alone does
        # Pairs that are left out, here or for not being among the most suspicious, only make the evidence smaller.
        logs[nested | (sizes == 0) | np.eye(len(logs), dtype=np.bool_)] = -np.inf
        return logs

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
        guesses = [self._guess(((one,),), _ONE + self.groups.log_weight, float(single[one]))]
        upper = np.triu(np.ones(pair.shape, np.bool_), 1)
        for kind, scores in (
            ("together", np.where(upper, pair, -np.inf)),
            ("either", np.where(upper.T, pair, -np.inf)),
        ):
            best = int(np.argmax(scores))
            if np.isfinite(scores.flat[best]):
                a, b = (int(self.paired[i]) for i in divmod(best, len(pair)))
                clauses = ((a, b),) if kind == "together" else ((a,), (b,))
                guesses.append(self._guess(clauses, _PAIR + 2 * self.groups.log_weight, float(scores.flat[best])))
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
            best = self._guess((*base.clauses, (new,)), prior, float(scores[new]))
            steps.append(_Step(base=base, scores=scores, best=best))
            base = best
        return steps

    def several(self, guilt: Floats, best: _Guess) -> _OfSeveral | None:
        """What the most suspicious groups can do together, and no simpler hypothesis says; None if that is nothing.

        Args:
            guilt: Of each group, by all other hypotheses.
            best: The most probable of these. What expects the same builds says the same in more words.
        """
        groups = np.argsort(-guilt, kind="stable")[:MAX_SEVERAL]
        few = len(groups)
        if few <= 2:
            return None
        hypotheses = Several.of(few)
        mixture = self.groups.present[:, groups] @ (1 << np.arange(few))
        expected = hypotheses.expected_of_all
        count = {
            name: np.bincount(mixture[of], minlength=1 << few)
            for name, of in (("all", slice(None)), ("bad", self.bad), ("best", best.expected))
        }
        members = hypotheses.needed | hypotheses.among
        # Shared among all that a set of so many can do: at least 2, 3, ... of them, or one of them with any other.
        size_of_set = members.sum(axis=1)
        prior = _SEVERAL + size_of_set * self.groups.log_weight - np.log(2 * size_of_set - 1)
        is_grown = (hypotheses.least == 1) & ~hypotheses.needed.any(axis=1)  # any of several
        unlike_best = (count["all"] - 2 * count["best"]) @ expected + best.expected.sum()
        likelihood = self.likelihood(count["all"] @ expected, count["bad"] @ expected)
        scores = np.where(is_grown | (unlike_best == 0), -np.inf, prior + likelihood)
        row = int(np.argmax(scores))
        if not np.isfinite(scores[row]):
            return None
        clauses = tuple(tuple(groups[list(clause)].tolist()) for clause in hypotheses.clauses(row))
        guess = self._guess(clauses, float(prior[row]), float(scores[row]))
        return _OfSeveral(groups, members, scores, guess)

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

    def _guess(self, clauses: Clauses, prior: float, score: float) -> _Guess:
        expected = np.zeros(len(self.bad), np.bool_)
        for clause in clauses:
            expected |= self.groups.present[:, list(clause)].all(axis=1)
        return _Guess(clauses=clauses, prior=prior, score=score, expected=expected)
