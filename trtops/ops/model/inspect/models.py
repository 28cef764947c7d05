"""ONNX models, TensorRT networks, and engines."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trtops.backend import onnx, trt
from trtops.backend.common import invoke_from_script
from trtops.backend.onnx import summary
from trtops.backend.onnx.bare import read_bare
from trtops.ops.model.inspect.inspection import Inspection

if TYPE_CHECKING:
    from onnx import ModelProto

Show: TypeAlias = Literal["layers", "attrs", "weights"]

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
"""Endings of files that hold TensorRT engines."""


def inspect_model(
    model: str | Path | ModelProto,
    *,
    show: Collection[Show] = (),
    display_as: Literal["trt"] | None = None,
    infer_shapes: bool = False,
    ignore_external_data: bool = True,
) -> Inspection:
    """Look into an ONNX model, a TensorRT network made of one, a TensorRT engine, or an engine of ONNX Runtime.

    Args:
        model: An ONNX file, a model in memory, an ``.engine`` or ``.plan``, an ``.ort`` file, or a ``.py`` script with a
            function ``load_network`` that makes a TensorRT network.
        show: What to show beside inputs and outputs; for ``weights`` of an ONNX model, their values are read.
        display_as: ``"trt"`` parses an ONNX model into a TensorRT network and shows that.
        infer_shapes: Whether to fill in shapes that an ONNX model does not declare.
        ignore_external_data: Whether to leave weights outside the file alone; they are read if ``show`` has ``weights``.

    Raises:
        ModelError: If it is no model.
        EngineLoadError: If an engine does not load here.
        BackendUnavailableError: If TensorRT is needed and not installed.
    """
    if isinstance(model, (str, Path)):
        path = Path(model)
        if path.suffix in ENGINE_SUFFIXES:
            return _inspect_engine(path, show)
        if path.suffix == ".ort":
            # What reads these imports onnx, which takes longer than inspecting most models.
            from trtops.ops.model.inspect.ort_engines import inspect_ort_engine

            return inspect_ort_engine(path, show)
        if path.suffix == ".py":
            return _inspect_scripted_network(path, show)
        if display_as == "trt":
            return _inspect_parsed_network(path, show)
        bare = ignore_external_data and "weights" not in show
        model = read_bare(path).model if bare else onnx.onnx_from_path(path)
    proto = model
    return Inspection(
        "onnx",
        lambda: summary.describe(proto, infer_shapes=infer_shapes),
        lambda: summary.summary(proto, show, infer_shapes=infer_shapes),
    )


def _inspect_parsed_network(path: Path, show: Collection[Show]) -> Inspection:
    """The TensorRT network that the parser makes of an ONNX file."""
    _, network, *_ = trt.NetworkFromOnnxPath(str(path))()
    return _described_inspection("network", trt.describe_network(network), show)


def _inspect_scripted_network(path: Path, show: Collection[Show]) -> Inspection:
    """The TensorRT network that a script defines."""
    made: Any = invoke_from_script(str(path), "load_network")
    return _described_inspection("network", trt.describe_network(made[1] if isinstance(made, tuple) else made), show)


def _inspect_engine(path: Path, show: Collection[Show]) -> Inspection:
    return _described_inspection("engine", trt.describe_engine(trt.EngineFromPath(str(path))()), show)


def _described_inspection(kind: str, described: Any, show: Collection[Show]) -> Inspection:
    return Inspection(kind, lambda: described, lambda: described.text(tuple(show)))
