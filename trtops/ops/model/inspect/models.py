"""ONNX models, and engines of either back end."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from trtops.backend import onnx, trt
from trtops.backend.engines import backend_of_suffix
from trtops.backend.onnx import summary
from trtops.backend.onnx.model import read_proto
from trtops.ops.arguments import checked_arguments
from trtops.ops.result import Inspection
from trtops.record import JSONValue
from trtops.system.files import read_regular

if TYPE_CHECKING:
    from onnx import ModelProto

Show: TypeAlias = Literal["layers", "attrs", "weights"]


@checked_arguments
def inspect_model(
    model: str | Path | ModelProto, *, show: Collection[Show] = (), infer_shapes: bool = False
) -> Inspection:
    """Inspect an ONNX model, a TensorRT engine, or an engine of ONNX Runtime (``.ort``).

    ``show`` names what to show besides inputs and outputs; ``infer_shapes`` adds shapes that an ONNX model does not
    declare. InvalidModelError if it is not a model; EngineLoadError if an engine cannot be loaded here.

    >>> print(inspect_model("model.onnx").text())
    ==== ONNX Model ====
        Name: conv_net | ONNX Opset: 17
    ...
    """
    if isinstance(model, (str, Path)):
        path = Path(model)
        if path.suffix == ".ort":
            return _inspect_ort_engine(path, show)
        if backend_of_suffix(path.suffix) == "tensorrt":
            described = trt.describe_engine(trt.EngineFromPath(str(path))())
            return Inspection(lambda: described, lambda: described.text(tuple(show)))
        # Only values of weights need the other files that they may be in.
        model = onnx.onnx_from_path(path) if "weights" in show else read_proto(path)
    proto = onnx.infer_shapes(model, allow_onnxruntime=False) if infer_shapes else model
    return Inspection(lambda: summary.describe(proto), lambda: summary.summary(proto, show))


def _inspect_ort_engine(path: Path, show: Collection[str]) -> Inspection:
    # Slow to import, and not needed for other models.
    from trtops.backend.onnxrt.engine import open_plan
    from trtops.backend.onnxrt.plan import read_plan
    from trtops.backend.onnxrt.runner import OnnxrtRunner

    plan = read_regular(path)
    # ONNX Runtime loads the engine first, since read_plan does not validate its bytes.
    with OnnxrtRunner(open_plan(plan), "inspected") as runner:
        inputs, outputs = runner.get_input_metadata(use_numpy_dtypes=False), runner.get_output_metadata()
    nodes = read_plan(plan).nodes
    record: dict[str, JSONValue] = {
        "inputs": [str(spec) for spec in inputs.values()],
        "outputs": [str(spec) for spec in outputs.values()],
        "nodes": [{"name": n.name, "op": n.op, "inputs": list(n.inputs), "outputs": list(n.outputs)} for n in nodes],
    }

    def text() -> str:
        lines = ["==== ONNX Runtime Engine ====", f"Inputs: {inputs}", f"Outputs: {outputs}", f"{len(nodes)} nodes"]
        for node in nodes if show else ():
            lines.append(f"  {node.op} {node.name!r}: {', '.join(node.inputs)} -> {', '.join(node.outputs)}")
        return "\n".join(lines)

    return Inspection(lambda: record, text)
