"""What a comparison could have seen: faults planted into the reference, and what its data never exercises.

A verdict of ``good`` means little if the data cannot show an error. :func:`measure_power` plants random faults into the
reference, one at a time, and counts those that the same comparison on the same data reports. :func:`coverage` describes
the data without any further inference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from trtops import errors
from trtops.calibration.data import FeedDigest
from trtops.comparator.arrays import Array, holds_strings, to_numpy
from trtops.comparator.report import Outputs, Tolerances, compare_outputs, iterations_of
from trtops.record import Record
from trtops.tables import markdown_table

if TYPE_CHECKING:
    from trtops.backend.base import Feed
    from trtops.backend.onnx.faults import FaultyModel, Place
    from trtops.backend.onnx.model import Model

FaultKind: TypeAlias = Literal[
    "zeroed channel", "flipped sign", "dropped bias", "shifted crop", "swapped rows", "stale output", "saturated range"
]
_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
# Why a model or its data cannot have faults of a kind.
_LACKS: dict[FaultKind, str] = {
    "zeroed channel": "no weights with channels",
    "flipped sign": "no weights with channels",
    "dropped bias": "no bias",
    "shifted crop": "no spatial axis or sequence axis",
    "swapped rows": "no batch above 1",
    "stale output": "one feed",
    "saturated range": "no activations",
}
# Feeds of up to this size are kept; larger ones are read again for each fault.
_KEPT_BYTES = 1 << 28
# Share of values at the ends of an output's range above which it counts as saturated, and the fewest values for that.
_SATURATED, _MIN_VALUES = 0.99, 16
_SHOWN = 4  # names in a sentence


@dataclass(frozen=True, kw_only=True)
class PlantedFault(Record):
    """One fault, and whether the comparison reports it."""

    kind: FaultKind
    place: str  # the tensor, with the channel, axis, rows or feed
    caught: bool
    changed: bool  # whether the outputs differ in any bit from those without the fault


@dataclass(frozen=True, kw_only=True)
class Power(Record):
    """The share of planted faults that a comparison on its data and under its limits reports."""

    planted: tuple[PlantedFault, ...] = ()
    left_out: tuple[tuple[FaultKind, str], ...] = ()  # kinds that the model or the data cannot have, and why
    seed: int = 1
    why_not: str = ""  # why nothing could be planted

    @property
    def caught(self) -> int:
        """The number of faults that the comparison reports."""
        return sum(fault.caught for fault in self.planted)

    @property
    def share(self) -> float | None:
        """The share of faults that the comparison reports, between 0 and 1; None without faults."""
        return self.caught / len(self.planted) if self.planted else None

    def of(self, kind: FaultKind) -> tuple[PlantedFault, ...]:
        """The planted faults of a kind."""
        return tuple(fault for fault in self.planted if fault.kind == kind)

    def sentence(self, blind: Sequence[str] = ()) -> str:
        """The share, followed by what the data is blind to (:attr:`Coverage.blind`)."""
        if self.share is None:
            return f"The power of this check is unknown: {self.why_not or 'no fault could be planted'}."
        seen = f"This check sees {self.caught} of {len(self.planted)} planted faults ({self.share:.0%})"
        return "; ".join((seen, *blind)) + "."

    def table(self) -> str:
        """A row in Markdown for each kind of fault: the numbers planted and caught, and an example of a missed one."""
        rows: list[tuple[str, ...]] = []
        for kind in _KINDS:
            if faults := self.of(kind):
                missed = next((fault for fault in faults if not fault.caught), None)
                example = "" if missed is None else missed.place
                if missed is not None and not missed.changed:
                    example += ", which changes no output"
                rows.append((kind, str(len(faults)), str(sum(fault.caught for fault in faults)), example))
        rows += [(kind, "-", "-", f"not planted: {why}") for kind, why in self.left_out]
        return markdown_table(("fault", "planted", "seen", "missed, for example"), rows)


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
        amount = f"Data: {self.feeds} feed{'s' * (self.feeds != 1)}, {self.samples} sample{'s' * (self.samples != 1)}"
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


def coverage(feeds: Iterable[Feed], golden: Outputs) -> Coverage:
    """Describe the data of a comparison, in one pass over the feeds and the golden outputs.

    Infinity and NaN do not count as values of a range.
    """
    count = samples = 0
    batches: set[int] = set()
    inputs: dict[str, _Values] = {}
    for feed in feeds:
        count += 1
        arrays = {name: to_numpy(array, name) for name, array in feed.items()}
        for name, array in arrays.items():
            inputs.setdefault(name, _Values()).add(array)
        sizes = [array.shape[0] for array in arrays.values() if array.ndim]
        samples += sizes[0] if sizes else 1
        batches.update(sizes[:1])
    outputs: dict[str, _Values] = {}
    for iteration in iterations_of(golden, "golden"):
        for name, array in iteration.items():
            outputs.setdefault(name, _Values()).add(to_numpy(array, name))
    floating = {name: values for name, values in inputs.items() if values.kind == "f" and values.low <= values.high}
    varied = {name: values for name, values in floating.items() if values.low < values.high}
    whole = {name: values for name, values in inputs.items() if values.kind in "iub" and values.constant}
    return Coverage(
        feeds=count,
        samples=samples,
        batches=tuple(sorted(batches)),
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


@dataclass(frozen=True)
class _Fault:
    """A fault to plant: an input of the faulty model, a change of a feed, or a change of the golden outputs."""

    kind: FaultKind
    place: str
    switch: tuple[Place, float, int] | None = None  # the place, and the arguments of its value
    rolled: tuple[str, int] | None = None  # an input and the axis it is rolled along
    outputs: Callable[[list[dict[str, Array]]], None] | None = None  # changes golden outputs in place


def measure_power(
    model: Model,
    feeds: Iterable[Feed],
    golden: Outputs,
    tolerances: Tolerances,
    *,
    faults: int = 40,
    seed: int = 1,
) -> Power:
    """Plant random faults into the reference, one at a time, and count those that the comparison reports.

    All faults that need a run share one session, in which extra inputs switch them on
    (:mod:`trtops.backend.onnx.faults`). Swapped rows and stale outputs are made from the golden outputs. A fault with
    which the reference fails counts as caught, and one that changes nothing on this data as missed.

    Args:
        model: The reference.
        feeds: The data of the comparison, which is read once, or once for each fault if it is large.
        golden: The golden outputs, one iteration for each feed.
        tolerances: The limits of the comparison.
        faults: Number of faults. Kinds take turns; a small model may have fewer places.
        seed: Seed of their choice; the same seed plants the same faults.
    """
    from trtops.backend.onnx.faults import FaultyModel
    from trtops.backend.onnx.model import is_large

    structure = model.structure()
    if is_large(structure):
        return Power(seed=seed, why_not="the model is too large to be changed in memory")
    right = [
        {name: to_numpy(array, name) for name, array in iteration.items()}
        for iteration in iterations_of(golden, "golden")
    ]
    feeds = _kept(feeds)
    first = next(iter(feeds))
    try:
        faulty = FaultyModel(model.proto(), structure, {name: np.shape(array) for name, array in first.items()})
        draws = _draws(model, faulty, first, right, np.random.default_rng(seed))
        found = [_distinct(draw, faults) for draw in draws.values()]
        # Kinds take turns until there are enough.
        turns = itertools.chain.from_iterable(itertools.zip_longest(*found))
        chosen = list(itertools.islice((fault for fault in turns if fault is not None), faults))
        planted = tuple(_plant(faulty, chosen, feeds, right, tolerances))
    except errors.TrtopsError as exc:
        return Power(seed=seed, why_not=" ".join(str(exc).split())[:600].rstrip("."))
    left_out = tuple((kind, why) for kind, why in _LACKS.items() if kind not in draws)
    return Power(planted=planted, left_out=left_out, seed=seed)


def _kept(feeds: Iterable[Feed]) -> Iterable[Feed]:
    """The feeds in memory, or as they are if they are large."""
    kept: list[dict[str, Array]] = []
    size = 0
    for feed in feeds:
        kept.append({name: np.array(to_numpy(array, name)) for name, array in feed.items()})
        size += sum(array.nbytes for array in kept[-1].values())
        if size > _KEPT_BYTES:
            return feeds
    return kept


def _distinct(draw: Callable[[], _Fault], count: int) -> list[_Fault]:
    """Up to ``count`` different faults of a kind; fewer if drawing often finds no more."""
    found: dict[str, _Fault] = {}
    for _ in range(20 * count):
        fault = draw()
        found.setdefault(fault.place, fault)
        if len(found) == count:
            break
    return list(found.values())


def _draws(
    model: Model, faulty: FaultyModel, feed: Feed, right: Sequence[Mapping[str, Array]], random: np.random.Generator
) -> dict[FaultKind, Callable[[], _Fault]]:
    """A function for each kind of fault that the model and the data can have, which returns a random one."""

    def pick(items: Sequence[Any]) -> Any:
        return items[int(random.integers(len(items)))]

    def channel(kind: FaultKind, factor: float) -> _Fault:
        place = pick(faulty.places["weight"])
        index = pick(place.channels)
        return _Fault(kind, f"channel {index} of `{place.tensor}`", switch=(place, factor, index))

    def scaled(kind: FaultKind, part: Literal["bias", "range"], factor: float) -> _Fault:
        place = pick(faulty.places[part])
        return _Fault(kind, f"`{place.tensor}`", switch=(place, factor, 0))

    def shift() -> _Fault:
        # An input as often as all activations together: a crop is usually shifted there.
        if not faulty.places["shift"] or (rolls and random.random() < 0.5):
            name, axis = pick(rolls)
            return _Fault("shifted crop", f"axis {axis} of input `{name}`", rolled=(name, axis))
        place = pick(faulty.places["shift"])
        return _Fault("shifted crop", f"axis {place.axis} of `{place.tensor}`", switch=(place, 1, 0))

    def swap() -> _Fault:
        iteration, names, rows = pick(batches)
        one, other = sorted(int(row) for row in random.choice(rows, 2, replace=False))

        def change(outputs: list[dict[str, Array]]) -> None:
            for name in names:
                array = outputs[iteration][name].copy()
                array[[one, other]] = array[[other, one]]
                outputs[iteration][name] = array

        return _Fault("swapped rows", f"rows {one} and {other} of feed {iteration}", outputs=change)

    def stale() -> _Fault:
        iteration, name = pick(follow)

        def change(outputs: list[dict[str, Array]]) -> None:
            outputs[iteration][name] = right[iteration - 1][name]

        return _Fault("stale output", f"`{name}` of feed {iteration}", outputs=change)

    rolls = [
        (name, axis)
        for name, array in feed.items()
        for axis in range(2 if np.ndim(array) > 3 else 1, np.ndim(array))
        if np.shape(array)[axis] > 1
    ]
    batches = list(_batches(model, feed, right))
    follow = [(i, name) for i in range(1, len(right)) for name in right[i] if name in right[i - 1]]
    draws: dict[FaultKind, Callable[[], _Fault]] = {}
    if faulty.places["weight"]:
        draws["zeroed channel"] = lambda: channel("zeroed channel", 0.0)
        draws["flipped sign"] = lambda: channel("flipped sign", -1.0)
    if faulty.places["bias"]:
        draws["dropped bias"] = lambda: scaled("dropped bias", "bias", 0.0)
    if rolls or faulty.places["shift"]:
        draws["shifted crop"] = shift
    if batches:
        draws["swapped rows"] = swap
    if follow:
        draws["stale output"] = stale
    if faulty.places["range"]:
        draws["saturated range"] = lambda: scaled("saturated range", "range", 0.5)
    return draws


def _batches(
    model: Model, feed: Feed, right: Sequence[Mapping[str, Array]]
) -> Iterator[tuple[int, tuple[str, ...], int]]:
    """Golden outputs with several rows: the iteration, the outputs whose first axis is the batch, the number of rows.

    An output's first axis is the batch if an input has its name too, or if the first input's first axis has its size.
    """
    symbols = {dim for spec in model.info.inputs for dim in spec.shape or () if isinstance(dim, str)}
    named = {spec.name for spec in model.info.outputs if spec.shape and spec.shape[0] in symbols}
    size = next((np.shape(array)[0] for array in feed.values() if np.ndim(array)), 1)
    rows_of = {name for name, array in right[0].items() if array.ndim and (name in named or len(array) == size)}
    for iteration, outputs in enumerate(right):
        rows = {name: len(array) for name, array in outputs.items() if name in rows_of and array.ndim}
        if rows and max(rows.values()) > 1:
            most = max(rows.values())
            yield iteration, tuple(name for name, count in rows.items() if count == most), most


def _plant(
    faulty: FaultyModel,
    chosen: Sequence[_Fault],
    feeds: Iterable[Feed],
    right: Sequence[Mapping[str, Array]],
    tolerances: Tolerances,
) -> Iterator[PlantedFault]:
    """Run the reference with each fault, and compare.

    ComparisonError if the reference without a fault does not pass, which would make every fault look caught.
    """
    from trtops.backend.onnxrt.runner import OnnxrtRunner, SessionFromMemory

    switches = [None if fault.switch is None else faulty.switch(fault.switch[0]) for fault in chosen]
    with OnnxrtRunner(SessionFromMemory(faulty.finish(), optimized=False), "faulty reference") as runner:

        def run(fault: _Fault | None, values: Mapping[str, Array]) -> list[dict[str, Array]]:
            found = []
            for feed, golden in zip(feeds, right):
                if fault is not None and fault.rolled is not None:
                    name, axis = fault.rolled
                    feed = {**feed, name: np.roll(feed[name], 1, axis)}
                outputs = runner.infer({**feed, **faulty.neutral, **values})
                found.append({name: outputs[name] for name in golden if name in outputs})
            return found

        sound = run(None, {})
        report = compare_outputs(sound, right, tolerances)
        if not report:
            raise errors.ComparisonError(
                f"the reference itself does not pass the comparison ({'; '.join(report.reasons)})"
            )
        same = {_digest(sound), _digest(right)}
        for fault, switch in zip(chosen, switches):
            try:
                if fault.outputs is not None:
                    outputs = [dict(iteration) for iteration in right]
                    fault.outputs(outputs)
                else:
                    values = {}
                    if fault.switch is not None and switch is not None:
                        place, factor, channel = fault.switch
                        values[switch] = place.value(factor, channel)
                    outputs = run(fault, values)
                caught, changed = not compare_outputs(outputs, right, tolerances), _digest(outputs) not in same
            except errors.InferenceError:  # such as an index out of range
                caught = changed = True
            yield PlantedFault(kind=fault.kind, place=fault.place, caught=caught, changed=changed)


def _digest(outputs: Iterable[Mapping[str, Array]]) -> str:
    digest = FeedDigest()
    for iteration in outputs:
        digest.add(iteration)
    return digest.hexdigest()
