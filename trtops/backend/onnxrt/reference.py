"""Runs models as they are, without optimizations: for golden outputs, and to examine tensors."""

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
from trtops.system.processes import temporary_prefix


@dataclass(frozen=True)
class SessionFromMemory:
    """Loads a session from a model in memory, of any size, which is shared and not changed."""

    model: onnx.ModelProto
    optimized: bool = True

    def __call__(self) -> ort.InferenceSession:
        """Create the session, which belongs to the caller; raises as :class:`SessionFromOnnx`."""
        # Interleaved: the threads sleep between runs, so that they do not disturb what is timed at the same time.
        level = None if self.optimized else ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Protobuf cannot serialize it, so it goes through a file.
        if is_large(self.model) and not is_lean(self.model):
            with tempfile.TemporaryDirectory(prefix=temporary_prefix("model")) as folder:
                path = Path(folder, "model.onnx")
                save_model(self.model, path, external_data_path="")
                return SessionFromOnnx(path, graph_optimization_level=level, interleaved=True)()
        return SessionFromOnnx(self.model, graph_optimization_level=level, interleaved=True)()


def reference_outputs(model: onnx.ModelProto, feeds: Sequence[Feed]) -> list[Arrays]:
    """Run a model in memory without optimizing it, and return the outputs for each feed."""
    with OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference") as runner:
        return [runner.infer(feed) for feed in feeds]


def reference_runner(model: Model, name: str | None = None) -> OnnxrtRunner:
    """Return a runner of a model on the CPU with every graph optimization off. The model is read at each activation."""
    # `proto` also checks that the file still has the content that was loaded.
    return OnnxrtRunner(lambda: SessionFromMemory(model.proto(lean=True), optimized=False)(), name, "onnxrt-reference")
