"""TensorRT's log: sent to ``logging`` as ``trtops.tensorrt``, and collected for error messages and build logs."""

import functools
import logging
import os
import re
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
    """TensorRT's messages during :func:`collect_log`."""

    def __init__(self, verbose: bool, thread: int | None = None) -> None:
        # Severity name and text of each message, oldest first; verbose ones only on request.
        self.lines: list[tuple[str, str]] = []
        self.verbose = verbose
        self.thread = thread

    def add(self, severity: str, message: str) -> None:
        """Store a message unless it is filtered out."""
        # This runs in the thread that logs, so the current thread is the one to compare.
        if (severity != "VERBOSE" or self.verbose) and self.thread in (None, threading.get_ident()):
            self.lines.append((severity, message))

    @property
    def text(self) -> str:
        """All messages, one per line, after their severity."""
        return "".join(f"[{severity}] {message}\n" for severity, message in self.lines)

    def tail(self, count: int = 5) -> str:
        """The last error messages, or else the last warnings, for the end of an error message."""
        for severities in (("INTERNAL_ERROR", "ERROR"), ("WARNING",)):
            messages = [message for severity, message in self.lines if severity in severities]
            if messages:
                return "TensorRT's last messages:\n  " + "\n  ".join(messages[-count:])
        return "TensorRT logged no error."

    def contains(self, fragment: str) -> bool:
        """Whether a message contains a text."""
        return any(fragment in message for _, message in self.lines)


_collectors: list[LogLines] = []
_interrupted = threading.Event()
_EXIT_CODE = 130  # as a shell reports a command that SIGINT ended


def keep_interrupt() -> None:
    """Keep a KeyboardInterrupt (TensorRT cannot pass it on); a second one ends the process at once."""
    if _interrupted.is_set():
        os._exit(_EXIT_CODE)
    _interrupted.set()
    LOGGER.warning("Interrupted: TensorRT ends this build first. Interrupt again to end at once.")


@contextmanager
def collect_log(verbose: bool = False, *, this_thread: bool = False) -> Iterator[LogLines]:
    """Collect TensorRT's messages, on request only those of the calling thread; they are also sent to ``logging``.

    Raises KeyboardInterrupt at the end if TensorRT was interrupted meanwhile (:func:`keep_interrupt`).
    """
    lines = LogLines(verbose, threading.get_ident() if this_thread else None)
    _collectors.append(lines)
    try:
        yield lines
    finally:
        _collectors.remove(lines)
    if _interrupted.is_set() and threading.current_thread() is threading.main_thread():
        _interrupted.clear()
        raise KeyboardInterrupt


def add_to_collections(severity: str, message: str) -> None:
    """Add a message to all active collections."""
    # A copy: other threads may change the list.
    for lines in tuple(_collectors):
        lines.add(severity, message)


def log_warning(message: str) -> None:
    """Log a warning of trtops like a message of TensorRT."""
    add_to_collections("WARNING", f"trtops: {message}")
    LOGGER.warning("%s", message)


def get_trt_logger() -> Any:
    """The process's ``ILogger``; it sends TensorRT's messages to ``logging`` as ``trtops.tensorrt``."""
    return _make_logger(load())


# One per process: TensorRT keeps using the first logger that it was given, and warns about others.
@functools.cache
def _make_logger(trt: Any) -> Any:
    base: Any = trt.ILogger

    class TensorRTLog(base):  # type: ignore[misc]
        """Called from C++ on any thread, so it never raises: the bindings would print the exception and go on."""

        def __init__(self) -> None:
            # Not super(): without this call on the class itself the bindings crash later.
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            try:
                name = severity.name
                add_to_collections(name, msg)
                level = _LEVELS.get(name, logging.INFO)
                if LOGGER.isEnabledFor(level):
                    LOGGER.log(level, "%s", msg)
            except KeyboardInterrupt:  # Python runs the handlers of signals here while TensorRT builds
                keep_interrupt()

    return TensorRTLog()


# One after the other or with a separator in between; the names may hold brackets.
_ONNX_NODE = re.compile(r"\[ONNX Layer: (.+?)\](?=[\s\x1e,;]*(?:\[[A-Z][\w ]*: |$))")


def nodes_named_in(text: str) -> tuple[str, ...]:
    """Names of the ONNX nodes in TensorRT's metadata of a layer, in order."""
    return tuple(_ONNX_NODE.findall(text))
