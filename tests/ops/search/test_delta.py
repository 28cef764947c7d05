"""Delta debugging on plain numbers: what is found, and how many tests it takes."""

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.ops.search.delta import Items, Mode, OutOfTestsError, Search


class Oracle:
    """A test that holds for sets that contain one of some sets; records what it is asked."""

    def __init__(self, *needed: Iterable[int]) -> None:
        self.needed = [frozenset(each) for each in needed]
        self.asked: list[Items] = []

    def holds(self, items: Items) -> bool:
        return any(each <= items for each in self.needed)

    def __call__(self, items: Items) -> bool:
        self.asked.append(items)
        return self.holds(items)


def numbered(number: int) -> Items:
    return frozenset([number])


def least(holds: Callable[[int], bool], high: int, mode: Mode = "bisect") -> tuple[int, int]:
    """The number found, and how many tests it took."""
    search = Search(lambda items: holds(*items))
    return search.least(numbered, high, mode), search.tests


@given(st.integers(1, 300))
def test_least_finds_the_threshold_with_few_tests(high: int):
    for threshold in {1, (high + 1) // 2, high}:
        found, tests = least(lambda n, t=threshold: n >= t, high)
        assert found == threshold and tests <= math.ceil(math.log2(high)) + 1
        assert least(lambda n, t=threshold: n >= t, high, "linear")[0] == threshold


def test_least_of_a_test_that_is_not_monotone():
    holding = {3, 4, 9, 10, 11, 15}
    found, _ = least(lambda n: n in holding, 15)
    assert found in holding and found - 1 not in holding
    assert least(lambda n: n in {3, 15}, 15, "linear")[0] == 3


def test_tests_are_limited_and_never_repeated():
    oracle = Oracle({2})
    search = Search(oracle)
    assert [search.holds([i]) for i in (1, 2, 1)] == [False, True, False]
    assert search.holds([2]) and not search.holds([]) and len(oracle.asked) == search.tests == 2

    search = Search(Oracle({0, 50, 99}), max_tests=7)
    with pytest.raises(OutOfTestsError):
        search.smallest(range(100))
    assert search.tests == 7


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_halving_ends_at_the_needed_number(case: tuple[int, int]):
    length, needed = case
    search = Search(Oracle({needed}))

    assert search.halve(range(length)) == (needed, needed + 1)
    assert search.tests <= math.ceil(math.log2(length)) + 1


@given(st.sets(st.integers(0, 63), min_size=2, max_size=5))
def test_halving_ends_where_neither_half_holds(needed: set[int]):
    oracle = Oracle(needed)
    low, high = Search(oracle).halve(range(64))

    middle = (low + high) // 2
    found = [frozenset(range(*ends)) for ends in ((low, high), (low, middle), (middle, high))]
    assert list(map(oracle.holds, found)) == [True, False, False]


def test_halving_finds_a_number_in_long_ranges():
    assert Search(lambda items: 133 in items or len(items) > 110).halve(range(202)) == (133, 134)


@given(st.sets(st.integers(0, 59), min_size=1, max_size=6), st.integers(1, 20))
def test_smallest_finds_exactly_what_is_needed(needed: set[int], more: int):
    assert Search(Oracle(needed)).smallest(range(max(needed) + more)) == sorted(needed)


@given(st.sets(st.frozensets(st.integers(0, 6)), max_size=40))
def test_smallest_is_minimal_for_any_test(holding: set[Items]):
    def holds(items: Items) -> bool:
        return items in holding or len(items) == 7

    found = frozenset(Search(holds).smallest(range(7)))

    assert holds(found)
    assert not any(holds(found - {item}) for item in found if len(found) > 1)


@pytest.mark.parametrize(("needed", "most"), [({3, 90, 199}, 60), (set(range(0, 200, 4)), 500), (set(range(200)), 820)])
def test_smallest_takes_few_tests(needed: set[int], most: int):
    search = Search(Oracle(needed))
    assert search.smallest(range(200)) == sorted(needed)
    assert search.tests < most
