"""ONNX Runtime, imported; BackendUnavailableError with an installation command if it is missing."""

from trtops.backend.onnx.with_onnxruntime import import_onnxruntime

import_onnxruntime()

import onnxruntime as ort  # noqa: E402

__all__ = ["ort"]
