"""Promises of the package as a whole: what importing it loads, and who may import whom."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages

import trtops
from tests import matrix, models
from trtops.cli import registry
from trtops.extras import EXTRAS

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
        "trtops.tracking.mlflow",
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
        assert getattr(module, name).__name__.rpartition(".")[2] == name  # a module's name has dots
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
    "certificate write": "write_certificate", "certificate verify": "verify_certificate",
}  # fmt: skip
NO_FUNCTION = ("template", "store", "team", "runs close", "doctor")


def test_every_command_has_a_function_at_the_top() -> None:
    for words in registry.COMMANDS:
        line = " ".join(words)
        names = (NAMES.get(line), "_".join(words).replace("-", "_"), words[-1].replace("-", "_"))
        function = next((getattr(trtops, name) for name in names if name in trtops.__all__), None)
        assert callable(function) or line.startswith(NO_FUNCTION), line
    assert inspect.signature(trtops.gate).parameters["config"].annotation == trtops.GateConfig


def test_dir_shows_only_public_names() -> None:
    public = {name for name in dir(trtops) if not name.startswith("__")}

    assert public == {*trtops.__all__}


def test_importing_trtops_leaves_the_process_as_it_was() -> None:
    code = "import os, sys; before = (dict(os.environ), list(sys.path)); import trtops; "
    code += "print(before == (dict(os.environ), list(sys.path)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True"]


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
    overrides = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": "", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "ORT_DISABLE_TELEMETRY")} | overrides

    subprocess.run([sys.executable, "-c", "import trtops.backend.onnxrt.library"], check=True, env=environment)

    assert not list(tmp_path.iterdir())


def _imports() -> Iterator[tuple[Path, ast.stmt, str, bool]]:
    """Each import of another package: its file, its statement, the package, and whether it is for type checkers."""
    for path in sorted((ROOT / "trtops").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typed = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                package = name.partition(".")[0]
                if package != "trtops" and package not in sys.stdlib_module_names:
                    yield path.relative_to(ROOT), node, package, node in typed


def _distributions(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for line in requirements}  # type: ignore[index]


MODULES = {"google": "protobuf", "yaml": "pyyaml", "markdown_it": "markdown-it-py", "cuda": "cuda-python"}
# In bundles, which run without trtops; installed next to another package of the list; or without an extra.
NO_EXTRA = {"evaluate", "typing_extensions"}
# Where modules may import it at their top, since they are only imported after a check.
BEHIND_A_CHECK = {
    "onnxruntime": "trtops/backend/onnxrt/library.py", "flatbuffers": "trtops/backend/onnxrt/ort_format.py",
    "prefect": "trtops/flows/",
}  # fmt: skip


def test_every_import_is_of_the_base_or_an_extra() -> None:
    project = PYPROJECT["project"]
    base = _distributions(project["dependencies"])
    for path, node, package, for_types in _imports():
        distribution = MODULES.get(package, package).replace("_", "-")
        extra = EXTRAS.get(package)
        if distribution not in base and package not in NO_EXTRA and not for_types:
            assert extra is not None, f"{path}:{node.lineno} imports {package}, which nothing installs"
        if extra is not None:
            brought = _distributions(project["optional-dependencies"][extra])
            assert distribution in brought or package in ("flask_wtf", "sqlalchemy"), (package, extra)  # of MLflow
        is_top = node.col_offset == 0 and not for_types
        if is_top and extra is not None and "reproduce" not in path.name:
            assert str(path).startswith(BEHIND_A_CHECK.get(package, "nowhere")), f"{path} needs {package}"


def test_base_is_small() -> None:
    # With what they need, 14 packages; tests/environments.py counts them.
    assert len(PYPROJECT["project"]["dependencies"]) == 10


def test_page_on_installing_lists_every_extra() -> None:
    page = (ROOT / "docs" / "pages" / "install.md").read_text(encoding="utf-8")

    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))

    assert listed == PYPROJECT["project"]["optional-dependencies"].keys() - {"test", "docs", "check"}


def test_workflow_covers_the_pythons_of_the_matrix() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))

    cells = workflow["jobs"]["matrix"]["strategy"]["matrix"]

    assert tuple(cells["python"]) == matrix.PYTHONS and set(cells["releases"]) <= matrix.RELEASES.keys()


BARE = """
import sys
from trtops.extras import EXTRAS
for name in {*EXTRAS, *sys.argv[1].split()}:
    sys.modules[name] = None
