"""Surgeon: cut, clean, change and shrink ONNX models.

Every verb takes a model (a path, or one in memory), leaves it as it is, and gives back a new one with what was done to
it. A model file may have any size: weights beside it are read, and written beside the new file where it gets too large.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import onnx

from trtops import errors
from trtops.backend.onnx import (
    edit,
    external,
    fold,
    precision,
    rewriting,
    save,
    shapes,
    sparsity,
    surgery,
    walk,
    weights,
)
from trtops.backend.onnx.model import Model, check_structure, read_proto
from trtops.metadata import Shape, TensorSpec
from trtops.ops.model.saving import SaveConfig
from trtops.record import Record

log = logging.getLogger(__name__)

Source: TypeAlias = "str | Path | Model | onnx.ModelProto"
"""A model: the path of its file, or the model in memory, which stays the caller's and is copied."""


@dataclass(frozen=True, kw_only=True)
class SanitizeConfig(Record):
    """What to clean.

    Attributes:
        input_shapes: Other shapes of inputs, by name; all shapes behind them are inferred anew.
        fold_constants: Whether to compute what does not depend on inputs.
        fold_shapes: Whether shapes that can be inferred count as constants.
        infer_shapes: Whether shapes are inferred while folding; else those that the model declares are used.
        symbolic_shapes: Whether ONNX Runtime's symbolic inference helps where ONNX's own leaves ranks unknown.
        max_passes: Most passes over the model; None goes on until nothing folds any more.
        max_folded_bytes: Tensors larger than this are not folded; None folds all.
        cleanup: Whether to remove nodes and weights that no output needs.
        sort: Whether to put the nodes into an order of execution.
        outputs: Names or patterns of tensors to be the outputs; None keeps the outputs.
        exclude_outputs: Names or patterns of outputs to leave out.
        output_types: Types of nodes whose results are to be the outputs, instead of ``outputs``.
        upper_bounds: Bounds of sizes that the model computes at run time, by tensor name; ``""`` holds for all others.
    """

    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    fold_constants: bool = False
    fold_shapes: bool = True
    infer_shapes: bool = True
    symbolic_shapes: bool = True
    max_passes: int | None = None
    max_folded_bytes: int | None = None
    cleanup: bool = False
    sort: bool = False
    outputs: tuple[str, ...] | None = None
    exclude_outputs: tuple[str, ...] | None = None
    output_types: tuple[str, ...] | None = None
    upper_bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InsertConfig(Record):
    """A node to put in.

    Attributes:
        op: Its type.
        inputs: Names of the tensors that it reads.
        outputs: Names of the tensors that it makes; one that is an input as well is passed through it.
        name: Its name.
        domain: Its operator domain.
        attributes: Its attributes: numbers, text, or lists of these.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    domain: str = ""
    attributes: Mapping[str, int | float | str | tuple[int | float | str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LowerConfig(Record):
    """How to rewrite a model for 16 bit.

    Attributes:
        to: The type to compute in.
        keep_io: Whether inputs and outputs keep their type, behind Cast nodes.
        exclude: Nodes that stay in FP32: names, patterns of names, or types.
        keep_types: Types of nodes that stay in FP32 beside those.
    """

    to: Literal["fp16", "bf16"] = "fp16"
    keep_io: bool = True
    exclude: tuple[str, ...] = ()
    keep_types: tuple[str, ...] = tuple(sorted(precision.KEPT_TYPES))


@dataclass(frozen=True, kw_only=True)
class SurgeonResult(Record):
    """A new model, and what was done.

    Attributes:
        path: Where it was written; None if it was not.
        nodes_before: Nodes before, those of sub-graphs and functions included.
        nodes: Nodes now.
        changes: What was done, in sentences.
    """

    path: str | None
    nodes_before: int
    nodes: int
    changes: tuple[str, ...]
    _proto: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> onnx.ModelProto:
        """The new model, with its weights inside.

        Raises:
            ConfigError: If this result was read from JSON, which does not hold the model.
        """
        if self._proto is None:
            raise errors.ConfigError(
                f"This result was read from a file, without its model; load {self.path!r} instead."
            )
        proto: onnx.ModelProto = self._proto
        return proto


def sanitize(
    model: Source,
    output: str | Path | None = None,
    config: SanitizeConfig | None = None,
    *,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Clean a model: other shapes and outputs, order, dead nodes, constants, and bounds on sizes, in this order.

    Args:
        model: The model; not changed.
        output: Where to write the new one; None does not.
        config: What to do; by default only what is broken is refused.
        save_as: Where weights go.

    Raises:
        ModelError: If the model contradicts itself, or its external data is missing.
        ConfigError: If a name fits nothing in the model, or ``output`` is a file of the model itself.
    """
    config = SanitizeConfig() if config is None else config
    return _operate(model, output, save_as, lambda proto: _sanitize(proto, config))


