"""How the nodes that must stay in FP32 are searched for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtops import errors
from trtops.backend.onnx.precision import KEPT_TYPES
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.feeds import DataConfig


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(DataConfig):
    """How to search, and on what data.

    Attributes:
        to: The lower precision.
        mode: ``minimal`` looks for a set of nodes of which none can be left out. ``bisect`` and ``linear`` keep all nodes
            from one end of the model, and look for how many that must be.
        direction: The end that ``bisect`` and ``linear`` keep: ``forward`` the beginning, ``reverse`` the end.
        tolerances: What the model must meet, against itself in FP32; by default what is expected of that precision.
        exclude: Nodes that stay in FP32 whatever comes out: names, patterns or types.
        keep_types: Types of nodes that stay in FP32 beside those.
        max_checks: Where the search stops with the smallest set so far; None never does.
        output: Where to write the model in mixed precision.
        exclude_list: Where to write the names of the nodes to keep, one a line.
        latency_runs: Inferences timed for each point of the picture; 0 measures none.
        load_replay: Answers of an earlier search of the same kind, which are not asked for again.
        save_replay: Where to write the answers, anew after each.
    """

    to: Literal["fp16", "bf16"] = "fp16"
    mode: Literal["minimal", "bisect", "linear"] = "minimal"
    direction: Literal["forward", "reverse"] = "forward"
    tolerances: Tolerances | None = None
    exclude: tuple[str, ...] = ()
    keep_types: tuple[str, ...] = tuple(sorted(KEPT_TYPES))
    max_checks: int | None = None
    output: str | None = None
    exclude_list: str | None = None
    latency_runs: int = 20
    load_replay: str | None = None
    save_replay: str | None = None

    def __post_init__(self) -> None:
        if self.max_checks is not None and self.max_checks < 2:
            raise errors.ConfigError(f"max_checks is {self.max_checks}; expected 2 or more.")
