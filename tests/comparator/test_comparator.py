import importlib
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import parser

from trtops import config, errors
from trtops.backend.base import BaseRunner
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import (
    AccuracyResult,
    AccuracyResults,
    Comparator,
    CompareFunc,
    DataLoader,
    IterationResult,
    LazyArray,
    PostprocessFunc,
    RunResults,
    StreamingDataLoader,
)
from trtops.comparator.data_loader import DataLoaderCache, fit_feed
from trtops.comparator.running import Writers
from trtops.metadata import TensorMetadata


@pytest.fixture
def model(tmp_path):
    """Doubles its input of shape (N, 3)."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,3] x) => (float[N,3] y) { y = Add(x, x) }'
    onnx.save(parser.parse_model(text), tmp_path / "double.onnx")
    return str(tmp_path / "double.onnx")


class Echo(BaseRunner):
    """Returns its input, always in the same buffer, as back ends may do."""

    def __init__(self, name="echo", offset=0.0):
        super().__init__(name)
        self.offset = offset
        self.activations = 0

    def activate_impl(self):
        self.activations += 1
        self.buffer = np.zeros(3, np.float32)

    def get_input_metadata_impl(self):
        return TensorMetadata().add("x", np.float32, (3,))

    def infer_impl(self, feed_dict):
        np.add(feed_dict["x"], np.float32(self.offset), out=self.buffer)
        self.inference_time = 1e-3
        return {"y": self.buffer}


FEEDS = [{"x": np.full(3, i, np.float32)} for i in range(4)]


@pytest.mark.parametrize("use_subprocess", [False, True])
def test_two_onnx_runtime_runners_agree_on_random_inputs(model, use_subprocess):
    runners = [OnnxrtRunner(SessionFromOnnx(model), name=name) for name in ("a", "b")]
    loader = DataLoader(iterations=3, input_metadata=TensorMetadata().add("x", np.float32, (5, 3)))
    results = Comparator.run(runners, data_loader=loader, warm_up=1, use_subprocess=use_subprocess)
    assert [(name, len(iterations)) for name, iterations in results.items()] == [("a", 3), ("b", 3)]
    assert results["a"][2]["y"].shape == (5, 3)
    np.testing.assert_array_equal(results["a"][1]["y"], 2 * loader[1]["x"])
    assert all(it.runtime > 0 and it.runner_name == "b" for it in results["b"])
    assert bool(Comparator.compare_accuracy(results, compare_func=CompareFunc.simple(atol=1e-8)))
    assert not any(runner.is_active for runner in runners)


def test_inputs_are_adapted_or_refused(caplog):
    fitting = [{"X": np.arange(3.0)}, {"x": np.arange(3, dtype=np.int64).reshape(1, 3)}]
    results = Comparator.run([Echo()], fitting)
    assert [it["y"].tolist() for it in results["echo"]] == [[0, 1, 2], [0, 1, 2]]
    assert "cast from float64 to float32" in caplog.text and "closest" in caplog.text
    with pytest.raises(errors.InputError, match=r"'x' has shape \(4,\); expected \(3,\)"):
        Comparator.run([Echo()], [{"x": np.zeros(4, np.float32)}])
    with pytest.raises(errors.InputError, match="expected arrays by input name"):
        Comparator.run([Echo()], [[1, 2]])


@pytest.mark.parametrize("ending", [".json", ".npz", ""])
@pytest.mark.parametrize("streaming", [False, True])
def test_inputs_and_outputs_are_saved(tmp_path, ending, streaming):
    inputs, outputs, raw = tmp_path / f"in{ending}", tmp_path / f"out{ending}", tmp_path / "raw"
    places = {"save_inputs_path": inputs, "save_outputs_path": outputs, "save_input_blob_path": raw}
    run = Comparator.run([Echo("a"), Echo("a", offset=1)], FEEDS, streaming=streaming, **places)
    if streaming:
        assert [single[1][1][0]["y"][0] for single in run] == [1, 2, 3, 4]
    loaded = RunResults.load(outputs)
    assert [name for name, _ in loaded] == ["a", "a"]
    assert [it["y"][0] for it in loaded[1][1]] == [1, 2, 3, 4]
    assert [feed["x"][0] for feed in StreamingDataLoader(inputs)] == [0, 1, 2, 3]
    assert inputs.is_dir() == (ending == "")
    assert np.fromfile(tmp_path / "raw" / "0000000002" / "x.bin", np.float32).tolist() == [2, 2, 2]


def test_outputs_in_an_archive_of_numpy_are_one_iteration(tmp_path):
    np.savez(tmp_path / "theirs.npz", y=np.arange(3.0), z=np.zeros((2, 0)))
    [(name, [iteration])] = RunResults.load(tmp_path / "theirs.npz")
    assert name == "theirs" and iteration["y"].tolist() == [0, 1, 2] and iteration["z"].shape == (2, 0)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "theirs.npz").read_bytes()[:-30])
    with pytest.raises(errors.FormatError, match=r"cut\.npz"):
        RunResults.load(tmp_path / "cut.npz")


def test_streaming_holds_one_iteration_at_a_time():
    read = []
    runners = [Echo("a"), Echo("b", offset=1e-6)]
    feeds = (read.append(i) or {"x": np.full(3, i, np.float32)} for i in range(50))
    stream = Comparator.validate(Comparator.run(runners, feeds, streaming=True))
    stream = Comparator.postprocess(stream, lambda iteration: iteration)
    assert read == []
    accuracy = Comparator.compare_accuracy(stream)
    assert accuracy and accuracy.stats() == (50, 0, 50)
    assert not any(runner.is_active for runner in runners)


def test_a_stopped_stream_saves_its_results(tmp_path):
    runners = [Echo("a"), Echo("b", offset=1)]
    stream = Comparator.run(runners, FEEDS, streaming=True, save_outputs_path=tmp_path / "out.json")
    assert not Comparator.compare_accuracy(stream, fail_fast=True)
    assert len(RunResults.load(tmp_path / "out.json")["a"]) == 1
    assert not any(runner.is_active for runner in runners)


def test_unusable_paths_are_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    runner = Echo()
    with pytest.raises(errors.ConfigError, match="not an empty directory"):
        Comparator.run([runner], FEEDS, save_outputs_path=tmp_path / "full")
    with pytest.raises(errors.ConfigError, match="different places"):
        Comparator.run([runner], FEEDS, save_inputs_path=tmp_path / "x", save_outputs_path=tmp_path / "x")
    assert runner.activations == 0
    with pytest.raises(errors.ConfigError, match="leads out of"):
        Writers(None, None, tmp_path / "raw").append({"../../x": np.zeros(3)}, None)
    with pytest.raises(errors.FormatError, match="holds no iterations"):
        list(StreamingDataLoader(tmp_path))
    with pytest.raises(errors.FormatError, match="is a directory"):
        list(StreamingDataLoader(tmp_path, allow_dirs=False))


TROUBLE = """
import time
from trtops import errors
from trtops.backend.base import BaseRunner
from trtops.metadata import TensorMetadata

