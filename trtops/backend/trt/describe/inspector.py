"""Describes an engine as data and as text: layers, tactics, precisions, formats, weights, profiles.

Layers come from TensorRT's engine inspector. Of a layer that cannot be read, only the name is known.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.describe.layers import layer_lines
from trtops.backend.trt.library import dtypes
from trtops.backend.trt.library.log import nodes_named_in
from trtops.metadata import TensorMetadata, TensorSpec
from trtops.record import Record
from trtops.spec import Layer, ShapeRange

# ONNX Runtime's layers that only convert, by name or ``~`` and type.
_CONVERSIONS = re.compile(r"~(Transpose|.*(Quantize|Dequantize)Linear|.*Reorder(In|Out)put)(#\d+)?$")


@dataclass(frozen=True, kw_only=True)
class TensorDescription(Record):
    """One tensor of an engine's layer."""

    name: str
    dtype: str = ""  # its data type, such as ``fp16``; empty if unknown
    format: str = ""  # its memory format, in TensorRT's words
    shape: tuple[int, ...] = ()  # its dimensions; -1 where dynamic

    def __str__(self) -> str:
        parts = [f"dtype={_LONG_NAMES.get(self.dtype, self.dtype)}"] if self.dtype else []
        parts.append(f"shape={self.shape}")
        parts += [f"Format: {self.format}"] if self.format and "N/A" not in self.format else []
        return f"{self.name} [{', '.join(parts)}]"


@dataclass(frozen=True, kw_only=True)
class LayerDescription(Record):
    """One layer of an engine."""

    name: str
    op: str = ""  # its type, such as ``CaskConvolution``
    tactic: str = ""  # the kernel's name
    tactic_value: str = ""  # the kernel's number, as hexadecimal text
    precision: str = ""  # its compute precision, inferred from its inputs and weights; empty if unknown
    inputs: tuple[TensorDescription, ...] = ()
    outputs: tuple[TensorDescription, ...] = ()
    weights: tuple[tuple[str, int], ...] = ()  # data types and counts of its weights
    onnx_nodes: tuple[str, ...] = ()  # names of its ONNX nodes
    origin: str = ""  # why the builder made it, such as ``REFORMAT``; empty if unknown

    @classmethod
    def of(cls, layer: Layer) -> "LayerDescription":
        """The description of a layer as recorded; ONNX Runtime's conversions have the origin ``REFORMAT``."""
        # A record's tactic is the kernel's name and its number: "name #0x12ab".
        tactic, _, value = layer.tactic.partition("#")
        inputs, outputs = (tuple(TensorDescription(name=n) for n in names) for names in (layer.inputs, layer.outputs))
        return cls(
            name=layer.name,
            op=layer.op,
            tactic=tactic.strip(),
            tactic_value=value,
            precision=layer.precision,
            inputs=inputs,
            outputs=outputs,
            onnx_nodes=layer.onnx_nodes,
            origin="REFORMAT" if any(map(_CONVERSIONS.search, (layer.name, f"~{layer.op}"))) else "",
        )

    def to_layer(self) -> Layer:
        """The layer in the form common to all back ends; its tactic ends with the kernel's number."""
        return Layer(
            name=self.name,
            op=self.op,
            tactic=f"{self.tactic} #{self.tactic_value}".lstrip() if self.tactic_value else self.tactic,
            precision=self.precision,
            inputs=tuple(tensor.name for tensor in self.inputs),
            outputs=tuple(tensor.name for tensor in self.outputs),
            onnx_nodes=self.onnx_nodes,
        )

    def lines(self, index: int, show: Sequence[str]) -> Iterator[str]:
        """The layer as lines of text."""
        title = f"Layer {index:<4} | {self.name} [Op: {self.op.partition('/')[0] or 'Unknown'}]"
        yield from layer_lines(title, list(map(str, self.inputs)), list(map(str, self.outputs)))
        if "attrs" in show:
            yield from (
                "    ---- Attributes ----",
                f"    Origin = {self.origin or 'Unknown'}",
                f"    Tactic = {self.tactic_value or self.tactic or 'Unknown'}",
                f"    Kernel = {self.tactic or 'Unknown'}",
                f"    Precision = {self.precision or 'Unknown'}",
            )
        if "weights" in show and self.weights:
            yield "    Weights: " + ", ".join(f"{count} x {kind}" for kind, count in self.weights)


