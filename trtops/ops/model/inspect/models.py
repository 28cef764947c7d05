"""ONNX models, TensorRT networks, and engines of either back end."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trtops.backend import onnx, trt
from trtops.backend.common import invoke_from_script
from trtops.backend.onnx import summary
from trtops.backend.onnx.parsing import read_proto
from trtops.ops.model.inspect.inspection import Inspection
from trtops.record import JSONValue, to_jsonable

if TYPE_CHECKING:
    from onnx import ModelProto

Show: TypeAlias = Literal["layers", "attrs", "weights"]

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
"""Extensions of TensorRT engine files."""


def inspect_model(
    model: str | Path | ModelProto,
    *,
    show: Collection[Show] = (),
    display_as: Literal["trt"] | None = None,
    infer_shapes: bool = False,
    ignore_external_data: bool = True,
) -> Inspection:
    """Inspect an ONNX model, a TensorRT network made from one, a TensorRT engine, or an engine of ONNX Runtime.

    Args:
        model: An ONNX file, a model in memory, an ``.engine`` or ``.plan``, an ``.ort`` file, or a ``.py`` script with
            a function ``load_network`` that returns a TensorRT network.
        show: What to show besides inputs and outputs; ``weights`` of an ONNX model reads their values.
        display_as: ``"trt"`` parses an ONNX model into a TensorRT network and shows that.
        infer_shapes: Whether to infer shapes that an ONNX model does not declare.
        ignore_external_data: Whether to skip external weights; they are always read if ``show`` has ``weights``.

    Raises:
        ModelError: If it is not a model.
        EngineLoadError: If an engine cannot be loaded here.
        BackendUnavailableError: If TensorRT is needed and not installed.
    """
    if isinstance(model, (str, Path)):
        path = Path(model)
        if path.suffix == ".ort":
            return _inspect_ort_engine(path, show)
        described: Any = None
        if path.suffix in ENGINE_SUFFIXES:
            described = trt.describe_engine(trt.EngineFromPath(str(path))())
        elif path.suffix == ".py":
            made: Any = invoke_from_script(str(path), "load_network")
            described = trt.describe_network(made[1] if isinstance(made, tuple) else made)
        elif display_as == "trt":
            described = trt.describe_network(trt.NetworkFromOnnxPath(str(path))()[1])
        if described is not None:
            kind = "engine" if path.suffix in ENGINE_SUFFIXES else "network"
            return Inspection(kind, lambda: described, lambda: described.text(tuple(show)))
        model = read_proto(path) if ignore_external_data and "weights" not in show else onnx.onnx_from_path(path)
    proto = model
    return Inspection(
        "onnx",
        lambda: summary.describe(proto, infer_shapes=infer_shapes),
        lambda: summary.summary(proto, show, infer_shapes=infer_shapes),
    )


def _inspect_ort_engine(path: Path, show: Collection[str]) -> Inspection:
    # Slow to import, and not needed for other models.
    from trtops.backend.onnxrt.engine import open_plan
    from trtops.backend.onnxrt.plan import read_plan
    from trtops.backend.onnxrt.runner import OnnxrtRunner
    from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS

    plan = path.read_bytes()
    # ONNX Runtime loads the engine first, since read_plan does not validate its bytes.
    with OnnxrtRunner(open_plan(plan, providers=DEFAULT_PROVIDERS, threads=0), "inspected") as runner:
        inputs, outputs = runner.get_input_metadata(), runner.get_output_metadata()
    nodes = [dataclasses.asdict(node) for node in read_plan(plan).nodes]
    record: dict[str, JSONValue] = {
        "inputs": [str(spec) for spec in inputs.values()],
        "outputs": [str(spec) for spec in outputs.values()],
        "nodes": [{key: _json_value(value) for key, value in node.items()} for node in nodes],
    }

    def text() -> str:
        lines = ["==== ONNX Runtime Engine ====", f"Inputs: {inputs}", f"Outputs: {outputs}", f"{len(nodes)} nodes"]
        for node in nodes if show else ():
            reads, makes = (", ".join(map(str, node.get(key, ()))) for key in ("inputs", "outputs"))
            lines.append(f"  {node.get('op', '?')} {node.get('name', '')!r}: {reads} -> {makes}")
        return "\n".join(lines)

    return Inspection("ort", lambda: record, text)


def _json_value(value: object) -> JSONValue:
    try:
        return to_jsonable(value)
    except TypeError:
        return str(value)
