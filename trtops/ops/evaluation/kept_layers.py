"""Layers to keep in higher precision: the result and the table of all searches for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import markdown_table
from trtops.tracking.base import Run

_MAX_LISTED_LAYERS = 30  # on a page
_COLUMNS = ("layer", "op", "error", "share", "keep")


@dataclass(frozen=True, kw_only=True)
class LayerCost(Record):
    """A layer, with the error of lowering it alone and its share of all errors, if these were measured."""

    layer: str
    op: str
    error: float | None = None
    share: float | None = None
    keep: bool


@dataclass(frozen=True, kw_only=True)
class KeptLayersResult(OpResult):
    """The base of results that propose layers to keep in higher precision."""

    keep: tuple[str, ...]  # names of layers, for BuildConfig.keep
    layers: tuple[LayerCost, ...] = ()  # the most important first
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config that are not the default

    def layer_table(self) -> str:
        """A row in Markdown for each of the first layers."""
        rows = []
        for layer in self.layers[:_MAX_LISTED_LAYERS]:
            error = "-" if layer.error is None else f"{layer.error:.4g}"
            share = "-" if layer.share is None else f"{layer.share:.1%}"
            rows.append((f"`{layer.layer}`", layer.op, error, share, "yes" if layer.keep else ""))
        return markdown_table(_COLUMNS, rows)

    def log_layers(self, run: Run, artifact: str) -> None:
        """Log the table of all layers."""

        def rows() -> Iterator[tuple[Any, ...]]:
            for layer in self.layers:
                yield layer.layer, layer.op, layer.error, layer.share, layer.keep

        run.log_table(artifact, _COLUMNS, rows())
