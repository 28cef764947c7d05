"""The GPU in use: what identifies it, its clocks, and who else uses it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass

from trtops.backend import environment as environments
from trtops.backend.trt import library
from trtops.backend.trt.library import memory
from trtops.record import Record, digest
from trtops.spec import Environment

REWRITERS = ("onnx", "onnx-graphsurgeon", "onnxruntime", "numpy", "ml_dtypes")
"""Packages that may rewrite a model on its way to TensorRT."""


@dataclass(frozen=True, kw_only=True)
class Gpu(Record):
    """A GPU, and its state when it was looked at.

    Attributes:
        index: CUDA's number for it.
        name: Its name.
        compute_capability: Such as ``9.0``.
        multiprocessors: Number of its multiprocessors; tactics depend on it and on the compute capability.
        memory_bytes: Size of its memory.
        uuid_sha256: First 16 digits of the SHA-256 of its UUID: tells devices apart without identifying them to others.
        driver: Driver release; None if not known here.
        cuda: Newest CUDA release that the driver serves.
        sm_clock_mhz: Clock of its multiprocessors; None if not known here.
        memory_clock_mhz: Clock of its memory.
        other_processes: Compute processes on it beside this one; None if not known here. Timings of builds that
            shared the GPU are not to be trusted.
    """

    index: int
    name: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    uuid_sha256: str
    driver: str | None = None
    cuda: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    other_processes: int | None = None


def current_gpu() -> Gpu:
    """The GPU that CUDA uses in this thread, looked at now; takes about 0.1 s where ``nvidia-smi`` has to be asked.

    Raises:
        BackendUnavailableError: If there is none.
    """
    library.require_device(building=False)
    index = int(memory.call("cudaGetDevice"))
    properties = memory.call("cudaGetDeviceProperties", index)
    uuid = _uuid_text(properties)
    state = _driver_state(uuid)
    version = int(memory.call("cudaDriverGetVersion"))
    return Gpu(
        index=index,
        name=memory.as_text(properties.name).strip("\0 "),
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=int(properties.multiProcessorCount),
        memory_bytes=int(properties.totalGlobalMem),
        uuid_sha256=hashlib.sha256(uuid.encode()).hexdigest()[:16],
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        driver=state.driver,
        sm_clock_mhz=state.sm_clock_mhz,
        memory_clock_mhz=state.memory_clock_mhz,
        other_processes=state.other_processes,
    )


def environment(gpu: Gpu | None = None) -> Environment:
    """Where TensorRT builds and runs: its release and the kind of GPU; none for TensorRT-RTX where it builds without one.

    Args:
        gpu: The GPU; the current one unless given.

    Raises:
        BackendUnavailableError: If TensorRT or the GPU cannot be used here.
    """
    line = library.line()
    if gpu is None and library.uses_rtx() and memory.device_count() == 0:
        return environments.environment(
            backend="tensorrt-rtx",
            backend_version=line.version,
            device="none",
            device_sha256=digest("none"),
            packages=REWRITERS,
        )
    gpu = current_gpu() if gpu is None else gpu
    return environments.environment(
        backend="tensorrt-rtx" if library.uses_rtx() else "tensorrt",
        backend_version=line.version,
        device=gpu.name,
        device_sha256=digest([gpu.name, gpu.compute_capability, gpu.multiprocessors]),
        compute_capability=gpu.compute_capability,
        driver=gpu.driver,
        cuda=gpu.cuda,
        packages=REWRITERS,
    )


def state() -> dict[str, str]:
    """The current GPU's UUID digest, clocks and other processes, as texts; empty without a GPU."""
    if memory.device_count() == 0:
        return {}
    gpu = current_gpu()
    known = {
        "uuid_sha256": gpu.uuid_sha256,
        "sm_clock_mhz": gpu.sm_clock_mhz,
        "memory_clock_mhz": gpu.memory_clock_mhz,
        "other_processes": gpu.other_processes,
    }
    return {name: str(value) for name, value in known.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class _DriverState:
    driver: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    other_processes: int | None = None


def _uuid_text(properties: object) -> str:
    raw = bytes(properties.uuid.bytes)[:16]  # type: ignore[attr-defined]
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _driver_state(uuid: str) -> _DriverState:
    """What only ``nvidia-smi`` tells of a GPU; empty where that is missing."""
    gpus = _query_nvidia_smi("--query-gpu=uuid,driver_version,clocks.sm,clocks.mem")
    for found, driver, sm_clock, memory_clock in gpus:
        if found == uuid or len(gpus) == 1:  # the only GPU is it, whatever UUID CUDA shows (a MIG slice's own)
            return _DriverState(
                driver=driver,
                sm_clock_mhz=_int_or_none(sm_clock),
                memory_clock_mhz=_int_or_none(memory_clock),
                other_processes=_other_processes(found),
            )
    return _DriverState()


def _other_processes(uuid: str) -> int:
    """Compute processes on a GPU beside this one, as far as this machine's process ids tell."""
    own = str(os.getpid())
    return sum(row[0] == uuid and row[1] != own for row in _query_nvidia_smi("--query-compute-apps=gpu_uuid,pid"))


def _query_nvidia_smi(query: str) -> list[list[str]]:
    """Rows of fields that ``nvidia-smi`` answers a query with; none if it is missing, fails, or takes over 20 s."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _int_or_none(text: str) -> int | None:
    return int(text) if text.isdigit() else None
