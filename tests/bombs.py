"""Files of a few kilobytes that ask for more than a machine has."""

import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, parser


def _model(nodes, inputs, outputs, **options) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
    graph = helper.make_graph(nodes, "bomb", inputs, outputs, options.pop("initializer", ()))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def doubling(count: int = 41, *, constant: bool = False) -> onnx.ModelProto:
    """Nodes that each join what they read with itself, from an input or from a weight of one element."""
    nodes = [helper.make_node("Concat", [f"t{i}", f"t{i}"], [f"t{i + 1}"], axis=0) for i in range(count)]
    nodes += [
        helper.make_node("ReduceMax", [f"t{count}"], ["most"], keepdims=0),
        helper.make_node("Add", ["most", "x"], ["y"]),
    ]
    first = [] if constant else [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [1])]
    weights = [helper.make_tensor("t0", TensorProto.FLOAT, [1], [1.0])] if constant else []
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    return _model(nodes, [x, *first], [y], initializer=weights)


def doubling_functions(count: int = 30, *, circle: bool = False) -> onnx.ModelProto:
    """Functions that each call the one before twice; the first one calls the last, or an operator of ONNX's."""
    functions = []
    for i in range(count):
        op, domain = ("Relu", "") if i == 0 and not circle else (f"f{(i - 1) % count}", "bomb")
        nodes = [helper.make_node(op, [a], [b], domain=domain) for a, b in (("x", "h"), ("h", "y"))]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
        functions.append(helper.make_function("bomb", f"f{i}", ["x"], ["y"], nodes, opsets))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    return _model([helper.make_node(f"f{count - 1}", ["x"], ["y"], domain="bomb")], [x], [y], functions=functions)


def endless_loop(*, empty: bool = False) -> onnx.ModelProto:
    """A loop without a trip count. ONNX Runtime does not stop one whose body is empty."""
    nodes = [] if empty else [helper.make_node("Identity", ["go"], ["more"]), helper.make_node("Abs", ["s"], ["t"])]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
    ]
    state, after, condition = (
        helper.make_tensor_value_info("s", TensorProto.FLOAT, [1]),
        "s" if empty else "t",
        "go" if empty else "more",
    )
    outputs = [
        helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
        helper.make_tensor_value_info(after, TensorProto.FLOAT, [1]),
    ]
    body = helper.make_graph(nodes, "body", [*inputs, state], outputs)
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    loop = helper.make_node("Loop", ["", "yes", "x"], ["y"], name="endless", body=body)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    return _model([loop], [x], [y], initializer=[yes])


def no_heads(*, in_function: bool = False) -> onnx.ModelProto:
    """Attention with 0 heads, by which ONNX divides: the process dies of SIGFPE. Functions are not checked for it."""
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("bomb", 1)]
    attention = helper.make_node("Attention", ["x", "x", "x"], ["y"], name="heads", q_num_heads=0, kv_num_heads=0)
    call = helper.make_node("attend", ["x"], ["y"], name="call", domain="bomb")
    functions = [helper.make_function("bomb", "attend", ["x"], ["y"], [attention], opsets)] if in_function else []
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([call if in_function else attention], "bomb", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def overflowing_division() -> onnx.ModelProto:
    """The smallest 64-bit integer divided by -1, in which the process dies of SIGFPE."""
    text = "bomb (float[1] x) => (float[1] y) <int64[1] v = {-9223372036854775808}, int64[1] w = {-1}> {"
    nodes = "i = Cast<to = 7>(x) a = Sub(i, i) s = Add(a, v) [div] d = Div(s, w) y = Cast<to = 1>(d) }"
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text} {nodes}')


def large_input(elements: int = 1 << 31) -> onnx.ModelProto:
    """A model whose input is declared with a huge number of elements."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [elements]) for name in "xy")
    return _model([helper.make_node("Relu", ["x"], ["y"])], [x], [y])


def write_zeros(path: Path, elements: int = 1 << 28, *, claimed: int | None = None) -> Path:
    """An archive with one array of zeros, which compress to almost nothing."""
    shape = (elements if claimed is None else claimed,)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for _ in range(4 * elements >> 20):
            member.write(bytes(1 << 20))
    return path


def write_header(path: Path) -> Path:
    """An ``.npy`` file that is a header and nothing more."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    return path
