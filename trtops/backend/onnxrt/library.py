"""ONNX Runtime, imported; BackendUnavailableError with an installation command if it is missing."""

from trtops.extras import require

require("onnxruntime")

import onnxruntime as ort  # noqa: E402

__all__ = ["ort"]
