"""Selections are compared by what they select: ties may change places, other candidates may not."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests import models
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.comparator import compare_outputs
from trtops.ops.evaluation.data import Feeds, collect, golden_outputs
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.evaluation.selections import Ranking, Selections
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Precision

CORNERS = np.stack(np.meshgrid(np.arange(5), np.arange(4)), -1).reshape(-1, 2) * 100.0
BOXES = np.concatenate([CORNERS, CORNERS + 50], 1)[None].astype(np.float32)
COUNT = {"k": np.array([8])}
SUPPRESSION = {
    "boxes": BOXES, "all": np.array(20), "iou": np.float32(0.5), "score": np.float32(0), "to": np.array([1, 1, 20]),
}  # fmt: skip
TAIL = {"first": np.array([0]), "last": np.array(2), "flat": np.array([-1])}
SUPPRESSED = "p = Sigmoid(l) s = Reshape(p, to) sel = NonMaxSuppression(boxes, s, all, iou, score)"

# Text, weights, and candidates whose scores are near each other.
KINDS: dict[str, tuple[str, dict[str, np.ndarray], int]] = {
    "ranked": ("(float[20,16] x) => (float[20,8] v, int64[20,8] i) { l = MatMul(x, w) v, i = TopK(l, k) }", COUNT, 40),
    "gathered": (
        "(float[20,16] x) => (float[20,8,4] b) { l = MatMul(x, w) v, i = TopK(l, k) t = Squeeze(boxes, first) "
        "b = Gather(t, i) }",
        {**COUNT, "boxes": BOXES, "first": TAIL["first"]},
        20,
    ),
    "suppressed": (f"(float[1,16] x) => (int64[n,3] sel) {{ l = MatMul(x, w) {SUPPRESSED} }}", SUPPRESSION, 20),
    "detector": (
        f"(float[1,16] x) => (float[n,4] b, float[n] c) {{ l = MatMul(x, w) {SUPPRESSED} "
        "i = Gather<axis = 1>(sel, last) t = Squeeze(boxes, first) b = Gather(t, i) f = Reshape(p, flat) "
        "c = Gather(f, i) }",
        {**SUPPRESSION, **TAIL},
        20,
    ),
    "chosen": (
        "(float[20,16] x) => (int32[20] c) { l = MatMul(x, w) m = ArgMax<axis = -1>(l) n = Cast<to = 6>(m) "
        "c = Squeeze(n, one) }",
        {"one": np.array([1])},
        6,
    ),
}  # fmt: skip


def right_model(kind: str, precision: Precision = "fp16", spread: float = 2e-3) -> RightModel:
    text, weights, candidates = KINDS[kind]
    common, different = models.random(16, 1, seed=1, scale=0.4), models.random(16, candidates, seed=2, scale=spread)
    model = Model.from_proto(models.model(text, {**weights, "w": common + different}))
    rows = 1 if "[1,16]" in text else 20
    feeds = [{"x": models.random(rows, 16, seed=seed)} for seed in (3, 4)]
    build = BuildConfig(precision=precision, options=OnnxRuntimeOptions(tactics=()))
    return RightModel(model=model, build=build, feeds=feeds, golden=golden_outputs(model, feeds, None))


@pytest.mark.parametrize("kind", KINDS)
def test_engine_may_order_ties_otherwise(kind: str) -> None:
    right = right_model(kind, spread=3e-4 if kind in ("suppressed", "detector") else 2e-3)
    backend = engine_backend("onnxruntime")
    data = Feeds("the feeds", lambda: right.feeds)
    build = backend.build(BuildRequest(right.model, right.build, caches=Caches(), calibration_data=data))
    with backend.runner(build.engine) as runner:
        outputs = collect(runner, right.feeds)
    limits = right.tolerances(None)
    assert not right.noise.insufficient and right.noise.outputs
    assert compare_outputs(right.aligned(outputs), right.golden, limits)
    # What rounding does to selections does not widen the limits of what is gathered.
    for noise in right.noise.outputs:
        assert noise.equal is None or kind == "chosen" or noise.equal == 1.0
        assert noise.whole is None or noise.whole.rms < 1e-2 * noise.whole.size


def exchanged(first: int, second: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        axis = 1 if len(array) == 20 and array.ndim > 1 and array.shape[1] == 8 else 0
        order = np.arange(array.shape[axis])
        order[[first, second]] = order[[second, first]]
        return np.take(array, order, axis)

    return change


def doubled(array: np.ndarray) -> np.ndarray:
    axis = 1 if len(array) == 20 and array.ndim > 1 and array.shape[1] == 8 else 0
    return np.take(array, [0, 0, *range(2, array.shape[axis])], axis)


@pytest.mark.parametrize("kind", ["ranked", "gathered", "suppressed", "detector"])
def test_other_selections_stay_bad(kind: str) -> None:
    right = right_model(kind, spread=0.5)  # nothing ties
    limits = right.tolerances(None)
    golden = right.golden[0][1]

    def verdict(change: Callable[[np.ndarray], np.ndarray]) -> str:
        changed = [{name: change(array) for name, array in arrays.items()} for arrays in golden]
        return compare_outputs(right.aligned(changed), right.golden, limits).verdict

    assert verdict(lambda array: array) == "good"
    assert verdict(doubled) == "bad"
    # ONNX defines no order of the rows that NonMaxSuppression selects.
    assert verdict(exchanged(0, 5)) == ("good" if kind in ("suppressed", "detector") else "bad")
    assert verdict(lambda array: array[..., ::-1] if array.ndim > 1 else -array) == "bad"


def test_choices_that_do_not_tie_must_agree() -> None:
    right = right_model("chosen", spread=0.5)
    limits, golden = right.tolerances(None), right.golden[0][1]
    wrong = [
        {"c": np.where(np.arange(20) < 6, (arrays["c"] + 1) % 6, arrays["c"]).astype(np.int32)} for arrays in golden
    ]
    assert compare_outputs(right.aligned(wrong), right.golden, limits).verdict == "bad"
    assert compare_outputs(right.aligned(right.golden), right.golden, limits)


def test_selected_rows_at_a_threshold_may_come_and_go() -> None:
    text = "(float[4,64] x) => (int64[2,n] at) { y = Add(x, x) p = Greater(y, edge) at = NonZero(p) }"
    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64)
    x[0, 0] = 0.5 + 2.0**-13  # rounds to the edge
    model = Model.from_proto(models.model(text, {"edge": np.float32(1)}))
    golden = golden_outputs(model, [{"x": x}], None)
    build = BuildConfig(precision="fp16", options=OnnxRuntimeOptions(tactics=()))
    right = RightModel(model=model, build=build, feeds=[{"x": x}], golden=golden)
    limits, at = right.tolerances(None), golden[0][1][0]["at"]

    def verdict(array: np.ndarray) -> str:
        return compare_outputs(right.aligned({"at": array}), golden, limits).verdict

    assert at[:, 0].tolist() == [0, 0]
    assert verdict(at) == "good" and verdict(at[:, 1:]) == "good"
    assert verdict(at[:, :-1]) == "bad"  # far above the edge


@pytest.mark.parametrize("kind", ["bfloat16", "infinity"])
def test_rows_are_matched_by_value(kind: str) -> None:
    golden = np.arange(12, dtype=np.float32).reshape(4, 3)
    if kind == "infinity":
        golden[0, 0] = np.inf
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.float32
    rounded, order = (golden * np.float32(1.01)).astype(dtype), [2, 0, 3, 1]
    selections = Selections(
        model=Model.from_proto(models.model("(float[4,3] x) => (float[4,3] y) { y = Relu(x) }", {})),
        rankings=(Ranking(axes={"y": 0}),),
        choices=(),
        golden=[{"y": golden.astype(dtype)}],
    )
    [aligned] = selections.align([{"y": rounded[order]}], {})
    np.testing.assert_array_equal(aligned["y"], rounded)
