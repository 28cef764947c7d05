"""Loaders that build, load, save and refit engines, and those that load plugins and runtimes.

What only building needs is imported when something is built: most processes load an engine and run it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trtops import errors
from trtops.allowed import check_file
from trtops.backend.immediate import immediately
from trtops.backend.runner import ValueOrCallable
from trtops.backend.trt import library
from trtops.backend.trt.lines import Feature
from trtops.files import open_atomically, write_open_file
from trtops.func import make_iterable, value_of

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from trtops.backend.trt.building.network import NetworkParts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadPlugins:
    """Loads plugin libraries and TensorRT's own plugins before anything else is made.

    Attributes:
        plugins: Paths of shared libraries.
        obj: What to return: a value, or a callable that makes it.
    """

    plugins: Sequence[str | os.PathLike[str]] | None = None
    obj: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Load them, then return ``obj`` or what it makes.

        Raises:
            BackendUnavailableError: If a library cannot be loaded.
            ConfigError: If it may not be (:mod:`trtops.allowed`).
        """
        trt = library.load()
        for path in self.plugins or ():
            check_file(path, "plugin library")
            try:
                ctypes.CDLL(os.fspath(path))
            except OSError as exc:
                raise errors.BackendUnavailableError(f"The plugin library {path} cannot be loaded: {exc}.") from exc
        trt.init_libnvinfer_plugins(library.get_trt_logger(), "")
        return self.obj(*args, **kwargs) if callable(self.obj) else self.obj


load_plugins = immediately(LoadPlugins)


@dataclass(frozen=True)
class LoadRuntime:
    """Loads a lean runtime from a library of its own, for version compatible engines.

    Attributes:
        path: The library.
    """

    path: str | os.PathLike[str]

    def __call__(self) -> Any:
        """Load it.

        Raises:
            BackendUnavailableError: If TensorRT cannot load it.
        """
        runtime = library.make_runtime()
        with library.collect_log() as lines:
            loaded = runtime.load_runtime(os.fspath(self.path))
        if loaded is None:
            raise errors.BackendUnavailableError(f"TensorRT cannot load the runtime {self.path}. {lines.tail()}")
        return loaded


load_runtime = immediately(LoadRuntime)


@dataclass(frozen=True)
class EngineBytesFromNetwork:
    """Builds an engine, as bytes.

    Attributes:
        network: A network's parts, or a callable that makes them.
        config: A builder config, or a callable that makes one from builder and network; ``CreateConfig()`` unless given.
        save_timing_cache: File to save the timing cache to, as TensorRT's own bytes, merged with what it has, or an open one.
            If that fails, the engine is not lost: a warning says why, and the file stays as it is.
    """

    network: ValueOrCallable[NetworkParts]
    config: Any = None
    save_timing_cache: str | os.PathLike[str] | IO[bytes] | None = None

    @property
    def timing_cache_path(self) -> str | os.PathLike[str] | IO[bytes] | None:
        """Where the timing cache is saved, by Polygraphy's name for it."""
        return self.save_timing_cache

    def __call__(self) -> Any:
        """Build.

        Returns:
            The plan, as ``trt.IHostMemory``: a buffer that ``bytes()`` copies.

        Raises:
            ConfigError: If there is no builder and network.
            EngineBuildError: If TensorRT builds no engine; the message has TensorRT's last errors.
            CalibrationError: If INT8 calibration fails.
            TacticMismatchError: If a replay was not followed.
            TimingCacheError: If the timing cache to load is of another device or release.
        """
        from trtops.backend.trt.building.config import CreateConfig
        from trtops.backend.trt.building.network_changes import network_parts, with_config

        config_loader = CreateConfig() if self.config is None else self.config
        builder, network, *_ = network_parts(value_of(with_config(self.network, config_loader)))
        config = config_loader(builder, network) if callable(config_loader) else config_loader
        started = time.perf_counter()
        plan = build_plan(builder, network, config, selector=getattr(config_loader, "algorithm_selector", None))
        seconds = time.perf_counter() - started
        log.info("Built an engine in %.2f s", seconds)
        if self.save_timing_cache is not None:
            _save_timing_cache(config, self.save_timing_cache, seconds)
        return plan


def _save_timing_cache(config: Any, path: str | os.PathLike[str] | IO[bytes], seconds: float) -> None:
    """Save the timing cache of a build that succeeded. The engine must not be lost where the cache cannot be saved."""
    from trtops.backend.trt.choices import timing_cache

    cache = timing_cache.collect(config, None, None, seconds)
    if cache is None:
        return
    try:
        if isinstance(path, (str, os.PathLike)):
            timing_cache.save(config, cache, path, raw=True)
        else:
            write_open_file(path, cache.data)
    except (errors.TimingCacheError, OSError) as exc:
        library.remark(f"The timing cache was not saved to {path}: {exc}")


