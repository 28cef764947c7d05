"""Triage and capability reports where TensorRT refuses a model: TensorRT-RTX builds without a GPU."""

import zipfile
from pathlib import Path

import pytest

from tests import models
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.model.capability import capability
from trtops.ops.triaging.op import triage
from trtops.ops.triaging.result import TriageConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker

pytestmark = pytest.mark.usefixtures("rtx")


def test_a_refused_node_is_found_and_bundled(tmp_path: Path) -> None:
    text = """(float[4,4] x) => (float[4,4] y) {
        [mm] a = MatMul(x, w) [act] b = Relu(a) [det] c = Det(b) [add] d = Add(b, c) [out] y = MatMul(d, w)
    }"""
    path = models.Case(models.model(text, {"w": models.random(4, 4)}), {}, name="determinant").write(tmp_path)
    config = TriageConfig(
        build=BuildConfig(options=TensorRTOptions()),
        check=CheckConfig(latency_runs=0, plots="never"),
        output=str(tmp_path / "found"),
    )
    tracker = MemoryTracker()

    result = triage(path, config, tracker=tracker)

    assert (result.kind, result.verdict) == ("build", "bad"), result.page()
    assert [step.question for step in result.steps][-3:] == ["build", "minimal", "bundle"]
    assert any("det" in part for part in result.places) and result.steps[-2].answer == "1 node"
    with zipfile.ZipFile(tmp_path / "found" / "bundle.zip") as archive:
        assert '"verdict": "error"' in archive.read("case.json").decode()

    steps = {step.question: step.run_id for step in result.steps}
    [failed] = tracker.find(parent=steps["build"])
    assert failed.status == "failed"
    whole = bundle(failed.id, BundleConfig(output=str(tmp_path / "whole.zip")), tracker=tracker)
    assert whole.repeats == "error" and "Det" in (failed.tags[schema.Tag.ERROR])
    with zipfile.ZipFile(tmp_path / "whole.zip") as archive:
        assert {"model.onnx", "reproduce.py", "spec.json"} <= set(archive.namelist())
        assert "an error" in archive.read("issue.md").decode()


def test_unknown_operator_splits_the_model() -> None:
    whole, report = capability(models.conv_net().proto), capability(models.no_kernel().proto)
    assert whole.supported and len(whole.parts) == 1
    assert not report.supported
    assert [(refusal.op, refusal.nodes) for refusal in report.refused] == [("custom.Frobnicate", ("frob",))]
    assert [part.supported for part in report.parts] == [True, False, True]


def test_capability_is_written_as_polygraphys(tmp_path: Path) -> None:
    proto = models.model(
        """(float[2] x) => (float[2] y) <float[2] a, float[2] b, float[2] c, float[2] d> {
            a = custom.One(x) b = Relu(a) c = custom.One(b) d = Neg(c) y = custom.Two(d)
        }"""
    )
    report = capability(proto, output_dir=tmp_path)
    first, header, rule, *rows = report.text().splitlines()[:5]
    assert (first, set(rule)) == ("===== Summary =====", {"-"})
    assert [cell.strip() for cell in header.split("|")] == ["Operator", "Count", "Reason", "Nodes"]
    assert [row.rpartition(" | ")[2] for row in rows] == ["[[0, 1], [2, 3]]", "[[4, 5]]"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"supported_subgraph-nodes-{index}-{index}.onnx" for index in (1, 3)),
        *(f"unsupported_subgraph-nodes-{index}-{index}.onnx" for index in (0, 2, 4)),
    ]
    assert "Stack trace  | Operator   | Node" in capability(proto, partition=False).text()
    assert (
        capability(models.identity().proto)
        .text()
        .startswith("Graph is fully supported by TensorRT; Will not generate subgraphs.")
    )
