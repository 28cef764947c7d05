"""Show an ONNX model, a TensorRT network (from a script, or from ONNX by --display-as trt), or an engine of either back end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtops import ops
from trtops.backend import trt
from trtops.backend.common import save_bytes
from trtops.cli import asking, groups, loading
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json
from trtops.cli.script import Call, loaded
from trtops.errors import ConfigError

_MODES = {"none": (), "basic": ("layers",), "attrs": ("layers", "attrs"), "full": ("layers", "attrs", "weights")}

SHOWING = Group(
    "showing",
    (
        Flag(
            names=("--convert-to", "--display-as"),
            usual="none",
            to="display_as",
            choices=("trt",),
            help="parse the ONNX model into a TensorRT network, and show that",
        ),
        Flag(
            names=("--show",),
            usual="none",
            takes="many",
            choices=("layers", "attrs", "weights"),
            shown="WHAT",
            help="layers, attrs, weights",
        ),
        Flag(
            names=("--mode",),
            usual="none",
            choices=tuple(_MODES),
            help="as --show nothing, layers, layers attrs, or all three",
        ),
        Flag(names=("--show-weights",), takes="switch", to="show_weights", help="as --show layers weights"),
        Flag(
            names=("--list-unbounded-dds",),
            takes="switch",
            help="list tensors whose size is unbounded and known only at run time",
        ),
        Flag(
            names=("--combine-tensor-info",),
            shown="FILE",
            help="saved outputs of a run of this engine, whose statistics are shown with its layers; see "
            "--mark-unfused-tensors-as-debug-tensors and --save-outputs of `trtops run`",
        ),
        Flag(
            names=("--visual",), takes="switch", help="show it as a picture, in a browser of this machine, until Ctrl-C"
        ),
        Flag(
            names=("--visual-port",), convert=int, default=8000, shown="PORT", help="where --visual listens; 0 for any"
        ),
        Flag(names=("--save-visual",), shown="FILE", help="where to write the picture as an HTML page"),
    ),
)

GROUPS = (
    groups.MODEL.without("--input-shapes"), SHOWING, groups.JSON, groups.ONNX_LOAD, groups.ONNX_OUTPUTS, groups.ONNX_SHAPE,
    groups.TRT_NETWORK, groups.TRT_PARSE, groups.TRT_LOAD, groups.TENSORFLOW,
    Group("TensorRT timing", (Flag(names=("--save-timing-cache",), shown="FILE", help="timing cache to write", idle="nothing is built"),)),
)  # fmt: skip
EXAMPLES = (
    "trtops inspect model model.onnx --show layers attrs",
    "trtops inspect model model.onnx --display-as trt",
    "trtops inspect model model.engine --show layers",
    "trtops inspect model model.onnx --save-visual model.html",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to show.

    Attributes:
        source: Makes what is shown: a network, an engine, or the changed ONNX model; None shows the file as it is.
        described_by: What describes it.
        path: The file.
        show: What to show.
        unbounded: Whether to list unbounded tensors.
        infer_shapes: Whether to infer shapes first.
        tensors: Saved outputs to show with an engine's layers.
        page: Where to write a picture.
        port: Where to serve a picture; None serves none.
        json: Whether to print JSON.
    """

    source: Call | Any = None
    described_by: str = ""
    path: str = ""
    show: tuple[str, ...] = ()
    unbounded: bool = False
    infer_shapes: bool = False
    tensors: str | None = None
    page: str | None = None
    port: int | None = None
    json: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    kind = loading.model_type(args) if not str(args.model_file).endswith(".ort") else "ort"
    drawn = bool(args.visual or args.save_visual)
    show = () if drawn else _asked_parts(args)
    source, described_by = None, ""
    if kind == "engine":
        if args.display_as:
            raise UsageError(f"{args.model_file} is an engine; it is shown as what it is, without --display-as")
        source, described_by = loading.engine(args), "describe_engine"
    elif kind == "trt-network-script" or args.display_as == "trt":
        source, described_by = loading.network(args, outputs=False), "describe_network"
    elif kind in loading.TENSORFLOW or loading.wants_onnx_changes(args) or args.list_unbounded_dds:
        source = loading.onnx_model(args)
    if drawn and kind == "ort":
        raise UsageError(
            f"{args.model_file} is an engine of ONNX Runtime, of which no picture is drawn; draw the model"
        )
    if args.combine_tensor_info and (kind != "engine" or drawn or args.json):
        raise UsageError("--combine-tensor-info goes with the layers of a TensorRT engine, as text: --show layers")
    return Plan(
        source=source,
        described_by=described_by,
        path=args.model_file,
        show=show,
        unbounded=bool(args.list_unbounded_dds),
        infer_shapes=bool(args.shape_inference),
        tensors=args.combine_tensor_info,
        page=args.save_visual,
        port=args.visual_port if args.visual else None,
        json=bool(args.json) if not drawn else False,
    )


def _asked_parts(args: Asked) -> tuple[str, ...]:
    """What to show, each thing once."""
    weights = ("layers", "weights") if args.show_weights else ()
    return tuple(dict.fromkeys((*(args.show or ()), *_MODES[args.mode or "none"], *weights)))


def execute(plan: Plan) -> int:
    """Look, and print."""
    if plan.page is not None or plan.port is not None:
        return _draw_page(plan)
    if plan.described_by:
        described = _describe_made(plan)
        if plan.json:
            say_json(described.to_dict())
        else:
            say(described.text(plan.show))
        if plan.tensors is not None:
            say(ops.tensors_text(described, ops.read_tensors(plan.tensors)))
        return 0
    model = loaded(plan.source or plan.path)
    found = ops.inspect_model(model, show=plan.show, infer_shapes=plan.infer_shapes)  # type: ignore[arg-type]
    if not plan.unbounded:
        asking.show(found, plan.json)
        return 0
    names = list(ops.unbounded_tensors(model))
    if plan.json:
        say_json({"model": found.to_json(), "unbounded": names})
    else:
        say(f"{found.text().rstrip()}\nFound tensors with unbounded DDS: {names}")
    return 0


def _describe_made(plan: Plan) -> Any:
    """The description of a TensorRT network or engine."""
    made = loaded(plan.source)
    if plan.described_by == "describe_engine":
        return trt.describe_engine(made)
    if not isinstance(made, tuple) or len(made) < 2:
        raise ConfigError(
            f"{plan.path}: its function returned a {type(made).__name__}; expected a builder and a network, as "
            "CreateNetwork() makes"
        )
    return trt.describe_network(made[1])


def _draw_page(plan: Plan) -> int:
    """Draw it, and write the page, or serve it until Ctrl-C."""
    if plan.described_by:
        described = _describe_made(plan)
    else:
        described = ops.describe_onnx(loaded(plan.source or plan.path), infer_shapes=plan.infer_shapes)
    page = ops.model_page(described, Path(plan.path).name)
    if plan.page is not None:
        save_bytes(page.encode(), plan.page)
        say(f"Wrote {plan.page}")
    if plan.port is not None:
        with contextlib.suppress(KeyboardInterrupt):  # which is how it is meant to end
            ops.serve_page(page, plan.port, lambda address: say(f"{address} (Ctrl-C ends it)"))
    return 0
