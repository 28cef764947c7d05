"""Bisections with planted culprits, and with verdicts that do not depend on the units."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.long_runs import amount
from trtops.tactics.bisection import Bisection, CulpritSearch, TrialResult
from trtops.tactics.contributions import find_sum

SEEDS = amount(60, in_every_run=15)
LIMIT = 80
ERROR = ("error", "max_abs")
Bad = Callable[[np.random.Generator, np.ndarray, int], bool]


def played(seed: int, units: int, bad: Bad) -> Bisection:
    """A bisection that is decided as soon as possible."""
    rng = np.random.default_rng(10_000 + seed)
    bisection = Bisection(units, seed)
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
        ("one", 6, 0.0, 1.0, 10, 60),
        ("one", 30, 0.0, 1.0, 13, 60),
        ("one", 120, 0.0, 1.0, 15, 60),
        ("one", 30, 0.05, 1.0, 18, 57),
        ("one", 30, 0.0, 0.6, 40, 55),
        ("together", 30, 0.0, 1.0, 26, 57),
        ("either", 30, 0.0, 1.0, 26, 57),
        ("together", 5, 0.0, 1.0, 18, 57),
        ("either", 5, 0.05, 1.0, 25, 55),
    ],
)
def test_planted_culprits_are_named_within_few_trials(kind, units, wrong, fails, median, right):
    trials, named = [], 0
    for seed in range(SEEDS):
        a, b = culprits(seed, units)

        def bad(rng: np.random.Generator, taken: np.ndarray, _: int, a: int = a, b: int = b) -> bool:
            return bool((EXPECTED[kind](taken, a, b) and rng.random() < fails) ^ (rng.random() < wrong))

        answer = played(seed, units, bad)
        trials.append(answer.trials)
        expected = {"one": ((a,),), "together": ((a, b),), "either": ((a,), (b,))}[kind]
        named += answer.decided() == "confirmed" and answer.best.clauses == expected

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
def test_chance_is_seldom_blamed_on_units(bad):
    bisections = amount(100, in_every_run=20)
    outcomes = Counter(played(seed, 12, bad).decided() for seed in range(bisections))

    # One in twenty at most, and what chance adds to that.
    assert outcomes["confirmed"] <= 0.05 * bisections + 2 * (0.05 * 0.95 * bisections) ** 0.5
    assert outcomes["chance"] >= 0.6 * bisections


def test_e_value_has_mean_one_over_the_coin():
    """Exactly, over all falls of the coin, for a few sequences of verdicts."""
    for verdicts in ((True, False, True), (False, False, False), (True, True, False)):
        values = []
        for falls in itertools.product((False, True), repeat=len(verdicts)):
            bisection = Bisection(4)
            for verdict, fall in zip(verdicts, falls):
                first, second = sorted(bisection.next(), key=lambda taken: taken.tolist())
                bisection.add(*((first, verdict, second) if fall else (second, verdict, first)))
            values.append(math.exp(bisection.log_e_value))

        assert np.mean(values) == pytest.approx(1.0, rel=1e-9)


def test_two_of_four_is_an_unresolved_combination():
    decisions: Counter[str | None] = Counter()
    for seed in range(10):
        answer = played(seed, 12, lambda rng, taken, _: bool(taken[:4].sum() >= 2))
        decisions[answer.decided()] += 1
        if answer.decided() == "combination":
            assert set(np.flatnonzero(answer.probabilities >= 0.5).tolist()) <= {0, 1, 2, 3}

    assert decisions["combination"] >= 5
    assert decisions["chance"] == 0


def mask(units: int, *taken: int) -> np.ndarray:
    return np.isin(np.arange(units), taken)


@pytest.mark.parametrize(("suspected", "max_trials"), [((3,), 5), ((8, 9), 9)])
def test_suspected_units_cost_one_trial_at_most(suspected, max_trials):
    trials = {}
    for first in (None, mask(30, *suspected)):
        bisection = Bisection(30, 0, first=first)
        bisection.set_repeatability("repeats")
        while bisection.decided() is None:
            taken, _ = bisection.next()
            bisection.add(taken, bool(taken[3]))
        trials[first is None] = bisection.trials
        assert bisection.best.clauses == ((3,),)

    assert trials[False] <= min(max_trials, trials[True] + 1)


def searched(
    search: CulpritSearch, build: Callable[[np.ndarray], TrialResult | None]
) -> tuple[CulpritSearch, list[np.ndarray]]:
    """The search at its end, and the trials it made."""
    masks: list[np.ndarray] = []
    while (taken := search.next()) is not None:
        masks.append(taken)
        if (result := build(taken)) is None:
            break
        search.add(result)
    return search, masks


@pytest.mark.parametrize(
    ("kind", "clauses"), [("one", ((3,),)), ("either", ((3,), (9,))), ("together", ((3, 9),))], ids=EXPECTED
)
def test_search_confirms_what_decides(kind, clauses):
    search = CulpritSearch(mask(20))
    answer, masks = searched(search, lambda taken: TrialResult(taken, bool(EXPECTED[kind](taken, 3, 9))))

    assert answer.outcome == "confirmed"
    assert answer.explanation is not None and answer.explanation.clauses == clauses
    assert answer.explanation.trials == len(masks)


@pytest.mark.parametrize(("units", "max_trials", "searches"), [(20, 7, SEEDS), (100, 9, SEEDS), (400, 12, SEEDS // 3)])
def test_equal_errors_replace_the_coin(units, max_trials, searches):
    trials = []
    for seed in range(searches):
        culprit, _ = culprits(seed, units)
        small = np.random.default_rng(seed).random(units) / units

        def build(taken: np.ndarray, culprit: int = culprit, small: np.ndarray = small) -> TrialResult:
            return TrialResult(taken, bool(taken[culprit]), {ERROR: float(small @ taken) + 9 * taken[culprit]})

        ends = build(mask(units)), build(~mask(units))
        search = CulpritSearch(mask(units), (ends[0].errors, ends[1].errors), seed=seed)
        answer, _ = searched(search, build)
        assert answer.explanation.clauses == ((culprit,),)
        trials.append(answer.explanation.trials)

    assert np.median(trials) <= max_trials


def test_errors_that_do_not_repeat_need_the_coin():
    """Whether a build is bad depends on the machine, and so do its errors."""
    named, searches = 0, amount(100, in_every_run=30)
    for seed in range(searches):
        rng = np.random.default_rng(seed)

        def build(taken: np.ndarray, rng: np.random.Generator = rng) -> TrialResult:
            bad = bool(rng.random() < 0.5)
            return TrialResult(taken, bad, {ERROR: float(bad)})

        search = CulpritSearch(mask(12), ({ERROR: 0.0}, {ERROR: 1.0}), seed=seed)
        named += searched(search, build)[0].explanation is not None

    # One in forty at most, and what chance adds to that.
    assert named <= 0.025 * searches + 2 * (0.025 * searches) ** 0.5


def test_verdicts_against_equal_errors_need_the_coin():
    """Errors repeat and follow one unit; every fourth verdict says the opposite."""
    named, counts = 0, Counter[str]()
    for seed in range(amount(40, in_every_run=12)):
        rng = np.random.default_rng(seed)

        def build(taken: np.ndarray, rng: np.random.Generator = rng) -> TrialResult:
            errors = {ERROR: 1.0 + 9 * taken[3], ("other",): 0.1 * taken.sum()}
            return TrialResult(taken, bool(taken[3] ^ (rng.random() < 0.25)), errors)

        ends = {ERROR: 1.0, ("other",): 0.0}, {ERROR: 10.0, ("other",): 1.2}
        result = searched(CulpritSearch(mask(12), ends, seed=seed), build)[0]
        counts[result.repeatability] += 1
        named += result.explanation is not None and result.explanation.clauses != ((3,),)

    assert counts["contradicted"] > 0.6 * counts.total()
    assert named <= 1


def test_held_units_are_checked_first():
    held = mask(10, 4)
    answer, masks = searched(CulpritSearch(held), lambda taken: TrialResult(taken, bool(taken[4] and taken[7])))
    enough, tried = searched(CulpritSearch(held), lambda taken: TrialResult(taken, bool(taken[4])))

    assert all(taken[4] for taken in masks)
    assert answer.explanation.clauses == ((7,),) and masks[0].sum() == 1
    assert (enough.outcome, len(tried)) == ("sufficient", 2)


@pytest.mark.parametrize(
    ("build", "outcome"),
    [
        (lambda taken: None, "undecided"),
        (lambda taken: TrialResult(None, False), "undecided"),
        (lambda taken: TrialResult(taken, False), "units missing"),
    ],
    ids=["budget", "not built as wanted", "always good"],
)
def test_searches_without_culprits_end(build, outcome):
    answer, masks = searched(CulpritSearch(mask(6)), build)

    assert answer.outcome == outcome and answer.explanation is None
    assert len(masks) < LIMIT


def test_trials_that_stray_are_not_repeated():
    def build(taken: np.ndarray) -> TrialResult:
        got = taken.copy()
        got[1] = got[0]  # a layer that follows another one
        return TrialResult(got, bool(got[4]))

    answer, masks = searched(CulpritSearch(mask(8)), build)

    strayed = [tuple(taken) for taken in masks if taken[0] != taken[1]]
    assert answer.explanation.clauses == ((4,),)
    assert len(set(strayed)) == len(strayed)


@pytest.mark.parametrize(("parts", "decides"), [((10.0, 1.0, 0.5), True), ((10.0, 4.0, 3.0), False)])
def test_choice_decides_if_others_stay_below_the_limit(parts, decides):
    # All mixtures but the one of both others, which may be bad without the first.
    taken = np.array(
        [
            combination
            for combination in itertools.product((False, True), repeat=3)
            if combination != (False, True, True)
        ]
    )

    error_sum = find_sum(taken, 10 + taken @ np.array(parts), taken[:, 0])

    assert error_sum is not None
    assert (error_sum.log_odds <= -1000) == decides
