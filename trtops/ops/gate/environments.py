"""Releases of a back end, each in its own Python environment: created once from a constraints file, or existing."""

from __future__ import annotations

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
    """A release of a back end, installed in a Python environment; this environment if neither path is given.

    Attributes:
        name: Name in tables.
        constraints: File of pinned packages for pip's ``-c``, from which the environment is created.
        python: Folder or interpreter of an existing environment.
    """

    name: str
    constraints: str | None = None
    python: str | None = None

    def __post_init__(self) -> None:
        if self.constraints is not None and self.python is not None:
            raise errors.ConfigError(f"Release {self.name!r} has constraints and python; expected one of them.")

    @classmethod
    def parse(cls, text: str) -> Release:
        """Parse ``name=path`` or a path: a constraints file (.txt), the folder of an environment or an interpreter."""
        name, found, path = text.partition("=")
        path = path if found else name
        name = name if found else Path(path).stem
        if Path(path).suffix == ".txt":
            return cls(name=name, constraints=path)
        return cls(name=name, python=path)


HERE = Release(name="here")


def interpreter_of(release: Release, backend: BackendName) -> str | None:
    """The interpreter of a release, whose environment is created if missing; None for this process' own.

    Environments are stored in the folder ``environments`` next to the runs, one per content of a constraints file.

    Raises:
        ConfigError: If the constraints file or the environment does not exist.
        BackendUnavailableError: If the release cannot be installed; the message contains pip's reason.
    """
    if release.python is not None:
        for path in (Path(release.python), Path(release.python, "bin", "python")):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path.absolute())
        raise errors.ConfigError(
            f"Release {release.name!r}: {release.python} is neither an interpreter nor the folder of an environment "
            "(bin/python)."
        )
    if release.constraints is None:
        return None
    try:
        pins = Path(release.constraints).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.ConfigError(f"Release {release.name!r}: {release.constraints} cannot be read: {exc}.") from None
    packages = (*_REQUIRED, *_OF_BACKEND[backend])
    key = digest([pins, packages, platform.python_version(), platform.machine()])[:12]
    folder = default_root() / "environments" / f"{backend}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f"{folder.name}.lock"):
        if not (folder / _COMPLETE).exists():
            _create_environment(release, folder, packages)
    return str(folder / "bin" / "python")


def _create_environment(release: Release, folder: Path, packages: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted installation
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = str(Path(str(release.constraints)).absolute())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder.mkdir()
    try:
        for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, "-c", constraints, *packages]):
            # In a folder of ours, because Python searches the working folder for modules first.
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, env=environment, timeout=_INSTALL_SECONDS
            )
            if done.returncode != 0:
                lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")]
                why = " ".join(lines[-2:]) or done.stderr.strip()[-500:] or f"exit code {done.returncode}"
                raise errors.BackendUnavailableError(
                    f"Release {release.name!r} cannot be installed from {release.constraints}: {why}"
                )
    except BaseException as exc:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(exc, (OSError, subprocess.TimeoutExpired)):
            raise errors.BackendUnavailableError(f"Release {release.name!r} cannot be installed: {exc}") from None
        raise
    (folder / _COMPLETE).touch()