def build_plan(builder: Any, network: Any, config: Any, *, selector: Any = None) -> Any:
    """Build a network under a config, and raise the errors of callbacks, which cannot raise through C++.

    Args:
        builder: The builder.
        network: The network. If single layers ask for a precision that the config lacks, others may be fixed to FP32.
        config: The builder config; may get the flags for precisions that single layers ask for.
        selector: The algorithm selector in it, if any.

    Returns:
        The plan, as ``trt.IHostMemory``.

    Raises:
        EngineBuildError: If TensorRT builds no engine; the message has TensorRT's last errors.
        CalibrationError: If INT8 calibration fails.
        TacticMismatchError: If a replay was not followed.
    """
    from trtops.backend.trt.building.calibrator import check_calibration
    from trtops.backend.trt.building.precision import allow_layer_precisions
    from trtops.backend.trt.choices.selector import check_replay

    line = library.line()
    allow_layer_precisions(network, config)
    with library.collect_log() as lines:
        plan = builder.build_serialized_network(network, config)
    # Before the plan is looked at: without an engine, these are why there is none.
    if line.supports(Feature.CALIBRATOR):
        check_calibration(line.get_calibrator(config))
    check_replay(selector)
    if plan is None:
        raise errors.EngineBuildError(f"{line.name} built no engine. {lines.tail()}")
    return plan


engine_bytes_from_network = immediately(EngineBytesFromNetwork)


@dataclass(frozen=True)
class EngineFromNetwork:
    """Builds an engine, and loads it.

    Attributes:
        network: A network's parts, or a callable that makes them.
        config: A builder config, or a callable that makes one from builder and network; ``CreateConfig()`` unless given.
        save_timing_cache: File to save the timing cache to, merged with what it has, or an open one.
        runtime: A runtime to load the engine with, or a callable that makes one.
        dla_workspace_allocation_strategy: How engines of that runtime share DLA workspaces.
    """

    network: ValueOrCallable[NetworkParts]
    config: Any = None
    save_timing_cache: str | os.PathLike[str] | IO[bytes] | None = None
    runtime: Any = None
    dla_workspace_allocation_strategy: Any = None

    @property
    def timing_cache_path(self) -> str | os.PathLike[str] | IO[bytes] | None:
        """Where the timing cache is saved, by Polygraphy's name for it."""
        return self.save_timing_cache

    def __call__(self) -> Any:
        """Build and load; raises what :class:`EngineBytesFromNetwork` and :class:`EngineFromBytes` raise."""
        plan = engine_bytes_from_network(self.network, self.config, self.save_timing_cache)
        return engine_from_bytes(plan, self.runtime, self.dla_workspace_allocation_strategy, allow_host_code=True)


engine_from_network = immediately(EngineFromNetwork)


@dataclass(frozen=True)
class EngineFromBytes:
    """Loads an engine from the bytes of its plan.

    A plan is code for the GPU, and version compatible ones carry a runtime of their own, which is code for this machine.
    The latter is run only where that is allowed.

    Attributes:
        serialized_engine: The plan: bytes or any buffer, or a callable that makes it.
        runtime: A runtime to load it with, or a callable that makes one.
        dla_workspace_allocation_strategy: How engines of that runtime share DLA workspaces.
        allow_host_code: Whether code for this machine in the plan may be run; as ``TRTOPS_ALLOW_HOST_CODE=1`` says unless
            given.
    """

    serialized_engine: ValueOrCallable[Any] = field(repr=False)
    runtime: Any = None
    dla_workspace_allocation_strategy: Any = None
    allow_host_code: bool | None = None

    def __call__(self) -> Any:
        """Load it.

        Raises:
            EngineLoadError: If the bytes are damaged, or were built for another release or device.
            BackendUnavailableError: If TensorRT or the GPU cannot be used here.
        """
        plan = value_of(self.serialized_engine)
        runtime = library.make_runtime() if self.runtime is None else value_of(self.runtime)
        if self.dla_workspace_allocation_strategy is not None:
            library.line().set_dla_workspace_strategy(runtime, self.dla_workspace_allocation_strategy)
        allowed = _is_host_code_allowed() if self.allow_host_code is None else self.allow_host_code
        if allowed:  # left alone otherwise: whoever brings a runtime may have allowed it there
            runtime.engine_host_code_allowed = True
        # Registers TensorRT's own plugins, which the engine may use; does nothing the second time.
        library.load().init_libnvinfer_plugins(library.get_trt_logger(), "")
        with library.collect_log() as lines:
            engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise errors.EngineLoadError(
                f"{library.line().name} cannot load this engine of {memoryview(plan).nbytes} bytes: it is damaged, or was "
                f"built for another release or device. Rebuild it here. {'' if allowed else _HOST_CODE}{lines.tail()}"
            )
        return engine


_HOST_CODE = (
    "Or it is version compatible, and so has code in it that runs on this machine outside the GPU: if you trust whoever "
    "built it, set TRTOPS_ALLOW_HOST_CODE=1. "
)


def _is_host_code_allowed() -> bool:
    return os.environ.get("TRTOPS_ALLOW_HOST_CODE") == "1"


engine_from_bytes = immediately(EngineFromBytes)


