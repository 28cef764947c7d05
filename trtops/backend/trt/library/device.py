"""The GPU in use: its identity, its clocks, and other processes on it."""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from typing import Any

from trtops.backend import environment as environments
from trtops.backend.trt import library
from trtops.backend.trt.library import memory
from trtops.record import Record, digest
from trtops.spec import Environment

# Packages that may rewrite a model on its way to TensorRT, so their releases belong to a build's environment.
REWRITERS = ("onnx", "onnx-graphsurgeon", "onnxruntime", "numpy", "ml_dtypes")

# By CUDA's device number. Nothing of an environment changes while a process lives, and asking for it takes 0.1 s.
_environments: dict[int, Environment] = {}


@dataclass(frozen=True, kw_only=True)
class Gpu(Record):
    """A GPU and its current state."""

    index: int  # CUDA's device number
    name: str
    compute_capability: str  # such as ``9.0``
    multiprocessors: int  # number of its multiprocessors; tactics depend on it and on the compute capability
    memory_bytes: int  # size of its memory
    uuid_sha256: str  # first 16 digits of the SHA-256 of its UUID, which is not published
    driver: str | None = None  # driver release; None if unknown
    cuda: str | None = None  # newest CUDA release that the driver supports
    sm_clock_mhz: int | None = None  # clock of its multiprocessors; None if unknown
    memory_clock_mhz: int | None = None  # clock of its memory
    # Number of other compute processes on it; None if unknown. Timings of builds that shared the GPU are
    # unreliable.
    other_processes: int | None = None


def current_gpu() -> Gpu:
    """TensorRT's GPU in this thread; BackendUnavailableError if TensorRT or the GPU cannot be used."""
    library.require_device(building=False)
    return cuda_gpu()


def cuda_gpu() -> Gpu:
    """CUDA's GPU in this thread; takes 0.1 s, since ``nvidia-smi`` is called. InferenceError if none."""
    index = int(memory.call("cudaGetDevice"))
    properties = memory.call("cudaGetDeviceProperties", index)
    raw = bytes(properties.uuid.bytes)[:16].hex()
    uuid = f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
    version = int(memory.call("cudaDriverGetVersion"))
    return Gpu(
        index=index,
        name=memory.as_text(properties.name).strip("\0 "),
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=int(properties.multiProcessorCount),
        memory_bytes=int(properties.totalGlobalMem),
        uuid_sha256=hashlib.sha256(uuid.encode()).hexdigest()[:16],
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        **_driver_state(uuid),
    )


def environment() -> Environment:
    """TensorRT's release and the kind of GPU; for TensorRT-RTX, "none" on a machine without a GPU.

    Raises BackendUnavailableError if TensorRT or the GPU cannot be used here.
    """
    rtx = library.uses_rtx()
    release: dict[str, Any] = {"backend_version": library.line().version, "packages": REWRITERS}
    if rtx and memory.device_count() == 0:
        return environments.environment(backend="tensorrt-rtx", device="none", device_sha256=digest("none"), **release)
    library.require_device(building=False)
    index = int(memory.call("cudaGetDevice"))
    if (cached := _environments.get(index)) is not None:
        return cached
    backend = "tensorrt-rtx" if rtx else "tensorrt"
    current = environments.environment(backend=backend, **release, **identity(cuda_gpu()))
    if current.driver is not None:
        _environments[index] = current
    return current


def identity(gpu: Gpu) -> dict[str, Any]:
    """The fields of an :class:`~trtops.spec.Environment` for a kind of GPU and its driver."""
    return {
        "device": gpu.name,
        "device_sha256": digest([gpu.name, gpu.compute_capability, gpu.multiprocessors]),
        "compute_capability": gpu.compute_capability,
        "driver": gpu.driver,
        "cuda": gpu.cuda,
    }


def state() -> dict[str, str]:
    """The current GPU's UUID digest, clocks and other processes, as text; empty without a GPU."""
    if memory.device_count() == 0:
        return {}
    gpu = cuda_gpu()
    fields = ("uuid_sha256", "sm_clock_mhz", "memory_clock_mhz", "other_processes")
    return {name: str(value) for name in fields if (value := getattr(gpu, name)) is not None}


def _driver_state(uuid: str) -> dict[str, Any]:
    """Driver, clocks and other compute processes from ``nvidia-smi``; empty if it is missing."""
    gpus = _query_nvidia_smi("--query-gpu=uuid,driver_version,clocks.sm,clocks.mem")
    for gpu_uuid, driver, *clocks in gpus:
        # A single GPU matches in any case: for a MIG slice, CUDA shows another UUID.
        if gpu_uuid == uuid or len(gpus) == 1:
            processes = _query_nvidia_smi("--query-compute-apps=gpu_uuid,pid")
            sm_clock, memory_clock = (int(text) if text.isdigit() else None for text in clocks)
            return {
                "driver": driver,
                "sm_clock_mhz": sm_clock,
                "memory_clock_mhz": memory_clock,
                "other_processes": sum(gpu == gpu_uuid and pid != str(os.getpid()) for gpu, pid in processes),
            }
    return {}


def _query_nvidia_smi(query: str) -> list[list[str]]:
    """Rows of fields from ``nvidia-smi``; empty if it is missing, fails, or takes over 20 s."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
