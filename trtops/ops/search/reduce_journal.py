"""The journal of a reduction: every answer reaches the disk before the next check, so that a killed search can resume.

JSON lines: a header that says what the answers depend on, and one line per answer. A last line cut short by a kill is
ignored.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import filelock

from trtops import errors
from trtops.ops.evaluation.submodel import CheckVerdict
from trtops.record import Record

FORMAT = "trtops.reduce.journal"


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """One checked sub-model.

    Attributes:
        number: Counts answers from 1, including those of earlier runs.
        stage: Stage of the search: ``whole``, ``halves``, ``outputs``, ``inputs``, ``nodes``, ``replay`` or ``all``.
        nodes: Its nodes as indices into the model's ``graph.node``.
    """

    number: int
    stage: str
    nodes: tuple[int, ...]
    verdict: CheckVerdict
    seconds: float
    detail: str = ""


class Journal:
    """Answers so far, in memory and, with a path, on disk. Safe to use from several threads.

    Attributes:
        steps: All answers in order, those of earlier runs first.
        resumed: Number of answers from earlier runs.
        path: The file, if any.
    """

    def __init__(self, path: Path | None, holds_for: Mapping[str, str], *, start_over: bool) -> None:
        """Open a journal and read an existing file.

        Args:
            path: The file; None keeps no file.
            holds_for: What the answers depend on; must be equal to that of an existing journal.
            start_over: Remove the answers of an existing journal.

        Raises:
            ConfigError: If the journal belongs to another model, check or data, or is in use.
            FormatError: If the file is not a journal.
        """
        self.path = path
        self.steps: list[Step] = []
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            # The system releases this lock when the process ends, however it ends.
            if not filelock.lock_descriptor(self._file.fileno(), blocking=False):
                self._file.close()
                raise errors.ConfigError(f"{path} is in use by another reduction. Wait for it, or use another journal.")
            header = {"format": FORMAT, **holds_for}
            size = self._read(path, header, start_over)
            self._file.truncate(size)
            if not size:
                self._write(header)
        self.resumed = len(self.steps)

    def add(self, nodes: Iterable[int], stage: str, verdict: CheckVerdict, seconds: float, detail: str) -> Step:
        """Store an answer."""
        held = tuple(sorted(nodes))
        with self._lock:
            number = len(self.steps) + 1
            step = Step(number=number, stage=stage, nodes=held, verdict=verdict, seconds=seconds, detail=detail)
            self.steps.append(step)
            if self._file is not None:
                self._write(step.to_dict())
        return step

    def close(self, *, remove: bool = False) -> None:
        """Close the file, and remove it if requested."""
        if self._file is not None and self.path is not None:
            if remove:
                self.path.unlink(missing_ok=True)
            self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        os.fsync(self._file.fileno())

    def _read(self, path: Path, header: Mapping[str, str], start_over: bool) -> int:
        """Read the complete lines of a file, and return the number of bytes to keep."""
        data = path.read_bytes()
        size = data.rfind(b"\n") + 1
        if not size and json.dumps(header, ensure_ascii=False).encode().startswith(data):
            return 0  # a new file, or one whose first line was cut short
        try:
            first, *lines = [json.loads(text) for text in data[:size].splitlines()] or [{}]
            if first["format"] != FORMAT:
                raise ValueError
            steps = [Step.from_dict(line) for line in lines]
        except (ValueError, TypeError, KeyError):
            raise errors.FormatError(
                f"{path} is not a journal of a reduction, or damaged; expected one, or no file."
            ) from None
        if start_over:
            return 0
        for key, value in header.items():
            if first.get(key) != value:
                raise errors.ConfigError(
                    f"{path} was begun with {key} {str(first.get(key))[:60]!r}; now it is {str(value)[:60]!r}, so its "
                    "answers do not hold. Use another journal, or remove this one to start over."
                )
        self.steps = steps
        return size
