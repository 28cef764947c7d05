"""Collects the log messages of ONNX Runtime sessions.

ONNX Runtime's Python package has no log callback: it writes to file descriptor 2. So descriptor 2 is redirected to a
temporary file while a session is created. Lines with the session's log id are collected; all others go to the real
standard error, where other threads meant to write them.
"""

import itertools
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trtops.terminal import escaped

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CHANGED = re.compile(r"GraphTransformer (\S+) modified: (\d)")
_LINE = re.compile(r"\[([VIWEF]):onnxruntime:([^,\]]*), ([^\]]*)\] (.*)")
_ids = itertools.count(1)
_one_redirection = threading.Lock()  # descriptor 2 belongs to the whole process


@dataclass
class SessionLog:
    """The log of the sessions of one build."""

    # Value for ``SessionOptions.logid`` of those sessions.
    log_id: str = field(default_factory=lambda: f"trtops-{os.getpid()}-{next(_ids)}")
    # Severity letter and message of each line, without time and colour and without duplicates; warnings and above
    # only.
    lines: dict[str, None] = field(default_factory=dict)
    # Whether each optimizer named in the log changed a graph. Needs ``log_severity_level`` 0.
    optimizers: dict[str, bool] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines[line] = None

    def text(self) -> str:
        """Return all lines in order, each ended by a newline."""
        return "".join(f"{line}\n" for line in self.lines)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the messages of sessions with this log id. Only one thread of a process can do so at a time."""
        with _one_redirection, tempfile.TemporaryFile() as sink:
            if sys.stderr is not None:
                sys.stderr.flush()
            stderr = os.dup(2)
            os.dup2(sink.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr, 2)
                sink.seek(0)
                for line in sink:
                    # ONNX Runtime ends some messages with an empty line, and names in others may contain newlines.
                    if line.strip() and not self._take(text := line.decode(errors="replace")):
                        os.write(stderr, f"    {escaped(_COLOUR.sub('', text))}".encode())
                os.close(stderr)

    def _take(self, line: str) -> bool:
        """Add a line of a session with this log id; False for other lines."""
        match = _LINE.search(_COLOUR.sub("", line))
        if match is None or match[2] != self.log_id:
            return False
        severity, message = match[1], match[4].rstrip()
        if severity not in "VI":
            self.add(f"[{severity}] {message}")
        elif changed := _CHANGED.search(message):
            self.optimizers[changed[1]] = self.optimizers.get(changed[1], False) or changed[2] != "0"
        return True
