"""Nodes cut out of a model, put into it, and taken out of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from trtops import errors
from trtops.backend.onnx import edit, surgery
from trtops.backend.onnx.model import check_structure
from trtops.metadata import TensorSpec
from trtops.ops.model.opening import Source
from trtops.ops.model.saving import SaveConfig
from trtops.ops.model.surgeon.operation import SurgeonResult, first_names, operate
from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class InsertConfig(Record):
    """A node to put in.

    Attributes:
        op: Its type.
        inputs: Names of the tensors that it reads.
        outputs: Names of the tensors that it makes; one that is an input as well is passed through it.
        name: Its name.
        domain: Its operator domain.
        attributes: Its attributes: numbers, text, or lists of these.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    domain: str = ""
    attributes: Mapping[str, int | float | str | tuple[int | float | str, ...]] = field(default_factory=dict)


def extract(
    model: Source,
    output: str | Path | None = None,
    *,
    inputs: Iterable[TensorSpec] | None = None,
    outputs: Iterable[TensorSpec] | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Cut a part out of a model.

    Args:
        model: The model; not changed.
        output: Where to write the part; None does not.
        inputs: The part's inputs; dtypes and shapes that are None are inferred. None keeps the model's.
        outputs: The part's outputs, likewise.
        save_as: Where weights go.

    Raises:
        ModelError: If the part contradicts itself.
        ConfigError: If a tensor does not exist, or the part needs more inputs; the message names them.
    """
    starts = None if inputs is None else {spec.name: spec for spec in inputs}
    ends = None if outputs is None else {spec.name: spec for spec in outputs}

    def cut(proto: onnx.ModelProto) -> list[str]:
        edit.extract(proto, starts, ends)
        check_structure(proto)
        graph = proto.graph
        return [f"From {first_names(v.name for v in graph.input)} to {first_names(v.name for v in graph.output)}."]

    return operate(model, output, save_as, cut)


def insert(
    model: Source, output: str | Path | None, config: InsertConfig, *, save_as: SaveConfig | None = None
) -> SurgeonResult:
    """Put a node between tensors, in place of whatever was there; see :func:`trtops.backend.onnx.surgery.insert_node`.

    Args:
        model: The model; not changed.
        output: Where to write the new one; None does not.
        config: The node.
        save_as: Where weights go.

    Raises:
        ModelError: If the model contradicts itself.
        ConfigError: If a tensor does not exist, or the node would depend on itself.
    """

    def put(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        surgery.insert_node(
            proto,
            config.op,
            config.inputs,
            config.outputs,
            name=config.name,
            domain=config.domain,
            attributes={
                name: list(value) if isinstance(value, tuple) else value for name, value in config.attributes.items()
            },
        )
        return [f"Inserted {config.op} between {first_names(config.inputs)} and {first_names(config.outputs)}."]

    return operate(model, output, save_as, put)


def remove_nodes(
    model: Source, output: str | Path | None, types: Collection[str], *, save_as: SaveConfig | None = None
) -> SurgeonResult:
    """Take all nodes of some types out of a model, each passing its first input on.

    For operators that a back end lacks and that do nothing to the values: identities of a framework, debug prints, fake
    quantization.

    Args:
        model: The model; not changed.
        output: Where to write the new one; None does not.
        types: Types of nodes, without their domains. What reads such a node's first output reads its first input afterwards.
        save_as: Where weights go.

    Raises:
        ModelError: If the model cannot be read.
        ConfigError: If it has no node of a type, a node has other than one input that is no weight and one output, or
            ``output`` is a file of the model itself.
    """

    def remove(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        known = {node.op_type for node in proto.graph.node}
        for kind in types:
            if kind not in known:
                raise errors.ConfigError(f"The model has no node of type {kind!r}. {errors.near(kind, known)}")
        removed = [_remove_node(proto.graph, node) for node in [n for n in proto.graph.node if n.op_type in types]]
        return [f"Took out {len(removed)} nodes: {first_names(removed)}."]

    return operate(model, output, save_as, remove)


def _remove_node(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    """Take a node out, and return what messages call it."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [name for name in node.input if name and name not in weights]
    outputs = [name for name in node.output if name]
    label = f"{node.op_type} {node.name or outputs[0]!r}"
    if len(inputs) != 1 or len(outputs) != 1:
        raise errors.ConfigError(
            f"{label} has {len(inputs)} inputs and {len(outputs)} outputs; expected one of each, to pass one on as the other. "
            "Cut around it by `trtops surgeon extract`, or put another node in its place by `trtops surgeon insert`."
        )
    source, target = inputs[0], outputs[0]
    graph.node.remove(node)
    if any(value.name == target for value in graph.output):
        # The output keeps its name: whoever makes the source makes it under that name from now on.
        passed = onnx.helper.make_node("Identity", [source], [target], name=f"{node.name or target}_removed")
        graph.node.append(passed)
        return label
    for reader in graph.node:
        for place, name in enumerate(reader.input):
            if name == target:
                reader.input[place] = source
    return label
