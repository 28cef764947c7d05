"""Attribution of an engine's error: parts, statements, and measurements of real engines."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models, zoo
from tests.models import Case
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.cli.main import main
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, convert
from trtops.ops.evaluation.attribution import Attribution, OutputErrors
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.spec import BuildConfig, Precision
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker


def test_error_parts_add_up_as_squares() -> None:
    found = OutputErrors(name="y", engine=0.13, precision=0.05)

    assert found.builder == pytest.approx(0.12)
    assert OutputErrors(name="y", engine=0.01, precision=0.05).builder == 0
    assert OutputErrors(name="y", engine=13, precision=3, noise=4).builder == 12


@pytest.mark.parametrize(
    ("engine", "precision", "verdict", "emulated", "statement"),
    [
        (1e-3, 9e-4, "good", "good", "good for its precision"),
        (1e-4, 9e-4, "good", "good", "good for its precision"),
        (1e-3, 0.0, "good", "good", "good for its precision"),  # within some units of the precision
        (0.2, 9e-4, "bad", "good", "worse than its precision"),
        (0.02, 9e-4, "good", "good", "worse than its precision"),
        (0.2, 0.19, "bad", "bad", "precision is the problem"),
        (0.2, 0.15, "bad", "good", "precision is the problem"),
        (0.2, 0.1, "bad", "good", "worse than its precision"),
        (math.inf, 0.001, "bad", "good", "worse than its precision"),
        (math.inf, math.inf, "bad", "bad", "precision is the problem"),
        (1e-3, math.inf, "good", "bad", "good for its precision"),
    ],
)
def test_statements_follow_from_the_numbers(engine, precision, verdict, emulated, statement) -> None:  # type: ignore[no-untyped-def]
    parts = OutputErrors(name="y", engine=engine, precision=precision, noise=1e-7)
    found = Attribution(precision="fp16", unit=2.0**-11, outputs=(parts,), engine=verdict, emulated=emulated)

    assert found.statement == statement
    assert "of the relative error" in found.sentence()
    assert Attribution.from_json(found.to_json()) == found
    elsewhere = replace(found, computed=False)
    assert elsewhere.statement == "not in its precision" and "it computes in another" in elsewhere.sentence()


def converted(case: Case, precision: Precision, folder: Path, tracker: MemoryTracker) -> ConvertResult:
    np.savez(folder / "feed.npz", **dict(case.feed))
    config = ConvertConfig(
        build=BuildConfig(precision=precision),
        check=CheckConfig(data=str(folder / "feed.npz"), latency_runs=0, plots="never"),
        attribute_error=True,
        isolated=False,
    )
    return convert(case.write(folder), config, tracker=tracker)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_sound_engines_are_good_for_their_precision(precision: Precision, tmp_path: Path) -> None:
    tracker = MemoryTracker()
    result = converted(zoo.classifier(), precision, tmp_path, tracker)

    found, info = result.evaluation.attribution, tracker.info(result.run_id)
    assert found is not None and found.worst is not None
    assert found.statement == info.tags[schema.Tag.ATTRIBUTION] == "good for its precision"
    assert (found.worst.precision > 1e-4) == (precision == "int8")
    assert info.metrics[schema.Metric.ATTRIBUTION, "precision"] == found.worst.precision
    assert info.metrics[schema.Metric.ATTRIBUTION, "engine"] == found.worst.engine
    assert f"The engine is good for its precision, {precision.upper()}; of the relative error" in result.page()
    assert "good for its precision" in info.tags[schema.Tag.NOTE]
    assert Evaluation.from_json(result.evaluation.to_json()) == result.evaluation


def test_fp16_overflow_is_attributed_to_the_precision(tmp_path: Path) -> None:
    result = converted(zoo.overflowing(), "fp16", tmp_path, MemoryTracker())

    found = result.evaluation.attribution
    assert result.verdict == "bad" and found is not None
    assert found.statement == "precision is the problem"
    assert "overflows in FP16: `h`." in found.sentence()


def wrong_weight(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its first weight a tenth too large: what a wrong kernel would give."""
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    weight = next(tensor for tensor in changed.graph.initializer if len(tensor.dims) > 1)
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1.1), weight.name))
    return changed


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_wrong_engines_are_worse_than_their_precision(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = models.conv_net()
    build = OnnxRuntimeBackend.build

    def build_another(self, model, config, **others):  # type: ignore[no-untyped-def]
        made = build(self, Model.from_proto(wrong_weight(model.proto()), model.name), config, **others)
        return replace(made, spec=replace(made.spec, model_sha256=model.info.sha256))

    monkeypatch.setattr(OnnxRuntimeBackend, "build", build_another)
    result = converted(case, precision, tmp_path, MemoryTracker())

    found = result.evaluation.attribution
    assert found is not None and found.worst is not None
    assert found.statement == "worse than its precision"
    assert found.worst.builder > 0.02 and "the builder is the cause" in found.sentence()


def test_insufficient_precision_is_the_problem(tmp_path: Path) -> None:
    """Weights of INT8 per channel are 1/254 of the largest of theirs: a thousandth of it rounds to nothing."""
    weight = np.full((64, 16), 1e-3, np.float32)
    weight[0] = 1.0
    proto = models.model("(float[4,64] x) => (float[4,16] y) { y = MatMul(x, w) }", {"w": weight})
    x = np.abs(models.random(4, 64, seed=3))
    x[:, 0] = 0
    result = converted(Case(proto, {"x": x}, name="lost"), "int8", tmp_path, MemoryTracker())

    found = result.evaluation.attribution
    assert result.verdict == "bad" and found is not None
    assert found.statement == "precision is the problem"
    assert "INT8 does not suffice for this model" in found.sentence()


def test_failed_emulation_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise errors.BackendError("no such kernel")

    monkeypatch.setattr("trtops.ops.evaluation.attribution.run_in_16_bit", refuse)
    result = converted(zoo.classifier(), "fp16", tmp_path, MemoryTracker())

    found = result.evaluation.attribution
    assert found is not None and "no such kernel" in found.why_not
    assert "The cause of the error could not be measured" in result.page()


def test_convert_command_reports_precision_and_attribution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = zoo.classifier().write(tmp_path)
    words = f"convert {model} --convert-to ort --fp16 --experiment e --store {tmp_path / 'store'}".split()

    assert main([*words, "--min-precision-share", "0.5", "--attribute-error"]) == 1

    said = capsys.readouterr().out
    assert "No FP16 engine: Of" in said and "The engine is not in its precision, FP16" in said
    assert main([*words, "--min-precision-share", "1.5"]) == 2
