"""What a comparison could have seen: faults are planted into the reference, one at a time.

A verdict of ``good`` means little if the comparison reports few of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from trtops import errors
from trtops.calibration.data import FeedDigest
from trtops.comparator.arrays import Array, to_numpy
from trtops.comparator.report import Outputs, Tolerances, compare_outputs, iterations_of
from trtops.ops.evaluation.evidence import SeenFeeds
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


@dataclass(frozen=True, kw_only=True)
class PlantedFault(Record):
    """One fault, and its detection by the comparison."""

    kind: FaultKind
    location: str  # the tensor, with the channel, axis, rows or feed
    caught: bool
    changed: bool  # whether the outputs differ in any bit from those without the fault


@dataclass(frozen=True, kw_only=True)
class Power(Record):
    """The share of planted faults detected by a comparison on its data and under its limits."""

    planted: tuple[PlantedFault, ...] = ()
    left_out: tuple[tuple[FaultKind, str], ...] = ()  # kinds that the model or the data cannot have, and why
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
        seen = f"This check sees {self.caught} of {len(self.planted)} planted faults ({self.share:.0%})"
        return "; ".join((seen, *blind)) + "."

    def table(self) -> str:
        """A row in Markdown for each kind of fault: the numbers planted and caught, and an example of a missed one."""
        rows: list[tuple[str, ...]] = []
        for kind in _KINDS:
            if faults := self.of(kind):
                missed = next((fault for fault in faults if not fault.caught), None)
                example = "" if missed is None else missed.location
                if missed is not None and not missed.changed:
                    example += ", which changes no output"
                rows.append((kind, str(len(faults)), str(sum(fault.caught for fault in faults)), example))
        rows += [(kind, "-", "-", f"not planted: {reason}") for kind, reason in self.left_out]
        return markdown_table(("fault", "planted", "seen", "missed, for example"), rows)


@dataclass(frozen=True)
class _Fault:
    """A fault to plant: an input of the faulty model, a change of a feed, or a change of the golden outputs."""

    kind: FaultKind
    location: str
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
    """Plant random faults into the reference, one at a time, and count the detected ones.

    All faults that need a run share one session, in which extra inputs switch them on
    (:mod:`trtops.backend.onnx.faults`). Swapped rows and stale outputs are made from the golden outputs. A fault with
    which the reference fails counts as caught, and one that changes nothing on this data as missed. Kinds take turns,
    and a small model may have fewer places than ``faults``. ``feeds`` are read once, or once for each fault if they are
    large; the ``golden`` outputs have one iteration for each.
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
    first = next(iter(feeds))
    try:
        faulty = FaultyModel(model.proto(), structure, {name: np.shape(array) for name, array in first.items()})
        draws = _draws(model, faulty, first, right, np.random.default_rng(seed))
        faults_by_kind = [_distinct(draw, faults) for draw in draws.values()]
        # Kinds take turns until there are enough.
        turns = itertools.chain.from_iterable(itertools.zip_longest(*faults_by_kind))
        chosen = list(itertools.islice((fault for fault in turns if fault is not None), faults))
        planted = tuple(_plant(faulty, chosen, feeds, right, tolerances))
    except errors.TrtopsError as exc:
        return Power(seed=seed, why_not=" ".join(str(exc).split())[:600].rstrip("."))
    left_out = tuple((kind, reason) for kind, reason in _LACKS.items() if kind not in draws)
    return Power(planted=planted, left_out=left_out, seed=seed)


def _distinct(draw: Callable[[], _Fault], count: int) -> list[_Fault]:
    """Up to ``count`` different faults of a kind; fewer if drawing often finds no more."""
    distinct: dict[str, _Fault] = {}
    for _ in range(20 * count):
        fault = draw()
        distinct.setdefault(fault.location, fault)
        if len(distinct) == count:
            break
    return list(distinct.values())


