"""Mutations of valid models for the ONNX tools. Runs in a child process, which a mutation may crash."""

from __future__ import annotations

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
from onnx import TensorProto, helper, numpy_helper

from tests import models
from trtops import errors, ops
from trtops.backend.onnx import load_without_weights
from trtops.backend.onnx.emulate import emulate_low_precision
from trtops.backend.onnx.loader import infer_shapes, onnx_from_path
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.parsing import read_proto
from trtops.backend.onnx.precision import convert_to_fp16
from trtops.backend.onnx.summary import describe, summary
from trtops.metadata import TensorSpec
from trtops.ops.model.capability import capability
from trtops.ops.model.lint import lint
from trtops.ops.search.reduce import ReduceConfig, reduce

NAMES = ("", "x", "y", "nowhere", "w", "t", "a\0b", "../../etc/passwd", "é" * 40, "a/b:0")
OPS = ["Relu", "Add", "Reshape", "If", "Loop", "Scan", "Concat", "Split", "Frob", "Constant", "Cast", "Gather", "Conv"]
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
    made = [make().proto for make in (*models.ALL, models.no_kernel)] + [sparse(), with_function()]
    return tuple(proto.SerializeToString() for proto in made)


def _graphs(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [proto.graph]
    for graph in found:
        found += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return found


def _some_name(random: Random, graph: onnx.GraphProto) -> str:
    made = [name for node in graph.node for name in (*node.output, *node.input)]
    return random.choice([*made, *NAMES])


def _node(random: Random, graph: onnx.GraphProto) -> onnx.NodeProto:
    """A random node of a graph, or an empty one if the graph has no nodes."""
    return random.choice(graph.node) if graph.node else onnx.NodeProto()


def _change_nodes(random: Random, graph: onnx.GraphProto) -> None:
    """Remove, repeat, shuffle or rename nodes."""
    choice = random.randrange(4)
    if choice == 0 and graph.node:
        del graph.node[random.randrange(len(graph.node))]
    elif choice == 1:
        graph.node.append(_node(random, graph))
    elif choice == 2:
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        random.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    else:
        name = random.choice(NAMES)
        for node in graph.node:
            node.name = name


def _rewire(random: Random, graph: onnx.GraphProto) -> None:
    """Change, remove or add inputs and outputs; creates unknown names and cycles."""
    node = _node(random, graph)
    ends = random.choice((node.input, node.input, node.output))
    choice = random.randrange(4)
    if choice == 0:
        del ends[random.randrange(len(ends) + 1) :]
    elif choice == 1 or not ends:
        ends.append(_some_name(random, graph))
    else:
        ends[random.randrange(len(ends))] = _some_name(random, graph)


def _change_op(random: Random, graph: onnx.GraphProto) -> None:
    if random.random() < 0.5:
        _node(random, graph).op_type = random.choice(["", *OPS])
    else:
        _node(random, graph).domain = random.choice(("", "ai.onnx", "custom", "com.microsoft", "own"))


def _break_attribute(random: Random, graph: onnx.GraphProto) -> None:
    holders = [node for node in graph.node if node.attribute]
    if not holders:
        return
    node = random.choice(holders)
    attribute = random.choice(node.attribute)
    changes: tuple[Callable[[], object], ...] = (
        lambda: node.attribute.remove(attribute),
        lambda: setattr(attribute, "type", random.randrange(15)),
        lambda: setattr(attribute, "i", random.choice(NUMBERS)),
        lambda: attribute.ints.append(random.choice(NUMBERS)),
        lambda: setattr(attribute, "name", random.choice(("axis", "perm", "to", "value", "body", "then_branch", ""))),
        lambda: attribute.ClearField(attribute.ListFields()[-1][0].name),
    )
    random.choice(changes)()


def _break_weight(random: Random, graph: onnx.GraphProto) -> None:
    if not graph.initializer:
        return
    tensor = random.choice(graph.initializer)

    def make_external() -> None:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=random.choice(NAMES))
        tensor.external_data.add(key="offset", value=str(random.choice(NUMBERS)))

    changes: tuple[Callable[[], object], ...] = (
        lambda: setattr(tensor, "raw_data", tensor.raw_data[: random.randrange(len(tensor.raw_data) + 1)]),
        lambda: tensor.dims.append(random.choice(NUMBERS)),
        lambda: setattr(tensor, "data_type", random.randrange(30)),
        lambda: setattr(tensor, "name", _some_name(random, graph)),
        lambda: graph.initializer.append(tensor),
        lambda: tensor.ClearField("raw_data"),
        make_external,
    )
    random.choice(changes)()


def _break_value(random: Random, graph: onnx.GraphProto) -> None:
    """Remove inputs or outputs, or their types and shapes, or change them."""
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    value, field = random.choice(values), random.choice((graph.input, graph.output))
    changes: tuple[Callable[[], object], ...] = (
        lambda: field.pop(random.randrange(len(field))) if field else None,
        lambda: value.ClearField("type"),
        lambda: value.type.tensor_type.ClearField("shape"),
        lambda: setattr(value.type.tensor_type, "elem_type", random.randrange(30)),
        lambda: setattr(value.type.tensor_type.shape.dim.add(), "dim_value", random.choice(NUMBERS)),
        lambda: setattr(value, "name", _some_name(random, graph)),
        lambda: setattr(value.type.sequence_type.elem_type.tensor_type, "elem_type", 1),
    )
    random.choice(changes)()


MUTATIONS = (_change_nodes, _rewire, _rewire, _change_op, _break_attribute, _break_weight, _break_value)


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
    for _ in range(random.randrange(1, 5)):
        if random.random() < 0.15:
            proto.opset_import[0].version = random.choice((-1, 0, 1, 6, 7, 9, 11, 13, 18, 21, 25, 26, 99))
        elif random.random() < 0.03:
            del proto.opset_import[:]
            proto.opset_import.add(version=17)
        else:
            random.choice(MUTATIONS)(random, random.choice(_graphs(proto)))
    return proto.SerializeToString()


def _extracted(path: Path, random: Random) -> None:
    proto = onnx_from_path(path, ignore_external_data=True)
    names = [name for node in proto.graph.node for name in node.output]
    names = names or ["y"]
    ops.extract(path, inputs=[TensorSpec(random.choice(names))], outputs=[TensorSpec(random.choice(names))])


def _shown(path: Path) -> None:
    proto = onnx_from_path(path, ignore_external_data=True)
    summary(proto, ("layers", "attrs", "weights"))
    describe(infer_shapes(proto))


def _linted(path: Path) -> None:
    """Lint a model with its weights, and without them; the verdicts must be one."""
    whole = lint(path)
    with patch.object(load_without_weights, "SMALL_FILE", 0), patch.object(load_without_weights, "LARGE", 0):
        assert lint(path) == whole, "another verdict without weights"


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
        "reduce": _reduced,
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


def _inserted(path: Path) -> None:
    made = [name for node in read_proto(path).graph.node for name in node.output if name]
    ops.insert(path, path.parent / "out" / "inserted.onnx", "Neg", made[:1], made[:1])


def _stripped(path: Path) -> None:
    structure = path.parent / "out" / "structure.onnx"
    ops.strip_weights(path, structure)
    ops.reconstruct_weights(structure, path.parent / "out" / "random.onnx")


def _reduced(path: Path) -> None:
    reduce(path, lambda part: len(part.proto.graph.node) < 2, ReduceConfig(inputs="declared", max_checks=6))


def try_batch(seeds: range) -> list[str]:
    """Give a batch of mutations to every tool."""
    logging.disable(logging.WARNING)
    return [line for seed in seeds for line in try_tools(seed)]
