"""Inference with a PyTorch module."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.runner import BaseRunner, Feed

if TYPE_CHECKING:
    from trtops.backend.torch.export import Export
    from trtops.metadata import TensorMetadata


class TorchRunner(BaseRunner):
    """Runs the module of an exported file, a fresh copy for each inference: eager, in FP32, in evaluation mode."""

    def __init__(self, path: str, name: str | None = None) -> None:
        """Name the file, which this process exported."""
        super().__init__(name, "torch-runner")
        self.path = path
        self._export: Export | None = None

    def activate_impl(self) -> None:
        """Find the module; ConfigError if this process exported no such file."""
        from trtops.backend.torch.export import export_of

        self._export = export_of(self.path)
        if self._export is None:
            raise errors.ConfigError(
                f"{self.path} is not a PyTorch model, so --torch cannot run it; expected script.py:function or .pt2."
            )

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the inputs of the exported file."""
        from trtops.backend.onnx.model import Model
        from trtops.metadata import TensorMetadata

        return TensorMetadata.of(Model.load(self.path).info.inputs)

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run the module."""
        assert self._export is not None
        begin = time.perf_counter()
        outputs = self._export.model.run({**self._export.example.arrays, **feed_dict})
        self._inference_seconds = time.perf_counter() - begin
        return outputs
