"""trtops from its wheel, outside the checkout, on several Pythons and releases: ``python tests/matrix.py FOLDER``.

Each cell is an environment with a Python and the oldest or newest releases of numpy, onnx, onnxruntime and MLflow. The
wheel is installed, a quick part of the tests and those of tracking run from another folder, and a flow converts a model
next to a foreign package ``flows``. One more cell has PyTorch. Missing Pythons are reported; environments stay in the
folder and are used again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# The oldest numpy and onnx that have wheels for a Python.
OLDEST = {
    "3.10": ("1.26", "1.17"),
    "3.11": ("1.26", "1.17"),
    "3.12": ("1.26", "1.17"),
    "3.13": ("2.1", "1.18"),
    "3.14": ("2.3", "1.20"),
}
RELEASES = {
    "oldest": ("numpy~={numpy}.0", "onnx=={onnx}.*", "onnxruntime==1.21.*", "ml_dtypes<0.6", "mlflow==3.8.*"),
    "newest": ("numpy", "onnx", "onnxruntime", "ml_dtypes", "mlflow"),
    "torch": ("numpy", "onnx", "onnxruntime", "ml_dtypes", "torch"),
}
FRAMEWORKS = {"torch": ("tests/frameworks/test_torch.py",)}
FRAMEWORKS_PYTHON = "3.12"
TESTS = (
    "tests/test_spec.py",
    "tests/test_metadata.py",
    "tests/backend/onnxrt/test_tactics.py",
    "tests/backend/onnxrt/test_search.py",
    "tests/backend/onnxrt/test_runner.py",
    "tests/backend/onnx/test_lean_models.py",
    "tests/ops/engines/test_everything_converts.py",
    "tests/ops/evaluation/test_precision_check.py",
    "tests/comparator/test_compare.py",
    "tests/tracking",
)


def python_of(version: str) -> Path | None:
    """An interpreter of a version: on the path, or one of pyenv's."""
    interpreter = shutil.which(f"python{version}")
    works = interpreter and subprocess.run([interpreter, "-c", ""], capture_output=True).returncode == 0
    if interpreter and works:
        return Path(interpreter)
    candidates = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return candidates[-1] if candidates else None


def build_wheel(folder: Path) -> Path:
    """The wheel of what git knows of this checkout, built in a copy so that nothing is left in it."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(source)], check=True
    )
    return max(folder.glob("trtops-*.whl"), key=lambda path: path.stat().st_mtime)


def run_cell(folder: Path, wheel: Path, python: str, releases: str) -> dict[str, object]:
    """Make a cell, or take it as it is, and run the tests in it."""
    interpreter = python_of(python)
    cell: dict[str, object] = {"python": python, "releases": releases, "result": "no such Python here"}
    if interpreter is None:
        return cell
    began = time.monotonic()
    home = folder / f"py{python}-{releases}"
    env_python = home / "bin" / "python"
    if not env_python.exists():
        subprocess.run([interpreter, "-m", "venv", str(home)], check=True)
    numpy, onnx = OLDEST[python]
    requirements = [f"{wheel}[all]", *(pin.format(numpy=numpy, onnx=onnx) for pin in RELEASES[releases])]
    requirements += ["pytest", "pytest-timeout", "hypothesis", "setuptools"]
    pip = [str(env_python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installation = subprocess.run([*pip, *requirements], capture_output=True, text=True)
    if not installation.returncode:
        installation = subprocess.run(
            [*pip, "--no-deps", "--force-reinstall", str(wheel)], capture_output=True, text=True
        )
    if installation.returncode:
        reasons = [line for line in installation.stderr.splitlines() if "ERROR" in line]
        return cell | {"result": f"cannot be installed: {' '.join(reasons)[:300]}"}
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copytree(ROOT / "tests", work / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    tests = FRAMEWORKS.get(releases, TESTS)
    done = subprocess.run(
        [str(env_python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *tests],
        cwd=work,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(work), "HOME": str(work), "TRTOPS_HOME": str(work / "mlruns")},
    )
    (home / "tests.log").write_text(done.stdout + done.stderr)
    summary = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
    versions = "import numpy, onnx, onnxruntime as o; print(numpy.__version__, onnx.__version__, o.__version__)"
    installed = subprocess.run([str(env_python), "-c", versions], capture_output=True, text=True).stdout.split()
    cell |= {"numpy, onnx, onnxruntime": installed, "result": summary, "ok": not done.returncode}
    if releases not in FRAMEWORKS:
        cell |= run_flow(env_python, work)
    return cell | {"seconds": round(time.monotonic() - began)}


def run_flow(env_python: Path, work: Path) -> dict[str, object]:
    """Convert a model by the flow, in a folder whose own package ``flows`` must not be imported."""
    folder = work / "project"
    (folder / "flows").mkdir(parents=True)
    (folder / "flows" / "__init__.py").write_text("raise ImportError('the flows of another project')")
    write = "from pathlib import Path; from tests import models; models.conv_net().fixed().write(Path('project'))"
    written = subprocess.run([str(env_python), "-c", write], cwd=work, capture_output=True, text=True)
    if written.returncode:
        return {"flow": f"no model: {written.stderr.strip()[-200:]}"}
    done = subprocess.run(
        [str(env_python), "-c", "from trtops.flows import convert; assert convert('conv_net.onnx').verdict == 'good'"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(work), "TRTOPS_HOME": str(work / "mlruns")},
    )
    return {"flow": "good" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[-200:]}"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, choices=PYTHONS)
    parser.add_argument("--wheel", type=Path, help="the wheel to test (default: that of this checkout)")
    parser.add_argument("--releases", nargs="*", default=list(RELEASES), choices=list(RELEASES))
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    wheel = args.wheel.resolve() if args.wheel else build_wheel(args.folder)
    cells = []
    for python in args.pythons:
        for releases in args.releases:
            if releases in FRAMEWORKS and python != FRAMEWORKS_PYTHON:
                continue
            cells.append(run_cell(args.folder, wheel, python, releases))
            print(json.dumps(cells[-1]), flush=True)
    failed = [cell for cell in cells if not cell.get("ok", True) or cell.get("flow", "good") != "good"]
    return 1 if failed or not any(cell.get("ok") for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
