"""Engines of more than 2 GiB, which ONNX Runtime's own format does not hold.

ONNX Runtime writes what it optimized as an ONNX model then, and the weights into a file beside it. Both become one file, as an
engine is everywhere else: the weights first, the model behind them, and 16 bytes at the end: the model's length as a
little-endian 64-bit number, and ``TRTOPSXL``. The model names the file of its weights ``weights``; whoever wants to run it
without trtops cuts the file in two.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Any

import onnx
import onnxruntime as ort

from trtops import errors
from trtops.backend.onnx import external, shapes, walk
from trtops.backend.onnx.model import is_large
from trtops.backend.onnxrt.ort_format import Node
from trtops.backend.onnxrt.session import READS_LEAN, lean_source
from trtops.mapped import file_of
from trtops.processes import temporary_prefix
from trtops.record import JSONValue

WEIGHTS = "weights"
"""What an engine's model calls the file of its weights."""

_END = Struct("<Q8s")
_MAGIC = b"TRTOPSXL"

_UNKNOWN_PROVIDER = "unknown"


def is_needed(model: onnx.ModelProto) -> bool:
    """Whether an engine of a model may be too large for ONNX Runtime's format.

    16-bit weights count as FP32, which ONNX Runtime makes of them on a processor.
    """
    return is_large(model, widened=True)


def check_supported(size: int) -> None:
    """Refuse what this ONNX Runtime cannot do.

    Args:
        size: Bytes of the model's weights, for the message.

    Raises:
        EngineBuildError: If it is too old.
    """
    if not READS_LEAN:
        raise errors.EngineBuildError(
            f"The model has {size / 2**30:.1f} GiB; an engine in ONNX Runtime's format holds at most 2 GiB, and larger ones need "
            f"ONNX Runtime 1.21 or later (this is {ort.__version__}). Install it, or build with TensorRT."
        )


def pack(model: Path, weights: Path) -> None:
    """Put a model that ONNX Runtime optimized behind its weights, whose file becomes the engine's.

    Args:
        model: The model; its weights are in a file called :data:`WEIGHTS`.
        weights: That file, in the same folder.

    Raises:
        OSError: If it cannot be written.
    """
    proto = onnx.ModelProto.FromString(model.read_bytes())
    _rename_shadows(proto.graph, frozenset(), {}, itertools.count())
    content = proto.SerializeToString()
    with open(weights, "ab") as file:
        file.write(content)
        file.write(_END.pack(len(content), _MAGIC))
    os.unlink(model)


def _rename_shadows(
    graph: onnx.GraphProto, outer: frozenset[str], renamed: Mapping[str, str], numbers: Iterator[int]
) -> None:
    """Give tensors of bodies names of their own, in place, where they bear that of one outside.

    Those of the Cast nodes that ONNX Runtime puts around 16-bit nodes do (seen in 1.31.1), and it does not load them again.
    """
    made = [*(value.name for value in graph.input), *(name for node in graph.node for name in node.output if name)]
    inner = {name: new for name, new in renamed.items() if name not in made}
    inner |= {name: f"{name}/{next(numbers)}" for name in made if name in outer}
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = inner.get(name, name)
        for body in walk.subgraphs(node):
            _rename_shadows(body, outer.union(made), inner, numbers)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = inner.get(value.name, value.name)


def is_packed(plan: bytes | memoryview) -> bool:
    """Whether an engine's bytes are a model behind its weights."""
    return len(plan) > _END.size and bytes(plan[-len(_MAGIC) :]) == _MAGIC


def model_of(plan: bytes | memoryview) -> onnx.ModelProto:
    """The model in an engine, without its weights.

    Raises:
        EngineLoadError: If the bytes are damaged.
    """
    length, _ = _END.unpack(plan[-_END.size :])
    start = len(plan) - _END.size - length
    try:
        if start < 0:
            raise ValueError("it is cut short")
        model: onnx.ModelProto = onnx.ModelProto.FromString(bytes(plan[start : len(plan) - _END.size]))
        for tensor in walk.tensors(model):
            if external.is_external(tensor):
                _check_place(tensor, start)
    except Exception as exc:  # protobuf's DecodeError is no ValueError in every release
        raise errors.EngineLoadError(
            f"The engine's {len(plan)} bytes are damaged: {exc}. Fetch or build the engine again."
        ) from exc
    return model


