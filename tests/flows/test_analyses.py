"""The flows that check stored runs, and those that search a model, each with one run of what it found."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.calibrate import precision
from flows.reduce import accuracy, reduce
from flows.store import audit, gate
from tests import models
from tests.gates import existing_release, perceptron, write
from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.auditing.op import AuditConfig
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.gate.matrix import MatrixResult
from trtops.ops.registry.accepted import resolve
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.precision import PrecisionConfig
from trtops.tracking.schema import Artifact, Tag
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
    [info] = default_tracker().find(tags={Tag.KIND: "accuracy"})
    stored = default_tracker().load(info.id)
    assert info.verdict == "bad"
    assert "accuracy/tensors.json" in {a.path for a in stored.manifest.artifacts}


def test_precision_keeps_what_overflows(overflowing: Path, tmp_path: Path) -> None:
    result = precision(overflowing, config=PrecisionConfig(tolerances=LOOSE), output=str(tmp_path / "mixed.onnx"))

    assert result.keep == ("b", "c") and (tmp_path / "mixed.onnx").exists()
    [info] = default_tracker().find(tags={Tag.KIND: "precision"})
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

    assert [node.name for node in result.culprit.nodes] == ["c"]
    assert [node.op_type for node in onnx.load(tmp_path / "small.onnx").graph.node] == ["Sqrt"]
    [info] = default_tracker().find(tags={Tag.KIND: "reduce"})
    assert info.verdict == result.verdict == "bad"


def test_runs_are_audited(tmp_path: Path) -> None:
    check = CheckConfig(latency_runs=0, plots="never")
    built = convert(models.conv_net().fixed().write(tmp_path), ConvertConfig(check=check), tracker=default_tracker())

    result = audit(AuditConfig(ways=("replay",)), experiment="conv_net", sample=3)

    assert result.headline == "1 of 1 runs pass" and result.grades
    assert default_tracker().info(result.run_id).tags[Tag.PREFECT_FLOW_RUN]
    with pytest.raises(errors.ConfigError, match="No run matches"):
        audit(experiment="conv_net", backend="tensorrt")
    default_tracker().load(built.run_id).local_path(Artifact.BUILD_LOG).write_text("changed")
    failing = audit(experiment="conv_net", rebuild=False)
    assert failing.verdict == "bad" and [run.id for run in failing.failed] == [built.run_id]


def test_candidates_are_gated_by_tasks(tmp_path: Path) -> None:
    files = (write(perceptron(16, 2), tmp_path, "one"), write(perceptron(16, 3), tmp_path, "two"))
    policy = tmp_path / "gate.yaml"
    policy.write_text("latency: null\n")

    result = gate(files, policy=policy, releases=(existing_release(tmp_path, "same"),))

    tracker = default_tracker()
    assert isinstance(result, MatrixResult) and result.verdict == "good"
    assert {run.id for run in tracker.find("gate", parent=result.run_id)} == {cell.run_id for cell in result.cells}
    assert tracker.info(result.run_id).tags[Tag.PREFECT_FLOW_RUN]
    assert resolve(files[0], tracker=tracker).run_id == result.cells[0].run_id
    with get_client(sync_client=True) as client:
        shown = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["gate-matrix-gate"])))
        assert any("2 accepted" in str(artifact.data) for artifact in shown)
