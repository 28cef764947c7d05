"""Processes that are killed after a number of calls or CPU seconds: the same on fast and slow machines."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.forking import ForkedProcess

fork = multiprocessing.get_context("fork")


def _in_child(work: Callable[[], float]) -> tuple[int, float]:
    """Exit code of a child that runs a function, and what the function returned; 0 if the child was killed."""
    theirs, ours = fork.Pipe()
    child = ForkedProcess(target=lambda: theirs.send(work()))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode, ours.recv() if child.exitcode == 0 else 0


def _count_calls(limit: float, target: Callable[..., object], args: tuple[Any, ...]) -> int:
    """Call a function, and count its calls and those below it in this thread; kills this process beyond the limit."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > limit:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    try:
        target(*args)
    finally:
        sys.setprofile(None)
    return calls


def calls_of(target: Callable[..., object], *args: Any) -> int:
    """The number of calls that a function makes, with those below it."""
    code, calls = _in_child(lambda: _count_calls(float("inf"), target, args))
    assert code == 0
    return int(calls)


def run_until_killed(calls: int, target: Callable[..., object], *args: Any) -> int:
    """Run a function in a child that kills itself after N calls; returns the exit code, 0 if it never did."""
    code, _ = _in_child(lambda: _count_calls(calls, target, args))
    assert code in (0, -signal.SIGKILL)
    return code


def seconds_of(target: Callable[..., object], *args: Any) -> float:
    """CPU seconds that a function takes in a child, without those of the child's own children."""

    def measure() -> float:
        begin = time.process_time()
        target(*args)
        return time.process_time() - begin

    code, seconds = _in_child(measure)
    assert code == 0
    return seconds


def run_until_spent(seconds: float, target: Callable[..., object], *args: Any) -> None:
    """Run a function in a child that is killed after N CPU seconds, since counting calls takes five times as long."""

    def die_in_time() -> float:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process on the spot, as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))
        try:
            target(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return 0

    assert _in_child(die_in_time)[0] in (0, -signal.SIGPROF)
