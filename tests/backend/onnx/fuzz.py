"""Mutations of valid models for the ONNX tools. Runs in a child process, which a mutation may crash."""

import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import helper, numpy_helper

from tests import models
from trtops import errors, ops
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.emulation import emulate_low_precision
from trtops.backend.onnx.loader import infer_shapes, onnx_from_path
from trtops.backend.onnx.model import Model, read_proto
from trtops.backend.onnx.precision import convert_to_fp16
from trtops.backend.onnx.summary import describe, summary
from trtops.metadata import TensorSpec
from trtops.ops.model.capability import capability
from trtops.ops.model.lint import lint
from trtops.ops.search.reduce import ReduceConfig, reduce

NAMES = ("", "x", "y", "nowhere", "w", "t", "a\0b", "../../etc/passwd", "é" * 40, "a/b:0")
OPS = ["Relu", "Add", "Reshape", "If", "Loop", "Scan", "Concat", "Split", "Frob", "Constant", "Cast", "Gather", "Conv"]
REDUCE = ReduceConfig(inputs="declared", max_checks=6)
NUMBERS = (0, 1, -1, 2, 7, -7, 2**31, -(2**31), 2**40, 2**62, -(2**63), 2**63 - 1)


def sparse() -> onnx.ModelProto:
    """A model with a sparse weight."""
    proto = models.model("(float[1,4] x) => (float[1,4] y) { y = Add(x, s) }")
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "s")
    indices = numpy_helper.from_array(np.array([0, 3]), "s_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return proto


def with_function() -> onnx.ModelProto:
    """A model that calls a function of its own."""
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { a = own.twice(x) y = Relu(a) }
    <domain: "own", opset_import: ["" : 17]> twice (v) => (r) { r = Add(v, v) }"""
    return onnx.parser.parse_model(text)


@lru_cache
def bases() -> tuple[bytes, ...]:
    """The models that are mutated."""
    protos = [make().proto for make in (*models.ALL, models.no_kernel)] + [sparse(), with_function()]
    return tuple(proto.SerializeToString() for proto in protos)


def messages(message: Message) -> list[Message]:
    """A message and all messages inside it, at any depth."""
    all_messages = [message]
    for part in all_messages:
        for field, value in part.ListFields():
            if field.message_type is not None:
                all_messages += [value] if isinstance(value, Message) else value
    return all_messages


def scalar(random: Random, value: object, names: list[str]) -> object:
    """Another value of the same kind: a hostile number, a name of the model, or a part of some bytes."""
    if isinstance(value, bytes):
        return value[: random.randrange(len(value) + 1)]
    if isinstance(value, str):
        return random.choice([*names, *NAMES, *OPS])
    return random.choice((*NUMBERS, random.randrange(30)))


def change(random: Random, message: Message, names: list[str]) -> None:
    """Change, repeat, shuffle, or remove one field of a message, or set one that it lacks."""
    present = [field for field, _ in message.ListFields()]
    field = random.choice(present if present and random.random() < 0.8 else message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    repeated = not isinstance(value, (int, float, str, bytes, Message))
    if field in present and random.random() < 0.2:
        message.ClearField(field.name)
    elif not repeated:
        if isinstance(value, Message):
            value.SetInParent()
        else:
            setattr(message, field.name, scalar(random, value, names))
    elif random.random() < 0.3 and len(value):
        del value[random.randrange(len(value))]
    elif field.message_type is None:
        kind = {field.CPPTYPE_STRING: ""}.get(field.cpp_type, 0)
        replacement = scalar(random, b"" if field.type == field.TYPE_BYTES else kind, names)
        if len(value) and random.random() < 0.7:
            value[random.randrange(len(value))] = replacement
        else:
            value.append(replacement)
    elif len(value) and random.random() < 0.5:
        items = [type(item).FromString(item.SerializeToString()) for item in value]
        random.shuffle(items)
        message.ClearField(field.name)
        getattr(message, field.name).extend(items)
    else:
        value.append(random.choice(value)) if len(value) else value.add()


def mutated(seed: int) -> bytes:
    """A model file made from a valid one by up to four changes; the same for the same seed."""
    random = Random(seed)
    data = random.choice(bases())
    if random.random() < 0.06:
        broken = bytearray(data)
        for _ in range(random.randrange(1, 5)):
            broken[random.randrange(len(broken))] = random.randrange(256)
        return bytes(broken[: random.choice((len(broken), random.randrange(len(broken))))])
    proto = onnx.ModelProto.FromString(data)
    names = [name for node in proto.graph.node for name in (*node.output, *node.input)] or [""]
    while proto.SerializeToString() == data or random.random() < 0.6:
        # A kind of message first: otherwise nearly all changes would concern the dimensions of weights.
        kinds: dict[str, list[Message]] = {}
        for message in messages(proto):
            kinds.setdefault(type(message).__name__, []).append(message)
        with contextlib.suppress(ValueError, TypeError, OverflowError):  # the field's type cannot hold the value
            change(random, random.choice(random.choice(list(kinds.values()))), names)
    return proto.SerializeToString()


def _extracted(path: Path, random: Random) -> None:
    proto = onnx_from_path(path, ignore_external_data=True)
    names = [name for node in proto.graph.node for name in node.output] or ["y"]
    ops.extract(path, inputs=[TensorSpec(random.choice(names))], outputs=[TensorSpec(random.choice(names))])


def _shown(path: Path) -> None:
    proto = onnx_from_path(path, ignore_external_data=True)
    summary(proto, ("layers", "attrs", "weights"))
    describe(infer_shapes(proto))


def _linted(path: Path) -> None:
    """Lint a model with its weights inside, and apart; the verdicts must be one."""
    whole = lint(path)
    with patch.object(linting, "LARGE", 0):
        assert lint(path) == whole, "another verdict with weights apart"


def _inserted(path: Path) -> None:
    tensors = [name for node in read_proto(path).graph.node for name in node.output if name]
    ops.insert(path, path.parent / "out" / "inserted.onnx", "Neg", tensors[:1], tensors[:1])


def _stripped(path: Path) -> None:
    structure = path.parent / "out" / "structure.onnx"
    ops.strip_weights(path, structure)
    ops.reconstruct_weights(structure, path.parent / "out" / "random.onnx")


def try_tools(seed: int) -> list[str]:
    """Give one mutation to every tool; what went wrong, in words."""
    wrong = []
    tools: dict[str, Callable[[Path], object]] = {
        "load": Model.load,
        "lint": _linted,
        "sanitize": lambda path: ops.sanitize(
            path,
            path.parent / "out" / "clean.onnx",
            fold_constants=True,
            sort=True,
            cleanup=True,
            upper_bounds={"": 100},
        ),
        "extract": lambda path: _extracted(path, Random(seed)),
        "insert": _inserted,
        "prune": lambda path: ops.prune(path, path.parent / "out" / "pruned.onnx"),
        "strip": _stripped,
        "fp16": lambda path: emulate_low_precision(convert_to_fp16(read_proto(path))),
        "reduce": lambda path: reduce(path, lambda part: len(part.proto.graph.node) < 2, REDUCE),
        "capability": lambda path: capability(path, "onnxruntime"),
        "summary": _shown,
    }
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.onnx")
        path.write_bytes(mutated(seed))
        before = hashlib.sha256(path.read_bytes()).digest()
        for label, tool in tools.items():
            try:
                tool(path)
            except errors.TrtopsError as exc:
                if not str(exc):
                    wrong.append(f"seed {seed}: {label} raised {type(exc).__name__} without a message")
            except Exception as exc:
                wrong.append(f"seed {seed}: {label} raised {type(exc).__name__}: {str(exc)[:300]}")
        if hashlib.sha256(path.read_bytes()).digest() != before:
            wrong.append(f"seed {seed}: the input file was changed")
    return wrong


def try_batch(seeds: range) -> list[str]:
    """Give a batch of mutations to every tool."""
    logging.disable(logging.WARNING)
    return [line for seed in seeds for line in try_tools(seed)]
