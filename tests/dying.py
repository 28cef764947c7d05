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


def _exit_code(target: Callable[[], object]) -> int:
    """How a child ends that runs a function."""
    child = ForkedProcess(target=target)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def calls_of(target: Callable[..., object], *args: Any) -> int:
    """How many calls a function makes, its own and those below it, in the main thread of a child."""
    theirs, ours = fork.Pipe()

    def count() -> None:
        calls = 0

        def count_one(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count_one)
        try:
            target(*args)
        finally:
            sys.setprofile(None)
        theirs.send(calls)

    assert _exit_code(count) == 0
    return int(ours.recv())


def run_until_killed(calls: int, target: Callable[..., object], *args: Any) -> int:
    """Run a function in a child that kills itself after N calls; returns the exit code, 0 if it never did."""

    def die_in_time() -> None:
        left = calls

        def die(frame: object, event: str, argument: object) -> None:
            nonlocal left
            left -= event in ("call", "c_call")
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(die)
        try:
            target(*args)
        finally:
            sys.setprofile(None)

    code = _exit_code(die_in_time)
    assert code in (0, -signal.SIGKILL)
    return code


def seconds_of(target: Callable[..., object], *args: Any) -> float:
    """CPU seconds that a function takes in a child, those of the child's own children left out."""
    theirs, ours = fork.Pipe()

    def measure() -> None:
        begin = time.process_time()
        target(*args)
        theirs.send(time.process_time() - begin)

    assert _exit_code(measure) == 0
    return float(ours.recv())


def run_until_spent(seconds: float, target: Callable[..., object], *args: Any) -> None:
    """Run a function in a child that is killed after N CPU seconds.

    For what takes long: counting calls makes it take five times as long.
    """

    def die_in_time() -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process on the spot, as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))
        try:
            target(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    assert _exit_code(die_in_time) in (0, -signal.SIGPROF)
