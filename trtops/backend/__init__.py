"""Back ends: everything that touches ONNX, ONNX Runtime or TensorRT."""
