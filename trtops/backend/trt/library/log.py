"""TensorRT's log: passed on to ``logging`` as ``trtops.tensorrt``, and collected for error messages and build logs."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trtops.backend.trt.library.loading import load

LOGGER = logging.getLogger("trtops.tensorrt")

_LEVELS = {
    "INTERNAL_ERROR": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "VERBOSE": logging.DEBUG,
}


class LogLines:
    """What TensorRT logged while this was collecting.

    Attributes:
        lines: Severity name and text of each message, oldest first; without verbose ones unless asked for.
    """

    def __init__(self, verbose: bool, thread: int | None = None) -> None:
        self.lines: list[tuple[str, str]] = []
        self.verbose = verbose
        self.thread = thread

    def hear(self, severity: str, message: str) -> None:
        """Take a message, if it is of the kind that is collected here; called in the thread that it comes from."""
        if (severity != "VERBOSE" or self.verbose) and self.thread in (None, threading.get_ident()):
            self.lines.append((severity, message))

    @property
    def text(self) -> str:
        """All messages, one per line, with their severity in front."""
        return "".join(f"[{severity}] {message}\n" for severity, message in self.lines)

    def tail(self, count: int = 5) -> str:
        """The last error messages, or if there are none the last warnings, to end an error message with."""
        for severities in (("INTERNAL_ERROR", "ERROR"), ("WARNING",)):
            found = [message for severity, message in self.lines if severity in severities]
            if found:
                return "TensorRT's last words:\n  " + "\n  ".join(found[-count:])
        return "TensorRT logged no error."

    def said(self, fragment: str) -> bool:
        """Whether some message contains a text."""
        return any(fragment in message for _, message in self.lines)


_collectors: list[LogLines] = []


@contextmanager
def collect_log(verbose: bool = False, *, here: bool = False) -> Iterator[LogLines]:
    """Collect what TensorRT logs inside the block; it goes to ``logging`` all the same.

    Args:
        verbose: Whether to collect verbose messages too.
        here: Whether to collect messages of the calling thread only, rather than those of all threads.
    """
    lines = LogLines(verbose, threading.get_ident() if here else None)
    _collectors.append(lines)
    try:
        yield lines
    finally:
        _collectors.remove(lines)


def tell_collectors(severity: str, message: str) -> None:
    """Give a message to everybody who collects now."""
    for lines in tuple(_collectors):  # a copy: other threads may begin or end collecting meanwhile
        lines.hear(severity, message)


def log_warning(message: str) -> None:
    """Put a warning of trtops into TensorRT's log: to ``logging``, and to everybody who collects."""
    tell_collectors("WARNING", f"trtops: {message}")
    LOGGER.warning("%s", message)


def get_trt_logger() -> Any:
    """The one ``ILogger`` of this process: it passes TensorRT's messages on to ``logging`` as ``trtops.tensorrt``."""
    return _make_logger(load())


@functools.cache
def _make_logger(trt: Any) -> Any:
    base: Any = trt.ILogger

    class TensorRTLog(base):  # type: ignore[misc]
        """Writes to ``logging`` and to everybody who collects. Called from C++ on any thread, so it never raises."""

        def __init__(self) -> None:
            # Not super(): the bindings need the call on the class itself, and crash later without it.
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            name = severity.name
            tell_collectors(name, msg)
            level = _LEVELS.get(name, logging.INFO)
            if LOGGER.isEnabledFor(level):
                LOGGER.log(level, "%s", msg)

    return TensorRTLog()
