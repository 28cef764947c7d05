"""Progress on a terminal: one line that is written over, and nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_WIDTH = 24
_EVERY = 0.1  # seconds


class Bar:
    """A bar, or a count where the total is not known; at most ten times a second, and only on a terminal."""

    def __init__(self, label: str, unit: str, total: int | None, file: TextIO) -> None:
        """Make a bar that shows nothing yet."""
        self._label, self._unit, self._total, self._file = label, unit, total, file
        self._begun = time.perf_counter()
        self._shown = float("-inf")
        self._done = 0
        self._note = ""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how much is done, of how much, if that was not known before, and what else there is to say."""
        self._done = done
        self._note = note
        self._total = self._total if total is None else total
        now = time.perf_counter()
        if self._file.isatty() and (now - self._shown >= _EVERY or done == self._total):
            self._shown = now
            self._file.write(f"\r{self.text()}\x1b[K")
            self._file.flush()

    def text(self) -> str:
        """The line as it stands."""
        rate = self._done / max(time.perf_counter() - self._begun, 1e-9)
        if not self._total:
            return f"{self._label}: {self._done} {self._unit} ({rate:.1f}/s){self._note}"
        filled = min(self._done * _WIDTH // self._total, _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        return f"{self._label} [{bar}] {self._done}/{self._total} {self._unit} ({rate:.1f}/s){self._note}"

    def close(self) -> None:
        """Leave the line, so that what comes next begins a new one."""
        if self._shown > float("-inf"):
            self._file.write("\n")
            self._file.flush()


@contextmanager
def progress(label: str, unit: str, total: int | None = None, file: TextIO | None = None) -> Iterator[Bar]:
    """A bar for the time of a block, on standard error unless a file is given."""
    bar = Bar(label, unit, total, sys.stderr if file is None else file)
    try:
        yield bar
    finally:
        bar.close()
