"""Selections and rankings in a model's outputs, compared by content instead of by position.

TopK ranks, NonMaxSuppression and NonZero select rows, ArgMax and ArgMin choose one of many. Rounding changes the order
of candidates that tie, and with it the position of all rows that are gathered. Before a comparison, the rows of an
output are put in the order of the golden ones, as far as ties explain another order or another candidate.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.arrays import Array, is_floating
from trtops.ops.evaluation.data import root_mean_square

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed
    from trtops.backend.onnx.model import Model

log = logging.getLogger(__name__)

# The axis of the rows of nodes that select. ONNX defines no order of those of NonMaxSuppression.
_ROW_AXES = {"TopK": -1, "NonMaxSuppression": 0, "NonZero": 1}
_CHOICES = {"ArgMax": 1, "ArgMin": 0}  # whether the largest is chosen
_MIN_OPSET = 12  # of Min for integers
_MAX_NODES = 8  # whose selections are followed
_MAX_FEEDS = 3  # on which outputs are searched that a node orders
_CANDIDATES = 8  # of one choice, or beyond the selected ones
_MOST_TIED = 0.5  # share of candidates that tie with the best one, above which rounding leaves nothing of a choice
_MAX_ROWS = 2000  # whose distances fit into memory
# Rows that differ by more, relative to the output's root mean square, are of different candidates.
_OTHER_ROW = 0.25


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Outputs with rows selected by one node.

    Attributes:
        axes: The axis of rows, by output.
        keys: The output of the watched model with the values that rank the rows; empty if any order is right.
        key_axis: The axis of ranks in the keys.
        beyond: For each feed, the outputs and keys of candidates of the next lower ranks.
    """

    axes: Mapping[str, int]
    keys: str = ""
    key_axis: int = 0
    beyond: tuple[Mapping[str, Array], ...] = ()

    def candidates(
        self, feed: int, index: int, layouts: Mapping[str, _Layout], lowest: float, width: float
    ) -> list[list[Array]]:
        """The rows beyond one list, of each output in ``layouts``, with keys tied with the lowest selected one."""
        arrays = self.beyond[feed]
        rows = [layout.rows(arrays[name])[index] for name, layout in layouts.items()]
        keys = np.moveaxis(arrays[self.keys], self.key_axis, -1)
        differences = np.abs(keys.reshape(-1, keys.shape[-1])[index].astype(np.float64) - float(lowest))
        return [_row(rows, position) for position in np.flatnonzero(differences <= width)]

    def layout(self, name: str, golden: Mapping[str, Array]) -> _Layout | None:
        """The arrangement of an output as rows; None if their keys are unknown."""
        array, axis = golden[name], self.axes[name]
        axes = list(range(array.ndim))
        other_axes = axes[:axis] + axes[axis + 1 :]
        if not self.keys:
            return _Layout(array.shape, (axis, *other_axes), 0)
        keys = golden[self.keys]
        if array.shape == keys.shape and axis == self.key_axis:
            return _Layout(array.shape, (*other_axes, axis), array.ndim - 1)
        if math.prod(array.shape[:axis]) * keys.shape[self.key_axis] != keys.size:
            return None
        return _Layout(array.shape, tuple(axes), axis)


