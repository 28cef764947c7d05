"""Cut a part out of an ONNX model: from some tensors to others. Types and shapes that are not given are inferred."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.cli import groups, surgery, values
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import call
from trtops.metadata import DataType, TensorSpec

if TYPE_CHECKING:
    from trtops.metadata import TensorSpec

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "the part",
        (
            Flag(
                names=("--inputs",), to="part_inputs", takes="any", convert=values.tensor, shown="NAME[:SHAPE[:TYPE]]",
                help="its inputs: x:[1,3,224,224]:float32, or x:auto:auto",
            ),
            Flag(names=("--outputs",), to="part_outputs", takes="many", convert=values.tensor, shown="NAME[:TYPE]", help="its outputs: y:float32, or y:auto"),
            Flag(
                names=("--model-inputs", "--model-input-shapes"), to="input_shapes", takes="many", convert=values.shape, shown="NAME:[DIMS]",
                help="shapes of the whole model's inputs, to infer shapes from",
            ),
        ),
    ),
    Group("saving", (Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to write it (default: <model>.part.onnx)"), *groups.ONNX_SAVE.flags[1:])),
    surgery.OBSERVING,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
)  # fmt: skip
EXAMPLES = ("trtops surgeon extract model.onnx --inputs x:[1,3,224,224]:float32 --outputs conv1:auto -o part.onnx",)


def plan(args: Asked) -> surgery.Operation:
    """The operation."""
    args.output = args.output or f"{Path(args.model_file).stem}.part.onnx"
    found = surgery.operation(
        args, "extract", inputs=_tensor_specs(args.part_inputs), outputs=_tensor_specs(args.part_outputs)
    )
    if not args.input_shapes:
        return found

    config = call("trtops.ops", "SanitizeConfig", input_shapes=dict(args.input_shapes))
    shaped = call("trtops.cli.surgery", "reshaped", found.model, config)
    return replace(found, model=shaped)


def _tensor_specs(tensors: Iterable[tuple[str, str, values.Shape | None]] | None) -> tuple[TensorSpec, ...] | None:

    if not tensors:
        return None
    return tuple(TensorSpec(name, DataType.of(dtype) if dtype else None, shape) for name, dtype, shape in tensors)


execute = surgery.operate
