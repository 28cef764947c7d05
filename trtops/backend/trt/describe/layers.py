"""A TensorRT network's layers and tensors."""

from collections.abc import Sequence
from typing import Any

from trtops.backend.trt import library


def layers_of(network: Any) -> list[Any]:
    """A network's layers, in order."""
    return [network.get_layer(index) for index in range(network.num_layers)]


def inputs_of(owner: Any) -> list[Any]:
    """The inputs of a network or a layer; None for a layer's optional input that is missing."""
    return [owner.get_input(index) for index in range(owner.num_inputs)]


def outputs_of(owner: Any) -> list[Any]:
    """The outputs of a network or a layer; None for a layer's output that is missing."""
    return [owner.get_output(index) for index in range(owner.num_outputs)]


def specialize(layer: Any) -> Any:
    """Set a layer's Python class to that of its type, and return it; ``get_layer`` returns a plain ``ILayer``."""
    trt = library.load()
    # The class is found by name, ignoring case: ``MATRIX_MULTIPLY`` is ``IMatrixMultiplyLayer``.
    wanted = f"i{layer.type.name.replace('_', '')}layer".lower()
    own = next((cls for name, cls in vars(trt).items() if name.lower() == wanted), None)
    if own is not None:
        layer.__class__ = own
    return layer


def attribute_names(layer: Any) -> list[str]:
    """Names of a layer's own attributes, beyond those of ``ILayer``, that are valid in its state."""
    trt = library.load()
    specialize(layer)
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
    names = [name for name in dir(layer) if not name.startswith("__") and not hasattr(trt.ILayer, name)]
    return [name for name in names if name not in ignored]


def attributes_of(layer: Any) -> dict[str, Any]:
    """A layer's own attributes that are readable in its state, by name; weights as numpy arrays."""
    trt = library.load()
    found: dict[str, Any] = {}
    for name in attribute_names(layer):
        try:
            value = getattr(layer, name)
            # Some values, such as unset dimensions, only raise an error when they are printed.
            str(value)
        except (RuntimeError, ValueError, TypeError):
            continue
        if value is not None and not callable(value):
            found[name] = value.numpy() if isinstance(value, trt.Weights) else value
    return found


def layer_lines(title: str, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Lines for a layer: inputs, an arrow and outputs; on one line if inputs or outputs are missing."""
    read, made = ",\n     ".join(inputs), ",\n         ".join(outputs)
    if inputs and outputs:
        return [title, *f"    {{{read}}}\n     -> {{{made}}}".splitlines()]
    return [title, *f"    {{{read}}} -> {{{made}}}".splitlines()]


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
    made = ((layer, tensor) for layer in layers_of(network) for tensor in outputs_of(layer))
    return [(tensor.name, layer.type.name) for layer, tensor in made if tensor is not None]


_LOOP_STARTS = frozenset({"TRIP_LIMIT", "ITERATOR", "RECURRENCE", "CONDITION", "CONDITIONAL_INPUT"})
_LOOP_ENDS = frozenset({"LOOP_OUTPUT", "CONDITIONAL_OUTPUT"})


def markable(network: Any) -> list[str]:
    """Names of the tensors that can be outputs: not those in loops and branches, constants or shapes."""
    names = []
    inside = False
    for name, kind in layer_outputs(network):
        if kind in _LOOP_STARTS:
            inside = True
        elif kind in _LOOP_ENDS:
            inside = False
        if not inside and kind not in ("SHAPE", "CONSTANT"):
            names.append(name)
    return names
