"""Surgeon: extract, insert, sanitize, prune, strip and reconstruct.

Every function takes a model (a path, or a model in memory), which is not changed, and returns a new one with a list of
the changes. ``output`` is the file to write, None for no file; ``save_as`` is where its weights go. A model may have
any size: external weights are read, and written next to the new file where it is too large. Every function raises
InvalidModelError if the model cannot be read or is inconsistent, and ConfigError if a name matches nothing, or a file
of the model itself would be overwritten.
"""

import logging
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx

from trtops import errors
from trtops.backend.onnx import edit, external, fold, shapes, walk, weights
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.model import Model, check_structure, is_large, read_proto
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.summary import summary
from trtops.logger import ON_STDOUT
from trtops.metadata import Shape, TensorSpec
from trtops.ops.arguments import checked_arguments
from trtops.ops.model.model_files import SaveConfig, Source
from trtops.system.activity import Activity
from trtops.tables import listed

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SurgeonResult:
    """A new model, its file if it was written, and sentences about the changes.

    Weights of a model of 2 GiB or more stay in their files.
    """

    model: onnx.ModelProto = field(repr=False)
    path: str | None
    nodes_before: int
    nodes: int
    changes: tuple[str, ...]

    def text(self) -> str:
        """The changes, for a terminal."""
        wrote = "" if self.path is None else f" Wrote {self.path}"
        return "\n".join([*self.changes, f"{self.nodes_before} nodes before, {self.nodes} now.{wrote}"])


