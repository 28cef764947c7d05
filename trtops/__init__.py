"""trtops: TensorRT and ONNX Runtime engines, built, judged, explained and remembered."""

__version__ = "0.1.0"
