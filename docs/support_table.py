"""The table of what the TensorRT back end can do on each release, and what a test has shown on the real library."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

from trtops.backend.trt.lines import Feature
from trtops.ops.self_test import OUTCOMES, BackendReport
from trtops.tables import markdown_table

# Releases in the table: title, (major, minor), and whether it is TensorRT-RTX.
RELEASES: tuple[tuple[str, tuple[int, int], bool], ...] = (
    ("8.6", (8, 6), False),
    ("10.8", (10, 8), False),
    ("10.16", (10, 16), False),
    ("11.4", (11, 4), False),
    ("RTX 1.7", (1, 7), True),
)


class Capability(NamedTuple):
    """One row of the support table."""

    title: str  # what can be done
    feature: Feature | None = None  # the feature that a release must have for it; None if all have it
    gpu: bool = False  # whether it needs a GPU; TensorRT-RTX was not run on one
    shown_on_8: str | None = None  # name of the test that shows it on TensorRT 8.6 and a GPU
    shown_on_rtx: str | None = None  # name of the test that shows it on TensorRT-RTX without a GPU

    def cell(self, release: tuple[str, tuple[int, int], bool]) -> str:
        """The table's text for a release: ``shown``, ``written``, or ``-`` if the release does not have it."""
        title, version, rtx = release
        if self.feature is not None and not self.feature.is_in(version, rtx=rtx):
            return "-"
        if not rtx and _CHECKS.get(self.title, "") in _passed(version):
            return "shown"
        shown = (title == "8.6" and self.shown_on_8) or (rtx and self.shown_on_rtx)
        return "shown" if shown else "written"


# The check of `trtops doctor --self-test` that shows a capability. INT8 and tactics are checked in the way of the
# release, which the tests on 8.6 name.
_CHECKS = {
    "build from ONNX, FP32": "fp32",
    "FP16, by flag or by Casts in the model": "fp16",
    "dynamic shapes, several profiles": "profiles",
    "timing caches: load, save, merge": "timing cache",
    "inspection of engines": "inspector",
    "inference, data-dependent output shapes, shape tensors": "data-dependent shapes",
}
REPORTS = Path(__file__).parent / "reports"


