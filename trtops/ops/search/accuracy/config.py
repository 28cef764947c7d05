"""How the tensor is looked for at which two computations of a model begin to differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.feeds import DataConfig


@dataclass(frozen=True, kw_only=True)
class AccuracyConfig(DataConfig):
    """How to look, and on what data.

    Attributes:
        tolerances: What each tensor must meet; by default what is expected of the precision under test, or of FP32.
        window_bytes: How many bytes of tensors of one side are held at a time; smaller windows mean more passes over the
            model.
        observe: ``all`` makes all tensors of a window outputs at a time. ``one`` observes one tensor at a time, and finds
            the first that differs by bisection: slower, and fusions stay as they are. ``auto`` is ``all``, and then ``one``
            if the error disappears when observed.
        max_probes: Most tensors to observe one at a time.
    """

    tolerances: Tolerances | None = None
    window_bytes: int = 192 << 20
    observe: Literal["auto", "all", "one"] = "auto"
    max_probes: int = 64

    def __post_init__(self) -> None:
        for name in ("iterations", "window_bytes", "max_probes"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more.")
