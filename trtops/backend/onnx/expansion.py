"""What a model's functions come to once each call is replaced by the function's nodes: told without doing it.

Whatever looks at a model expands its functions: shape inference, the checker, ONNX Runtime, TensorRT. Thirty functions that
each call the one before twice are two kilobytes, and a thousand million nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trtops import errors
from trtops.limits import NODES, node_limit

if TYPE_CHECKING:
    import onnx

_DEEPEST = 200
"""Calls within calls; further than any exporter nests them, and not as far as the stack of what expands them."""


def check_expansion(model: onnx.ModelProto, where: str = "") -> None:
    """Refuse a model whose functions call themselves, or come to too many nodes.

    Args:
        model: The model.
        where: What to put before an error message, such as ``"model.onnx: "``.

    Raises:
        InvalidModelError: If it is one.
    """
    if not model.functions:
        return
    functions = {(function.domain, function.name): function.node for function in model.functions}
    limit = node_limit()
    sizes: dict[tuple[str, str], int] = {}
    open_calls: list[tuple[str, str]] = []

    def size_of(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(1 + _called(node) for node in _with_bodies(nodes))

    def _called(node: onnx.NodeProto) -> int:
        key = (node.domain, node.op_type)
        if key not in functions:
            return 0
        if key not in sizes:
            if key in open_calls or len(open_calls) >= _DEEPEST:
                what = "calls itself" if key in open_calls else f"is called through more than {_DEEPEST} others"
                raise errors.InvalidModelError(f"{where}function {node.op_type!r} of the model {what}.")
            open_calls.append(key)
            sizes[key] = size_of(functions[key])
            open_calls.pop()
        return sizes[key]

    total = size_of(model.graph.node)
    if total > limit:
        raise errors.InvalidModelError(
            f"{where}its {len(model.functions)} functions would come to {total:,} nodes once each call is expanded; expected "
            f"{limit:,} at most. If that is meant, set {NODES} to more."
        )


def _with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """Nodes, and those in the bodies of them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_bodies(attribute.g.node)
            for graph in attribute.graphs:
                yield from _with_bodies(graph.node)
