"""Small models with the structure of real exports and random weights, for tests of verdicts.

Each is a :class:`tests.models.Case`; ``scores`` in the tests says which of its outputs hold classes, and where.
"""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models import Case, branch, loop, model, qdq_net, random

LOWEST = float(np.finfo(np.float32).min)


def segmentation() -> Case:
    """Logits of 6 classes for each pixel, ``(N, C, H, W)``, wider than high, and the best class of each."""
    weights = {
        "w0": random(12, 3, 3, 3, seed=1, scale=0.4),
        "w1": random(12, 12, 3, 3, seed=2, scale=0.2),
        "w2": random(6, 12, 1, 1, seed=3, scale=0.5),
    }
    proto = model(
        """(float[batch,3,16,24] image) => (float[batch,6,16,24] out, int64[batch,16,24] best) {
            [c0] a0 = Conv<pads = [1,1,1,1]>(image, w0)
            [r0] a1 = Relu(a0)
            [c1] a2 = Conv<pads = [1,1,1,1]>(a1, w1)
            [r1] a3 = Relu(a2)
            [c2] out = Conv(a3, w2)
            [best] best = ArgMax<axis = 1, keepdims = 0>(out)
        }""",
        weights,
    )
    return Case(proto, {"image": random(2, 3, 16, 24, seed=4)}, name="segmentation")


def classifier() -> Case:
    """Probabilities of 1,000 classes from an untrained head: all near 0.001."""
    weights = {
        "w0": random(16, 3, 3, 3, seed=1, scale=0.3),
        "w1": random(16, 1000, seed=2, scale=0.3),
        "b1": random(1000, seed=3, scale=0.1),
    }
    proto = model(
        """(float[batch,3,12,12] image) => (float[batch,1000] output) {
            [conv] c = Conv<strides = [2,2]>(image, w0)
            [relu] r = Relu(c)
            [pool] p = GlobalAveragePool(r)
            [flat] f = Flatten(p)
            [fc] l = Gemm(f, w1, b1)
            [softmax] output = Softmax<axis = -1>(l)
        }""",
        weights,
    )
    return Case(proto, {"image": random(3, 3, 12, 12, seed=4)}, name="classifier")


def tiny_logits() -> Case:
    """Logits of about 1e-4, as a head at the beginning of its training has them."""
    proto = model(
        "(float[batch,32] x) => (float[batch,10] logits) { h = Tanh(x) logits = MatMul(h, w) }",
        {"w": random(32, 10, seed=1, scale=2e-5)},
    )
    return Case(proto, {"x": random(4, 32, seed=2)}, name="tiny_logits")


def masked_attention() -> Case:
    """Attention whose mask is filled with the smallest FP32 number, as exporters of transformers write it."""
    width = 16
    weights = {n: random(width, width, seed=i, scale=0.3) for i, n in enumerate(("wq", "wk", "wv", "wo"), start=1)}
    weights |= {
        "one": np.float32(1),
        "lowest": np.float32(LOWEST),
        "depth": np.float32(4),
        "axes": np.array([1]),
        "gain": np.ones(width, np.float32),
        "shift": np.zeros(width, np.float32),
    }
    proto = model(
        """(float[batch,seq,16] x, int64[batch,seq] attention_mask) => (float[batch,seq,16] last_hidden_state) {
            m0 = Cast<to = 1>(attention_mask)
            m1 = Sub(one, m0)
            m2 = Unsqueeze(m1, axes)
            [fill] mask = Mul(m2, lowest)
            [q] q = MatMul(x, wq)
            [k] k = MatMul(x, wk)
            kt = Transpose<perm = [0,2,1]>(k)
            [v] v = MatMul(x, wv)
            s0 = MatMul(q, kt)
            s1 = Div(s0, depth)
            [masked] s2 = Add(s1, mask)
            [softmax] p = Softmax<axis = -1>(s2)
            a = MatMul(p, v)
            [o] o = MatMul(a, wo)
            r = Add(x, o)
            last_hidden_state = LayerNormalization<axis = -1>(r, gain, shift)
        }""",
        weights,
    )
    seen = np.ones((2, 7), np.int64)
    seen[1, 4:] = 0
    return Case(proto, {"x": random(2, 7, 16, seed=5), "attention_mask": seen}, name="masked_attention")