class Trouble(BaseRunner):
    def get_input_metadata_impl(self):
        return TensorMetadata().add("x", "float32", (3,))

    def infer_impl(self, feed):
        if self.name == "hang":
            time.sleep(3600)
        if self.name == "raise":
            raise errors.InferenceError("no kernel")
        if self.name == "bug":
            raise ZeroDivisionError("oops")
        self.inference_time = 0.0
        return {"y": feed["x"] * 2}
"""


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ("hang", errors.WorkerError, "did not finish within .* s and was killed"),
        ("raise", errors.InferenceError, "no kernel"),
        ("bug", errors.WorkerError, "ZeroDivisionError: oops"),
    ],
)
def test_failing_runners_raise_here_and_in_children(trouble, kind, message, tmp_path, monkeypatch):
    (tmp_path / "trouble_runner.py").write_text(TROUBLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = importlib.import_module("trouble_runner").Trouble(trouble)
    timeout = 1.5 if trouble == "hang" else 600
    with pytest.raises(kind, match=message):
        Comparator.run([runner], FEEDS, use_subprocess=True, subprocess_timeout=timeout)
    if trouble == "raise":
        with pytest.raises(kind, match=message):
            Comparator.run([runner], FEEDS)
        assert not runner.is_active
        runner.extra = lambda: None
        with pytest.raises(errors.ConfigError, match="cannot be sent to a child process"):
            Comparator.run([runner], FEEDS, use_subprocess=True)


def test_runners_of_a_script_run_in_child_processes(tmp_path):
    main = """
if __name__ == "__main__":
    from trtops.comparator import Comparator
    results = Comparator.run([Trouble("mine")], [{"x": [1.0, 1.0, 1.0]}], use_subprocess=True)
    print(results["mine"][0]["y"][0])
