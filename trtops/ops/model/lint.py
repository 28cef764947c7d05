"""Lint: problems of a model file, node by node, with a report in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.lint import LintEntry, LintReport
from trtops.backend.onnx.load_without_weights import ModelWithoutWeights, load_without_weights
from trtops.backend.onnx.loader import onnx_from_path
from trtops.backend.onnx.model import Model, input_specs
from trtops.backend.onnx.zero_weights import can_run_on_zero_weights
from trtops.metadata import Shape, TensorMetadata, is_dynamic
from trtops.ops.model.model_files import Source, Subject, inputs_with_shapes
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import table
from trtops.verdict import Verdict

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed


@dataclass(frozen=True, kw_only=True)
class LintConfig(Record):
    """The data that the model is run on, and the report's file.

    Attributes:
        data: Source of inputs (:func:`trtops.ops.evaluation.feeds.open_feeds`); the first feed is used. The default is
            random data.
        input_shapes: Shapes of inputs with dynamic dimensions, by name; 1 for each such dimension unless given.
        output: The file of the report, in Polygraphy's layout.
    """

    data: str | None = None
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class LintResult(LintReport, OpResult):
    """All findings about one model, with a verdict and a page."""

    @property
    def verdict(self) -> Verdict:
        """``bad`` if there is anything but warnings."""
        return "good" if self.ok else "bad"

    def body(self) -> Iterator[str]:
        """The findings, for the page."""
        yield from ("```", self.text(), "```")

    def text(self) -> str:
        """The findings as a table, and the number of nodes that passed."""
        counts = f"{len(self.passing)} nodes pass, {len(self.failing)} fail, {len(self.unchecked)} were not checked."
        if not self.entries:
            return counts
        rows = (
            (
                entry.level,
                entry.source,
                (", ".join(entry.nodes[:3]) or "(model)") + (f" ({entry.op})" if entry.op else ""),
                " ".join(entry.message.split()),
            )
            for entry in self.entries
        )
        return f"{table(('level', 'found by', 'nodes', 'finding'), rows)}\n\n{counts}"


def lint(model: Source, config: LintConfig | None = None, *, feed: Feed | None = None) -> LintResult:
    """Check a model, which is not changed; see :func:`trtops.backend.onnx.lint.lint`.

    A file that is not a model, or whose external data is missing, is a finding as well. Large weights are not used
    where no finding can depend on their values. ``feed`` replaces the config's data source.

    Raises:
        ConfigError: If the data source does not exist, or there is no input with the name of a shape.
        InputError: If the data source is empty.
    """
    config = LintConfig() if config is None else config
    path = model if isinstance(model, (str, Path)) else None
    try:
        if isinstance(model, (str, Path)):
            bare = load_without_weights(model)
            if bare.left_out and not _can_leave_out(bare):
                bare = ModelWithoutWeights(onnx_from_path(model))
        else:
            bare = ModelWithoutWeights(model.proto() if isinstance(model, Model) else model)
    except errors.ModelError as exc:
        entry = LintEntry(level="exception", source="onnx_loader", message=str(exc))
        report = LintReport(passing=(), failing=(), unchecked=(), entries=(entry,))
    else:
        report = linting.lint(bare, feed if feed is not None else _first_feed(bare.model, config), path=path)
    if config.output is not None:
        Path(config.output).write_text(json.dumps(report.to_lint_json(), indent=1), encoding="utf-8")
    return LintResult(title=f"lint {Subject.of(model)}", **vars(report))


def _can_leave_out(bare: ModelWithoutWeights) -> bool:
    try:
        return can_run_on_zero_weights(bare.model, bare.left_out)
    except errors.InvalidModelError:
        return True  # its nodes form a cycle, so nothing is run


def _first_feed(proto: onnx.ModelProto, config: LintConfig) -> Feed | None:
    """The first feed of the source, or random data for inputs with a given shape; None if neither is given."""
    fixed = {name: tuple(1 if is_dynamic(dim) else dim for dim in shape) for name, shape in config.input_shapes.items()}
    inputs = inputs_with_shapes(TensorMetadata.of(input_specs(proto.graph)), fixed)
    if config.data is None:
        if not config.input_shapes:
            return None
        inputs = TensorMetadata.of(inputs[name] for name in config.input_shapes)
    from trtops.ops.evaluation.feeds import open_feeds  # slow to import, and rarely needed

    return next(iter(open_feeds(config.data, inputs)))
