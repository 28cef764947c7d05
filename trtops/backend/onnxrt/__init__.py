"""ONNX Runtime: sessions, inference, and an engine back end. Importing this package does not import ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.backend.onnxrt.loader import SessionFromOnnx, session_from_onnx
    from trtops.backend.onnxrt.runner import OnnxrtRunner

__getattr__, __dir__ = exports(__name__)
