"""What the data of a comparison never exercises: an error there cannot be seen, whatever the verdict."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, holds_strings, to_numpy
from trtops.comparator.report import Outputs, iterations_of
from trtops.tables import listed

if TYPE_CHECKING:
    from trtops.backend.base import Feed

# Share of values at the ends of an output's range above which it counts as saturated, and the fewest values for that.
_SATURATED, _MIN_VALUES = 0.99, 16
_MAX_LISTED_NAMES = 4  # names in a phrase
_MOST_ROWS = 1 << 14  # of a feed, up to which equal ones are counted once


@dataclass
class _Values:
    """Range, ends and oddities of a tensor's values, over any number of arrays."""

    kind: str = ""  # numpy's kind; "f" for types of ml_dtypes too
    elements: int = 0
    not_finite: int = 0
    low: float = np.inf
    high: float = -np.inf
    at_low: int = 0
    at_high: int = 0
    texts: set[Any] = field(default_factory=set)  # up to two different ones

    def add(self, array: Array) -> None:
        self.elements += array.size
        if holds_strings(array):
            self.kind = "U"
            self.texts.update(itertools.islice(set(array.flat) - self.texts, 2))
            return
        self.kind = "f" if array.dtype.kind == "V" else array.dtype.kind
        values = array.astype(np.float32) if array.dtype.kind == "V" else array
        if self.kind == "f":
            finite = np.isfinite(values)
            self.not_finite += values.size - int(finite.sum())
            values = values if finite.all() else values[finite]
        if not values.size:
            return
        low, high = values.min(), values.max()
        if low < self.low:
            self.low, self.at_low = low.item(), 0
        if high > self.high:
            self.high, self.at_high = high.item(), 0
        self.at_low += int(np.count_nonzero(values == self.low))
        self.at_high += int(np.count_nonzero(values == self.high))

    @property
    def constant(self) -> bool:
        if self.kind == "U":
            return len(self.texts) == 1
        return self.elements > 1 and not self.not_finite and self.low == self.high

    @property
    def varied(self) -> bool:
        return self.kind == "f" and self.low < self.high

    @property
    def saturated(self) -> bool:
        enough = self.varied and self.elements >= _MIN_VALUES
        return enough and self.at_low + self.at_high > _SATURATED * self.elements


class Covered:
    """Collects the coverage of feeds, one after the other."""

    def __init__(self) -> None:
        self.feeds = 0
        # Rows along the first axis of the first input that has one, of all feeds; a feed without any is one row.
        self.rows = 0
        self._different: set[bytes] = set()  # digests of rows
        self._uncounted = 0  # rows of long feeds, taken as different
        self._sizes: list[int | None] = []  # numbers of rows of the feeds
        self._inputs: dict[str, _Values] = {}

    def add(self, feed: Feed) -> None:
        """Add one feed; its arrays are read and not kept."""
        arrays = {}
        for name, array in feed.items():
            with contextlib.suppress(errors.ComparisonError):  # a runner says what is wrong with it
                arrays[name] = to_numpy(array, name)
        for name, array in arrays.items():
            self._inputs.setdefault(name, _Values()).add(array)
        size = next((array.shape[0] for array in arrays.values() if array.ndim), None)
        self.feeds += 1
        self.rows += 1 if size is None else size
        self._sizes.append(size)
        if size is not None and size > _MOST_ROWS:
            self._uncounted += size
        else:
            for row in range(1 if size is None else size):
                parts = (
                    array[row : row + 1] if array.ndim and len(array) == size else array for array in arrays.values()
                )
                self._different.add(b"".join(map(_digest, parts)))

    @property
    def samples(self) -> int:
        """The number of different rows."""
        return len(self._different) + self._uncounted

    def constant_outputs(self, golden: Outputs) -> tuple[str, ...]:
        """The golden outputs, if none of them varies: each has one value, or the same ones for different samples."""
        iterations = iterations_of(golden, "golden")
        if not iterations or not self._inputs:
            return ()
        names = []
        for name, array in iterations[0].items():
            if np.size(array):
                names.append(name)
                if self._varies([to_numpy(outputs[name], name) for outputs in iterations if name in outputs]):
                    return ()
        return tuple(names)

    def _varies(self, arrays: Sequence[Array]) -> bool:
        """Whether an output has different values, of different rows if there are any."""
        values, count, results = _Values(), 0, set[bytes]()
        for array, size in zip(arrays, self._sizes):
            values.add(array)
            by_row = array.ndim > 0 and len(array) == size
            if by_row and (array[1:] != array[:1]).any():
                count = 0
                break
            count += len(array) if by_row else 1
            results.add(_digest(array[:1] if by_row else array))
        if values.constant:
            return False
        return count < 2 or len(results) > 1 or self.samples == 1

    def blind(self, golden: Outputs) -> tuple[str, ...]:
        """What an error could hide behind, in phrases, from the feeds so far and the golden outputs.

        Inputs that vary but never change their sign, constant ones, and outputs that are constant, saturated, empty or
        not finite; NaN and infinity do not count as values.
        """
        outputs: dict[str, _Values] = {}
        for iteration in iterations_of(golden, "golden"):
            for name, array in iteration.items():
                outputs.setdefault(name, _Values()).add(to_numpy(array, name))
        phrases: list[str] = []
        phrases += _phrase("blind to negative values of {}", self._inputs, lambda v: v.varied and v.low >= 0)
        phrases += _phrase("blind to positive values of {}", self._inputs, lambda v: v.varied and v.high <= 0)
        phrases += _phrase("{} constant", self._inputs, lambda v: v.kind == "f" and v.low == v.high)
        for name, values in self._inputs.items():
            if values.kind in "iub" and values.constant:
                phrases.append(f"`{name}` is always {int(values.low)}")
        phrases += _phrase("output{} constant on this data", outputs, lambda v: v.constant)
        at_ends = "output{} at one end of its range in more than 99 % of the values"
        phrases += _phrase(at_ends, outputs, lambda v: v.saturated)
        phrases += _phrase("output{} without elements", outputs, lambda v: not v.elements)
        phrases += _phrase("output{} not finite everywhere", outputs, lambda v: v.not_finite > 0)
        if self.feeds == 1:
            phrases.append("one feed: a stale output cannot be seen")
        if max((size or 0 for size in self._sizes), default=0) == 1:
            phrases.append("batch 1 only")
        return tuple(phrases)


def _digest(array: Array) -> bytes:
    """A digest of the content and shape of an array."""
    values = array.astype(str) if holds_strings(array) else array
    return hashlib.blake2b(values.tobytes(), digest_size=16, salt=str(array.shape)[:16].encode()).digest()


def _phrase(phrase: str, tensors: Mapping[str, _Values], applies: Callable[[_Values], bool]) -> list[str]:
    """The phrase with the names of the tensors that it applies to, if there are any; behind "output" also the verb."""
    quoted = [f"`{name}`" for name, values in tensors.items() if applies(values)]
    shown = listed(quoted, _MAX_LISTED_NAMES)
    if phrase.startswith("output"):
        shown = f" {shown} is" if len(quoted) == 1 else f"s {shown} are"
    return [phrase.format(shown)] if quoted else []
