"""Show an ONNX model, a TensorRT network (from a script, or from ONNX by --display-as trt), or an engine of either back end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtops.cli import asking, groups, loading
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.script import Call, Maker

_MODES = {"none": (), "basic": ("layers",), "attrs": ("layers", "attrs"), "full": ("layers", "attrs", "weights")}
_VIEWER = (
    "there is no viewer here; save the model by `trtops convert --convert-to onnx-like-trt-network` and open it in one"
)

SHOWING = Group(
    "showing",
    (
        Flag(
            names=("--convert-to", "--display-as"),
            to="display_as",
            choices=("trt",),
            help="parse the ONNX model into a TensorRT network, and show that",
        ),
        Flag(
            names=("--show",),
            takes="many",
            choices=("layers", "attrs", "weights"),
            shown="WHAT",
            help="layers, attrs, weights",
        ),
        Flag(names=("--mode",), choices=tuple(_MODES), help="as --show nothing, layers, layers attrs, or all three"),
        Flag(names=("--show-weights",), takes="switch", to="show_weights", help="as --show layers weights"),
        Flag(
            names=("--list-unbounded-dds",),
            takes="switch",
            help="list tensors whose size is unbounded and known only at run time",
        ),
        Flag(
            names=("--combine-tensor-info",),
            shown="FILE",
            help="",
            refuse="engines tell their tensors by themselves; leave it out",
        ),
        Flag(names=("--visual",), takes="switch", help="", refuse=_VIEWER),
        Flag(names=("--visual-port",), help="", refuse=_VIEWER),
        Flag(names=("--save-visual",), help="", refuse=_VIEWER),
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
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to show.

    Attributes:
        source: Makes what is shown: a network, an engine, or the changed ONNX model; None shows the file as it is.
        described_by: What describes it.
        path: The file.
        show: What to tell.
        unbounded: Whether to list unbounded tensors.
        infer_shapes: Whether to infer shapes first.
        json: Whether to print JSON.
    """

    source: Call | Any = None
    described_by: str = ""
    path: str = ""
    show: tuple[str, ...] = ()
    unbounded: bool = False
    infer_shapes: bool = False
    ignore_external_data: bool = True
    json: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    kind = loading.model_type(args) if not str(args.model_file).endswith(".ort") else "ort"
    show = tuple(
        dict.fromkeys(
            (*(args.show or ()), *_MODES[args.mode or "none"], *(("layers", "weights") if args.show_weights else ()))
        )
    )
    source, described_by = None, ""
    if kind == "engine":
        if args.display_as:
            raise UsageError(f"{args.model_file} is an engine; it is shown as what it is, without --display-as")
        source, described_by = loading.engine(args), "describe_engine"
    elif kind == "trt-network-script" or args.display_as == "trt":
        source, described_by = loading.network(args, outputs=False), "describe_network"
    elif loading.wants_onnx_changes(args) or args.list_unbounded_dds:
        source = loading.onnx_model(args)
    return Plan(
        source=source,
        described_by=described_by,
        path=args.model_file,
        show=show,
        unbounded=bool(args.list_unbounded_dds),
        infer_shapes=bool(args.shape_inference),
        json=bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Look, and print."""
    from trtops.cli.logs import say, say_json
    from trtops.ops.inspect import inspect_model

    if plan.described_by:
        from trtops.backend import trt

        made = Maker()(plan.source)()
        part = _network(made, plan.path) if plan.described_by == "describe_network" else made
        described = getattr(trt, plan.described_by)(part)
        if plan.json:
            say_json(described.to_dict())
        else:
            say(described.text(plan.show))
        return 0
    model: Any = plan.path if plan.source is None else Maker()(plan.source)()
    if plan.unbounded:
        from trtops.backend.onnx.edit import unbounded_tensors

        names = unbounded_tensors(model)
        say(
            f"{len(names)} tensors of unbounded size: {', '.join(names)}"
            if names
            else "No tensor has an unbounded size."
        )
        return 0
    asking.show(inspect_model(model, show=plan.show, infer_shapes=plan.infer_shapes), plan.json)  # type: ignore[arg-type]
    return 0


def _network(made: Any, path: str) -> Any:
    if isinstance(made, tuple) and len(made) > 1:
        return made[1]
    from trtops.errors import ConfigError

    raise ConfigError(
        f"{path}: its function returned a {type(made).__name__}; expected a builder and a network, as CreateNetwork() makes"
    )
