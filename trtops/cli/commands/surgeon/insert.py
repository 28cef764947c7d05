"""Put a node between tensors of an ONNX model. A tensor named as input and as output is passed through the node."""

from __future__ import annotations

from trtops import ops
from trtops.cli import groups, surgery, values
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "the node",
        (
            Flag(names=("--op",), required=True, shown="OP", help="its type"),
            Flag(names=("--inputs",), to="node_inputs", takes="many", required=True, shown="TENSOR", help="the tensors that it reads"),
            Flag(names=("--outputs",), to="node_outputs", takes="many", required=True, shown="TENSOR", help="the tensors that it makes"),
            Flag(names=("--name",), to="node_name", default="", help="its name"),
            Flag(names=("--domain",), default="", help="its operator domain"),
            Flag(names=("--attrs",), takes="many", convert=values.attribute, shown="NAME=VALUE", help="its attributes: axis=1 perm=[0,2,1]"),
        ),
    ),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
)  # fmt: skip
EXAMPLES = ("trtops surgeon insert model.onnx --op Clip --inputs logits --outputs logits -o clipped.onnx",)


def plan(args: Asked) -> surgery.Operation:
    """The operation."""
    config = ops.InsertConfig(
        op=args.op,
        inputs=tuple(args.node_inputs),
        outputs=tuple(args.node_outputs),
        name=args.node_name,
        domain=args.domain,
        attributes=dict(args.attrs or ()),
    )
    return surgery.operation(args, "insert", config)


execute = surgery.operate
