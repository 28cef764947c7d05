"""Pairs of a sound model and one with a planted defect, as a wrong builder or a wrong export would make it.

A defect replaces a part of the model's text, or weights. ``stale`` is a defect of the runner: each inference returns
the outputs of the one before.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tests.models import CONV_NODES, model, random
from trtops.backend.onnx.model import Model

Array = np.ndarray


@dataclass(frozen=True)
class Defect:
    """One planted defect."""

    kind: str
    text: tuple[tuple[str, str], ...] = ()  # parts of the text and what replaces them
    weights: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)
    stale: bool = False


@dataclass(frozen=True)
class Sound:
    """A sound model, its data, and its defects."""

    name: str
    text: str
    weights: Mapping[str, Array]
    feeds: list[dict[str, Array]]
    defects: tuple[Defect, ...]

    def model(self, defect: Defect | None = None) -> Model:
        """The model, or the one with a defect."""
        text, weights = self.text, dict(self.weights)
        for old, new in defect.text if defect else ():
            assert old in text, old
            text = text.replace(old, new)
        for name, change in (defect.weights if defect else {}).items():
            weights[name] = np.ascontiguousarray(change(weights[name]))
        return Model.from_proto(model(text, weights, name=self.name))


def replaced(kind: str, *text: tuple[str, str]) -> Defect:
    return Defect(kind, text)


def weight(kind: str, name: str, change: Callable[[Array], Array]) -> Defect:
    return Defect(kind, weights={name: change})


def zeroed(axis: int, index: int) -> Callable[[Array], Array]:
    """Set one slice of a weight to zero."""

    def change(array: Array) -> Array:
        moved = np.moveaxis(array.copy(), axis, 0)
        moved[index] = 0
        return np.moveaxis(moved, 0, axis)

    return change


STALE = Defect("stale output", stale=True)


def detector() -> Sound:
    """Boxes in pixels with a score each, ``(N, 64, 5)``: x1, y1, x2, y2, score."""
    weights = {
        "w0": random(12, 3, 3, 3, seed=1, scale=0.3),
        "b0": random(12, seed=2, scale=0.5),
        "w1": random(5, 12, 3, 3, seed=3, scale=0.15),
        "b1": random(5, seed=4, scale=0.3),
        "pixels": np.array([80, 80, 80, 80, 1], np.float32).reshape(1, 5, 1, 1),
        "middle": np.array([120, 120, 200, 200, 0], np.float32).reshape(1, 5, 1, 1),
        "four": np.array([4]), "five": np.array([5]), "zero": np.array([0]), "one": np.array([1]),
        "rows": np.array([0, 5, -1]), "rare": np.float32(0.02), "nan": np.float32(np.nan),
        "back": np.array([3, 2, 1, 0]),
        "high": np.float32(0.8), "low": np.float32(0),
    }  # fmt: skip
    text = """(float[4,3,16,16] image) => (float[4,64,5] found) {
        [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
        [act0] a0 = LeakyRelu<alpha = 0.1>(c0)
        [conv1] c1 = Conv<pads = [1,1,1,1], strides = [2,2]>(a0, w1, b1)
        raw = Tanh(c1)
        scaled = Mul(raw, pixels)
        placed = Add(scaled, middle)
        boxes = Slice(placed, zero, four, one)
        logit = Slice(c1, four, five, one)
        score = Sigmoid(logit)
        all = Concat<axis = 1>(boxes, score)
        flat = Reshape(all, rows)
        found = Transpose<perm = [0,2,1]>(flat)
    }"""
    last = "found = Transpose<perm = [0,2,1]>(flat)"
    return Sound("detector", text, weights, [{"image": random(4, 3, 16, 16, seed=10 + i)} for i in range(3)], (
        replaced("inverted score", ("score = Sigmoid(logit)", "other = Neg(logit) score = Sigmoid(other)")),
        replaced("score without sigmoid", ("score = Sigmoid(logit)", "score = Identity(logit)")),
        replaced("clipped score", ("score = Sigmoid(logit)", "s = Sigmoid(logit) score = Clip(s, low, high)")),
        weight("dropped bias", "b0", np.zeros_like),
        weight("dropped bias of the head", "b1", np.zeros_like),
        weight("zeroed channel", "w0", zeroed(0, 3)),
        weight("zeroed score", "w1", zeroed(0, 4)),
        weight("swapped columns", "w1", lambda w: w[[1, 0, 2, 3, 4]]),
        replaced("wrong pad", ("[conv0] c0 = Conv<pads = [1,1,1,1]>", "[conv0] c0 = Conv<pads = [0,0,2,2]>")),
        replaced("shifted stride", ("pads = [1,1,1,1], strides", "pads = [0,0,2,2], strides")),
        replaced("swapped rows", (last, "t = Transpose<perm = [0,2,1]>(flat) found = Gather(t, back)")),
        replaced("rare NaN", (last, "t = Transpose<perm = [0,2,1]>(flat) b = Less(t, rare) found = Where(b, nan, t)")),
        weight("flipped kernel", "w0", lambda w: w[..., ::-1]),
        weight("wrong gain", "w1", lambda w: w * np.float32(0.97)),
        STALE,
    ))  # fmt: skip


def classifier() -> Sound:
    """Probabilities of 10 classes, with batch normalization whose variances are small."""
    weights = {
        "w0": random(8, 3, 3, 3, seed=1, scale=0.05), "b0": random(8, seed=2, scale=0.1),
        "scale": np.abs(random(8, seed=3)) + 0.5, "bias": random(8, seed=4),
        "mean": random(8, seed=5, scale=0.1), "var": np.abs(random(8, seed=6, scale=0.02)) + np.float32(0.005),
        "w1": random(16, 8, 3, 3, seed=7, scale=0.2), "w2": random(16, 10, seed=8, scale=0.6), "b2": random(10, seed=9),
        "back": np.array([3, 2, 1, 0]), "shrunk": np.float32(1.02),
    }  # fmt: skip
    text = f"(float[4,3,10,10] image) => (float[4,10] scores) {{ {CONV_NODES}"
    return Sound("classifier", text, weights, [{"image": random(4, 3, 10, 10, seed=20 + i)} for i in range(3)], (
        replaced("wrong epsilon", ("Normalization", "Normalization<epsilon = 0.001>")),
        replaced("wrong axis of softmax", ("Softmax<axis = 1>", "Softmax<axis = 0>")),
        replaced("pooled by maximum", ("GlobalAveragePool", "GlobalMaxPool")),
        replaced("wrong pad", ("pads = [1,1,1,1]", "pads = [2,2,0,0]")),
        replaced("missing activation", ("r1 = Relu(c1)", "r1 = Identity(c1)")),
        replaced("swapped rows", ("] scores =", "] s ="), ("(logits)", "(logits) scores = Gather(s, back)")),
        weight("dropped bias", "b0", np.zeros_like),
        weight("dropped bias of the head", "b2", np.zeros_like),
        weight("zeroed channel", "w1", zeroed(0, 5)),
        weight("zeroed input channel", "w0", zeroed(1, 1)),
        weight("swapped classes", "w2", lambda w: w[:, [1, 0, *range(2, 10)]]),
        weight("dropped mean", "mean", np.zeros_like),
        STALE,
    ))  # fmt: skip


def segmentation() -> Sound:
    """Logits of 6 classes for each pixel, and the best class."""
    weights = {
        "w0": random(12, 3, 3, 3, seed=1, scale=0.4), "b0": random(12, seed=5, scale=0.3),
        "w1": random(12, 12, 3, 3, seed=2, scale=0.2), "w2": random(6, 12, 1, 1, seed=3, scale=0.5),
        "from": np.array([1]), "to": np.array([21]), "axis": np.array([3]), "later": np.array([2]),
        "end": np.array([22]),
        "back": np.array([1, 0]), "limit": np.float32(2.0), "least": np.float32(-1e3),
    }  # fmt: skip
    text = """(float[2,3,16,24] image) => (float[2,6,16,20] out, int64[2,16,20] best) {
        [c0] a0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
        [r0] a1 = Relu(a0)
        [c1] a2 = Conv<pads = [1,1,1,1]>(a1, w1)
        [r1] a3 = Relu(a2)
        [c2] a4 = Conv(a3, w2)
        [crop] out = Slice(a4, from, to, axis)
        [best] best = ArgMax<axis = 1, keepdims = 0>(out)
    }"""
    return Sound("segmentation", text, weights, [{"image": random(2, 3, 16, 24, seed=30 + i)} for i in range(3)], (
        replaced("crop off by one", ("Slice(a4, from, to, axis)", "Slice(a4, later, end, axis)")),
        replaced("wrong pad", ("[c1] a2 = Conv<pads = [1,1,1,1]>", "[c1] a2 = Conv<pads = [2,1,0,1]>")),
        replaced("least class", ("ArgMax", "ArgMin")),
        replaced("swapped rows", ("[crop] out =", "[crop] o ="), ("to, axis)", "to, axis) out = Gather(o, back)")),
        replaced("clipped range", ("[crop] out", "[crop] o"), ("to, axis)", "to, axis) out = Clip(o, least, limit)")),
        replaced("missing activation", ("a3 = Relu(a2)", "a3 = LeakyRelu<alpha = 0.05>(a2)")),
        weight("dropped bias", "b0", np.zeros_like),
        weight("zeroed channel", "w2", zeroed(0, 2)),
        weight("swapped classes", "w2", lambda w: w[[0, 1, 3, 2, 4, 5]]),
        weight("zeroed unit", "w1", zeroed(0, 7)),
        STALE,
    ))  # fmt: skip


def transformer() -> Sound:
    """A block of attention and an MLP with GELU."""
    width = 16
    weights = {f"w{n}": random(width, width, seed=i, scale=0.25) for i, n in enumerate("qkvo")}
    weights |= {
        "gain": np.abs(random(width, seed=11)) + 0.5, "shift": random(width, seed=12, scale=0.2),
        "w_in": random(width, 32, seed=5, scale=0.25), "b_in": random(32, seed=6, scale=0.3),
        "w_out": random(32, width, seed=7, scale=0.25), "depth": np.float32(4), "sqrt2": np.float32(np.sqrt(2)),
        "one": np.float32(1), "half": np.float32(0.5), "k": np.float32(1.702), "back": np.array([1, 0]),
    }  # fmt: skip
    text = """(float[2,9,16] x) => (float[2,9,16] y) {
        [norm0] h = LayerNormalization<axis = -1, epsilon = 0.00001>(x, gain, shift)
        q = MatMul(h, wq)
        k0 = MatMul(h, wk)
        k1 = Transpose<perm = [0,2,1]>(k0)
        v = MatMul(h, wv)
        s0 = MatMul(q, k1)
        s1 = Div(s0, depth)
        s2 = Softmax<axis = -1>(s1)
        a0 = MatMul(s2, v)
        a1 = MatMul(a0, wo)
        r = Add(x, a1)
        [norm1] m0 = LayerNormalization<axis = -1, epsilon = 0.00001>(r, gain, shift)
        m1 = MatMul(m0, w_in)
        m2 = Add(m1, b_in)
        e0 = Div(m2, sqrt2)
        e1 = Erf(e0)
        e2 = Add(e1, one)
        e3 = Mul(m2, e2)
        e4 = Mul(e3, half)
        m3 = MatMul(e4, w_out)
        y = Add(r, m3)
    }"""
    return Sound("transformer", text, weights, [{"x": random(2, 9, width, seed=40 + i)} for i in range(3)], (
        replaced("wrong epsilon", ("epsilon = 0.00001>(r", "epsilon = 0.01>(r")),
        replaced("wrong axis of softmax", ("Softmax<axis = -1>", "Softmax<axis = 1>")),
        replaced("missing scale", ("s1 = Div(s0, depth)", "s1 = Identity(s0)")),
        replaced("missing residual", ("r = Add(x, a1)", "r = Identity(a1)")),
        replaced("approximate GELU", ("e4 = Mul(e3, half)", "g0 = Mul(m2, k) g1 = Sigmoid(g0) e4 = Mul(m2, g1)")),
        replaced("swapped rows", ("y = Add(r, m3)", "t = Add(r, m3) y = Gather(t, back)")),
        weight("dropped bias", "b_in", np.zeros_like),
        weight("zeroed unit", "w_in", zeroed(1, 3)),
        weight("transposed weight", "wo", np.transpose),
        weight("swapped heads", "wv", lambda w: np.roll(w, 8, axis=1)),
        STALE,
    ))  # fmt: skip


def audio() -> Sound:
    """A filter of a signal with rare spikes."""
    weights = {
        "w0": random(6, 1, 1, 5, seed=1, scale=0.4), "w1": random(1, 6, 1, 5, seed=2, scale=0.3),
        "low": np.float32(-2.5), "high": np.float32(2.5), "back": np.array([3, 2, 1, 0]),
    }  # fmt: skip
    text = """(float[4,1,1,200] signal) => (float[4,1,1,200] clean) {
        [conv0] c0 = Conv<pads = [0,2,0,2]>(signal, w0)
        [act0] a0 = LeakyRelu<alpha = 0.2>(c0)
        [conv1] clean = Conv<pads = [0,2,0,2]>(a0, w1)
    }"""
    feeds = []
    for seed in range(3):
        signal = random(4, 1, 1, 200, seed=50 + seed, scale=0.5)
        signal[:, ..., 20 + 40 * seed] = (-1) ** seed * 6
        feeds.append({"signal": signal})
    return Sound("audio", text, weights, feeds, (
        replaced("lost spikes", ("Conv<pads = [0,2,0,2]>(signal, w0)", "Conv<pads = [0,2,0,2]>(small, w0)"),
                 ("[conv0]", "small = Clip(signal, low, high) [conv0]")),
        replaced(
            "clipped output", ("[conv1] clean =", "[conv1] wide ="), ("w1)", "w1) clean = Clip(wide, low, high)")
        ),
        replaced("delayed by one", ("Conv<pads = [0,2,0,2]>(a0", "Conv<pads = [0,3,0,1]>(a0")),
        replaced("lost negative half", ("LeakyRelu<alpha = 0.2>", "Relu")),
        weight("zeroed channel", "w0", zeroed(0, 2)),
        weight("reversed filter", "w1", lambda w: w[..., ::-1]),
        STALE,
    ))  # fmt: skip


def regression() -> Sound:
    """Six quantities in units of their own, from thousands to hundredths."""
    weights = {
        "w0": random(12, 24, seed=1, scale=0.3), "b0": random(24, seed=2, scale=0.3),
        "w1": random(24, 6, seed=3, scale=0.3),
        "units": np.array([1000, 50, 5, 1, 0.1, 0.02], np.float32), "shift": random(6, seed=4, scale=0.1),
    }  # fmt: skip
    text = """(float[48,12] x) => (float[48,6] y) {
        h0 = Gemm(x, w0, b0)
        h1 = Tanh(h0)
        raw = MatMul(h1, w1)
        moved = Add(raw, shift)
        y = Mul(moved, units)
    }"""
    return Sound("regression", text, weights, [{"x": random(48, 12, seed=60 + i)} for i in range(2)], (
        weight("zeroed small column", "w1", zeroed(1, 5)),
        weight("negated small column", "units", lambda u: u * np.array([1, 1, 1, 1, -1, 1], np.float32)),
        weight("swapped small columns", "w1", lambda w: w[:, [0, 1, 2, 4, 3, 5]]),
        weight("dropped shift", "shift", np.zeros_like),
        weight("dropped bias", "b0", np.zeros_like),
        weight("wrong unit", "units", lambda u: u * np.array([1, 1, 1, 1, 1, 1.1], np.float32)),
        STALE,
    ))  # fmt: skip


def steep() -> Sound:
    """A map with a steep sigmoid, as detectors of text end in."""
    weights = {
        "w0": random(8, 3, 3, 3, seed=1, scale=0.3), "w1": random(1, 8, 3, 3, seed=2, scale=0.3),
        "steep": np.float32(20),
        "less": np.float32(18),
    }  # fmt: skip
    text = """(float[2,3,20,20] image) => (float[2,1,20,20] map) {
        [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0)
        [relu0] r0 = Relu(c0)
        [conv1] c1 = Conv<pads = [1,1,1,1]>(r0, w1)
        l = Mul(c1, steep)
        map = Sigmoid(l)
    }"""
    return Sound("steep", text, weights, [{"image": random(2, 3, 20, 20, seed=70 + i)} for i in range(2)], (
        replaced("less steep", ("Mul(c1, steep)", "Mul(c1, less)")),
        replaced("wrong pad", ("[conv1] c1 = Conv<pads = [1,1,1,1]>", "[conv1] c1 = Conv<pads = [0,1,2,1]>")),
        weight("zeroed channel", "w0", zeroed(0, 1)),
        weight("transposed kernel", "w1", lambda w: np.swapaxes(w, 2, 3)),
    ))  # fmt: skip


MODELS: tuple[Callable[[], Sound], ...] = (detector, classifier, segmentation, transformer, audio, regression, steep)


def pairs() -> Iterator[tuple[Sound, Defect]]:
    """Every pair."""
    for make in MODELS:
        sound = make()
        yield from ((sound, defect) for defect in sound.defects)
