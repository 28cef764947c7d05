"""Inference with a PyTorch module."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trtops.backend.onnx.model import Model
from trtops.backend.runner import BaseRunner, Feed
from trtops.metadata import TensorMetadata

if TYPE_CHECKING:
    from trtops.backend.torch.export import Export


class TorchRunner(BaseRunner):
    """Runs the module of an export, a fresh copy for each inference: eager, in FP32, in evaluation mode."""

    def __init__(self, export: Export, name: str | None = None) -> None:
        """Hold the export."""
        super().__init__(name, "torch-runner")
        self.export = export

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the inputs of the exported file."""
        return TensorMetadata.of(Model.load(self.export.path).info.inputs)

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run the module."""
        begin = time.perf_counter()
        outputs = self.export.model.run({**self.export.example.arrays, **feed_dict})
        self._inference_seconds = time.perf_counter() - begin
        return outputs
