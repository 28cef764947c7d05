"""Faults planted into small models, each with the kind and the place that triage has to name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests import models
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.calibration import collect
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.triaging.result import TriageConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile, ShapeRange

Weights = dict[str, np.ndarray]
CHECK = CheckConfig(plots="never", latency_runs=0)
FP32 = BuildConfig()
FP16 = BuildConfig(precision="fp16")
INT8 = BuildConfig(precision="int8")
APPROXIMATE = BuildConfig(
    options=OnnxRuntimeOptions(tactics=("GeluApproximation",), allow_approximation=True, tactic_seed=0)
)


def dense(body: str = "c = Relu(b)", extra: Weights | None = None, out: str = "c") -> onnx.ModelProto:
    """Two matrix products with something between them."""
    weights = {"w0": models.random(32, 32, seed=1, scale=0.2), "w1": models.random(32, 8, seed=2, scale=0.2)}
    text = (
        f"(float[N,32] x) => (float[N,8] y) {{ [mm0] a = MatMul(x, w0)\n b = Identity(a)\n{body}\n"
        f"[mm1] y = MatMul({out}, w1) }}"
    )
    return models.model(text, {**weights, **(extra or {})}, name="dense")


def convolutional(body: str = "c = Relu(b)", extra: Weights | None = None, out: str = "c") -> onnx.ModelProto:
    """A convolution, something, another convolution, and a mean over the image."""
    weights = {"k0": models.random(8, 3, 3, 3, seed=3, scale=0.3), "k1": models.random(4, 8, 3, 3, seed=4, scale=0.2)}
    text = (
        f"(float[N,3,8,8] x) => (float[N,4,1,1] y) {{ [conv0] b = Conv<pads = [1,1,1,1]>(x, k0)\n{body}\n"
        f"[conv1] d = Conv<pads = [1,1,1,1]>({out}, k1)\n[mean] y = GlobalAveragePool(d) }}"
    )
    return models.model(text, {**weights, **(extra or {})}, name="convolutional")


def normed(
    eps: float = 1e-5, variance: str = "[sub] m = Sub(x, mu) [sq] s = Mul(m, m) [var] v = ReduceMean<axes = [-1]>(s)"
) -> onnx.ModelProto:
    """A layer normalization in single ops, and a matrix product."""
    weights = {"eps": np.full(16, eps, np.float32), "w": models.random(16, 16, seed=5, scale=0.3)}
    text = f"""(float[N,16] x) => (float[N,16] y) {{
        [mu] mu = ReduceMean<axes = [-1]>(x)
        [centre] n = Sub(x, mu)
        {variance}
        [guard] g = Add(v, eps)
        [root] r = Sqrt(g)
        [norm] o = Div(n, r)
        [mm] y = MatMul(o, w)
    }}"""
    return models.model(text, weights, name="normed")


def embedded(rows: int = 64) -> onnx.ModelProto:
    """Tokens and their positions, looked up and added."""
    weights = {
        "table": models.random(50, 16, seed=6), "places": models.random(rows, 16, seed=7),
        "w": models.random(16, 16, seed=8, scale=0.3), "zero": np.array(0), "one": np.array(1), "axis0": np.array([0]),
    }  # fmt: skip
    text = """(int64[L] tokens) => (float[L,16] y) {
        [look] e = Gather(table, tokens)
        [size] s = Shape(tokens)
        [length] l = Squeeze(s)
        [count] r = Range(zero, l, one)
        [place] p = Gather(places, r)
        [add] a = Add(e, p)
        [mm] y = MatMul(a, w)
    }"""
    return models.model(text, weights, name="embedded")


def transformer() -> onnx.ModelProto:
    """One block of a transformer, with GELU in single ops."""
    return models.transformer().proto


def feed_of(proto: onnx.ModelProto, seed: int = 9, rows: int = 4) -> Weights:
    """Inputs of one of these models."""
    feed, generator = {}, np.random.default_rng(seed)
    for value in proto.graph.input:
        shape = [d.dim_value or rows for d in value.type.tensor_type.shape.dim]
        integers = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        values = generator.integers(0, 50, shape) if integers else generator.standard_normal(shape)
        feed[value.name] = values if integers else values.astype(np.float32)
    return feed


@dataclass(frozen=True)
class Planted:
    """A fault in a model: triage has to give one of the kinds and one of the places."""

    name: str
    kinds: tuple[str, ...]
    places: tuple[str, ...]
    make: Callable[[Path], tuple[onnx.ModelProto, TriageConfig]]  # given a folder

    def write(self, folder: Path) -> tuple[Path, TriageConfig]:
        """Write the model and its inputs."""
        folder.mkdir(parents=True, exist_ok=True)
        proto, config = self.make(folder)
        path = folder / "model.onnx"
        onnx.save(proto, path)
        if config.check.data is None:
            config = replace(config, check=replace(config.check, data=saved(folder, feed_of(proto))))
        return path, config


def saved(folder: Path, feed: Weights) -> str:
    np.savez(folder / "inputs.npz", **feed)
    return str(folder / "inputs.npz")


def plain(proto: onnx.ModelProto, build: BuildConfig = FP32, **check: Any) -> tuple[onnx.ModelProto, TriageConfig]:
    return proto, TriageConfig(build=build, check=replace(CHECK, **check))


def against(golden: onnx.ModelProto, proto: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, TriageConfig]:
    """A model with the one it should be."""
    onnx.save(golden, folder / "golden.onnx")
    return proto, TriageConfig(check=CHECK, golden_model=str(folder / "golden.onnx"))


def with_weight(proto: onnx.ModelProto, name: str, change: Callable[[Any], Any]) -> onnx.ModelProto:
    """The model with one weight changed."""
    [tensor] = [t for t in proto.graph.initializer if t.name == name]
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(numpy_helper.to_array(tensor).copy())), name))
    return proto


def range_cut(proto: onnx.ModelProto, tensor: str, folder: Path) -> tuple[onnx.ModelProto, TriageConfig]:
    """INT8 with one range of a twentieth of the values."""
    feed = feed_of(proto, rows=16)
    model = Model.from_proto(proto)
    cache = collect(proto, [feed], inputs=TensorMetadata.of(model.info.inputs), min_samples=1).cache()
    ranges = tuple(replace(r, amax=r.amax / 20, low=None, high=None) if r.name == tensor else r for r in cache.ranges)
    (folder / "int8.json").write_text(replace(cache, ranges=ranges).to_json())
    check = replace(CHECK, data=saved(folder, feed))
    return proto, TriageConfig(build=INT8, check=check, calibration_cache=str(folder / "int8.json"))


def noisy(proto_of: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    body = "[noise] q = RandomUniformLike(b) [small] z = Mul(q, tiny) [sum] t = Add(b, z)\n[act] c = Relu(t)"
    return proto_of(body, {"tiny": np.float32(1e-2)})


def flat_rows(folder: Path) -> str:
    """Inputs with one row of equal values, whose variance is 0."""
    x = models.random(4, 16, seed=9)
    x[1] = 3.0
    return saved(folder, {"x": x})


def at_edge(
    proto: onnx.ModelProto, name: str, low: tuple[int, ...], high: tuple[int, ...], opt: tuple[int, ...]
) -> tuple[onnx.ModelProto, TriageConfig]:
    profile = OptimizationProfile(shapes=(ShapeRange(name=name, min=low, opt=opt, max=high),))
    return plain(proto, BuildConfig(profiles=(profile,)))


GELU = "[g0] e0 = Div(b, root2) [g1] e1 = Erf(e0) [g2] e2 = Add(e1, one) [g3] e3 = Mul(b, e2) [g4] c = Mul(e3, half)"
GELU_WEIGHTS = {"root2": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
ROUNDED = "[up] i = Mul(b, ten) [toint] j = Cast<to = 7>(i) [tofloat] k = Cast<to = 1>(j) [down] c = Div(k, ten)"
UNROUNDED = "[up] i = Mul(b, ten) [down] c = Div(i, ten)"
TEN = {"ten": np.float32(10)}
LARGE = {"k": np.float32(3000.0)}
FOUR_ROWS = "[fix] g = Reshape(b, four) c = Relu(g)"
VARIANCE = "[sq] s = Mul(x, x) [ms] m2 = ReduceMean<axes = [-1]>(s) [mm2] q = Mul(mu, mu) [diff] v = Sub(m2, q)"


def gated(make: Callable[..., onnx.ModelProto], is_open: bool) -> onnx.ModelProto:
    """A model with a branch that can be closed."""
    gate = np.float32(is_open)
    return make("[gate] h = Mul(b, open) [act] c = Relu(h)", {"open": gate})


FAULTS: tuple[Planted, ...] = (
    Planted("wrong constant, dense", ("wrong constant",), ("w0", "mm0"),
            lambda f: against(dense(), with_weight(dense(), "w0", lambda a: np.where(a == a.max(), a + 3, a)), f)),
    Planted("wrong constant, transformer", ("wrong constant",), ("w_in", "mlp_in"),
            lambda f: against(transformer(), with_weight(transformer(), "w_in", lambda a: a * 1.5), f)),
    Planted("overflow, dense", ("overflow",), ("big", "square", "sq"),
            lambda f: plain(dense("[big] g = Mul(b, k) [sq] h = Mul(g, g) [root] c = Sqrt(h)", LARGE), FP16)),
    Planted("overflow, convolutional", ("overflow",), ("big", "g"),
            lambda f: plain(convolutional("[big] g = Mul(b, k) [small] c = Div(g, k)", {"k": np.float32(5e4)}), FP16)),
    Planted("cancellation, dense", ("cancellation",), ("down", "h"),
            lambda f: plain(dense("[up] g = Add(b, k) [down] c = Sub(g, k)", LARGE), FP16)),
    Planted("cancellation, normed", ("cancellation", "underflow", "rounding"), ("diff", "v", "root", "guard", "norm"),
            lambda f: plain(normed(variance=VARIANCE), FP16, data=saved(f, {"x": models.random(4, 16) * 0.3 + 20}))),
    Planted("tactic, transformer", ("tactic",), ("GeluApproximation",),
            lambda f: plain(transformer(), APPROXIMATE)),
    Planted("tactic, dense", ("tactic",), ("GeluApproximation",),
            lambda f: plain(dense(GELU, GELU_WEIGHTS), APPROXIMATE)),
    Planted("range cut, dense", ("range",), ("c",), lambda f: range_cut(dense(), "c", f)),
    Planted("range cut, convolutional", ("range",), ("c",), lambda f: range_cut(convolutional(), "c", f)),
    Planted("guard underflows, normed", ("underflow", "nan"), ("norm", "o", "guard", "eps"),
            lambda f: plain(normed(eps=1e-12), FP16, data=flat_rows(f))),
    Planted("guard fails, dense", ("nan",), ("root", "c"),
            lambda f: plain(dense("[shift] g = Sub(b, one) [root] c = Sqrt(g)", {"one": np.float32(1)}))),
    Planted("cast lost, dense", ("lost node",), ("tofloat", "toint", "down"),
            lambda f: against(dense(ROUNDED, TEN), dense(UNROUNDED, TEN), f)),
    Planted("cast lost, convolutional", ("lost node",), ("tofloat", "toint", "down"),
            lambda f: against(convolutional(ROUNDED, TEN), convolutional(UNROUNDED, TEN), f)),
    Planted("not repeatable, dense", ("not repeatable",), ("noise", "q", "sum"), lambda f: plain(noisy(dense))),
    Planted("not repeatable, convolutional", ("not repeatable",), ("noise", "q", "sum"),
            lambda f: plain(noisy(convolutional))),
    Planted("shape at the edge, embedded", ("shape",), ("place", "places"),
            lambda f: at_edge(embedded(rows=16), "tokens", (1,), (32,), (4,))),
    Planted("shape at the edge, dense", ("shape",), ("fix",),
            lambda f: at_edge(dense(FOUR_ROWS, {"four": np.array([4, 32])}), "x", (4, 32), (8, 32), (4, 32))),
    Planted("dead branch, dense", ("dead branch",), ("gate", "h"),
            lambda f: against(gated(dense, True), gated(dense, False), f)),
    Planted("dead branch, convolutional", ("dead branch",), ("gate", "h"),
            lambda f: against(gated(convolutional, True), gated(convolutional, False), f)),
)  # fmt: skip
"""Twenty faults of ten kinds in five models."""
