"""Engines that trtops did not build: wrong ones are named, good ones can be promoted, gated and audited."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import trtops
from tests import models
from trtops import errors
from trtops.backend.base import BuildRequest
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.ops.engines.evaluate import EvaluateConfig, _allowing_tf32
from trtops.ops.engines.evaluate_result import EngineVerdict, EvaluateResult
from trtops.spec import BuildConfig, BuildSpec, Precision, TensorRTOptions
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact

LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """The feed of a case, scaled."""

    def __init__(self, scale: float) -> None:
        self._feeds = iter([{name: array * scale for name, array in models.conv_net().feed.items()}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def optimize(model: onnx.ModelProto, path: Path, level: str = "ENABLE_ALL") -> None:
    """Write a model as ONNX Runtime alone optimizes it, in the format of the file's ending."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", path.suffix[1:].upper())
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def changed(**weights: np.ndarray) -> onnx.ModelProto:
    """The classifier with other weights."""
    proto = models.conv_net().proto
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name].astype(np.float32), tensor.name))
    return copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its feed, and 13 engines of it, seven of them wrong in different ways."""
    folder = tmp_path_factory.mktemp("engines")
    case, engines = models.conv_net(), folder / "engines"
    engines.mkdir()
    model = case.write(folder, "net")
    np.savez(folder / "feed.npz", **case.feed)  # type: ignore[arg-type]
    for level in LEVELS:
        optimize(case.proto, engines / f"{level.lower()}.ort", level)
    optimize(case.proto, engines / "basic.onnx", "ENABLE_BASIC")
    quantize_static(model, engines / "int8.onnx", Batches(1.0))
    quantize_static(model, engines / "badly_quantized.onnx", Batches(0.02))
    optimize(changed(w2=models.random(16, 10, seed=88, scale=0.5)), engines / "other_weights.ort")
    w0 = models.random(8, 3, 3, 3, seed=1, scale=0.3)
    optimize(changed(w0=w0 + models.random(8, 3, 3, 3, seed=5, scale=0.003)), engines / "stale.ort")
    optimize(models.multi_output().proto, engines / "other_model.ort")
    (engines / "cut.ort").write_bytes((engines / "enable_all.ort").read_bytes()[:3000])
    (engines / "text.onnx").write_text("an engine")
    (engines / "folder.ort").mkdir()
    return folder


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> tuple[EvaluateResult, MemoryTracker]:
    """The folder, evaluated in one call."""
    tracker = MemoryTracker()
    data = str(folder / "feed.npz")
    return trtops.evaluate(folder / "engines", folder / "net.onnx", data=data, tracker=tracker), tracker


def test_wrong_engines_are_named(evaluated: tuple[EvaluateResult, MemoryTracker]) -> None:
    result, _ = evaluated
    verdicts = {Path(engine.file).name: engine for engine in result.engines}

    bad = {
        "badly_quantized.onnx": "may have been quantized badly",
        "other_weights.ort": "do not follow the model's",
        "stale.ort": "may be of an earlier version of the weights",
        "other_model.ort": "its inputs are",
    }
    for name, reason in bad.items():
        assert verdicts[name].verdict == "bad" and reason in " ".join(verdicts[name].reasons), verdicts[name].reasons
    unreadable = {
        "cut.ort": "does not load",
        "text.onnx": "neither in ONNX Runtime's format nor",
        "folder.ort": "cannot be read",
    }
    for name, reason in unreadable.items():
        assert verdicts[name].verdict == "error" and reason in verdicts[name].reasons[0]
    good = verdicts.keys() - bad.keys() - unreadable.keys()
    assert {verdicts[name].verdict for name in good} == {"good"}, [verdicts[name].reasons for name in good]
    assert len(good) == 6 and result.verdict == "error" and result.exit_code == 1
    assert verdicts["int8.onnx"].called == "INT8" and verdicts["enable_all.ort"].called == "FP32"
    assert next(row[0] for row in result.overview().rows) in unreadable  # type: ignore[union-attr]
    for name, reason in {**bad, **unreadable}.items():
        [sentence] = [text for text in result.because if text.startswith(f"{name} (")]
        assert reason in sentence


def test_run_states_what_is_not_known(evaluated: tuple[EvaluateResult, MemoryTracker]) -> None:
    """Its spec and params have no builder option that the engine does not show."""
    result, tracker = evaluated
    engine: EngineVerdict = next(engine for engine in result.engines if engine.file.endswith("enable_all.ort"))
    run = tracker.load(engine.run_id)
    spec = BuildSpec.from_json(run.read_bytes(Artifact.SPEC))

    assert run.info.kind == "evaluate" and spec.engine_sha256 == engine.engine_sha256
    assert {"graph optimizers", "calibration data", "requested precision"} <= set(spec.unknown)
    assert not {"options.tf32", "calibration_samples", "options.allow_approximation"} & run.info.params.keys()
    assert run.info.params["precision"] == "fp32"
    checked = engine.evaluation and engine.evaluation.self_check
    assert checked is not None and checked.verdict == "good" and len(checked.named("held")) > 1


def test_evaluated_engine_is_promoted_gated_and_audited(folder: Path, tmp_path: Path) -> None:
    tracker, model, data = MlflowTracker(tmp_path / "mlruns"), folder / "net.onnx", str(folder / "feed.npz")
    run = trtops.evaluate(folder / "engines" / "basic.onnx", model, data=data, tracker=tracker)
    accepted = trtops.promote(run.run_id, tracker=tracker)

    assert accepted.engine_sha256 == run.engines[0].engine_sha256 and "was built elsewhere" in accepted.page()
    assert trtops.resolve(model, tracker=tracker, name="net").run_id == accepted.run_id
    gated = trtops.gate(model, candidate=run.run_id, data=data, tracker=tracker)
    assert gated.decision == "accept" and gated.measured is not None and gated.measured.same_engine
    audited = trtops.audit(runs=(run.run_id, accepted.run_id), tracker=tracker)
    assert audited.verdict == "good", audited.page()
    assert "not rebuilt; of its build is not known: release that built it" in audited.page()


def test_exchanged_outputs_are_named(tmp_path: Path) -> None:
    weights = {"w": models.random(6, 4, seed=1)}
    text = "(float[9,6] x) => (float[9,4] {}, float[9,4] {}) {{ h = MatMul(x, w) {} = Tanh(h) {} = Sigmoid(h) }}"
    onnx.save(models.model(text.format("a", "b", "a", "b"), weights), tmp_path / "net.onnx")
    optimize(models.model(text.format("a", "b", "b", "a"), weights), tmp_path / "net.ort")
    result = trtops.evaluate(tmp_path / "net.ort", tmp_path, tracker=MemoryTracker())

    assert result.verdict == "bad" and "'a' has the values of the model's 'b'" in result.reasons[0]
    assert "weights" not in " ".join(result.reasons)
    optimize(models.model(text.format("a", "c", "a", "c"), weights), tmp_path / "net_renamed.ort")
    renamed = trtops.evaluate(tmp_path / "net_renamed.ort", tmp_path, tracker=MemoryTracker())
    assert renamed.verdict == "bad" and renamed.reasons[0] == "output 'c' has the values of the model's 'b'"


def test_converted_file_has_the_limits_of_its_weights(tmp_path: Path) -> None:
    """ONNX Runtime widens them, so none of its kernels shows their precision."""
    weights = models.random(6, 4, seed=1)
    onnx.save(
        models.model("(float[9,6] x) => (float[9,4] y) { y = MatMul(x, w) }", {"w": weights}), tmp_path / "n.onnx"
    )
    text = "(float[9,6] x) => (float[9,4] y) { a = Cast<to=10>(x) b = MatMul(a, w) y = Cast<to=1>(b) }"
    onnx.save(models.model(text, {"w": weights.astype(np.float16)}), tmp_path / "n_fp16.onnx")
    result = trtops.evaluate(tmp_path / "n_fp16.onnx", tmp_path / "n.onnx", tracker=MemoryTracker())

    assert result.verdict == "good" and result.engines[0].called == "FP32 (not FP16)", result.page()


def test_engine_of_fewer_shapes_is_evaluated_at_its_own(folder: Path, tmp_path: Path) -> None:
    optimize(models.conv_net().fixed().proto, tmp_path / "net_fixed.ort")
    result = trtops.evaluate(tmp_path, folder, tracker=MemoryTracker())

    assert result.verdict == "good" and result.evaluation is not None and result.evaluation.evidence is not None
    assert not result.evaluation.evidence.assumed


def test_what_is_no_engine_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.txt").touch()
    external = models.write_external(models.conv_net(), tmp_path / "external")
    with pytest.raises(errors.EngineLoadError, match="weights are in other files"):
        trtops.evaluate(external, folder / "net.onnx", tracker=MemoryTracker())
    for engine, reason in ((tmp_path / "none.ort", "does not exist"), (tmp_path / "net.txt", "is no engine")):
        with pytest.raises(errors.ConfigError, match=reason):
            trtops.evaluate(engine, folder / "net.onnx", tracker=MemoryTracker())
    with pytest.raises(errors.ConfigError, match="holds no engine"):
        trtops.evaluate(tmp_path, folder / "net.onnx", tracker=MemoryTracker())
    with pytest.raises(errors.ConfigError, match="holds no model"):
        trtops.evaluate(folder / "engines", tmp_path, tracker=MemoryTracker())


def test_limits_of_a_plan_allow_tf32() -> None:
    """TensorRT allows it by default, on GPUs that have it, and a plan does not show it."""
    build = engine_backend("onnxruntime").build(BuildRequest(Model.from_proto(models.identity().proto), BuildConfig()))
    plan = replace(build, spec=replace(build.spec, config=BuildConfig(options=TensorRTOptions())))

    def rounding(capability: str, precision: Precision | None = None) -> str:
        environment = replace(build.engine.environment, compute_capability=capability)
        on_gpu = replace(plan, engine=replace(build.engine, environment=environment))
        return _allowing_tf32(on_gpu, EvaluateConfig(precision=precision)).spec.config.rounding

    assert (rounding("9.0"), rounding("12.0"), rounding("7.5")) == ("tf32", "tf32", "fp32")
    assert rounding("9.0", "fp32") == "fp32"
