"""Damaged and crafted files by number: the same file for the same number, on every machine."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests import bombs
from tests.backend.onnx import fuzz

NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**40, 2**53, 2**63 - 1, -(2**63), 2**64, 10**400, 1e308, -0.0, 0.5)
WORDS = ("", "x", "NaN", "Infinity", "../../etc/passwd", "/", "a\0b", "é" * 99, "run:x", "{", "float32", "0" * 64)
LEAVES: tuple[Any, ...] = (None, True, [], {}, [[]], float("nan"), float("inf"), *NUMBERS, *WORDS)
OPS = ("Concat", "Expand", "Tile", "Pad", "Resize", "ConstantOfShape", "Range", "OneHot", "Reshape", "MatMul", "Einsum")


def crafted_model(seed: int) -> bytes:
    """A model that is broken or asks for too much; below 100 KB."""
    random = Random(seed)
    choice = random.random()
    if choice < 0.4:
        return fuzz.mutated(seed)
    if choice < 0.7:
        return _extreme(random).SerializeToString()
    proto = random.choice(CRAFTS)(random)
    if random.random() < 0.3:
        with contextlib.suppress(ValueError, TypeError, OverflowError):  # the field's type cannot hold the value
            fuzz.change(random, random.choice(fuzz.messages(proto)), ["x", "y"])
    return proto.SerializeToString()


def _nested(random: Random) -> onnx.ModelProto:
    """Branches in branches."""
    depth = random.choice((3, 10, 28))  # beyond thirty protobuf itself makes none
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["o"])], "g", [], [helper.make_tensor_value_info("o", TensorProto.FLOAT, [1])]
    )
    for level in range(depth):
        out = helper.make_tensor_value_info(f"o{level}", TensorProto.FLOAT, [1])
        node = helper.make_node("If", ["c"], [out.name], then_branch=graph, else_branch=graph if depth < 5 else None)
        graph = helper.make_graph([node], f"g{level}", [], [out])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    return _made(list(graph.node), [x, c], list(graph.output))


def _exploding(random: Random) -> onnx.ModelProto:
    """A chain of operators that make much of little, by sizes that stand in the model."""
    count = random.choice((1, 2, 5, 12))
    nodes, weights, last = [], [], "x"
    for number in range(count):
        op, size = random.choice(OPS), random.choice((2, 10, 1000, 2**20, 2**31, 2**40, 2**62, -1, 0))
        weights.append(numpy_helper.from_array(np.array([size] * random.choice((1, 2, 4)), np.int64), f"w{number}"))
        inputs = {
            "Concat": [last, last],
            "ConstantOfShape": [f"w{number}"],
            "Range": ["zero", f"w{number}", "one"],
            "OneHot": [f"w{number}", f"w{number}", last],
            "Resize": [last, "", "", f"w{number}"],
            "MatMul": [last, last],
            "Einsum": [last, last],
        }.get(op, [last, f"w{number}"])
        extra = {"Concat": {"axis": 0}, "Einsum": {"equation": "a,b->ab"}}.get(op, {})
        nodes.append(helper.make_node(op, inputs, [f"t{number}"], **extra))
        last = f"t{number}"
    weights += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("zero", 0), ("one", 1))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [random.choice((1, 4))])
    return _made(nodes, [x], [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)], weights)


def _odd_weights(random: Random) -> onnx.ModelProto:
    """Weights of any type with more, fewer or other data than they say."""
    weight = TensorProto(name="w", data_type=random.randrange(30), dims=[random.choice((0, 1, 4, 2**31, 2**62, -1))])
    if random.random() < 0.5:
        weight.raw_data = bytes(random.randrange(64))
    else:
        weight.float_data.extend([1.0] * random.randrange(9))
    if random.random() < 0.3:
        weight.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            value = random.choice((*WORDS[:8], "9" * 30, "-1", "model.onnx"))
            weight.external_data.add(key=key, value=value.replace("\0", "") if key == "location" else value)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    return _made([helper.make_node("Add", ["x", "w"], ["y"])], [x], [y], [weight])


EXTREMES = (0, 0, -1, 1, 2, 3, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
# Operators by their inputs: the letter of a type, and sizes.
OPERATORS = {
    "ArgMax": "f2,3", "Attention": "f1,4,8 f1,4,8 f1,4,8", "AveragePool": "f1,4,8,8", "BitShift": "B4 B4",
    "Cast": "f4", "CenterCropPad": "f4,4 i2", "Col2Im": "f1,5,5 i2 i2", "Concat": "f2,3 f2,3",
    "Conv": "f1,4,8,8 f4,2,3,3", "ConvInteger": "B1,4,8,8 B4,2,3,3", "ConvTranspose": "f1,4,8,8 f4,2,3,3",
    "CumSum": "f4 i", "DFT": "f1,8,1", "DeformConv": "f1,4,8,8 f4,2,3,3 f1,18,6,6", "DepthToSpace": "f1,4,2,2",
    "DequantizeLinear": "B4,4 f4 B4", "EyeLike": "f4,4", "Flatten": "f2,3", "GRU": "f2,1,4 f1,15,4 f1,15,5",
    "Gather": "f4,4 i2", "GatherElements": "f4,4 i4,4", "GatherND": "f2,2,2 i2,1", "Gemm": "f3,4 f4,3",
    "GridSample": "f1,1,4,4 f1,4,4,2", "GroupNormalization": "f1,4,2,2 f4 f4", "HannWindow": "i", "Hardmax": "f2,3",
    "LRN": "f1,4,8,8", "LSTM": "f2,1,4 f1,20,4 f1,20,5", "LayerNormalization": "f2,3 f3", "LpNormalization": "f2,3",
    "LpPool": "f1,4,8,8", "MaxPool": "f1,4,8,8", "MaxUnpool": "f1,1,2,2 i1,1,2,2", "MelWeightMatrix": "i i i f f",
    "Multinomial": "f1,3", "NonMaxSuppression": "f1,4,4 f1,1,4 i1", "OneHot": "i3 i f2", "Pad": "f2,3 i4",
    "QuantizeLinear": "f4,4 f4 B4", "RNN": "f2,1,4 f1,5,4 f1,5,5", "RandomNormal": "", "RandomUniformLike": "f4",
    "ReduceMax": "f2,3 i1", "Reshape": "f2,3 i2", "Resize": "f1,1,4,4 f f4", "ReverseSequence": "f4,4 i4",
    "RoiAlign": "f1,1,8,8 f1,4 i1", "RotaryEmbedding": "f1,2,4,8 f50,4 f50,4 i1,4", "STFT": "f1,16,1 i f8 i",
    "Scan": "f1,4", "ScatterElements": "f4,4 i4,4 f4,4", "Shape": "f2,3", "Softmax": "f2,3",
    "SpaceToDepth": "f1,1,4,4", "Split": "f8", "SplitToSequence": "f8 i", "Squeeze": "f1,3 i1",
    "TensorScatter": "f1,4,4 f1,1,4 i1", "TfIdfVectorizer": "i8", "TopK": "f8 i1", "Transpose": "f2,3",
    "Trilu": "f4,4 i", "Unique": "f8", "Upsample": "f1,1,4,4 f4",
}  # fmt: skip
# Those of ONNX Runtime, with their integer attributes.
OF_RUNTIME = {
    "Attention num_heads past_present_share_buffer": "f1,4,8 f8,24 f24",
    "MultiHeadAttention num_heads": "f1,4,8 f1,4,8 f1,4,8",
    "GroupQueryAttention num_heads kv_num_heads local_window_size": "f1,1,16 f1,1,16 f1,1,16 f1,2,4,8 f1,2,4,8",
    "MatMulNBits K N bits block_size accuracy_level": "f1,16 B8,1,8 f8",
    "FusedConv group strides dilations pads": "f1,4,8,8 f4,2,3,3",
    "RotaryEmbedding num_heads rotary_embedding_dim interleaved": "f1,4,8 i1,4 f50,4 f50,4",
    "GatherBlockQuantized gather_axis quantize_axis block_size bits": "B4,16 i2 f4,1",
    "NGramRepeatBlock ngram_size": "i1,8 f1,8",
    "WordConvEmbedding embedding_size conv_window_size char_embedding_size": "i2,4 f9,4 f2,1,2,4 f2",
}


def _extreme(random: Random) -> onnx.ModelProto:
    """One operator whose integer attributes are at their extremes, with dynamic or static shapes, inputs or weights."""
    name, signature = random.choice([*OPERATORS.items(), *OF_RUNTIME.items()])
    op, *attributes = name.split()
    domain = "com.microsoft" if attributes else ""
    kinds = {name: onnx.defs.OpSchema.AttrType.INT for name in attributes}
    if not attributes:
        schema = onnx.defs.get_schema(op, 9 if op == "Upsample" else 24)
        kinds = {n: a.type for n, a in schema.attributes.items() if a.required or random.random() < 0.6}
    values: dict[str, Any] = {}
    for attribute, kind in kinds.items():
        several = kind == onnx.defs.OpSchema.AttrType.INTS or attribute in ("strides", "dilations", "pads")
        if several:
            values[attribute] = [random.choice(EXTREMES) for _ in range(random.choice((1, 2, 4)))]
        elif kind == onnx.defs.OpSchema.AttrType.INT:
            values[attribute] = random.choice(EXTREMES)
    inputs, weights = [], []
    for index, text in enumerate(signature.split()):
        dims = [int(size) for size in filter(None, text[1:].split(","))]
        dtype = {"f": np.float32, "i": np.int64, "B": np.uint8}[text[0]]
        if index and random.random() < 0.5:
            array = np.full(dims, random.choice((0, 1, 1, random.choice(EXTREMES) % 2**63)), np.int64).astype(dtype)
            weights.append(numpy_helper.from_array(array, f"t{index}"))
        else:
            shown = [f"d{index}_{i}" if random.random() < 0.4 else size for i, size in enumerate(dims)]
            inputs.append(
                helper.make_tensor_value_info(f"t{index}", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shown)
            )
    node = helper.make_node(
        op, [f"t{i}" for i in range(len(signature.split()))], ["y"], op.lower(), domain=domain, **values
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "extreme", inputs, [y], weights)
    opsets = [helper.make_opsetid("", 9 if op == "Upsample" else 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _calling(random: Random) -> onnx.ModelProto:
    """A call of the model's own function, with too few or too many arguments, or without an operator set."""
    operators = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    body = [helper.make_node("Add", ["a", "b"], ["o"])]
    function = helper.make_function("f", "F", ["a", "b"], ["o"], body, operators[: random.choice((0, 1, 1))])
    count = random.choice((0, 1, 2, 3))
    call = helper.make_node("F", ["x"] * count, ["y", "z"][: random.choice((1, 1, 2))], "call", domain="f")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = _made([call], [x], [y])
    del model.opset_import[:]
    model.opset_import.extend(operators[: random.choice((0, 2, 2, 2))])
    model.functions.append(function)
    return model


