"""Cutting sub-models out of a model, fast and again and again: any set of nodes becomes a model of its own.

A tensor that enters the set becomes an input with the dtype and shape it was seen with. Two kinds become weights
instead: what depends on weights alone, and what depends on shapes alone (the ``Shape -> Gather -> Concat`` chains in front
of a Reshape): their values are part of the model once its shapes are fixed, and back ends refuse many of them as inputs.
A tensor that leaves the set becomes an output if nothing in the set reads it, or if it is an output of the whole model:
further outputs would keep back ends from fusing what they fuse in the whole.

Knows the ONNX format; where values come from is the business of whoever implements :class:`Values`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from trtops import errors
from trtops.backend.onnx import shapes, walk
from trtops.backend.onnx.constants import constant_tensors
from trtops.backend.onnx.copying import add_copy, copy_of
from trtops.backend.onnx.edit import element_type
from trtops.backend.onnx.model import is_large, tensor_spec
from trtops.backend.onnx.save import save_model
from trtops.metadata import TensorSpec

Array: TypeAlias = "np.ndarray[Any, Any]"
Arrays: TypeAlias = dict[str, Array]

_RANDOM_OPS = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
_SHAPE_OPS = frozenset(("Shape", "Size"))
_SEQUENCE_OPS = frozenset(
    (
        "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap", "SplitToSequence",
        "Optional", "ZipMap",
    )
)  # fmt: skip
_MIN_IR_VERSION = 4  # from here on weights need not be inputs too


class Values(Protocol):
    """What is known of the tensors of a model, for one or more feeds of it."""

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor; a dimension that differs between feeds is None.

        Raises:
            InvalidModelError: If nothing is known of it.
        """
        ...

    def constant(self, name: str) -> Array | None:
        """The value of a tensor, if it is known and the same for every feed."""
        ...

    def feeds(self, names: Sequence[str]) -> list[Arrays]:
        """Arrays for these tensors, by name: one dict per feed. To be read, not changed."""
        ...

    def golden(self, model: onnx.ModelProto, feeds: Sequence[Arrays], names: Sequence[str]) -> list[Arrays]:
        """What a sub-model's outputs should be for the feeds that :meth:`feeds` gave; like them."""
        ...


