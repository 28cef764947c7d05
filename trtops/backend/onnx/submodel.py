"""Sub-models: any set of a model's nodes as a model of its own, fast enough to do it repeatedly.

A tensor that enters the set becomes an input with its observed dtype and shape, or a weight if its value is fixed. A
tensor that leaves the set becomes an output if nothing in the set reads it, or if it is an output of the whole model.
Values come from an implementation of :class:`Values`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from trtops import errors
from trtops.backend.onnx import copying, shapes, walk
from trtops.backend.onnx.edit import element_type
from trtops.backend.onnx.model import tensor_spec
from trtops.metadata import TensorSpec

Array: TypeAlias = np.ndarray[Any, Any]
Arrays: TypeAlias = dict[str, Array]

_SHAPE_OPS = frozenset(("Shape", "Size"))
_SEQUENCE_OPS = frozenset((
    "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap", "SplitToSequence",
    "Optional", "ZipMap",
))  # fmt: skip
# From which on weights need not be inputs too.
_MIN_IR_VERSION = 4

_Constant: TypeAlias = onnx.TensorProto | onnx.SparseTensorProto | onnx.NodeProto


class Values:
    """What is known of a model's tensors, for one or more feeds; without data, types and shapes only."""

    def spec(self, name: str) -> TensorSpec:
        """Return dtype and shape of a tensor; dimensions differing between feeds are None."""
        raise NotImplementedError

    def constant(self, name: str) -> Array | None:
        """The value of a tensor, if it is known and the same for every feed."""
        return None

    def feeds(self, names: Sequence[str]) -> list[Arrays]:
        """Read-only arrays for these tensors, by name: one dict per feed. ConfigError without data."""
        raise errors.ConfigError("Sub-models have no values, only declared types and shapes. Allow the model to run.")