@dataclass(frozen=True, kw_only=True)
class EngineDescription(Record):
    """Description of an engine."""

    name: str  # the network's name
    inputs: tuple[TensorSpec, ...]  # inputs; -1 where a dimension is dynamic
    outputs: tuple[TensorSpec, ...]
    # Shape ranges of the inputs, per optimization profile; values for shape tensors.
    profiles: tuple[tuple[ShapeRange, ...], ...]
    device_memory_bytes: int  # device memory of one execution context
    weights_bytes: int  # bytes of the weights that the layers list
    refittable: bool  # whether weights can be replaced
    layers: tuple[LayerDescription, ...]  # layers in order of execution; before TensorRT 10, for each profile
    listed_profiles: int = 1  # number of profiles that the layers are listed for

    def text(self, show: Sequence[str] = ()) -> str:
        """The description as text; ``show`` may contain ``layers``, ``attrs`` and ``weights``."""
        lines = [
            f"Name: {self.name} | {'Refittable ' if self.refittable else ''}Explicit Batch Engine",
            "",
            *section(f"{len(self.inputs)} Engine Input(s)", [str(TensorMetadata.of(self.inputs))]),
            *section(f"{len(self.outputs)} Engine Output(s)", [str(TensorMetadata.of(self.outputs))]),
            *section(
                "Memory", [f"Device Memory: {self.device_memory_bytes} bytes", f"Weights: {self.weights_bytes} bytes"]
            ),
            f"---- {len(self.profiles)} Profile(s) ({len(self.inputs) + len(self.outputs)} Tensor(s) Each) ----",
            *self._profile_lines(),
        ]
        per_profile = " Per Profile" if self.listed_profiles > 1 else ""
        count = len(self.layers) // self.listed_profiles
        lines += section(f"{count} Layer(s){per_profile}", self._layer_lines(count, show) if show else [])
        return under("==== TensorRT Engine ====", lines)

    def _profile_lines(self) -> Iterator[str]:
        width = max((len(spec.name) for spec in (*self.inputs, *self.outputs)), default=0) + 8
        for index, ranges in enumerate(self.profiles):
            yield f"- Profile: {index}"
            for i, r in enumerate(ranges):
                shapes = f"Shapes: min={r.min}, opt={r.opt}, max={r.max}"
                yield f"    Tensor: {r.name:<{width}}  (Input), Index: {i} | {shapes}"
            for i, spec in enumerate(self.outputs, len(self.inputs)):
                yield f"    Tensor: {spec.name:<{width}} (Output), Index: {i} | Shape: {tuple(spec.shape or ())}"
            yield ""

    def _layer_lines(self, count: int, show: Sequence[str]) -> Iterator[str]:
        for index, described in enumerate(self.layers):
            if self.listed_profiles > 1 and index % count == 0:
                yield f"- Profile: {index // count}"
            indent = "    " if self.listed_profiles > 1 else ""
            yield from (f"{indent}{line}" for line in described.lines(index % count, show))
            yield ""


def under(heading: str, lines: Iterable[str]) -> str:
    """A heading with indented lines below it."""
    # A tensor's text may have several lines.
    below = itertools.chain.from_iterable(text.splitlines() or [""] for text in lines)
    return "\n".join([heading, *(f"    {line}" if line else "" for line in below)]).rstrip() + "\n"


def section(title: str, lines: Iterable[str]) -> list[str]:
    """A section with a title, as lines."""
    return [f"---- {title} ----", *lines, ""]


def describe_engine(engine: Any) -> EngineDescription:
    """Describe an engine; its layers have only names unless it was built with detailed profiling verbosity."""
    line = library.line()
    inputs, outputs = engine_io(engine)
    layers = read_layers(engine)
    weights = itertools.chain.from_iterable(engine_layer.weights for engine_layer in layers)
    return EngineDescription(
        name=engine.name,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs.values()),
        profiles=profiles_of(engine, inputs),
        device_memory_bytes=line.device_memory_bytes(engine),
        weights_bytes=sum(WIDTHS.get(kind, 0) * count for kind, count in weights),
        refittable=bool(engine.refittable),
        layers=layers,
        listed_profiles=line.profiles_listed(engine),
    )


def profiles_of(engine: Any, inputs: Iterable[str]) -> tuple[tuple[ShapeRange, ...], ...]:
    """The range of each input in each optimization profile of an engine."""
    names = tuple(inputs)
    profiles = []
    for index in range(engine.num_optimization_profiles):
        profiles.append(tuple(_shape_range(engine, name, index) for name in names))
    return tuple(profiles)


def engine_io(engine: Any) -> tuple[TensorMetadata, TensorMetadata]:
    """An engine's inputs and outputs; dynamic inputs have the sizes of the first profile as bounds."""
    trt = library.load()
    inputs, outputs = TensorMetadata(), TensorMetadata()
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype = dtypes.from_trt(engine.get_tensor_dtype(name))
        shape = tuple(engine.get_tensor_shape(name))
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            bounds = _shape_range(engine, name, 0)
            # Values of a shape tensor are not bounds of its shape.
            fits = len(bounds.min) == len(shape)
            inputs.add(name, dtype, shape, bounds.min if fits else None, bounds.max if fits else None)
        else:
            outputs.add(name, dtype, shape)
    return inputs, outputs


def _shape_range(engine: Any, name: str, profile_index: int) -> ShapeRange:
    """The shapes of an input in a profile, or a shape tensor's values."""
    low, opt, high = library.line().profile_range(engine, name, profile_index)
    return ShapeRange(name=name, min=low, opt=opt, max=high)


