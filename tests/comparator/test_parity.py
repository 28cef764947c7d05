"""Polygraphy next to trtops: same files both ways, same inputs bit for bit, same numbers and verdicts."""

import json
import math

import numpy as np
import pytest

import trtops.comparator
from trtops import json as our_json
from trtops.comparator import (
    AccuracyResults,
    DataLoader,
    IterationResult,
    L2Threshold,
    PostprocessFunc,
    SimpleThreshold,
    StreamingDataLoader,
)
from trtops.metadata import TensorMetadata

pytestmark = pytest.mark.parity

theirs = pytest.importorskip("polygraphy.comparator")
their_json = pytest.importorskip("polygraphy.json")
their_common = pytest.importorskip("polygraphy.common")


@pytest.fixture(autouse=True)
def quiet():
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


ARRAYS = {
    "scores": np.random.default_rng(0).standard_normal((2, 10)).astype(np.float32),
    "half": np.array([[1.5, np.nan], [np.inf, -2]], np.float16),
    "ids": np.array([-(2**62), 7], np.int64),
    "mask": np.array([True, False]),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(3.0),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "日本 gpu_0/softmax:1": np.arange(5, dtype=np.uint8),
}


def test_run_results_go_both_ways(tmp_path):
    for writer, reader in ((theirs, trtops.comparator), (trtops.comparator, theirs)):
        run = writer.RunResults()
        run.add([ARRAYS, ARRAYS], runtime=0.25, runner_name="ort")
        run.append(("ort", [writer.IterationResult(ARRAYS)]))
        run.save(str(tmp_path / "run.json"))
        again = reader.RunResults.load(str(tmp_path / "run.json"))
        assert json.loads(again.to_json()) == json.loads(run.to_json())


def test_inputs_go_both_ways(tmp_path):
    their_json.save_json([ARRAYS, ARRAYS], str(tmp_path / "theirs.json"))
    our_json.save_json([ARRAYS, ARRAYS], tmp_path / "ours.json")
    for feeds in (our_json.load_json(tmp_path / "theirs.json"), their_json.load_json(str(tmp_path / "ours.json"))):
        assert len(feeds) == 2
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(feeds[1][name], array)
            assert feeds[1][name].dtype == array.dtype
    assert len(list(StreamingDataLoader(tmp_path / "theirs.json"))) == 2


def results_of(comparator, functions):
    random = np.random.default_rng(5)
    golden = [{"x": random.standard_normal((3, 50)).astype(np.float32), "y": random.random((2, 8))} for _ in range(4)]
    run = comparator.RunResults()
    run.add(
        [{k: v + 1e-3 * random.standard_normal(v.shape).astype(v.dtype) for k, v in g.items()} for g in golden],
        runner_name="a",
    )
    run.add(golden, runner_name="b")
    return comparator.Comparator.compare_accuracy(run, compare_func=functions)


def functions_of(comparator):
    return [
        comparator.SimpleCompareFunc(atol=1e-3, rtol=1e-2),
        comparator.SimpleCompareFunc(check_error_stat="quantile", error_quantile=0.9, atol=2e-3),
        comparator.SimpleCompareFunc(check_error_stat={"x": "mean", "": "max"}, atol={"x": 1e-3, "": 1e-2}),
        comparator.L2CompareFunc(l2_threshold=0.02),
        comparator.CosineSimilarityCompareFunc(),
        comparator.PsnrCompareFunc(psnr_threshold=60.0),
        comparator.SnrCompareFunc(snr_threshold=58.0),
        comparator.IndicesCompareFunc(index_tolerance=1),
    ]


def test_numbers_and_verdicts_are_theirs():
    mine, other = (results_of(c, functions_of(c)) for c in (trtops.comparator, theirs))
    for ours, reference in zip(mine, other):
        assert bool(ours) == bool(reference)
        assert ours.stats() == reference.stats()
        for mine_it, their_it in zip(ours["a", "b"], reference["a", "b"]):
            assert list(mine_it) == list(their_it)
            for name, match in their_it.items():
                assert bool(mine_it[name]) == bool(match)
                for field, value in {} if isinstance(match, bool) else match.metric_values().items():
                    if value is not None:
                        assert getattr(mine_it[name], field) == pytest.approx(value, rel=2e-4), field