def _draws(
    model: Model, faulty: FaultyModel, feed: Feed, right: Sequence[Mapping[str, Array]], random: np.random.Generator
) -> dict[FaultKind, Callable[[], _Fault]]:
    """A function for each possible kind of fault of the model and the data; it draws a random one."""

    def pick(items: Sequence[Any]) -> Any:
        return items[int(random.integers(len(items)))]

    def channel(kind: FaultKind, factor: float) -> _Fault:
        site = pick(faulty.places["weight"])
        index = pick(site.channels)
        return _Fault(kind, f"channel {index} of `{site.tensor}`", switch=(site, factor, index))

    def scaled(kind: FaultKind, part: Literal["bias", "range"], factor: float) -> _Fault:
        site = pick(faulty.places[part])
        return _Fault(kind, f"`{site.tensor}`", switch=(site, factor, 0))

    def shift() -> _Fault:
        # An input as often as all activations together: a crop is usually shifted there.
        if not faulty.places["shift"] or (rolls and random.random() < 0.5):
            name, axis = pick(rolls)
            return _Fault("shifted crop", f"axis {axis} of input `{name}`", rolled=(name, axis))
        site = pick(faulty.places["shift"])
        return _Fault("shifted crop", f"axis {site.axis} of `{site.tensor}`", switch=(site, 1, 0))

    def swap() -> _Fault:
        iteration, names, rows = pick(batches)
        first_row, second_row = sorted(int(row) for row in random.choice(rows, 2, replace=False))

        def change(outputs: list[dict[str, Array]]) -> None:
            for name in names:
                array = outputs[iteration][name].copy()
                array[[first_row, second_row]] = array[[second_row, first_row]]
                outputs[iteration][name] = array

        return _Fault("swapped rows", f"rows {first_row} and {second_row} of feed {iteration}", outputs=change)

    def stale() -> _Fault:
        iteration, name = pick(follow)

        def change(outputs: list[dict[str, Array]]) -> None:
            outputs[iteration][name] = right[iteration - 1][name]

        return _Fault("stale output", f"`{name}` of feed {iteration}", outputs=change)

    rolls, follow = list[tuple[str, int]](), list[tuple[int, str]]()
    for name, array in feed.items():
        axes = range(2 if np.ndim(array) > 3 else 1, np.ndim(array))
        rolls += [(name, axis) for axis in axes if np.shape(array)[axis] > 1]
    for iteration in range(1, len(right)):
        follow += [(iteration, name) for name in right[iteration] if name in right[iteration - 1]]
    batches = list(_batches(model, feed, right))
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
    """Golden outputs with several rows: the iteration, the outputs with a batch axis, the number of rows.

    An output's first axis is the batch if an input has its name too, or if the first input's first axis has its size.
    """
    symbols = {dim for spec in model.info.inputs for dim in spec.shape or () if isinstance(dim, str)}
    named = {spec.name for spec in model.info.outputs if spec.shape and spec.shape[0] in symbols}
    size = next((np.shape(array)[0] for array in feed.values() if np.ndim(array)), 1)
    rows_of = {name for name, array in right[0].items() if array.ndim and (name in named or len(array) == size)}
    for iteration, outputs in enumerate(right):
        rows = {name: len(array) for name, array in outputs.items() if name in rows_of and array.ndim}
        if rows and max(rows.values()) > 1:
            largest = max(rows.values())
            yield iteration, tuple(name for name, count in rows.items() if count == largest), largest


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

        def run(
            values: Mapping[str, Array], rolled: tuple[str, int] | None, inputs: Iterable[Feed] = feeds
        ) -> list[dict[str, Array]]:
            results = []
            for feed, golden in zip(inputs, right):
                if rolled is not None:
                    name, axis = rolled
                    feed = {**feed, name: np.roll(feed[name], 1, axis)}
                outputs = runner.infer({**feed, **faulty.neutral, **values})
                results.append({name: outputs[name] for name in golden if name in outputs})
            return results

        def passes(outputs: list[dict[str, Array]]) -> bool:
            # As in an evaluation: all feeds together, and those of the same shapes.
            if not compare_outputs(outputs, right, tolerances):
                return False
            return one_shape or all(e.verdict != "bad" for e in seen.entries(outputs, right, tolerances))

        seen = SeenFeeds(feeds)
        sound = run({}, None, seen)
        one_shape = len({str(shapes) for _, _, shapes in seen.places}) == 1
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
                        site, factor, channel = fault.switch
                        values[switch] = site.value(factor, channel)
                    outputs = run(values, fault.rolled)
                caught, changed = not passes(outputs), _digest(outputs) not in same
            except errors.InferenceError:  # such as an index out of range
                caught = changed = True
            yield PlantedFault(kind=fault.kind, location=fault.location, caught=caught, changed=changed)


def _digest(outputs: Iterable[Mapping[str, Array]]) -> str:
    digest = FeedDigest()
    for iteration in outputs:
        digest.add(iteration)
    return digest.hexdigest()
