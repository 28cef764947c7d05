"""Lint: what is wrong with a model file, node by node, with a report in JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import external, stand_ins, walk
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.bare import Bare, load_external_data, read_bare
from trtops.backend.onnx.lint import LintEntry, LintReport
from trtops.backend.onnx.model import Model, read_proto, tensor_spec
from trtops.metadata import Shape, TensorMetadata, is_dynamic
from trtops.record import Record

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed


@dataclass(frozen=True, kw_only=True)
class LintConfig(Record):
    """What the model is run on.

    Attributes:
        data: Where inputs come from (:func:`trtops.ops.judging.feeds.open_feeds`); the first feed is used. Made up unless given.
        input_shapes: Shapes of inputs with dynamic dimensions, by name; 1 for each such dimension unless given.
        output: Where to write the report, in the layout of the field's tool.
    """

    data: str | None = None
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    output: str | None = None


def lint(
    model: str | Path | Model | onnx.ModelProto, config: LintConfig | None = None, *, feed: Feed | None = None
) -> LintReport:
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
        bare = _read(model) if isinstance(model, (str, Path)) else _held(model)
    except errors.ModelError as exc:
        entry = LintEntry(level="exception", source="onnx", message=str(exc))
        report = LintReport(passing=(), failing=(), unchecked=(), entries=(entry,))
    else:
        path = model if isinstance(model, (str, Path)) else None
        report = linting.lint(bare, feed if feed is not None else _feed(bare.model, config), path=path)
    if config.output is not None:
        Path(config.output).write_text(json.dumps(report.to_lint_json(), indent=1), encoding="utf-8")
    return report


def _held(model: Model | onnx.ModelProto) -> Bare:
    return Bare(model.proto() if isinstance(model, Model) else model)


def _read(path: str | Path) -> Bare:
    """A model file, without large weights if zeros can stand in for them."""
    folder = Path(path).absolute().parent
    bare = load_external_data(read_bare(path), folder)
    try:
        if not bare.left_out or stand_ins.suffice(bare.model, bare.left_out):
            return bare
    except errors.InvalidModelError:
        return bare  # nodes in a circle, which none runs
    proto = read_proto(path)
    external.load_external_data(proto, folder)
    return Bare(proto)


def _feed(proto: onnx.ModelProto, config: LintConfig) -> Feed | None:
    """The first feed of the source, or random data for inputs whose shape is given; None leaves it to be made up."""
    constants = walk.initializer_names(proto.graph)
    inputs = TensorMetadata.of(tensor_spec(v) for v in proto.graph.input if v.name not in constants)
    for name, shape in config.input_shapes.items():
        if name not in inputs:
            raise errors.ConfigError(f"The model has no input {name!r}. {errors.near(name, inputs)}")
        fixed = tuple(1 if is_dynamic(dim) else dim for dim in shape)
        inputs[name] = dataclasses.replace(inputs[name], shape=fixed)
    if config.data is None and not config.input_shapes:
        return None
    from trtops.ops.judging.feeds import open_feeds  # for those who give data

    if config.data is not None:
        return next(iter(open_feeds(config.data, inputs)))
    wanted = TensorMetadata.of(inputs[name] for name in config.input_shapes)
    return next(iter(open_feeds(None, wanted)))


def text(report: LintReport) -> str:
    """A report for people: the findings as a table, and how many nodes passed."""
    from trtops.ops.tables import table

    counts = f"{len(report.passing)} nodes pass, {len(report.failing)} fail, {len(report.unchecked)} were not checked."
    if not report.entries:
        return counts
    rows = (
        (entry.level, entry.source, ", ".join(entry.nodes[:3]) or "(model)", " ".join(entry.message.split()))
        for entry in report.entries
    )
    return f"{table(('level', 'found by', 'nodes', 'finding'), rows)}\n\n{counts}"