class Declared:
    """What a model says of its tensors, or what can be inferred from that: no data. Implements :class:`Values`."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, TensorSpec]) -> None:
        """Infer types and shapes.

        Args:
            model: The model; not changed.
            inputs: Its inputs, with the shapes to infer from.

        Raises:
            InvalidModelError: If shapes contradict each other.
        """
        inferred = copy_of(model)
        for value in inferred.graph.input:
            if value.name in inputs:
                value.CopyFrom(_value_info(inputs[value.name]))
        shapes.infer_shapes(inferred)
        self._declared = shapes.values(inferred.graph)

    def spec(self, name: str) -> TensorSpec:
        """What is declared or inferred.

        Raises:
            InvalidModelError: If not even the dtype is known.
        """
        value = self._declared.get(name)
        spec = TensorSpec(name) if value is None else tensor_spec(value)
        if spec.dtype is None:
            raise errors.InvalidModelError(
                f"The type of tensor {name!r} cannot be inferred, so the model cannot be cut there. Declare it in the "
                "model's value_info."
            )
        return spec

    def constant(self, name: str) -> Array | None:
        """None: no value is known."""
        return None

    def feeds(self, names: Sequence[str]) -> list[Arrays]:
        """Refused.

        Raises:
            ConfigError: Always.
        """
        raise errors.ConfigError(
            "There are no values for sub-models, only declared types and shapes. Let the model be run, or use a check that "
            "needs no data."
        )

    def golden(self, model: onnx.ModelProto, feeds: Sequence[Arrays], names: Sequence[str]) -> list[Arrays]:
        """Refused, as :meth:`feeds`."""
        return self.feeds(names)


@dataclass(frozen=True)
class SubModel:
    """A part of a model as a model of its own, with data for it.

    Attributes:
        nodes: Which nodes of the whole model it holds, as indices into ``graph.node``; ascending.
        proto: The model, with all weights inside; shared, not to be changed.
        inputs: Names of its inputs, in order.
        outputs: Names of its outputs, in order.
    """

    nodes: tuple[int, ...]
    proto: onnx.ModelProto = field(repr=False, compare=False)
    inputs: tuple[str, ...] = field(compare=False)
    outputs: tuple[str, ...] = field(compare=False)
    _values: Values = field(repr=False, compare=False)

    def save(
        self,
        path: str | Path,
        *,
        external_data_path: str | None = None,
        size_threshold: int = 1024,
        one_file: bool = True,
    ) -> None:
        """Write the model to a file; the weights of a large one beside it, and of others where that is asked for.

        Args:
            path: Where to write.
            external_data_path: As in :func:`trtops.backend.onnx.save.save_model`.
            size_threshold: Likewise.
            one_file: Whether all weights share one data file.
        """
        if external_data_path is None and is_large(self.proto):
            external_data_path = ""
        save_model(
            self.proto,
            path,
            external_data_path=external_data_path,
            size_threshold=size_threshold,
            all_tensors_to_one_file=one_file,
        )

    @cached_property
    def feeds(self) -> list[Arrays]:
        """Input arrays by name, one dict per feed of the whole model; in host memory, to be read only."""
        return self._values.feeds(self.inputs)

    @cached_property
    def golden(self) -> list[Arrays]:
        """What its outputs should be for :attr:`feeds`; like them."""
        return self._values.golden(self.proto, self.feeds, self.outputs)


class Cutter:
    """A model taken apart once, so that sub-models can be cut from it in time proportional to their size.

    Attributes:
        model: The model taken apart; shared, not to be changed while this is in use.
        order: Indices of all nodes but Constants in an order in which each finds its inputs ready. Constants count as
            weights, not as nodes.
        parts: The nodes again, in sets that no cut may separate, in the order of each set's last node. A set holds one
            node, or several that hand each other sequences, maps or optionals.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """Take a model apart.

        Args:
            model: A model that passes :func:`trtops.backend.onnx.model.check_structure`, with its weights inside.

        Raises:
            InvalidModelError: If nodes wait for each other in a circle.
            UnsupportedFeatureError: If an input of the model is no tensor.
        """
        self.model = model
        nodes = model.graph.node
        self._constants = _constants_by_name(model.graph)
        self.order = [i for i in walk.execution_order(nodes) if not walk.is_onnx_op(nodes[i], "Constant")]
        self._position = {index: position for position, index in enumerate(self.order)}
        self._reads: dict[int, list[str]] = {}
        self._weights: dict[int, list[str]] = {}
        for index in self.order:
            names = list(dict.fromkeys(walk.uses(nodes[index])))
            self._reads[index] = [name for name in names if name not in self._constants]
            self._weights[index] = [name for name in names if name in self._constants]
        self._maker = {name: index for index in self.order for name in nodes[index].output if name}
        self._readers: dict[str, list[int]] = {}
        for index in self.order:
            for name in self._reads[index]:
                self._readers.setdefault(name, []).append(index)
        self._graph_inputs = [v.name for v in model.graph.input if v.name not in self._constants]
        self._graph_outputs = {value.name for value in model.graph.output}
        self._no_tensors = _no_tensors(model.graph, self.order)
        if strange := self._no_tensors.intersection(self._graph_inputs):
            raise errors.UnsupportedFeatureError(
                f"Input {min(strange)!r} is a sequence, map or optional; expected tensors only. Cut the model behind it first."
            )
        self._fixed = self._find_fixed()
        self.parts = self._find_parts()

    @property
    def inputs(self) -> list[str]:
        """Names of the whole model's inputs, without those that have a weight as default."""
        return self._graph_inputs

    def label(self, index: int) -> str:
        """A node as messages name it."""
        return walk.label(self.model.graph.node[index])

    def reads(self, index: int) -> list[str]:
        """The tensors that a node reads, its sub-graphs included, without weights."""
        return self._reads[index]

    def makes(self, index: int) -> list[str]:
        """The tensors that a node makes."""
        return [name for name in self.model.graph.node[index].output if name]

    def ancestors(self, start: int, within: Collection[int]) -> set[int]:
        """A node and the nodes that it needs, directly or not, as far as they can be reached inside a set of nodes."""
        found, ahead = {start}, [start]
        while ahead:
            for name in self._reads[ahead.pop()]:
                maker = self._maker.get(name)
                if maker is not None and maker in within and maker not in found:
                    found.add(maker)
                    ahead.append(maker)
        return found

    def visible(self, index: int) -> list[str]:
        """The tensors that a node makes and something reads, sequences and such left out; of a dead end its first."""
        made = [n for n in self.model.graph.node[index].output if n and n not in self._no_tensors]
        return [n for n in made if n in self._readers or n in self._graph_outputs] or made[:1]

    def may_part_after(self) -> list[bool]:
        """For each position in :attr:`order`, whether no sequence or such is alive right behind that node."""
        alive_until = [-1] * len(self.order)
        for name in self._no_tensors:
            if name in self._maker and name in self._readers:
                last = max(self._position[reader] for reader in self._readers[name])
                start = self._position[self._maker[name]]
                alive_until[start] = max(alive_until[start], last)
        allowed, until = [], -1
        for position, last in enumerate(alive_until):
            until = max(until, last)
            allowed.append(until <= position)
        return allowed

    def cut(
        self,
        nodes: Collection[int],
        values: Values,
        *,
        expose: Literal["ends", "all"] = "ends",
        freeze_branches: bool = False,
    ) -> SubModel:
        """Make a sub-model of a set of nodes, connected or not.

        Args:
            nodes: Indices of nodes, no Constants among them; whole parts.
            values: Gives dtypes and shapes of what is cut through, and the data.
            expose: Which tensors become outputs: those at the ends, or all.
            freeze_branches: Whether what other branches bring to nodes that the set leads to becomes a weight, where it is
                the same for every feed. A beginning of the model keeps the model's own inputs.

        Raises:
            InvalidModelError: If the set is empty, or ``values`` knows nothing of a tensor that is cut through.
        """
        if not nodes:
            raise errors.InvalidModelError(
                "A sub-model needs at least one node; expected indices of nodes, found none."
            )
        inside = sorted(nodes, key=self._position.__getitem__)
        inputs, frozen = self._inputs_and_frozen(inside, values)
        if freeze_branches and not {*inputs}.issubset(self._graph_inputs):
            branches = self._branch_values(inside, inputs, values)
            frozen |= branches
            inputs = [name for name in inputs if name not in branches]
        outputs = self._outputs_of(inside) if expose == "ends" else [n for i in inside for n in self.visible(i)]
        # Filled in place: a copy of the finished graph would copy all weights once more.
        proto = onnx.ModelProto(ir_version=max(self.model.ir_version, _MIN_IR_VERSION), producer_name="trtops")
        proto.opset_import.extend(self.model.opset_import)
        proto.functions.extend(self.model.functions)
        graph = proto.graph
        graph.name = self.model.graph.name or "graph"
        graph.node.extend(self.model.graph.node[index] for index in inside)
        for name in dict.fromkeys(name for index in inside for name in self._weights[index]):
            _add_constant(graph, self._constants[name])
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in frozen.items())
        graph.input.extend(_value_info(values.spec(name)) for name in inputs)
        # While values are being found there are none of what is cut out yet: outputs go undeclared.
        declared = expose == "ends"
        graph.output.extend(_value_info(values.spec(n)) if declared else onnx.ValueInfoProto(name=n) for n in outputs)
        return SubModel(tuple(sorted(nodes)), proto, tuple(inputs), tuple(outputs), values)

    def _inputs_and_frozen(self, inside: list[int], values: Values) -> tuple[list[str], Arrays]:
        """Names of the inputs of a sub-model, the whole model's own first, and what becomes a weight of it."""
        made = {name for index in inside for name in self.model.graph.node[index].output}
        entering = [n for n in dict.fromkeys(n for i in inside for n in self._reads[i]) if n not in made]
        frozen = {n: a for n in entering if n in self._fixed and (a := values.constant(n)) is not None}
        if entering and len(frozen) == len(entering):
            # Back ends would compute a model without inputs while loading it, and a failure of theirs would not show.
            frozen = {}
        own = set(entering).intersection(self._graph_inputs)
        inputs = [n for n in self._graph_inputs if n in own] + [n for n in entering if n not in own and n not in frozen]
        return inputs, frozen

    def _branch_values(self, inside: Iterable[int], inputs: Collection[str], values: Values) -> Arrays:
        """What meets a sub-model's flow from outside, by name, where it is the same for every feed.

        A node that nothing inside leads to keeps its inputs: back ends would compute it while loading the model, and a
        failure of theirs would not show.
        """
        flowing: set[str] = set()
        frozen: Arrays = {}
        for index in inside:
            entering = [name for name in self._reads[index] if name in inputs and name not in frozen]
            if flowing.isdisjoint(self._reads[index]):
                flowing.update(entering)
            else:
                met = {name: values.constant(name) for name in entering if name not in flowing}
                frozen |= {name: array for name, array in met.items() if array is not None}
            flowing.update(self.makes(index))
        return frozen

    def _outputs_of(self, inside: list[int]) -> list[str]:
        """Names of what leaves a sub-model: outputs of the whole, and what only nodes outside of it read.

        What is read inside as well stays hidden, or back ends could not fuse it away as they do in the whole model. Where
        that leaves nothing, the set is one of dead ends, and these are shown.
        """
        members = set(inside)
        made = [name for index in inside for name in self.visible(index)]
        leaving = [
            n for n in made if n in self._graph_outputs or (n in self._readers and not members & {*self._readers[n]})
        ]
        return leaving or [n for n in made if n not in self._readers]

    def _find_fixed(self) -> set[str]:
        """Tensors whose values depend on weights and shapes alone.

        Random numbers do not count, though such a node may read nothing: drawn once, they would be the same ever after.
        """
        fixed: set[str] = set()
        for index in self.order:
            node = self.model.graph.node[index]
            if node.op_type in _RANDOM_OPS:
                continue
            if node.op_type in _SHAPE_OPS or all(name in fixed for name in self._reads[index]):
                fixed.update(filter(None, node.output))
        return fixed - self._no_tensors

    def _find_parts(self) -> tuple[frozenset[int], ...]:
        # Sets grow by union: every member of a set points at the same object, which stands for the set below.
        part = {index: {index} for index in self.order}
        for name in self._no_tensors:
            if name in self._maker:
                for reader in self._readers.get(name, ()):
                    joined = part[self._maker[name]] | part[reader]
                    for index in joined:
                        part[index] = joined
        different = {id(members): frozenset(members) for members in part.values()}
        return tuple(sorted(different.values(), key=lambda members: max(self._position[i] for i in members)))