def test_accuracy_results_go_both_ways(tmp_path):
    mine = results_of(trtops.comparator, functions_of(trtops.comparator))
    other = results_of(theirs, functions_of(theirs))
    mine.save(tmp_path / "ours.json")
    other.save(str(tmp_path / "theirs.json"))
    read = AccuracyResults.load(tmp_path / "theirs.json")
    back = theirs.AccuracyResults.load(str(tmp_path / "ours.json"))
    assert [bool(r) for r in read] == [bool(r) for r in other] == [bool(r) for r in back] == [bool(r) for r in mine]
    read.reevaluate([L2Threshold(1e-9), SimpleThreshold("max", 1.0, 1.0)])
    back.reevaluate([theirs.L2Threshold(1e-9), theirs.SimpleThreshold("max", 1.0, 1.0)])
    assert [bool(r) for r in read] == [bool(r) for r in back] == [False, True]


FLOATS = [("x", np.float32, (2, 3)), ("y", np.float64, (4,)), ("z", np.float16, ())]
INTEGERS = [("a", np.int32, (3, 3)), ("b", np.int64, (7,)), ("c", bool, (9,)), ("d", np.int8, (2, 2))]
UNSIGNED = [("u", np.uint8, (50,)), ("v", np.uint64, (5,))]
TWO = [("x", np.float32, (5,)), ("y", np.float32, (5,))]
DYNAMIC = [("x", np.float32, ("batch", -1, 3)), ("n", np.int64, (None, 2))]
SHAPE_VALUE = [("x", np.float32, (-1, 3)), ("n", np.int64, (2,))]  # the shape asked for `n` is its value


@pytest.mark.parametrize(
    ("options", "inputs", "requested"),
    [
        ({}, FLOATS, []),
        ({"seed": 7, "iterations": 3, "val_range": (-5, 9)}, INTEGERS, []),
        ({"val_range": (0, 200)}, UNSIGNED, []),
        ({"val_range": {"x": (2.0, 3.0), "": (-1.0, 1.0)}, "seed": 3}, TWO, []),
        ({"val_range": (0, math.inf)}, TWO, []),
        ({}, DYNAMIC, []),
        ({}, SHAPE_VALUE, [("x", np.float64, (4, 3))]),
        ({}, SHAPE_VALUE, [("*", np.float32, (7, 3))]),
        ({}, SHAPE_VALUE, [("n", np.int64, (4, 5))]),
        ({}, SHAPE_VALUE, [("x", None, (2, 2, 2))]),
    ],
)
def test_random_inputs_are_theirs_bit_for_bit(options, inputs, requested):
    loaders = []
    for kind, metadata in [(DataLoader, TensorMetadata), (theirs.DataLoader, their_common.TensorMetadata)]:
        requested_metadata, model = metadata(), metadata()
        for tensor_metadata, entries in ((requested_metadata, requested), (model, inputs)):
            for name, dtype, shape in entries:
                tensor_metadata.add(name, dtype, shape)
        loaders.append(kind(**options, input_metadata=requested_metadata or None))
        loaders[-1].input_metadata = model
    ours, reference = map(list, loaders)
    assert len(ours) == len(reference)
    for mine, other in zip(ours, reference):
        assert list(mine) == list(other)
        for name, array in other.items():
            assert (mine[name].dtype, mine[name].shape) == (array.dtype, array.shape)
            assert mine[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("k", [3, (2, 0), {"x": (4, 1), "": 1}, {"y": 100}])
def test_top_k_is_theirs(k):
    random = np.random.default_rng(0)
    outputs = {"x": random.integers(-3, 3, (4, 6)), "y": random.standard_normal(9).astype(np.float32)}
    outputs["y"][3] = np.nan
    mine = PostprocessFunc.top_k(k)(IterationResult(outputs))
    other = theirs.TopKPostprocessFunc(k)(theirs.IterationResult(outputs))
    for name, indices in other.items():
        np.testing.assert_array_equal(mine[name], indices)


def test_index_comparison_agrees_with_theirs():
    random = np.random.default_rng(1)
    for tolerance in (0, 1, 3):
        for _ in range(60):
            a = np.stack([random.permutation(6) for _ in range(3)])
            b = a.copy()
            b[:, [2, 3]] = b[:, [3, 2]] if random.random() < 0.5 else b[:, [2, 3]]
            b[0, 0], b[0, 5] = (b[0, 5], b[0, 0]) if random.random() < 0.3 else (b[0, 0], b[0, 5])
            mine, other = (
                home.IndicesCompareFunc(tolerance)(home.IterationResult({"i": a}), home.IterationResult({"i": b}))
                for home in (trtops.comparator, theirs)
            )
            assert bool(mine["i"]) == bool(other["i"])
