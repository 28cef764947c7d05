from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests import models, zoo
from tests.contracts.runner import RunnerContract
from trtops import errors
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx, session_from_onnx
from trtops.comparator import compare_outputs
from trtops.metadata import DataType


class TestOnnxrtRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        return lambda proto, name=None: OnnxrtRunner(SessionFromOnnx(proto), name)


class TestReferenceRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        # The check of `Model` would refuse the contract's broken model before a runner exists, so it is skipped.
        return lambda proto, name=None: reference_runner(Model(None, None, proto), name)


def make_cast(element: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Cast", ["x"], ["z"], to=TensorProto.FLOAT)]
    outputs = [
        helper.make_tensor_value_info("y", element, [4]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [4]),
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", element, [4])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("bfloat16", TensorProto.BFLOAT16),
        ("float8_e4m3fn", TensorProto.FLOAT8E4M3FN),
        ("float8_e5m2", TensorProto.FLOAT8E5M2),
    ],
)
def test_ml_dtypes_pass_through(name, element):
    x = np.array([0.5, -1, 2, 3]).astype(getattr(ml_dtypes, name))

    with OnnxrtRunner(SessionFromOnnx(make_cast(element))) as runner:
        assert runner.get_input_metadata()["x"].dtype is DataType(name)
        outputs = runner.infer({"x": x})

    assert outputs["y"].dtype == x.dtype
    np.testing.assert_array_equal(outputs["y"].view(np.uint8), x.view(np.uint8))
    np.testing.assert_array_equal(outputs["z"], x.astype(np.float32))


def test_scalars_and_unknown_ranks():
    case = models.branch()
    with OnnxrtRunner(SessionFromOnnx(case.proto)) as runner:
        assert runner.get_input_metadata()["flag"].shape == ()
        case.check(runner.infer)

    proto = models.model("(float x) => (float y) { y = Relu(x) }")
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    with OnnxrtRunner(SessionFromOnnx(proto)) as runner:
        assert runner.infer({"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 3)


def test_runner_is_thread_safe():
    wrong: list[int] = []
    with OnnxrtRunner(SessionFromOnnx(models.multi_output().proto)) as runner:

        def work(seed: int) -> None:
            x = models.random(3, 4, seed=seed)
            for _ in range(50):
                if not np.array_equal(runner.infer({"x": x})["relu"], np.maximum(x, 0)):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert wrong == []


def test_onnx_runtimes_failures_are_inference_errors():
    case = models.reshape()
    with OnnxrtRunner(SessionFromOnnx(models.identity().proto), "r") as runner:
        with pytest.raises(errors.InferenceError, match=r"r: .*x"):
            runner.infer({"y": np.zeros(3)}, check_inputs=False)
        with pytest.raises(errors.InferenceError):
            runner.infer({"x": np.zeros((1, 1, 2, 2), np.float64)}, check_inputs=False)
    with (
        OnnxrtRunner(SessionFromOnnx(case.proto)) as runner,
        pytest.raises(errors.InferenceError, match=r"(?i)reshape"),
    ):
        runner.infer({**case.feed, "shape": np.array([5, 5])})


def test_sequences_and_maps_become_arrays() -> None:
    halves, probabilities = zoo.sequence(), zoo.zipmap()
    with OnnxrtRunner(SessionFromOnnx(halves.proto)) as runner:
        found = runner.infer(dict(halves.feed))
    np.testing.assert_array_equal(found["halves"], np.stack(np.split(found["y"], 2, axis=1)))
    with OnnxrtRunner(SessionFromOnnx(probabilities.proto)) as runner:
        found = runner.infer(dict(probabilities.feed))
    assert found["probabilities"].shape == (5, 3)
    np.testing.assert_array_equal(found["probabilities"].argmax(axis=1), found["label"])
    assert compare_outputs(found, found)

    halves.proto.graph.node[1].attribute[0].i = 4  # 6 columns in pieces of 4, which cannot be stacked
    with OnnxrtRunner(SessionFromOnnx(halves.proto)) as runner:
        found = runner.infer(dict(halves.feed))
    assert [found[f"halves/{i}"].shape for i in range(2)] == [(2, 4), (2, 2)]


def outputs_of(session: ort.InferenceSession) -> np.ndarray:
    return session.run(None, dict(models.identity().feed))[0]


@pytest.fixture(params=["bytes", "path text", "path", "message"])
def source(request, tmp_path):
    case = models.identity()
    path = case.write(tmp_path)
    return {
        "bytes": case.proto.SerializeToString(),
        "path text": str(path),
        "path": path,
        "message": case.proto,
    }[request.param]


def test_session_from_every_source(source):
    for session in (SessionFromOnnx(source)(), SessionFromOnnx(lambda: source)(), session_from_onnx(source)):
        np.testing.assert_array_equal(outputs_of(session), models.identity().feed["x"])


def test_external_data_is_found(tmp_path):
    case = models.conv_net()
    path = models.write_external(case, tmp_path)

    session = session_from_onnx(path)

    expected = session_from_onnx(case.proto).run(None, dict(case.feed))[0]
    np.testing.assert_array_equal(session.run(None, dict(case.feed))[0], expected)


def test_missing_providers_are_refused():
    with pytest.raises(errors.BackendUnavailableError, match=r"'gaudi'.*CPUExecutionProvider"):
        session_from_onnx(models.identity().proto, ["gaudi"])
    with pytest.raises(errors.ConfigError, match="at least one"):
        session_from_onnx(models.identity().proto, [])


def test_optimization_level_is_passed_on():
    case = models.transformer()
    kept = []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, None):
        session = session_from_onnx(case.proto, graph_optimization_level=level)
        kept.append(session.get_session_options().graph_optimization_level)

    assert kept == [ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL]


def test_unusable_models_are_refused(tmp_path):
    with pytest.raises(errors.InvalidModelError, match=r"none\.onnx is not a file"):
        session_from_onnx(tmp_path / "none.onnx")
    for content in (b"", b"hello", models.conv_net().proto.SerializeToString()[:500]):
        with pytest.raises(errors.InvalidModelError):
            session_from_onnx(content)
    with pytest.raises(errors.UnsupportedFeatureError, match="Frobnicate"):
        session_from_onnx(models.no_kernel().proto)