_Constant: TypeAlias = "onnx.TensorProto | onnx.SparseTensorProto | onnx.NodeProto"


def _constants_by_name(graph: onnx.GraphProto) -> dict[str, _Constant]:
    """What a graph holds of constants: dense and sparse tensors, and Constant nodes that make no dense ones."""
    found: dict[str, _Constant] = {sparse.values.name: sparse for sparse in graph.sparse_initializer}
    found.update((node.output[0], node) for node in graph.node if walk.is_onnx_op(node, "Constant"))
    return found | constant_tensors(graph)


def _add_constant(graph: onnx.GraphProto, constant: _Constant) -> None:
    if isinstance(constant, onnx.TensorProto):
        add_copy(graph.initializer, constant)
    elif isinstance(constant, onnx.SparseTensorProto):
        add_copy(graph.sparse_initializer, constant)
    else:
        graph.node.insert(0, constant)


def _no_tensors(graph: onnx.GraphProto, order: Iterable[int]) -> set[str]:
    """Names of sequences, maps and optionals, as far as declared types and operators tell."""
    declared = (*graph.input, *graph.output, *graph.value_info)
    found = {v.name for v in declared if _is_no_tensor(v)}
    for index in order:
        node = graph.node[index]
        bodies = list(walk.subgraphs(node))
        if node.op_type in _SEQUENCE_OPS or (node.op_type == "Identity" and found.intersection(node.input)):
            found.update(filter(None, node.output))
        elif node.op_type == "If":
            found.update(name for body in bodies for name, v in zip(node.output, body.output) if _is_no_tensor(v))
        elif node.op_type == "Loop":
            found.update(name for body in bodies for name, v in zip(node.output, body.output[1:]) if _is_no_tensor(v))
    return found


def _is_no_tensor(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") in ("sequence_type", "map_type", "optional_type")


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    if spec.dtype is None:
        return onnx.ValueInfoProto(name=spec.name)
    return onnx.helper.make_tensor_value_info(spec.name, element_type(spec.dtype), spec.shape)
