"""Where input data comes from, and what happens when it is not what it should be."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.backend.onnxrt.runner import reference_runner
from trtops.comparator import AccuracyResults, CompareFunc, DataLoader, IterationResult, PostprocessFunc, RunResults
from trtops.json import load_json, save_json
from trtops.metadata import TensorMetadata
from trtops.ops.comparing.run import RunConfig, run_models
from trtops.ops.comparing.saved_data import concat, merge
from trtops.ops.evaluation import check
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.data import DataConfig, open_feeds
from trtops.spec import OptimizationProfile, ShapeRange
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag

INPUTS = TensorMetadata().add("x", "float32", (1, "n"))


def feed(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full((1, 3), value, np.float32)}


def test_random_data_depends_on_seed_and_iteration() -> None:
    first, again = (list(DataConfig(iterations=2, seed=7).open_for(None, inputs=INPUTS)) for _ in range(2))
    assert first[0]["x"].shape == (1, 2)
    assert not np.array_equal(first[0]["x"], first[1]["x"])
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, again))


def test_saved_outputs_decide_the_data(tmp_path: Path) -> None:
    saved, plain = RunResults(), DataLoader(iterations=3, input_metadata=TensorMetadata().add("x", None, (1, 4)))
    plain.input_metadata = INPUTS
    saved.add([{"y": feed["x"]} for feed in plain], runner_name="onnxrt")
    saved.save(str(tmp_path / "golden.json"))
    profiles = (OptimizationProfile(shapes=(ShapeRange(name="x", min=(1, 1), opt=(1, 4), max=(1, 8)),)),)
    config, options = CheckConfig(golden=str(tmp_path / "golden.json")), {"inputs": INPUTS, "profiles": profiles}

    feeds = list(replace(config, input_shapes={"x": (1, 4)}).open_for(None, **options))

    assert len(feeds) == 3
    assert all(np.array_equal(feed["x"], expected["x"]) for feed, expected in zip(feeds, plain))
    assert config.open_for(None, **options).assumed == {"x": (1, 1)}
    assert len(list(config.open_for(None, [feed(1)], **options))) == 1  # there are no outputs for other shapes
    assert len(list(open_feeds([feed(1)], INPUTS, profiles=profiles))) > 1


def test_scripts_are_called_for_each_reading(tmp_path: Path) -> None:
    script = tmp_path / "loader.py"
    script.write_text(
        "import numpy as np\n"
        "def load_data():\n    for i in range(3):\n        yield {'x': np.full((1, 2), i, np.float32)}\n"
        "def other():\n    return [{'x': np.zeros((1, 5), np.float32)}]\n"
    )

    feeds = open_feeds(f"{script}", INPUTS)
    for _ in range(2):
        assert [float(f["x"][0, 0]) for f in feeds] == [0, 1, 2]
    assert [f["x"].shape for f in open_feeds(f"{script}:other", INPUTS)] == [(1, 5)]


def test_folders_are_read_by_name_and_digested(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", **feed(2))
    np.save(tmp_path / "a.npy", feed(1)["x"])
    feeds = open_feeds(tmp_path, INPUTS)
    assert [float(f["x"][0, 0]) for f in feeds] == [1, 2]
    assert feeds.digest() == open_feeds([feed(1), feed(2)], INPUTS).digest()
    for other in ([feed(2), feed(1)], [feed(1)]):
        assert feeds.digest() != open_feeds(other, INPUTS).digest()


def test_invalid_sources_pickles_and_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("1 2 3")
    for name in ("missing.npz", "data.txt"):
        with pytest.raises(errors.ConfigError, match=rf"{name}.*\.npz"):
            open_feeds(tmp_path / name, INPUTS)
    for items, message in (([], "there is no data"), ([feed(1), [1, 2]], "item 2 is a list")):
        with pytest.raises(errors.TrtopsError, match=message):
            list(open_feeds(items, INPUTS))

    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "whole.npz", **feed(1))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:150])

    for name in ("objects.npy", "cut.npz"):
        with pytest.raises(errors.FormatError, match=name):
            list(open_feeds(tmp_path / name, INPUTS))


def test_numbers_are_cast_with_a_warning(tmp_path, caplog):
    inputs = TensorMetadata().add("x", "float32", (2,)).add("n", "int32", (1,))
    feed = {"x": np.array([1.5, 2.0]), "n": np.array([3], np.int64), "other": np.zeros(1)}
    np.savez(tmp_path / "f.npz", **feed)

    for source in ([feed], iter([feed]), tmp_path / "f.npz"):
        [cast_feed] = open_feeds(source, inputs)
        assert (cast_feed["x"].dtype, cast_feed["n"].dtype, cast_feed["other"].dtype) == (
            np.float32,
            np.int32,
            np.float64,
        )
        assert cast_feed["x"].tolist() == [1.5, 2.0]
    assert "Input 'x' is cast from float64 to float32" in caplog.text
    with pytest.raises(errors.InputError, match="values that int32 does not hold"):
        list(open_feeds([{"n": np.array([2**40])}], inputs))


def inputs(path: Path, *feeds: dict[str, float]) -> Path:
    save_json([{name: np.full(2, value) for name, value in feed.items()} for feed in feeds], path)
    return path


def outputs(path: Path, **runners: list[float]) -> Path:
    RunResults(
        (name, [IterationResult({"y": np.full(2, value)}, runner_name=name) for value in values])
        for name, values in runners.items()
    ).save(path)
    return path


def first(feeds: list[dict[str, np.ndarray]]) -> list[dict[str, float]]:
    return [{name: float(array[0]) for name, array in feed.items()} for feed in feeds]


def test_merge_joins_inputs_and_last_outputs(tmp_path: Path) -> None:
    first_file = inputs(tmp_path / "in.json", {"x": 1, "y": 9}, {"x": 2, "y": 9})
    second_file = outputs(tmp_path / "out.json", early=[5, 5], late=[6, 7])
    assert merge([first_file, second_file], tmp_path / "merged.json") == 2
    assert first(load_json(tmp_path / "merged.json")) == [{"x": 1, "y": 6}, {"x": 2, "y": 7}]


def test_concat_keeps_the_kind_of_data(tmp_path: Path) -> None:
    files = [inputs(tmp_path / "1.json", {"x": 1}), inputs(tmp_path / "2.json", {"x": 2}, {"x": 3})]
    runs = [outputs(tmp_path / "a.json", r=[1], s=[2]), outputs(tmp_path / "b.json", r=[3], s=[4])]

    assert concat(files, tmp_path / "in.json") == 3
    assert concat(runs, tmp_path / "out.json") == 2
    assert first(load_json(tmp_path / "in.json")) == [{"x": 1}, {"x": 2}, {"x": 3}]
    joined = RunResults.load(tmp_path / "out.json")
    assert [float(i["y"][0]) for i in joined["s"]] == [2, 4]


def test_concat_joins_runners_by_name(tmp_path: Path) -> None:
    files = [outputs(tmp_path / "a.json", ort=[1], trt=[2]), outputs(tmp_path / "b.json", trt=[3], torch=[4])]
    same_name = RunResults([*RunResults.load(files[0]).items()] * 2)
    same_name.save(tmp_path / "same.json")

    assert concat([*files, tmp_path / "same.json"], tmp_path / "out.json") == 3
    values = {
        name: [float(iteration["y"][0]) for iteration in iterations]
        for name, iterations in RunResults.load(tmp_path / "out.json").items()
    }
    assert values == {"ort": [1, 1], "trt": [2, 3, 2], "torch": [4], "ort (2)": [1], "trt (2)": [2]}


def test_incompatible_files_are_refused(tmp_path: Path) -> None:
    feed, run = inputs(tmp_path / "in.json", {"x": 1}), outputs(tmp_path / "out.json", r=[1])
    save_json("text", tmp_path / "text.json")
    RunResults().save(tmp_path / "empty.json")

    with pytest.raises(errors.ComparisonError, match="one kind at a time"):
        concat([feed, run], tmp_path / "x.json")
    for name, message in (("text", r"text\.json holds a str"), ("empty", "no runner")):
        with pytest.raises(errors.FormatError, match=message):
            merge([tmp_path / f"{name}.json"], tmp_path / "x.json")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(models.conv_net().write(tmp_path, "conv"))


def runner(model: str, name: str) -> OnnxrtRunner:
    return OnnxrtRunner(SessionFromOnnx(model), name=name)


FEED = [models.conv_net().feed]


@pytest.fixture
def saved(model: str, tmp_path: Path) -> str:
    """Saved outputs with something added to each."""
    path = str(tmp_path / "then.json")
    run_models([runner(model, "then")], RunConfig(save_outputs=path), data_loader=FEED)
    loaded = RunResults.load(path)
    for iteration in loaded["then"]:
        for name in iteration:
            iteration[name] = iteration[name] + np.float32(0.5)
    loaded.save(path)
    return path


def test_saved_outputs_are_compared_after_runners(model: str, saved: str) -> None:
    output, config = next(iter(RunResults.load(saved)["then"][0])), RunConfig(load_outputs=(saved,))
    result = run_models([runner(model, "now")], config, data_loader=FEED)
    assert result.runners == ("now", "then")
    assert len(result.reasons) == 1 and result.reasons[0].startswith(f"now and then differ in {output} (max abs ")
    alone = run_models([], RunConfig(load_outputs=(saved, saved)))
    assert (alone.verdict, alone.runners) == ("good", ("then", "then (2)"))
    ranked = {"postprocess": [PostprocessFunc.top_k(2)], "compare": [CompareFunc.indices()]}
    assert run_models([runner(model, "now")], config, data_loader=FEED, **ranked).verdict == "good"


def test_validation_finds_nan(tmp_path: Path) -> None:
    path = models.identity().write(tmp_path, "identity")
    feed = {name: np.full_like(array, np.nan) for name, array in models.identity().feed.items()}
    runners = [runner(str(path), "a")]
    checked = run_models(runners, RunConfig(validate=True), data_loader=[feed])
    assert checked.reasons == ("Outputs hold NaN or infinities.",)
    assert run_models(runners, data_loader=[feed]).verdict == "good"


def test_run_logs_statistics_and_polygraphy_results(model: str) -> None:
    tracker = MemoryTracker()
    runners = [runner(model, "a"), runner(model, "b")]
    result = run_models(runners, data_loader=FEED, source=model, tracker=tracker, tags={"who": "me"}, params={"n": 1})
    stored = tracker.load(result.run_id)
    assert (stored.info.experiment, stored.info.name, stored.info.verdict) == ("conv", "run conv.onnx", "good")
    assert stored.info.tags["who"] == "me" and stored.info.params["n"] == "1"
    assert stored.info.params["run.warm_up"] == "0"
    assert any(name[0] == "error" and name[-1] == "max_abs" for name in stored.info.metrics)
    assert AccuracyResults.from_json(stored.read_bytes("accuracy/results.polygraphy.json")).percentage() == 1.0


@pytest.mark.parametrize(
    ("compare", "check_average", "verdict", "limits"),
    [
        ([CompareFunc.simple(atol=1.0)], False, "good", {"atol": 1.0, "rtol": 1e-5}),
        ([CompareFunc.simple(atol=0.1, check_error_stat="max")], False, "bad", {"check_error_stat": "max"}),
        ([CompareFunc.simple(atol=0.1, check_error_stat="max")], True, "bad", {"check_error_stat": "max"}),
        ([CompareFunc.l2(l2_threshold=0.1)], False, "bad", {"max_l2": 0.1, "atol": math.inf}),
        ([CompareFunc.simple(atol=1.0), CompareFunc.cosine_similarity(1.1)], False, "bad", {"min_cosine": 1.1}),
        ([CompareFunc.kl(kl_threshold=-1.0)], False, "bad", {"max_kl": -1.0, "atol": math.inf}),
        ([CompareFunc.indices(index_tolerance=0)], False, "bad", {"atol": math.inf}),
        ([lambda a, b: dict.fromkeys(a, True)], False, "good", {"atol": math.inf}),
    ],
)
def test_report_has_verdicts_of_compare_functions(
    model: str, saved: str, compare, check_average: bool, verdict: str, limits: dict[str, object]
) -> None:
    tracker, config = MemoryTracker(), RunConfig(load_outputs=(saved,), check_average=check_average)
    result = run_models([runner(model, "now")], config, data_loader=FEED, compare=compare, tracker=tracker)
    stored = tracker.load(result.run_id)
    report = Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY)).report
    assert result.verdict == stored.info.verdict == report.verdict == verdict
    assert stored.info.tags[Tag.NOTE].startswith(f"**{verdict}**")
    assert bool(report.reasons) == (verdict == "bad")
    output_tolerances = report.tolerances.of(report.outputs[0].name)
    assert {name: getattr(output_tolerances, name) for name in limits} == limits


def test_later_pairs_count(model: str, saved: str) -> None:
    tracker, runners = MemoryTracker(), [runner(model, "a"), runner(model, "b")]
    result = run_models(runners, RunConfig(load_outputs=(saved,)), data_loader=FEED, tracker=tracker)
    stored = tracker.load(result.run_id)
    note = stored.info.tags[Tag.NOTE]
    assert note.startswith("**bad** · run") and note.count("\n- b and then differ in") == 1
    assert Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY)).report.verdict == "good"  # of the first pair


@pytest.mark.parametrize(("limit", "runs"), [(3600.0, 9), (0.0, 5)])
def test_slow_engines_are_timed_less_often(monkeypatch: pytest.MonkeyPatch, limit: float, runs: int) -> None:
    monkeypatch.setattr(check, "_LATENCY_SECONDS", limit)
    case = models.identity()
    with reference_runner(Model.from_proto(case.proto)) as runner:
        latency = check.measure_latency(runner, [case.feed], check.CheckConfig(warm_up=1, latency_runs=9))
    assert latency is not None and latency.runs == runs
