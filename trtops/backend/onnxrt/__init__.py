"""ONNX Runtime: sessions, inference, and an engine back end. Importing this package does not import ONNX Runtime."""

from trtops.lazy import exports

__getattr__, __dir__ = exports(__name__)