def _sanitize(proto: onnx.ModelProto, config: SanitizeConfig) -> list[str]:
    check_structure(proto)
    changes = []
    if config.input_shapes:
        surgery.override_input_shapes(proto, config.input_shapes)
        shapes.infer_shapes(proto, symbolic=config.symbolic_shapes)
        changes.append(f"Gave other shapes to {_list(config.input_shapes)}.")
    changes += _choose_outputs(proto, config)
    if config.sort and surgery.sort_nodes(proto):
        changes.append("Put the nodes into an order of execution.")
    if config.cleanup:
        before = _count(proto)
        rewriting.remove_unused(proto.graph)
        changes.append(f"Removed {before - _count(proto)} nodes that no output needs.")
    if config.fold_constants:
        folded = fold.fold_constants(
            proto,
            passes=config.max_passes,
            fold_shapes=config.fold_shapes,
            infer_shapes=config.infer_shapes,
            symbolic=config.symbolic_shapes,
            size_threshold=config.max_folded_bytes,
        )
        changes.append(f"Folded {folded} nodes.")
    if config.upper_bounds:
        shapes.infer_shapes(proto, symbolic=config.symbolic_shapes)
        bounded = edit.set_upper_bounds(proto, config.upper_bounds)
        changes.append(f"Bounded {_list(f'{name} by {bound}' for name, bound in bounded.items()) or 'nothing'}.")
    return changes


def _choose_outputs(proto: onnx.ModelProto, config: SanitizeConfig) -> list[str]:
    outputs = config.outputs
    if config.output_types is not None:
        outputs = tuple(edit.outputs_of_types(proto.graph, config.output_types))
    if outputs is not None:
        edit.set_outputs(proto, outputs)
    if config.exclude_outputs is not None:
        edit.drop_outputs(proto, config.exclude_outputs)
    if outputs is None and config.exclude_outputs is None:
        return []
    return [f"The outputs are now {_list(value.name for value in proto.graph.output)}."]


