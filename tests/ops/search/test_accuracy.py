"""The first tensor at which two sides differ is found and explained."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests import models, zoo
from trtops import accuracy
from trtops.backend.base import BaseRunner, Build
from trtops.backend.worker import built_safely
from trtops.comparator.report import OutputTolerances, Tolerances
from trtops.ops.search.accuracy import AccuracyConfig, AccuracyResult, Emulated, MakeRunner
from trtops.ops.search.submodel import onnxruntime_runner
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact

TIGHT = Tolerances(atol=1e-3, rtol=1e-3)


def chain(length: int = 12) -> onnx.ModelProto:
    body = "\n".join(f"[n{i}] t{i + 1} = {('Neg', 'Neg', 'LeakyRelu')[i % 3]}(t{i})" for i in range(length))
    return models.model(
        f"(float[2,8] x) => (float[2,8] y) {{ [first] t0 = Mul(x, two)\n{body}\n[last] y = Add(t{length}, t0) }}",
        {"two": np.float32(2)},
    )


def compared(model: onnx.ModelProto, side: MakeRunner | BuildConfig, *feeds: Any, **options: Any) -> AccuracyResult:
    config = AccuracyConfig(**{"tolerances": TIGHT, **options})
    return accuracy(model, side, config, data=[dict(feed) for feed in feeds] or None)


def off_by(node: str, amount: float, unless_observed: bool = False) -> MakeRunner:
    """A back end that computes one node wrongly; like a bad fusion, only if its output is not observed."""

    def make(model: onnx.ModelProto) -> BaseRunner:
        [result] = [n.output[0] for n in model.graph.node if n.name == node]
        observed = unless_observed and result in {value.name for value in model.graph.output}
        return onnxruntime_runner(model if observed else models.off_by(model, amount, node))

    return make


def test_observed_engines_have_the_settings_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[Build] = []

    def build(*args: Any, **options: Any) -> Build:
        builds.append(built_safely(*args, **options))
        return builds[-1]

    monkeypatch.setattr("trtops.ops.search.accuracy.built_safely", build)
    monkeypatch.setattr("trtops.ops.search.accuracy._WINDOW_BYTES", 1 << 14)
    case = models.transformer()
    config = BuildConfig(options=OnnxRuntimeOptions(allow_approximation=True, tactic_seed=3))

    result = accuracy(case.proto, config, data=[case.feed])

    assert len(builds) == result.windows + 1 > 2
    assert len({observed.tactics.settings for observed in builds}) == 1 and builds[0].tactics.settings
    assert all("tactics that change" not in observed.log for observed in builds[1:])


def test_the_wrong_node_is_named() -> None:
    result = compared(chain(), off_by("n5", 0.01))

    assert (result.verdict, result.first, result.origin) == ("bad", "t6", "t6")
    assert result.tensor("t6").node == "n5" and result.tensor("t5").error < 1e-5
    assert result.chain[:3] == ("t6", "t5", "t4")
    assert "First tensor that differs: 't6', made by LeakyRelu 'n5'" in " ".join(result.because)


@pytest.mark.parametrize("iterations", [1, 3])
def test_small_windows_give_the_same_numbers(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    single = compared(chain(), off_by("n5", 0.01), iterations=iterations)
    monkeypatch.setattr("trtops.ops.search.accuracy._WINDOW_BYTES", 150)
    many = compared(chain(), off_by("n5", 0.01), iterations=iterations)
    assert many.windows > single.windows and many.tensors == single.tensors


def test_an_error_that_disappears_when_observed() -> None:
    result = compared(chain(), off_by("n5", 0.5, unless_observed=True))

    assert result.verdict == "bad" and result.disappears and result.first is None
    assert all(t.verdict == "good" for t in result.tensors)
    assert "disappears when all tensors are observed" in " ".join(result.because)


def test_the_first_infinity_comes_with_the_chain_above() -> None:
    model = models.model(
        "(float[4] x) => (float[4] y) "
        "{ [a] big = Mul(x, k) [b] square = Mul(big, big) [c] root = Sqrt(square) [d] y = Div(root, k) }",
        {"k": np.float32(1000)},
    )
    result = compared(model, Emulated("fp16"), {"x": np.ones(4, np.float32)})

    assert (result.first_nonfinite, result.chain) == ("square", ("square", "big"))
    assert result.tensor("big").magnitude == 1000
    assert (result.tensor("square").nonfinite, result.tensor("square").error) == (4, float("inf"))
    assert "First NaN or infinity: 'square'" in " ".join(result.because)


def test_the_error_is_relative_to_the_reference() -> None:
    model = models.model("(float[4] x) => (float[4] y, float[4] z) { [big] y = Neg(x) [zero] z = Sub(x, x) }")
    feeds = [{"x": np.full(4, n, np.float32)} for n in (1, 2)]
    assert compared(model, off_by("big", 1000), *feeds).tensor("y").error == pytest.approx(1000 * 8**0.5 / 20**0.5)
    assert compared(model, off_by("zero", 7), *feeds).tensor("z").error == 1


def test_nan_of_the_model_itself_is_reported() -> None:
    model = models.model("(float[2] x) => (float[2] y) { [neg] a = Neg(x) [root] b = Sqrt(a) [add] y = Add(b, x) }")
    result = compared(model, onnxruntime_runner, {"x": np.ones(2, np.float32)}, tolerances=None)

    assert (result.reference_nan, result.first_nonfinite, result.origin) == ("b", None, "b")
    assert "The reference itself has NaN, first in 'b', made by Sqrt 'root'" in " ".join(result.because)


def test_subgraphs_that_read_outer_tensors_are_emulated() -> None:
    model = models.model(
        """(float[4] x, bool flag) => (float[4] y) {
            t = Mul(x, x) u = Exp(t)
            b = If(flag) <
                then_branch = yes () => (float[4] p) { p = Add(t, u) },
                else_branch = no () => (float[4] q) { q = Sub(t, u) }
            >
            v = Neg(t) y = Add(b, v)
        }"""
    )
    feed = {"x": np.ones(4, np.float32), "flag": np.array(True)}
    assert compared(model, Emulated("fp16"), feed, tolerances=None).tensor("y").error < 1e-3


def test_growth_shows_where_rounding_is_amplified() -> None:
    model = models.model(
        "(float[256] x) => (float[256] y) { a = Add(x, k) b = Sub(a, k) y = Mul(b, two) }",
        {"k": np.float32(100), "two": np.float32(2)},
    )
    result = compared(model, Emulated("fp16"))
    assert result.origin == "b" and (result.tensor("b").growth or 0) > 50


def test_every_model_equals_itself_and_its_engine() -> None:
    for case in (make() for make in models.ALL):
        assert compared(case.proto, onnxruntime_runner, case.feed).verdict == "good", case.name
    case = models.conv_net()
    result = compared(case.proto, BuildConfig(options=OnnxRuntimeOptions(tactics=())), case.feed)
    assert result.verdict == "good" and any(t.layer for t in result.tensors)


def test_everything_is_logged_and_drawn() -> None:
    tracker = MemoryTracker()
    result = accuracy(chain(), off_by("n5", 0.01), AccuracyConfig(tolerances=TIGHT), tracker=tracker, file="chain.onnx")
    assert AccuracyResult.from_json(result.to_json()).first == result.first
    info = tracker.info(result.run_id)
    assert (info.experiment, info.verdict) == ("chain", "bad") and info.metrics["accuracy", "differing"] > 0
    report = tracker.load(result.run_id).read_bytes(Artifact.REPORT).decode()
    drawn = report[report.index("<svg") :]
    assert "Error of each tensor" in report and all(tensor.name in drawn for tensor in result.tensors)


@pytest.mark.parametrize("side", [BuildConfig(), BuildConfig(precision="fp16"), Emulated("fp16")])
def test_feeds_of_different_shapes_cause_no_error(side: BuildConfig | Emulated) -> None:
    """As exporters write ``x.view(len(x), -1)``: the target shape is read from a tensor inside the model."""
    model = models.model(
        """(float[N,4,6] x) => (float[N,24] y) {
            r = Relu(x) s = Shape(r) n = Gather(s, first) t = Concat<axis = 0>(n, rest)
            f = Reshape(r, t) g = MatMul(f, w) y = Relu(g)
        }""",
        {"w": models.random(24, 24), "first": np.array([0]), "rest": np.array([-1])},
    )
    for batches in ((1, 3), (3, 1)):
        feeds = [{"x": models.random(batch, 4, 6, seed=batch)} for batch in batches]
        result = compared(model, side, *feeds, tolerances=None)
        assert (result.verdict, result.first) == ("good", None)


def test_a_clamped_mask_is_no_error() -> None:
    case = zoo.masked_attention()
    for tolerances in (None, Tolerances(atol=2e-2, rtol=2e-2)):
        result = compared(case.proto, Emulated("fp16"), case.feed, tolerances=tolerances)
        assert (result.verdict, result.first, result.origin) == ("good", None, None)
        assert all(t.growth is None or t.growth < 10 for t in result.tensors)
    loose = Tolerances(per_output={"last_hidden_state": OutputTolerances(atol=1.0)})
    result = compared(case.proto, Emulated("fp16"), case.feed, tolerances=loose)
    assert result.because[0].startswith("The model's outputs agree. The first tensor that differs inside:")
