"""Loaders for engines (building, loading, saving), plugins and runtimes."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.common import save_bytes
from trtops.backend.loader import BaseLoader, ValueOrCallable, immediately
from trtops.backend.trt import library
from trtops.backend.trt.lines import Feature
from trtops.func import make_iterable, value_of
from trtops.system.allowed import check_file
from trtops.system.files import write_open_file

if TYPE_CHECKING:
    import onnx

    from trtops.backend.trt.building.network import NetworkParts

log = logging.getLogger(__name__)

# TensorRT 5 to 10 log it like this.
_BUILT_ELSEWHERE = re.compile(r"expecting (library version|compute) ([\d.]*\d) got (?:compute )?([\d.]*\d)")
_DLA_STRATEGY = {"names": "trt.DLAWorkspaceAllocationStrategy"}


@dataclass(frozen=True)
class LoadPlugins(BaseLoader[Any]):
    """Loads plugin libraries and TensorRT's own plugins, then returns ``obj`` or calls it.

    Raises BackendUnavailableError if a library cannot be loaded; ConfigError if loading it is not allowed
    (:mod:`trtops.system.allowed`).
    """

    plugins: Sequence[str | os.PathLike[str]] | None = None  # paths of shared libraries
    obj: Any = None  # a value, or a callable that makes it

    def call_impl(self, *args: Any, **kwargs: Any) -> Any:
        trt = library.load()
        for path in self.plugins or ():
            if re.fullmatch(r"(lib)?nvinfer_plugin(\.so[.\d]*|_?[\d]*\.dll)", os.fspath(path)):
                continue  # TensorRT's own, which has been loaded from its package
            check_file(path, "plugin library")
            try:
                ctypes.CDLL(os.fspath(path))
            except OSError as exc:
                raise errors.BackendUnavailableError(f"The plugin library {path} cannot be loaded: {exc}.") from exc
        trt.init_libnvinfer_plugins(library.get_trt_logger(), "")
        return self.obj(*args, **kwargs) if callable(self.obj) else self.obj


@dataclass(frozen=True)
class LoadRuntime(BaseLoader[Any]):
    """Loads a lean runtime, a shared library; raises BackendUnavailableError if TensorRT cannot load it."""

    path: str | os.PathLike[str]

    def call_impl(self) -> Any:
        runtime = library.make_runtime()
        with library.collect_log() as lines:
            loaded = runtime.load_runtime(os.fspath(self.path))
        if loaded is None:
            raise errors.BackendUnavailableError(f"TensorRT cannot load the runtime {self.path}. {lines.tail()}")
        return loaded


@dataclass(frozen=True)
class EngineBytesFromNetwork(BaseLoader[Any]):
    """Builds an engine and returns its plan as ``trt.IHostMemory``, a buffer in host memory.

    Raises EngineBuildError with TensorRT's last errors, CalibrationError, TacticMismatchError if a replay was not
    followed, or TimingCacheError if the timing cache to load is of another device or release.
    """

    network: ValueOrCallable[NetworkParts]  # a network's parts, or a callable that makes them
    # A builder config, or a callable that makes one from builder and network; ``CreateConfig()`` by default.
    config: Any = None
    # Path or open file for the timing cache, as TensorRT's own bytes, merged with the file's content. If saving
    # fails, a warning gives the reason, the file is not changed, and the engine is returned.
    save_timing_cache: str | os.PathLike[str] | IO[bytes] | None = None

    def call_impl(self) -> Any:
        # Imported here: most processes only load an engine and run it, and start faster without these modules.
        from trtops.backend.trt.building.config import CommonConfig, CreateConfig
        from trtops.backend.trt.building.network_changes import network_parts, with_config
        from trtops.backend.trt.choices import timing_cache

        config_loader = CreateConfig() if self.config is None else self.config
        if isinstance(config_loader, CommonConfig):
            config_loader = config_loader.resolved()  # the selector is checked after the build
        builder, network, *_ = network_parts(value_of(with_config(self.network, config_loader)))
        config = config_loader(builder, network) if callable(config_loader) else config_loader
        started = time.perf_counter()
        plan = build_plan(builder, network, config, selector=getattr(config_loader, "algorithm_selector", None))
        seconds = time.perf_counter() - started
        log.info("Built an engine in %.2f s", seconds)
        path = self.save_timing_cache
        cache = None if path is None else timing_cache.collect(config, None, None, seconds)
        if path is not None and cache is not None:
            try:
                if isinstance(path, (str, os.PathLike)):
                    timing_cache.save(config, cache, path, raw=True)
                else:
                    write_open_file(path, cache.data)
            except (errors.TimingCacheError, OSError) as exc:
                # A build can take hours, so the engine is returned in any case.
                library.log_warning(f"The timing cache was not saved to {path}: {exc}")
        return plan


def build_plan(builder: Any, network: Any, config: Any, *, selector: Any = None) -> Any:
    """Build a network, and return the plan as ``trt.IHostMemory``; ``selector`` is the config's algorithm selector.

    Raises EngineBuildError with TensorRT's last errors; CalibrationError; TacticMismatchError.
    """
    from trtops.backend.trt.building.calibrator import check_calibration, prepare_calibrator_of
    from trtops.backend.trt.choices.selector import check_followed

    line = library.line()
    prepare_calibrator_of(config, network)
    with library.collect_log() as lines:
        plan = builder.build_serialized_network(network, config)
    # These come first: they explain a missing engine better than TensorRT's log.
    if line.supports(Feature.CALIBRATOR):
        check_calibration(config.int8_calibrator)
    check_followed(selector)
    if plan is None:
        raise errors.EngineBuildError(f"{line.name} built no engine. {lines.tail()}")
    return plan


@dataclass(frozen=True)
class EngineFromNetwork(BaseLoader[Any]):
    """Builds an engine and loads it; raises as :class:`EngineBytesFromNetwork` and :class:`EngineFromBytes`.

    >>> build = EngineFromNetwork(NetworkFromOnnxPath("model.onnx"), CreateConfig(fp16=True))  # doctest: +SKIP
    >>> save_engine(build, "model.engine")  # doctest: +SKIP
    """

    network: ValueOrCallable[NetworkParts]  # a network's parts, or a callable that makes them
    # A builder config, or a callable that makes one from builder and network; ``CreateConfig()`` by default.
    config: Any = None
    save_timing_cache: str | os.PathLike[str] | IO[bytes] | None = None  # as for :class:`EngineBytesFromNetwork`
    runtime: Any = None  # as for :class:`EngineFromBytes`, like ``dla_workspace_allocation_strategy``
    dla_workspace_allocation_strategy: Any = field(default=None, metadata=_DLA_STRATEGY)

    def call_impl(self) -> Any:
        plan = engine_bytes_from_network(self.network, self.config, self.save_timing_cache)
        return engine_from_bytes(plan, self.runtime, self.dla_workspace_allocation_strategy, allow_host_code=True)


@dataclass(frozen=True)
class EngineFromBytes(BaseLoader[Any]):
    """Loads an engine from the bytes of its plan.

    A version compatible plan contains a runtime, which is code for the host. It only runs if that is allowed.

    Raises EngineLoadError if the bytes are damaged, or were built for another release or device;
    BackendUnavailableError if TensorRT or the GPU cannot be used here.
    """

    # The plan: bytes or any buffer, or a callable that makes it.
    serialized_engine: ValueOrCallable[Any] = field(repr=False)
    runtime: Any = None  # a runtime to load it with, or a callable that makes one
    # How engines of that runtime share DLA workspaces.
    dla_workspace_allocation_strategy: Any = field(default=None, metadata=_DLA_STRATEGY)
    # Whether host code in the plan may run; by default only if ``TRTOPS_ALLOW_HOST_CODE=1`` is set.
    allow_host_code: bool | None = None

    def call_impl(self) -> Any:
        plan = value_of(self.serialized_engine)
        runtime = library.make_runtime() if self.runtime is None else value_of(self.runtime)
        strategy = library.member("DLAWorkspaceAllocationStrategy", self.dla_workspace_allocation_strategy)
        if strategy is not None:
            library.line().set_property(runtime, Feature.DLA_WORKSPACE_STRATEGY, strategy)
        allowed = self.allow_host_code
        if allowed is None:
            allowed = os.environ.get("TRTOPS_ALLOW_HOST_CODE") == "1"
        # Not set to False otherwise: the caller's runtime may already allow it.
        if allowed:
            runtime.engine_host_code_allowed = True
        # Registers TensorRT's own plugins, which the engine may use; does nothing the second time.
        library.load().init_libnvinfer_plugins(library.get_trt_logger(), "")
        with library.collect_log() as lines:
            engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            if (built := _BUILT_ELSEWHERE.search(lines.text)) is not None:
                kind, here, there = built.groups()
                what = "TensorRT" if kind == "library version" else "a GPU of compute capability"
                raise errors.EngineLoadError(
                    f"The engine was built for {what} {there}; this is {here}. Rebuild it here, or load it there."
                )
            host_code = "Or it contains host code: to allow that, set TRTOPS_ALLOW_HOST_CODE=1. "
            raise errors.EngineLoadError(
                f"{library.line().name} cannot load this engine of {memoryview(plan).nbytes} bytes: it is damaged, or "
                "was built for another release or device. Rebuild it here. "
                f"{'' if allowed else host_code}{lines.tail()}"
            )
        return engine


@dataclass(frozen=True)
class EngineFromPath(BaseLoader[Any]):
    """Loads an engine from a plan file; raises the errors of :class:`EngineFromBytes`, also if the file is missing.

    The other attributes are those of :class:`EngineFromBytes`.
    """

    path: str | os.PathLike[str]
    runtime: Any = None
    dla_workspace_allocation_strategy: Any = field(default=None, metadata=_DLA_STRATEGY)

    def call_impl(self) -> Any:
        import mmap

        try:
            # Mapped, since TensorRT makes its own copy: reading the file would keep the plan in memory twice.
            with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
                return engine_from_bytes(plan, self.runtime, self.dla_workspace_allocation_strategy)
        except (OSError, ValueError) as exc:
            raise errors.EngineLoadError(f"{self.path} cannot be read: {exc}. Expected a TensorRT plan.") from exc


def FileReader(filepath: str | os.PathLike[str], BaseClass: type | None = None) -> Any:
    """Create a reader for TensorRT to deserialize an engine from, block by block.

    Use it in a ``with`` block or close it with ``free()``. ``BaseClass`` is ``IStreamReader`` by default, or
    ``IStreamReaderV2`` on releases without it.

    Raises EngineLoadError if there is no such file; UnsupportedFeatureError if this release reads engines only from
    memory.
    """
    trt = library.load()
    base: Any = BaseClass or getattr(trt, "IStreamReader", None) or getattr(trt, "IStreamReaderV2", None)
    if base is None:
        raise errors.UnsupportedFeatureError(
            f"{library.line().name} reads engines only from memory; use EngineFromPath instead of FileReader."
        )
    if not os.path.isfile(filepath):
        raise errors.EngineLoadError(f"{os.fspath(filepath)} is not a file; expected an engine.")

    class Reader(base):  # type: ignore[misc]
        """Called from C++."""

        def __init__(self) -> None:
            base.__init__(self)
            self.filepath = filepath
            self.mode = "rb"
            self.file = open(filepath, "rb")  # noqa: SIM115 - closed by free()

        def read(self, size: int, stream: Any = None) -> bytes:
            return self.file.read(size)

        def seek(self, offset: int, whence: int = 0) -> int:
            return self.file.seek(offset, int(whence))

        def free(self) -> None:
            self.file.close()

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc_info: object) -> None:
            self.free()

    return Reader()


@dataclass(frozen=True)
class BufferFromEngine(BaseLoader[Any]):
    """Serializes an engine, or a callable's result, to ``trt.IHostMemory``."""

    engine: ValueOrCallable[Any]

    def call_impl(self) -> Any:
        return value_of(self.engine).serialize()


