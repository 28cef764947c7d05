"""The engine back ends by name, and the reference runner. Back ends are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple, cast

from trtops import errors
from trtops.backend.base import BaseRunner, EngineBackend

if TYPE_CHECKING:
    from types import ModuleType

    from trtops.backend.onnx.model import Model


class _Entry(NamedTuple):
    module: str
    class_name: str
    install: str
    suffixes: tuple[str, ...]


_BACKENDS = {
    "onnxruntime": _Entry(
        module="trtops.backend.onnxrt.builder",
        class_name="OnnxRuntimeBackend",
        install="pip install onnxruntime",
        suffixes=(".ort",),
    ),
    "tensorrt": _Entry(
        module="trtops.backend.trt.building.backend",
        class_name="TensorRTBackend",
        install="pip install 'trtops[trt]' (with the package index that NVIDIA's installation guide names)",
        suffixes=(".engine", ".plan"),
    ),
}

BACKENDS: tuple[str, ...] = tuple(_BACKENDS)
"""Names of the back ends, as in :attr:`trtops.spec.BuildConfig.backend`."""


def engine_backend(name: str) -> EngineBackend:
    """Return the back end of a name from :data:`BACKENDS`.

    ConfigError if the name is unknown, BackendUnavailableError if its library is not installed.
    """
    entry = _BACKENDS.get(name)
    if entry is None:
        raise errors.ConfigError(f"Unknown back end {name!r}. {errors.near(name, BACKENDS)}")
    module = _import_backend_module(entry.module, f"Back end {name!r} needs", entry.install)
    return cast(EngineBackend, getattr(module, entry.class_name)())


def backend_of_suffix(suffix: str) -> str | None:
    """Return the name of the back end whose engine files have this suffix, or None."""
    return next((name for name, entry in _BACKENDS.items() if suffix.lower() in entry.suffixes), None)


def reference_runner(model: Model, name: str | None = None) -> BaseRunner:
    """Return a runner of the model for golden outputs: ONNX Runtime on the CPU with every optimization off.

    The model is read when the runner is activated. BackendUnavailableError if ONNX Runtime is not installed.
    """
    install = _BACKENDS["onnxruntime"].install
    module = _import_backend_module("trtops.backend.onnxrt.reference", "Golden outputs need", install)
    return cast(BaseRunner, module.reference_runner(model, name))


def _import_backend_module(name: str, needed_by: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if (exc.name or "trtops").startswith("trtops"):
            raise
        raise errors.BackendUnavailableError(
            f"{needed_by} {exc.name!r}, which is not installed. Install it: {install}"
        ) from exc
