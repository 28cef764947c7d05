"""What sets of more than two groups can do: any two of four, one with either of two others, and the like.

There are too many sets to weigh all. Choices that make builds bad only together need not be suspicious one by one, where one of
them seems to explain nearly all. So sets grow from simpler hypotheses, by a group at a time and all groups tried, and the best
ones grow on. Of the best set's groups and the most suspicious others, a few in all, everything is weighed that they can do
(:mod:`trtops.tactics.several`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trtops.tactics.features import Floats, Groups, Ints
from trtops.tactics.rates import Likelihood
from trtops.tactics.several import MAX_SEVERAL, Bools, Clauses, Several

_SHARE = math.log(1 / 4)  # of the prior of sets of three; of each larger size half as much
_BEGUN = 5  # groups, the most suspicious, that sets begin with
_BRANCHES = 3  # groups by which a set grows, each for itself
_KEPT = 8  # sets of a size that grow on
_LARGEST = 5  # groups of a grown set


@dataclass(frozen=True)
class Sets:
    """What sets of more than two groups say, all of them together.

    Attributes:
        log_sum: Logarithm of the sum of prior times probability of the verdicts over all of them.
        share: Part of the sum in which each group takes part, of shape ``(groups,)``.
        best: The most probable one.
        best_score: Logarithm of its prior times probability of the verdicts.
    """

    log_sum: float
    share: Floats
    best: Clauses
    best_score: float


@dataclass(frozen=True)
class _Step:
    """Every way of adding a group to a set, where at least so many of the new set make builds bad.

    Attributes:
        of: The set that grows.
        least: How many of the new one it takes.
        scores: Logarithms of prior times probability of the verdicts, of shape ``(groups,)``; minus infinity for groups of the
            set, and for those with which the new set expects what the old one did.
    """

    of: tuple[int, ...]
    least: int
    scores: Floats


def weigh_sets(
    groups: Groups, bad: Bools, likelihood: Likelihood, starts: Iterable[Clauses], guilt: Floats, expected: Bools
) -> Sets | None:
    """Weigh sets of more than two groups against the verdicts.

    Args:
        groups: The groups.
        bad: Verdicts, of shape ``(builds,)``.
        likelihood: Of these verdicts.
        starts: Simpler hypotheses, from whose groups sets grow.
        guilt: Of each group, by all simpler hypotheses, of shape ``(groups,)``.
        expected: The builds that the most probable of these expects to be bad. What expects the same says the same in more words.

    Returns:
        None if there are too few groups, or none of their sets says anything new.
    """
    ranked = np.argsort(-guilt, kind="stable")
    begun = {tuple(sorted(set(itertools.chain(*clauses)))) for clauses in starts} | {(int(g),) for g in ranked[:_BEGUN]}
    steps = list(_grow(groups, bad, likelihood, begun))
    best_step = max(steps, key=lambda step: float(step.scores.max()), default=None)
    first = () if best_step is None else (*best_step.of, int(np.argmax(best_step.scores)))
    few = np.array(list(dict.fromkeys([*first, *ranked.tolist()]))[:MAX_SEVERAL], np.int64)
    if len(few) <= 2:
        return None
    hypotheses, scores = _all_of_few(groups, bad, likelihood, few, expected)
    row = int(np.argmax(scores))
    if not np.isfinite(scores[row]):
        return None
    mass = np.exp(scores - scores[row])
    share, total = np.zeros(len(groups.members)), float(mass.sum())
    share[few] = mass @ (hypotheses.needed | hypotheses.among)
    for step in _without_repetition(steps, set(few.tolist())):
        added = np.exp(step.scores - scores[row])
        share += added
        share[list(step.of)] += added.sum()
        total += float(added.sum())
    best = tuple(tuple(few[list(clause)].tolist()) for clause in hypotheses.clauses(row))
    return Sets(float(scores[row]) + math.log(total), share / total, best, float(scores[row]))


def _log_prior(size: int, groups: Groups) -> float:
    """Of each hypothesis about a set of so many groups: at least 2, 3, ... of them, or one of them with any other."""
    of_size = _SHARE - (size - 3) * math.log(2)
    orders = math.lgamma(size + 1)  # in which the same set can be drawn
    return of_size + orders + size * groups.log_weight - math.log(2 * size - 1)


def _grow(groups: Groups, bad: Bools, likelihood: Likelihood, begun: set[tuple[int, ...]]) -> Iterator[_Step]:
    present = groups.present.astype(np.float32)  # whose matrix product is the fastest, and counts exactly up to 2**24
    kept: Sequence[tuple[int, ...]] = ()
    for size in range(1, min(_LARGEST, len(groups.members))):
        sets = sorted({*kept, *(of for of in begun if len(of) == size)})
        tried = [(of, least) for of in sets for least in range(2, size + 2)]
        if not tried:
            continue
        count = np.array([groups.present[:, list(of)].sum(axis=1) for of, _ in tried]).T
        least = np.array([least for _, least in tried])
        enough, nearly = count >= least, count == least - 1
        both = np.hstack((nearly, nearly & bad[:, None])).astype(np.float32)
        added, added_hits = np.hsplit((present.T @ both).astype(np.int64), 2)
        scores = likelihood(added + enough.sum(axis=0), added_hits + enough[bad].sum(axis=0))
        scores[added == 0] = -np.inf
        for place, (of, _) in enumerate(tried):
            scores[list(of), place] = -np.inf
        if size >= 2:
            prior = _log_prior(size + 1, groups)
            yield from (_Step(of, least, prior + scores[:, place]) for place, (of, least) in enumerate(tried))
        grown: dict[tuple[int, ...], float] = {}
        for number, of in enumerate(sets):
            best = scores[:, number * size : (number + 1) * size].max(axis=1)
            for one in np.argsort(-best, kind="stable")[:_BRANCHES].tolist():
                new = tuple(sorted((*of, one)))
                grown[new] = max(grown.get(new, -math.inf), float(best[one]))
        kept = sorted((new for new in grown if np.isfinite(grown[new])), key=lambda new: -grown[new])[:_KEPT]


def _all_of_few(
    groups: Groups, bad: Bools, likelihood: Likelihood, few: Ints, expected: Bools
) -> tuple[Several, Floats]:
    """All that a few groups can do, and its scores; minus infinity for what expects what a simpler hypothesis does."""
    hypotheses = Several.of(len(few))
    mixture = groups.present[:, few] @ (1 << np.arange(len(few)))
    expected_of_all = hypotheses.expected_of_all
    count = {
        name: np.bincount(mixture[of], minlength=1 << len(few))
        for name, of in (("all", slice(None)), ("bad", bad), ("expected", expected))
    }
    sizes = (hypotheses.needed | hypotheses.among).sum(axis=1)
    prior = np.array([0, 0, 0, *(_log_prior(size, groups) for size in range(3, len(few) + 1))])[sizes]
    is_grown = (hypotheses.least == 1) & ~hypotheses.needed.any(
        axis=1
    )  # any of several, of which another search thinks
    unlike = (count["all"] - 2 * count["expected"]) @ expected_of_all + expected.sum()
    logs = prior + likelihood(count["all"] @ expected_of_all, count["bad"] @ expected_of_all)
    return hypotheses, np.where(is_grown | (unlike == 0), -np.inf, logs)


def _without_repetition(steps: Iterable[_Step], few: set[int]) -> Iterator[_Step]:
    """Steps without the sets that one before has, and without those of a few groups alone."""
    steps = list(steps)
    # A set that two steps have differs from each of the sets they began with by one group, which the other one began with.
    repeated = few.union(*(step.of for step in steps))
    known: set[tuple[frozenset[int], int]] = set()
    for step in steps:
        scores = step.scores.copy()
        for group in repeated.difference(step.of):
            new = frozenset((*step.of, group)), step.least
            if new in known or new[0] <= few:
                scores[group] = -np.inf
            known.add(new)
        yield _Step(step.of, step.least, scores)