@dataclass(frozen=True)
class BytesFromEngine(BaseLoader[bytes]):
    """Serializes an engine, or a callable's result, to ``bytes``."""

    engine: ValueOrCallable[Any]

    def call_impl(self) -> bytes:
        return bytes(buffer_from_engine(self.engine))


@dataclass(frozen=True)
class SaveEngine(BaseLoader[Any]):
    """Writes an engine to a path, completely or not at all, or to an open file; returns the engine."""

    engine: ValueOrCallable[Any]
    path: str | os.PathLike[str] | IO[Any]

    def call_impl(self) -> Any:
        engine = value_of(self.engine)
        save_bytes(buffer_from_engine(engine), self.path)
        return engine


@dataclass(frozen=True)
class OnnxLikeFromNetwork(BaseLoader["onnx.ModelProto"]):
    """Converts a TensorRT network, or a callable's result, to an ONNX model for viewers; the model does not run."""

    network: ValueOrCallable[NetworkParts]

    def call_impl(self) -> onnx.ModelProto:
        from trtops.backend.trt.describe.onnx_like import draw

        return draw(make_iterable(value_of(self.network))[1])


load_plugins = immediately(LoadPlugins)
load_runtime = immediately(LoadRuntime)
engine_bytes_from_network = immediately(EngineBytesFromNetwork)
engine_from_network = immediately(EngineFromNetwork)
engine_from_bytes = immediately(EngineFromBytes)
engine_from_path = immediately(EngineFromPath)
buffer_from_engine = immediately(BufferFromEngine)
bytes_from_engine = immediately(BytesFromEngine)
save_engine = immediately(SaveEngine)
onnx_like_from_network = immediately(OnnxLikeFromNetwork)
