"""Promises of the package as a whole: what importing it loads, and who may import whom."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import find_packages

import trtops
from trtops.cli import registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

HEAVY = ("tensorrt", "tensorrt_rtx", "onnxruntime", "mlflow", "prefect", "onnx", "numpy", "pandas", "matplotlib")


@pytest.mark.parametrize(
    "module",
    [
        "trtops",
        "trtops.backend.onnx",
        "trtops.backend.onnxrt",
        "trtops.backend.pluginref",
        "trtops.comparator",
        "trtops.errors",
        "trtops.spec",
        "trtops.tactics.record",
        "trtops.tracking.base",
    ],
)
def test_importing_a_light_module_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "package",
    [
        "trtops",
        "trtops.comparator",
        "trtops.ops",
        *(f"trtops.backend.{b}" for b in ("onnx", "onnxrt", "pluginref", "trt")),
    ],
)
def test_public_names_resolve(package: str) -> None:
    module = importlib.import_module(package)

    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    assert {*module.__all__} <= {*dir(module)}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Comparater'"):
        module.Comparater  # noqa: B018


# Commands whose function has another name, and those that only start or maintain servers, stores and files.
NAMES = {
    "run": "run_models", "inspect diff": "compare", "check compatibility": "capability", "check accuracy": "reevaluate",
    "surgeon weight-strip": "strip_weights", "surgeon weight-reconstruct": "reconstruct_weights",
    "data to-input": "merge", "plugin match": "match_plugins", "plugin list": "match_plugins",
    "plugin replace": "replace_plugins", "runs list": "list_runs",
    "runs show": "inspect_run", "runs compare": "side_by_side",
    "runs evaluate": "reevaluate", "runs prune": "prune_runs",
}  # fmt: skip
NO_FUNCTION = ("template", "store", "team", "runs close", "doctor")


def test_every_command_has_a_function_at_the_top() -> None:
    for words in registry.COMMANDS:
        line = " ".join(words)
        names = (NAMES.get(line), "_".join(words).replace("-", "_"), words[-1].replace("-", "_"))
        found = next((getattr(trtops, name) for name in names if name in trtops.__all__), None)
        assert callable(found) or line.startswith(NO_FUNCTION), line
    assert inspect.signature(trtops.gate).parameters["config"].annotation == trtops.GateConfig


def test_star_import_of_lazy_packages() -> None:
    names: dict[str, object] = {}

    exec("from trtops.comparator import *", names)

    assert {"Comparator", "DataLoader", "SimpleCompareFunc", "compare_outputs"} <= names.keys()
    assert "TYPE_CHECKING" not in names


def test_imports_respect_the_architecture() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "expected"), [("TRTOPS", "1", "True"), ("POLYGRAPHY", "1", "True"), ("TRTOPS", "0", "False")]
)
def test_tensorrt_rtx_is_chosen_in_one_place(variable: str, value: str, expected: str) -> None:
    code = "from trtops import config; from trtops.backend.trt import library as lib; print("
    code += "config.USE_TENSORRT_RTX, lib.uses_rtx())"
    environment = {k: v for k, v in os.environ.items() if not k.endswith("USE_TENSORRT_RTX")}
    environment[f"{variable}_USE_TENSORRT_RTX"] = value

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout.split() == [expected] * 2


def test_imports_write_no_telemetry(tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": "", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "ORT_DISABLE_TELEMETRY")} | own

    subprocess.run([sys.executable, "-c", "import trtops, onnxruntime"], check=True, env=environment)

    assert not list(tmp_path.iterdir())


def test_the_wheel_has_the_flows() -> None:
    chosen = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]

    packages = set(find_packages(str(ROOT), include=chosen))

    assert {"trtops", "trtops.flows"} <= packages
    assert {package.partition(".")[0] for package in packages} == {"trtops"}
