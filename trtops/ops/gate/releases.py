"""Releases of a back end, each in its own Python environment: created once from a constraints file, or existing."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.record import Record, digest
from trtops.spec import BackendName
from trtops.system.locks import locked
from trtops.tracking.location import default_root

_REQUIRED = ("numpy", "onnx", "psutil", "pydantic>=2.10", "typing-extensions")
_OF_BACKEND: dict[BackendName, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime",),
    "tensorrt": ("tensorrt", "cuda-python"),
}
_INSTALL_SECONDS = 1800.0
_COMPLETE = ".trtops-complete"


@dataclass(frozen=True, kw_only=True)
class Release(Record):
    """A release of a back end, installed in a Python environment."""

    name: str
    # A file of pinned packages for pip's -c (.txt), from which the environment is created; or the folder or the
    # interpreter of an existing environment. Empty for the environment of this process.
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Release":
        """Parse ``name=path`` or a path."""
        name, found, path = text.partition("=")
        return cls(name=name, path=path) if found else cls(name=Path(text).stem, path=text)


HERE = Release(name="here")


def interpreter_of(release: Release, backend: BackendName) -> str | None:
    """The interpreter of a release, whose environment is created if missing; None for this process' own."""
    if not release.path:
        return None
    if not release.path.endswith(".txt"):
        for path in (Path(release.path), Path(release.path, "bin", "python")):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path.absolute())
        raise errors.ConfigError(
            f"Release {release.name!r}: {release.path} is neither an interpreter nor the folder of an environment "
            "(bin/python)."
        )
    try:
        pins = Path(release.path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.ConfigError(f"Release {release.name!r}: {release.path} cannot be read: {exc}.") from None
    packages = (*_REQUIRED, *_OF_BACKEND[backend])
    # Built wheels depend on Python and machine, so an environment on a shared disk is not used by another kind.
    key = digest([pins, packages, platform.python_version(), platform.machine()])[:12]
    folder = default_root() / "environments" / f"{backend}-{key}"
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # PYTHONPATH would let this process' packages shadow those of the release.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f"{folder.name}.lock"):
        if (folder / _COMPLETE).exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted installation
        folder.mkdir()
        constraints = str(Path(release.path).absolute())
        try:
            for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, "-c", constraints, *packages]):
                # In a folder of ours, because Python searches the working folder for modules first.
                subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, env=environment,
                    timeout=_INSTALL_SECONDS, check=True,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as exc:
            shutil.rmtree(folder, ignore_errors=True)
            said = (getattr(exc, "stderr", None) or "") + (getattr(exc, "stdout", None) or "")
            why = " ".join([line for line in said.splitlines() if line.startswith("ERROR")][-2:]) or exc
            raise errors.BackendUnavailableError(
                f"Release {release.name!r} cannot be installed from {release.path}: {why}"
            ) from None
        # Written last: without it, the folder is of an installation that was killed.
        (folder / _COMPLETE).touch()
    return python
