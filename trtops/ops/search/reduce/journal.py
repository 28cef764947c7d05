"""The journal of a reduction: every answer on disk before the next question, so that nothing is asked twice.

JSON lines. The first says what the answers hold for; after it, each question has one line when it is put and one when it
is answered. Lines reach the disk before the reduction goes on. A line cut short by a kill is ignored.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import filelock

from trtops import errors
from trtops.ops.evaluation.submodel import CheckVerdict
from trtops.record import Record

log = logging.getLogger(__name__)

FORMAT = "trtops.reduce.journal"
VERSION = 1
_MAX_DIGITS = 14  # two numbers below ten million, more nodes than any model has


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """One sub-model, checked.

    Attributes:
        number: Counts answers from 1, those of earlier runs included.
        stage: Which search asked: ``whole``, ``halves``, ``outputs``, ``inputs``, ``nodes``, ``replay`` or ``all``.
        nodes: Which nodes the sub-model holds, as ranges of indices into the model's ``graph.node``: ``0-4,9``.
        nodes_left: How many that are.
        verdict: The check's.
        seconds: How long it took.
        detail: Why, in words.
    """

    number: int
    stage: str
    nodes: str
    nodes_left: int
    verdict: CheckVerdict
    seconds: float
    detail: str = ""


def ranges(nodes: Iterable[int]) -> str:
    """Numbers as text, runs shortened: ``0-4,9``."""
    runs: list[list[int]] = []
    for node in sorted(nodes):
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)


def from_ranges(text: str) -> frozenset[int]:
    """The numbers that :func:`ranges` wrote.

    Raises:
        FormatError: If the text is something else.
    """
    numbers: set[int] = set()
    try:
        for run in filter(None, text.split(",")):
            start, _, end = run.partition("-")
            if len(f"{start}{end}") > _MAX_DIGITS:
                raise ValueError
            numbers.update(range(int(start), int(end or start) + 1))
    except ValueError:
        raise errors.FormatError(f"{text!r} are no ranges of numbers; expected something like 0-4,9.") from None
    return frozenset(numbers)


class Journal:
    """Answers so far, in memory and, with a path, on disk. Safe to use from several threads.

    Attributes:
        steps: All answers, in order, those of earlier runs first.
        path: The file, if there is one.
        resumed: How many of them are from earlier runs.
        unanswered: Node sets that an earlier run was checking when it ended.
    """

    def __init__(
        self, path: Path | None = None, *, holds_for: dict[str, str] | None = None, begin_anew: bool = False
    ) -> None:
        """Open a journal, and read it if it is there.

        Args:
            path: The file; None keeps no file.
            holds_for: What the answers depend on; must be what an existing journal was begun with.
            begin_anew: Whether the answers of an existing journal are forgotten, whatever they hold for.

        Raises:
            ConfigError: If the journal belongs to another model, check or data, or is in use.
            FormatError: If the file is something else than a journal, or of a newer version.
        """
        self.path = path
        self.steps: list[Step] = []
        self.unanswered: set[frozenset[int]] = set()
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        header = {"format": FORMAT, "version": VERSION, **(holds_for or {})}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            _lock_file(self._file, path)
            if begin_anew:
                _keep_answers(path)
            size = self._read(path, header, begin_anew) if path.stat().st_size else 0
            self._file.truncate(size)
            self._file.seek(size)
            if not size:
                self._write(header)
        self.resumed = len(self.steps)

    def begin(self, nodes: Iterable[int]) -> None:
        """Note that a sub-model is about to be checked."""
        if self._file is not None:
            with self._lock:
                self._write({"begin": ranges(nodes)})

    def end(self, *, nodes: Iterable[int], stage: str, verdict: CheckVerdict, seconds: float, detail: str) -> Step:
        """Note the answer."""
        held = sorted(nodes)
        with self._lock:
            step = Step(
                number=len(self.steps) + 1,
                stage=stage,
                nodes=ranges(held),
                nodes_left=len(held),
                verdict=verdict,
                seconds=seconds,
                detail=detail,
            )
            self.steps.append(step)
            if self._file is not None:
                self._write(step.to_dict())
        return step

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def remove(self) -> None:
        """Close the file, and remove it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        os.fsync(self._file.fileno())

    def _read(self, path: Path, header: dict[str, Any], begin_anew: bool) -> int:
        """Take in the whole lines of a file, and return how many bytes they are that stay."""
        data = path.read_bytes()
        size = data.rfind(b"\n") + 1
        lines = [_parse_line(path, number, text) for number, text in enumerate(data[:size].splitlines(), start=1)]
        if not lines and not json.dumps(header, ensure_ascii=False).encode().startswith(data):
            raise errors.FormatError(f"{path} is no journal of a reduction; expected one, or no file.")
        if lines:
            _check_header(path, lines[0], {} if begin_anew else header)
        if begin_anew:
            return 0
        for line in lines[1:]:
            if "begin" in line:
                self.unanswered.add(from_ranges(str(line["begin"])))
            else:
                self.steps.append(Step.from_dict(line))
                self.unanswered.discard(from_ranges(self.steps[-1].nodes))
        return size


def _lock_file(file: IO[bytes], path: Path) -> None:
    """Keep other processes out; the system releases the lock when this one ends, however it ends."""
    if not filelock.lock_descriptor(file.fileno(), blocking=False):
        file.close()
        raise errors.ConfigError(f"{path} is in use by another reduction. Wait for it, or give another journal.")


def _parse_line(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        raise errors.FormatError(f"{path}, line {number}: not JSON. It is no journal of a reduction, or damaged.")
    return line


def _check_header(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    if found.get("format") != FORMAT:
        raise errors.FormatError(f"{path} is no journal of a reduction; expected one, or no file.")
    if found.get("version") != VERSION:
        raise errors.FormatError(f"{path} has version {found.get('version')!r}; this trtops reads {VERSION}.")
    for key, value in expected.items():
        if found.get(key) != value:
            raise errors.ConfigError(
                f"{path} was begun with {key} {str(found.get(key))[:60]!r}; now it is {str(value)[:60]!r}, so its answers "
                "do not hold. Give another journal, or remove this one to begin again."
            )


def _keep_answers(path: Path) -> None:
    """Put what a reduction that was cut short has answered aside, and say how it is resumed."""
    with path.open("rb") as file:
        answers = sum(b'"verdict"' in line for line in file)
    if answers:
        aside = path.with_name(f"{path.stem}_before{path.suffix}")
        shutil.copyfile(path, aside)
        log.warning(
            "A reduction was cut short here after %d answers, which are in %s now. To resume it, give that file as journal "
            "(--journal).",
            answers,
            aside,
        )
