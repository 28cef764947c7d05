"""A search keeps to its time, learns from one look what need not be tried, and says what it left out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.backend.onnxrt.test_tactics import MODELS
from tests.models import model, random
from trtops import BuildConfig, ConvertConfig, MemoryTracker, convert, errors
from trtops.backend.base import Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import measure
from trtops.backend.onnxrt.budget import Budget
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.tactics import TACTICS, Candidate
from trtops.spec import OnnxRuntimeOptions
from trtops.tracking.schema import Tag

BACKEND = OnnxRuntimeBackend()


def config(**options) -> BuildConfig:
    return BuildConfig(options=OnnxRuntimeOptions(allow_approximation=True, intra_op_threads=1, **options))


def layers_net() -> Model:
    """Four tactics change it: products with bias, Gemm with Relu, GELU, and its approximation."""
    weights = {
        "w": random(16, 16, seed=1, scale=0.3),
        "row": random(16, seed=2),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    return Model.from_proto(
        model(
            """(float[4,16] x) => (float[4,16] y) {
                m0 = MatMul(x, w) a0 = Add(m0, row) t0 = Div(a0, root) e0 = Erf(t0) p0 = Add(e0, one)
                g0 = Mul(a0, p0) h0 = Mul(g0, half) m1 = MatMul(h0, w) s0 = Add(m1, x)
                n0 = LayerNormalization<axis = -1>(s0, row, row) r0 = Gemm(n0, w, row) y = Relu(r0) }""",
            weights,
        )
    )


@pytest.mark.parametrize("name", MODELS)
def test_one_look_finds_every_tactic_that_changes_the_graph_on_its_own(name):
    with Optimizer(MODELS[name](), providers=("CPUExecutionProvider",), threads=1, log=SessionLog()) as optimizer:
        usual = optimizer(Candidate()).graph.signature
        changing = {t for t in TACTICS if optimizer(Candidate.toggling([t.name])).graph.signature != usual}
        found = {t for t in TACTICS if optimizer.may_change(t)}

    assert changing <= found
    assert len(found) <= len(changing) + 1  # NCHWc kernels take activations in themselves


def test_what_cannot_change_the_graph_is_not_optimized_for(monkeypatch):
    made = []
    write = Optimizer._write_optimized
    monkeypatch.setattr(
        Optimizer,
        "_write_optimized",
        lambda self, candidate, path: (made.append(candidate.id), write(self, candidate, path)),
    )

    build = BACKEND.build(Model.from_proto(MODELS["GemmActivationFusion"]()), config(timing_iterations=1))

    assert made == ["default", "-GemmActivationFusion"]
    assert build.tactics.settings == (("GemmActivationFusion", dict(build.tactics.settings)["GemmActivationFusion"]),)
    assert not build.skipped


def test_without_time_the_default_is_built_and_the_rest_named():
    net = layers_net()

    build = BACKEND.build(net, config(timing_seconds=0.0))
    whole = BACKEND.build(net, config(timing_seconds=60.0))

    assert "-GeluFusionL2" in build.skipped and "+GeluApproximation" in build.skipped
    assert "-GeluFusionL2 was not tried: no time was left" in build.log
    assert build.tactics.settings == () and build.timing_cache_use.misses == 0
    assert not whole.skipped and len(whole.tactics.settings) > 3


def test_a_build_with_the_cache_of_one_that_ran_out_of_time_leaves_out_the_same_unless_it_is_given_time():
    net = layers_net()
    short = BACKEND.build(net, config(timing_seconds=0.0))

    again = BACKEND.build(net, config(), caches=Caches(timing=short.timing_cache))
    given = BACKEND.build(net, config(timing_seconds=60.0), caches=Caches(timing=short.timing_cache))

    assert again.skipped == short.skipped and again.tactics == short.tactics
    assert not given.skipped and given.timing_cache_use.misses > 3


def test_the_slower_half_drops_out(monkeypatch):
    counts: dict[str, int] = {}
    run = measure._Lane.run

    def counted(lane, feed):
        run(lane, feed)
        counts[lane.candidate.id] = counts.get(lane.candidate.id, 0) + 1

    monkeypatch.setattr(measure._Lane, "run", counted)

    BACKEND.build(
        layers_net(), config(timing_seconds=60.0, tactics=("MatMulAddFusion", "GemmActivationFusion", "GeluFusionL2"))
    )

    assert len(counts) == 8 and sorted(counts.values())[-2:] == [8, 8]
    assert sum(counts.values()) < 8 * len(counts) * 0.7
    assert min(counts.values()) == 2


def test_the_time_follows_from_the_models_own_speed(monkeypatch):
    clock = iter([100.0, 103.0, 107.0, 119.0])
    monkeypatch.setattr("trtops.backend.onnxrt.budget.time.perf_counter", lambda: next(clock))
    budget = Budget()

    assert budget.left == float("inf")
    budget.begin(1.0, 0.2)

    assert budget.left == pytest.approx(5 * 1.0 + 60 * 0.2 - 3.0)
    assert budget.allows_another(Candidate(), waiting=1)
    assert not budget.allows_another(Candidate(), waiting=1) and budget.skipped == ["default"]


def test_what_was_skipped_is_in_the_run_and_on_its_page(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(layers_net().proto().SerializeToString())
    tracker = MemoryTracker()

    result = convert(path, ConvertConfig(build=config(timing_seconds=0.0)), tracker=tracker)

    assert json.loads(tracker.info(result.run_id).tags[Tag.SKIPPED]) == list(result.skipped) and result.skipped
    assert "There was no time to try `" in result.page()


def test_a_time_that_cannot_be_meant_is_refused():
    with pytest.raises(errors.ConfigError, match="timing_seconds is -1"):
        BACKEND.build(layers_net(), config(timing_seconds=-1.0))
