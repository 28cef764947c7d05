"""Releases of a back end: constraints files of pip, each with a Python environment, created once."""

import math
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from trtops import errors
from trtops.record import digest
from trtops.spec import BackendName
from trtops.system.locks import locked
from trtops.tracking.location import default_root

HERE = ""
"""The release in this process' own environment."""

COMPLETE = ".trtops-complete"
"""A file in an environment, which is written last: without it, the installation was killed."""

_PACKAGES_OF_BACKEND: dict[BackendName, tuple[str, ...]] = {
    "onnxruntime": ("numpy", "onnx", "psutil", "pydantic>=2.10", "typing-extensions", "onnxruntime"),
    "tensorrt": ("numpy", "onnx", "psutil", "pydantic>=2.10", "typing-extensions", "tensorrt", "cuda-python"),
}
_INSTALL_SECONDS = 1800.0


def name_of(release: str) -> str:
    """The name of a release: its file name without the suffix."""
    return Path(release).stem or "here"


def environment_of(release: str, backend: BackendName) -> Path:
    """The folder of a release's environment, possibly missing; ConfigError if its file cannot be read."""
    try:
        pins = Path(release).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.ConfigError(f"Release {release} is not a constraints file of pip: {exc}.") from None
    # Built wheels depend on Python and machine, so an environment on a shared disk is not used by another kind.
    key = digest([pins, _PACKAGES_OF_BACKEND[backend], platform.python_version(), platform.machine()])[:12]
    return default_root() / "environments" / f"{backend}-{key}"


def interpreter_of(release: str, backend: BackendName, until: float = math.inf) -> str | None:
    """The interpreter of a release; creates its environment if missing. None for this process' own.

    TimeoutError if it is not there at ``until``, a time of ``time.monotonic()``.
    """
    if release == HERE:
        return None
    folder = environment_of(release, backend)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = str(Path(release).absolute())
    # PYTHONPATH would let this process' packages shadow those of the release.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder.parent.mkdir(parents=True, exist_ok=True)

    def seconds() -> float:
        return min(_INSTALL_SECONDS, max(0.0, until - time.monotonic()))

    with locked(folder.parent / f"{folder.name}.lock", seconds()):
        if (folder / COMPLETE).exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted installation
        folder.mkdir()
        try:
            for command in (
                [sys.executable, "-m", "venv", str(folder)],
                [*pip, "-c", constraints, *_PACKAGES_OF_BACKEND[backend]],
            ):
                # In a folder of ours, because Python searches the working folder for modules first.
                subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, env=environment,
                    timeout=seconds(), check=True,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as exc:
            shutil.rmtree(folder, ignore_errors=True)
            if time.monotonic() >= until:
                raise TimeoutError(f"Release {release} was not installed in time.") from None
            pip_output = (getattr(exc, "stderr", None) or "") + (getattr(exc, "stdout", None) or "")
            reason = " ".join([line for line in pip_output.splitlines() if line.startswith("ERROR")][-2:]) or exc
            raise errors.BackendUnavailableError(f"Release {release} cannot be installed: {reason}") from None
        (folder / COMPLETE).touch()
    return python
