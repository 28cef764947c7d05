"""The command ``trtops inspect model``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from trtops import ops
from trtops.backend import trt
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command
from trtops.cli.logs import say, say_json
from trtops.cli.script import loaded
from trtops.errors import ConfigError

_MODES = {"none": (), "basic": ("layers",), "attrs": ("layers", "attrs"), "full": ("layers", "attrs", "weights")}

SHOWING = Group(
    "showing",
    flag(
        "--convert-to --display-as {trt}",
        "parse the ONNX model into a TensorRT network, and show that",
        usual="none",
        to="display_as",
    ),
    flag("--show {layers,attrs,weights}+", "what to show of the model", usual="none"),
    flag("--mode {none,basic,attrs,full}", "as --show with nothing, layers, layers attrs, or all three", usual="none"),
    flag("--show-weights", "as --show layers weights", to="show_weights"),
    flag("--list-unbounded-dds", "list tensors whose size is unbounded and known only at run time"),
    flag(
        "--combine-tensor-info FILE",
        "saved outputs of a run of this engine, whose statistics are shown with its layers; see "
        "--mark-unfused-tensors-as-debug-tensors and --save-outputs of `trtops run`",
    ),
    flag("--visual", "show it as a picture, in a browser of this machine, until Ctrl-C"),
    flag("--visual-port PORT", "port of --visual; 0 for any", default=8000),
    flag("--save-visual FILE", "where to write the picture as an HTML page"),
)


@command(
    groups.MODEL.without("--input-shapes"),
    SHOWING,
    groups.JSON,
    *groups.ONNX,
    groups.TRT_NETWORK,
    groups.TRT_PARSE,
    groups.TRT_LOAD,
    groups.TENSORFLOW,
    Group("TensorRT timing", flag("--save-timing-cache FILE", "timing cache to write", idle="nothing is built")),
    examples=(
        "trtops inspect model model.onnx --show layers attrs",
        "trtops inspect model model.onnx --display-as trt",
        "trtops inspect model model.engine --show layers",
        "trtops inspect model model.onnx --save-visual model.html",
    ),
)
def model(args: Options) -> Job:
    """Show an ONNX model, a TensorRT network or an engine.

    A network comes from a script, or from ONNX with --display-as trt.
    """
    kind = loading.model_type(args) if not str(args.model_file).endswith(".ort") else "ort"
    drawn = bool(args.visual or args.save_visual)
    weights = ("layers", "weights") if args.show_weights else ()
    show = tuple(dict.fromkeys((*(args.show or ()), *_MODES[args.mode or "none"], *weights)))
    source, describe = args.model_file, ""
    if kind == "engine":
        if args.display_as:
            raise UsageError(f"{args.model_file} is an engine and is shown as one; leave out --display-as")
        source, describe = loading.engine(args), "describe_engine"
    elif kind == "trt-network-script" or args.display_as == "trt":
        source, describe = loading.network(args, outputs=False), "describe_network"
    elif kind in loading.TENSORFLOW or loading.wants_onnx_changes(args) or args.list_unbounded_dds:
        source = loading.onnx_model(args)
    if drawn and kind == "ort":
        raise UsageError(f"{args.model_file}: pictures of ONNX Runtime engines are not supported; draw the model")
    if args.combine_tensor_info and (kind != "engine" or drawn or args.json):
        raise UsageError("--combine-tensor-info goes with the layers of a TensorRT engine, as text: --show layers")
    infer = bool(args.shape_inference)
    path, infer, as_json, unbounded = args.model_file, bool(args.shape_inference), bool(args.json), False
    page_file, port = args.save_visual, args.visual_port if args.visual else None
    tensors = args.combine_tensor_info
    if not describe and not drawn:
        unbounded = bool(args.list_unbounded_dds)

    def run() -> int:
        made = loaded(source)
        if describe == "describe_network" and (not isinstance(made, tuple) or len(made) < 2):
            raise ConfigError(
                f"{path}: its function returned a {type(made).__name__}; expected a builder and a network"
            )
        described: Any = None
        if describe:
            described = trt.describe_engine(made) if describe == "describe_engine" else trt.describe_network(made[1])
        if drawn:
            described = described or ops.inspect_model(made, infer_shapes=infer).describe()
            page = ops.model_page(described, Path(path).name)
            if page_file is not None:
                save_bytes(page.encode(), page_file)
                say(f"Wrote {page_file}")
            if port is not None:
                with contextlib.suppress(KeyboardInterrupt):  # the intended way to end it
                    ops.serve_page(page, port, lambda address: say(f"{address} (Ctrl-C ends it)"))
        elif describe:
            if as_json:
                say_json(described.to_dict())
            else:
                say(described.text(show))
            if tensors is not None:
                say(ops.tensors_text(described, tensors))
        else:
            found = ops.inspect_model(made, show=show, infer_shapes=infer)
            names = list(ops.unbounded_tensors(made)) if unbounded else []
            if as_json:
                say_json({"model": found.to_json(), "unbounded": names} if unbounded else found.to_json())
            elif unbounded:
                say(f"{found.text().rstrip()}\nFound tensors with unbounded DDS: {names}")
            else:
                say(found.text())
        return 0

    return run