def read_layers(engine: Any) -> tuple[LayerDescription, ...]:
    """An engine's layers, from the engine inspector."""
    trt = library.load()
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    # One damaged layer makes the whole text unreadable. Then the layers are read one by one.
    try:
        return parse_layers(text)
    except errors.FormatError:
        pass
    layers = []
    for index in range(engine.num_layers):
        text = inspector.get_layer_information(index, trt.LayerInformationFormat.JSON)
        try:
            layers.append(_read_layer(json.loads(text, strict=False)))
        except ValueError:
            match = re.search(r'"Name"\s*:\s*"((?:[^"\\]|\\.)*)', text) or re.search(r'^"?([^"\n]+)', text)
            layers.append(LayerDescription(name=match[1] if match else f"layer {index}"))
    return tuple(layers)


def parse_layers(text: str) -> tuple[LayerDescription, ...]:
    """Layers from the inspector's JSON about an engine. Raises FormatError if it cannot be read."""
    # Not strict, since strings contain raw control characters.
    try:
        content = json.loads(text, strict=False)
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"The engine inspector's answer cannot be read: {exc}.") from None
    layers = content.get("Layers", []) if isinstance(content, dict) else content
    return tuple(map(_read_layer, layers))


def _read_layer(value: Any) -> LayerDescription:
    if not isinstance(value, dict):
        return LayerDescription(name=str(value))
    inputs = tuple(map(_read_tensor, value.get("Inputs") or ()))
    outputs = tuple(map(_read_tensor, value.get("Outputs") or ()))
    kind, parameter = str(value.get("LayerType", "")), str(value.get("ParameterType", ""))
    return LayerDescription(
        name=str(value.get("Name", "")),
        op=kind if not parameter or parameter.lower() in kind.lower() else f"{kind}/{parameter}",
        tactic=str(value.get("TacticName", "")).strip(),
        tactic_value=str(value.get("TacticValue", "")),
        precision=_layer_precision(inputs, outputs, value.get("Weights")),
        inputs=inputs,
        outputs=outputs,
        weights=tuple(_weight_counts(value)),
        origin=str(value.get("Origin", "")),
        onnx_nodes=nodes_named_in(str(value.get("Metadata", ""))),
    )


def _read_tensor(value: Any) -> TensorDescription:
    if not isinstance(value, dict):
        return TensorDescription(name=str(value))
    text = str(value.get("Format/Datatype") or value.get("Format") or "")
    return TensorDescription(
        name=str(value.get("Name", "")),
        dtype=_type_named_in(str(value.get("Datatype") or text)),
        format=text,
        shape=tuple(map(int, value.get("Dimensions") or ())),
    )


_DTYPE_PATTERNS = (
    ("fp8", r"\b(FP8|E4M3)\b"),
    ("bf16", r"\b(BF16|BFloat16)\b"),
    ("fp16", r"\b(FP16|Half|Float16)\b"),
    ("fp4", r"\bFP4\b"),
    ("int4", r"\bINT4\b"),
    ("int8", r"\b(INT8|Int8)\b"),
    ("uint8", r"\bUINT8\b"),
    ("int64", r"\bINT64\b"),
    ("int32", r"\bINT32\b"),
    ("bool", r"\bBOOL\b"),
    ("fp32", r"\b(FP32|Float|Float32)\b"),
)
WIDTHS = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}
_LONG_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8e4m3fn", "fp4": "float4"}
_COMPUTING = ("fp8", "fp4", "int4", "int8", "fp16", "bf16", "fp32")


def _type_named_in(text: str) -> str:
    """The data type in a text such as ``Row major linear FP16 format``; empty without one."""
    return next((name for name, pattern in _DTYPE_PATTERNS if re.search(pattern, text, re.IGNORECASE)), "")


def _layer_precision(inputs: Sequence[TensorDescription], outputs: Sequence[TensorDescription], weights: Any) -> str:
    """A layer's compute precision, from the data types of its inputs, outputs and weights; empty if unknown."""
    # The narrower of the first input and the weights: a network's first layer may read FP32 and round it.
    declared = next((t.dtype for t in (*inputs, *outputs) if t.dtype in _COMPUTING), "")
    stored = _type_named_in(str(weights.get("Type", ""))) if isinstance(weights, dict) else ""
    if stored in ("int4", "fp4") and declared != stored:
        stored = ""  # weight-only quantization: the kernel widens the weights and computes in the input's type
    return min((kind for kind in (declared, stored) if kind in _COMPUTING), key=_COMPUTING.index, default="")


def _weight_counts(value: dict[str, Any]) -> Iterable[tuple[str, int]]:
    for key in ("Weights", "Bias", "Scale", "Shift"):
        part = value.get(key)
        if isinstance(part, dict) and int(part.get("Count", 0)) > 0:
            yield _type_named_in(str(part.get("Type", ""))), int(part["Count"])
