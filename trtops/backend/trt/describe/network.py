"""Describes a TensorRT network before it is built, as data and as text: layers, attributes, summaries of weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtops.backend.trt import library
from trtops.backend.trt.describe.inspector import section, under
from trtops.backend.trt.describe.layers import attributes_of, inputs_of, layer_lines, layers_of, outputs_of
from trtops.backend.trt.library import dtypes
from trtops.metadata import BoundedShape, TensorMetadata, TensorSpec
from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class NetworkLayer(Record):
    """One layer of a network."""

    name: str
    op: str  # its type
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: tuple[tuple[str, str], ...] = ()  # its own attributes, by name, as text
    weights: tuple[tuple[str, str], ...] = ()  # summaries of its weights, by attribute name
    values: tuple[tuple[str, str], ...] = ()  # its weights as numpy prints them, by attribute name

    def lines(self, index: int, show: Sequence[str]) -> list[str]:
        """The layer as lines of text; the title has the layer's kind, such as ``ActivationType.RELU``."""
        attrs = dict(self.attrs)
        title = f"Layer {index:<4} | {self.name} [Op: {attrs.pop('type', f'LayerType.{self.op}')}]"
        lines = layer_lines(title, list(map(str, self.inputs)), list(map(str, self.outputs)))
        shown = sorted({**attrs, **(dict(self.values) if "weights" in show else {})}.items())
        if "attrs" in show and (attrs or self.values):
            lines.append("    ---- Attributes ----")
            for name, value in shown:
                lines += [f"    {line}" for line in f"{self.name}.{name} = {value}".splitlines()]
        if "weights" in show and self.weights:
            lines += ["    ---- Weights ----", *(f"    {self.name}.{name} = {value}" for name, value in self.weights)]
        return [*lines, ""]


@dataclass(frozen=True, kw_only=True)
class NetworkDescription(Record):
    """Description of a network."""

    name: str
    strongly_typed: bool  # whether it takes every precision from its tensors
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layers: tuple[NetworkLayer, ...]  # layers, in order

    def text(self, show: Sequence[str] = ()) -> str:
        """The description as text; ``show`` may contain ``layers``, ``attrs`` and ``weights``."""
        typed = " Strongly Typed" if self.strongly_typed else ""
        lines = [
            f"Name: {self.name} | Explicit Batch{typed} Network",
            "",
            *section(f"{len(self.inputs)} Network Input(s)", [str(TensorMetadata.of(self.inputs))]),
            *section(f"{len(self.outputs)} Network Output(s)", [str(TensorMetadata.of(self.outputs))]),
        ]
        shown: list[str] = []
        for i, described in enumerate(self.layers if show else ()):
            shown += described.lines(i, show)
        lines += section(f"{len(self.layers)} Layer(s)", shown)
        return under("==== TensorRT Network ====", lines)


def describe_network(network: Any) -> NetworkDescription:
    """Describe a network."""
    inputs, outputs = (tuple(map(_tensor_spec, tensors)) for tensors in (inputs_of(network), outputs_of(network)))
    return NetworkDescription(
        name=network.name,
        strongly_typed=library.line().is_strongly_typed(network),
        inputs=inputs,
        outputs=outputs,
        layers=tuple(map(_network_layer, layers_of(network))),
    )


def _tensor_spec(tensor: Any) -> TensorSpec:
    return TensorSpec(tensor.name, dtypes.from_trt(tensor.dtype), BoundedShape(tuple(tensor.shape)))


def _weights_text(a: np.ndarray[Any, Any]) -> str:
    if not a.size:
        return "empty"
    return f"{a.dtype.name} {a.shape}, min={a.min():.6g}, max={a.max():.6g}, mean={a.mean():.6g}"


def _network_layer(layer: Any) -> NetworkLayer:
    kind = layer.type.name
    inputs, outputs = inputs_of(layer), outputs_of(layer)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    attrs: dict[str, str] = {}
    for name, value in sorted(attributes_of(layer).items()):
        if isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            attrs[name] = str(value)
    # ``attributes_of`` has changed the layer's class. Some have a type of their own, such as an activation's.
    if not str(layer.type).startswith("LayerType."):
        attrs["type"] = str(layer.type)
    return NetworkLayer(
        name=layer.name,
        op=kind,
        inputs=tuple(map(_tensor_spec, filter(None, inputs))),
        outputs=tuple(map(_tensor_spec, filter(None, outputs))),
        attrs=tuple(sorted(attrs.items())),
        weights=tuple(zip(arrays, map(_weights_text, arrays.values()))),
        values=tuple(zip(arrays, map(str, arrays.values()))),
    )
