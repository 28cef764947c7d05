"""What an installation brings, and what works after it: ``python -m tests.environments FOLDER [NAME ...]``.

Each environment is fresh and outside the checkout, and gets the wheel. Printed is a table in Markdown: packages, size,
ONNX Runtime's providers, the exit codes of ``doctor``, ``run`` and ``convert``, and the extra that a command names.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.matrix import build_wheel, python_of
from trtops.tables import markdown_table, size

# What is there before, and the extras of trtops that are installed after it.
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "base": ((), ""),
    "base + cpu": ((), "cpu"),
    "onnxruntime-gpu first": (("onnxruntime-gpu",), ""),
    "onnxruntime-gpu first, then cuda": (("onnxruntime-gpu",), "cuda"),
    "MLflow 3.8": (("mlflow==3.8.*", "sqlalchemy<2.1"), "cpu,mlflow"),
    "newest MLflow": ((), "cpu,mlflow"),
    "torch and transformers": (("torch", "transformers"), "cpu"),
    "Prefect 3.9": (("prefect==3.9.*",), "cpu,prefect"),
    "all": ((), "all"),
    **{f"Python {minor}": ((), "cpu") for minor in ("3.10", "3.12", "3.13", "3.14")},
}
MODEL = """
import numpy as np, onnx
node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
weights = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
value = lambda name: onnx.helper.make_tensor_value_info(name, 1, [2, 8])
graph = onnx.helper.make_graph([node], "g", [value("x")], [value("y")], [weights])
opsets = [onnx.helper.make_opsetid("", 17)]
onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), "m.onnx")
"""
PROVIDERS = """
import onnxruntime
print(", ".join(name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()))
"""
COMMANDS = (
    "doctor",
    "run m.onnx --onnxrt --onnx",
    "convert m.onnx --onnxrt -o m.ort",
    "convert m.onnx --onnxrt --experiment m",
)


def measure(name: str, folder: Path, wheel: Path) -> list[str]:
    """Return the row of an environment, which is made if it is missing."""
    before, extras = ENVIRONMENTS[name]
    version = name.removeprefix("Python ") if name.startswith("Python") else "3.11"
    interpreter, home = python_of(version), folder / re.sub(r"\W+", "-", name)
    if interpreter is None:
        return [name, f"no Python {version} here"]
    if not home.exists():
        subprocess.run([interpreter, "-m", "venv", home], check=True)
    python, work = home / "bin" / "python", home / "work"
    work.mkdir(exist_ok=True)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRTOPS_HOME")}
        return subprocess.run([python, *words], cwd=work, env=variables, capture_output=True, text=True)

    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    providers = []
    for packages in (before, (f"{wheel}[{extras}]" if extras else str(wheel),)):
        if packages and (done := call(*pip, *packages)).returncode:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return [name, f"cannot be installed: {' '.join(reasons)[:200]}"]
        providers.append(call("-c", PROVIDERS).stdout.strip())
    same = "" if not before or providers[0] in ("", providers[1]) else f" (before: {providers[0]})"
    installed = call("-m", "pip", "list", "--format", "freeze").stdout.split()
    count = sum(not line.startswith(("pip==", "setuptools==")) for line in installed)
    files = [path for path in home.glob("lib/python*/site-packages/**/*") if path.is_file() and not path.is_symlink()]
    total = sum(path.stat().st_size for path in files if path.parts[len(home.parts) + 3] not in ("pip", "setuptools"))
    call("-c", MODEL)
    outcomes = []
    for command in COMMANDS:
        done = call("-m", "trtops", *command.split())
        missing = re.search(r'pip install ("trtops\[[\w,]+\]")', done.stderr)
        outcomes.append(str(done.returncode) + (f": {missing[1]}" if missing and done.returncode == 3 else ""))
    return [name, str(count), size(total), (providers[1] or "-") + same, *outcomes]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(ENVIRONMENTS))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(args.folder.resolve())
    header = ("environment", "packages", "size with bytecode", "providers", *(f"`{line}`" for line in COMMANDS))
    rows = []
    for name in args.names:
        rows.append(measure(name, args.folder.resolve(), wheel))
        print(rows[-1], file=sys.stderr, flush=True)
    print(markdown_table(header, [row + [""] * (len(header) - len(row)) for row in rows]))


if __name__ == "__main__":
    main()
