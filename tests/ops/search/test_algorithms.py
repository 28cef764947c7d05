"""The searches of trtops/ops/search/algorithms.py, on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.ops.search import algorithms


class Oracle:
    """Answers lazily whether a set contains one of the culprits, and remembers what it was asked."""

    def __init__(self, *culprits: Iterable[int]) -> None:
        self.culprits = [frozenset(c) for c in culprits]
        self.asked: list[frozenset[int]] = []

    def fails(self, items: frozenset[int]) -> bool:
        return any(c <= items for c in self.culprits)

    def __call__(self, candidates: Sequence[frozenset[int]]) -> Iterator[bool]:
        for candidate in candidates:
            self.asked.append(candidate)
            yield self.fails(candidate)


class Threshold:
    """Numbers from a threshold on fail."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.rounds = 0
        self.asked: list[int] = []

    def __call__(self, numbers: Sequence[int]) -> list[bool]:
        self.rounds += 1
        self.asked += numbers
        return [n >= self.threshold for n in numbers]


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 8))
def test_bisect_and_linear_find_the_smallest_failing_number(low: int, length: int, width: int):
    high = low + length
    for threshold in {low + 1, low + (length + 1) // 2, high}:
        assert algorithms.bisect(Threshold(threshold), low, high, width) == threshold
        assert algorithms.linear(Threshold(threshold), low, high, width) == threshold


def test_bisect_asks_a_logarithmic_number_of_questions_and_fewer_rounds_when_several_are_asked_at_a_time():
    one_by_one, by_three = Threshold(777), Threshold(777)

    algorithms.bisect(one_by_one, 0, 1024)
    algorithms.bisect(by_three, 0, 1024, width=3)

    assert len(one_by_one.asked) <= 10
    assert by_three.rounds <= 5


def test_bisect_ends_at_a_change_from_passing_to_failing_where_failures_are_not_monotone():
    failing = {3, 4, 9, 10, 11, 15}

    found = algorithms.bisect(lambda numbers: [n in failing for n in numbers], 0, 15)

    assert found in failing and found - 1 not in failing


def test_linear_finds_the_smallest_failing_number_where_bisect_would_miss_it():
    failing = {3, 15}

    assert algorithms.linear(lambda numbers: [n in failing for n in numbers], 0, 15) == 3


def test_first_failing_asks_nothing_more_once_a_lazy_answer_was_yes():
    oracle = Oracle({2})
    sets = [frozenset({i}) for i in range(6)]

    assert algorithms.first_failing(oracle, sets, width=6) == {2}
    assert oracle.asked == sets[:3]


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), st.integers(1, 5))
def test_halving_ends_at_the_one_failing_number(case: tuple[int, int], width: int):
    length, culprit = case
    asked = []

    def ask(intervals: Sequence[tuple[int, int]]) -> Iterator[bool]:
        for low, high in intervals:
            asked.append((low, high))
            yield low <= culprit < high

    assert algorithms.halve(ask, (0, length), width) == (culprit, culprit + 1)
    assert len(asked) <= math.ceil(math.log2(length)) + 1


@given(st.sets(st.integers(0, 63), min_size=2, max_size=5), st.integers(1, 5))
def test_halving_ends_where_neither_half_fails_alone(culprit: set[int], width: int):
    def fails(interval: tuple[int, int]) -> bool:
        return culprit <= set(range(*interval))

    low, high = algorithms.halve(lambda intervals: map(fails, intervals), (0, 64), width)

    middle = (low + high) // 2
    assert fails((low, high)) and not fails((low, middle)) and not fails((middle, high))


def test_halving_finds_a_short_failure_where_long_intervals_fail_for_another_reason():
    def fails(interval: tuple[int, int]) -> bool:
        low, high = interval
        return low <= 133 < high or high - low > 110

    assert algorithms.halve(lambda intervals: map(fails, intervals), (0, 202)) == (133, 134)


@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=6)))
)
def test_ddmin_finds_exactly_the_items_that_fail_only_together(case: tuple[int, set[int]]):
    count, culprit = case

    assert algorithms.ddmin(Oracle(culprit), range(count)) == sorted(culprit)


@given(st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 5))
def test_ddmin_gives_something_1_minimal_and_proved_so_by_its_own_questions(culprits: list[set[int]], width: int):
    oracle = Oracle(*culprits)

    found = frozenset(algorithms.ddmin(oracle, range(12), width))

    assert oracle.fails(found)
    for item in found:
        without = found - {item}
        assert not oracle.fails(without)
        assert not without or without in oracle.asked


@given(st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 5))
def test_the_quick_way_gives_something_1_minimal_too(culprits: list[set[int]], width: int):
    oracle = Oracle(*culprits)

    found = frozenset(algorithms.smallest(oracle, range(12), width))

    assert oracle.fails(found)
    for item in found:
        assert not oracle.fails(found - {item})
        assert not found - {item} or found - {item} in oracle.asked


def test_the_quick_way_asks_far_less_where_what_is_needed_lies_far_apart():
    quick, plain = Oracle({3, 90, 199}), Oracle({3, 90, 199})

    assert algorithms.smallest(quick, range(200)) == algorithms.ddmin(plain, range(200)) == [3, 90, 199]
    assert len(set(quick.asked)) < len(set(plain.asked)) / 2


@given(st.sets(st.frozensets(st.integers(0, 6)), max_size=40))
def test_the_quick_way_is_1_minimal_for_any_failure_whatever(failing: set[frozenset[int]]):
    def ask(sets: Sequence[frozenset[int]]) -> list[bool]:
        return [s in failing or len(s) == 7 for s in sets]

    found = frozenset(algorithms.smallest(ask, range(7)))

    assert ask([found]) == [True]
    assert not any(ask([found - {item}])[0] for item in found if len(found) > 1)


def test_ddmin_is_1_minimal_for_failures_that_are_not_monotone():
    def fails(items: frozenset[int]) -> bool:
        return len(items) % 2 == 0 and {3, 7} <= items

    found = frozenset(algorithms.ddmin(lambda sets: [fails(s) for s in sets], range(10)))

    assert fails(found)
    assert not any(fails(found - {item}) for item in found)


@given(st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=3), min_size=1, max_size=4))
def test_find_all_finds_every_smallest_failing_set_and_nothing_else(culprits: list[set[int]]):
    oracle = Oracle(*culprits)
    smallest = {c for c in oracle.culprits if not any(other < c for other in oracle.culprits)}

    found = list(
        algorithms.find_all(oracle, range(9), lambda items: frozenset(algorithms.ddmin(oracle, sorted(items))))
    )

    assert len(found) == len(set(found))
    assert set(found) == smallest


@pytest.mark.parametrize("count", [1, 5])
def test_find_all_asks_one_question_for_each_independent_culprit(count: int):
    oracle = Oracle(*({10 * i} for i in range(count)))

    found = list(algorithms.find_all(oracle, range(100), lambda items: next(c for c in oracle.culprits if c <= items)))

    assert len(found) == count
    assert len(oracle.asked) == count
