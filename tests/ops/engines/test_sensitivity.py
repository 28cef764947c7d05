"""Sensitivity: the layers that make the error are found, and keeping them meets the budget."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors, sensitivity
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.calibration import collect
from trtops.backend.onnxrt.runner import reference_runner
from trtops.calibration import CalibrationCache
from trtops.metadata import TensorMetadata
from trtops.ops.engines.sensitivity import SensitivityConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.memory import MemoryTracker

WIDTH, INNER = 32, 64
INPUTS = TensorMetadata().add("x", "float32", ("batch", "seq", WIDTH))


def block() -> onnx.ModelProto:
    """A transformer block with one head and normalization at both ends."""
    weights = {f"w_{n}": models.random(WIDTH, WIDTH, seed=i, scale=WIDTH**-0.5) for i, n in enumerate("qkvo")}
    weights |= {
        "w_in": models.random(WIDTH, INNER, seed=5, scale=WIDTH**-0.5),
        "b_in": models.random(INNER, seed=6, scale=0.1),
        "w_out": models.random(INNER, WIDTH, seed=7, scale=INNER**-0.5),
        "gain": np.ones(WIDTH, np.float32),
        "shift": np.zeros(WIDTH, np.float32),
        "depth": np.float32(WIDTH**0.5),
    }
    return models.model(
        f"""(float[batch,seq,{WIDTH}] x) => (float[batch,seq,{WIDTH}] y) {{
            [norm0] h = LayerNormalization<axis = -1>(x, gain, shift)
            [q] q = MatMul(h, w_q)
            [k] k0 = MatMul(h, w_k)
            k = Transpose<perm = [0,2,1]>(k0)
            [v] v = MatMul(h, w_v)
            [scores] s0 = MatMul(q, k)
            s1 = Div(s0, depth)
            s2 = Softmax<axis = -1>(s1)
            [mix] a0 = MatMul(s2, v)
            [proj] a1 = MatMul(a0, w_o)
            r = Add(x, a1)
            [mlp_in] m0 = MatMul(r, w_in)
            m1 = Add(m0, b_in)
            m2 = Relu(m1)
            [mlp_out] m3 = MatMul(m2, w_out)
            t = Add(r, m3)
            [norm1] y = LayerNormalization<axis = -1>(t, gain, shift)
        }}""",
        weights,
    )


def tokens(count: int, seed: int):
    """Sequences of 64 tokens in batches of 8; one token in 512 is sixty times as large, as a first token can be."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        x = rng.standard_normal((8, 64, WIDTH)).astype(np.float32)
        x[0, 0] *= 60
        yield {"x": x}


HELD_OUT = list(tokens(2, seed=99))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(block(), tmp_path / "block.onnx")
    return tmp_path / "block.onnx"


def ranges(algorithm="minmax", percentile=99.9) -> CalibrationCache:
    return collect(block(), tokens(16, seed=1), inputs=INPUTS).cache(algorithm, percentile)


def engine_error(path: Path, cache: CalibrationCache, keep: tuple[str, ...] = ()) -> float:
    """Relative error of a built INT8 engine on held-out tokens."""
    model, backend = Model.load(path), OnnxRuntimeBackend()
    config = BuildConfig(precision="int8", keep=keep, options=OnnxRuntimeOptions(tactics=(), timing_iterations=1))
    build = backend.build(BuildRequest(model, config, caches=Caches(calibration=cache.to_bytes())))
    with backend.runner(build.engine) as runner, reference_runner(model) as reference:
        pairs = [(runner.infer(feed)["y"].copy(), reference.infer(feed)["y"].copy()) for feed in HELD_OUT]
    actual, golden = (np.stack(side) for side in zip(*pairs))
    return float(np.sqrt(np.square(actual - golden).sum() / np.square(golden).sum()))


def test_kept_layers_halve_the_error(path: Path) -> None:
    minmax = engine_error(path, ranges())
    proposed = sensitivity(path, ranges(), SensitivityConfig(budget=0.01), tracker=MemoryTracker(), data=HELD_OUT)

    # How much the others cost is for the processor to say: without VNNI, sums of products of integers are cut off.
    assert set(proposed.keep[:2]) == {"mlp_in", "mlp_out"}
    assert engine_error(path, ranges("percentile")) < minmax / 2
    assert engine_error(path, ranges(), proposed.keep) < min(minmax / 20, 1.05 * proposed.error_kept)


@pytest.mark.parametrize("style", ["onnxruntime", "tensorrt"])
def test_outlier_layers_have_most_error(path: Path, style) -> None:
    config, tracker = SensitivityConfig(budget=0.02, style=style), MemoryTracker()

    result = sensitivity(path, ranges(), config, tracker=tracker, data=HELD_OUT)

    assert {layer.layer for layer in result.layers[:2]} == {"mlp_in", "mlp_out"}
    assert sum(layer.share for layer in result.layers[:2]) > 0.9
    assert result.error > 0.1 and result.error_kept <= 0.02
    assert len(result.layers) == 8
    run = tracker.load(result.run_id)
    table = json.loads(run.read_bytes("sensitivity/layers.json"))
    assert table["columns"] == ["layer", "op", "error", "share", "keep"]
    assert [row[0] for row in table["data"]] == [layer.layer for layer in result.layers]
    assert [row[0] for row in table["data"] if row[4]] == list(result.keep)
    assert run.info.metrics["sensitivity", "error_kept"] == result.error_kept


def test_budgets_decide_kept_layers_and_caches_are_complete(path: Path) -> None:
    for budget, kept_count in ((0.5, 0), (0.15, 1), (1e-9, 8)):
        config = SensitivityConfig(budget=budget)
        assert len(sensitivity(path, ranges(), config, tracker=MemoryTracker(), data=HELD_OUT).keep) == kept_count
    with pytest.raises(errors.CalibrationError, match="'r'"):
        sensitivity(path, models.without(ranges(), "r"), tracker=MemoryTracker(), data=HELD_OUT)
