"""Merging and concatenating saved inputs and outputs."""

from pathlib import Path

import numpy as np
import pytest

from trtops import errors
from trtops.comparator import IterationResult, RunResults
from trtops.json import load_json, save_json
from trtops.ops.evaluation.saved_data import concat, merge


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
    one = inputs(tmp_path / "in.json", {"x": 1, "y": 9}, {"x": 2, "y": 9})
    two = outputs(tmp_path / "out.json", early=[5, 5], late=[6, 7])
    assert merge([one, two], tmp_path / "merged.json") == 2
    assert first(load_json(tmp_path / "merged.json")) == [{"x": 1, "y": 6}, {"x": 2, "y": 7}]


def test_concat_keeps_the_kind_of_data(tmp_path: Path) -> None:
    files = [inputs(tmp_path / "1.json", {"x": 1}), inputs(tmp_path / "2.json", {"x": 2}, {"x": 3})]
    runs = [outputs(tmp_path / "a.json", r=[1], s=[2]), outputs(tmp_path / "b.json", r=[3], s=[4])]

    assert concat(files, tmp_path / "in.json") == 3
    assert concat(runs, tmp_path / "out.json") == 2
    assert first(load_json(tmp_path / "in.json")) == [{"x": 1}, {"x": 2}, {"x": 3}]
    joined = RunResults.load(tmp_path / "out.json")
    assert [float(i["y"][0]) for i in joined["s"]] == [2, 4]


def test_incompatible_files_are_refused(tmp_path: Path) -> None:
    feed, run = inputs(tmp_path / "in.json", {"x": 1}), outputs(tmp_path / "out.json", r=[1])
    save_json("text", tmp_path / "text.json")
    RunResults().save(tmp_path / "empty.json")

    two = outputs(tmp_path / "two.json", r=[1], s=[1])
    for files, message in (([feed, run], "one kind at a time"), ([run, two], "1, 2 runners")):
        with pytest.raises(errors.ComparisonError, match=message):
            concat(files, tmp_path / "x.json")
    for name, message in (("text", r"text\.json holds a str"), ("empty", "no runner")):
        with pytest.raises(errors.FormatError, match=message):
            merge([tmp_path / f"{name}.json"], tmp_path / "x.json")
