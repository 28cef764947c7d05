"""Processes that are killed after a number of CPU seconds: the same on fast and slow machines."""

import multiprocessing
import signal
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
    """Run a function in a child that is killed after N CPU seconds."""

    def die_in_time() -> float:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process on the spot, as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))
        try:
            target(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return 0

    assert _in_child(die_in_time)[0] in (0, -signal.SIGPROF)
