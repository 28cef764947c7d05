"""What the data of a comparison never exercises: an error there cannot be seen, whatever the verdict."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, holds_strings, to_numpy
from trtops.comparator.report import Outputs, iterations_of
from trtops.record import Record
from trtops.tables import counted

if TYPE_CHECKING:
    from trtops.backend.base import Feed

# Share of values at the ends of an output's range above which it counts as saturated, and the fewest values for that.
_SATURATED, _MIN_VALUES = 0.99, 16
_SHOWN = 4  # names in a phrase


@dataclass(frozen=True, kw_only=True)
class Coverage(Record):
    """What the data of a comparison exercises; names of inputs and outputs, in their order."""

    feeds: int
    samples: int  # sizes of the first axis of the first input that has one, added up; a feed without any counts as one
    batches: tuple[int, ...] = ()  # the different sizes of that axis
    shapes: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = ()  # the different shapes of each input
    never_negative: tuple[str, ...] = ()  # floating-point inputs that vary
    never_positive: tuple[str, ...] = ()
    constant_inputs: tuple[str, ...] = ()  # floating-point inputs of one value
    single_values: tuple[tuple[str, int], ...] = ()  # integer and boolean inputs of one value, and the value
    constant_outputs: tuple[str, ...] = ()
    saturated_outputs: tuple[str, ...] = ()  # more than 99 % of the values are the smallest or the largest one
    empty_outputs: tuple[str, ...] = ()
    not_finite: tuple[tuple[str, int], ...] = ()  # golden outputs with NaN or infinity, and the number of such values

    @property
    def blind(self) -> tuple[str, ...]:
        """What an error could hide behind, in phrases."""
        outputs = (
            (self.constant_outputs, "{} constant on this data"),
            (self.saturated_outputs, "{} at one end of its range in more than 99 % of the values"),
            (self.empty_outputs, "{} without elements"),
            (tuple(name for name, _ in self.not_finite), "{} not finite everywhere"),
        )
        found = [f"blind to negative values of {_listed(self.never_negative)}"] if self.never_negative else []
        found += [f"blind to positive values of {_listed(self.never_positive)}"] if self.never_positive else []
        found += [f"{_listed(self.constant_inputs)} constant"] if self.constant_inputs else []
        found += [f"`{name}` is always {value}" for name, value in self.single_values]
        for names, phrase in outputs:
            if names:
                found.append(
                    phrase.format(f"output {_listed(names)} is" if len(names) == 1 else f"outputs {_listed(names)} are")
                )
        if self.feeds == 1:
            found.append("one feed: a stale output cannot be seen")
        if self.batches and max(self.batches) == 1:
            found.append("batch 1 only")
        return tuple(found)

    def sentence(self) -> str:
        """The amount of data, followed by what it is blind to."""
        amount = f"Coverage: {counted(self.feeds, 'feed')}, {counted(self.samples, 'sample')}"
        return "; ".join((amount, *self.blind)) + "."


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


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
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)

    def add(self, array: Array) -> None:
        self.shapes[array.shape] = None
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
        return self.elements > 0 and not self.not_finite and self.low == self.high

    @property
    def saturated(self) -> bool:
        varied = self.kind == "f" and self.low < self.high and self.elements >= _MIN_VALUES
        return varied and self.at_low + self.at_high > _SATURATED * self.elements


class Covered:
    """Collects what feeds exercise, one after the other."""

    def __init__(self) -> None:
        """Start without feeds."""
        self._feeds = self._samples = 0
        self._batches: set[int] = set()
        self._inputs: dict[str, _Values] = {}

    def add(self, feed: Feed) -> None:
        """Add one feed; its arrays are read and not kept."""
        arrays = {}
        for name, array in feed.items():
            with contextlib.suppress(errors.ComparisonError):  # a runner says what is wrong with it
                arrays[name] = to_numpy(array, name)
        for name, array in arrays.items():
            self._inputs.setdefault(name, _Values()).add(array)
        sizes = [array.shape[0] for array in arrays.values() if array.ndim]
        self._feeds += 1
        self._samples += sizes[0] if sizes else 1
        self._batches.update(sizes[:1])

    def with_golden(self, golden: Outputs) -> Coverage:
        """The coverage of the feeds so far and of the golden outputs; infinity and NaN do not count as values."""
        outputs: dict[str, _Values] = {}
        for iteration in iterations_of(golden, "golden"):
            for name, array in iteration.items():
                outputs.setdefault(name, _Values()).add(to_numpy(array, name))
        inputs = self._inputs
        floating = {name: values for name, values in inputs.items() if values.kind == "f" and values.low <= values.high}
        varied = {name: values for name, values in floating.items() if values.low < values.high}
        whole = {name: values for name, values in inputs.items() if values.kind in "iub" and values.constant}
        return Coverage(
            feeds=self._feeds,
            samples=self._samples,
            batches=tuple(sorted(self._batches)),
            shapes=tuple((name, tuple(values.shapes)) for name, values in inputs.items()),
            never_negative=tuple(name for name, values in varied.items() if values.low >= 0),
            never_positive=tuple(name for name, values in varied.items() if values.high <= 0),
            constant_inputs=tuple(name for name in floating if name not in varied),
            single_values=tuple((name, int(values.low)) for name, values in whole.items()),
            constant_outputs=tuple(name for name, values in outputs.items() if values.constant),
            saturated_outputs=tuple(name for name, values in outputs.items() if values.saturated),
            empty_outputs=tuple(name for name, values in outputs.items() if not values.elements),
            not_finite=tuple((name, values.not_finite) for name, values in outputs.items() if values.not_finite),
        )