def extract(
    model: Source,
    output: str | Path | None = None,
    *,
    inputs: Iterable[TensorSpec] | None = None,
    outputs: Iterable[TensorSpec] | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Cut a part out of a model.

    Args:
        model: The model; not changed.
        output: Where to write the part; None does not.
        inputs: The part's inputs; dtypes and shapes that are None are inferred. None keeps the model's.
        outputs: The part's outputs, likewise.
        save_as: Where weights go.

    Raises:
        ModelError: If the part contradicts itself.
        ConfigError: If a tensor does not exist, or the part needs more inputs; the message names them.
    """
    starts = None if inputs is None else {spec.name: spec for spec in inputs}
    ends = None if outputs is None else {spec.name: spec for spec in outputs}

    def cut(proto: onnx.ModelProto) -> list[str]:
        edit.extract(proto, starts, ends)
        check_structure(proto)
        graph = proto.graph
        return [f"From {_list(v.name for v in graph.input)} to {_list(v.name for v in graph.output)}."]

    return _operate(model, output, save_as, cut)


def insert(
    model: Source, output: str | Path | None, config: InsertConfig, *, save_as: SaveConfig | None = None
) -> SurgeonResult:
    """Put a node between tensors, in place of whatever was there; see :func:`trtops.backend.onnx.surgery.insert_node`.

    Args:
        model: The model; not changed.
        output: Where to write the new one; None does not.
        config: The node.
        save_as: Where weights go.

    Raises:
        ModelError: If the model contradicts itself.
        ConfigError: If a tensor does not exist, or the node would depend on itself.
    """

    def put(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        surgery.insert_node(
            proto,
            config.op,
            config.inputs,
            config.outputs,
            name=config.name,
            domain=config.domain,
            attributes={
                name: list(value) if isinstance(value, tuple) else value for name, value in config.attributes.items()
            },
        )
        return [f"Inserted {config.op} between {_list(config.inputs)} and {_list(config.outputs)}."]

    return _operate(model, output, save_as, put)


def prune(model: Source, output: str | Path | None = None, *, save_as: SaveConfig | None = None) -> SurgeonResult:
    """Make weights 2:4 sparse, to measure what sparse kernels gain; see :mod:`trtops.backend.onnx.sparsity`.

    Raises:
        ModelError: If the model contradicts itself.
    """

    def shrink(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        return [f"Pruned {len(sparsity.prune(proto))} weights."]

    return _operate(model, output, save_as, shrink)


def strip_weights(
    model: Source,
    output: str | Path | None = None,
    *,
    exclude: Collection[str] = (),
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Take the weights out of a model, to share its structure; see :mod:`trtops.backend.onnx.weights`.

    Args:
        model: The model, constants folded; not changed.
        output: Where to write the new one; None does not.
        exclude: Names of weights that stay.
        save_as: Where what is left of the weights goes.

    Raises:
        ModelError: If the model contradicts itself.
        ConfigError: If a name to exclude is no weight.
    """

    def strip(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        return [f"Took out {len(weights.strip_weights(proto, exclude))} weights."]

    return _operate(model, output, save_as, strip)


def reconstruct_weights(
    model: Source,
    output: str | Path | None = None,
    *,
    original: Source | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Put weights back into a stripped model.

    Args:
        model: The stripped model; not changed.
        output: Where to write the new one; None does not.
        original: The model that has the weights; None draws random ones.
        save_as: Where weights go.

    Raises:
        ModelError: If the original lacks a weight, or has it in another type or shape.
    """
    known = None if original is None else _load(original)[0]

    def put_back(proto: onnx.ModelProto) -> list[str]:
        names = weights.reconstruct_weights(proto, known)
        check_structure(proto)
        return [f"Put back {len(names)} {'random ' if known is None else ''}weights."]

    return _operate(model, output, save_as, put_back)


def lower_precision(
    model: Source,
    output: str | Path | None = None,
    config: LowerConfig | None = None,
    *,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Rewrite a model to compute in 16 bit; see :func:`trtops.backend.onnx.precision.lower_precision`.

    Raises:
        ModelError: If the model contradicts itself.
        ConfigError: If ``exclude`` fits no node, or the operator set is too old for BF16.
    """
    config = LowerConfig() if config is None else config
    proto, files = _load(model)
    check_structure(proto)
    rewritten = precision.lower_precision(
        proto, config.to, keep_io=config.keep_io, exclude=config.exclude, keep_types=config.keep_types
    )
    changes = [f"{len(rewritten.lowered)} nodes compute in {config.to.upper()}, {len(rewritten.kept)} stay in FP32."]
    if rewritten.too_large:
        changes.append(f"Kept for weights beyond the 16-bit range: {_list(rewritten.too_large)}.")
    if rewritten.clamped:
        changes.append(f"Clamped to the 16-bit range: {_list(rewritten.clamped)}.")
    if rewritten.flushed:
        changes.append(f"{sum(rewritten.flushed.values())} values too small for 16 bit became zero.")
    return _finished(rewritten.model, _count(proto), changes, files, output, save_as)


def resave(model: Source, output: str | Path, *, save_as: SaveConfig | None = None) -> SurgeonResult:
    """Write a model with its weights inside, or beside it.

    Raises:
        ModelError: If the model contradicts itself, or its external data is missing.
        ConfigError: If ``output`` is a file of the model itself.
    """

    def keep(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        return []

    return _operate(model, output, save_as, keep)


def _operate(
    model: Source,
    output: str | Path | None,
    save_as: SaveConfig | None,
    change: Callable[[onnx.ModelProto], list[str]],
) -> SurgeonResult:
    proto, files = _load(model)
    before = _count(proto)
    return _finished(proto, before, change(proto), files, output, save_as)


def _finished(
    proto: onnx.ModelProto,
    before: int,
    changes: list[str],
    files: set[Path],
    output: str | Path | None,
    save_as: SaveConfig | None,
) -> SurgeonResult:
    if output is not None:
        _write(proto, Path(output), files, save_as or SaveConfig())
    for change in changes:
        log.debug("%s", change)
    return SurgeonResult(
        path=None if output is None else str(output),
        nodes_before=before,
        nodes=_count(proto),
        changes=tuple(changes),
        _proto=proto,
    )


def _load(model: Source) -> tuple[onnx.ModelProto, set[Path]]:
    """The model to be changed, and the files that must stay as they are."""
    if isinstance(model, Model):
        return model.proto(), {path.resolve() for path in model.files()}
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy, set()
    path = Path(model)
    proto = read_proto(path)
    files = {path.resolve()}
    folder = path.absolute().parent
    files |= {external.locate(t, folder).path for t in walk.tensors(proto) if external.is_external(t)}
    external.load_external_data(proto, folder)
    return proto, files


def _write(proto: onnx.ModelProto, path: Path, files: set[Path], config: SaveConfig) -> None:
    data = path.parent / (config.external_data or f"{path.name}.data")
    if path.resolve() in files or data.resolve() in files:
        raise errors.ConfigError(f"Writing {str(path)!r} would replace a file of the model itself. Give another path.")
    save.save_model(
        proto,
        path,
        external_data_path=config.external_data,
        size_threshold=config.size_threshold,
        all_tensors_to_one_file=config.one_file,
    )


def _count(proto: onnx.ModelProto) -> int:
    return sum(1 for _ in walk.nodes(proto))


def _list(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
