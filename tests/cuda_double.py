"""Stated doubles of CUDA's runtime and of ONNX Runtime with CUDA: the CPU computes; the rest answers as documented.

Sources: the reference of ONNX Runtime's Python API, and that of cuda-python, CUDA's runtime and cuDNN.
"""

import ctypes
import enum
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime as ort
import pytest

from trtops.backend.onnxrt import device

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_Session = ort.InferenceSession
_from_numpy, _empty = ort.OrtValue.ortvalue_from_numpy, ort.OrtValue.ortvalue_from_shape_and_type


class Binding(ort.IOBinding):
    """Binds outputs in host memory, whatever the device."""

    def bind_output(self, name: str, device_type: str = "cpu", *binding_args: Any) -> None:
        super().bind_output(name, "cpu")


class Session(_Session):
    """Runs on the CPU, and reports the providers that were asked for."""

    refused: tuple[str, ...] = ()  # options of the provider that it does not know

    def __init__(self, source: Any, options: Any = None, providers: Any = (), **keywords: Any) -> None:
        self.requested = dict((provider, {}) if isinstance(provider, str) else provider for provider in providers)
        if unknown := set(self.refused) & self.requested.get(CUDA, {}).keys():
            raise RuntimeError(f"Unknown provider option: {unknown}")
        self.runs: list[str] = []  # the graph's number at each run with a binding
        super().__init__(source, options, providers=[CPU], **keywords)

    def get_providers(self) -> list[str]:
        return list(dict.fromkeys((*self.requested, CPU)))

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return self.requested

    def get_input_memory_infos(self) -> list[Any]:
        return [SimpleNamespace(name="Cuda") for _ in self.get_inputs()]

    def run(self, names: Any, feed: Any, options: Any = None) -> Any:
        outputs = super().run(names, feed, options)
        captures = "enable_cuda_graph" in self.requested.get(CUDA, {})
        # Seen with 1.31.1 on an H100: while a graph is captured, `run` returns no outputs.
        return [] if captures and (not options or options.get_run_config_entry("gpu_graph_id") != "-1") else outputs

    def io_binding(self) -> Binding:
        return Binding(self)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if "enable_cuda_graph" in self.requested.get(CUDA, {}):
            self.runs.append(options.get_run_config_entry("gpu_graph_id"))
        super().run_with_iobinding(binding, options)


class MemcpyKind(enum.IntEnum):
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice = range(4)


class Operation:
    """Work in a stream, with the operations before it."""

    def __init__(self, work: Callable[[], object], earlier: list["Operation | None"]) -> None:
        self.work, self.earlier = work, [operation for operation in earlier if operation]

    def finish(self) -> None:
        for operation in self.earlier:
            operation.finish()
        work, self.work, self.earlier = self.work, lambda: None, []
        work()


