"""A TensorRT network's layers and tensors."""

import functools
from collections.abc import Sequence
from typing import Any

from trtops.backend.trt import library


def layers_of(network: Any) -> list[Any]:
    """A network's layers, in order."""
    return [network.get_layer(index) for index in range(network.num_layers)]


def inputs_of(owner: Any) -> list[Any]:
    """The inputs of a network or a layer; None for a layer's missing optional input."""
    return [owner.get_input(index) for index in range(owner.num_inputs)]


def outputs_of(owner: Any) -> list[Any]:
    """The outputs of a network or a layer; None for a layer's missing output."""
    return [owner.get_output(index) for index in range(owner.num_outputs)]


@functools.cache
def layer_classes(trt: Any) -> dict[Any, type]:
    """TensorRT's class of each layer type in this release: ``{trt.LayerType.SCALE: IScaleLayer}``."""
    # By name: ``MATRIX_MULTIPLY`` is ``IMatrixMultiplyLayer``, ``CONDITIONAL_INPUT`` is ``IIfConditionalInputLayer``.
    by_name = {name.lower().replace("iif", "i"): kind for name, kind in vars(trt).items() if isinstance(kind, type)}
    classes: dict[Any, type] = {}
    for name, member in trt.LayerType.__members__.items():
        if (kind := by_name.get(f"i{name.replace('_', '')}layer".lower())) is not None:
            classes[member] = kind
    return classes


def attributes_of(layer: Any) -> dict[str, Any]:
    """A layer's own attributes beyond those of ``ILayer``, if readable in its state; weights as numpy arrays.

    The layer gets the Python class of its type: ``get_layer`` returns a plain ``ILayer``.
    """
    trt = library.load()
    layer.__class__ = layer_classes(trt).get(layer.type, layer.__class__)
    ignored: tuple[str, ...] = ()
    if isinstance(layer, (trt.IPoolingLayer, trt.IConvolutionLayer, trt.IDeconvolutionLayer)):
        # Volumes have these attributes with ``_nd``; the two-dimensional ones raise errors.
        if len(layer.get_input(0).shape) > 4:
            ignored = ("padding", "stride", "window_size")
    # Values that come from a second input make the attribute invalid.
    elif isinstance(layer, trt.IResizeLayer) and layer.num_inputs > 1:
        ignored = ("scales",)
    elif isinstance(layer, trt.ISliceLayer) and layer.num_inputs > 1:
        ignored = ("shape", "start", "stride")
    attributes: dict[str, Any] = {}
    for name in dir(layer):
        if name.startswith("__") or hasattr(trt.ILayer, name) or name in ignored:
            continue
        try:
            value = getattr(layer, name)
            # Some values, such as unset dimensions, only raise an error when they are printed.
            str(value)
        except (RuntimeError, ValueError, TypeError):
            continue
        if value is not None and not callable(value):
            attributes[name] = value.numpy() if isinstance(value, trt.Weights) else value
    return attributes


def layer_lines(title: str, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Lines for a layer: inputs, an arrow and outputs; on one line if inputs or outputs are missing."""
    inputs_text, outputs_text = ",\n     ".join(inputs), ",\n         ".join(outputs)
    arrow = "\n     -> " if inputs and outputs else " -> "
    return [title, *f"    {{{inputs_text}}}{arrow}{{{outputs_text}}}".splitlines()]


def io_of(network: Any) -> dict[str, Any]:
    """A network's inputs and outputs, by name."""
    return {tensor.name: tensor for tensor in (*inputs_of(network), *outputs_of(network))}


def tensors_of(network: Any) -> dict[str, Any]:
    """All tensors of a network, by name."""
    tensors = io_of(network)
    for layer in layers_of(network):
        for tensor in (*inputs_of(layer), *outputs_of(layer)):
            if tensor is not None:
                tensors.setdefault(tensor.name, tensor)
    return tensors


def layer_outputs(network: Any) -> list[tuple[str, str]]:
    """Names of all outputs of layers, with the type of the layer."""
    outputs = []
    for layer in layers_of(network):
        outputs += [(tensor.name, layer.type.name) for tensor in outputs_of(layer) if tensor is not None]
    return outputs


_LOOP_STARTS = frozenset({"TRIP_LIMIT", "ITERATOR", "RECURRENCE", "CONDITION", "CONDITIONAL_INPUT"})
_LOOP_ENDS = frozenset({"LOOP_OUTPUT", "CONDITIONAL_OUTPUT"})


def markable(network: Any) -> list[str]:
    """Names of the tensors usable as outputs: not those in loops and branches, constants or shapes."""
    names = []
    inside = False
    for name, kind in layer_outputs(network):
        if kind in _LOOP_STARTS | _LOOP_ENDS:
            inside = kind in _LOOP_STARTS
        if not inside and kind not in ("SHAPE", "CONSTANT"):
            names.append(name)
    return names
