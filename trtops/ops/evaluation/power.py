"""What a comparison could have seen: faults are planted into the golden outputs, one at a time.

A verdict of ``good`` means little if the comparison reports few of them. They measure the limits. Faults that the data
never brings to an output are not among them: the blind spots of the data (:mod:`trtops.ops.evaluation.coverage`) name
what it leaves unexercised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, is_floating, to_numpy
from trtops.comparator.report import Outputs, Tolerances, compare_outputs, iterations_of
from trtops.ops.evaluation.data import root_mean_square
from trtops.ops.evaluation.evidence import ShapeEntry
from trtops.record import Record
from trtops.tables import markdown_table

FaultKind: TypeAlias = Literal[
    "zeroed channel", "flipped sign", "added offset", "saturated range", "shifted crop", "swapped rows", "stale output"
]
# Why outputs cannot have faults of a kind.
_LACKS: dict[FaultKind, str] = {
    "zeroed channel": "no floating-point output with channels",
    "flipped sign": "no floating-point output with channels",
    "added offset": "no floating-point output with channels",
    "saturated range": "no floating-point output",
    "shifted crop": "no spatial axis or sequence axis",
    "swapped rows": "no batch above 1",
    "stale output": "one feed",
}
_OFFSET = 0.1  # of the output's root mean square
_MAX_DRAWS = 20  # for each fault: a small output has few different ones

_Changes: TypeAlias = dict[tuple[int, str], Array]  # changed outputs, by iteration and name


@dataclass(frozen=True, kw_only=True)
class PlantedFault(Record):
    """One fault, and its detection by the comparison."""

    kind: FaultKind
    location: str  # the output, with the channel, axis, rows or feed
    caught: bool
    changed: bool  # whether the outputs differ from those without the fault


@dataclass(frozen=True, kw_only=True)
class Power(Record):
    """The share of planted faults detected by a comparison on its data and under its limits."""

    planted: tuple[PlantedFault, ...] = ()
    left_out: tuple[tuple[FaultKind, str], ...] = ()  # kinds that the outputs cannot have, and why
    seed: int = 1
    why_not: str = ""  # why nothing could be planted

    @property
    def caught(self) -> int:
        """The number of detected faults."""
        return sum(fault.caught for fault in self.planted)

    @property
    def share(self) -> float | None:
        """The share of detected faults, between 0 and 1; None without faults."""
        return self.caught / len(self.planted) if self.planted else None

    def of(self, kind: FaultKind) -> tuple[PlantedFault, ...]:
        """The planted faults of a kind."""
        return tuple(fault for fault in self.planted if fault.kind == kind)

    def sentence(self, blind: Sequence[str] = ()) -> str:
        """The share, followed by the data's blind spots (:attr:`trtops.ops.evaluation.evidence.Evidence.blind`)."""
        if self.share is None:
            return f"The power of this check is unknown: {self.why_not or 'no fault could be planted'}."
        seen = f"This check sees {self.caught} of {len(self.planted)} faults planted in the outputs ({self.share:.0%})"
        return "; ".join((seen, *blind)) + "."

    def table(self) -> str:
        """A row in Markdown for each kind of fault: the numbers planted and caught, and an example of a missed one."""
        rows: list[tuple[str, ...]] = []
        for kind in get_args(FaultKind):
            if faults := self.of(kind):
                missed = next((fault for fault in faults if not fault.caught), None)
                example = "" if missed is None else missed.location
                if missed is not None and not missed.changed:
                    example += ", which changes no output"
                rows.append((kind, str(len(faults)), str(sum(fault.caught for fault in faults)), example))
        rows += [(kind, "-", "-", f"not planted: {reason}") for kind, reason in self.left_out]
        return markdown_table(("fault", "planted", "seen", "missed, for example"), rows)


def measure_power(
    golden: Outputs, tolerances: Tolerances, shapes: Sequence[ShapeEntry] = (), *, faults: int = 40, seed: int = 1
) -> Power:
    """Plant random faults into golden outputs, one at a time, and count those that the comparison detects.

    Kinds take turns, and small outputs may have fewer places than ``faults``. ``shapes`` are those of the inputs, whose
    feeds an evaluation also compares separately; without them no output has a batch.
    """
    right: list[dict[str, Array]] = []
    groups = [entry.iterations for entry in shapes] if len(shapes) > 1 else []

    def passes(outputs: Sequence[Mapping[str, Array]]) -> bool:
        # As in an evaluation: all feeds together, and those of the same shapes.
        for numbers in (range(len(right)), *groups):
            actual, expected = ([side[number] for number in numbers] for side in (outputs, right))
            if not compare_outputs(actual, expected, tolerances, only_limited=True):
                return False
        return True

    try:
        for outputs in iterations_of(golden, "golden"):
            right.append({name: to_numpy(array, name) for name, array in outputs.items()})
        if not passes(right):  # every fault would look caught
            return Power(seed=seed, why_not="the golden outputs do not pass the comparison with themselves")
    except errors.ComparisonError as exc:
        return Power(seed=seed, why_not=str(exc).rstrip("."))
    fault_kinds = _FaultKinds(right, shapes, np.random.default_rng(seed)).draws()
    planted = []
    for kind, location, changes in _alternating(fault_kinds, faults):
        faulty = list(map(dict, right))
        changed = False
        for (iteration, name), array in changes.items():
            faulty[iteration][name] = array
            changed |= not np.array_equal(array, right[iteration][name], equal_nan=is_floating(array))
        planted.append(PlantedFault(kind=kind, location=location, caught=not passes(faulty), changed=changed))
    left_out = tuple((kind, reason) for kind, reason in _LACKS.items() if kind not in fault_kinds)
    return Power(planted=tuple(planted), left_out=left_out, seed=seed)


