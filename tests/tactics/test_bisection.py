"""Bisections whose culprits are known, because they were planted; and verdicts that have nothing to do with the units."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.amounts import amount
from trtops.tactics.bisection import Bisection, Seen
from trtops.tactics.narrowing import Narrowing
from trtops.tactics.several import MAX_SEVERAL

SEEDS = amount(60, in_every_run=15)
LIMIT = 80


def played(seed: int, units: int, bad: Callable[[np.random.Generator, np.ndarray, int], bool]) -> Narrowing:
    """A bisection that is asked after every trial, until it is decided."""
    rng = np.random.default_rng(10_000 + seed)
    bisection = Narrowing(Bisection(np.ones(units), seed))
    while bisection.decided() is None and bisection.trials < LIMIT:
        taken, opposite = bisection.next()
        bisection.add(taken, bad(rng, taken, bisection.trials), opposite)
    return bisection


def culprits(seed: int, units: int) -> tuple[int, int]:
    first, second = sorted(np.random.default_rng(seed).choice(units, 2, replace=False).tolist())
    return first, second


EXPECTED = {
    "one": lambda taken, a, b: taken[a],
    "together": lambda taken, a, b: taken[a] and taken[b],
    "either": lambda taken, a, b: taken[a] or taken[b],
}


@pytest.mark.parametrize(
    ("kind", "units", "wrong", "fails", "median", "right"),
    [
        ("one", 6, 0.0, 1.0, 9, 60),
        ("one", 30, 0.0, 1.0, 11, 60),
        ("one", 120, 0.0, 1.0, 13, 60),
        ("one", 30, 0.05, 1.0, 16, 57),
        ("one", 30, 0.0, 0.6, 40, 55),
        ("together", 30, 0.0, 1.0, 24, 57),
        ("either", 30, 0.0, 1.0, 24, 57),
        ("together", 5, 0.0, 1.0, 16, 57),
        ("either", 5, 0.05, 1.0, 22, 55),
    ],
)
def test_planted_culprits_are_named_within_few_trials(kind, units, wrong, fails, median, right):
    trials, named = [], 0
    for seed in range(SEEDS):
        a, b = culprits(seed, units)

        def bad(rng: np.random.Generator, taken: np.ndarray, _: int, a: int = a, b: int = b) -> bool:
            return bool((EXPECTED[kind](taken, a, b) and rng.random() < fails) ^ (rng.random() < wrong))

        found = played(seed, units, bad)
        trials.append(found.trials)
        expected = {"one": ((a,),), "together": ((a, b),), "either": ((a,), (b,))}[kind]
        named += found.decided() == "convicted" and found.best.clauses == expected

    assert named >= int(right / 60 * SEEDS)
    assert np.median(trials) <= median


@pytest.mark.parametrize(
    "bad",
    [
        lambda rng, taken, trial: rng.random() < 0.3,
        lambda rng, taken, trial: rng.random() < 0.5,
        lambda rng, taken, trial: rng.random() < (0.1 if trial % 20 < 10 else 0.9),
        lambda rng, taken, trial: trial % 2 == 0,
    ],
    ids=["three in ten", "half", "drifting", "two machines in turns"],
)
def test_where_verdicts_depend_on_no_unit_few_are_accused_whatever_else_they_depend_on(bad):
    innocent = amount(100, in_every_run=20)
    outcomes = Counter(played(seed, 12, bad).decided() for seed in range(innocent))

    # One in twenty at most, and what chance adds to that.
    assert outcomes["convicted"] <= 0.05 * innocent + 2 * (0.05 * 0.95 * innocent) ** 0.5
    assert outcomes["chance"] >= 0.8 * innocent


def test_the_e_value_has_the_mean_one_over_the_coin_whatever_the_verdicts():
    """Every way that the coin can fall, for a few sequences of verdicts: the mean of the e-values is 1 exactly."""
    for verdicts in ((True, False, True), (False, False, False), (True, True, False)):
        values = []
        for falls in itertools.product((False, True), repeat=len(verdicts)):
            bisection = Bisection([3.0, 1.0, 1.0, 1.0])
            for verdict, fall in zip(verdicts, falls):
                one, other = sorted(bisection.next(), key=lambda taken: taken.tolist())
                bisection.add(*((one, verdict, other) if fall else (other, verdict, one)))
            values.append(math.exp(bisection.log_e_value))

        assert np.mean(values) == pytest.approx(1.0, rel=1e-9)


SEVERAL = {
    "any of four": ((0,), (1,), (2,), (3,)),
    "two of four": tuple(itertools.combinations(range(4), 2)),
    "all of three": ((0, 1, 2),),
    "one with either of two": ((0, 1), (0, 2)),
}


@pytest.mark.parametrize("clauses", SEVERAL.values(), ids=SEVERAL)
def test_among_a_few_units_whatever_several_do_is_named(clauses):
    trials, named = [], 0
    for seed in range(20):
        found = played(seed, 5, lambda rng, taken, _: any(taken[list(clause)].all() for clause in clauses))
        trials.append(found.trials)
        named += found.decided() == "convicted" and found.best.clauses == clauses

    assert named >= 18
    assert np.median(trials) <= 26


@pytest.mark.parametrize("units", [12, 40])
@pytest.mark.parametrize("clauses", SEVERAL.values(), ids=SEVERAL)
def test_among_many_units_a_few_that_are_bad_alone_are_told_apart(clauses, units):
    trials, named = [], 0
    for seed in range(10):
        guilty = np.random.default_rng(seed).permutation(units)
        wanted = tuple(sorted(tuple(sorted(guilty[list(clause)].tolist())) for clause in clauses))
        found = played(
            seed, units, lambda rng, taken, _, wanted=wanted: any(taken[list(clause)].all() for clause in wanted)
        )
        trials.append(found.trials)
        # Culprits that are not among the few are found by further bisections.
        named += found.decided() == "convicted" and set(found.best.clauses) <= set(wanted)

    assert named >= 9
    assert np.median(trials) <= 60


def two_of_four(taken: np.ndarray) -> bool:
    return bool(taken[:4].sum() >= 2)


def test_units_that_are_not_guilty_stay_as_in_the_good_build_once_a_few_are_left():
    bisection, asked = Narrowing(Bisection(np.ones(30), seed=3)), []
    while bisection.decided() is None:
        taken, opposite = bisection.next()
        asked.append(taken)
        bisection.add(taken, two_of_four(taken), opposite)

    assert bisection.decided() == "convicted"
    assert set(bisection.best.clauses) <= set(itertools.combinations(range(4), 2))
    assert np.logical_or.reduce(asked[-5:]).sum() <= MAX_SEVERAL


def test_a_few_that_cannot_be_built_alone_are_tried_again_only_after_some_trials():
    bisection, shunned = Narrowing(Bisection(np.ones(30), seed=3)), []
    while bisection.trials < 60:
        taken, opposite = bisection.next()
        if opposite is None and bisection.log_e_value < math.log(20):  # other trials throw a coin until then
            bisection.shun(taken)
            shunned.append(bisection.trials)
        else:
            bisection.add(taken, two_of_four(taken), opposite)

    assert len(shunned) > 1
    assert min(np.diff(shunned)) >= 8


def test_verdicts_on_what_strayed_say_nothing_once_a_few_are_left():
    bisection = narrowed = Narrowing(Bisection(np.ones(30), seed=3))
    while bisection.decided() is None:
        narrowed = copy.deepcopy(bisection)
        taken, opposite = bisection.next()
        bisection.add(taken, two_of_four(taken), opposite)
    best = narrowed.best

    narrowed.add(np.ones(30, np.bool_), False)

    assert narrowed.best == best


def test_a_trial_without_a_coin_says_which_unit_and_nothing_against_chance():
    bisection = Bisection(np.ones(4))

    bisection.add(np.array([True, False, False, False]), True)

    assert bisection.log_e_value == pytest.approx(0.0, abs=1e-12)
    assert bisection.best.units == (0,)


@pytest.mark.parametrize("units", [5, 30])
def test_once_there_is_evidence_against_chance_no_coin_is_thrown(units):
    threw = {False: 0, True: 0}
    for seed in range(10):
        bisection = Bisection(np.ones(units), seed)
        for _ in range(20):
            enough = bisection.log_e_value >= math.log(2)
            taken, opposite = bisection.next(confidence=0.5)
            assert (opposite is None) == enough
            threw[not enough] += 1
            before = bisection.log_e_value
            bisection.add(taken, bool(taken[1] and taken[3]), opposite)
            if enough:
                assert bisection.log_e_value == pytest.approx(before)

    assert threw[False] and threw[True]


def test_what_is_known_already_is_asked_first():
    prior = np.full(64, 0.001)
    prior[[5, 6]] = 1.0

    taken, opposite = Bisection(prior).next()

    few = min(taken, opposite, key=np.sum)
    assert few[[5, 6]].any()
    assert few.sum() <= 8


def test_one_unit_alone_is_tried_both_ways():
    bisection = Bisection([1.0])
    seen = set()
    while bisection.decided() is None:
        taken, opposite = bisection.next()
        seen.add(bool(taken[0]))
        bisection.add(taken, bool(taken[0]), opposite)

    assert (bisection.decided(), bisection.best.units, seen) == ("convicted", (0,), {False, True})


@pytest.mark.parametrize(("kind", "fewer"), [("one", True), ("together", False)])
def test_less_suffices_against_chance_where_one_unit_alone_is_most_probable(kind, fewer):
    trials, named = [], 0
    for seed in range(SEEDS):
        expected = EXPECTED[kind]
        a, b = culprits(seed, 7)
        taken_by_confidence = []
        for of_one in (None, 0.8):
            bisection = Narrowing(Bisection(np.ones(7), seed))
            while bisection.decided(0.95, of_one) is None and bisection.trials < LIMIT:
                taken, opposite = bisection.next(0.95, of_one)
                bisection.add(taken, bool(expected(taken, a, b)), opposite)
            taken_by_confidence.append(bisection.trials)
        trials.append(taken_by_confidence)
        named += set(bisection.best.units) == ({a} if kind == "one" else {a, b})
    usual, sooner = np.mean(trials, axis=0)

    assert named >= 0.9 * SEEDS
    assert usual - sooner > 1 if fewer else abs(usual - sooner) < 1


def mask(units: int, *taken: int) -> np.ndarray:
    return np.isin(np.arange(units), taken)


def test_builds_that_nobody_mixed_say_whom_to_suspect_first():
    seen = [Seen(mask(8, 2, 5), True, mask(8)), Seen(mask(8, 5, 6), False, mask(8))]

    guilt = Bisection(np.ones(8), seen=seen).guilt

    assert guilt.argmax() == 2 and guilt[2] > 2 * np.delete(guilt, 2).max()


def test_a_bad_build_with_a_third_choice_speaks_neither_for_a_unit_nor_against_it():
    """Layers may have several bad tactics: what has another one than the bad build says nothing of this one's."""
    bad_with, third = Seen(mask(8, 2, 5), True, mask(8)), mask(8, 2)
    others = [Seen(mask(8, 6), True, third), Seen(mask(8, 7), True, third)]
    taken_for_good = [bad_with, *(seen._replace(other=mask(8)) for seen in others)]

    told, untold = (Bisection(np.ones(8), seen=seen).guilt for seen in ([bad_with, *others], taken_for_good))

    assert told[2] > 2 * untold[2]
    assert told[2] > 4 * told[5]  # which both bad builds lack
