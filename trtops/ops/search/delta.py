"""Delta debugging: find a smallest set of items for which a test holds.

The searches of reduce and precision differ only in their test. Reduce tests whether a set of nodes still fails;
precision tests whether a model is accurate enough with a set of nodes in FP32. Both number their items from 0.

A test is *monotone* if it holds for every superset of a set for which it holds. Promises in this module hold for any
test unless they mention monotone tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

Items: TypeAlias = frozenset[int]
Mode: TypeAlias = Literal["bisect", "linear"]
Evaluate: TypeAlias = "Callable[[Callable[[Items], bool], Sequence[Items]], Iterable[Any]]"
"""Like the built-in ``map``: calls a function with each set and returns the results in order, in any threads."""


class OutOfTestsError(Exception):
    """The maximum number of tests is reached."""


class Search:
    """Tests sets of items, each set at most once.

    Attributes:
        known: Results so far, by set.
        tests: Number of tests run.
    """

    def __init__(
        self, test: Callable[[Items], bool], *, max_tests: int | None = None, width: int = 1, evaluate: Evaluate = map
    ) -> None:
        """Prepare a search.

        Args:
            test: Returns whether a set has the property. It is never called with the empty set.
            max_tests: Maximum number of tests; None for no limit.
            width: Number of sets tested at the same time.
            evaluate: Runs tests, at most ``width`` in one call.
        """
        self.known: dict[Items, bool] = {}
        self.tests = 0
        self._test = test
        self._max_tests = max_tests
        self._width = width
        self._evaluate = evaluate

    def ask(self, sets: Sequence[Items]) -> Iterator[bool]:
        """Yield for each set whether the test holds. With a width of 1, sets are tested as they are consumed.

        Raises:
            OutOfTestsError: If a result is unknown and no more tests may run.
        """
        if self._width > 1:
            self._run([each for each in dict.fromkeys(sets) if each and each not in self.known])
        for each in sets:
            if each and each not in self.known:
                self._run([each])
                if each not in self.known:
                    raise OutOfTestsError
            yield bool(each) and self.known[each]

    def _run(self, sets: Sequence[Items]) -> None:
        if self._max_tests is not None:
            sets = sets[: max(self._max_tests - self.tests, 0)]
        for each, holds in zip(sets, self._evaluate(self._test, sets), strict=True):
            self.known[each] = holds
            self.tests += 1

    def holds(self, items: Iterable[int]) -> bool:
        """Whether the test holds for one set."""
        return next(self.ask([frozenset(items)]))

    def first(self, sets: Iterable[Items]) -> Items | None:
        """The first set for which the test holds, if any."""
        remaining = iter(sets)
        while batch := list(islice(remaining, self._width)):
            for each, holds in zip(batch, self.ask(batch)):
                if holds:
                    return each
        return None

    def least(self, at: Callable[[int], Iterable[int]], high: int, mode: Mode = "bisect") -> int:
        """A number for whose set the test holds while it does not hold for the number below.

        For monotone tests this is the smallest such number. ``linear`` finds the smallest for any test.

        Args:
            at: Makes the set of a number.
            high: The largest number; its set is taken to hold. The set of 0 is taken not to hold. Neither is tested.
            mode: ``bisect`` tests about ``log2(high)`` sets; ``linear`` tests one number after the other, from 1.
        """
        low = 0
        while high - low > 1:
            if mode == "linear":
                numbers = list(range(low + 1, min(low + 1 + self._width, high)))
            else:
                parts = min(self._width + 1, high - low)
                numbers = [low + (high - low) * i // parts for i in range(1, parts)]
            for number, holds in zip(numbers, self.ask([frozenset(at(number)) for number in numbers])):
                if holds:
                    high = number
                    break
                low = number
        return high

    def halve(self, items: Sequence[int]) -> tuple[int, int]:
        """A range of positions for which the test holds while it holds for neither half, or a range of length one.

        A single needed item is found with about ``log2(len(items))`` tests: if the first half does not hold, the second
        half is taken to hold, and is only tested if the search finds nothing in it.

        Args:
            items: The items; the test is taken to hold for all of them.
        """

        def sets(ranges: Iterable[tuple[int, int]]) -> list[Items]:
            return [frozenset(items[low:high]) for low, high in ranges]

        path = [(0, len(items))]  # the test holds for the first; each later range is the second half of the one before
        while path[-1][1] - path[-1][0] > 1:
            ahead: list[tuple[int, int]] = []
            low, high = path[-1]
            while high - low > 1 and len(ahead) < self._width:
                low = (low + high) // 2
                ahead.append((low, high))
            firsts = [(low, middle) for (low, _), (middle, _) in zip([path[-1], *ahead], ahead)]
            holding = next((half for half, holds in zip(firsts, self.ask(sets(firsts))) if holds), None)
            path = [*path, *ahead] if holding is None else [holding]
        if len(path) == 1 or self.holds(sets(path[-1:])[0]):
            return path[-1]
        # Numbered from the end: the test does not hold for the last range, and holds for the first.
        last = len(path) - 1
        return path[last - self.least(lambda number: sets([path[last - number]])[0], last)]

    def smallest(self, items: Sequence[int]) -> list[int]:
        """A part of ``items`` for which the test holds and from which no single item can be left out, in their order.

        This is Junker's QuickXplain ("Preferred explanations and relaxations for over-constrained problems", AAAI
        2004), which needs about ``2k log2(n / k) + 2k`` tests for ``k`` of ``n`` items if the test is monotone. Its
        answer is then checked by :meth:`thin`, which also covers other tests.

        Args:
            items: The items; the test is taken to hold for all of them.
        """

        def needed(base: list[int], changed: bool, among: list[int]) -> list[int]:
            if changed and base and self.holds(base):
                return []
            if len(among) == 1:
                return among
            first, second = among[: len(among) // 2], among[len(among) // 2 :]
            of_second = needed(base + first, True, second)
            return needed(base + of_second, bool(of_second), first) + of_second

        found = needed([], False, list(items))
        if len(found) < len(items) and self.holds(found):
            return self.thin(found, 1)
        return self.thin(list(items), len(items) // 2)

    def thin(self, items: list[int], size: int) -> list[int]:
        """Leave out chunks as long as the test holds for the rest, in the end of one item each.

        Zeller and Hildebrandt's ddmin (IEEE TSE 28(2), 2002) without tests of single chunks, and without starting over
        after each chunk: about two tests per item where many items are needed.

        Args:
            items: The items; the test is taken to hold for all of them.
            size: Size of the first chunks.

        Returns:
            A part for which the test holds. Every set of it without one item was tested and does not hold.
        """
        size = max(size, 1)
        while True:
            before = end = len(items)
            while end > 0:
                ends = range(end, max(end - size * self._width, 0), -size)
                rests = {stop: items[: max(stop - size, 0)] + items[stop:] for stop in ends}
                answers = zip(rests, self.ask([frozenset(rest) for rest in rests.values()]))
                found = next((stop for stop, holds in answers if holds), None)
                end = max((min(ends) if found is None else found) - size, 0)
                items = items if found is None else rests[found]
            if size == 1 and len(items) == before:
                return items
            size = max(size // 2, 1)
