"""Lint: what is wrong with a model file, node by node, with a report in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import external, stand_ins, walk
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.bare import Bare, load_external_data, read_bare
from trtops.backend.onnx.lint import LintEntry, LintReport
from trtops.backend.onnx.model import Model, tensor_spec
from trtops.backend.onnx.parsing import read_proto
from trtops.metadata import Shape, TensorMetadata, is_dynamic
from trtops.ops.model.opening import Source, Subject, inputs_with_shapes
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import table
from trtops.verdict import Verdict

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed


@dataclass(frozen=True, kw_only=True)
class LintConfig(Record):
    """What the model is run on.

    Attributes:
        data: Where inputs come from (:func:`trtops.ops.evaluation.feeds.open_feeds`); the first feed is used. Made up unless given.
        input_shapes: Shapes of inputs with dynamic dimensions, by name; 1 for each such dimension unless given.
        output: Where to write the report, in Polygraphy's layout.
    """

    data: str | None = None
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class LintResult(LintReport, OpResult):
    """All findings of one model, for people too."""

    @property
    def verdict(self) -> Verdict:
        """``bad`` if there is something worse than a warning."""
        return "good" if self.ok else "bad"

    def body(self) -> Iterator[str]:
        """The findings, as they are in a terminal."""
        yield from ("```", self.text(), "```")

    def text(self) -> str:
        """The findings as a table, and how many nodes passed."""
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
    """Check a model; see :func:`trtops.backend.onnx.lint.lint`.

    A file that cannot be read as a model at all, or whose external data is missing, is a finding as well. The large
    weights of a file are not read where nothing that is found can depend on their values.

    Args:
        model: The model, or its path; not changed.
        config: What to run it on.
        feed: Arrays by input name, in place of the config's source.

    Raises:
        ConfigError: If the data source does not exist, or a shape is given for no input.
        InputError: If there is no data in it.
    """
    config = LintConfig() if config is None else config
    try:
        bare = _bare_model(model)
    except errors.ModelError as exc:
        entry = LintEntry(level="exception", source="onnx_loader", message=str(exc))
        report = LintReport(passing=(), failing=(), unchecked=(), entries=(entry,))
    else:
        path = model if isinstance(model, (str, Path)) else None
        report = linting.lint(bare, feed if feed is not None else _first_feed(bare.model, config), path=path)
    if config.output is not None:
        Path(config.output).write_text(json.dumps(report.to_lint_json(), indent=1), encoding="utf-8")
    return LintResult(title=f"lint {Subject.of(model)}", **vars(report))


def _bare_model(model: Source) -> Bare:
    """A model; of a file without large weights, if zeros can stand in for them."""
    if not isinstance(model, (str, Path)):
        return Bare(model.proto() if isinstance(model, Model) else model)
    folder = Path(model).absolute().parent
    bare = load_external_data(read_bare(model), folder)
    try:
        if not bare.left_out or stand_ins.suffice(bare.model, bare.left_out):
            return bare
    except errors.InvalidModelError:
        return bare  # nodes in a circle, which none runs
    proto = read_proto(model)
    external.load_external_data(proto, folder)
    return Bare(proto)


def _first_feed(proto: onnx.ModelProto, config: LintConfig) -> Feed | None:
    """The first feed of the source, or random data for inputs whose shape is given; None leaves it to be made up."""
    constants = walk.initializer_names(proto.graph)
    inputs = TensorMetadata.of(tensor_spec(v) for v in proto.graph.input if v.name not in constants)
    fixed = {name: tuple(1 if is_dynamic(dim) else dim for dim in shape) for name, shape in config.input_shapes.items()}
    inputs = inputs_with_shapes(inputs, fixed)
    if config.data is None and not config.input_shapes:
        return None
    # Most models are linted without, and faster than what opens data is imported.
    from trtops.ops.evaluation.feeds import open_feeds

    if config.data is not None:
        return next(iter(open_feeds(config.data, inputs)))
    wanted = TensorMetadata.of(inputs[name] for name in config.input_shapes)
    return next(iter(open_feeds(None, wanted)))
