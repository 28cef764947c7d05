"""Clean a model: shapes, outputs, order, dead nodes, constants and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from trtops.backend.onnx import edit, fold, rewriting, shapes, surgery
from trtops.backend.onnx.model import check_structure
from trtops.metadata import Shape
from trtops.ops.model.opening import Source
from trtops.ops.model.saving import SaveConfig
from trtops.ops.model.surgeon.operation import SurgeonResult, count_nodes, first_names, operate
from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class SanitizeConfig(Record):
    """What to clean.

    Attributes:
        input_shapes: Other shapes of inputs, by name; all shapes behind them are inferred anew.
        fold_constants: Whether to compute what does not depend on inputs.
        fold_shapes: Whether shapes that can be inferred count as constants.
        infer_shapes: Whether shapes are inferred while folding; else those that the model declares are used.
        symbolic_shapes: Whether ONNX Runtime's symbolic inference helps where ONNX's own leaves ranks unknown.
        max_passes: Most passes over the model; None folds until nothing changes any more.
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
    return operate(model, output, save_as, lambda proto: _clean_model(proto, config))


def _clean_model(proto: onnx.ModelProto, config: SanitizeConfig) -> list[str]:
    check_structure(proto)
    changes = []
    if config.input_shapes:
        surgery.override_input_shapes(proto, config.input_shapes)
        shapes.infer_shapes(proto, symbolic=config.symbolic_shapes)
        changes.append(f"Gave other shapes to {first_names(config.input_shapes)}.")
    changes += _choose_outputs(proto, config)
    if config.sort and surgery.sort_nodes(proto):
        changes.append("Put the nodes into an order of execution.")
    if config.cleanup:
        before = count_nodes(proto)
        rewriting.remove_unused(proto.graph)
        changes.append(f"Removed {before - count_nodes(proto)} nodes that no output needs.")
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
        changes.append(f"Bounded {first_names(f'{name} by {bound}' for name, bound in bounded.items()) or 'nothing'}.")
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
    return [f"The outputs are now {first_names(value.name for value in proto.graph.output)}."]
