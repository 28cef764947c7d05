"""Where input data comes from, and what happens when it is not what it should be."""

from pathlib import Path

import numpy as np
import pytest

from trtops import errors
from trtops.comparator import DataLoader, RunResults
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.data import open_feeds
from trtops.spec import OptimizationProfile, ShapeRange

INPUTS = TensorMetadata().add("x", "float32", (1, "n"))


def feed(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full((1, 3), value, np.float32)}


def test_random_data_depends_on_seed_and_iteration() -> None:
    first, again = (list(open_feeds(None, INPUTS, iterations=2, seed=7)) for _ in range(2))
    assert first[0]["x"].shape == (1, 2)
    assert not np.array_equal(first[0]["x"], first[1]["x"])
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, again))


def test_saved_outputs_decide_the_data(tmp_path: Path) -> None:
    saved, plain = RunResults(), DataLoader(iterations=3, input_metadata=TensorMetadata().add("x", None, (1, 4)))
    plain.input_metadata = INPUTS
    saved.add([{"y": feed["x"]} for feed in plain], runner_name="onnxrt")
    saved.save(str(tmp_path / "golden.json"))
    profiles = (OptimizationProfile(shapes=(ShapeRange(name="x", min=(1, 1), opt=(1, 4), max=(1, 8)),)),)
    options = {"profiles": profiles, "golden": str(tmp_path / "golden.json")}

    feeds = list(open_feeds(None, INPUTS, input_shapes={"x": (1, 4)}, **options))

    assert len(feeds) == 3
    assert all(np.array_equal(feed["x"], expected["x"]) for feed, expected in zip(feeds, plain))
    assert open_feeds(None, INPUTS, **options).assumed == {"x": (1, 1)}
    assert len(list(open_feeds([feed(1)], INPUTS, **options))) == 1  # there are no outputs for other shapes
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
    found = open_feeds(tmp_path, INPUTS)
    assert [float(f["x"][0, 0]) for f in found] == [1, 2]
    assert found.digest() == open_feeds([feed(1), feed(2)], INPUTS).digest()
    for other in ([feed(2), feed(1)], [feed(1)]):
        assert found.digest() != open_feeds(other, INPUTS).digest()


def test_invalid_sources_pickles_and_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("1 2 3")
    for name in ("missing.npz", "data.txt"):
        with pytest.raises(errors.ConfigError, match=rf"{name}.*\.npz"):
            open_feeds(tmp_path / name, INPUTS)
    for items, message in (([], "there is no data"), ([feed(1), [1, 2]], "item 2 is a list")):
        with pytest.raises(errors.InputError, match=message):
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
        [found] = open_feeds(source, inputs)
        assert (found["x"].dtype, found["n"].dtype, found["other"].dtype) == (np.float32, np.int32, np.float64)
        assert found["x"].tolist() == [1.5, 2.0]
    assert "Input 'x' is cast from float64 to float32" in caplog.text
    with pytest.raises(errors.InputError, match="values that int32 does not hold"):
        list(open_feeds([{"n": np.array([2**40])}], inputs))
