"""Building a list: one entry's failure stops no other."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.ops.engines.build_list import BuildListResult, build_list
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.tracking.memory import MemoryTracker


@pytest.fixture
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.conv_net().fixed().write(tmp_path)
    models.identity().write(tmp_path)
    return tmp_path


def listed(folder: Path, text: str) -> Path:
    file = folder / "nets.yaml"
    file.write_text(f"defaults: {{policy: {{isolated: false}}}}\nmodels:\n{text}")
    return file


def test_failing_builds_do_not_stop_others(folder: Path, tracker: MemoryTracker):
    models.no_kernel().write(folder)
    text = """  - model: no_kernel.onnx
  - {model: conv_net.onnx, precisions: [fp32, fp16], tolerances: {fp16: {atol: 0.0, rtol: 0.0}}}
  - model: identity.onnx
  - model: identty.onnx
  - {model: conv_net.onnx, precisions: [fp16], tolerances: {fp16: {atol: 0.0, rtol: 0.0}}, policy: {bad: report}}
"""
    result = build_list(listed(folder, text), tracker=tracker)

    assert [(Path(b.model).stem, b.precision, b.outcome, b.failed) for b in result.builds] == [
        ("no_kernel", "fp32", "error", True),
        ("conv_net", "fp32", "good", False),
        ("conv_net", "fp16", "bad", True),
        ("identity", "fp32", "good", False),
        ("identty", "fp32", "error", True),
        ("conv_net", "fp16", "bad", False),
    ]
    assert (result.verdict, result.headline) == (
        "bad",
        "3 of 6 failed (2 good, 2 bad, 2 error): no_kernel, conv_net, identty",
    )
    page = result.page()
    assert "- no_kernel.onnx fp32 onnxruntime: error. Op 'custom:Frobnicate'" in page
    assert "nets.yaml:6)" in page and "identty.onnx matches no file" in page
    [failed] = tracker.find("no_kernel")
    assert result.builds[0].run_id == failed.id


def test_unproven_builds_leave_the_list_unproven(folder: Path, tracker: MemoryTracker):
    def unproven(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
        outcome = convert(model, config, tracker=tracker, experiment=experiment, tags=tags)
        return replace(outcome, verdict="unproven" if "conv_net" in model else outcome.verdict)

    for policy in ("fail", "report"):
        text = f"  - {{model: conv_net.onnx, policy: {{bad: {policy}}}}}\n  - model: identity.onnx\n"
        result = build_list(listed(folder, text), tracker=tracker, convert_one=unproven)

        assert (result.verdict, result.headline) == ("unproven", "1 good, 1 unproven")
        assert not result.failed and "- conv_net.onnx fp32 onnxruntime: unproven." in result.page()
        assert tracker.info(result.run_id).metrics["builds", "unproven"] == 1


def test_builds_and_summary_are_runs(folder: Path, tracker: MemoryTracker):
    result = build_list(listed(folder, "  - model: conv_net.onnx\n"), tracker=tracker, tags={"night": "1"})

    (build,) = tracker.find("conv_net")
    (summary,) = tracker.find("nets")
    assert (result.run_id, result.builds[0].run_id) == (summary.id, build.id)
    assert (summary.tags["trtops.kind"], summary.verdict, summary.tags["night"]) == ("build_list", "good", "1")
    assert summary.metrics["builds", "good"] == 1 and summary.metrics["builds", "failed"] == 0
    assert build.tags["night"] == "1"
    stored = tracker.load(summary.id)
    assert BuildListResult.from_json(stored.read_bytes("build_list.json")).builds == result.builds
    assert "| conv_net.onnx | onnxruntime | FP32 | good |" in result.page()


def test_transient_failures_leave_an_error(folder: Path, tracker: MemoryTracker):
    def away(*_: object):
        raise errors.TrackingUnavailableError("the store does not answer")

    result = build_list(listed(folder, "  - model: conv_net.onnx\n"), tracker=tracker, convert_one=away)

    assert (result.verdict, result.failed[0].transient) == ("error", True)


def test_library_crashes_are_errors_of_one_build(folder: Path, tracker):
    def broken(model: str, *rest: object):
        if "conv" in model:
            raise ZeroDivisionError("a defect")
        raise KeyboardInterrupt

    text = "  - model: conv_net.onnx\n"
    result = build_list(listed(folder, text), tracker=tracker, convert_one=broken)
    assert result.builds[0].reasons[0] == "ZeroDivisionError: a defect"

    with pytest.raises(KeyboardInterrupt):
        build_list(listed(folder, text + "  - model: identity.onnx\n"), tracker=tracker, convert_one=broken)
    assert tracker.find("nets")[0].status in ("failed", "killed")
