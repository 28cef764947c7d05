"""Delta debugging: find a smallest set of items for which a test holds.

The searches of reduce and precision differ only in their test. Reduce tests whether a set of nodes still fails;
precision tests whether a model is accurate enough with a set of nodes in FP32. Both number their items from 0.

A test is *monotone* if it holds for every superset of a set for which it holds. Promises in this module hold for any
test unless they mention monotone tests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.ops.evaluation.submodel import CheckOutcome, CheckVerdict
from trtops.ops.search.replays import IterationContext, load_replay, save_replay
from trtops.record import Record

log = logging.getLogger(__name__)

Items: TypeAlias = frozenset[int]
Mode: TypeAlias = Literal["bisect", "linear"]
Evaluate: TypeAlias = "Callable[[Callable[[Items], bool], Sequence[Items]], Iterable[Any]]"
"""Like the built-in ``map``: calls a function with each set and returns the results in order, in any threads."""


class OutOfTestsError(Exception):
    """The maximum number of tests is reached."""


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """The answer for one set of items.

    Attributes:
        number: Counts answers from 1, including those of the search that is resumed.
        stage: Stage of the search, such as ``whole`` or ``halves``.
        items: The set as ranges: ``0-4,9``.
        size: Number of nodes in it.
        excess: Largest error as a multiple of the tolerances, if it was measured.
    """

    number: int
    stage: str
    items: str
    size: int
    verdict: CheckVerdict
    seconds: float
    detail: str = ""
    excess: float | None = None


class Search:
    """Tests sets of items, each set at most once, and keeps the answers in a debug replay.

    Attributes:
        steps: All answers in order, those of a resumed search first.
        answers: The same by set.
        resumed: Number of answers that were read from a replay.
        tests: Number of tests run.
        stage: What steps are labeled with.
    """

    def __init__(
        self,
        test: Callable[[Items], object],
        *,
        holds_if: CheckVerdict = "pass",
        max_tests: int | None = None,
        width: int = 1,
        evaluate: Evaluate = map,
        size: Callable[[Items], int] = len,
        progress: Callable[[Step], None] | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            test: Returns what :meth:`CheckOutcome.of` accepts.
            holds_if: The verdict for which the test holds.
            max_tests: Maximum number of tests; None for no limit.
            width: Number of sets tested at the same time.
            evaluate: Runs tests, at most ``width`` in one call.
            size: The size of a set in its step.
            progress: Called after each test, from the thread that ran it.
        """
        self.steps: list[Step] = []
        self.answers: dict[Items, Step] = {}
        self.resumed = 0
        self.tests = 0
        self.stage = "whole"
        self.max_tests = max_tests
        self._test = test
        self._holds_if = holds_if
        self._width = width
        self._evaluate = evaluate
        self._size = size
        self._progress = progress
        self._replay: dict[str, IterationContext] = {}
        self._save_replay: str | None = None
        self._depends_on: dict[str, str] = {}
        self._lock = threading.Lock()

    def use_replays(self, load: str | None, save: str | None, count: int, depends_on: Mapping[str, str]) -> None:
        """Take the answers of an earlier search of ``count`` items, and write all answers to a file after each test.

        ``depends_on`` is what the answers depend on, such as the model's digest, by name.

        Raises:
            ConfigError: If the replay does not exist, or is of another tool, model, check or data.
            FormatError: If it is damaged.
        """
        self._save_replay, self._depends_on = save, dict(depends_on)
        for key, context in ({} if load is None else load_replay(load)).items():
            if "step" not in context.state:
                raise errors.ConfigError(
                    f"{load}: answer {key!r} does not say which nodes were tested; expected a replay saved by trtops. "
                    "Replays of other tools answer other questions: start a new search."
                )
            for name, value in context.state.get("depends_on", {}).items():
                if value != depends_on.get(name):
                    raise errors.ConfigError(
                        f"{load} was begun with {name} {str(value)[:60]!r}; now it is "
                        f"{depends_on.get(name, '')[:60]!r}, so its answers do not hold. Use another replay."
                    )
            step = Step.from_dict(context.state["step"])
            ends = [run.split("-") for run in step.items.split(",") if run]
            if not all(end.isdigit() and int(end) < count for run in ends for end in run):
                raise errors.FormatError(f"{load}: {step.items!r} are not nodes of this model. It is damaged.")
            self._keep(frozenset(item for run in ends for item in range(int(run[0]), int(run[-1]) + 1)), step)
        self.resumed = len(self.steps)

    def _keep(self, items: Items, step: Step) -> None:
        state = {"step": step.to_dict()} | ({} if self.steps else {"depends_on": self._depends_on})
        self._replay[f"_N{len(self.steps)}"] = IterationContext(
            state, {"iteration": len(self.steps)}, step.verdict == "pass"
        )
        self.steps.append(step)
        self.answers[items] = step

    def _answer(self, items: Items) -> bool:
        """Test one set and keep the answer. May run in any thread."""
        started = time.perf_counter()
        outcome = CheckOutcome.of(self._test(items))
        seconds = time.perf_counter() - started
        with self._lock:
            step = Step(
                number=len(self.steps) + 1,
                stage=self.stage,
                items=_as_ranges(items),
                size=self._size(items),
                verdict=outcome.verdict,
                seconds=seconds,
                detail=outcome.detail,
                excess=outcome.excess,
            )
            self._keep(items, step)
            if self._save_replay is not None:
                save_replay(self._replay, self._save_replay)
        log.debug("Check %d (%s): %d nodes, %s, %.3f s", step.number, step.stage, step.size, step.verdict, seconds)
        if self._progress is not None:
            self._progress(step)
        return step.verdict == self._holds_if

    def ask(self, sets: Sequence[Items]) -> Iterator[bool]:
        """Yield for each set whether the test holds. With a width of 1, sets are tested as they are consumed.

        Raises:
            OutOfTestsError: If a result is unknown and no more tests may run.
        """
        if self._width > 1:
            self._run([each for each in dict.fromkeys(sets) if each and each not in self.answers])
        for each in sets:
            if each and each not in self.answers:
                self._run([each])
                if each not in self.answers:
                    raise OutOfTestsError
            yield bool(each) and self.answers[each].verdict == self._holds_if

    def _run(self, sets: Sequence[Items]) -> None:
        if self.max_tests is not None:
            sets = sets[: max(self.max_tests - self.tests, 0)]
        self.tests += len(list(self._evaluate(self._answer, sets)))

    def holds(self, items: Iterable[int]) -> bool:
        """Whether the test holds for one set."""
        return next(self.ask([frozenset(items)]))

    def holds_for_none(self) -> bool:
        """Whether the test holds for the empty set, which is taken not to hold in all other searches."""
        if frozenset() not in self.answers:
            self._run([frozenset()])
        return self.answers[frozenset()].verdict == self._holds_if

    def first(self, sets: Iterable[Items]) -> Items | None:
        """The first set for which the test holds, if any."""
        remaining = iter(sets)
        while batch := list(islice(remaining, self._width)):
            for each, holds in zip(batch, self.ask(batch)):
                if holds:
                    return each
        return None

    def smallest_so_far(self) -> Items:
        """The smallest set for which a test held."""
        holding = [items for items, step in self.answers.items() if step.verdict == self._holds_if]
        return min(holding, key=lambda items: (self._size(items), sorted(items)))

    def least(self, at: Callable[[int], Iterable[int]], high: int, mode: Mode = "bisect") -> int:
        """A number whose set (``at``) has the property while that of the number below does not.

        The test is taken to hold for ``high`` and not for 0; neither is tested. ``bisect`` tests about ``log2(high)``
        sets and finds the smallest number for monotone tests; ``linear`` tests one number after the other, from 1.
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

        The test is taken to hold for all items. A single needed item is found with about ``log2(len(items))`` tests: if
        the first half does not hold, the second half is taken to hold, and is only tested if nothing is found in it.
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

        The test is taken to hold for all items. This is Junker's QuickXplain ("Preferred explanations and relaxations
        for over-constrained problems", AAAI 2004), which needs about ``2k log2(n / k) + 2k`` tests for ``k`` of ``n``
        items if the test is monotone. Its answer is then checked by :meth:`thin`, which also covers other tests.
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
        """Leave out chunks as long as the test holds for the rest; first of a size, in the end of one item each.

        Zeller and Hildebrandt's ddmin (IEEE TSE 28(2), 2002) without tests of single chunks, and without starting over
        after each chunk: about two tests per item where many items are needed. The test is taken to hold for all items.
        Every set of the result without one item was tested and does not hold.
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


def _as_ranges(items: Iterable[int]) -> str:
    """Numbers as text, with runs shortened: ``0-4,9``. A replay of all answers is written after each one."""
    runs: list[list[int]] = []
    for item in sorted(items):
        if runs and item == runs[-1][1] + 1:
            runs[-1][1] = item
        else:
            runs.append([item, item])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)