def key_value_cache() -> Case:
    """A decoder step: logits over a vocabulary, and extended caches of keys and values, heads before positions."""
    weights = {n: random(16, 16, seed=i, scale=0.3) for i, n in enumerate(("wq", "wk", "wv"), start=1)}
    weights |= {
        "head": random(16, 50, seed=4, scale=0.5),
        "split": np.array([0, 0, 4, 4]),
        "join": np.array([0, 0, 16]),
    }
    split = "\n".join(
        f"{n}0 = MatMul(x, w{n})\n {n}1 = Reshape({n}0, split)\n {n}2 = Transpose<perm = [0,2,1,3]>({n}1)"
        for n in "qkv"
    )
    proto = model(
        f"""(float[batch,seq,16] x, float[batch,4,past,4] past_key, float[batch,4,past,4] past_value)
            => (float[batch,seq,50] logits, float[batch,4,all,4] present_key, float[batch,4,all,4] present_value) {{
            {split}
            present_key = Concat<axis = 2>(past_key, k2)
            present_value = Concat<axis = 2>(past_value, v2)
            kt = Transpose<perm = [0,1,3,2]>(present_key)
            s = MatMul(q2, kt)
            p = Softmax<axis = -1>(s)
            a0 = MatMul(p, present_value)
            a1 = Transpose<perm = [0,2,1,3]>(a0)
            a2 = Reshape(a1, join)
            h = Add(a2, x)
            logits = MatMul(h, head)
        }}""",
        weights,
    )
    past = {name: random(2, 4, 3, 4, seed=i) for i, name in enumerate(("past_key", "past_value"), start=6)}
    return Case(proto, {"x": random(2, 2, 16, seed=5), **past}, name="key_value_cache")


def lstm() -> Case:
    """A bidirectional LSTM with a linear layer behind it."""
    hidden, width = 12, 8
    weights = {
        "w": random(2, 4 * hidden, width, seed=1, scale=0.3),
        "r": random(2, 4 * hidden, hidden, seed=2, scale=0.3),
        "b": random(2, 8 * hidden, seed=3, scale=0.1),
        "head": random(2 * hidden, 5, seed=4, scale=0.4),
        "join": np.array([0, 0, -1]),
    }
    proto = model(
        f"""(float[seq,batch,{width}] x) => (float[batch,seq,5] tags) {{
            [lstm] y0 = LSTM<hidden_size = {hidden}, direction = "bidirectional">(x, w, r, b)
            y1 = Transpose<perm = [2,0,1,3]>(y0)
            y2 = Reshape(y1, join)
            [head] tags = MatMul(y2, head)
        }}""",
        weights,
    )
    return Case(proto, {"x": random(6, 2, width, seed=5)}, name="lstm")


def boxes() -> Case:
    """Boxes in pixels and their scores, of detections that were not yet picked."""
    weights = {
        "w": random(16, 4, seed=1, scale=80),
        "c": random(16, 7, seed=2, scale=0.5),
        "middle": np.array([320, 240, 320, 240], np.float32),
    }
    proto = model(
        """(float[batch,20,16] x) => (float[batch,20,4] boxes, float[batch,20,7] scores) {
            h = Tanh(x)
            b = MatMul(h, w)
            boxes = Add(b, middle)
            l = MatMul(h, c)
            scores = Sigmoid(l)
        }""",
        weights,
    )
    return Case(proto, {"x": random(1, 20, 16, seed=3)}, name="boxes")


def overflowing() -> Case:
    """An activation of 79,500 between two layers: more than FP16 holds, and the result is small again."""
    weights = {"big": np.full((8, 8), 9937.5, np.float32), "small": random(8, 8, seed=1, scale=1e-5)}
    proto = model(
        "(float[batch,8] x) => (float[batch,8] y) { [up] h = MatMul(x, big) [down] y = MatMul(h, small) }", weights
    )
    return Case(proto, {"x": np.ones((2, 8), np.float32)}, name="overflowing")


def zipmap() -> Case:
    """A classifier as from scikit-learn's converter: a label, and a map from class to probability, per sample."""
    proto = model(
        "(float[batch,4] x) => (int64[batch] label) { l = MatMul(x, w) p = Softmax<axis = 1>(l) "
        "label = ArgMax<axis = 1, keepdims = 0>(p) }",
        {"w": random(4, 3, seed=1)},
    )
    proto.graph.node.append(
        helper.make_node("ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    )
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    value = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    proto.graph.output.append(onnx.ValueInfoProto(name="probabilities", type=helper.make_sequence_type_proto(value)))
    return Case(proto, {"x": random(5, 4, seed=2)}, name="zipmap")


def sequence() -> Case:
    """Two halves of a tensor as a sequence of tensors."""
    proto = model(
        "(float[2,6] x) => (float[2,6] y) { y = Relu(x) n = Constant<value_int = 3>() "
        "halves = SplitToSequence<axis = 1>(y, n) }"
    )
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    proto.graph.output.append(onnx.ValueInfoProto(name="halves", type=helper.make_sequence_type_proto(element)))
    return Case(proto, {"x": random(2, 6, seed=1)}, name="sequence")


EVALUATED: tuple[Callable[[], Case], ...] = (
    segmentation, classifier, tiny_logits, masked_attention, key_value_cache, lstm, boxes, qdq_net, branch, loop,
)  # fmt: skip
"""Models that are accurate in every precision."""

CLASS_AXES = {
    "segmentation": {"out": 1},
    "classifier": {"output": -1},
    "tiny_logits": {"logits": 1},
    "key_value_cache": {"logits": 2},
    "boxes": {"scores": 2},
}
"""Where classes lie in the outputs that hold scores; no other output of any model here does."""
