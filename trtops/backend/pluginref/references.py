"""Reference implementations of operators that ONNX does not define, registered by scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from trtops import errors

Reference: TypeAlias = Callable[..., Sequence[Any]]

OP_REGISTRY: dict[str, Reference] = {}
"""The functions by operator, in any domain."""


def register(op: str) -> Callable[[Reference], Reference]:
    """Decorate the reference implementation of an operator.

    It is called with the node's attributes by name and the node's inputs, arrays or None, and returns its outputs.

    >>> @register("Scale")
    ... def scale(attrs, x):
    ...     return [attrs["factor"] * x]
    """

    def decorate(function: Reference) -> Reference:
        OP_REGISTRY[op] = function
        return function

    return decorate


def operators_of(nodes: Sequence[Any]) -> list[type[Any]]:
    """Return the registered operators of these nodes, for ONNX's reference evaluator."""
    from onnx import helper, numpy_helper
    from onnx.reference.op_run import OpRun

    def value_of(attribute: Any) -> Any:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode()
        return numpy_helper.to_array(value) if attribute.HasField("t") else value

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        outputs = OP_REGISTRY[node.op_type]({a.name: value_of(a) for a in node.attribute}, *inputs)
        if len(outputs) != len(node.output):
            raise errors.InferenceError(
                f"The reference implementation of {node.op_type} returned {len(outputs)} outputs; expected "
                f"{len(node.output)}."
            )
        return tuple(outputs)

    kinds = {(node.domain, node.op_type) for node in nodes if node.op_type in OP_REGISTRY}
    return [type(name, (OpRun,), {"op_domain": domain, "_run": run}) for domain, name in sorted(kinds)]
