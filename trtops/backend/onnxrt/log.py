"""Collects the log messages of ONNX Runtime sessions.

ONNX Runtime's Python package has no log callback: it writes to file descriptor 2. So descriptor 2 is redirected to a
temporary file while a session is created. Lines with the session's log id are collected; all others go to the real
standard error, where other threads meant to write them.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CHANGED = re.compile(r"GraphTransformer (\S+) modified: (\d)")
_LINE = re.compile(r"\[([VIWEF]):onnxruntime:([^,\]]*), ([^\]]*)\] (.*)")
_ids = itertools.count(1)


@dataclass
class SessionLog:
    """The log of the sessions of one build.

    Attributes:
        log_id: Value for ``SessionOptions.logid`` of those sessions.
        lines: Severity letter and message of each line, without time and colour and without duplicates; warnings and
            above only.
        optimizers: Whether each optimizer named in the log changed a graph. Needs ``log_severity_level`` 0.
    """

    log_id: str = field(default_factory=lambda: f"trtops-{os.getpid()}-{next(_ids)}")
    lines: dict[str, None] = field(default_factory=dict)
    optimizers: dict[str, bool] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines[line] = None

    def text(self) -> str:
        """Return all lines in order, each ended by a newline."""
        return "".join(f"{line}\n" for line in self.lines)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the messages of sessions with this log id. Redirects a descriptor of the process: keep it short."""
        with _lock:
            _redirect_stderr(self)
        try:
            yield
        finally:
            with _lock:
                _restore_stderr(self)


# One redirection serves all builds that run at the same time in this process: the first sets it up, the last undoes it.
# Nested redirections would fail: builds end in any order, and the second to end would restore the first's file.
_lock = threading.Lock()
_open: list[SessionLog] = []
_sink: IO[bytes] | None = None
_delivered: int = 0
_stderr: int = -1


def _redirect_stderr(log: SessionLog) -> None:
    global _sink, _delivered, _stderr
    if _sink is None:
        if sys.stderr is not None:
            sys.stderr.flush()
        _sink = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _restore_stderr
        _delivered = 0
        _stderr = os.dup(2)
        os.dup2(_sink.fileno(), 2)
    _open.append(log)


def _restore_stderr(log: SessionLog) -> None:
    """Deliver the lines written so far to their logs or to standard error; the last log ends the redirection."""
    global _sink, _delivered
    assert _sink is not None
    if len(_open) == 1:
        os.dup2(_stderr, 2)  # before reading, so that no line is written after the last one read
    content = os.pread(_sink.fileno(), os.fstat(_sink.fileno()).st_size - _delivered, _delivered)
    if len(_open) > 1:  # another build may be in the middle of a line, which is complete when that build ends
        content = content[: content.rfind(b"\n") + 1]
    _delivered += len(content)
    by_id = {each.log_id: each for each in _open}
    for raw in content.splitlines(keepends=True):
        found = _LINE.search(_COLOUR.sub("", raw.decode(errors="replace")))
        owner = by_id.get(found[2]) if found else None
        if found is None or owner is None:
            os.write(_stderr, raw)
        elif found[1] not in "VI":
            owner.add(f"[{found[1]}] {found[4].rstrip()}")
        elif ran := _CHANGED.search(found[4]):
            owner.optimizers[ran[1]] = owner.optimizers.get(ran[1], False) or ran[2] != "0"
    _open.remove(log)
    if not _open:
        _sink.close()
        _sink = None
        os.close(_stderr)