"""
    (tmp_path / "mine.py").write_text(TROUBLE + main)
    done = subprocess.run([sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True)
    assert done.stdout == "2.0\n", done.stderr


def test_top_k_compares_order_only():
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
    results = RunResults([("a", [IterationResult({"s": scores + 0.01})]), ("b", [IterationResult({"s": scores})])])
    assert not Comparator.compare_accuracy(results)
    top = Comparator.postprocess(results, PostprocessFunc.top_k(2))
    assert Comparator.compare_accuracy(top, compare_func=CompareFunc.indices())
    assert results["a"][0]["s"].tolist() == [[1, 2], [0, 2]]
    unsigned = IterationResult({"u": np.array([0, 255, 3], np.uint8)})
    assert PostprocessFunc.top_k(2)(unsigned)["u"].tolist() == [1, 2]


def test_validate_finds_nan_and_if_asked_infinity():
    results = RunResults()
    results.add([{"x": np.array([1.0, np.inf]), "i": np.array([1])}], runner_name="r")
    assert Comparator.validate(results) and not Comparator.validate(results, check_inf=True)
    results.add([{"x": np.array([np.nan])}], runner_name="s")
    assert not Comparator.validate(results)
    assert Comparator.validate(results, check_nan=False)
    assert not Comparator.validate(results[1:], check_inf=True, check_nan=False)
    with pytest.raises(errors.ComparisonError, match=r"output 'x' of iteration 0: NaN Detected \| 1 of"):
        list(Comparator.validate(iter([results])))


MODEL = TensorMetadata().add("x", np.float32, (2, 3)).add("ids", np.int64, (4,)).add("mask", bool, (5,))


def loader_for(model=MODEL, **options):
    loader = DataLoader(**options)
    loader.input_metadata = model
    return loader


def test_unused_names_are_warned_about(caplog):
    loader = loader_for(input_metadata=TensorMetadata().add("idss", None, (4,)), val_range={"y": (0, 1)})
    _ = loader[0]
    assert "'idss', which is not an input of the model. Did you mean 'ids'" in caplog.text
    assert "val_range names 'y'" in caplog.text


def test_invalid_options_are_refused():
    with pytest.raises(errors.ConfigError, match="expected 'numpy' or 'torch'"):
        DataLoader(data_loader_backend_module="jax")
    with pytest.raises(IndexError):
        loader_for(iterations=3)[3]
    for dtype, shape, options, message in (
        (np.float32, (2,), {"val_range": (2, 1)}, "start exceeds its end"),
        (np.uint8, (2,), {"val_range": (0, 300)}, r"range \(0, 300\) does not fit uint8"),
        ("str", (2,), {}, "Random strings"),
        (np.float32, None, {}, "shape of input 'x' is not known"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            loader_for(TensorMetadata().add("x", dtype, shape), **options)[0]


def test_runners_get_inputs_of_their_shapes():
    cache = DataLoaderCache(DataLoader())
    cache.set_input_metadata(TensorMetadata().add("x", np.float32, (2, 3)))
    first = cache[0]["x"]
    cache.set_input_metadata(TensorMetadata().add("x", np.float32, (4, 5)))
    assert first.shape == (2, 3) and cache[0]["x"].shape == (4, 5)


@pytest.mark.parametrize("array", [np.zeros((3, 2), np.float32), np.zeros(6, np.float16), np.zeros((1, 2, 3))])
def test_arrays_are_permuted_reshaped_and_cast(array):
    model = TensorMetadata().add("x", np.float32, (2, 3))
    fitted = fit_feed({"x": array, "more": array}, model)
    assert (fitted["x"].shape, fitted["x"].dtype) == ((2, 3), np.float32)
    assert fit_feed(fitted, model)["x"] is fitted["x"] and list(fitted) == ["x"]
    for value in (300, np.nan):
        with pytest.raises(errors.InputError, match="values that int8 does not hold"):
            fit_feed({"x": np.array([value])}, TensorMetadata().add("x", np.int8, (1,)))


def run_of(**runners):
    results = RunResults()
    for name, iterations in runners.items():
        results.add([{"y": np.full(2, value)} for value in iterations], runtime=0.5, runner_name=name)
    return results


def test_results_are_found_by_name_and_index():
    results = run_of(ort=[1.0, 2.0], trt=[3.0])
    assert list(results.keys()) == ["ort", "trt"] and len(results) == 2
    assert results["trt"][0]["y"].tolist() == [3.0, 3.0]
    assert results[0][0] == "ort" and results[0][1] is results["ort"]
    assert [len(iterations) for iterations in results.values()] == [2, 1]
    assert "ort" in results and "onnx" not in results
    assert all(iteration.runner_name == name for name, iterations in results.items() for iteration in iterations)
    with pytest.raises(errors.ComparisonError, match=r"'orrt' does not exist in this RunResults\. Did you mean 'ort'"):
        results["orrt"]


def test_large_arrays_are_kept_in_files(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "ARRAY_SWAP_THRESHOLD_MB", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lazy = LazyArray(np.arange(1000.0))
    assert lazy.arr is None and len(list(tmp_path.iterdir())) == 1
    assert lazy.load().sum() == 499500.0
    run = RunResults()
    run.add([{"y": np.arange(5)}])
    assert RunResults.from_json(run.to_json()) == run
    del lazy, run
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("match", [1, "true", {"max_abs": 0.0}, None])
def test_invalid_matches_in_files_are_refused(match):
    text = AccuracyResults([AccuracyResult({("a", "b"): [{"y": True}]})]).to_json()
    assert AccuracyResults.from_json(text)
    with pytest.raises(errors.FormatError, match="expected matches by output"):
        AccuracyResults.from_json(text.replace('"y": true', f'"y": {json.dumps(match)}'))


def test_other_kinds_of_files_are_refused(tmp_path):
    from trtops.json import save_json

    save_json([{"x": np.zeros(2)}], tmp_path / "inputs.json")
    with pytest.raises(
        errors.FormatError, match=r"JSON cannot be decoded into a RunResults; it holds a list\. It may hold inputs"
    ):
        RunResults.load(tmp_path / "inputs.json")
    with pytest.raises(errors.FormatError, match="cannot be decoded into a AccuracyResults; it holds a RunResults"):
        AccuracyResults.from_json(RunResults().to_json())
    with pytest.raises(FileNotFoundError):
        RunResults.load(tmp_path / "none.json")
