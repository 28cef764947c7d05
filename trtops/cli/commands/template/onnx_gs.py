"""Write a script that changes an ONNX model with ONNX-GraphSurgeon and saves it."""

from __future__ import annotations

from trtops.cli import groups, loading, templates
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import Source, quoted
from trtops.ops.model.template import updated_path

_SHAPES = "the script gets the model as it is; change shapes by `trtops surgeon sanitize --override-input-shapes`"
GROUPS = (
    groups.ONNX_MODEL, templates.OUTPUT, groups.ONNX_LOAD, groups.ONNX_OUTPUTS, groups.ONNX_SHAPE,
    Group("shapes", (Flag(names=("--input-shapes", "--inputs"), takes="many", shown="NAME:[DIMS]", help="shapes of inputs", idle=_SHAPES),)),
)  # fmt: skip
EXAMPLES = ("trtops template onnx-gs model.onnx -o change.py",)


def plan(args: Asked) -> templates.Plan:
    """What the options stand for."""
    return templates.plan(args, "onnx-gs", GROUPS, _script_text)


def _script_text(args: Asked) -> str:
    args.model_type = None
    source = Source()
    model = source.expression(loading.onnx_model(args))
    source.use("onnx_graphsurgeon", "export_onnx")
    for name in ("gs_from_onnx", "save_onnx"):
        source.use(loading.ONNX, name)
    source.add('\n\nif __name__ == "__main__":')
    source.add(f"    graph = gs_from_onnx({model})")
    source.add("    # Change the graph here.")
    source.add("    graph.cleanup().toposort()")
    changed = updated_path(args.model_file)
    source.add(f"    save_onnx(export_onnx(graph), {quoted(str(changed))})")
    return source.text(f"Changes an ONNX model, and saves it as {changed}.")


execute = templates.execute
