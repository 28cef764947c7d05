import json

import numpy as np
import pytest

from trtops import config, errors
from trtops.comparator import AccuracyResult, AccuracyResults, LazyArray, RunResults


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
    with pytest.raises(errors.ComparisonError, match=r"no results of a runner 'orrt'\. Did you mean 'ort'"):
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
    with pytest.raises(errors.FormatError, match=r"holds a list; expected RunResults\. It may hold inputs"):
        RunResults.load(tmp_path / "inputs.json")
    with pytest.raises(errors.FormatError, match="holds a RunResults; expected AccuracyResults"):
        AccuracyResults.from_json(RunResults().to_json())
    with pytest.raises(FileNotFoundError):
        RunResults.load(tmp_path / "none.json")
