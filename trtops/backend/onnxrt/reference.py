"""Models in memory run as they are: for golden outputs, and for what is to be seen of every tensor.

How fast they are matters to nobody: their threads sleep between runs, for what is timed beside them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime as ort

from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model, is_large, is_lean
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.submodel import Arrays
from trtops.backend.onnxrt.loader import SessionFromOnnx
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.processes import temporary_prefix


@dataclass(frozen=True)
class SessionFromMemory:
    """Loads a session from a model in memory, of any size.

    Attributes:
        model: The model, with its weights inside; shared, not changed.
        optimized: Whether ONNX Runtime may optimize it.
        by_file: Whether its weights go through a temporary file; None sends those of models that protobuf cannot hold.
            Weights that lie in files already stay there.
    """

    model: onnx.ModelProto
    optimized: bool = True
    by_file: bool | None = None

    def __call__(self) -> ort.InferenceSession:
        """Create the session, which belongs to the caller; raises as :class:`SessionFromOnnx`."""
        level = None if self.optimized else ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if self.by_file or (self.by_file is None and is_large(self.model) and not is_lean(self.model)):
            with tempfile.TemporaryDirectory(prefix=temporary_prefix("model")) as folder:
                path = Path(folder, "model.onnx")
                save_model(self.model, path, external_data_path="")
                return SessionFromOnnx(path, graph_optimization_level=level, interleaved=True)()
        return SessionFromOnnx(self.model, graph_optimization_level=level, interleaved=True)()


def reference_outputs(model: onnx.ModelProto, feeds: Sequence[Feed]) -> list[Arrays]:
    """Run a model in memory without optimizing it, for each feed; the outputs are the caller's.

    Raises:
        ModelError: If ONNX Runtime does not take the model.
        BackendError: If it has no kernel for a node, or fails.
    """
    with OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference") as runner:
        return [runner.infer(feed) for feed in feeds]


def reference_runner(model: Model, name: str | None = None) -> OnnxrtRunner:
    """A runner of a model as it is, on the CPU with every graph optimization off.

    Args:
        model: The model; read at each activation.
        name: The runner's name; counted up as ``onnxrt-reference-N0`` and so on if not given.
    """

    def load() -> ort.InferenceSession:
        proto = model.proto(lean=True)  # which also checks that the file still holds the model that was loaded
        if model.path is not None and is_large(proto):
            level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            return SessionFromOnnx(model.path, graph_optimization_level=level, interleaved=True)()
        return SessionFromMemory(proto, optimized=False)()

    return OnnxrtRunner(load, name, "onnxrt-reference")