@dataclass(frozen=True)
class EngineFromPath:
    """Loads an engine from a plan file.

    Attributes:
        path: The file.
        runtime: A runtime to load it with, or a callable that makes one.
        dla_workspace_allocation_strategy: How engines of that runtime share DLA workspaces.
    """

    path: str | os.PathLike[str]
    runtime: Any = None
    dla_workspace_allocation_strategy: Any = None

    def __call__(self) -> Any:
        """Load it; raises what :class:`EngineFromBytes` raises, also where there is no such file."""
        import mmap

        try:
            # Mapped, not read: TensorRT copies what it keeps, so the plan would be in memory twice.
            with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
                return engine_from_bytes(plan, self.runtime, self.dla_workspace_allocation_strategy)
        except (OSError, ValueError) as exc:
            raise errors.EngineLoadError(f"{self.path} cannot be read: {exc}. Expected a TensorRT plan.") from exc


engine_from_path = immediately(EngineFromPath)


@dataclass(frozen=True)
class BufferFromEngine:
    """Serializes an engine, as ``trt.IHostMemory``.

    Attributes:
        engine: The engine, or a callable that makes one.
    """

    engine: ValueOrCallable[Any]

    def __call__(self) -> Any:
        """Serialize it."""
        return value_of(self.engine).serialize()


buffer_from_engine = immediately(BufferFromEngine)


@dataclass(frozen=True)
class BytesFromEngine:
    """Serializes an engine, as ``bytes``.

    Attributes:
        engine: The engine, or a callable that makes one.
    """

    engine: ValueOrCallable[Any]

    def __call__(self) -> bytes:
        """Serialize it."""
        return bytes(buffer_from_engine(self.engine))


bytes_from_engine = immediately(BytesFromEngine)


@dataclass(frozen=True)
class SaveEngine:
    """Writes an engine to a file, whole or not at all, and passes it on.

    Attributes:
        engine: The engine, or a callable that makes one.
        path: The file, or an open one.
    """

    engine: ValueOrCallable[Any]
    path: str | os.PathLike[str] | IO[Any]

    def __call__(self) -> Any:
        """Make the engine, write it, and return it."""
        engine = value_of(self.engine)
        if not isinstance(self.path, (str, os.PathLike)):
            write_open_file(self.path, buffer_from_engine(engine))
            return engine
        with open_atomically(Path(self.path)) as file:
            file.write(buffer_from_engine(engine))
        return engine


save_engine = immediately(SaveEngine)


def refit_engine(engine: Any, weights: Mapping[str, np.ndarray[Any, Any]] | onnx.ModelProto | bytes) -> tuple[str, ...]:
    """Exchange weights of a refittable engine in place; contexts made before use the new ones.

    Args:
        engine: An engine built with ``refittable=True``.
        weights: Arrays by weight name (ONNX initializers keep their names), or an ONNX model or its bytes, whose
            initializers are taken.

    Returns:
        Names of the weights that were set.

    Raises:
        ConfigError: If the engine is not refittable, or has no weight of a name.
        EngineBuildError: If TensorRT refuses the weights, or lacks some.
    """
    import numpy as np

    if not engine.refittable:
        raise errors.ConfigError("The engine is not refittable. Build it with CreateConfig(refittable=True).")
    trt = library.load()
    refitter = trt.Refitter(engine, library.get_trt_logger())
    known = list(refitter.get_all_weights())
    named = dict(weights) if isinstance(weights, Mapping) else _initializers_named(weights, known)
    # Kept here: TensorRT reads from the arrays' memory until refit_cuda_engine returns.
    held = {name: np.ascontiguousarray(array) for name, array in named.items()}
    with library.collect_log() as lines:
        for name, array in held.items():
            if name not in known:
                raise errors.ConfigError(f"The engine has no refittable weight {name!r}. {errors.near(name, known)}")
            if not refitter.set_named_weights(name, trt.Weights(array)):
                raise errors.EngineBuildError(
                    f"TensorRT refuses weight {name!r} of shape {array.shape}, {array.dtype}. {lines.tail()}"
                )
        if not refitter.refit_cuda_engine():
            missing = ", ".join(refitter.get_missing_weights()) or "none"
            raise errors.EngineBuildError(f"Refitting failed; weights still missing: {missing}. {lines.tail()}")
    return tuple(held)


def _initializers_named(model: onnx.ModelProto | bytes, known: Sequence[str]) -> dict[str, Any]:
    import onnx

    proto = onnx.ModelProto.FromString(model) if isinstance(model, bytes) else model
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in known}


@dataclass(frozen=True)
class OnnxLikeFromNetwork:
    """Shows a TensorRT network as an ONNX model, for viewers; it does not run.

    Attributes:
        network: A network's parts, or a callable that makes them.
    """

    network: ValueOrCallable[NetworkParts]

    def __call__(self) -> onnx.ModelProto:
        """Draw the network."""
        from trtops.backend.trt.describe.onnx_like import draw

        return draw(make_iterable(value_of(self.network))[1])


onnx_like_from_network = immediately(OnnxLikeFromNetwork)