def _check_place(tensor: onnx.TensorProto, end: int) -> None:
    """Refuse weights that are not in the engine."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = int(entries.get("offset", "0")), int(entries.get("length", "0"))
    expected = external.expected_bytes(tensor)
    if entries.get("location") != WEIGHTS or offset < 0 or expected != length or offset + length > end:
        raise ValueError(f"weight {tensor.name!r} is not in it")


def open_session(plan: bytes | memoryview, options: ort.SessionOptions, providers: list[Any]) -> ort.InferenceSession:
    """Create a session of an engine, which is read weight by weight, from its file or a temporary one.

    Raises:
        EngineLoadError: If the bytes are damaged.
        Exception: Whatever ONNX Runtime raises.
    """
    model = model_of(plan)
    with contextlib.ExitStack() as stack:
        file = file_of(plan)
        if file is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary_prefix("engine")))
            file = Path(folder, WEIGHTS)
            file.write_bytes(plan)
        for tensor in walk.tensors(model):
            if external.is_external(tensor):
                entries = {entry.key: entry.value for entry in tensor.external_data}
                offset, length = int(entries["offset"]), int(entries["length"])
                place = external.ExternalData(tensor=tensor.name, path=file.resolve(), offset=offset, length=length)
                external.put_anchor(tensor, place)
        source = stack.enter_context(lean_source(model, options))
        return ort.InferenceSession(source, options, providers=providers)


def read(plan: bytes | memoryview, providers: tuple[str, ...]) -> tuple[list[Node], dict[str, str]]:
    """The nodes of an engine, as :func:`trtops.backend.onnxrt.ort_format.read` reads them from ONNX Runtime's own format.

    ONNX does not say which execution provider a node was given to: only where there is one, that is known.

    Args:
        plan: The engine's bytes.
        providers: Full names of the execution providers that it was built for.

    Returns:
        The nodes in the order of the file, those of bodies behind theirs, and element types by tensor name.
    """
    model = model_of(plan)
    provider = providers[0] if len(providers) == 1 else _UNKNOWN_PROVIDER
    with contextlib.suppress(
        errors.TrtopsError
    ):  # what ONNX Runtime made up is strange to ONNX; what is declared counts
        shapes.infer_shapes(model)
    opsets = walk.opsets(model)
    nodes: list[Node] = []
    types: dict[str, str] = {}
    _read_graph(model.graph, "", provider, opsets, nodes, types)
    return nodes, types


def _read_graph(
    graph: onnx.GraphProto, scope: str, provider: str, opsets: dict[str, int], nodes: list[Node], types: dict[str, str]
) -> None:
    types.update(
        (name, onnx.TensorProto.DataType.Name(kind).lower()) for name, kind in shapes.element_types(graph).items()
    )
    for proto in graph.node:
        node = Node(
            name=proto.name,
            op=proto.op_type,
            domain=walk.domain(proto),
            since_version=_since_version(proto, opsets),
            provider=provider,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes=tuple(sorted(_plain_attributes(proto), key=lambda pair: pair[0])),
            scope=scope,
        )
        nodes.append(node)
        source = next((types[name] for name in node.inputs if name in types), None)
        for name in node.outputs:
            if name and source is not None:
                types.setdefault(name, source)  # of ONNX Runtime's own ops, which keep their input's type
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = f"{scope}{node.outputs[0]}/{attribute.name}/"
                _read_graph(attribute.g, inner, provider, opsets, nodes, types)


def _since_version(node: onnx.NodeProto, opsets: dict[str, int]) -> int:
    domain = walk.domain(node)
    version = opsets.get(domain, 1)
    if onnx.defs.has(node.op_type, version, domain):
        return int(onnx.defs.get_schema(node.op_type, version, domain).since_version)
    return 1


def _plain_attributes(node: onnx.NodeProto) -> list[tuple[str, JSONValue]]:
    """Attributes that are numbers, texts or lists of them."""
    found: list[tuple[str, JSONValue]] = []
    kinds = onnx.AttributeProto
    for attribute in node.attribute:
        if attribute.type == kinds.FLOAT:
            found.append((attribute.name, attribute.f))
        elif attribute.type == kinds.INT:
            found.append((attribute.name, attribute.i))
        elif attribute.type == kinds.STRING:
            found.append((attribute.name, attribute.s.decode(errors="replace")))
        elif attribute.type == kinds.FLOATS:
            found.append((attribute.name, list(attribute.floats)))
        elif attribute.type == kinds.INTS:
            found.append((attribute.name, list(attribute.ints)))
        elif attribute.type == kinds.STRINGS:
            found.append((attribute.name, [text.decode(errors="replace") for text in attribute.strings]))
    return found
