"""The gate as a flow: candidates spread over tasks, in one table, on a real Prefect server and a real MLflow store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from flows.gate import gate
from tests.gates import perceptron, with_wrong_weight, write
from trtops import errors
from trtops.ops.campaign.promote import resolve
from trtops.ops.gate.matrix import MatrixResult
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "gate.yaml"
    path.write_text("latency: null\n")
    return path


def test_candidates_are_gated_by_tasks(store: Path, tmp_path: Path, policy: Path) -> None:
    models = (write(perceptron(16, 2), tmp_path, "one"), write(perceptron(16, 3), tmp_path, "two"))

    result = gate(models, policy=policy, releases=(f"here={sys.prefix}",))
    wrong = write(with_wrong_weight(perceptron(16, 2)), tmp_path / "wrong", "one")
    refused = gate((wrong,), policy=policy)

    tracker = default_tracker()
    assert isinstance(result, MatrixResult) and result.verdict == "good"
    assert {run.id for run in tracker.find("gate", parent=result.run_id)} == {cell.run_id for cell in result.cells}
    assert tracker.info(result.run_id).tags[Tag.PREFECT_FLOW_RUN]
    assert resolve(models[0], tracker=tracker).run_id == result.cells[0].run_id
    assert refused.verdict == "bad" and refused.run_id
    with get_client(sync_client=True) as client:
        shown = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["gate-matrix-gate"])))
        assert any("2 accepted" in str(artifact.data) for artifact in shown)


def test_invalid_policy_is_reported_with_its_line(store: Path, tmp_path: Path, policy: Path) -> None:
    policy.write_text("latency: {ratio: 1}\nsizes: 3\n")

    with pytest.raises(errors.FormatError, match=r"gate\.yaml:2"):
        gate((write(perceptron(8, 1), tmp_path, "one"),), policy=policy)
