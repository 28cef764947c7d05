"""Parts of outputs beyond any comparison: random outputs, and rows computed from NaN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.backend.onnx import operators, walk
from trtops.comparator.arrays import Array, as_arrays, is_floating
from trtops.comparator.report import Outputs, Tolerances, compare_outputs, iterations_of
from trtops.tables import listed

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed
    from trtops.backend.onnx.model import Model

_TO_THE_BIT = Tolerances(atol=0.0, rtol=0.0, nans_equal=True, infinities_equal=True)
_DRAWS = 4  # of random numbers: those of two may give the same results by chance
_LISTED = 3  # names in a sentence
# Operators that find NaN, that pass values on without computing, and that combine the answers of the first.
_FIND_NAN = frozenset(("IsNaN", "Shape", "Size"))
_PASS_ON = operators.PASS_ON | operators.CASTS
_COMBINE = _PASS_ON | {"And", "Not", "Or", "Xor"}


@dataclass(frozen=True)
class NanRows:
    """Rows of feeds with NaN used by the model; false without any.

    Attributes:
        rows: By the number of the feed: its rows with NaN, and its number of rows; all rows are meant if the inputs
            with NaN have different first sizes.
        name: The first input with NaN.
        reason: Where NaN is, what computes with it, and what to do.
    """

    rows: Mapping[int, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    name: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.rows)

    @classmethod
    def of(cls, model: Model, feeds: Iterable[Feed]) -> NanRows:
        """Find the rows; NaN without effect on any result does not count."""
        readers: dict[str, str] = {}  # what the model does with NaN in an input
        rows: dict[int, tuple[tuple[int, ...], int]] = {}
        feeds_with_nan: list[Feed] = []
        first_input = first_place = ""
        for number, feed in enumerate(feeds):
            nan_rows: dict[str, npt.NDArray[np.intp]] = {}
            for name, array in as_arrays(feed).items():
                input_rows = _rows_with_nan(array)
                if input_rows.size and name not in readers:
                    readers[name] = computes_with_nan(model, name)
                if input_rows.size and readers[name]:
                    nan_rows[name] = input_rows
            if not nan_rows:
                continue
            if not rows:
                first_input, input_rows = next(iter(nan_rows.items()))
                first_place = f"in row {input_rows[0]} of feed {number}, and {readers[first_input]} it"
            sizes = {len(np.atleast_1d(feed[name])) for name in nan_rows}
            union = np.unique(np.concatenate([*nan_rows.values()])).tolist()
            rows[number] = (tuple(union), sizes.pop()) if len(sizes) == 1 else ((), 0)
            feeds_with_nan.append(feed)
        if not rows or _ignores_nan(model, feeds_with_nan):
            return cls()
        count = sum(len(feed_rows) for feed_rows, _ in rows.values())
        count_note = f" ({count} rows with NaN in all, counted from 0)" if count > 1 else " (counted from 0)"
        reason = f"input `{first_input}` holds NaN {first_place}{count_note}"
        reason += "; leave such rows out of the data, or replace NaN"
        return cls(rows, first_input, reason)

    def replaced(self, feeds: Iterable[Feed]) -> list[dict[str, Array]]:
        """The feeds with another row in place of each one with NaN, or with zeros if no row is without."""
        return [self._replaced(number, feed) for number, feed in enumerate(feeds)]

    def _replaced(self, number: int, feed: Feed) -> dict[str, Array]:
        arrays = as_arrays(feed)
        rows, size = self.rows.get(number, ((), 0))
        clean = np.setdiff1d(np.arange(size), rows)
        if clean.size:
            chosen = np.arange(size)
            chosen[list(rows)] = clean[0]
            for name, array in arrays.items():
                if array.ndim and len(array) == size:
                    arrays[name] = array[chosen]
        elif number in self.rows:
            arrays = _with(arrays, 0.0)
        return arrays

    def without(self, number: int, array: Any) -> Array:
        """An output of a feed without the rows of NaN; empty if it has no such rows, or NaN in others as well."""
        values: Array = np.asarray(array)
        rows, size = self.rows[number]
        if values.ndim and len(values) == size:
            return np.delete(values, rows, 0)
        return np.atleast_1d(values)[:0]


@dataclass(frozen=True)
class Undefined:
    """The incomparable parts of a model's outputs, with reasons."""

    random: tuple[str, ...] = ()  # outputs that depend on random numbers
    nan: NanRows = field(default_factory=NanRows)
    reasons: tuple[str, ...] = ()

    def comparable(self, actual: Outputs, golden: Outputs) -> tuple[Outputs, Outputs]:
        """Both runs without these parts."""
        if not self.reasons:
            return actual, golden
        ours = list(map(self._without_random, iterations_of(actual, "actual")))
        theirs = list(map(self._without_random, iterations_of(golden, "golden")))
        for number, (mine, right) in enumerate(zip(ours, theirs)):
            for name in mine.keys() & right.keys() if number in self.nan.rows else ():
                if not isinstance(right[name], np.ndarray):  # a sequence or a map
                    del mine[name], right[name]
                    continue
                mine[name], right[name] = self.nan.without(number, mine[name]), self.nan.without(number, right[name])
                if is_floating(right[name]) and np.isnan(right[name]).any():  # rows of other inputs are mixed in
                    mine[name], right[name] = mine[name][:0], right[name][:0]
        return ours, theirs

    def _without_random(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: array for name, array in outputs.items() if name not in self.random}


