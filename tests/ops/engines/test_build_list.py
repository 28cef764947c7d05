"""Building a list: one entry's failure stops no other, and what is known already is left out."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.ops.engines.build_list import BuildListConfig, BuildListResult, build_list
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.engines.model_list import ListedModel, Policy, folder_list
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker

NEW = BuildListConfig(only_new=True)


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


def watch(folder: Path, tracker: MemoryTracker, config: BuildListConfig = NEW) -> BuildListResult:
    entry = ListedModel(model="", policy=Policy(isolated=False))
    return build_list(folder_list(folder, "*.onnx", entry), config, tracker=tracker)


def outcomes(result: BuildListResult) -> dict[str, str]:
    return {Path(build.model).stem: build.outcome for build in result.builds}


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
    assert (result.verdict, result.headline) == ("bad", "3 of 6 failed (2 good, 2 bad, 2 error)")
    page = result.page()
    assert "**no_kernel.onnx fp32 onnxruntime**: error. Op 'custom:Frobnicate'" in page
    assert "nets.yaml:6)" in page and "identty.onnx matches no file" in page


def test_unproven_builds_leave_the_list_unproven(folder: Path, tracker: MemoryTracker):
    def unproven(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
        found = convert(model, config, tracker=tracker, experiment=experiment, tags=tags)
        return replace(found, verdict="unproven" if "conv_net" in model else found.verdict)

    for policy in ("fail", "report"):
        text = f"  - {{model: conv_net.onnx, policy: {{bad: {policy}}}}}\n  - model: identity.onnx\n"
        result = build_list(listed(folder, text), tracker=tracker, convert_one=unproven)

        assert (result.verdict, result.headline) == ("unproven", "1 good, 1 unproven")
        assert not result.failed and "**conv_net.onnx fp32 onnxruntime**: unproven." in result.page()
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
    assert "| conv_net.onnx | onnxruntime | FP32 | good |" in stored.read_bytes("build_list.md").decode()


def test_library_crashes_are_errors_of_one_build(folder: Path, tracker):
    def broken(model: str, *rest: object):
        if "conv" in model:
            raise ZeroDivisionError("a defect")
        raise KeyboardInterrupt

    text = "  - model: conv_net.onnx\n"
    result = build_list(listed(folder, text), tracker=tracker, convert_one=broken)
    assert result.builds[0].reasons == ("ZeroDivisionError: a defect",)

    with pytest.raises(KeyboardInterrupt):
        build_list(listed(folder, text + "  - model: identity.onnx\n"), tracker=tracker, convert_one=broken)
    assert tracker.find("nets")[0].status in ("failed", "killed")


def test_new_models_are_found_by_content(folder: Path, tracker: MemoryTracker):
    assert outcomes(watch(folder, tracker)) == {"conv_net": "good", "identity": "good"}

    for file in folder.glob("*.onnx"):
        os.utime(file, (1, 1))
    (folder / "conv_net.onnx").rename(folder / "renamed.onnx")
    again = watch(folder, tracker)
    assert outcomes(again) == {"identity": "skipped", "renamed": "skipped"}
    assert (again.headline, again.run_id) == ("2 skipped", "")
    assert "2 skipped: The tracking store has it." in again.page()

    models.transformer().fixed().write(folder, "identity")
    assert outcomes(watch(folder, tracker)) == {"identity": "good", "renamed": "skipped"}


def test_failed_builds_are_repeated_up_to_limit(folder: Path, tracker: MemoryTracker):
    (folder / "identity.onnx").write_bytes(b"no model")
    config = BuildListConfig(only_new=True, attempts=2)

    seen = [outcomes(watch(folder, tracker, config))["identity"] for _ in range(3)]

    assert seen == ["error", "error", "skipped"]
    assert watch(folder, tracker, config).builds[1].reasons == ("It failed 2 times.",)


def test_files_and_builds_in_progress_are_skipped(folder: Path, tracker: MemoryTracker):
    os.utime(folder / "identity.onnx", (time.time() - 3600,) * 2)
    result = watch(folder, tracker, BuildListConfig(only_new=True, settle_seconds=600))
    assert outcomes(result) == {"conv_net": "skipped", "identity": "good"}

    seen: list[str] = []

    def build(model: str, config, experiment: str, tags):
        with pytest.raises(ZeroDivisionError), tracked(tracker, experiment, "r", kind="build", tags=tags):
            seen.append(outcomes(watch(folder, tracker))["conv_net"])
            raise ZeroDivisionError
        raise errors.BackendError("enough")

    entry = ListedModel(model="", policy=Policy(isolated=False))
    build_list(folder_list(folder, "conv_net.onnx", entry), NEW, tracker=tracker, convert_one=build)

    assert seen == ["skipped"]
