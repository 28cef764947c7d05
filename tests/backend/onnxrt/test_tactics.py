"""Tactics of ONNX Runtime: each changes the optimized graph of some model; timing caches, and the ORT format."""

import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import models
from tests.models import model, random
from trtops import errors
from trtops.backend.base import BuildRequest
from trtops.backend.environment import Processor
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import lower_precision
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.ort_format import read_graph
from trtops.backend.onnxrt.plan import Plan, describe
from trtops.backend.onnxrt.profile import layer_times
from trtops.backend.onnxrt.tactics import CUDA_TACTICS, TACTICS, Candidate, allowed
from trtops.backend.onnxrt.timing_cache import Timing, TimingCache, timing_key
from trtops.spec import BuildConfig, OnnxRuntimeOptions

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
    with Optimizer(proto, OnnxRuntimeOptions(), SessionLog()) as optimizer:
        return Counter(node.kernel for node in optimizer(Candidate.toggling(toggled)).graph.nodes)


@pytest.mark.parametrize("tactic", [tactic.name for tactic in TACTICS if tactic.name != "MatMulNBitsInt8"])
def test_every_tactic_changes_kernels(tactic):
    proto, without = MODELS[tactic](), WITHOUT.get(tactic, ())

    assert kernels(proto, *without, tactic) != kernels(proto, *without)


def test_quantized_weights_multiply_in_fp32_by_default():
    text = "(float[4,64] x) => (float[4,4] y) { d = DequantizeLinear(w, s)\n y = MatMul(x, d) }"
    weights = {"w": int8(64, 4), "s": np.float32(0.01)}
    proto, x = model(text, weights), random(4, 64)
    expected, errors_of = x @ (weights["w"] * weights["s"]), {}
    with Optimizer(proto, OnnxRuntimeOptions(), SessionLog()) as optimizer:
        for toggled in ((), ("MatMulNBitsInt8",)):
            optimized = optimizer(Candidate.toggling(toggled))
            operators = [node.op for node in optimized.graph.nodes]
            if operators == ["DequantizeLinear", "MatMul"]:
                pytest.skip("releases up to 1.23 do not fuse them")
            assert operators == ["MatMulNBits"]
            [y] = ort.InferenceSession(optimized.plan, providers=["CPUExecutionProvider"]).run(None, {"x": x})
            errors_of[toggled] = np.abs(y - expected).max() / np.abs(expected).max()
    assert errors_of[()] < 1e-6 < 1e-3 < errors_of["MatMulNBitsInt8",]


def test_allowed_tactics():
    names = ("MatMulAddFusion", "NchwcTransformer")

    def found(names, providers="cpu", allow_approximation=True):
        return allowed(
            OnnxRuntimeOptions(tactics=names, providers=(providers,), allow_approximation=allow_approximation)
        )

    assert all(tactic.exact for tactic in found(None, allow_approximation=False))
    assert set(found(None)) == set(TACTICS)
    assert set(found(None, "cuda")) == {*TACTICS, *CUDA_TACTICS}
    assert found(("CudaGraph",)) == found(()) == ()
    assert found(names) == found(names[::-1])
    with pytest.raises(errors.ConfigError, match=r"'GeluApproximation'.*allow_approximation"):
        found(("GeluApproximation",), allow_approximation=False)
    with pytest.raises(errors.ConfigError, match="Did you mean 'NchwcTransformer'"):
        found(("NchwTransformer",))


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

    assert processor.saturates is overflows


def key(candidate: str = "default", **changes) -> str:
    key_parts = {"model_sha256": "m", "providers": ("CPUExecutionProvider",), "threads": 0, "shapes": {"x": (1, 2)}}
    return timing_key(candidate_id=candidate, **(key_parts | changes))


def make_cache(device: str = "here", **medians: float) -> TimingCache:
    cache = TimingCache(device)
    for candidate, median in medians.items():
        cache.timings[key(candidate)] = Timing(median_seconds=median, cost_seconds=1.0)
        cache.graphs[key(candidate, shapes=None)] = f"graph of {candidate}"
        cache.skipped.add(key(f"-{candidate}", shapes=None))
    return cache


def test_cache_survives_serialization() -> None:
    cache = make_cache(a=1.5, b=2.5)

    assert TimingCache.from_bytes(cache.to_bytes(), "here") == cache
    assert cache.to_bytes() == make_cache(b=2.5, a=1.5).to_bytes()


def test_each_condition_changes_the_key() -> None:
    changes = [
        {"model_sha256": "n"},
        {"candidate": "other"},
        {"threads": 4},
        {"shapes": {"x": (2, 2)}},
        {"shapes": None},
        {"providers": ("Other",)},
    ]
    assert len({key(), *(key(**change) for change in changes)}) == 7


def test_damaged_or_foreign_caches_are_refused() -> None:
    good = make_cache(a=1.0).to_bytes()
    for data in (
        *(b"", b"\x80\x04junk", b"[]", b"{}", b"[" * 100_000, good[:-20]),
        good.replace(b'"version":2', b'"version":3'),
        good.replace(b'"median_seconds":1.0', b'"median_seconds":"fast"'),
        good.replace(b'"median_seconds":1.0', b'"median_seconds":NaN'),
        good.replace(b'"log_ratios":[]', b'"log_ratios":[1e3]'),
        good.replace(b'"graphs"', b'"graph"'),
    ):
        with pytest.raises(errors.TimingCacheError):
            TimingCache.from_bytes(data)
    with pytest.raises(errors.TimingCacheError, match=r"'there'.*'here'"):
        TimingCache.from_bytes(make_cache("there").to_bytes(), "here")


