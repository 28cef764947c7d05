"""Promises of the package as a whole: what importing it loads, and who may import whom."""

from __future__ import annotations

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


def test_public_names_resolve_and_unknown_ones_say_so() -> None:
    import trtops

    for name in trtops.__all__:
        assert getattr(trtops, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Comparater'"):
        trtops.Comparater  # noqa: B018


def test_rooms_import_only_what_the_architecture_allows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
