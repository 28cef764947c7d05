"""Shapes that an evaluation covers, and the evidence that it states."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import ProfiledFeed
from trtops.backend.onnx.model import Model
from trtops.metadata import TensorMetadata
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import DataConfig
from trtops.ops.evaluation.shapes import points
from trtops.spec import BuildConfig, OptimizationProfile, ShapeRange, TensorRTOptions
from trtops.tracking.memory import MemoryTracker

ROWS = "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
PROFILES = (
    OptimizationProfile(shapes=(ShapeRange(name="x", min=(2, 4), opt=(4, 4), max=(16, 4)),)),
    OptimizationProfile(shapes=(ShapeRange(name="x", min=(16, 4), opt=(16, 4), max=(16, 4)),)),
)
QUICK = CheckConfig(latency_runs=0, plots="never")


def loaded(text: str, **weights: np.ndarray) -> Model:
    return Model.from_proto(models.model(text, weights))


def shapes_of(config: DataConfig, model: Model, **options: object) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in next(iter(config.open_for(model, **options))).items()}


def converted(folder: Path, check: CheckConfig = QUICK, text: str = ROWS, **build: object) -> ConvertResult:
    path = folder / "m.onnx"
    onnx.save(models.model(text), path)
    tracker = MemoryTracker()
    result = convert(path, ConvertConfig(check=check, build=BuildConfig(**build)), tracker=tracker)
    run = tracker.info(result.run_id)
    assert result.evidence.startswith(run.params["evidence.margin"])
    assert run.params["evidence.samples"] == str(result.evaluation.evidence.samples)
    return result


def test_sizes_follow_weights_names_and_defaults() -> None:
    image = "(float[b,c,h,w] x) => (float[b,8,p,q] y) { y = Conv(x, k) }"
    assert shapes_of(DataConfig(), loaded(image, k=models.random(8, 3, 5, 5))) == {"x": (2, 3, 64, 64)}
    matrix = "(float[n,k] x) => (float[n,5] y) { y = MatMul(x, w) }"
    assert shapes_of(DataConfig(), loaded(matrix, w=models.random(7, 5))) == {"x": (2, 7)}
    same = "(float[s,2] x, float[batch_size,s] z) => (float[s,2] y, float[batch_size,s] u) { y = Relu(x) u = Relu(z) }"
    assert shapes_of(DataConfig(), loaded(same)) == {"x": (2, 2), "z": (2, 2)}


POSITIONS = """(int64[batch,sequence] ids) => (float[batch,sequence,8] y) {
    s = Shape<start = 1>(ids)
    p = Slice(places, zero, s, zero)
    e = Gather(words, ids)
    x = Add(e, p)
    y = Relu(x)
}"""


@pytest.mark.parametrize(("positions", "size"), [(100, 64), (32, 32), (9, 8), (3, 2)])
def test_size_is_halved_until_the_model_runs(positions: int, size: int) -> None:
    weights = {"words": models.random(20, 8), "places": models.random(positions, 8), "zero": np.array([0])}
    model = loaded(POSITIONS, **weights)
    feeds = DataConfig().open_for(model)
    profile = OptimizationProfile.fixed(ids=(2, size))

    assert feeds.assumed == {"ids": (2, size)} and [feed["ids"].shape for feed in feeds] == [(2, size)] * 2
    # TensorRT's profile is made of these shapes, which stay assumed.
    assert DataConfig().profiled(BuildConfig(options=TensorRTOptions()), model).profiles == (profile,)
    assert DataConfig().open_for(model, profiles=(profile,)).assumed == {"ids": (2, size)}
    assert not DataConfig(input_shapes={"ids": (2, 5)}).open_for(model).assumed


def test_models_are_not_run_where_sizes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.ops.evaluation.data.reference_runner", None)

    assert DataConfig().open_for(loaded(ROWS)).assumed == {"x": (2, 4)}  # a batch
    wide = loaded("(float[N,M] x) => (float[N,M] y) { y = Abs(x) }")
    assert not DataConfig(input_shapes={"x": (2, 5)}).open_for(wide).assumed


def test_sums_of_names_are_summed() -> None:
    proto = models.model("(float[b,p] x, float[b,q] m) => (float[b,p] y, float[b,q] n) { y = Relu(x) n = Relu(m) }")
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "p + 1"
    assert shapes_of(DataConfig(), Model.from_proto(proto)) == {"x": (2, 64), "m": (2, 65)}


def test_random_data_has_both_signs_where_allowed() -> None:
    plain = next(iter(DataConfig().open_for(loaded(ROWS))))["x"]
    assert plain.min() < -0.3 and plain.max() > 0.3
    roots = loaded("(float[8,8] x) => (float[8,8] y) { c = Constant<value = float {1e-6}>() z = Add(x, c) y = Log(z) }")
    assert next(iter(DataConfig().open_for(roots)))["x"].min() > 0


def test_given_shapes_win_and_must_fit() -> None:
    model = loaded("(float[N,S] x, float[N,S] z) => (float[N,S] y) { y = Add(x, z) }")
    assert shapes_of(DataConfig(input_shapes={"x": (3, 5)}), model) == {"x": (3, 5), "z": (3, 5)}
    assert shapes_of(DataConfig(input_shapes={"x": (3, -1)}), model) == {"x": (3, 64), "z": (3, 64)}
    for wrong, words in (({"x": (3, 5, 1)}, "cannot have shape"), ({"q": (1, 2)}, "no input")):
        with pytest.raises(errors.ConfigError, match=words):
            DataConfig(input_shapes=wrong).open_for(model)


def test_profiles_are_evaluated_at_four_points(tmp_path: Path) -> None:
    result = converted(tmp_path, profiles=PROFILES)

    entries = [(e.profile, e.point, e.shapes["x"], len(e.iterations)) for e in result.evaluation.evidence.shapes]
    assert entries == [
        (0, "opt", (4, 4), 2), (0, "min", (2, 4), 1), (0, "max", (16, 4), 1), (0, "between", (10, 4), 1),
        (1, "opt", (16, 4), 1),
    ]  # fmt: skip
    assert result.verdict == "good" and "profile 1 opt" in result.evidence


def test_given_data_is_repeated_for_other_shapes(tmp_path: Path) -> None:
    data = models.random(3, 4)
    np.savez(tmp_path / "d.npz", x=data)
    model = loaded(ROWS)
    feeds = list(DataConfig(data=str(tmp_path / "d.npz")).open_for(model, profiles=PROFILES))

    assert [(f.profile, f.point, f["x"].shape[0]) for f in feeds if isinstance(f, ProfiledFeed)] == [
        (0, "", 3), (0, "opt", 4), (0, "min", 2), (0, "max", 16), (0, "between", 10), (1, "opt", 16),
    ]  # fmt: skip
    np.testing.assert_array_equal(feeds[3]["x"], np.resize(data, (16, 4)))


def test_labels_count_for_given_data_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.eye(4, dtype=np.float32)[:3])
    np.save(tmp_path / "l.npy", np.array([0, 1, 2]))
    check = CheckConfig(data=str(tmp_path / "d.npz"), labels=str(tmp_path / "l.npy"), latency_runs=0)
    (top1,) = converted(tmp_path, check, profiles=PROFILES[:1]).evaluation.tasks
    assert (top1.samples, top1.actual) == (3, 1.0)


@pytest.mark.parametrize(
    ("text", "check", "verdict"),
    [
        (ROWS, QUICK, "unproven"),
        (ROWS, CheckConfig(input_shapes={"x": (3, 4)}, latency_runs=0), "good"),
        ("(float[2,4] x) => (float[2,4] y) { y = Relu(x) }", QUICK, "good"),
        (ROWS, CheckConfig(input_shapes={"x": (0, 4)}, latency_runs=0), "unproven"),
    ],
    ids=["no shapes", "given shapes", "static", "no elements"],
)
def test_dynamic_models_without_shapes_are_unproven(
    tmp_path: Path, text: str, check: CheckConfig, verdict: str
) -> None:
    result = converted(tmp_path, check, text)
    assert result.verdict == verdict
    assert ("promote" in str(result.next_step)) == (verdict == "good")
    # The shapes that were assumed are no advice: with them, the same random data would be good.
    assert ("data, given with --load-inputs" in result.needed) == (verdict == "unproven")
    assert "x:[2,4]" not in f"{result.next_step} {result.needed} {result.reasons}"
    assert ("x 2x4" in "".join(result.reasons)) == (verdict == "unproven" and not check.input_shapes)


@pytest.mark.parametrize(("check", "lost", "verdict"), [
    (CheckConfig(latency_runs=0, plots="never"), "y", "unproven"),
    (CheckConfig(latency_runs=0, plots="never"), "z", "bad"),
    (CheckConfig(latency_runs=0, plots="never", input_shapes={"x": (2, 4)}), "y", "unproven"),
])  # fmt: skip
def test_errors_of_rounding_on_random_data_are_unproven(
    tmp_path: Path, check: CheckConfig, lost: str, verdict: str
) -> None:
    result = converted(tmp_path, check)
    evaluation = result.evaluation
    output = replace(evaluation.report.output("y"), verdict="bad", reasons=("off",))
    report = replace(evaluation.report, verdict="bad", outputs=(output,))
    noise = replace(evaluation.noise, insufficient=((lost, "all are off"),))

    changed = replace(evaluation, report=report, noise=noise)

    assert changed.verdict == verdict and changed.reasons[-1] == "y: off"
    assert ("random data" in changed.reasons[0], changed.bad_in) == (
        (True, ()) if verdict == "unproven" else (False, ("outputs",))
    )
    other = replace(result, verdict=changed.verdict, evaluation=changed)
    assert (other.next_step is None) == (verdict == "unproven")
    assert ("--load-inputs" in other.needed, "--input-shapes" in other.needed) == (verdict == "unproven", False)


def test_bad_shapes_are_named(tmp_path: Path) -> None:
    golden_is_wrong_at_16 = CheckConfig(latency_runs=0, plots="never")
    result = converted(tmp_path, golden_is_wrong_at_16, profiles=PROFILES[:1])
    entries = list(result.evaluation.evidence.shapes)
    bad = [e if e.point != "max" else type(e)(**{**vars(e), "verdict": "bad", "reasons": ("y: off",)}) for e in entries]
    evaluation = result.evaluation
    changed = type(evaluation)(**{**vars(evaluation), "evidence": type(evaluation.evidence)(
        **{**vars(evaluation.evidence), "shapes": tuple(bad)})})  # fmt: skip
    assert changed.verdict == "bad" and changed.reasons == ("y: off, at x 16x4 (profile 0 max)",)
    assert changed.bad_in == ("outputs",)


@pytest.mark.parametrize(("data_options", "expected"), [
    ({"data": "rows"}, ((1, 4), (3, 4), (7, 4))),
    ({"input_shapes": {"x": (5, 4)}}, ((5, 4), (5, 4), (5, 4))),
    ({}, ((2, 4), (2, 4), (2, 4))),
])  # fmt: skip
def test_data_without_profiles_decides_tensorrt_shapes(data_options: dict, expected: tuple, tmp_path: Path) -> None:
    for number, rows in enumerate((7, 3, 1, 3)):
        (tmp_path / "rows").mkdir(exist_ok=True)
        np.savez(tmp_path / "rows" / f"{number}.npz", x=models.random(rows, 4), k=np.zeros(2, np.float32))
    if "data" in data_options:
        data_options = {"data": str(tmp_path / "rows")}
    model = loaded("(float[N,4] x, float[2] k) => (float[N,4] y, float[2] z) { y = Relu(x) z = Relu(k) }")
    for check in (DataConfig(**data_options), CheckConfig(**data_options)):
        built = check.profiled(BuildConfig(options=TensorRTOptions()), model)
        [profile] = built.profiles
        assert [(shape.name, shape.min, shape.opt, shape.max) for shape in profile.shapes] == [("x", *expected)]
        assert bool(check.open_for(model, profiles=built.profiles).assumed) == (data_options == {})
        # Given profiles stay, and ONNX Runtime's engines take any shape.
        assert check.profiled(built, model) is built
        assert check.profiled(BuildConfig(profiles=()), model).profiles == ()
    # INT8 also calibrates at the shapes of its own data.
    np.savez(tmp_path / "more.npz", x=models.random(9, 4), k=np.zeros(2, np.float32))
    wide = BuildConfig(precision="int8", options=TensorRTOptions())
    [profile] = check.profiled(wide, model, str(tmp_path / "more.npz")).profiles
    assert (profile.shapes[0].min, profile.shapes[0].max) == (expected[0], (9, 4))


def test_fixed_profile_gives_the_rank_that_a_model_lacks() -> None:
    proto = models.model(ROWS)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    [point] = points(TensorMetadata.of(Model.from_proto(proto).info.inputs), {}, PROFILES[1:])
    assert point.shapes == {"x": (16, 4)} and not point.assumed


def test_engine_inputs_with_bounds_are_a_profile() -> None:
    from trtops.metadata import TensorMetadata

    inputs = TensorMetadata().add("x", "float32", (-1, 4), min_shape=(2, 4), max_shape=(16, 4))
    assert [(p.point, p.shapes["x"]) for p in points(inputs, {})] == [
        ("opt", (16, 4)), ("min", (2, 4)), ("between", (9, 4)),
    ]  # fmt: skip


def test_next_command_of_bad_runs_carries_everything(tmp_path: Path) -> None:
    check = CheckConfig(input_shapes={"x": (3, 4)}, iterations=3, seed=7, latency_runs=0, plots="never")
    path = tmp_path / "m.onnx"
    onnx.save(models.model(ROWS), path)
    large = convert(path, ConvertConfig(check=check, max_engine_bytes=1), tracker=MemoryTracker())
    assert large.verdict == "bad" and str(large.next_step) == f"trtops inspect run {large.run_id}"
    bad = replace(large, evaluation=replace(large.evaluation, report=replace(large.evaluation.report, verdict="bad")))
    data = "--input-shapes 'x:[3,4]' --iterations 3 --seed 7"
    assert str(bad.next_step) == f"trtops triage {path} --onnxrt {data} --experiment m"


def test_data_of_other_shapes_than_asked_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=models.random(3, 4))
    data = str(tmp_path / "d.npz")
    assert shapes_of(DataConfig(data=data, input_shapes={"x": (3, -1)}), loaded(ROWS)) == {"x": (3, 4)}
    with pytest.raises(errors.InputError, match=r"shape \(3, 4\), and \(5, 4\) is asked for"):
        shapes_of(DataConfig(data=data, input_shapes={"x": (5, 4)}), loaded(ROWS))


@pytest.mark.parametrize(("limit", "times"), [(1 << 28, 1), (0, 2)])
def test_only_small_data_is_read_once(monkeypatch: pytest.MonkeyPatch, limit: int, times: int) -> None:
    monkeypatch.setattr("trtops.ops.evaluation.data._KEPT_BYTES", limit)
    reads = []

    class Source:
        def __iter__(self):
            reads.append(1)
            return iter([{"x": models.random(2, 4)}])

    feeds = DataConfig().open_for(loaded(ROWS), Source())
    assert len(list(feeds)) == len(list(feeds)) == 1
    assert len(reads) == times
