"""ONNX models: loaded, checked, described, changed and saved. Needs onnx and nothing else at import."""
