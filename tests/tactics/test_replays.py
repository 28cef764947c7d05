"""Good and bad records from files, as Polygraphy leaves them and as ours do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tactics.synthetic import record
from trtops import errors
from trtops.tactics.diff import diff, set_difference
from trtops.tactics.record import read_record
from trtops.tactics.replays import load_replay_folder, load_replays


def algorithm(implementation: int, tactic: int, dtype: str = "FLOAT") -> dict:
    layout = {"strides": [8, 1], "vectorized_dim": -1, "components_per_element": 1}
    info = {"dtype": f"DataType.{dtype}", **layout, "polygraphy_class": "TensorInfo"}
    formats = {"inputs": [info], "outputs": [info]}
    return {"implementation": implementation, "tactic": tactic, **formats, "polygraphy_class": "Algorithm"}


def write_replay(path: Path, algorithms: dict[str, dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"replay": algorithms, "polygraphy_class": "TacticReplayData"}, indent=4))


def write_campaign(folder: Path, builds: int, seed: int) -> None:
    """Sorted replay files with other artifacts among them; the second tactic of ``fc`` in half precision is bad."""
    rng = np.random.default_rng(seed)
    for i in range(builds):
        fc = int(rng.integers(2))
        dtype = str(rng.choice(["FLOAT", "HALF"]))
        layers = {f"conv{k}": algorithm(-2147483635, int(rng.integers(-3, 3)) * 2**60) for k in range(6)}
        side = "bad" if fc and dtype == "HALF" else "good"
        write_replay(folder / side / f"N{i}" / "replay.json", {**layers, "fc": algorithm(5, fc, dtype)})
    (folder / "good" / "engine.plan").write_bytes(b"\x00ftrt\xff")
    (folder / "good" / "iteration.json").write_text('{"iteration": 3}')


def test_sorted_folders_become_a_campaign(tmp_path):
    write_campaign(tmp_path, 60, seed=1)
    table, skipped = load_replay_folder(tmp_path)

    assert len(table) == 60 and set(table.named("bad")) == {
        str(path) for path in (tmp_path / "bad").rglob("replay.json")
    }
    assert [Path(path).name for path, _ in skipped] == ["engine.plan", "iteration.json"]
    (culprit,) = diff(table, by="algorithm").confirmed
    assert [c.layer for c in culprit.choices] == ["fc"] and "tactic 1: DataType.HALF[8, 1]" in culprit.describe()
    assert table.choices[0].inputs[0].dtype == "DataType.FLOAT"


def test_own_records_are_read(tmp_path):
    good, written = tmp_path / "good.json", record(fc="x")
    good.write_text(written.to_json())
    write_replay(tmp_path / "bad.json", {"fc": algorithm(1, -(2**63))})
    table = load_replays(good, tmp_path / "bad.json")[0]

    assert read_record(good) == written
    assert table.layers == ("fc",) and -(2**63) in {getattr(c, "tactic_id", None) for c in table.choices}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "[" * 9999, '{"replay": [1]}', '{"replay": {"fc": {"tactic": 1}}}', '{"replay": {"fc": {"tactic": 1'],
)
def test_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "replay.json"
    path.write_text(content)

    with pytest.raises(errors.FormatError, match=r"replay\.json: (not a|a damaged) tactic record"):
        load_replays(path, path)
    (tmp_path / "good").mkdir()
    path.rename(tmp_path / "good" / "replay.json")
    assert [Path(p).name for p, _ in load_replay_folder(tmp_path)[1]] == ["replay.json"]


def test_missing_path_is_named(tmp_path):
    with pytest.raises(errors.ConfigError, match="nowhere: no such file or folder"):
        load_replays(tmp_path / "nowhere", tmp_path)
    with pytest.raises(errors.ConfigError, match="good/ and bad/"):
        load_replay_folder(tmp_path)
    write_replay(tmp_path / "good" / "r.json", {"fc": algorithm(1, 2)})  # where no build is bad
    assert diff(load_replay_folder(tmp_path)[0]).conclusion == "no bad builds"


@pytest.mark.parity
def test_set_difference_equals_polygraphys(tmp_path):
    """The tool needs TensorRT only to turn the spelling of a data type into its value; an enum of them suffices."""
    stand_in = tmp_path / "site" / "tensorrt"
    stand_in.mkdir(parents=True)
    enum = "import enum\n__version__ = '8.6.1'\nclass DataType(enum.Enum):\n    FLOAT = 0\n    HALF = 1\n"
    (stand_in / "__init__.py").write_text(enum)
    write_campaign(tmp_path / "replays", 12, seed=7)

    command = [sys.executable, "-c", "from polygraphy.tools import main; main()", "inspect", "diff-tactics", "--dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "replays")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "POLYGRAPHY_AUTOINSTALL_DEPS": "0"},
        check=True,
    )
    theirs = {}
    for layer, algorithms in re.findall(r"Layer: (\S+)\n\s*Algorithms: (.*)", done.stdout):
        rows = re.findall(
            r"Implementation: (-?\d+), Tactic: (-?\d+)\) \| Inputs: \(TensorInfo\((DataType\.\w+)", algorithms
        )
        theirs[layer] = {(int(i), int(t), dtype) for i, t, dtype in rows}
    ours = {
        d.layer: {(c.implementation, c.tactic_id, c.inputs[0].dtype) for c in d.choices}
        for d in set_difference(load_replay_folder(tmp_path / "replays")[0])
    }
    assert "Loaded" in done.stdout and ours == theirs and "fc" in ours
