from __future__ import annotations

import inspect
import pickle

from trtops.backend.onnx.loader import OnnxFromTfGraph, onnx_from_tf_graph
from trtops.backend.onnxrt import session_from_onnx


def test_loader_functions_are_ordinary_functions() -> None:
    assert onnx_from_tf_graph.__name__ == "onnx_from_tf_graph"
    assert pickle.loads(pickle.dumps(onnx_from_tf_graph)) is onnx_from_tf_graph
    assert inspect.signature(onnx_from_tf_graph).parameters == inspect.signature(OnnxFromTfGraph).parameters
    assert inspect.signature(onnx_from_tf_graph).return_annotation == "onnx.ModelProto"
    assert "SessionFromOnnx" in inspect.getdoc(session_from_onnx)
