"""What the surgeon's commands share: the model they change, and how the new one is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say
from trtops.cli.script import Call, Maker, call

if TYPE_CHECKING:
    from trtops.ops.model.model_files import SaveConfig


@dataclass(frozen=True)
class Operation:
    """An op of the surgeon with its arguments; the model and where the result goes are put in when it is carried out.

    Attributes:
        name: The op.
        model: The model's path, or what makes it.
        output: Where the new model goes.
        save_as: Where its weights go.
        args: Further arguments by place.
        kwargs: Further arguments by name.
    """

    name: str
    model: str | Call
    output: str
    save_as: SaveConfig
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()


def operation(args: Asked, name: str, *more: Any, **kwargs: Any) -> Operation:
    """The operation that a command stands for."""
    return Operation(name, model(args), args.output, save_config(args), more, tuple(kwargs.items()))


OBSERVING = Group(
    "shapes by running the model",
    (
        Flag(
            names=("--force-fallback-shape-inference",),
            takes="switch",
            help="take all shapes from running the model once, on the input data; what was dynamic is static then",
        ),
        *groups.DATA.without("--iterations").flags,
        *groups.ONE_FEED.flags,
    ),
)


def model(args: Asked) -> str | Call:
    """The model: its path where it is taken as it is, else what loads and changes it."""
    loaded = _loaded_model(args)
    if not getattr(args, "force_fallback_shape_inference", None):
        return loaded
    data = loading.data_loader(args.but(iterations=None))
    return call("trtops.ops", "with_observed_shapes", loaded, data)


def _loaded_model(args: Asked) -> str | Call:
    if not any(
        getattr(args, n, None) for n in ("external_data_dir", "ignore_external_data", "fp_to_fp16", "shape_inference")
    ):
        return str(args.model_file)
    made = call(
        loading.ONNX, "onnx_from_path", args.model_file,
        external_data_dir=args.external_data_dir, ignore_external_data=args.ignore_external_data,
    )  # fmt: skip
    if getattr(args, "shape_inference", None):
        options = (("allow_onnxruntime", False),) if args.no_onnxruntime_shape_inference else ()
        made = Call(loading.ONNX, "infer_shapes", (made,), options)
    return call(loading.ONNX, "convert_to_fp16", made) if args.fp_to_fp16 else made


def save_config(args: Asked) -> SaveConfig:
    """Where weights go."""
    threshold = args.external_data_size_threshold
    return ops.SaveConfig(
        external_data=args.save_external_data,
        size_threshold=1024 if threshold is None else threshold,
        one_file=not args.no_save_all_tensors_to_one_file,
    )


def operate(plan: Operation) -> int:
    """Carry it out, and say what was done."""
    op = getattr(ops, plan.name)
    result = op(
        Maker()(plan.model), plan.output, *plan.args, save_as=plan.save_as, **{n: Maker()(v) for n, v in plan.kwargs}
    )
    say(result.text())
    return 0


def reshaped(model: Any, config: Any) -> Any:
    """A model with other input shapes, in memory."""
    return ops.sanitize(model, None, config).model


def names_in(path: str) -> tuple[str, ...]:
    """The lines of a file that are not empty."""
    return tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())
