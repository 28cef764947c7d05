"""Say what is installed here, whether it can be used, and what each TensorRT release can do."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from trtops import __version__
from trtops.backend import trt
from trtops.backend.engines import BACKENDS, engine_backend
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say
from trtops.errors import TrtopsError

GROUPS = (Group("report", (Flag(names=("--support",), takes="switch", help="what each TensorRT release can do"),)),)
EXAMPLES = ("trtops doctor", "trtops doctor --support")

_PACKAGES = ("onnx", "onnxruntime", "onnx-graphsurgeon", "mlflow", "prefect", "numpy", "tensorrt", "torch", "tf2onnx")


def plan(args: Asked) -> bool:
    """Whether to show the table."""
    return bool(args.support)


def execute(plan: bool) -> int:
    """Look, and print."""
    if plan:
        say(trt.support_table().rstrip())
        return 0
    say(f"trtops {__version__}, Python {sys.version.split()[0]}")
    for package in _PACKAGES:
        try:
            say(f"  {package} {version(package)}")
        except PackageNotFoundError:
            say(f"  {package} -")
    for name in BACKENDS:
        try:
            environment = engine_backend(name).environment()
            say(f"{name}: {environment.backend_version} on {environment.device}")
        except TrtopsError as exc:
            say(f"{name}: {exc}")
    return 0