@dataclass(frozen=True)
class _Layout:
    """An array as ``(lists, rows, features)``: its shape, its axes in that order, and how many of them are of lists."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    leads: int

    def rows(self, array: Array) -> Array:
        moved: Array = array.transpose(self.order)
        lists, features = math.prod(moved.shape[: self.leads]), math.prod(moved.shape[self.leads + 1 :])
        return moved.reshape(lists, moved.shape[self.leads], features)

    def array(self, rows: Array) -> Array:
        moved = rows.reshape([self.shape[axis] for axis in self.order])
        return np.ascontiguousarray(moved.transpose(np.argsort(self.order)))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Outputs with the index of the largest or the smallest value.

    ``values`` and ``indices`` are outputs of the watched model: the best candidates, along ``axis``.
    """

    outputs: tuple[str, ...]
    values: str
    indices: str
    axis: int

    def lists(self, array: Array) -> Array:
        """The candidates ``(choices, candidates)`` in one of these outputs."""
        return np.moveaxis(array, self.axis, -1).reshape(-1, array.shape[self.axis])

    def tied(self, golden: Mapping[str, Array], width: float) -> npt.NDArray[np.bool_]:
        """Whether candidates ``(choices, candidates)`` differ from the best one by at most the width."""
        values = self.lists(golden[self.values]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return np.abs(values - values[:, :1]) <= width


@dataclass(kw_only=True)
class Selections:
    """The rankings and choices in the outputs of one model on its feeds.

    Attributes:
        model: The watched model, which also returns the values that rank candidates.
        rankings: Nodes that order rows.
        choices: Nodes that choose one of many.
        golden: The outputs of the watched model for each feed.
    """

    model: Model
    rankings: tuple[Ranking, ...]
    choices: tuple[Choice, ...]
    golden: Sequence[Mapping[str, Any]]
    # By feed, ranking and list: rows of other candidates that the rounded model selects, and golden rows that it lacks.
    _others: dict[tuple[int, int, int], list[list[Array]]] = field(default_factory=dict)
    _lacking: dict[tuple[int, int, int], set[int]] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys among the watched model's outputs."""
        ranking_keys = filter(None, (ranking.keys for ranking in self.rankings))
        return (*ranking_keys, *(choice.values for choice in self.choices))

    @property
    def ranked(self) -> frozenset[str]:
        """The model's outputs of selected rows."""
        return frozenset[str]().union(*(ranking.axes for ranking in self.rankings))

    @property
    def outputs(self) -> frozenset[str]:
        """The model's outputs ordered or determined by a selection."""
        return self.ranked.union(*(choice.outputs for choice in self.choices))

    def align(
        self, iterations: Sequence[Mapping[str, Any]], widths: Mapping[str, float], *, rounded: bool = False
    ) -> list[dict[str, Any]]:
        """Outputs with the golden selection wherever ties explain another one; other arrays are the given ones.

        Args:
            iterations: The outputs for each feed.
            widths: The largest difference between candidates that tie, by keys.
            rounded: Whether these are outputs of the rounded model. Rounding explains all that it selects.
        """
        lost = [choice for choice in self.choices if self._is_lost(choice, widths.get(choice.values, 0.0))]
        aligned = []
        for number, (outputs, golden) in enumerate(zip(iterations, self.golden)):
            changed = dict(outputs)
            for position, ranking in enumerate(self.rankings):
                pairs: dict[str, tuple[Array, Array]] = {}
                for name in ranking.axes:
                    if isinstance(changed.get(name), np.ndarray):
                        pairs[name] = changed[name], golden[name]
                if pairs and all(ours.ndim == theirs.ndim for ours, theirs in pairs.values()):
                    width = widths.get(ranking.keys, 0.0)
                    changed |= self._align_rows(ranking, pairs, golden, (number, position), width, rounded)
            for choice in self.choices:
                if choice not in lost:
                    _align_choice(choice, changed, golden, choice.tied(golden, widths.get(choice.values, 0.0)))
            aligned.append(changed)
        return aligned

    def _is_lost(self, choice: Choice, width: float) -> bool:
        """True if most candidates tie with the best one: nearly any index would do."""
        tied = np.concatenate([choice.tied(golden, width)[:, 1:].ravel() for golden in self.golden])
        return bool(tied.size and tied.mean() > _MOST_TIED)

    def _align_rows(
        self,
        ranking: Ranking,
        pairs: Mapping[str, tuple[Array, Array]],
        golden: Mapping[str, Array],
        at: tuple[int, int],
        width: float,
        rounded: bool,
    ) -> dict[str, Array]:
        layouts: dict[str, _Layout] = {}
        rows: dict[str, tuple[Array, Array]] = {}
        shapes = set[tuple[int, ...]]()
        for name, pair in pairs.items():
            layout = ranking.layout(name, golden)
            if layout is not None:
                ours, theirs = map(layout.rows, pair)
                layouts[name], rows[name] = layout, (ours, theirs)
                shapes.add((*ours.shape[:2], *theirs.shape[:2]))
                if ours.shape[2] != theirs.shape[2]:
                    return {}
        if len(shapes) != 1:
            return {}
        [(lists, count, golden_lists, golden_count)] = shapes
        keys = np.moveaxis(golden[ranking.keys], ranking.key_axis, -1) if ranking.keys else None
        if (
            lists != golden_lists
            or max(count, golden_count) > _MAX_ROWS
            or (keys is not None and count != golden_count)
        ):
            return {}
        filled = {name: theirs.astype(ours.dtype) for name, (ours, theirs) in rows.items()}
        scales = [_scale(theirs) for _, theirs in rows.values()]
        for index in range(lists):
            our_rows = [ours[index] for ours, _ in rows.values()]
            golden_rows = [theirs[index] for _, theirs in rows.values()]
            distances = _distances(golden_rows, our_rows, scales)
            may_differ, candidates = np.ones(golden_count, bool), []
            if keys is not None and golden_count:
                ranked = keys.reshape(lists, -1)[index]
                tied = _tied(ranked, golden_count, width)
                distances[~tied] = math.inf
                may_differ = tied[:, -1] | (tied.sum(axis=1) > 1)
                if ranking.beyond:
                    candidates = ranking.candidates(at[0], index, layouts, ranked[-1], width)
            matched = self._explained(distances, our_rows, scales, (*at, index), may_differ, candidates, rounded)
            if matched is None:
                return {}
            for name, array in zip(rows, our_rows):
                filled[name][index][matched >= 0] = array[matched[matched >= 0]]
        return {name: layouts[name].array(array) for name, array in filled.items()}

    def _explained(
        self,
        distances: Array,
        ours: list[Array],
        scales: list[float],
        at: tuple[int, int, int],
        may_differ: Array,
        candidates: list[list[Array]],
        rounded: bool,
    ) -> Array | None:
        """The row of each golden row, or a negative number for another candidate due to rounding.

        ``candidates`` are rows that tie with the lowest selected one. None if rounding does not explain a lacking or an
        additional row.
        """
        matched = _assign(distances)
        if len(distances) == distances.shape[1]:  # those that cannot be matched are compared by position
            matched[matched < 0] = sorted(set(range(len(matched))) - set(matched.tolist()))
        others, lacking = self._others.setdefault(at, []), self._lacking.setdefault(at, set())

        candidates = [*candidates, *others]

        def is_other(row: int) -> bool:
            selected = _row(ours, row)
            if rounded:
                others.append(selected)
                return True
            for position, candidate in enumerate(candidates):
                if _distances(selected, candidate, scales)[0, 0] <= _OTHER_ROW:
                    del candidates[position]
                    return True
            return False

        for golden_row in np.flatnonzero(may_differ & (matched >= 0)):
            row = int(matched[golden_row])
            if distances[golden_row, row] > _OTHER_ROW and is_other(row):
                matched[golden_row] = -2
        missing = set(np.flatnonzero(matched == -1).tolist())
        if rounded:
            lacking |= missing
        additional = set(range(distances.shape[1])) - set(matched.tolist()) if distances.shape[1] > len(matched) else ()
        if not missing <= lacking or not all(list(map(is_other, additional))):
            return None
        return matched


def _row(arrays: Sequence[Array], row: int | np.intp) -> list[Array]:
    """One row of each array, as an array of one row."""
    return [array[row : row + 1] for array in arrays]


def find_selections(model: Model, feeds: Sequence[Feed], golden: Sequence[Mapping[str, Any]]) -> Selections | None:
    """The selections behind a model's outputs; None without any.

    ``golden`` are the model's outputs for the feeds. Each node that selects rows is reversed, one at a time: the
    outputs whose rows change places are those that it orders. None too for models that are too large to be changed in
    memory.
    """
    from trtops.backend.onnx import walk
    from trtops.backend.onnx.model import is_large

    structure = model.structure()
    nodes: list[int] = []
    for index, node in enumerate(structure.graph.node):
        if walk.is_onnx_op(node, *_ROW_AXES, *_CHOICES):
            nodes.append(index)
    if not nodes or is_large(structure) or walk.opset(structure) < _MIN_OPSET:
        return None
    try:
        return _find(model, nodes[-_MAX_NODES:], feeds, golden)
    except errors.TrtopsError as exc:
        log.warning("Selections are compared by position, since the model does not run with further outputs: %s", exc)
        return None


def _find(
    model: Model, nodes: Sequence[int], feeds: Sequence[Feed], golden: Sequence[Mapping[str, Any]]
) -> Selections | None:
    import onnx

    from trtops.backend.onnx import shapes, walk
    from trtops.backend.onnx.model import Model
    from trtops.backend.onnxrt.runner import reference_outputs

    watched, choices = model.proto(), []
    nodes_with_rows: list[tuple[int, dict[str, int], str, int]] = []
    shapes.infer_shapes(watched)
    fresh, types = walk.FreshNames(watched.graph), shapes.element_types(watched.graph)
    for index, node in zip(nodes, [watched.graph.node[index] for index in nodes]):
        if node.op_type in _CHOICES:
            axis, indices_of = walk.int_attribute(node, "axis", 0), _same_elements(watched.graph, node.output[0])
            if indices_of:
                count = _add_count(watched.graph, fresh, node.input[0], axis)
                inputs, elements = [node.input[0], count], (types.get(node.input[0]), onnx.TensorProto.INT64)
                rank = {"axis": axis, "largest": _CHOICES[node.op_type]}
                best, indices = _add_outputs(watched.graph, fresh, "TopK", inputs, *elements, **rank)
                choices.append(Choice(outputs=indices_of, values=best, indices=indices, axis=axis))
            continue
        axis = walk.int_attribute(node, "axis", -1) if node.op_type == "TopK" else _ROW_AXES[node.op_type]
        if not (axes := _ordered_by(model, index, axis, feeds, golden)):
            continue
        keys = ""
        if node.op_type == "TopK" and walk.int_attribute(node, "sorted", 1):
            node.output[0] = node.output[0] or fresh("top_values")
            [keys] = _add_outputs(watched.graph, fresh, "Identity", [node.output[0]], types.get(node.input[0]))
        nodes_with_rows.append((index, axes, keys, axis))
    if not nodes_with_rows and not choices:
        return None
    with_keys = [dict(outputs) for outputs in golden]
    if any(keys for _, _, keys, _ in nodes_with_rows) or choices:
        for outputs, all_outputs in zip(with_keys, reference_outputs(watched, list(feeds))):
            outputs |= all_outputs | outputs
        model_with_keys = Model.from_proto(watched, model.name)
    else:
        model_with_keys = model
    rankings = []
    for index, axes, keys, axis in nodes_with_rows:
        key_axis = axis % with_keys[0][keys].ndim if keys else 0
        beyond = _ranked_beyond(model, index, axes | {keys: key_axis}, feeds) if keys else ()
        rankings.append(Ranking(axes=axes, keys=keys, key_axis=key_axis, beyond=beyond))
    return Selections(model=model_with_keys, rankings=tuple(rankings), choices=tuple(choices), golden=with_keys)


def _add_count(graph: onnx.GraphProto, fresh: Callable[[str], str], tensor: str, axis: int, selected: str = "") -> str:
    """Add nodes for a number of candidates, at most the size of an axis, and return its name.

    ``selected`` is a number to which the further candidates are added.
    """
    import onnx

    limit, axis_index, shape, size, count, total = map(fresh, ("most", "place", "shape", "size", "count", "total"))
    for name, value in ((limit, _CANDIDATES), (axis_index, axis)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    graph.node.append(onnx.helper.make_node("Shape", [tensor], [shape]))
    graph.node.append(onnx.helper.make_node("Gather", [shape, axis_index], [size]))
    if selected:
        graph.node.append(onnx.helper.make_node("Add", [limit, selected], [total]))
    graph.node.append(onnx.helper.make_node("Min", [total if selected else limit, size], [count]))
    return count


def _ranked_beyond(
    model: Model, index: int, axes: Mapping[str, int], feeds: Sequence[Feed]
) -> tuple[dict[str, Array], ...]:
    """For each feed, the rows of a TopK node's candidates below the selected ones.

    ``axes`` are those of the rows, by output; the output that the model does not have is that of the keys. Empty if the
    model does not run with more candidates.
    """
    import onnx

    from trtops.backend.onnx import walk
    from trtops.backend.onnxrt.runner import reference_outputs

    proto = model.proto()
    fresh, node = walk.FreshNames(proto.graph), proto.graph.node[index]
    axis, selected = walk.int_attribute(node, "axis", -1), node.input[1]
    count = _add_count(proto.graph, fresh, node.input[0], axis, selected)
    start, where = fresh("start"), fresh("axis")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([axis]), where))
    proto.graph.node.append(onnx.helper.make_node("Sub", [count, selected], [start]))
    node.input[1] = count
    for position, output in enumerate(node.output):
        node.output[position] = fresh(f"{output}_all")
        if output:
            slicing = [node.output[position], start, count, where]
            proto.graph.node.append(onnx.helper.make_node("Slice", slicing, [output]))
    [keys] = set(axes) - {value.name for value in proto.graph.output}
    proto.graph.node.append(onnx.helper.make_node("Slice", [node.output[0], start, count, where], [keys]))
    for name, element in ((keys, onnx.TensorProto.FLOAT), (start, onnx.TensorProto.INT64)):
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, element, None))
    walk.set_order(proto.graph, walk.execution_order(proto.graph.node))
    try:
        shifted = reference_outputs(proto, list(feeds))
    except errors.TrtopsError:  # sizes that depend on the number of candidates
        return ()
    lower = []
    for outputs in shifted:
        rows = {}
        for name, row_axis in axes.items():
            size = outputs[name].shape[row_axis]
            rows[name] = np.take(outputs[name], range(size - int(outputs[start][0]), size), row_axis)
        lower.append(rows)
    return tuple(lower)


