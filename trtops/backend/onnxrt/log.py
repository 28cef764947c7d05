"""What ONNX Runtime says while it works, collected instead of printed.

ONNX Runtime's Python package has no log callback: its default sink writes to file descriptor 2. So descriptor 2 is
pointed at a temporary file while a session is created, and the lines that carry the session's own log id are taken out
of it; every other line goes on to the real standard error, where other threads meant it to be.
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
        log_id: To be given to those sessions as ``SessionOptions.logid``.
        lines: Severity letter and message of each line so far, without time and colour; equal lines once. What is said
            below a warning is left out.
        optimizers: Names of ONNX Runtime's optimizers that were heard of, and whether one of them changed a graph. A session
            says so if its ``log_severity_level`` is 0.
    """

    log_id: str = field(default_factory=lambda: f"trtops-{os.getpid()}-{next(_ids)}")
    lines: dict[str, None] = field(default_factory=dict)
    optimizers: dict[str, bool] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Note a line of our own, or of a session."""
        self.lines[line] = None

    def hear(self, severity: str, message: str) -> None:
        """Note what a session of the build said."""
        if severity not in "VI":
            self.add(f"[{severity}] {message}")
        elif ran := _CHANGED.search(message):
            self.optimizers[ran[1]] = self.optimizers.get(ran[1], False) or ran[2] != "0"

    def text(self) -> str:
        """All lines in order, each ended by a newline."""
        return "".join(f"{line}\n" for line in self.lines)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect what sessions with this log id say in the body. Descriptor 2 belongs to the process: keep it short."""
        with _lock:
            _redirect_stderr(self)
        try:
            yield
        finally:
            with _lock:
                _restore_stderr(self)


# One redirection serves all builds that run at the same time in this process: the first sets it up, the last undoes it.
# Nested redirections would not do: builds end in any order, and the second to end would restore the first's file.
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
    global _sink
    assert _sink is not None
    if len(_open) == 1:
        os.dup2(_stderr, 2)  # before the lines are read, so that none is written behind the last one read
    _deliver_lines(_sink)
    _open.remove(log)
    if not _open:
        _sink.close()
        _sink = None
        os.close(_stderr)


def _deliver_lines(sink: IO[bytes]) -> None:
    """Hand every line written since the last time to the log it belongs to, or else to the real standard error."""
    global _delivered
    content = os.pread(sink.fileno(), os.fstat(sink.fileno()).st_size - _delivered, _delivered)
    if len(_open) > 1:  # another build may be in the middle of a line, which is whole by the time it ends
        content = content[: content.rfind(b"\n") + 1]
    _delivered += len(content)
    by_id = {log.log_id: log for log in _open}
    for raw in content.splitlines(keepends=True):
        found = _LINE.search(_COLOUR.sub("", raw.decode(errors="replace")))
        log = by_id.get(found[2]) if found else None
        if found is None or log is None:
            os.write(_stderr, raw)
        else:
            log.hear(found[1], found[4].rstrip())
