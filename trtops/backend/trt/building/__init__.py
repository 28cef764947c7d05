"""Building: from an ONNX model to a plan."""
