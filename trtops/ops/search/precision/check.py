"""Candidates of a precision search, evaluated by an outside command: each is written to a file that the command reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trtops.backend.onnx.save import save_model
from trtops.ops.evaluation.command import CommandCheck
from trtops.ops.search.precision.candidates import Candidate
from trtops.ops.search.repeat import RepeatConfig, RepeatStep, finish, iterate


@dataclass(frozen=True, kw_only=True)
class ModelWriter:
    """Writes a candidate as an ONNX model in mixed precision.

    Attributes:
        path: Where it goes.
    """

    path: str

    def __call__(self, candidate: Candidate) -> None:
        """Rewrite the model, and write it."""
        save_model(candidate.rewritten.model, self.path)


@dataclass(frozen=True, kw_only=True)
class CandidateCheck:
    """Says whether a candidate is good: writes it, runs a command, and sorts what that left. Use it as a context.

    Attributes:
        write: Writes a candidate.
        check: The command.
        config: What to sort and to keep; its ``until`` does not count.
        progress: Called after each check.
    """

    write: Callable[[Candidate], None]
    check: CommandCheck
    config: RepeatConfig
    progress: Callable[[RepeatStep], None] | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def __enter__(self) -> CandidateCheck:
        """Begin."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the file that the command read."""
        finish(self.config)
        if self.config.intermediate is not None and not self.config.keep_intermediate:
            Path(f"{self.config.intermediate}.data").unlink(missing_ok=True)

    def __call__(self, candidate: Candidate) -> bool:
        """Whether the command passes.

        Raises:
            ConfigError: If the command cannot be run.
        """
        step = iterate(next(self._numbers), lambda _: self.write(candidate), self.check, self.config)
        if self.progress is not None:
            self.progress(step)
        return step.verdict == "good"