class Runtime:
    """Memory, streams and events of CUDA's runtime, in host memory: work runs as late as CUDA may run it.

    Sources: "API synchronization behavior" and "Stream synchronization behavior" of the CUDA Runtime API's reference.
    """

    LEGACY = 1
    cudaStreamNonBlocking, cudaEventDisableTiming = 1, 2
    cudaMemcpyKind = MemcpyKind

    def __init__(self) -> None:
        self.is_blocking = {self.LEGACY: True}
        self.last: dict[int, Operation] = {}  # the last operation of each stream
        self.events: dict[int, Operation] = {}
        self.blocks: dict[int, Any] = {}  # arrays in device memory by address
        self.pinned: dict[int, Any] = {}

    def queue(self, stream: int, work: Callable[[], object], *earlier: Operation) -> Operation:
        stream = stream or self.LEGACY
        waits_for = [stream]
        if stream == self.LEGACY:
            waits_for = [handle for handle, blocking in self.is_blocking.items() if blocking]
        elif self.is_blocking[stream]:
            waits_for = [stream, self.LEGACY]
        self.last[stream] = Operation(work, [*map(self.last.get, waits_for), *earlier])
        return self.last[stream]

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[int, int]:
        handle = 16 + len(self.is_blocking)
        self.is_blocking[handle] = flags != self.cudaStreamNonBlocking
        return 0, handle

    def cudaStreamCreate(self) -> tuple[int, int]:
        return self.cudaStreamCreateWithFlags(0)

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        if operation := self.last.get(stream or self.LEGACY):
            operation.finish()
        return (0,)

    def cudaDeviceSynchronize(self) -> tuple[int]:
        for operation in self.last.values():
            operation.finish()
        return (0,)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[int, int]:
        return 0, 1 + len(self.events)

    def cudaEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.events[event] = self.queue(stream, lambda: None)
        return (0,)

    def cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[int]:
        self.queue(stream, lambda: None, self.events[event])
        return (0,)

    def cudaEventDestroy(self, event: int) -> tuple[int]:
        return (0,)

    def cudaMalloc(self, nbytes: int) -> tuple[int, int]:
        block = np.zeros(nbytes, np.uint8)
        self.blocks[block.ctypes.data] = block
        return 0, block.ctypes.data

    def cudaFree(self, address: int) -> tuple[int]:
        self.cudaDeviceSynchronize()
        return (0 if self.blocks.pop(address, None) is not None else 1,)

    def cudaMallocHost(self, nbytes: int) -> tuple[int, int]:
        block = np.zeros(nbytes, np.uint8)
        self.pinned[block.ctypes.data] = block
        return 0, block.ctypes.data

    def cudaFreeHost(self, address: int) -> tuple[int]:
        return (0,)

    def cudaMemcpyAsync(self, to: int, source: int, nbytes: int, kind: MemcpyKind, stream: int) -> tuple[int]:
        for address, is_on_device in ((to, kind in (1, 3)), (source, kind in (2, 3))):
            if is_on_device and not any(
                a <= address and address + nbytes <= a + b.size for a, b in self.blocks.items()
            ):
                return (1,)
        if kind == MemcpyKind.cudaMemcpyHostToDevice and source not in self.pinned:
            staged = ctypes.string_at(source, nbytes)
            self.queue(stream, lambda: ctypes.memmove(to, staged, nbytes))
        else:
            self.queue(stream, lambda: ctypes.memmove(to, source, nbytes))
        return (0,)

    def cudaMemcpy(self, to: int, source: int, nbytes: int, kind: MemcpyKind) -> tuple[int]:
        """Return once the bytes are staged if they come from pageable memory, and at once within the device."""
        status = self.cudaMemcpyAsync(to, source, nbytes, kind, 0)
        if kind == MemcpyKind.cudaMemcpyDeviceToHost or source in self.pinned:
            self.cudaStreamSynchronize(0)
        return status

    def cudaGetErrorName(self, status: int) -> tuple[int, bytes]:
        return 0, b"cudaErrorInvalidValue"

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:
        return 0, b"invalid argument"

    def cudaGetLastError(self) -> tuple[int]:
        return (1,)


def install(monkeypatch: pytest.MonkeyPatch, *, starts: bool = True) -> None:
    """Replace what reports the GPU; sessions use CUDA only if it ``starts``."""
    gpu = SimpleNamespace(name=b"NVIDIA H100", major=9, minor=0, multiProcessorCount=132, totalGlobalMem=80 << 30)
    gpu.uuid = SimpleNamespace(bytes=bytes(16))
    cudart = SimpleNamespace(
        cudaGetDeviceCount=lambda: (0, 1),
        cudaGetDevice=lambda: (0, 0),
        cudaGetDeviceProperties=lambda index: (0, gpu),
        cudaDriverGetVersion=lambda: (0, 13000),
    )

    def set_version(pointer: Any) -> int:
        pointer._obj.value = 13020
        return 0

    libraries = {
        "libcudart.so.13": SimpleNamespace(cudaRuntimeGetVersion=set_version),
        "libcudnn.so.9": SimpleNamespace(cudnnGetVersion=Mock(return_value=91301)),
    }
    monkeypatch.setattr("trtops.backend.trt.library.memory.cudart", lambda: cudart)
    monkeypatch.setattr("trtops.backend.trt.library.device._query_nvidia_smi", lambda query: [])
    monkeypatch.setattr(
        device,
        "ctypes",
        SimpleNamespace(c_int=ctypes.c_int, c_size_t=ctypes.c_size_t, byref=ctypes.byref, CDLL=libraries.get),
    )
    monkeypatch.setattr(ort, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(ort, "preload_dlls", Mock(side_effect=lambda: print("Failed to load libcufft.so.12")))
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    if starts:
        monkeypatch.setattr(ort, "InferenceSession", Session)
        on_host = classmethod(lambda cls, array, *device_args: _from_numpy(np.array(array)))
        monkeypatch.setattr(ort.OrtValue, "ortvalue_from_numpy", on_host)
        empty_on_host = classmethod(lambda cls, shape, element, *device_args: _empty(shape, element))
        monkeypatch.setattr(ort.OrtValue, "ortvalue_from_shape_and_type", empty_on_host)
    for name in ("load_cuda", "_gpu"):  # what the double reports is cached by itself
        monkeypatch.setattr(device, name, functools.cache(getattr(device, name).__wrapped__))
    monkeypatch.setattr("trtops.backend.onnxrt.session.load_cuda", device.load_cuda)
