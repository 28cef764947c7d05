"""What happens in the process of one side: an engine held open, run and timed. Few imports: releases are bare environments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trtops import errors
from trtops.backend.base import Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.runner import BaseRunner
from trtops.comparator.results import IterationResult, RunResults
from trtops.record import Record

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Opened(Record):
    """An engine that was loaded and run once.

    Attributes:
        memory_bytes: Host memory that loading it and the first inference took at their peak; None where the system does not
            say.
        device_bytes: Device memory that they took and keep; None on the processor.
        seconds: Time of the second inference.
    """

    memory_bytes: int | None
    device_bytes: int | None
    seconds: float


@dataclass
class _Held:
    runner: BaseRunner
    feeds: list[Feed] = field(default_factory=list)


_held: list[_Held] = []


def open_engine(engine: Engine, feeds: str) -> Opened:
    """Load an engine and run it twice. It stays open until the process ends or opens another one.

    Args:
        engine: The engine, of any back end that is installed here.
        feeds: A file of inputs, saved as results are.
    """
    _close_held()
    inputs = read_feeds(feeds)
    runner = engine_backend(engine.backend).runner(engine, interleaved=True)
    before, device = _resident_bytes(), _device_bytes(engine)
    runner.activate()
    _held.append(_Held(runner, inputs))
    runner.infer(inputs[0])
    peak, after = _resident_bytes(peak=True), _device_bytes(engine)
    runner.infer(inputs[0])
    return Opened(
        memory_bytes=None if before is None or peak is None else max(0, peak - before),
        device_bytes=None if device is None or after is None else max(0, after - device),
        seconds=_seconds_of(runner),
    )


def save_outputs(path: str) -> None:
    """Run the open engine on every feed, and save what comes out."""
    held = _the_open_one()
    results = []
    for feed in held.feeds:
        outputs = {name: np.array(array) for name, array in held.runner.infer(feed).items()}
        results.append(IterationResult(outputs, runtime=held.runner.last_inference_time(), runner_name="engine"))
    RunResults([("engine", results)]).save(path)


def visit(count: int, warm_up: int) -> list[float]:
    """Seconds of inferences of the open engine on its first feed, on the device alone where that is known.

    Args:
        count: How many are timed.
        warm_up: How many go before, since the other engine was running.
    """
    held = _the_open_one()
    seconds = []
    for number in range(warm_up + count):
        held.runner.infer(held.feeds[0], check_inputs=False)
        if number >= warm_up:
            seconds.append(_seconds_of(held.runner))
    return seconds


def save_feeds(feeds: Sequence[Feed], path: str) -> None:
    """Save inputs, as the sides read them."""
    RunResults([("feeds", [IterationResult(dict(feed)) for feed in feeds])]).save(path)


def read_feeds(path: str) -> list[Feed]:
    """What :func:`save_feeds` saved; arrays in host memory, the caller's."""
    return [{name: np.asarray(array) for name, array in feed.items()} for feed in RunResults.load(path)[0][1]]


def _seconds_of(runner: BaseRunner) -> float:
    on_device = runner.last_device_time()
    return runner.last_inference_time() if on_device is None else on_device


def _the_open_one() -> _Held:
    if not _held:
        raise errors.InferenceError("No engine is open in this process: it was started anew. Open it again.")
    return _held[0]


def _close_held() -> None:
    while _held:
        _held.pop().runner.deactivate()


def _resident_bytes(peak: bool = False) -> int | None:
    """Memory of this process now, from which on the peak counts; or that peak. None where the system does not say."""
    if not peak:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    try:
        text = _STATUS.read_text()
    except OSError:
        return None
    found = re.search(rf"^{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def _device_bytes(engine: Engine) -> int | None:
    """Memory in use on the GPU, by whomever; None for engines that need none."""
    if engine.backend != "tensorrt":
        return None
    from trtops.backend.trt.library import memory

    free, total = memory.call("cudaMemGetInfo")
    return int(total) - int(free)
