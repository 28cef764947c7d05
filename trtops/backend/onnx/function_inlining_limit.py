"""The limit on the nodes that a model has after its functions are inlined.

Shape inference, ONNX's checker, ONNX Runtime and TensorRT all inline a model's functions. Thirty functions that each
call the previous one twice take two kilobytes, and a thousand million nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import walk
from trtops.limits import NODES, node_limit

if TYPE_CHECKING:
    import onnx

_MAX_DEPTH = 200  # of nested calls: more than any exporter writes, and less than overflows the stack of what inlines


def check_inlined_size(model: onnx.ModelProto, where: str = "") -> None:
    """Compute the node count after inlining functions, without inlining; error messages begin with ``where``.

    Raises:
        InvalidModelError: If functions are recursive, or the count is above ``TRTOPS_NODE_LIMIT``.
    """
    if not model.functions:
        return
    functions = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_calls: list[tuple[str, str]] = []

    def size_of(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            total += 1 + inlined_size(node)
            for body in walk.subgraphs(node):
                for graph in walk.graphs(body):
                    for inner in graph.node:
                        total += 1 + inlined_size(inner)
        return total

    def inlined_size(node: onnx.NodeProto) -> int:
        key = (node.domain, node.op_type)
        if key not in functions:
            return 0
        if key not in sizes:
            if key in open_calls or len(open_calls) >= _MAX_DEPTH:
                what = "calls itself" if key in open_calls else f"is called through more than {_MAX_DEPTH} others"
                raise errors.InvalidModelError(f"{where}function {node.op_type!r} of the model {what}.")
            open_calls.append(key)
            sizes[key] = size_of(functions[key])
            open_calls.pop()
        return sizes[key]

    total, limit = size_of(model.graph.node), node_limit()
    if total > limit:
        raise errors.InvalidModelError(
            f"{where}the model has {total:,} nodes after its {len(model.functions)} functions are inlined; expected at "
            f"most {limit:,}. Set {NODES} to allow more."
        )
