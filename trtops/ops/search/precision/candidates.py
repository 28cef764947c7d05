"""Candidates of a precision search, and how they are run without TensorRT."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import onnx

from trtops.backend.base import BaseRunner
from trtops.backend.onnx import emulate
from trtops.backend.onnx.model import is_lean
from trtops.backend.onnx.precision import Rewritten, lower_precision
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.ops.search.precision.config import PrecisionConfig
from trtops.processes import temporary_prefix

Names: TypeAlias = frozenset[str]
"""Names of the nodes that stay in FP32."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A set of nodes to be tried.

    Attributes:
        original: The model in FP32; not to be changed.
        keep: Names of the nodes that stay in FP32.
        config: The search it belongs to.
        is_control: Whether its outputs are to be 0, so that a check must fail on it. ``original`` says so already; what
            makes the candidate from something else has to see to it.
    """

    original: onnx.ModelProto = field(repr=False)
    keep: Names
    config: PrecisionConfig
    is_control: bool = False

    @cached_property
    def rewritten(self) -> Rewritten:
        """The model in mixed precision; inputs and outputs stay FP32."""
        patterns = [*self.config.exclude, *map(literal_pattern, sorted(self.keep))]
        weights = Path(self._folder.name) if is_lean(self.original) else None
        return lower_precision(
            self.original, self.config.to, exclude=patterns, keep_types=self.config.keep_types, weights=weights
        )

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for weights, which goes with this."""
        return tempfile.TemporaryDirectory(prefix=temporary_prefix("lowered"))


MakeRunner: TypeAlias = Callable[[Candidate], BaseRunner]


def emulated_runner(candidate: Candidate) -> BaseRunner:
    """ONNX Runtime on the CPU, rounding each 16-bit result; see :mod:`trtops.backend.onnx.emulate`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(candidate.rewritten.model)
    emulate.emulate_low_precision(proto)
    return onnxruntime_runner(proto)


def literal_pattern(name: str) -> str:
    """A pattern that stands for a name alone, whatever is in it."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