from trtops.cli.main import main
for line in sys.stdin.read().splitlines():
    print(">", main(line.split()), flush=True)
"""


def test_missing_packages_are_one_sentence(tmp_path: Path) -> None:
    """Commands in an environment without any extra: those of the base work, others end with 3 before they begin."""
    models.conv_net().fixed().write(tmp_path)
    lines = {
        "inspect model conv_net.onnx": (0, "==== ONNX Model ===="),
        "check lint conv_net.onnx": (0, 'pip install "trtops[cpu]"'),
        "convert conv_net.onnx --fp-to-fp16 -o half.onnx": (0, "Wrote half.onnx"),
        "run conv_net.onnx --onnxrt": (3, 'pip install "trtops[cpu]"'),
        "convert conv_net.onnx --onnxrt -o new.ort": (3, 'pip install "trtops[cpu]"'),
        "convert conv_net.onnx -o new.engine": (3, 'pip install "trtops[trt]"'),
        "run conv_net.onnx --trt --onnxrt": (3, 'pip install "trtops[cpu]"'),
        "convert conv_net.onnx --onnxrt --experiment e": (3, 'pip install "trtops[mlflow]"'),
        "runs list": (3, 'pip install "trtops[mlflow]"'),
        "gate conv_net.onnx": (3, 'pip install "trtops[mlflow]"'),
        "store ui": (3, 'pip install "trtops[mlflow]"'),
        "team up": (3, 'pip install "trtops[mlflow,prefect,team]"'),
        "run conv_net.onnx --onnx --onnx --save-heatmaps maps": (3, 'pip install "trtops[plots]"'),
        "doctor": (0, 'pip install "trtops[mlflow]"'),
    }
    done = subprocess.run(
        [sys.executable, "-c", BARE, ""],
        input="\n".join(lines), capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "TRTOPS_HOME": str(tmp_path / "mlruns")},
    )  # fmt: skip

    assert "Traceback" not in done.stderr
    codes = [int(line[2:]) for line in done.stdout.splitlines() if line.startswith("> ")]
    assert dict(zip(lines, codes)) == {line: code for line, (code, _) in lines.items()}, done.stderr
    assert [text for _, text in lines.values() if text not in done.stdout + done.stderr] == []
    assert {path.name for path in tmp_path.iterdir()} == {"conv_net.onnx", "half.onnx"}


def test_convert_works_without_mlflow(tmp_path: Path) -> None:
    models.conv_net().fixed().write(tmp_path)
    requirements = "onnxruntime flatbuffers sympy"
    code = BARE.replace("{*EXTRAS, *sys.argv[1].split()}", "set(EXTRAS) - {*sys.argv[1].split()}")
    code += "import trtops; print(trtops.convert('conv_net.onnx').run_id == '')"
    done = subprocess.run(
        [sys.executable, "-c", code, requirements],
        input="convert conv_net.onnx --onnxrt -o new.ort", capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "TRTOPS_HOME": str(tmp_path / "mlruns")},
    )  # fmt: skip

    assert "verdict: " in done.stdout and "True" in done.stdout.splitlines()
    assert done.stderr.count("Nothing was recorded. ") == done.stderr.count("Nothing is recorded. ") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"conv_net.onnx", "new.ort"}


def test_the_wheel_has_the_flows() -> None:
    chosen = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]

    packages = set(find_packages(str(ROOT), include=chosen))

    assert {"trtops", "trtops.flows"} <= packages
    assert {package.partition(".")[0] for package in packages} == {"trtops"}
