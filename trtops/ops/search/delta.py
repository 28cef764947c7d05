"""Delta debugging: find a smallest set of items with a property, and keep the answers in a debug replay.

The searches of reduce and precision differ only in their test. Reduce tests whether a set of nodes still fails;
precision tests whether a model is accurate enough with a set of nodes in FP32. Both number their items from 0. Promises
hold for any test unless they mention *monotone* ones, which hold for every superset of a set for which they hold.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.json import Decoder, Encoder, load_json, save_json
from trtops.ops.search.submodel import CheckOutcome, CheckVerdict
from trtops.record import Record

log = logging.getLogger(__name__)

Items: TypeAlias = frozenset[int]
Mode: TypeAlias = Literal["bisect", "linear"]


class OutOfTestsError(Exception):
    """The maximum number of tests is reached."""


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """The answer for one set of items."""

    number: int  # from 1, including the answers of the search that is resumed
    stage: str  # of the search, such as "whole" or "halves"
    items: str  # ranges: "0-4,9"
    size: int  # number of nodes in the set
    verdict: CheckVerdict
    seconds: float
    detail: str = ""
    excess: float | None = None  # largest error as a multiple of the tolerances, if it was measured


@dataclass
class IterationContext:
    """One answer of a debug replay; name and fields are Polygraphy's."""

    state: dict[str, Any] = field(default_factory=dict)
    iteration_info: dict[str, Any] = field(default_factory=dict)
    success: bool = True


Encoder.register(IterationContext)(lambda context: dict(vars(context)))
Decoder.register(IterationContext)(
    lambda members: IterationContext(members["state"], members["iteration_info"], members["success"])
)


def load_replay(path: str | Path) -> dict[str, IterationContext]:
    """Read a replay; FormatError if the file is not one, ConfigError if it does not exist."""
    try:
        replay = load_json(path, "debug replay")
    except FileNotFoundError:
        raise errors.ConfigError(f"Debug replay {str(path)!r} does not exist.") from None
    if not isinstance(replay, dict) or not all(isinstance(c, IterationContext) for c in replay.values()):
        raise errors.FormatError(f"{path} is not a debug replay; expected an object of IterationContext by _N<index>.")
    return replay


def save_replay(replay: Mapping[str, IterationContext], path: str | Path) -> None:
    """Write a replay, a JSON object of answers by question as in Polygraphy."""
    save_json(dict(replay), path)


