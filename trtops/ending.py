"""Signals end a command within two seconds, whatever it is doing.

Python runs its signal handlers between two of its own instructions: in native code that takes minutes, such as a build, none
is run, and Ctrl-C does nothing. So a command that was started as a process of its own has a second process beside it, which
only waits: for the byte that Python's own handler in C writes when a signal comes, or for the end of the command. What has
not ended in time is killed, and what it left behind is removed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from trtops import processes

SECONDS = 1.5
"""How long a command may take to end by itself, with all that it has to put away."""


@contextlib.contextmanager
def ended_by_signals(*, alone: bool) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, through every ``finally``; all for certain, if this process is alone.

    SIGHUP stays ignored where it is, as ``nohup`` has it.

    Args:
        alone: Whether this process was started for the block, and is to end with it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, _raise_interrupt)
    try:
        with _killed_if_late() if alone else contextlib.nullcontext():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _killed_if_late() -> Iterator[None]:
    """Have a second process kill this one if a signal has come and it has not ended in time."""
    mark = processes.mark()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = os.fork()
    if watcher == 0:
        _wait_and_kill(os.getppid(), reader, writer, mark)
    os.close(reader)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        with contextlib.suppress(ChildProcessError, KeyboardInterrupt):
            os.waitpid(watcher, 0)


def _wait_and_kill(pid: int, reader: int, writer: int, mark: str) -> Any:
    """What the second process does; never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.close(writer)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(null, stream)  # or whoever reads the command's output would wait for this process, too
        _close_others(keep=(0, 1, 2, reader))
        if _signal_came(reader) and not _ends_within(reader, SECONDS) and os.getppid() == pid:
            os.write(2, b"interrupted: killed, since native code did not let go\n")
            os.kill(pid, signal.SIGKILL)
            _remove_leftovers(mark)
    finally:
        os._exit(0)


def _close_others(keep: tuple[int, ...]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _signal_came(reader: int) -> bool:
    """Wait for a signal that ends the command (True), or its end (False)."""
    while numbers := os.read(reader, 64):
        if {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & set(numbers):
            return True
    return False


def _ends_within(reader: int, seconds: float) -> bool:
    """Wait for the end of the command, which closes the pipe."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0] and not os.read(reader, 64):
            return True
    return False


def _remove_leftovers(mark: str) -> None:
    """End the processes and remove the folders that the killed command had, which bear its mark."""
    until = time.monotonic() + 1.0
    while not processes.is_gone(mark) and time.monotonic() < until:
        time.sleep(0.01)
    for process in processes.left_processes(mark):
        processes.end(process)
    for folder in processes.left_folders(mark):
        processes.remove_folder(folder)
