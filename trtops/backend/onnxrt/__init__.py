"""ONNX Runtime: sessions, inference, and an engine back end. Imports onnxruntime, and so is imported only when needed."""

from trtops.backend.onnxrt.loader import SessionFromOnnx, session_from_onnx
from trtops.backend.onnxrt.runner import OnnxrtRunner

__all__ = ["OnnxrtRunner", "SessionFromOnnx", "session_from_onnx"]