def _add_outputs(
    graph: onnx.GraphProto,
    fresh: Callable[[str], str],
    op: str,
    inputs: list[str],
    *types: int | None,
    **attributes: Any,
) -> list[str]:
    """Add a node, make its results outputs of the element types, and return their names."""
    import onnx

    names = [fresh(f"{inputs[0]}_{op}") for _ in types]
    graph.node.append(onnx.helper.make_node(op, inputs, names, **attributes))
    for name, element in zip(names, types):
        graph.output.append(onnx.helper.make_tensor_value_info(name, element or onnx.TensorProto.FLOAT, None))
    return names


def _same_elements(graph: onnx.GraphProto, tensor: str) -> tuple[str, ...]:
    """The outputs of a graph with the elements of a tensor in the same order."""
    from trtops.backend.onnx import operators

    tensors = {tensor}
    for node in graph.node:
        if node.op_type in operators.KEEP_ORDER | operators.CASTS and node.input[0] in tensors:
            tensors.add(node.output[0])
    return tuple(value.name for value in graph.output if value.name in tensors)


def _ordered_by(
    model: Model, index: int, axis: int, feeds: Sequence[Feed], golden: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """The outputs ordered by a node's rows, each with the axis of the rows."""
    import onnx

    from trtops.backend.onnx import walk
    from trtops.backend.onnxrt.runner import reference_outputs

    proto = model.proto()
    fresh, node = walk.FreshNames(proto.graph), proto.graph.node[index]
    ends = {"last": -1, "first": np.iinfo(np.int64).min, "axis": axis, "backwards": -1}
    names = list(map(fresh, ends))
    for name, value in zip(names, ends.values()):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    for position, output in enumerate(node.output):
        if output:
            node.output[position] = fresh(f"{output}_in_order")
            proto.graph.node.append(onnx.helper.make_node("Slice", [node.output[position], *names], [output]))
    walk.set_order(proto.graph, walk.execution_order(proto.graph.node))
    for feed, outputs in list(zip(feeds, golden))[:_MAX_FEEDS]:
        axes = {}
        [reversed_outputs] = reference_outputs(proto, [feed])
        for name, array in outputs.items():
            row_axis = _permuted_axis(array, reversed_outputs[name])
            if row_axis is not None:
                axes[name] = row_axis
        if axes:
            return axes
    return {}


def _permuted_axis(array: Any, other: Any) -> int | None:
    """The axis of a permutation between two arrays."""
    if not isinstance(array, np.ndarray) or array.shape != np.shape(other) or np.array_equal(array, other):
        return None
    for axis in range(array.ndim):
        ours, theirs = (Counter(part.tobytes() for part in np.moveaxis(side, axis, 0)) for side in (array, other))
        if ours == theirs:
            return axis
    return None


def _tied(keys: Array, count: int, width: float) -> npt.NDArray[np.bool_]:
    """True, in ``(count, count)``, for two ranks with keys closer than the width."""
    tied = np.eye(count, dtype=bool)
    ranked_keys = keys[:count].astype(np.float64)
    with np.errstate(invalid="ignore"):
        tied[: len(ranked_keys), : len(ranked_keys)] |= np.abs(ranked_keys[:, None] - ranked_keys[None]) <= width
    return tied


def _scale(array: Array) -> float:
    """The root mean square of finite numbers; 1 for zeros, integers and strings."""
    if not is_floating(array):
        return 1.0
    values = array.astype(np.float64)
    return root_mean_square(values[np.isfinite(values)]) or 1.0


def _distances(first: list[Array], second: list[Array], scales: list[float]) -> Array:
    """The distance of any two rows ``(rows, features)``: that of the most different output.

    It is relative to the output's scale, and 1 where integers differ.
    """
    distances = np.zeros((len(first[0]), len(second[0])))
    for a, b, scale in zip(first, second, scales):
        if not is_floating(a):
            rows = np.concatenate([a, b.astype(a.dtype)])
            codes = np.unique(rows.astype(str) if rows.dtype.kind == "O" else rows, axis=0, return_inverse=True)[1]
            part = (codes.reshape(-1)[: len(a), None] != codes.reshape(-1)[None, len(a) :]).astype(np.float64)
        else:
            x, y = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                squares = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1)[None] - 2 * x @ y.T
                part = np.sqrt(np.maximum(squares, 0) / max(1, a.shape[1])) / scale
        distances = np.maximum(distances, np.nan_to_num(part, nan=1e9, posinf=1e9))
    return distances


