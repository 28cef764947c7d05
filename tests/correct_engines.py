"""Sound engines of many kinds of operators, precisions and settings, for checks that must not raise a false alarm."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests import models, zoo
from tests.models import Case, random
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import lower_precision
from trtops.backend.onnx.quantize import insert_qdq
from trtops.backend.onnxrt.runner import OnnxrtRunner, reference_outputs
from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.spec import BuildConfig

_ROW = "(float[batch,12] x) => (float[batch,12] y)"
_IMAGE = "(float[batch,4,10,10] x) => (float[batch,c,h,w] y)"
_TEXT = "(float[batch,seq,12] x) => (float[batch,seq,12] y)"
_ANY = "(float[batch,12] x) => (float[batch,k] y)"

# Name, signature, nodes, weights by shape or value.
_NODES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "relu_gemm": (_ROW, "a = Gemm(x, w, b) y = Relu(a)", {"w": (12, 12), "b": (12,)}),
    "wide": (_ANY, "a = MatMul(x, w0) b = Tanh(a) y = MatMul(b, w1)", {"w0": (12, 500), "w1": (500, 7)}),
    "deep": (_ROW, " ".join(f"h{i} = MatMul({'x' if not i else f't{i - 1}'}, w{i}) t{i} = Tanh(h{i})" for i in range(9))
             + " y = Identity(t8)", {f"w{i}": (12, 12) for i in range(9)}),
    "sigmoid": (_ROW, "a = MatMul(x, w) s = Sigmoid(a) y = Mul(a, s)", {"w": (12, 12)}),
    "erf": (_ROW, "a = MatMul(x, w) b = Erf(a) y = Add(b, x)", {"w": (12, 12)}),
    "exp": (_ROW, "a = MatMul(x, w) b = Exp(a) y = Log(b)", {"w": (12, 12)}),
    "softplus": (_ROW, "a = MatMul(x, w) y = Softplus(a)", {"w": (12, 12)}),
    "sqrt": (_ROW, "a = Abs(x) b = Sqrt(a) y = MatMul(b, w)", {"w": (12, 12)}),
    "softmax": (_ROW, "a = MatMul(x, w) y = Softmax<axis = -1>(a)", {"w": (12, 12)}),
    "log_softmax": (_ROW, "a = MatMul(x, w) y = LogSoftmax<axis = 1>(a)", {"w": (12, 12)}),
    "layer_norm": (_ROW, "a = MatMul(x, w) y = LayerNormalization(a, g)", {"w": (12, 12), "g": (12,)}),
    "centred": (_ROW, "m = ReduceMean<axes = [1]>(x) c = Sub(x, m) y = MatMul(c, w)", {"w": (12, 12)}),
    "nothing": (_ANY, "m = ReduceMean<axes = [1]>(x) c = Sub(x, m) y = ReduceSum(c, one)", {"one": np.array([1])}),
    "cumsum": (_ROW, "y = CumSum(x, one)", {"one": np.array(1)}),
    "clip": (_ROW, "a = MatMul(x, w) y = Clip(a, low, high)",
             {"w": (12, 12), "low": np.float32(-0.5), "high": np.float32(0.5)}),
    "where": (_ROW, "a = MatMul(x, w) p = Greater(a, z) y = Where(p, a, x)", {"w": (12, 12), "z": np.float32(0)}),
    "argmax": ("(float[batch,12] x) => (int64[batch,1] y, bool[batch,12] p)",
               "a = MatMul(x, w) y = ArgMax<axis = 1>(a) p = Greater(a, x)", {"w": (12, 12)}),
    "topk": ("(float[batch,12] x) => (float[batch,4] y, int64[batch,4] i)",
             "a = MatMul(x, w) y, i = TopK(a, k)", {"w": (12, 12), "k": np.array([4])}),
    "topk_ties": ("(float[batch,12] x) => (float[batch,4] y, int64[batch,4] i)",
                  "a = Sign(x) y, i = TopK(a, k)", {"k": np.array([4])}),
    "round": (_ROW, "a = MatMul(x, w) y = Round(a)", {"w": (12, 12)}),
    "floor": (_ROW, "a = Mul(x, three) y = Floor(a)", {"three": np.float32(3)}),
    "gather": (_ANY, "y = Gather<axis = 1>(x, i)", {"i": np.array([3, 3, 0])}),
    "onehot": (_ANY, "a = ArgMax<axis = 1, keepdims = 0>(x) y = OneHot(a, d, v)",
               {"d": np.array(12), "v": np.array([0, 1], np.float32)}),
    "scatter": (_ROW, "y = ScatterElements<axis = 1>(x, i, x)", {}),
    "split": (_ANY, "a, b = Split<axis = 1>(x) y = Mul(a, b)", {}),
    "pad": (_ANY, "y = Pad(x, p)", {"p": np.array([0, 2, 0, 1])}),
    "constants": (_ROW, "a = MatMul(x, w) n = Sub(a, a) y = Add(n, c)", {"w": (12, 12), "c": (12,)}),
    "huge": (_ROW, "a = MatMul(x, w) y = Mul(a, s)", {"w": (12, 12), "s": np.float32(1e20)}),
    "tiny": (_ROW, "a = MatMul(x, w) y = Mul(a, s)", {"w": (12, 12), "s": np.float32(1e-20)}),
    "infinities": (_ROW, "a = Div(x, z) y = Tanh(a) ", {"z": np.float32(0)}),
    "not_a_number": (_ROW, "y = Sqrt(x)", {}),
    "dropout": (_ROW, "a, m = Dropout(x) y = MatMul(a, w)", {"w": (12, 12)}),
    "conv": (_IMAGE, "a = Conv<pads = [1,1,1,1]>(x, w) y = Relu(a)", {"w": (6, 4, 3, 3)}),
    "depthwise": (_IMAGE, "y = Conv<group = 4>(x, w)", {"w": (4, 1, 3, 3)}),
    "conv_transpose": (_IMAGE, "y = ConvTranspose<strides = [2,2]>(x, w)", {"w": (4, 3, 3, 3)}),
    "max_pool": (_IMAGE, "y = MaxPool<kernel_shape = [3,3], strides = [2,2]>(x)", {}),
    "average_pool": (_IMAGE, "y = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(x)", {}),
    "instance_norm": (_IMAGE, "y = InstanceNormalization(x, g, o)", {"g": (4,), "o": (4,)}),
    "batch_norm": (_IMAGE, "y = BatchNormalization(x, g, o, o, v)",
                   {"g": (4,), "o": (4,), "v": np.full(4, 2, np.float32)}),
    "lrn": (_IMAGE, "y = LRN<size = 3>(x)", {}),
    "resize": (_IMAGE, 'y = Resize<mode = "linear">(x, , s)', {"s": np.array([1, 1, 2, 2], np.float32)}),
    "depth_to_space": (_IMAGE, "y = DepthToSpace<blocksize = 2>(x)", {}),
    "upsampled": (_IMAGE, 'y = Resize<mode = "nearest">(x, , s)', {"s": np.array([1, 1, 3, 3], np.float32)}),
    "pixels": ("(float[batch,4,10,10] x) => (int64[batch,10,10] y)",
               "a = Conv(x, w) y = ArgMax<axis = 1, keepdims = 0>(a)", {"w": (5, 4, 1, 1)}),
    "attention": (_TEXT, "t = Transpose<perm = [0,2,1]>(x) s = MatMul(x, t) p = Softmax(s) y = MatMul(p, x)", {}),
    "einsum": (_TEXT, 'a = Einsum<equation = "bij,jk->bik">(x, w) y = Tanh(a)', {"w": (12, 12)}),
    "cumulative": (_TEXT, "y = CumSum(x, one)", {"one": np.array(1)}),
    "merged": (_TEXT, "a = Reshape(x, s) b = MatMul(a, w) c = Shape(x) y = Reshape(b, c)",
               {"s": np.array([-1, 12]), "w": (12, 12)}),
    "merged_out": ("(float[batch,seq,12] x) => (float[rows,12] y)", "y = Reshape(x, s)", {"s": np.array([-1, 12])}),
    "sequence_last": ("(float[batch,seq,12] x) => (float[seq,batch,12] y)", "y = Transpose<perm = [1,0,2]>(x)", {}),
    "gru": ("(float[seq,batch,12] x) => (float[seq,one,batch,5] y)", "y = GRU<hidden_size = 5>(x, w, r)",
            {"w": (1, 15, 12), "r": (1, 15, 5)}),
    # Models that break relations themselves.
    "batch_norm_training": (_IMAGE, "y, m, n = BatchNormalization<training_mode = 1>(x, g, o, o, v)",
                            {"g": (4,), "o": (4,), "v": np.full(4, 2, np.float32)}),
    "softmax_rows": (_ROW, "y = Softmax<axis = 0>(x)", {}),
    "cumsum_rows": (_ROW, "y = CumSum(x, zero)", {"zero": np.array(0)}),
    "normal": (_ROW, "n = RandomNormalLike(x) y = Add(x, n)", {}),
    "uniform": (_ROW, "n = RandomUniformLike<seed = 3.0>(x) y = Mul(x, n)", {}),
    "bernoulli": (_ROW, "a = Sigmoid(x) y = Bernoulli(a)", {}),
    "dropout_training": (_ROW, "y = Dropout(x, half, true)", {"half": np.float32(0.5), "true": np.array(True)}),
    "multinomial": ("(float[batch,12] x) => (int32[batch,5] y)", "y = Multinomial<sample_size = 5>(x)", {}),
    "mean_of_rows": ("(float[batch,12] x) => (float[one,12] y)", "y = ReduceMean<axes = [0]>(x)", {}),
    "scalar": ("(float[batch,12] x) => (float[] y, int64[2] s)",
               "y = ReduceSum<keepdims = 0>(x) s = Shape(x)", {}),
    "gram": ("(float[batch,12] x) => (float[batch,batch2] y)", "t = Transpose(x) y = MatMul(x, t)", {}),
    "sorted_rows": ("(float[batch,12] x) => (float[k,12] y)", "y, i = TopK<axis = 0>(x, k)", {"k": np.array([1])}),
    "class_token": ("(float[batch,12] x) => (float[rows,12] y)", "y = Concat<axis = 0>(c, x)", {"c": (1, 12)}),
    "shifted_rows": (_ROW, "a = Slice(x, from, to, axis) b = Slice(x, zero, from, axis) y = Concat<axis = 0>(a, b)",
                     {"from": np.array([1]), "to": np.array([1 << 40]), "axis": np.array([0]), "zero": np.array([0])}),
    "flattened": ("(float[batch,12] x) => (float[n] y)", "y = Reshape(x, s)", {"s": np.array([-1])}),
    "nonzero": ("(float[batch,12] x) => (int64[2,n] y)", "y = NonZero(x)", {}),
    "unique": ("(float[batch,12] x) => (float[n] y)", "a = Round(x) y = Unique(a)", {}),
    "dynamic_int8": (_ROW, "q, s, z = DynamicQuantizeLinear(x) a = DequantizeLinear(q, s, z) y = MatMul(a, w)",
                     {"w": (12, 12)}),
    "fixed_rows": ("(float[batch,12] x) => (float[2,12] y)", "y = Reshape(x, s)", {"s": np.array([2, 12])}),
    "first_rows": (_ROW, "f = Gather(x, zero) y = Sub(x, f)", {"zero": np.array([0])}),
    "chaotic": (_ROW, "a0 = Sigmoid(x) " + " ".join(
        f"n{i} = Sub(one, a{i}) m{i} = Mul(a{i}, n{i}) a{i + 1} = Mul(m{i}, four)" for i in range(40)
    ) + " y = Identity(a40)", {"one": np.float32(1), "four": np.float32(3.99)}),
}  # fmt: skip


def operators() -> Iterator[Case]:
    """One small model for each kind of operator."""
    for name, (signature, nodes, weights) in _NODES.items():
        if name == "scatter":
            signature, nodes = "(float[batch,12] x) => (float[batch,12] y)", "i = ArgMax<axis = 1>(x) u = Identity(x) "
            nodes += "f = Slice(u, a, b, c) y = ScatterElements<axis = 1>(x, i, f)"
            weights = {"a": np.array([0]), "b": np.array([1]), "c": np.array([1])}
        arrays = {
            key: random(*value, seed=i, scale=0.4) if isinstance(value, tuple) else value
            for i, (key, value) in enumerate(weights.items())
        }
        proto = models.model(f"{signature} {{ {nodes} }}", arrays)
        shape = {_IMAGE: (2, 4, 10, 10), _TEXT: (2, 5, 12)}.get(signature, (2, 12))
        shape = (2, 5, 12) if "seq," in signature else (2, 4, 10, 10) if "4,10,10" in signature else shape
        yield Case(proto, {"x": random(*shape, seed=7)}, name=name)


def sound_models() -> Iterator[Case]:
    """Small models of many kinds; some break relations between the rows of a batch themselves."""
    yield from operators()
    others = (models.conv_net, models.transformer, models.multi_output, models.reshape, models.data_dependent)
    further = (models.dynamic_identity, models.foldable, zoo.zipmap, zoo.sequence)
    for make in (*zoo.EVALUATED, *others, *further):
        yield make()


def feeds_of(case: Case, number: int) -> list[dict[str, np.ndarray]]:
    """One to three feeds for a case, with batches of one or two rows, by its number."""
    feed = {name: np.asarray(array) for name, array in case.feed.items()}
    other = {
        name: np.asarray(np.random.default_rng(5).permuted(array.ravel()).reshape(array.shape), array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feed.items()
    }
    if case.name == "fixed_rows":
        return [feed, other]
    single = feed
    if list(feed) == ["x"] and case.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch":
        single, other = {"x": feed["x"][:1]}, {"x": other["x"][:1]} if number % 4 == 0 else other
    return [[single, other], [feed], [single], [feed, other, feed]][number % 4]


LEVELS = {"all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL, "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC}


def session(proto: onnx.ModelProto, level: str = "all", threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def rounded(case: Case, precision: str) -> onnx.ModelProto:
    """The model of a case in another precision."""
    if precision == "fp32":
        return case.proto
    if precision == "int8":
        proto = onnx.ModelProto()
        proto.CopyFrom(case.proto)
        whole = onnx.shape_inference.infer_shapes(proto)
        model_ends = {value.name for value in (*proto.graph.input, *proto.graph.output)}
        marked = onnx.ModelProto()
        marked.CopyFrom(proto)
        for value in whole.graph.value_info:
            if value.name not in model_ends and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                marked.graph.output.append(value)
        ranges = []
        for name, array in (*case.feed.items(), *reference_outputs(marked, [case.feed])[0].items()):
            if array.dtype == np.float32 and array.size and np.isfinite(array).all():
                ranges.append(
                    TensorRange(
                        name=name, amax=float(np.abs(array).max()), low=float(array.min()), high=float(array.max())
                    )
                )
        insert_qdq(
            proto, CalibrationCache(algorithm="minmax", ranges=tuple(ranges)), BuildConfig(precision="int8"), "partial"
        )
        return proto
    return lower_precision(Model.from_proto(case.proto).proto(), precision).model  # type: ignore[arg-type]


def sound_engines() -> Iterator[tuple[str, Case, str, Callable[[], OnnxrtRunner], int]]:
    """Name, case, precision, an engine's runner, and a number, of more than two hundred engines."""
    settings = itertools.cycle([("all", 1), ("basic", 2), ("all", 2)])
    number = 0
    for case in sound_models():
        quantized = any(node.op_type == "DequantizeLinear" for node in case.proto.graph.node)
        for precision in ("fp32", "fp16") if quantized else ("fp32", "fp16", "int8"):
            level, threads = next(settings)
            # ONNX Runtime's further optimizers crash on some models below FP32.
            level = level if precision == "fp32" else "basic"

            def make(case: Case = case, precision: str = precision, level: str = level, threads: int = threads) -> Any:
                return OnnxrtRunner(session(rounded(case, precision), level, threads))

            yield f"{case.name} {precision} {level} {threads}", case, precision, make, number
            number += 1
