"""The native computations of a process and their time limits, readable by its parent after a crash.

Native code crashes on some models, and on others it never returns. Workers and the command line run it in a child
process that shares a page of memory with its parent. If the child dies, the page names the operation.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from trtops.system.limits import time_limit

# The time limit in seconds, its end on the monotonic clock or 0, and the length of the text in bytes.
_HEAD = struct.Struct("=ddI")
_BYTES = 4096
# Seconds after the limit, but at most as many again, in which the process may stop by itself and report an error.
_GRACE = 5.0

_lock = threading.Lock()
_running: list[Activity] = []
_page: Page | None = None
_watched = 0  # id of the process whose thread stops activities
_runs_ops = False


class Page:
    """Memory shared with a child process: a file descriptor inherited by the child."""

    def __init__(self, fd: int | None = None) -> None:
        """Create a page, or open the one of a descriptor."""
        self.fd = _new_file() if fd is None else fd
        os.ftruncate(self.fd, _BYTES)
        self._map = mmap.mmap(self.fd, _BYTES)

    def write(self, seconds: float, end: float, text: bytes) -> None:
        """Replace the content."""
        text = text[: _BYTES - _HEAD.size]
        self._map[: _HEAD.size + len(text)] = _HEAD.pack(seconds, end, len(text)) + text

    def read(self) -> str:
        """The child's computation; empty if nothing is recorded."""
        size = _HEAD.unpack_from(self._map)[2]
        return self._map[_HEAD.size :][:size].decode(errors="replace")

    def exceeded(self) -> float | None:
        """The time limit in seconds if the child exceeds it by more than the time for stopping by itself."""
        seconds, end, _ = _HEAD.unpack_from(self._map)
        return seconds if end and end + min(seconds, _GRACE) < time.monotonic() else None

    def describe_death(self, code: int, seconds: float | None) -> str:
        """Describe the child's end, by exit code or negative signal, its work, and the exceeded time limit."""
        if seconds is not None:
            ending = f"did not finish within {seconds:.4g} s and was killed"
        elif -code == getattr(signal, "SIGKILL", None):
            ending = "was killed by SIGKILL, as the kernel does when memory runs out"
        elif code < 0:
            ending = f"died of signal {-code} ({signal.strsignal(-code)})"
        else:
            ending = f"ended with exit code {code}"
        computation = self.read()
        return f"{ending} while {computation}" if computation else ending

    def publish_here(self) -> None:
        """Let this process publish its activities in the page."""
        global _page
        _page = self

    def close(self) -> None:
        """Close the mapping and the descriptor."""
        self._map.close()
        os.close(self.fd)


def _new_file() -> int:
    """Return the descriptor of a file without a name: in memory on Linux, in the temporary folder elsewhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trtops")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Activity:
    """A block of native computation; several may run at once, in one thread or in several.

    After ``seconds``, by default the time limit, a thread calls ``stop``, which makes the code return; a parent process
    kills this process if it does not.
    """

    __slots__ = ("_content", "_end", "_stop")

    def __init__(self, text: str, seconds: float | None = None, stop: Callable[[], Any] | None = None) -> None:
        """Describe a block, such as ``loading model.onnx``."""
        seconds = time_limit() if seconds is None else seconds
        self._end = time.monotonic() + seconds
        self._content = seconds, self._end, text.encode(errors="replace")
        self._stop = stop

    def __enter__(self) -> Activity:
        with _lock:
            _running.append(self)
            _publish()
        if self._stop is not None and _watched != os.getpid():
            _start_watching()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with _lock:
            _running.remove(self)
            _publish()


def mark_op() -> None:
    """Mark this process as running ops, on models of any origin."""
    global _runs_ops
    _runs_ops = True


def needs_child() -> bool:
    """Whether native code should run in a child first: this process runs ops, and no parent watches it."""
    # Such as a script, a notebook, or Prefect's process of a flow run, which a crash would end without a message.
    return _runs_ops and _page is None


def _publish() -> None:
    if _page is not None:
        # The first to end is the one that may exceed its limit.
        first = min(_running, key=lambda activity: activity._end, default=None) if len(_running) > 1 else None
        _page.write(*(first or _running[-1])._content if _running else (0.0, 0.0, b""))


def _start_watching() -> None:
    global _watched
    _watched = os.getpid()

    def watch() -> None:
        never = threading.Event()
        while not never.wait(0.1):
            _stop_overdue()

    threading.Thread(target=watch, daemon=True).start()


def _stop_overdue() -> None:
    """Stop the activities that exceed their limit."""
    # A function of its own: a variable of the thread would keep the last activity's session and its weights in memory.
    with _lock:
        for activity in _running:
            if activity._stop is not None and activity._end < time.monotonic():
                activity._stop()
