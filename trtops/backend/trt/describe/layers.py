"""A TensorRT network's layers and tensors, listed and found by name."""

from __future__ import annotations

from typing import Any

from trtops.backend.trt import library


def layers_of(network: Any) -> list[Any]:
    """A network's layers, in order."""
    return [network.get_layer(index) for index in range(network.num_layers)]


def specialize(layer: Any) -> Any:
    """Set a layer's Python class to that of its type (``IConvolutionLayer``), which ``get_layer`` does not; returns it.

    The class of a layer type is found by name, ignoring case: ``MATRIX_MULTIPLY`` is ``IMatrixMultiplyLayer``.
    """
    trt = library.load()
    wanted = f"i{layer.type.name.replace('_', '')}layer".lower()
    own = next((cls for name, cls in vars(trt).items() if name.lower() == wanted), None)
    if own is not None:
        layer.__class__ = own
    return layer


def io_of(network: Any) -> dict[str, Any]:
    """A network's inputs and outputs, by name."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return {tensor.name: tensor for tensor in (*inputs, *outputs)}


def tensors_of(network: Any) -> dict[str, Any]:
    """All tensors of a network, by name."""
    tensors = io_of(network)
    for layer in layers_of(network):
        for index in range(layer.num_inputs):
            tensor = layer.get_input(index)
            if tensor is not None:
                tensors.setdefault(tensor.name, tensor)
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            if tensor is not None:
                tensors.setdefault(tensor.name, tensor)
    return tensors


def layer_outputs(network: Any) -> list[tuple[str, str]]:
    """Names of all tensors that layers output, with the type of the layer."""
    made = []
    for layer in layers_of(network):
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            if tensor is not None:
                made.append((tensor.name, layer.type.name))
    return made


_LOOP_STARTS = frozenset({"TRIP_LIMIT", "ITERATOR", "RECURRENCE", "CONDITION", "CONDITIONAL_INPUT"})
_LOOP_ENDS = frozenset({"LOOP_OUTPUT", "CONDITIONAL_OUTPUT"})


def markable(network: Any) -> list[str]:
    """Names of the tensors that may be outputs: not those inside loops and branches, nor constants and shapes."""
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
