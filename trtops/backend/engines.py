"""The engine back ends by name, and the reference that engines are evaluated against.

The one place that knows which back ends there are. Each is imported when it is asked for, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

from trtops import errors, lazy
from trtops.backend.base import BaseRunner, EngineBackend

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model


@dataclass(frozen=True, kw_only=True)
class _Entry:
    module: str
    attribute: str
    install: str
    suffixes: tuple[str, ...]
    merge_timing_caches: str


_BACKENDS = {
    "onnxruntime": _Entry(
        module="trtops.backend.onnxrt.builder",
        attribute="OnnxRuntimeBackend",
        install="pip install onnxruntime",
        suffixes=(".ort",),
        merge_timing_caches="trtops.backend.onnxrt.timing_cache.merge",
    ),
    "tensorrt": _Entry(
        module="trtops.backend.trt.build.backend",
        attribute="TensorRTBackend",
        install="pip install 'trtops[trt]' (with the package index that NVIDIA's installation guide names)",
        suffixes=(".engine", ".plan"),
        merge_timing_caches="trtops.backend.trt.choices.timing_cache.merge_all",
    ),
}

BACKENDS: tuple[str, ...] = tuple(_BACKENDS)
"""Names of the back ends, as :attr:`trtops.spec.BuildConfig.backend` spells them."""


def engine_backend(name: str) -> EngineBackend:
    """The back end of a name, such as ``BuildConfig.backend`` or ``Engine.backend``.

    Args:
        name: One of :data:`BACKENDS`.

    Raises:
        ConfigError: If there is none of that name.
        BackendUnavailableError: If its library is not installed.
    """
    entry = _BACKENDS.get(name)
    if entry is None:
        raise errors.ConfigError(f"Unknown back end {name!r}. {errors.near(name, BACKENDS)}")
    module = _import_backend_module(entry.module, f"Back end {name!r} needs", entry.install)
    return cast(EngineBackend, getattr(module, entry.attribute)())


def merge_timing_caches(backend: str, caches: Sequence[bytes]) -> bytes:
    """Put timing caches of one device and release together; where two know a timing, the earlier one's stays.

    Args:
        backend: One of :data:`BACKENDS`, whose caches they are.
        caches: One or more.

    Raises:
        ConfigError: If there is no such back end.
        BackendUnavailableError: If its library is missing here, or TensorRT finds no GPU.
        TimingCacheError: If one is damaged, or they are of different devices or releases.
    """
    engine_backend(backend)  # so that a wrong name and a missing library are told of
    merged: bytes = lazy.function(_BACKENDS[backend].merge_timing_caches)(caches)
    return merged


def backend_of_suffix(suffix: str) -> str | None:
    """Name of the back end whose engine files have this ending (``.ort``, ``.plan`` or ``.engine``); None if none has."""
    return next((name for name, entry in _BACKENDS.items() if suffix.lower() in entry.suffixes), None)


def reference_runner(model: Model, name: str | None = None) -> BaseRunner:
    """A runner of the model as it is, for golden outputs: ONNX Runtime on the CPU with every optimization off.

    Args:
        model: The model; read when the runner is activated.
        name: The runner's name; counted up as ``onnxrt-reference-N0`` and so on if not given.

    Raises:
        BackendUnavailableError: If ONNX Runtime is not installed.
    """
    module = _import_backend_module(
        "trtops.backend.onnxrt.reference", "Golden outputs need", _BACKENDS["onnxruntime"].install
    )
    return cast(BaseRunner, module.reference_runner(model, name))


def _import_backend_module(name: str, who_needs: str, install: str) -> ModuleType:
    """A module of a back end, which imports that back end's library.

    Raises:
        BackendUnavailableError: If the library, or anything else that is not ours, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if (exc.name or "trtops").startswith("trtops"):
            raise
        raise errors.BackendUnavailableError(
            f"{who_needs} {exc.name!r}, which is not installed. Install it: {install}"
        ) from exc
