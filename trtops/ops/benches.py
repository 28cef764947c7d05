"""Places to build at: warm child processes, and devices of which each takes one build at a time.

A build that shares its GPU with another one is timed wrongly and may run out of memory, so a device is locked for as
long as it is built on, against every process of this machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping

from trtops.backend.worker import IsolatedBackend, Worker
from trtops.ops.campaign import DebugBuildConfig
from trtops.ops.locks import held

_POLL_SECONDS = 0.05
_idle: dict[str, list[Worker]] = {}
_guard = threading.Lock()


def devices_of(config: DebugBuildConfig) -> tuple[str, ...]:
    """The devices that a campaign builds on, as ``CUDA_VISIBLE_DEVICES`` names them; empty for the processor."""
    if config.build.backend == "onnxruntime":
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return config.devices or tuple(filter(None, visible.split(","))) or ("0",)


@contextlib.contextmanager
def bench(config: DebugBuildConfig) -> Iterator[IsolatedBackend]:
    """A back end in a child process, on a device that is this caller's alone for as long as the block lasts.

    Waits for a device to come free. The child stays warm for the next caller; :func:`close_benches` ends those that
    nobody uses.
    """
    devices = devices_of(config)
    if not devices:
        with _child(config, "", {}) as backend:
            yield backend
        return
    while True:
        for device in devices:
            with held(f"device {device}") as mine:
                if mine:
                    with _child(config, device, {"CUDA_VISIBLE_DEVICES": device}) as backend:
                        yield backend
                    return
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _child(config: DebugBuildConfig, device: str, environment: Mapping[str, str]) -> Iterator[IsolatedBackend]:
    with _guard:
        idle = _idle.setdefault(device, [])
        worker = idle.pop() if idle else Worker(environment)
    try:
        yield IsolatedBackend(config.build.backend, timeout=config.timeout_seconds, worker=worker)
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
