"""The flows of the tools on models: accuracy, precision and reduce, each one MLflow run with what it found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from flows.accuracy import accuracy
from flows.precision import precision
from flows.reduce import reduce
from tests import models
from trtops.comparator.report import Tolerances
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.precision import PrecisionConfig
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.usefixtures("store", "prefect_home")
LOOSE = Tolerances(atol=0.02, rtol=0.02)


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """A model whose square is beyond FP16."""
    text = "(float[4] x) => (float[4] y) { [a] a = Mul(x, big) [b] b = Mul(a, a) [c] c = Sqrt(b) [d] y = Div(c, big) }"
    path = tmp_path / "overflowing.onnx"
    onnx.save(models.model(text, {"big": np.float32(1000)}), path)
    return path


def test_accuracy_finds_overflow(overflowing: Path) -> None:
    result = accuracy(overflowing, config=AccuracyConfig(tolerances=LOOSE), side="emulated", precision="fp16")
    assert result.first_nonfinite == "b"
    [info] = default_tracker().find(tags={"trtops.kind": "accuracy"})
    stored = default_tracker().load(info.id)
    assert info.verdict == "bad"
    assert {"accuracy/findings.txt", "accuracy/tensors.json"} <= {a.path for a in stored.manifest.artifacts}


def test_precision_keeps_what_overflows(overflowing: Path, tmp_path: Path) -> None:
    config = PrecisionConfig(tolerances=LOOSE)
    result = precision(overflowing, config=config, output=str(tmp_path / "mixed.onnx"))
    assert result.keep == ("b", "c")
    assert (tmp_path / "mixed.onnx").exists()
    [info] = default_tracker().find(tags={"trtops.kind": "precision"})
    assert info.metrics["precision", "kept"] == 2


def test_reduce_follows_the_given_failure(overflowing: Path, tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_text(
        "import onnx, sys\nops = {n.op_type for n in onnx.load(sys.argv[1]).graph.node}\n"
        "print('wrong root' if 'Sqrt' in ops else 'cannot run')\nsys.exit(3 if 'Div' in ops or 'Sqrt' in ops else 0)"
    )
    words = [sys.executable, str(script), "{model}"]
    command = {"command": words, "fail_codes": [3], "fail_regex": ["wrong root"]}  # as JSON of a deployment

    result = reduce(overflowing, command=command, output=str(tmp_path / "small.onnx"))

    assert [[node.name for node in culprit.nodes] for culprit in result.culprits] == [["c"]]
    assert [node.op_type for node in onnx.load(tmp_path / "small.onnx").graph.node] == ["Sqrt"]
    [info] = default_tracker().find(tags={"trtops.kind": "reduce"})
    assert info.verdict == result.verdict == "bad"
