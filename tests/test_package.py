"""Promises of the package as a whole: what importing it loads, and who may import whom."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

HEAVY = ("tensorrt", "tensorrt_rtx", "onnxruntime", "mlflow", "prefect", "onnx", "numpy", "pandas", "matplotlib")


@pytest.mark.parametrize(
    "module", ["trtops", "trtops.errors", "trtops.spec", "trtops.tracking.base", "trtops.tactics.record"]
)
def test_importing_a_light_module_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["trtops", "trtops.comparator", "trtops.backend.onnx", "trtops.backend.trt"])
def test_public_names_resolve_and_unknown_ones_say_so(package: str) -> None:
    module = importlib.import_module(package)

    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    assert {*module.__all__} <= {*dir(module)}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Comparater'"):
        module.Comparater  # noqa: B018


def test_all_names_of_a_lazy_package_are_imported_by_a_star() -> None:
    names: dict[str, object] = {}

    exec("from trtops.comparator import *", names)

    assert {"Comparator", "DataLoader", "SimpleCompareFunc", "compare_outputs"} <= names.keys()
    assert "TYPE_CHECKING" not in names


def test_rooms_import_only_what_the_architecture_allows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