def find_undefined(model: Model, feeds: Iterable[Feed], nan: NanRows, requested: Tolerances | None) -> Undefined:
    """Find the random outputs, by more than the requested limits or at all, and the drawing nodes.

    The model runs with several seeds, so that nodes that have one, and repeat their numbers in each session, count too.

    Args:
        model: The model.
        feeds: Its inputs, without NaN.
        nan: What was replaced in the inputs.
        requested: Limits within which outputs may vary.
    """
    from trtops.backend.onnxrt.runner import reference_outputs

    undefined = Undefined(nan=nan, reasons=(nan.reason,) if nan else ())
    labels = [walk.label(node) for node in random_nodes(model.structure())]
    if not labels:
        return undefined
    differences: dict[str, float] = {}
    draws = []
    for seed in range(_DRAWS):
        proto = model.proto(lean=True)
        for node in random_nodes(proto):
            _set_seed(node, seed)
        draws.append(reference_outputs(proto, list(feeds)))
        report = compare_outputs(draws[-1], draws[0], requested or _TO_THE_BIT)
        for output in report.bad:
            largest = output.statistics.max_abs if output.statistics is not None else np.inf
            differences[output.name] = max(differences.get(output.name, 0.0), largest)
    if not differences:
        return undefined
    outputs = listed((f"`{name}`" for name in differences), _LISTED)
    reason = (
        f"the model is random: {listed(labels, _LISTED)} {'draws' if len(labels) == 1 else 'draw'} random numbers, and "
        f"two runs of the model itself differ by {max(differences.values()):.3g} in {outputs}; export it without, or "
        "give limits that allow for it (--atol)"
    )
    return replace(undefined, random=tuple(differences), reasons=(reason, *undefined.reasons))


def without_own_nan(rounded: Outputs, plain: Outputs) -> tuple[Outputs, Outputs]:
    """Both runs with zeros in place of the second one's NaN, as the model returns them in any precision."""
    ours = list(map(dict, iterations_of(rounded, "rounded")))
    theirs = list(map(dict, iterations_of(plain, "plain")))
    for mine, right in zip(ours, theirs):
        for name in mine.keys() & right.keys():
            pair = mine[name], right[name]
            are_arrays = isinstance(pair[0], np.ndarray) and isinstance(pair[1], np.ndarray)
            if are_arrays and pair[0].shape == pair[1].shape and is_floating(pair[1]):
                nan = np.isnan(pair[1])
                mine[name] = np.where(nan, pair[0].dtype.type(0), pair[0])
                right[name] = np.where(nan, pair[1].dtype.type(0), pair[1])
    return ours, theirs


def random_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes drawing random numbers, at any depth and in functions, without inactive Dropouts."""
    from onnx import numpy_helper

    constants: dict[str, onnx.TensorProto] = {}
    for graph in walk.graphs(model.graph):
        constants |= walk.constant_tensors(graph)

    def trains(node: onnx.NodeProto) -> bool:
        mode = constants.get(node.input[-1]) if node.op_type.endswith("Dropout") else None
        return mode is None or bool(np.any(numpy_helper.to_array(mode)))

    leaves = (node for node in walk.nodes(model) if walk.is_random(node) and not any(walk.subgraphs(node)))
    return list(filter(trains, leaves))


def _set_seed(node: onnx.NodeProto, seed: int) -> None:
    from onnx import helper

    walk.keep_only(node.attribute, lambda attribute: attribute.name != "seed")
    # A seed of Dropout is an integer, that of other operators a floating-point number.
    value = 1000 + seed if node.op_type.endswith("Dropout") else 1000.5 + seed
    node.attribute.append(helper.make_attribute("seed", value))


def computes_with_nan(model: Model, name: str) -> str:
    """What a model does with NaN in an input, such as "MatMul 'm' computes with"; empty if it replaces it."""
    from trtops.backend.onnx.precision import without_functions

    try:
        graph = without_functions(model.proto(lean=True)).graph
    except errors.TrtopsError:
        return "the model computes with"
    reached, answers = {name}, set[str]()
    for node in walk.in_order(graph.node):
        if not answers.isdisjoint(node.input) and node.op_type in _COMBINE:
            answers.update(node.output)
        if reached.isdisjoint(walk.uses(node)) or (node.op_type == "Where" and node.input[0] in answers):
            continue
        if node.op_type in _FIND_NAN or (node.op_type == "Equal" and node.input[0] == node.input[1]):
            answers.update(node.output)
        elif node.op_type in _PASS_ON:
            reached.update(node.output)
        else:
            return f"{walk.label(node)} computes with"
    return "an output returns" if any(value.name in reached for value in graph.output) else ""


def _ignores_nan(model: Model, feeds: list[Feed]) -> bool:
    """True if results do not depend on the values of NaN, for example in masked rows."""
    from trtops.backend.onnxrt.runner import reference_outputs

    with_nan = reference_outputs(model.proto(lean=True), feeds)
    limits = replace(_TO_THE_BIT, nans_equal=False)
    for value in (0.0, 1.5):
        outputs = reference_outputs(model.proto(lean=True), [_with(feed, value) for feed in feeds])
        if not compare_outputs(outputs, with_nan, limits):
            return False
    return True


def _with(feed: Feed, value: float) -> dict[str, Array]:
    """A feed with a value in place of NaN."""
    arrays = as_arrays(feed)
    for name, array in arrays.items():
        if is_floating(array):
            arrays[name] = np.where(np.isnan(array), array.dtype.type(value), array)
    return arrays


def _rows_with_nan(array: Array) -> npt.NDArray[np.intp]:
    """The rows of an array with NaN; a scalar is one row."""
    if not array.size or not is_floating(array):
        return np.empty(0, np.intp)
    return np.flatnonzero(np.isnan(np.atleast_1d(array)).reshape(len(np.atleast_1d(array)), -1).any(1))
