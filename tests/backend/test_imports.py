"""Importing the back ends imports no library."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

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
