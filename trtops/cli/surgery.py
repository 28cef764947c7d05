"""What the surgeon commands share: the model they change, and how the new one is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say
from trtops.cli.script import late, loaded

if TYPE_CHECKING:
    from trtops.ops.model.model_files import SaveConfig

OBSERVING = Group(
    "shapes from running the model",
    (
        flag(
            "--force-fallback-shape-inference",
            "take all shapes from running the model once, on the input data; dynamic shapes become static",
        ),
        *groups.DATA.without("--iterations").flags,
        *groups.ONE_FEED.flags,
    ),
)


def job(args: Options, op: str, *more: Any, model: Any = None, **kwargs: Any) -> Job:
    """Return the job of a surgeon's op on the model that the options describe, unless another one is given."""
    source = find_model(args) if model is None else model
    return Job(call=_operate, args=(op, source, args.output, *more), kwargs=kwargs | {"save_as": save_config(args)})


def _operate(op: str, source: Any, output: str, *more: Any, **kwargs: Any) -> int:
    say(getattr(ops, op)(loaded(source), output, *more, **kwargs).text())
    return 0


def find_model(args: Options) -> Any:
    """Return the model: its path where it is used unchanged, otherwise a loader."""
    model: Any = args.model_file
    changes = ("external_data_dir", "ignore_external_data", "fp_to_fp16", "shape_inference")
    if any([getattr(args, name, None) for name in changes]):
        model = loading.onnx_model(args.but(model_type="onnx"))
    if not getattr(args, "force_fallback_shape_inference", None):
        return model
    return late("trtops.cli.surgery.observed", model, loading.data_loader(args.but(iterations=None)))


def observed(source: Any, data: Any) -> Any:
    """Return a model with the shapes seen when it ran."""
    return ops.with_observed_shapes(loaded(source), data)


def reshaped(source: Any, config: Any) -> Any:
    """Return a model with other input shapes."""
    return ops.sanitize(loaded(source), None, config).model


def save_config(args: Options) -> SaveConfig:
    """Return where weights are saved."""
    threshold = args.external_data_size_threshold
    return ops.SaveConfig(
        external_data=args.save_external_data,
        size_threshold=1024 if threshold is None else threshold,
        one_file=not args.no_save_all_tensors_to_one_file,
    )


def names_in(path: str) -> tuple[str, ...]:
    """Return the lines of a file that are not empty."""
    return tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())
