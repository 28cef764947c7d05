"""Releases of a back end, each in an environment of its own: made from a constraints file once, or there already."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.locks import locked
from trtops.record import Record, digest
from trtops.spec import BackendName
from trtops.tracking.location import default_root

_REQUIRED = ("numpy", "onnx", "pydantic>=2.10", "typing-extensions")
_OF_BACKEND: dict[BackendName, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime",),
    "tensorrt": ("tensorrt", "cuda-python"),
}
_INSTALL_SECONDS = 1800.0
_MADE = ".trtops-made"


@dataclass(frozen=True, kw_only=True)
class Release(Record):
    """A release of a back end, as the environment that it is installed in.

    Attributes:
        name: What tables call it.
        constraints: A file of pinned packages, as pip's ``-c`` takes it; the environment is made from it.
        python: An environment that is there, as its folder or its interpreter. Without either it is this one.
    """

    name: str
    constraints: str | None = None
    python: str | None = None

    def __post_init__(self) -> None:
        if self.constraints is not None and self.python is not None:
            raise errors.ConfigError(f"Release {self.name!r} has constraints and python; expected one of them.")

    @classmethod
    def parse(cls, text: str) -> Release:
        """A release from ``name=path``, or from a path alone: a constraints file, an environment's folder, an interpreter."""
        name, found, path = text.partition("=")
        path = path if found else name
        name = name if found else Path(path).stem
        if Path(path).suffix == ".txt":
            return cls(name=name, constraints=path)
        return cls(name=name, python=path)


HERE = Release(name="here")


def interpreter_of(release: Release, backend: BackendName) -> str | None:
    """The interpreter of a release's environment, which is made if it is not there; None for this process' own.

    Environments are kept in ``environments`` beside the runs, one for each content of a constraints file.

    Raises:
        ConfigError: If the constraints file or the environment does not exist.
        BackendUnavailableError: If the release cannot be installed; the message has pip's reason.
    """
    if release.python is not None:
        return _existing_interpreter(release, Path(release.python))
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
        if not (folder / _MADE).exists():
            _make_environment(release, folder, packages)
    return str(folder / "bin" / "python")


def _existing_interpreter(release: Release, place: Path) -> str:
    for path in (place, place / "bin" / "python"):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    raise errors.ConfigError(
        f"Release {release.name!r}: {place} is neither an interpreter nor the folder of an environment (bin/python)."
    )


def _make_environment(release: Release, folder: Path, packages: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # one that was cut short
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = str(Path(str(release.constraints)).absolute())
    try:
        folder.mkdir()
        _run_installer([sys.executable, "-m", "venv", str(folder)], release, folder)
        _run_installer([*pip, "-c", constraints, *packages], release, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / _MADE).touch()


def _run_installer(command: list[str], release: Release, folder: Path) -> None:
    """Run a module of Python's in a folder that is ours: it looks there for modules first."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, env=environment, timeout=_INSTALL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise errors.BackendUnavailableError(f"Release {release.name!r} cannot be installed: {exc}") from None
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")]
        why = " ".join(said[-2:]) or done.stderr.strip()[-500:] or f"exit code {done.returncode}"
        raise errors.BackendUnavailableError(
            f"Release {release.name!r} cannot be installed from {release.constraints}: {why}"
        )
