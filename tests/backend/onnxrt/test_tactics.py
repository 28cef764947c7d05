"""Each tactic changes the optimized graph of some model."""

from collections import Counter

import numpy as np
import onnx
import pytest

from tests.models import model, random
from trtops import errors
from trtops.backend.environment import Processor
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.tactics import TACTICS, Candidate, allowed, overflows_in_8_bits

W = random(8, 8, seed=1, scale=0.3)
KERNEL = random(8, 8, 3, 3, seed=2, scale=0.3)
ROW = random(8, seed=3)
CONV = """(float[1,8,8,8] x) => (float[1,8,8,8] y) {
    c = Conv<pads = [1,1,1,1]>(x, kernel)
    b = BatchNormalization(c, ones, row, row, ones)
    y = Relu(b) }"""
CONV_WEIGHTS = {"kernel": KERNEL, "ones": np.ones(8, np.float32), "row": ROW}
GELU = "t = Div(x, root)\n e = Erf(t)\n p = Add(e, one)\n m = Mul(x, p)\n y = Mul(m, half)"
BIAS_GELU = GELU.replace("x", "xb").replace("t = ", "xb = Add(x, row)\n t = ")
GELU_WEIGHTS = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
NORM = """(float[2,4,8] x) => (float[2,4,8] y) {
    m = ReduceMean<axes = [-1], keepdims = 1>(x)
    d = Sub(x, m)
    s = Pow(d, two)
    v = ReduceMean<axes = [-1], keepdims = 1>(s)
    e = Add(v, tiny)
    r = Sqrt(e)
    n = Div(d, r)
    g = Mul(n, row)
    y = Add(g, row) }"""
SCALES = {"s": np.float32(0.02), "z": np.uint8(128), "wz": np.int8(0)}
QUANTIZED = """{{ q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    wd = DequantizeLinear(w, s, wz)
    c = {op}(d, wd)
    q2 = QuantizeLinear(c, s, z)
    y = DequantizeLinear(q2, s, z) }}"""


def int8(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(np.int8)


MATRIX = "(float[4,8] x) => (float[4,8] y)"
MODELS = {
    "NchwcTransformer": lambda: model(CONV, CONV_WEIGHTS),
    "NhwcTransformer": lambda: model(
        "(float[1,8,6,6] x) => (float[1,8,4,4] y) " + QUANTIZED.format(op="Conv"), SCALES | {"w": int8(8, 8, 3, 3)}
    ),
    "ConvActivationFusion": lambda: model(CONV, CONV_WEIGHTS),
    "ConvBNFusion": lambda: model(CONV, CONV_WEIGHTS),
    "MatMulAddFusion": lambda: model(MATRIX + "{ m = MatMul(x, w)\n y = Add(m, row) }", {"w": W, "row": ROW}),
    "GemmActivationFusion": lambda: model(MATRIX + "{ g = Gemm(x, w, row)\n y = Relu(g) }", {"w": W, "row": ROW}),
    "MatMulScaleFusion": lambda: model(
        "(float[2,4,8] x, float[2,8,4] z) => (float[2,4,4] y) { m = MatMul(x, z)\n y = Mul(m, k) }",
        {"k": np.float32(0.5)},
    ),
    "MatmulTransposeFusion": lambda: model(
        "(float[2,4,8] x, float[2,4,8] z) => (float[2,4,4] y) { t = Transpose<perm = [0,2,1]>(z)\n y = MatMul(x, t) }"
    ),
    "LayerNormFusionL1": lambda: model(NORM, {"two": np.float32(2), "tiny": np.float32(1e-5), "row": ROW}),
    "SkipLayerNormFusion": lambda: model(
        "(float[2,4,8] x, float[2,4,8] z) => (float[2,4,8] y) {"
        " a = Add(x, z)\n y = LayerNormalization<axis = -1>(a, row, row) }",
        {"row": ROW},
    ),
    "GeluFusionL2": lambda: model(f"{MATRIX} {{ {GELU} }}", GELU_WEIGHTS),
    "BiasGeluFusion": lambda: model(f"{MATRIX} {{ {BIAS_GELU} }}", GELU_WEIGHTS | {"row": ROW}),
    "QuickGeluFusion": lambda: model(
        MATRIX + "{ k = Mul(x, a)\n s = Sigmoid(k)\n y = Mul(x, s) }", {"a": np.float32(1.702)}
    ),
    "QDQSelectorActionTransformer": lambda: model(
        "(float[4,8] x) => (float[4,4] y) " + QUANTIZED.format(op="MatMul"), SCALES | {"w": int8(8, 4)}
    ),
    "GeluApproximation": lambda: model(f"{MATRIX} {{ {GELU} }}", GELU_WEIGHTS),
}  # fmt: skip
WITHOUT = {"ConvActivationFusion": ("NchwcTransformer",)}
"""Tactics that must be off for another to matter: NCHWc kernels fuse activations themselves."""


def kernels(proto: onnx.ModelProto, *toggled: str) -> Counter[str]:
    with Optimizer(proto, ("CPUExecutionProvider",), 0, SessionLog()) as optimizer:
        return Counter(node.kernel for node in optimizer(Candidate.toggling(toggled)).graph.nodes)


@pytest.mark.parametrize("tactic", [tactic.name for tactic in TACTICS])
def test_every_tactic_changes_kernels(tactic):
    proto, without = MODELS[tactic](), WITHOUT.get(tactic, ())

    assert kernels(proto, *without, tactic) != kernels(proto, *without)


def test_allowed_tactics():
    names = ("MatMulAddFusion", "NchwcTransformer")

    assert all(tactic.exact for tactic in allowed(None, allow_approximation=False))
    assert set(allowed(None, allow_approximation=True)) == set(TACTICS)
    assert allowed((), allow_approximation=True) == ()
    assert allowed(names, allow_approximation=False) == allowed(names[::-1], allow_approximation=False)
    with pytest.raises(errors.ConfigError, match=r"'GeluApproximation'.*allow_approximation"):
        allowed(("GeluApproximation",), allow_approximation=False)
    with pytest.raises(errors.ConfigError, match="Did you mean 'NchwcTransformer'"):
        allowed(("NchwTransformer",), allow_approximation=False)


def test_candidate_survives_its_settings():
    candidate = Candidate.toggling(["GeluApproximation", "MatMulAddFusion"])
    settings = candidate.settings(["NchwcTransformer", "MatMulAddFusion"])

    assert settings == (("GeluApproximation", "on"), ("MatMulAddFusion", "off"), ("NchwcTransformer", "on"))
    assert Candidate.from_settings(settings) == candidate
    with pytest.raises(errors.ConfigError, match="'maybe'; expected 'on' or 'off'"):
        Candidate.from_settings([("MatMulAddFusion", "maybe")])


@pytest.mark.parametrize(
    ("machine", "sets", "overflows"),
    [("x86_64", ("avx2",), True), ("x86_64", ("avx2", "avx512_vnni"), False), ("aarch64", ("asimd",), False)],
)
def test_eight_bit_overflow_needs_x86_without_vnni(machine, sets, overflows):
    processor = Processor(name="p", machine=machine, instruction_sets=sets, sha256="")

    assert overflows_in_8_bits(processor) is overflows
