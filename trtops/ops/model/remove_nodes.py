"""Take all nodes of some types out of a model, each passing its first input on.

For operators that a back end lacks and that do nothing to the values: identities of a framework, debug prints, fake
quantization.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx

from trtops import errors
from trtops.backend.onnx import walk
from trtops.ops.model.opening import Source, open_model
from trtops.ops.model.saving import SaveConfig, write_model
from trtops.ops.model.surgeon import SurgeonResult


def remove_nodes(
    model: Source, output: str | Path | None, types: Collection[str], *, save_as: SaveConfig | None = None
) -> SurgeonResult:
    """Take nodes out of a model.

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
    opened = open_model(model)
    files = {path.resolve() for path in opened.files()} if opened.path is not None else set()
    if output is not None and Path(output).resolve() in files:
        raise errors.ConfigError(
            f"Writing {str(output)!r} would replace a file of the model itself. Give another path."
        )
    proto = opened.proto()
    before = sum(1 for _ in walk.nodes(proto))
    known = {node.op_type for node in proto.graph.node}
    for kind in types:
        if kind not in known:
            raise errors.ConfigError(f"The model has no node of type {kind!r}. {errors.near(kind, known)}")
    removed = [_remove(proto.graph, node) for node in [n for n in proto.graph.node if n.op_type in types]]
    if output is not None:
        write_model(proto, output, save_as)
    return SurgeonResult(
        path=None if output is None else str(output),
        nodes_before=before,
        nodes=sum(1 for _ in walk.nodes(proto)),
        changes=(f"Took out {len(removed)} nodes: {', '.join(removed[:10])}.",),
        _proto=proto,
    )


def _remove(graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
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