def _assign(distances: Array) -> npt.NDArray[np.int64]:
    """The column of each row, none of them twice, the nearest first; -1 for none."""
    columns = np.full(len(distances), -1)
    if not distances.size:
        return columns
    remaining = distances.copy()
    places = np.arange(min(distances.shape))
    smallest = np.minimum(distances.min(axis=1)[places], distances.min(axis=0)[places])
    rows = places[distances[places, places] <= smallest]
    nearest = rows
    while True:
        columns[rows] = nearest
        remaining[rows] = remaining[:, nearest] = math.inf
        best = remaining.argmin(axis=1)
        order = np.argsort(remaining[np.arange(len(best)), best], kind="stable")
        order = order[np.isfinite(remaining[order, best[order]])]
        if not order.size:
            break
        # Of several rows with the same nearest column, the closest one gets it.
        nearest, first = np.unique(best[order], return_index=True)
        rows = order[first]
    return columns


def _align_choice(
    choice: Choice, outputs: dict[str, Any], golden: Mapping[str, Array], tied: npt.NDArray[np.bool_]
) -> None:
    """Replace the index of a candidate tied with the best one by the golden index."""
    indices = choice.lists(golden[choice.indices])
    for name in choice.outputs:
        ours, right = outputs.get(name), golden[name]
        if isinstance(ours, np.ndarray) and ours.shape == right.shape and ours.size == len(tied):
            exchanged = (tied & (indices == ours.reshape(-1, 1))).any(axis=1)
            outputs[name] = np.where(exchanged.reshape(ours.shape), right, ours).astype(ours.dtype)