@checked_arguments
def extract(
    model: Source,
    output: str | Path | None = None,
    *,
    inputs: Iterable[TensorSpec] | None = None,
    outputs: Iterable[TensorSpec] | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Extract the part of a model between these tensors; None keeps the model's own.

    Dtypes and shapes that are None are inferred. If the part needs more inputs, an error lists them.

    >>> part = extract("model.onnx", "part.onnx", outputs=[TensorSpec("r0")])
    >>> print(part.text())
    From image to r0.
    9 nodes before, 3 now. Wrote part.onnx
    """
    starts = None if inputs is None else {spec.name: spec for spec in inputs}
    ends = None if outputs is None else {spec.name: spec for spec in outputs}

    def cut(proto: onnx.ModelProto) -> list[str]:
        edit.extract(proto, starts, ends)
        graph = proto.graph
        return [f"From {listed(v.name for v in graph.input)} to {listed(v.name for v in graph.output)}."]

    return operate(model, output, save_as, cut, check="after")


@checked_arguments
def insert(
    model: Source,
    output: str | Path | None,
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    name: str = "",
    domain: str = "",
    attributes: Mapping[str, Any] | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Insert a node between tensors, replacing those between; see :func:`trtops.backend.onnx.edit.insert_node`."""

    def put(proto: onnx.ModelProto) -> list[str]:
        edit.insert_node(proto, op, inputs, outputs, name=name, domain=domain, attributes=attributes)
        return [f"Inserted {op} between {listed(inputs)} and {listed(outputs)}."]

    return operate(model, output, save_as, put)


@checked_arguments
def remove_nodes(
    model: Source, output: str | Path | None, types: Collection[str], *, save_as: SaveConfig | None = None
) -> SurgeonResult:
    """Remove all nodes of some types, ignoring domains, and connect their readers to their inputs.

    For operators that a back end lacks and that do not change values: identities of a framework, debug prints, fake
    quantization. Each must have one output, and one input that is not a weight.
    """
    removed: list[str] = []

    def remove_from(graph: onnx.GraphProto, outer: Mapping[str, bool]) -> None:
        constants = walk.visible(outer, graph, dict.fromkeys(walk.initializer_names(graph), True))
        _, *bodies = walk.graphs(graph)
        inside = set().union(*map(walk.defined, bodies))
        for node in [n for n in graph.node if n.op_type in types]:
            inputs = [name for name in node.input if name and name not in constants]
            outputs = [name for name in node.output if name]
            removed.append(walk.label(node))
            # Which input would stand for the output is not known otherwise.
            if len(inputs) != 1 or len(outputs) != 1:
                raise errors.ConfigError(
                    f"{removed[-1]} has {len(inputs)} inputs and {len(outputs)} outputs; expected one of each, to pass "
                    "one on as the other. Cut around it with `trtops surgeon extract`, or replace it with `trtops "
                    "surgeon insert`."
                )
            source, target = inputs[0], outputs[0]
            if source in inside or any(value.name == target for value in graph.output):
                # An output keeps its name, and a body with its own tensor of the input's name reads the output.
                name = f"{node.name or target}_removed"
                graph.node.append(onnx.helper.make_node("Identity", [source], [target], name=name))
            else:
                walk.rename_uses(graph, {target: source})
            graph.node.remove(node)
        for node in graph.node:
            for body in walk.subgraphs(node):
                remove_from(body, constants)

    def remove(proto: onnx.ModelProto) -> list[str]:
        present_types = set[str]()
        for graph in walk.graphs(proto.graph):
            present_types.update(node.op_type for node in graph.node)
        for kind in types:
            errors.check_known(kind, present_types, "The model has no node of type")
        remove_from(proto.graph, {})
        return [f"Removed {len(removed)} nodes: {listed(removed)}."]

    return operate(model, output, save_as, remove)


@checked_arguments
def sanitize(
    model: Source,
    output: str | Path | None = None,
    *,
    input_shapes: Mapping[str, Shape] | None = None,
    outputs: Sequence[str] | None = None,
    exclude_outputs: Sequence[str] | None = None,
    output_types: Sequence[str] | None = None,
    sort: bool = False,
    cleanup: bool = False,
    fold_constants: bool = False,
    fold_shapes: bool = True,
    infer_shapes: bool = True,
    infer_between_passes: bool = True,
    symbolic_shapes: bool = True,
    max_passes: int | None = None,
    max_folded_bytes: int | None = None,
    upper_bounds: Mapping[str, int] | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Clean a model: other shapes and outputs, order, unused nodes, constants, and bounds on sizes.

    Args:
        model: The model.
        output: The file to write.
        input_shapes: Other shapes of inputs, by name; all other shapes are inferred again.
        outputs: Names or patterns of the new outputs; None keeps the outputs.
        exclude_outputs: Names or patterns of outputs to remove.
        output_types: Types of nodes whose results become the outputs, instead of ``outputs``.
        sort: Whether to sort the nodes in order of execution.
        cleanup: Whether to remove nodes and weights that no output depends on.
        fold_constants: Whether to compute what does not depend on inputs.
        fold_shapes: Whether shapes that can be inferred count as constants.
        infer_shapes: Whether shapes are inferred and written into the model.
        infer_between_passes: Whether they are inferred before each folding pass; otherwise declared shapes are used.
        symbolic_shapes: Whether ONNX Runtime's symbolic inference is used where ONNX's own leaves ranks unknown.
        max_passes: Maximum number of folding passes; None folds until nothing changes.
        max_folded_bytes: Larger tensors are not folded; None folds all.
        upper_bounds: Bounds of sizes computed at run time, by tensor name; ``""`` applies to all others.
        save_as: Where weights go.
    """

    def infer(proto: onnx.ModelProto) -> None:
        try:
            shapes.infer_shapes(proto, symbolic=symbolic_shapes)
        except errors.InvalidModelError as exc:
            log.warning("%s", exc)

    # The order matters: new shapes and outputs decide what is unused or constant, and folding computes sizes that would
    # need a bound otherwise.
    def clean(proto: onnx.ModelProto) -> list[str]:
        changes = []
        if input_shapes:
            edit.override_input_shapes(proto, input_shapes)
            changes.append(f"Changed the shapes of {listed(input_shapes)}.")
        new_outputs = outputs if output_types is None else edit.outputs_of_types(proto.graph, output_types)
        if new_outputs is not None:
            edit.set_outputs(proto, new_outputs)
        if exclude_outputs is not None:
            edit.drop_outputs(proto, exclude_outputs)
        if new_outputs is not None or exclude_outputs is not None:
            changes.append(f"The outputs are now {listed(value.name for value in proto.graph.output)}.")
        if sort and edit.sort_nodes(proto):
            changes.append("Sorted the nodes in order of execution.")
        if cleanup:
            before = _count_nodes(proto)
            walk.remove_unused(proto.graph)
            changes.append(f"Removed {before - _count_nodes(proto)} nodes that no output needs.")
        if infer_shapes and not (fold_constants and infer_between_passes):
            infer(proto)
        if fold_constants:
            folded = fold.fold_constants(
                proto,
                passes=max_passes,
                fold_shapes=fold_shapes,
                infer_shapes=infer_between_passes,
                symbolic=symbolic_shapes,
                size_threshold=max_folded_bytes,
            )
            changes.append(f"Folded {folded} nodes.")
        if upper_bounds:
            infer(proto)
            bounded = edit.set_upper_bounds(proto, upper_bounds)
            bounds = listed(f"{name} by {bound}" for name, bound in bounded.items())
            changes.append(f"Bounded {bounds or 'nothing'}.")
        return changes

    return operate(model, output, save_as, clean)


@checked_arguments
def prune(model: Source, output: str | Path | None = None, *, save_as: SaveConfig | None = None) -> SurgeonResult:
    """Make weights 2:4 sparse, to measure the gain of sparse kernels; see :mod:`trtops.backend.onnx.weights`."""
    return operate(model, output, save_as, lambda proto: [f"Pruned {len(weights.prune(proto))} weights."])


@checked_arguments
def strip_weights(
    model: Source,
    output: str | Path | None = None,
    *,
    exclude: Collection[str] = (),
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Remove the weights from a model, except those excluded; see :func:`trtops.backend.onnx.weights.strip_weights`."""
    return operate(
        model, output, save_as, lambda proto: [f"Removed {len(weights.strip_weights(proto, exclude))} weights."]
    )


@checked_arguments
def reconstruct_weights(
    model: Source,
    output: str | Path | None = None,
    *,
    original: "Source | None" = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Restore the weights of a stripped model from the original model, or with random values if it is None."""
    original_model = None if original is None else _load_with_weights(original)

    def put_back(proto: onnx.ModelProto) -> list[str]:
        names = weights.reconstruct_weights(proto, original_model)
        return [f"Restored {len(names)} {'random ' if original_model is None else ''}weights."]

    # A stripped model is only consistent once its weights are back.
    return operate(model, output, save_as, put_back, check="after")


def operate(
    model: Source,
    output: str | Path | None,
    save_as: SaveConfig | None,
    change: Callable[[onnx.ModelProto], list[str] | tuple[onnx.ModelProto, list[str]]],
    check: Literal["before", "after"] = "before",
) -> SurgeonResult:
    """Change a copy of a model with its weights inside, and write it.

    ``change`` returns sentences about the changes, or another model with them; ``check`` says when the structure of the
    model is checked.
    """
    with Activity(f"changing {model if isinstance(model, (str, Path)) else 'the model'}"):
        if isinstance(model, (str, Path)):
            log.info("Loading model: %s", model, extra=ON_STDOUT)
        proto = _load_with_weights(model)
        save_as = save_as or SaveConfig()
        before = _count_nodes(proto)
        _log_model("Original Model", proto)
        if check == "before":
            check_structure(proto)
        done = change(proto)
        proto, changes = done if isinstance(done, tuple) else (proto, done)
        if check == "after":
            check_structure(proto)
        if output is not None:
            log.info("Saving ONNX model to: %s", output, extra=ON_STDOUT)
            save_model(proto, output, **save_as.to_options())
            _log_model("New Model", proto)
        for sentence in changes:
            log.debug("%s", sentence)
        return SurgeonResult(
            path=None if output is None else str(output),
            nodes_before=before,
            nodes=_count_nodes(proto),
            changes=tuple(changes),
            model=proto,
        )


def _log_model(title: str, proto: onnx.ModelProto) -> None:
    """Log a summary of a model, as Polygraphy does."""
    if log.isEnabledFor(logging.INFO):
        _, *lines = summary(proto).rstrip().splitlines()
        log.info("%s:\n%s\n", title, textwrap.dedent("\n".join(lines)), extra=ON_STDOUT)


def _load_with_weights(model: Source) -> onnx.ModelProto:
    """Return a copy of a model with its weights, which stay in their files if they have 2 GiB or more."""
    if isinstance(model, Model):
        return model.proto(lean=True)
    if isinstance(model, onnx.ModelProto):
        return copy_of(model)
    proto, folder = read_proto(Path(model)), Path(model).absolute().parent
    if is_large(proto):
        external.anchor(proto, folder)
    else:
        external.load_external_data(proto, folder)
    return proto


def _count_nodes(proto: onnx.ModelProto) -> int:
    """Nodes, including those of sub-graphs and functions."""
    return sum(1 for _ in walk.nodes(proto))