class Declared(Values):
    """Declared or inferred types and shapes, without data."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, TensorSpec]) -> None:
        """Infer types and shapes of a model from these input shapes; the model is not changed."""
        inferred = copying.copy_of(model)
        for value in inferred.graph.input:
            if value.name in inputs:
                value.CopyFrom(_value_info(inputs[value.name]))
        shapes.infer_shapes(inferred)
        self._declared = shapes.values(inferred.graph)

    def spec(self, name: str) -> TensorSpec:
        """The declared or inferred dtype and shape."""
        value = self._declared.get(name)
        spec = TensorSpec(name) if value is None else tensor_spec(value)
        if spec.dtype is None:
            raise errors.InvalidModelError(
                f"The type of tensor {name!r} cannot be inferred, so the model cannot be cut there. Declare it in the "
                "model's value_info."
            )
        return spec


@dataclass(frozen=True)
class SubModel:
    """A part of a model as a model of its own, with data for it. ``proto`` is shared, and must not be changed."""

    nodes: tuple[int, ...]  # indices in the whole model's ``graph.node``, ascending
    proto: onnx.ModelProto = field(repr=False, compare=False)
    inputs: tuple[str, ...] = field(compare=False)
    outputs: tuple[str, ...] = field(compare=False)
    _values: Values = field(repr=False, compare=False)

    @cached_property
    def feeds(self) -> list[Arrays]:
        """Read-only input arrays by name, one dict per feed of the whole model; in host memory."""
        return self._values.feeds(self.inputs)

    @cached_property
    def golden(self) -> list[Arrays]:
        """The expected outputs: values of the whole model are valid for any part of it."""
        return self._values.feeds(self.outputs)


class Cutter:
    """An analyzed model for cutting out sub-models, in time proportional to their size.

    ``order`` has the indices of all nodes except Constants, which count as weights, in order of execution. ``parts``
    are sets of nodes that no cut may separate: one node, or several that exchange sequences, maps or optionals.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """Analyze a model with its weights inside, valid by :func:`trtops.backend.onnx.model.check_structure`."""
        self.model = model
        nodes = model.graph.node
        self._constants: dict[str, _Constant] = {s.values.name: s for s in model.graph.sparse_initializer}
        self._constants.update((node.output[0], node) for node in nodes if walk.is_onnx_op(node, "Constant"))
        self._constants |= walk.constant_tensors(model.graph)  # these replace the Constant nodes that produce tensors
        self.order = [i for i in walk.execution_order(nodes) if not walk.is_onnx_op(nodes[i], "Constant")]
        self._position = dict(zip(self.order, count()))
        self._reads: dict[int, list[str]] = {}
        self._weights: dict[int, list[str]] = {}
        for index in self.order:
            names = list(dict.fromkeys(walk.uses(nodes[index])))
            self._weights[index] = list(filter(self._constants.__contains__, names))
            self._reads[index] = [name for name in names if name not in self._constants]
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for index in self.order:
            self._maker.update(dict.fromkeys(filter(None, nodes[index].output), index))
            for name in self._reads[index]:
                self._readers.setdefault(name, []).append(index)
        # The whole model's, without those that have a weight as default.
        self.inputs = [v.name for v in model.graph.input if v.name not in self._constants]
        self._graph_outputs = walk.names_of(model.graph.output)
        self._non_tensors = _non_tensors(model.graph, self.order)
        if unsupported := self._non_tensors.intersection(self.inputs):
            raise errors.UnsupportedFeatureError(
                f"Input {min(unsupported)!r} is a sequence, map or optional; expected only tensors. Cut the model "
                "after it first."
            )
        self._fixed = self._find_fixed()
        self.parts = self._find_parts()

    def reads(self, index: int) -> list[str]:
        """Return the tensors read by a node and its sub-graphs, without weights."""
        return self._reads[index]

    def makes(self, index: int) -> list[str]:
        """Return the tensors produced by a node."""
        return list(filter(None, self.model.graph.node[index].output))

    def ancestors(self, start: int, within: Collection[int]) -> set[int]:
        """Return a node and its direct and indirect predecessors reachable within a set of nodes."""
        predecessors, ahead = {start}, [start]
        while ahead:
            for name in self._reads[ahead.pop()]:
                maker = self._maker.get(name)
                if maker is not None and maker in within and maker not in predecessors:
                    predecessors.add(maker)
                    ahead.append(maker)
        return predecessors

    def visible(self, index: int) -> list[str]:
        """Return the tensors of a node with a reader, or else its first one; no sequences."""
        tensors = [name for name in self.makes(index) if name not in self._non_tensors]
        return [name for name in tensors if name in self._readers or name in self._graph_outputs] or tensors[:1]

    def may_part_after(self) -> list[bool]:
        """Return True for each position in :attr:`order` with no sequence, map or optional alive after its node."""
        alive_until = [-1] * len(self.order)
        for name in self._non_tensors:
            if name in self._maker and name in self._readers:
                last = max(map(self._position.__getitem__, self._readers[name]))
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
        """Make a sub-model of nodes in whole parts, connected or not; the tensors at its ends become outputs, or all.

        With ``freeze_branches``, tensors that enter from other branches, at nodes that the set leads to, become weights
        if they are the same for every feed. A beginning of the model keeps the model's own inputs.
        """
        if not nodes:
            raise errors.InvalidModelError(
                "A sub-model needs at least one node; expected indices of nodes, found none."
            )
        inside = sorted(nodes, key=self._position.__getitem__)
        inputs, frozen = self._inputs_and_frozen(inside, values)
        if freeze_branches and not {*inputs}.issubset(self.inputs):
            branches = self._branch_values(inside, inputs, values)
            frozen |= branches
            inputs = [name for name in inputs if name not in branches]
        outputs = self._outputs_of(inside) if expose == "ends" else self._visible_in(inside)
        # Filled in place: a copy of the finished graph would copy all weights once more.
        proto = onnx.ModelProto(ir_version=max(self.model.ir_version, _MIN_IR_VERSION), producer_name="trtops")
        proto.opset_import.extend(self.model.opset_import)
        proto.functions.extend(self.model.functions)
        graph = proto.graph
        graph.name = self.model.graph.name or "graph"
        graph.node.extend(map(self.model.graph.node.__getitem__, inside))
        for name in dict.fromkeys(chain.from_iterable(map(self._weights.__getitem__, inside))):
            constant = self._constants[name]
            if isinstance(constant, onnx.TensorProto):
                copying.add_copy(graph.initializer, constant)
            elif isinstance(constant, onnx.SparseTensorProto):
                copying.add_copy(graph.sparse_initializer, constant)
            else:
                graph.node.insert(0, constant)
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in frozen.items())
        graph.input.extend(map(_value_info, map(values.spec, inputs)))
        # While values are being observed, those of the outputs are still unknown.
        declared = expose == "ends"
        graph.output.extend(_value_info(values.spec(n)) if declared else onnx.ValueInfoProto(name=n) for n in outputs)
        return SubModel(tuple(sorted(nodes)), proto, tuple(inputs), tuple(outputs), values)

    def _inputs_and_frozen(self, inside: list[int], values: Values) -> tuple[list[str], Arrays]:
        """Return a sub-model's input names, the whole model's own first, and the tensors to turn into weights."""
        produced = set(chain.from_iterable(map(self.makes, inside)))
        reads = dict.fromkeys(chain.from_iterable(map(self._reads.__getitem__, inside)))
        entering = dict.fromkeys(name for name in reads if name not in produced)
        frozen: Arrays = {}
        for name in entering:
            if name in self._fixed and (constant := values.constant(name)) is not None:
                frozen[name] = constant
        if entering and len(frozen) == len(entering):
            # Back ends would compute a model without inputs while loading it, which would hide a failure.
            frozen = {}
        inputs = list(filter(entering.__contains__, self.inputs))
        inputs += [name for name in entering if name not in inputs and name not in frozen]
        return inputs, frozen

    def _branch_values(self, inside: Iterable[int], inputs: Collection[str], values: Values) -> Arrays:
        """Return the tensors entering from other branches with one value for all feeds, by name."""
        # A node without predecessors inside keeps its inputs, or back ends would compute it while loading.
        flowing: set[str] = set()
        frozen: Arrays = {}
        for index in inside:
            entering = [name for name in self._reads[index] if name in inputs and name not in frozen]
            if flowing.isdisjoint(self._reads[index]):
                flowing.update(entering)
            else:
                for name in entering:
                    if name not in flowing and (constant := values.constant(name)) is not None:
                        frozen[name] = constant
            flowing.update(self.makes(index))
        return frozen

    def _outputs_of(self, inside: list[int]) -> list[str]:
        """Return a sub-model's output names: outputs of the whole, and tensors read only by nodes outside.

        If it has no such tensors, the outputs are the tensors that nothing reads.
        """
        # With tensors that are also read inside, back ends could not fuse what they fuse in the whole model.
        members = set(inside)
        visible, leaving = self._visible_in(inside), []
        for name in visible:
            readers = self._readers.get(name, ())
            if name in self._graph_outputs or (readers and members.isdisjoint(readers)):
                leaving.append(name)
        return leaving or [name for name in visible if name not in self._readers]

    def _visible_in(self, inside: Iterable[int]) -> list[str]:
        return list(chain.from_iterable(map(self.visible, inside)))

    def _find_fixed(self) -> set[str]:
        """Return the tensors determined by weights and shapes alone."""
        # These values are fixed once the model's shapes are (the ``Shape -> Gather -> Concat`` chains before a
        # Reshape), and back ends refuse many of them as inputs. Random numbers would become constant, so they do not
        # count.
        fixed: set[str] = set()
        for index in self.order:
            node = self.model.graph.node[index]
            if walk.is_random(node):
                continue
            if node.op_type in _SHAPE_OPS or fixed.issuperset(self._reads[index]):
                fixed.update(filter(None, node.output))
        return fixed - self._non_tensors

    def _find_parts(self) -> tuple[frozenset[int], ...]:
        # Sets grow by union: every member points to the same object, which identifies the set below.
        part = {index: {index} for index in self.order}
        for name in self._non_tensors:
            if name in self._maker:
                for reader in self._readers.get(name, ()):
                    joined = part[self._maker[name]] | part[reader]
                    for index in joined:
                        part[index] = joined
        different = {id(members): frozenset(members) for members in part.values()}
        return tuple(sorted(different.values(), key=lambda members: max(map(self._position.__getitem__, members))))


def _non_tensors(graph: onnx.GraphProto, order: Iterable[int]) -> set[str]:
    """Names of sequences, maps and optionals, by declared types and operators."""
    names = walk.names_of(filter(_is_non_tensor, (*graph.input, *graph.output, *graph.value_info)))
    for index in order:
        node = graph.node[index]
        bodies = list(walk.subgraphs(node))
        if node.op_type in _SEQUENCE_OPS or (node.op_type == "Identity" and names.intersection(node.input)):
            names.update(filter(None, node.output))
        elif node.op_type in ("If", "Loop"):
            first = 1 if node.op_type == "Loop" else 0  # after the condition
            for body in bodies:
                names.update(name for name, v in zip(node.output, body.output[first:]) if _is_non_tensor(v))
    return names


def _is_non_tensor(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") in ("sequence_type", "map_type", "optional_type")


def _value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    if spec.dtype is None:
        return onnx.ValueInfoProto(name=spec.name)
    return onnx.helper.make_tensor_value_info(spec.name, element_type(spec.dtype), spec.shape)
