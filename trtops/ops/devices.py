"""Child processes for engine builds, and devices with one build at a time."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtops import errors
from trtops.backend.worker import IsolatedBackend
from trtops.record import Record
from trtops.spec import BackendName
from trtops.system.locks import held
from trtops.system.worker import warm_worker

_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 120.0  # for a child that reports its GPU, its start included
_gpus: dict[str, str] = {}  # digests of GPUs' UUIDs by device, which do not change while a process lives
_asking = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class BuildPlace(Record):
    """Where builds are made.

    Attributes:
        backend: The back end that builds.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them (default: those of that variable).
        timeout_seconds: Seconds that a build may take; None for no limit.
    """

    backend: BackendName
    devices: tuple[str, ...] = ()
    timeout_seconds: float | None = None


def devices_of(backend: str, devices: Sequence[str] = ()) -> tuple[str, ...]:
    """The devices for builds, as in ``CUDA_VISIBLE_DEVICES``; empty for the processor."""
    if backend == "onnxruntime":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(devices) or tuple(filter(None, visible.split(","))) or ("0",)


def gpus_of(backend: str, devices: Sequence[str] = ()) -> dict[str, str]:
    """Devices by the digest of their GPU's UUID; empty for the processor, and without a responding GPU."""
    # Only CUDA knows what a number of CUDA_VISIBLE_DEVICES means, so a child process reports it.
    device_of_gpu: dict[str, str] = {}
    for device in devices_of(backend, devices):
        gpu = _gpu_of(backend, device)
        if gpu is not None:
            device_of_gpu.setdefault(gpu, device)
    return device_of_gpu


def _gpu_of(backend: str, device: str, seconds: float = _ANSWER_SECONDS) -> str | None:
    with _asking:  # one at a time, or each thread of a campaign would start a child of its own
        if device not in _gpus:
            with _warm_child(backend, device, seconds) as child:
                try:
                    _gpus[device] = child.device_state()["uuid_sha256"]
                except (errors.BackendError, KeyError):
                    return None  # the build will report what is missing
        return _gpus[device]


@contextlib.contextmanager
def warm_backend(backend: str, devices: Sequence[str] = (), timeout: float | None = None) -> Iterator[IsolatedBackend]:
    """Yield a back end in a child process, on a free device, reserved for the duration of the block.

    The child stays warm for the next caller; :func:`close_workers` ends idle ones.
    """
    with free_device(backend, devices) as device, _warm_child(backend, device, timeout) as child:
        yield child


@contextlib.contextmanager
def free_device(backend: str, devices: Sequence[str] = (), until: float = math.inf) -> Iterator[str]:
    """Wait for a device to come free, and reserve it while the block lasts; yields an empty name for the processor.

    TimeoutError if none is free at ``until``, a time of ``time.monotonic()``.
    """
    devices = devices_of(backend, devices)
    if not devices:
        yield ""
        return
    # A build that shares its GPU with another one times its tactics wrongly and may run out of memory, so a device is
    # locked against every process of this machine.
    # One lock for a GPU, whatever its name: "0" here may be "GPU-5f1c..." for another process.
    names = {}
    for device in devices:
        names[device] = _gpu_of(backend, device, min(_ANSWER_SECONDS, max(0.0, until - time.monotonic()))) or device
    while True:
        for device, name in names.items():
            with held(f"device {name}") as acquired:
                if acquired:
                    yield device
                    return
        if time.monotonic() > until:
            raise TimeoutError(f"No device of {devices} came free.")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _warm_child(backend: str, device: str, timeout: float | None = None) -> Iterator[IsolatedBackend]:
    with warm_worker(environment={"CUDA_VISIBLE_DEVICES": device} if device else {}) as worker:
        yield IsolatedBackend(backend, timeout=timeout, worker=worker)
