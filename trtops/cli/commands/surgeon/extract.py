"""Cut a part out of an ONNX model, between given tensors. Types and shapes that are not given are inferred."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtops import ops
from trtops.cli import groups, surgery, values
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.script import late
from trtops.metadata import DataType, TensorSpec

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "the part",
        (
            flag(
                "--inputs NAME[:SHAPE[:TYPE]]*",
                "its inputs: x:[1,3,224,224]:float32, or x:auto:auto",
                to="part_inputs",
                convert=values.tensor,
            ),
            flag(
                "--outputs NAME[:TYPE]+", "its outputs: y:float32, or y:auto", to="part_outputs", convert=values.tensor
            ),
            flag(
                "--model-inputs --model-input-shapes NAME:[DIMS]+",
                "shapes of the whole model's inputs, to infer shapes from",
                to="input_shapes",
            ),
        ),
    ),
    Group("saving", (flag("-o --output FILE", "where to write it (default: <model>.part.onnx)", to="output"),)),
    groups.SAVE_AS,
    surgery.OBSERVING,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
)
EXAMPLES = ("trtops surgeon extract model.onnx --inputs x:[1,3,224,224]:float32 --outputs conv1:auto -o part.onnx",)


def plan(args: Options) -> Job:
    """Return the job."""
    args.output = args.output or f"{Path(args.model_file).stem}.part.onnx"
    model = surgery.find_model(args)
    if args.input_shapes:
        model = late("trtops.cli.surgery.reshaped", model, ops.SanitizeConfig(input_shapes=dict(args.input_shapes)))
    parts = {"inputs": _tensor_specs(args.part_inputs), "outputs": _tensor_specs(args.part_outputs)}
    return surgery.job(args, "extract", model=model, **parts)


def _tensor_specs(tensors: Iterable[tuple[str, str, values.Shape | None]] | None) -> tuple[TensorSpec, ...] | None:
    if not tensors:
        return None
    return tuple(TensorSpec(name, DataType.of(dtype) if dtype else None, shape) for name, dtype, shape in tensors)
