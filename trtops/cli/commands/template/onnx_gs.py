"""Write a script that changes an ONNX model with ONNX-GraphSurgeon and saves it."""

from __future__ import annotations

from dataclasses import replace

from trtops.cli import groups, loading, templates
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job
from trtops.cli.script import Source, quoted
from trtops.ops.model.template import updated_path

_SHAPES = "the script gets the unchanged model; change shapes with `trtops surgeon sanitize --override-input-shapes`"
GROUPS = (
    groups.ONNX_MODEL,
    templates.OUTPUT,
    groups.ONNX_LOAD,
    groups.ONNX_OUTPUTS,
    groups.ONNX_SHAPE,
    Group("shapes", (replace(groups.INPUT_SHAPES, idle=_SHAPES, convert=str),)),
)
EXAMPLES = ("trtops template onnx-gs model.onnx -o change.py",)


def plan(args: Options) -> Job:
    """Return the job."""
    return templates.job(args, "onnx-gs", GROUPS, _script_text)


def _script_text(args: Options) -> str:
    source = Source()
    model = source.expression(loading.onnx_model(args.but(model_type=None)))
    source.use("onnx_graphsurgeon", "export_onnx")
    source.use("trtops.backend.onnx", "gs_from_onnx", "save_onnx")
    source.add('\n\nif __name__ == "__main__":')
    source.add(f"    graph = gs_from_onnx({model})")
    source.add("    # Change the graph here.")
    source.add("    graph.cleanup().toposort()")
    changed = updated_path(args.model_file)
    source.add(f"    save_onnx(export_onnx(graph), {quoted(str(changed))})")
    return source.text(f"Changes an ONNX model, and saves it as {changed}.")