# Runs in a process of its own: importing the generated reader changes the root logger and sys.path.
_ORACLE = """
import sys
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import InferenceSession

graph = InferenceSession.GetRootAs(open(sys.argv[1], "rb").read(), 0).Model().Graph()
for index in range(graph.NodesLength()):
    node = graph.Nodes(index)
    inputs = [node.Inputs(i).decode() for i in range(node.InputsLength())]
    outputs = [node.Outputs(i).decode() for i in range(node.OutputsLength())]
    texts = [node.Name(), node.Domain(), node.OpType(), node.ExecutionProviderType()]
    print([text.decode() for text in texts], node.SinceVersion(), inputs, outputs, node.AttributesLength())
"""


@pytest.mark.parametrize("make", [models.conv_net, models.transformer, models.qdq_net])
def test_nodes_equal_onnx_runtimes_reader(make, tmp_path):
    path = tmp_path / "engine.ort"
    with Optimizer(make().proto, OnnxRuntimeOptions(), SessionLog()) as optimizer:
        path.write_bytes(optimizer(Candidate()).plan)

    graph = read_graph(path.read_bytes())
    nodes, types = graph.nodes, graph.scopes[""].types
    done = subprocess.run([sys.executable, "-c", _ORACLE, str(path)], capture_output=True, text=True, check=True)

    ours = [
        f"{[n.name, n.domain, n.op, n.provider]} {n.since_version} {list(n.inputs)} {list(n.outputs)}"
        f" {len(n.attributes)}"
        for n in nodes
    ]
    assert ours == done.stdout.splitlines()
    assert {"float"} <= set(types.values())


def test_attributes_have_their_values():
    text = "(float[1,3,8,8] x) => (float[1,3,4,4] y) { y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x) }"
    with Optimizer(models.model(text), OnnxRuntimeOptions(), SessionLog()) as optimizer:
        (node,) = read_graph(optimizer(Candidate(("NchwcTransformer",))).plan).nodes

    expected = {"kernel_shape": [2, 2], "ceil_mode": 0, "auto_pad": "NOTSET"}
    assert {name: value for name, value in node.attributes if name in expected} == expected


def scoped(then: str = "t = Neg(a)", other: str = "t = Sigmoid(a)", result: str = "t") -> onnx.ModelProto:
    """Both branches and the graph around them have an a; the main graph's follows the If."""
    return model(
        f"""(float[n,8] x, bool c) => (float[n,8] y) {{
            h = Relu(x)
            z = If(c) <
                then_branch = yes () => (float[n,8] t) {{ a = Tanh(h) {then} }},
                else_branch = no () => (float[n,8] {result}) {{ a = Exp(h) {other} s = Abs(a) }}
            >
            a = Cos(z)
            y = Sub(a, h) }}"""
    )


def plan_of(proto: onnx.ModelProto) -> Plan:
    with Optimizer(proto, OnnxRuntimeOptions(), SessionLog()) as optimizer:
        return optimizer(Candidate()).graph


def test_layers_of_bodies_are_resolved_by_scope():
    proto = scoped()

    layers, choices = describe(plan_of(proto), proto)

    ops = {layer.name: layer.op for layer in layers if layer.op != "Abs"}
    assert list(ops) == ["h", "z", *(f"z/{part}_branch/{name}" for part in ("then", "else") for name in "at"), "a", "y"]
    assert list(ops.values()) == ["Relu", "If", "Tanh", "Neg", "Exp", "Sigmoid", "Cos", "Sub"]
    assert len({choice.layer for choice in choices}) == len(layers)


def test_times_of_layers_are_those_of_the_main_graph():
    # The branches return a tensor of the If's own name.
    proto = model(
        """(float[n,8] x, bool c) => (float[n,8] y) {
            h = Relu(x)
            y = If(c) <
                then_branch = yes () => (float[n,8] y) { y = Neg(h) },
                else_branch = no () => (float[n,8] y) { y = Exp(h) }
            > }"""
    )
    build = OnnxRuntimeBackend().build(
        BuildRequest(Model.from_proto(proto), BuildConfig(options=OnnxRuntimeOptions(tactics=())))
    )

    layers = layer_times(build, {"x": random(2, 8), "c": np.array(True)})

    assert set(layers) == {"h", "y"}


def test_signature_covers_what_bodies_read_and_return():
    signature = plan_of(scoped()).signature

    assert plan_of(scoped()).signature == signature
    for changed in (
        {"then": "t = Neg(h)"},  # the outer tensor
        {"other": "t = Sigmoid(h)"},
        {"result": "s"},  # another tensor of the same nodes
        {"then": "t = Sigmoid(a)", "other": "t = Neg(a)"},
    ):
        assert plan_of(scoped(**changed)).signature != signature


@pytest.mark.parametrize("body", ["Relu(h)", "Gemm(h, square, row)"])
def test_half_precision_bodies_that_share_names_have_a_plan(body):
    # ONNX Runtime casts h in the graph and again, under the same name, in the bodies.
    proto = model(
        f"""(float[n,8] x, bool c) => (float[n,8] y) {{
            h = MatMul(x, square)
            z = If(c) <
                then_branch = yes () => (float[n,8] t) {{ t = {body} }},
                else_branch = no () => (float[n,8] t) {{ t = Sigmoid(h) }}
            >
            y = MatMul(z, square) }}""",
        {"square": W, "row": ROW},
    )
    low = lower_precision(proto, "fp16").model

    plan = plan_of(low)

    layers, _ = describe(plan, low)
    assert len({layer.name for layer in layers}) == len(plan.nodes)
    assert {"", "z/then_branch/", "z/else_branch/"} == {node.scope for node in plan.nodes}
