"""Polygraphy's scripts that need no TensorRT run with only their import renamed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import models, seeds
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import Comparator
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.data import open_feeds

pytestmark = [
    pytest.mark.seeds,
    pytest.mark.skipif(not seeds.FOLDER.is_dir(), reason=f"the documents are not at {seeds.FOLDER}"),
]


def run(script: str, folder: Path) -> str:
    """What a script prints when it is run in a folder."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "script.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_seed_script_prints_saved_results(tmp_path: Path) -> None:
    model = models.identity().write(tmp_path)
    results = Comparator.run(
        [
            OnnxrtRunner(SessionFromOnnx(str(model)), name="first"),
            OnnxrtRunner(SessionFromOnnx(str(model)), name="second"),
        ],
        save_inputs_path=str(tmp_path / "inputs.json"),
    )
    results.save(str(tmp_path / "outputs.json"))

    printed = run(seeds.script_with("000", 'load_json("inputs.json")'), tmp_path)

    assert "Input: 'x' | Values:" in printed
    assert "Processing outputs for runner: first" in printed and "Processing outputs for runner: second" in printed
    assert printed.count(str(np.asarray(results["first"][0]["y"]))) == 3


@pytest.mark.parametrize(
    ("document", "phrase", "shape", "count"),
    [
        ("000", "INPUT_SHAPE = (1, 1, 2, 2)\n\n\ndef load_data", (1, 1, 2, 2), 5),
        ("004", "# data_loader.py", (1, 3, 224, 224), 10),
        ("004", "# dynamic_shape_loader.py", None, 4),
    ],
)
def test_seed_loader_scripts_are_data_sources(
    tmp_path: Path, document: str, phrase: str, shape: tuple[int, ...] | None, count: int
) -> None:
    script = tmp_path / "data_loader.py"
    script.write_text(seeds.script_with(document, phrase), encoding="utf-8")

    feeds = list(open_feeds(f"{script}:load_data", TensorMetadata()))

    assert len(feeds) == count
    assert all(array.dtype == np.float32 and shape in (None, array.shape) for feed in feeds for array in feed.values())


@pytest.mark.parametrize(
    ("phrase", "library"),
    [("# real_data_loader.py", "cv2"), ("# calibration_data.py", "cv2"), ("# multi_input_loader.py", "torch")],
)
def test_missing_library_of_script_is_named(tmp_path: Path, phrase: str, library: str) -> None:
    script = tmp_path / "loader.py"
    script.write_text(seeds.script_with("004", phrase), encoding="utf-8")
    try:
        __import__(library)
    except ImportError:
        with pytest.raises(Exception, match=library):
            list(open_feeds(str(script), TensorMetadata()))
    else:
        pytest.skip(f"{library} is installed, and the script reads files of its own")
