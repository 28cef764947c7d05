"""ONNX's messages without its package: the same classes in either import order."""

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
print(type(model.graph.node[0]) is onnx.NodeProto)
"""
    assert run(code) == "True\n"


@pytest.mark.parametrize(
    "code",
    [
        "from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx; OnnxrtRunner(SessionFromOnnx(sys.argv[1]))",
        """from trtops.ops.model.inspect.models import inspect_model
found = inspect_model(sys.argv[1], show=("layers", "attrs"))
found.to_json()
assert "conv0" in found.text()""",
    ],
    ids=["runner", "inspection"],
)
def test_runners_and_inspection_import_no_library(code: str, tmp_path: Path) -> None:
    code = f"import sys\n{code}\nprint(*{{'onnx', 'numpy', 'onnxruntime'}} & set(sys.modules))"
    assert not run(code, str(models.conv_net().write(tmp_path))).split()
