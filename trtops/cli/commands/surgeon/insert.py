"""Insert a node between tensors of an ONNX model. A tensor named as input and as output is passed through the node."""

from __future__ import annotations

from trtops import ops
from trtops.cli import groups, surgery, values
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "the node",
        (
            flag("--op OP", "its type", required=True),
            flag("--inputs TENSOR+", "the tensors that it reads", to="node_inputs", required=True),
            flag("--outputs TENSOR+", "the tensors that it makes", to="node_outputs", required=True),
            flag("--name NAME", "its name", to="node_name", default=""),
            flag("--domain DOMAIN", "its operator domain", default=""),
            flag("--attrs NAME=VALUE+", "its attributes: axis=1 perm=[0,2,1]", convert=values.attribute),
        ),
    ),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
)
EXAMPLES = ("trtops surgeon insert model.onnx --op Clip --inputs logits --outputs logits -o clipped.onnx",)


def plan(args: Options) -> Job:
    """Return the job."""
    config = ops.InsertConfig(
        op=args.op,
        inputs=tuple(args.node_inputs),
        outputs=tuple(args.node_outputs),
        name=args.node_name,
        domain=args.domain,
        attributes=dict(args.attrs or ()),
    )
    return surgery.job(args, "insert", config)
