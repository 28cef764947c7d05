"""Where builds are made: warm child processes, and devices that take one build at a time.

A build that shares its GPU with another one times its tactics wrongly and may run out of memory, so a device is locked for
as long as something is built on it, against every process of this machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence

from trtops import errors
from trtops.backend.worker import IsolatedBackend, Worker
from trtops.locks import held
from trtops.ops.campaign.config import Place

_POLL_SECONDS = 0.05
_ANSWER_SECONDS = 120.0  # for a child that is asked which GPU it has, its start included
_idle: dict[str, list[Worker]] = {}
_gpus: dict[str, str] = {}  # digests of GPUs' UUIDs by device, which stay as they are while a process lives
_guard, _asking = threading.Lock(), threading.Lock()


def devices_of(backend: str, devices: Sequence[str] = ()) -> tuple[str, ...]:
    """The devices that builds may use, as ``CUDA_VISIBLE_DEVICES`` names them; empty for the processor.

    Args:
        backend: The back end.
        devices: Those that were asked for; by default those of ``CUDA_VISIBLE_DEVICES``, or the first.
    """
    if backend == "onnxruntime":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(devices) or tuple(filter(None, visible.split(","))) or ("0",)


def gpus_of(backend: str, devices: Sequence[str] = ()) -> dict[str, str]:
    """The GPUs behind the devices that builds may use; empty for the processor, and where no GPU answers.

    What a number of ``CUDA_VISIBLE_DEVICES`` means is known to CUDA alone, and only where the variable holds it: the child
    that is to build there is asked, once for each device.

    Returns:
        By the digest of a GPU's UUID, the device that it is.
    """
    found: dict[str, str] = {}
    for device in devices_of(backend, devices):
        gpu = _gpu_of(backend, device)
        if gpu is not None:
            found.setdefault(gpu, device)
    return found


def _gpu_of(backend: str, device: str) -> str | None:
    with _asking:  # one at a time, or each thread of a campaign would start a child of its own to ask
        if device not in _gpus:
            with _warm_child(backend, device, _ANSWER_SECONDS) as child:
                try:
                    _gpus[device] = child.device_state()["uuid_sha256"]
                except (errors.BackendError, KeyError):
                    return None  # the build will say what is missing
        return _gpus[device]


@contextlib.contextmanager
def bench(place: Place) -> Iterator[IsolatedBackend]:
    """A back end in a child process, on a device that is this caller's alone for as long as the block lasts.

    Waits for a device to come free. The child stays warm for the next caller; :func:`close_benches` ends those that
    nobody uses.
    """
    with free_device(place) as device, _warm_child(place.backend, device, place.timeout_seconds) as child:
        yield child


@contextlib.contextmanager
def free_device(place: Place) -> Iterator[str]:
    """Hold a device for as long as the block lasts, after waiting for one to come free; yields an empty name for the processor.

    The processor is nobody's alone.
    """
    backend = place.backend
    devices = devices_of(backend, place.devices)
    if not devices:
        yield ""
        return
    # One lock for a GPU, whatever it was called: "0" here may be "GPU-5f1c..." to somebody else.
    names = {device: _gpu_of(backend, device) or device for device in devices}
    while True:
        for device, name in names.items():
            with held(f"device {name}") as mine:
                if mine:
                    yield device
                    return
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _warm_child(backend: str, device: str, timeout: float | None = None) -> Iterator[IsolatedBackend]:
    with _guard:
        idle = _idle.setdefault(device, [])
        worker = idle.pop() if idle else Worker({"CUDA_VISIBLE_DEVICES": device} if device else {})
    try:
        yield IsolatedBackend(backend, timeout=timeout, worker=worker)
    finally:
        with _guard:
            _idle.setdefault(device, []).append(worker)


def close_benches() -> None:
    """End the children that are kept warm and not in use."""
    with _guard:
        workers = [worker for workers in _idle.values() for worker in workers]
        _idle.clear()
    for worker in workers:
        worker.close()