def _many(random: Random) -> onnx.ModelProto:
    """Far more nodes than anybody exports, most of them of two bytes, in any order."""
    model = bombs.large_input(1)
    count = random.choice((10, 10_000, 200_000, 1_100_000))
    if random.random() < 0.5:
        nodes = [helper.make_node("Abs", [f"n{i}"], [f"n{i + 1}"]) for i in range(min(count, 20_000))]
        random.shuffle(nodes)
        model.graph.node.extend(nodes)
    else:
        model.graph.MergeFromString(b"\x0a\x00" * count)
    return model


def _slow(random: Random) -> onnx.ModelProto:
    """A node that computes for years: a Loop with a trip count, or an Einsum over many letters, constant or not."""
    if random.random() < 0.5:
        model = bombs.endless_loop()
        model.graph.node[0].input[0] = "trips"
        model.graph.initializer.append(
            numpy_helper.from_array(np.array(2 ** random.choice((3, 40, 62)), np.int64), "trips")
        )
    else:
        letters, count = "abcdefghijklmnopqrst", random.choice((2, 5, 10))
        terms = ",".join(letters[2 * i : 2 * i + 2] for i in range(count))
        node = helper.make_node(
            "Einsum", ["x"] * count, ["y"], "einsum", equation=f"{terms}->{letters[: random.choice((0, 2))]}"
        )
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [random.choice((2, 50, 400))] * 2)
        model = _made([node], [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    if random.random() < 0.5:
        for value in model.graph.input:
            dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            model.graph.initializer.append(numpy_helper.from_array(np.ones(dims, np.float32), value.name))
        del model.graph.input[:]
    return model


NAMES = (
    "$(touch PWNED)",
    "`touch PWNED`",
    "a\nrun:     0\nnext:    touch PWNED",
    "\x1b[31m",
    "x" * 1_000_000,
    "=1+1",
    "a b",
)


def _named(random: Random) -> onnx.ModelProto:
    """Names that a shell runs, that a terminal obeys, or that are very long."""
    name = random.choice(NAMES)
    x, y = (helper.make_tensor_value_info(f"{letter}{name}", TensorProto.FLOAT, [2]) for letter in "xy")
    return _made([helper.make_node("Relu", [x.name], [y.name], name)], [x], [y])


def _made(nodes: Any, inputs: Any, outputs: Any, weights: Any = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "crafted", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CRAFTS: tuple[Callable[[Random], onnx.ModelProto], ...] = (
    lambda random: bombs.doubling(random.randrange(5, 60), constant=random.random() < 0.5),
    lambda random: bombs.doubling_functions(random.randrange(2, 60), circle=random.random() < 0.2),
    lambda random: bombs.large_input(2 ** random.randrange(20, 63)),
    lambda random: bombs.endless_loop(empty=random.random() < 0.3),
    lambda random: bombs.no_heads(in_function=random.random() < 0.5),
    _nested,
    *[_exploding] * 3,
    _odd_weights,
    _calling,
    _many,
    _slow,
    _named,
)


def damaged(path: Path, random: Random) -> bytes:
    """The content of a file with some of it changed: in its structure where it is JSON, else in its bytes."""
    data = path.read_bytes()
    if random.random() < 0.6:
        with contextlib.suppress(ValueError):
            return _damaged_json(json.loads(data), random)
    broken = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 20))):
        if broken:
            broken[random.randrange(len(broken))] = random.choice((0, 255, random.randrange(256)))
    choice = random.random()
    if choice < 0.2:
        return bytes(broken[: random.randrange(len(broken) + 1)])
    if choice < 0.25:
        return bytes(broken) + bytes(broken)
    return b"" if choice < 0.27 else bytes(broken)


def _damaged_json(value: Any, random: Random) -> bytes:
    places = list(_places(value))
    for _ in range(random.choice((1, 1, 2, 4)) if places else 0):
        with contextlib.suppress(KeyError, IndexError):  # it is gone by an earlier change
            _change(*random.choice(places), random)
    text = json.dumps(value)
    if random.random() < 0.03:
        depth = random.choice((100, 100_000))
        text = "[" * depth + text + "]" * depth
    return text.encode()


def _places(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _change(holder: Any, key: Any, random: Random) -> None:
    choice = random.randrange(6)
    if choice == 0:
        del holder[key]
    elif choice == 1 and isinstance(holder[key], (int, float)):
        holder[key] = random.choice(NUMBERS)
    elif choice == 2 and isinstance(holder, list):
        holder.extend([holder[key]] * random.choice((1, 1000)))
    elif choice == 3 and isinstance(holder, dict):
        holder[random.choice(WORDS)] = holder.pop(key)
    elif choice == 4 and isinstance(holder[key], str) and holder[key]:
        at = random.randrange(len(holder[key]))
        holder[key] = holder[key][:at] + random.choice(("A", "\0", "é", "")) + holder[key][at + 1 :]
    else:
        holder[key] = random.choice(LEAVES)
