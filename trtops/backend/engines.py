"""The engine back ends by name, imported on first use."""

from __future__ import annotations

import importlib
from typing import cast

from trtops import errors
from trtops.backend.base import EngineBackend
from trtops.spec import Environment, OnnxRuntimeOptions

_CLASSES = {
    "onnxruntime": ("trtops.backend.onnxrt.builder", "OnnxRuntimeBackend"),
    "tensorrt": ("trtops.backend.trt.building.backend", "TensorRTBackend"),
}
_BACKEND_OF_SUFFIX = {".engine": "tensorrt", ".ort": "onnxruntime", ".plan": "tensorrt", ".trt": "tensorrt"}

BACKENDS: tuple[str, ...] = tuple(_CLASSES)
"""Names of the back ends, as in :attr:`trtops.spec.BuildConfig.backend`."""


def engine_backend(name: str) -> EngineBackend:
    """Return the back end of a name from :data:`BACKENDS`.

    ConfigError if the name is unknown, BackendUnavailableError if its library is not installed.
    """
    errors.check_known(name, _CLASSES, "Unknown back end")
    module, class_name = _CLASSES[name]
    return cast(EngineBackend, getattr(importlib.import_module(module), class_name)())


def environment_of(name: str, options: OnnxRuntimeOptions) -> Environment:
    """Return the environment of a back end's builds on this machine; ``options`` are for ONNX Runtime."""
    if name != "onnxruntime":
        return engine_backend(name).environment()
    from trtops.backend.onnxrt.session import environment_on  # without all that builds

    return environment_on(options.providers)


def newest_opset(name: str) -> int | None:
    """Return the newest operator set that a back end's installed release reads; None if it reads all, or is missing."""
    if name != "tensorrt":
        return None
    from trtops.backend.trt.library.loading import line

    try:
        return line().newest_opset
    except errors.BackendUnavailableError:  # reported when something is built
        return None


ENGINE_SUFFIXES: tuple[str, ...] = tuple(_BACKEND_OF_SUFFIX)
"""Endings of engine files."""


def backend_of_suffix(suffix: str) -> str | None:
    """Return the name of the back end with this suffix of its own engine files, or None."""
    return _BACKEND_OF_SUFFIX.get(suffix.lower())
