"""What a precision search found, and the sets it tried on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import onnx

from trtops import errors
from trtops.record import Record

Names: TypeAlias = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class PrecisionStep(Record):
    """One set of nodes tried.

    Attributes:
        kept: How many nodes stayed in FP32.
        group: What they have in common, if they were tried for that.
        good: Whether the tolerances were met.
        excess: Largest error as a multiple of the tolerances: above 1 is too much.
        seconds: Wall time of the check.
    """

    kept: int
    group: str = ""
    good: bool
    excess: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TradeOff(Record):
    """One model of the picture: accuracy against latency.

    Attributes:
        label: What it is.
        kept: How many nodes stay in FP32.
        excess: As in :class:`PrecisionStep`.
        good: Whether the tolerances are met.
        latency_ms: Median of one inference; None if not measured.
    """

    label: str
    kept: int
    excess: float
    good: bool
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class PrecisionResult(Record):
    """What came out.

    Attributes:
        verdict: ``good`` if all nodes may be lowered; ``mixed`` if some must be kept; ``bad`` if even keeping all that can
            be lowered does not meet the tolerances.
        keep: Names of the nodes to keep in FP32, in the model's order; of the nodes in functions, as they are called in
            :attr:`model`, where functions are written out.
        exclude: The same, shorter: a type or pattern where that means the same nodes. What
            :func:`trtops.backend.onnx.precision.lower_precision` takes.
        minimal: Whether no single node of ``keep`` can be lowered, as was checked.
        nodes: Nodes that can be lowered.
        checks: Sets tried.
        seconds: Wall time.
        steps: Every set tried, in order.
        points: Accuracy and latency of the models worth looking at.
        path: Where the model in mixed precision is, if it was written.
    """

    verdict: Literal["good", "mixed", "bad"]
    keep: tuple[str, ...]
    exclude: tuple[str, ...]
    minimal: bool
    nodes: int
    checks: int
    seconds: float
    steps: tuple[PrecisionStep, ...]
    points: tuple[TradeOff, ...]
    path: str | None = None
    _proto: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> onnx.ModelProto:
        """The model in mixed precision, with Casts where the precisions meet.

        Raises:
            ConfigError: If this was read from JSON, which does not hold it.
        """
        if self._proto is None:
            raise errors.ConfigError(
                f"This result was read from a file, without its model; its path was {self.path!r}."
            )
        proto: onnx.ModelProto = self._proto
        return proto
