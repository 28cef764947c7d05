"""ONNX's messages without its package: the same classes in either import order."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests import models


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "order",
    ["from trtops.backend.onnx import messages; import onnx", "import onnx; from trtops.backend.onnx import messages"],
)
def test_messages_work_in_either_import_order(order: str) -> None:
    code = f"""{order}
import onnx.onnx_ml_pb2
assert all(getattr(messages, name) is getattr(onnx, name) for name in messages.__all__)
assert onnx.onnx_ml_pb2.ModelProto is messages.ModelProto
model = messages.ModelProto(ir_version=8)
model.opset_import.add(version=17)
model.graph.name = "g"
model.graph.node.add(op_type="Relu", input=["x"], output=["y"])
onnx.shape_inference.infer_shapes(model)
assert isinstance(model.graph.node[0], onnx.NodeProto)
"""
    run(code)


def test_inspection_imports_neither_onnx_nor_numpy(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    code = """import sys
from trtops.ops.model.inspect.models import inspect_model
found = inspect_model(sys.argv[1], show=("layers", "attrs"))
found.to_json()
assert "conv0" in found.text()
print(*{"onnx", "numpy", "onnxruntime"} & set(sys.modules))"""
    assert not run(code, str(path)).split()


LIBRARIES = ("numpy", "onnx", "onnxruntime", "google.protobuf")


@pytest.mark.parametrize(
    "code",
    [
        "import trtops.comparator; import trtops.backend.onnxrt",
        "from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx; OnnxrtRunner(SessionFromOnnx('model.onnx'))",
        "import trtops.backend.onnx; import trtops.backend.pluginref",
    ],
)
def test_imports_load_no_library(code: str) -> None:
    code += f"; import sys; print(*[name for name in {LIBRARIES} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["trtops.backend.onnxrt", "trtops.backend.pluginref"])
def test_public_names_resolve(package: str) -> None:
    module = importlib.import_module(package)

    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