@dataclass
class Search:
    """Tests sets of items, each set at most once, and keeps the answers in a debug replay.

    Attributes:
        test: Gives the verdict of a set.
        holds_if: The verdict of the sets that are searched.
        max_tests: Maximum number of tests.
        size: The size of a set in its step.
        progress: Called after each test.
    """

    test: Callable[[Items], object]
    holds_if: CheckVerdict = "pass"
    max_tests: int | None = None
    size: Callable[[Items], int] = len
    progress: Callable[[Step], None] | None = None

    def __post_init__(self) -> None:
        self.steps: list[Step] = []  # those of a resumed search first
        self.answers: dict[Items, Step] = {}
        self.resumed = 0  # answers that were read from a replay
        self.stage = "whole"  # what steps are labeled with
        self._replay: dict[str, IterationContext] = {}
        self._save_replay: str | None = None
        self._depends_on: dict[str, str] = {}

    @property
    def tests(self) -> int:
        """Number of tests run."""
        return len(self.steps) - self.resumed

    def use_replays(self, load: str | None, save: str | None, count: int, depends_on: Mapping[str, str]) -> None:
        """Take the answers of an earlier search of ``count`` items, and write all answers to a file after each test.

        ``depends_on`` is what the answers depend on, such as the model's digest, by name. ConfigError if the replay
        does not exist, or is of another tool, model, check or data; FormatError if it is damaged.
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
            items: set[int] = set()
            for run in filter(None, step.items.split(",")):
                ends = run.split("-")
                # A replay may come from another machine, or have been edited.
                if not all(end.isdigit() and int(end) < count for end in ends):
                    raise errors.FormatError(f"{load}: {step.items!r} are not nodes of this model. It is damaged.")
                items.update(range(int(ends[0]), int(ends[-1]) + 1))
            self._keep(frozenset(items), step)
        self.resumed = len(self.steps)

    def _keep(self, items: Items, step: Step) -> None:
        state = {"step": step.to_dict()} | ({} if self.steps else {"depends_on": self._depends_on})
        self._replay[f"_N{len(self.steps)}"] = IterationContext(
            state, {"iteration": len(self.steps)}, step.verdict == "pass"
        )
        self.steps.append(step)
        self.answers[items] = step

    def holds(self, items: Iterable[int]) -> bool:
        """Whether the test holds for a set; it is taken not to hold for the empty one.

        OutOfTestsError if the answer is unknown and no more tests may run.
        """
        # No nodes cannot fail, and a model of none could not be written.
        members = frozenset(items)
        return bool(members) and self._answer(members)

    def holds_for_none(self) -> bool:
        """Whether the test holds for the empty set."""
        return self._answer(frozenset())

    def _answer(self, items: Items) -> bool:
        """Whether the test holds for a set; its answer is kept."""
        if items not in self.answers:
            if self.max_tests is not None and self.tests >= self.max_tests:
                raise OutOfTestsError
            started = time.perf_counter()
            outcome = CheckOutcome.of(self.test(items))
            step = Step(
                number=len(self.steps) + 1,
                stage=self.stage,
                items=_as_ranges(items),
                size=self.size(items),
                verdict=outcome.verdict,
                seconds=time.perf_counter() - started,
                detail=outcome.detail,
                excess=outcome.excess,
            )
            self._keep(items, step)
            # After each answer, since a check can crash the whole machine and may have taken hours.
            if self._save_replay is not None:
                save_replay(self._replay, self._save_replay)
            log.debug("Check %d (%s): %d nodes, %s", step.number, step.stage, step.size, step.verdict)
            if self.progress is not None:
                self.progress(step)
        return self.answers[items].verdict == self.holds_if

    def smallest_so_far(self) -> Items:
        """The smallest set found with the property."""
        holding = [items for items, step in self.answers.items() if step.verdict == self.holds_if]
        return min(holding, key=lambda items: (self.size(items), sorted(items)))

    def least(self, at: Callable[[int], Iterable[int]], high: int, mode: Mode = "bisect") -> int:
        """A number with the property for its set (``at``), but not for the set of the number below.

        The test is taken to hold for ``high`` and not for 0; neither is tested. ``bisect`` tests about ``log2(high)``
        sets and finds the smallest number for monotone tests; ``linear`` tests one number after the other, from 1.
        """
        if mode == "linear":
            return next((number for number in range(1, high) if self.holds(at(number))), high)
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.holds(at(middle)):
                high = middle
            else:
                low = middle
        return high

    def halve(self, items: Sequence[int]) -> tuple[int, int]:
        """A range of positions with the property, but without it for either half, or a range of length one.

        The test is taken to hold for all items. A single needed item is found with about ``log2(len(items))`` tests.
        """
        # If the first half does not hold, the second half is taken to hold, and only the last range is tested.
        path = [(0, len(items))]  # the test holds for the first; each later range is the second half of the one before
        while path[-1][1] - path[-1][0] > 1:
            low, high = path[-1]
            middle = (low + high) // 2
            if self.holds(items[low:middle]):
                path = [(low, middle)]
            else:
                path.append((middle, high))
        if len(path) == 1 or self.holds(items[path[-1][0] : path[-1][1]]):
            return path[-1]
        # Numbered from the end: the test does not hold for the last range, and holds for the first.
        last = len(path) - 1
        return path[last - self.least(lambda number: items[slice(*path[last - number])], last)]

    def smallest(self, items: Sequence[int]) -> list[int]:
        """A minimal part of ``items`` with the property, in their order: no single item can be left out.

        The test is taken to hold for all items. Every set of the result without one item was tested and does not hold.
        """
        # Zeller and Hildebrandt's ddmin (IEEE TSE 28(2), 2002) without tests of single chunks, and without starting
        # over after each chunk: about two tests per item where many items are needed. Chunks are left out as long as
        # the test holds for the rest; first halves, in the end single items.
        remaining = list(items)
        size = max(len(remaining) // 2, 1)
        while True:
            before = end = len(remaining)
            while end > 0:
                start = max(end - size, 0)
                if self.holds(rest := remaining[:start] + remaining[end:]):
                    remaining = rest
                end = start
            if size == 1 and len(remaining) == before:
                return remaining
            size = max(size // 2, 1)


def _as_ranges(items: Iterable[int]) -> str:
    """Numbers as text, with runs shortened: ``0-4,9``."""
    # Short, because all answers are written after each one, and a model may have thousands of nodes.
    runs: list[list[int]] = []
    for item in sorted(items):
        if runs and item == runs[-1][1] + 1:
            runs[-1][1] = item
        else:
            runs.append([item, item])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)