def reports() -> list[BackendReport]:
    """Return the reports that `trtops doctor --self-test -o` wrote, of all files in `docs/reports`."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(REPORTS.glob("*.json"))]
    return [BackendReport.from_dict(report) for text in texts for report in json.loads(text)]


@functools.cache
def _passed(version: tuple[int, int]) -> frozenset[str]:
    """Return the checks that passed in every report on a release of TensorRT."""
    passed = [
        frozenset(check.name for check in report.checks if check.outcome == "passed")
        for report in reports()
        if report.backend == "tensorrt" and report.release.split(".")[:2] == list(map(str, version))
    ]
    return frozenset.intersection(*passed) if passed else frozenset()


def reports_table() -> str:
    """Return a table of the reports as Markdown: a row for each back end, release and device."""
    rows = []
    for report in reports():
        outcomes = [", ".join(check.name for check in report.checks if check.outcome == kind) for kind in OUTCOMES]
        place = f"{report.os}, Python {report.python}"
        rows.append((f"{report.backend} {report.release}", report.device, place, *(text or "-" for text in outcomes)))
    return markdown_table(("release", "device", "system", *OUTCOMES), rows) + "\n"


# fmt: off
CAPABILITIES = (
    Capability("build from ONNX, FP32",
        shown_on_8="test_fp32_engine_agrees_with_onnx_runtime",
        shown_on_rtx="test_a_static_network_builds"),
    Capability("build from the network API",
        shown_on_8="test_a_network_made_with_the_api_adds_one",
        shown_on_rtx="test_a_network_made_with_the_api_builds"),
    Capability("FP16, by flag or by Casts in the model",
        shown_on_8="test_fp16_engine_agrees_with_onnx_runtime",
        shown_on_rtx="test_fp16_is_written_into_strongly_typed_models"),
    Capability("INT8 with calibrators (entropy, entropy 2, min-max, legacy)", Feature.CALIBRATOR,
        shown_on_8="test_each_calibrator_makes_an_int8_engine"),
    Capability("INT8 by Q/DQ nodes",
        shown_on_8="test_tensorrt_cache_becomes_quantized_model",
        shown_on_rtx="test_int8_without_calibrators_uses_cache_or_data"),
    Capability("FP8 by Q/DQ nodes", Feature.FP8_IN_MODELS,
        shown_on_rtx="test_fp8_is_written_into_the_model"),
    Capability("strongly typed networks", Feature.STRONG_TYPING,
        shown_on_rtx="test_a_static_network_builds"),
    Capability("precision per layer, by API", Feature.LAYER_PRECISION,
        shown_on_8="test_layers_get_the_requested_precisions"),
    Capability("dynamic shapes, several profiles",
        shown_on_8="test_three_profiles_serve_their_shapes_and_refuse_others",
        shown_on_rtx="test_a_dynamic_network_builds_with_three_profiles"),
    Capability("outputs replaced, marked by layer type",
        shown_on_8="test_a_network_with_other_outputs_gives_those",
        shown_on_rtx="test_a_modified_network_builds"),
    Capability("tactic record and replay by algorithm selector", Feature.ALGORITHM_SELECTOR,
        shown_on_8="test_a_replay_repeats_every_tactic"),
    Capability("tactic record and replay by editable timing cache", Feature.EDITABLE_TIMING_CACHE),
    Capability("timing caches: load, save, merge", Feature.TIMING_CACHE,
        shown_on_8="test_two_writers_share_a_timing_cache"),
    Capability("an engine repeated by its timing cache alone", Feature.TIMING_CACHE,
        shown_on_8="test_timing_cache_repeats_the_engine"),
    Capability("inspection of engines", gpu=True,
        shown_on_8="test_inspector_lists_tactics_formats_and_precisions"),
    Capability("time of each layer, and two engines side by side", gpu=True,
        shown_on_8="test_the_layers_of_fp16_and_int8_are_aligned"),
    Capability("inspection of networks",
        shown_on_8="test_a_network_is_described_with_attributes_and_weights",
        shown_on_rtx="test_a_network_is_described_with_attributes_and_weights"),
    Capability("inference, data-dependent output shapes, shape tensors", gpu=True,
        shown_on_8="test_data_dependent_outputs_have_the_right_shape"),
    Capability("vectorized input and output formats", gpu=True,
        shown_on_8="test_vectorized_formats_are_packed_and_unpacked"),
    Capability("allocation strategies", Feature.ALLOCATION_STRATEGY, gpu=True),
    Capability("weight streaming", Feature.WEIGHT_STREAMING, gpu=True),
    Capability("marking debug tensors", Feature.DEBUG_TENSORS,
        shown_on_rtx="test_debug_tensors_are_marked"),
    Capability("collecting debug tensors while running", Feature.DEBUG_TENSORS, gpu=True),
    Capability("nodes kept in FP32, tensors marked as outputs", gpu=True),
    Capability("bundles repeated by plain TensorRT", gpu=True,
        shown_on_8="test_triage_names_and_bundles_the_overflow"),
    Capability("engines built elsewhere: evaluate, promote, audit", gpu=True,
        shown_on_8="test_plan_built_elsewhere_is_promoted_gated_and_audited"),
    Capability("certified engines loaded without trtops", gpu=True,
        shown_on_8="test_each_profile_takes_its_shapes"),
    Capability("triage", gpu=True,
        shown_on_8="test_triage_names_and_bundles_the_overflow"),
    Capability("builds in a child process",
        shown_on_8="test_build_works_after_a_killed_child",
        shown_on_rtx="test_a_build_in_a_child_process"),
)
# fmt: on


def support_table() -> str:
    """The table as Markdown. ``shown``: a test runs it on the real library; ``written``: to the API, not yet run."""
    cells = ([capability.title, *map(capability.cell, RELEASES)] for capability in CAPABILITIES)
    return markdown_table(["", *(title for title, _, _ in RELEASES)], cells) + "\n"