def _alternating(
    draws: Mapping[FaultKind, Callable[[], tuple[str, _Changes]]], count: int
) -> Iterator[tuple[FaultKind, str, _Changes]]:
    """Yield up to ``count`` different faults, of each kind in turn; fewer if drawing finds no more."""
    drawn = set[tuple[FaultKind, str]]()
    for kind in itertools.islice(itertools.cycle(draws), _MAX_DRAWS * count):
        if len(drawn) == count:
            break
        location, changes = draws[kind]()
        if (kind, location) not in drawn:
            drawn.add((kind, location))
            yield kind, location, changes


class _FaultKinds:
    """Random faults of golden outputs."""

    def __init__(
        self, golden: Sequence[Mapping[str, Array]], shapes: Sequence[ShapeEntry], random: np.random.Generator
    ) -> None:
        self._golden = golden
        self._random = random
        self._floating, self._with_channels = list[str](), list[str]()
        self._rolled_axes: list[tuple[str, int]] = []
        for name, array in golden[0].items():
            if not array.size:
                continue
            if is_floating(array):
                self._floating.append(name)
                self._with_channels += [name] if array.ndim > 1 else []
            for axis in range(2 if array.ndim > 3 else 1, array.ndim):
                self._rolled_axes += [(name, axis)] if array.shape[axis] > 1 else []
        self._batches: list[tuple[int, list[str], int]] = []  # iteration, outputs with a batch, its size
        for entry in shapes:
            size = next((shape[0] for shape in entry.shapes.values() if shape), 1)
            for iteration in entry.iterations if size > 1 else ():
                names = [name for name, array in golden[iteration].items() if array.ndim and len(array) == size]
                if names:
                    self._batches.append((iteration, names, size))
        self._following: list[tuple[int, str]] = []
        for iteration in range(1, len(golden)):
            self._following += [(iteration, name) for name in golden[iteration] if name in golden[iteration - 1]]

    def draws(self) -> dict[FaultKind, Callable[[], tuple[str, _Changes]]]:
        """Return a function for each possible kind of fault, which draws a random one."""
        draws: dict[FaultKind, Callable[[], tuple[str, _Changes]]] = {}
        if self._with_channels:
            draws["zeroed channel"] = lambda: self._channel(lambda values, _: values * 0)
            draws["flipped sign"] = lambda: self._channel(lambda values, _: -values)
            draws["added offset"] = lambda: self._channel(lambda values, size: values + _OFFSET * size)
        if self._floating:
            draws["saturated range"] = self._saturated
        if self._rolled_axes:
            draws["shifted crop"] = self._shifted
        if self._batches:
            draws["swapped rows"] = self._swapped
        if self._following:
            draws["stale output"] = self._stale
        return draws

    def _pick(self, items: Sequence[Any]) -> Any:
        return items[int(self._random.integers(len(items)))]

    def _of_all_feeds(self, name: str, change: Callable[[Array], Array]) -> _Changes:
        """Change an output of every feed."""
        changes: _Changes = {}
        for iteration, outputs in enumerate(self._golden):
            if name in outputs and outputs[name].size:
                with np.errstate(invalid="ignore", over="ignore"):  # infinity times zero
                    changes[iteration, name] = np.asarray(change(outputs[name]), outputs[name].dtype)
        return changes

    def _channel(self, change: Callable[[Array, float], Array]) -> tuple[str, _Changes]:
        name = self._pick(self._with_channels)
        first = self._golden[0][name]
        axis = 2 if first.ndim == 3 else 1
        channel = int(self._random.integers(first.shape[axis]))

        def change_channel(array: Array) -> Array:
            values = np.moveaxis(array.astype(np.float64), axis, 0)
            if channel < len(values):
                values[channel] = change(values[channel], root_mean_square(values[np.isfinite(values)]))
            return np.moveaxis(values, 0, axis)

        return f"channel {channel} of `{name}`", self._of_all_feeds(name, change_channel)

    def _saturated(self) -> tuple[str, _Changes]:
        name = self._pick(self._floating)

        def clip(array: Array) -> Array:
            values = array.astype(np.float64)
            end = 0.5 * np.abs(values[np.isfinite(values)]).max(initial=0.0)
            return np.clip(values, -end, end)

        return f"`{name}`", self._of_all_feeds(name, clip)

    def _shifted(self) -> tuple[str, _Changes]:
        name, axis = self._pick(self._rolled_axes)
        return f"axis {axis} of `{name}`", self._of_all_feeds(name, lambda array: np.roll(array, 1, axis))

    def _swapped(self) -> tuple[str, _Changes]:
        iteration, names, size = self._pick(self._batches)
        first, second = sorted(int(row) for row in self._random.choice(size, 2, replace=False))
        changes: _Changes = {}
        for name in names:
            array = changes[iteration, name] = self._golden[iteration][name].copy()
            array[[first, second]] = array[[second, first]]
        return f"rows {first} and {second} of feed {iteration}", changes

    def _stale(self) -> tuple[str, _Changes]:
        iteration, name = self._pick(self._following)
        return f"`{name}` of feed {iteration}", {(iteration, name): self._golden[iteration - 1][name]}
