import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

from tests import cuda_double, models, zoo
from tests.contracts.runner import RunnerContract
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx, inference, session_from_onnx
from trtops.backend.onnxrt.runner import reference_runner
from trtops.comparator import compare_outputs
from trtops.func import constant
from trtops.metadata import DataType, TensorMetadata


class TestOnnxrtRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        return lambda proto, name=None: OnnxrtRunner(SessionFromOnnx(proto), name)


@pytest.mark.gpu_ort
class TestOnnxrtRunnerOnCuda(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        return lambda proto, name=None: OnnxrtRunner(SessionFromOnnx(proto, providers=["cuda"]), name)


def test_graph_is_captured_for_each_shape(monkeypatch):
    cuda_double.install(monkeypatch)
    session = session_from_onnx(models.dynamic_identity().proto, providers=[("cuda", {"enable_cuda_graph": "1"})])
    name = session.get_inputs()[0].name
    with OnnxrtRunner(session) as runner:
        for seed, shape in enumerate([(1, 2, 1, 3), (1, 2, 1, 3), (1, 2, 1, 4), (1, 2, 1, 3)]):
            x = models.random(*shape, seed=seed)
            np.testing.assert_array_equal(next(iter(runner.infer({name: x}).values())), x)
        assert runner.last_device_time() > 0
    # Twice without a graph for the shapes of the outputs, once to capture, then replays; the last is the repetition.
    assert session.runs == ["-1", "-1", "1", "1", "1", "-1", "-1", "2", "2", "1", "1"]


def test_torch_tensors_are_complete_before_they_are_bound(monkeypatch):
    """A tensor with gaps is copied on torch's stream, which has to finish the copy as well."""
    calls = []

    class Tensor:
        device = "cuda:1"

        def detach(self):
            return self

        def contiguous(self):
            calls.append("copy")
            return self

    def current_stream(device):
        return SimpleNamespace(synchronize=lambda: calls.append(f"wait for {device}"))

    torch = SimpleNamespace(Tensor=Tensor, cuda=SimpleNamespace(current_stream=current_stream))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(ort.OrtValue, "from_dlpack", lambda tensor: calls.append("bind"), raising=False)

    inference._to_ort_values({"x": Tensor()}, TensorMetadata())
    assert calls == ["copy", "wait for cuda:1", "bind"]


class TestReferenceRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        # The check of `Model` would refuse the contract's broken model before a runner exists, so it is skipped.
        return lambda proto, name=None: reference_runner(Model(None, None, proto), name)


@pytest.mark.parametrize(
    ("name", "element"), [("bfloat16", "bfloat16"), ("float8_e4m3fn", "float8e4m3fn"), ("float8_e5m2", "float8e5m2")]
)
def test_ml_dtypes_pass_through(name, element):
    text = f"({element}[4] x) => ({element}[4] y, float[4] z) {{ y = Identity(x) z = Cast<to = 1>(x) }}"
    x = np.array([0.5, -1, 2, 3]).astype(getattr(ml_dtypes, name))

    with OnnxrtRunner(SessionFromOnnx(models.model(text, opset=21, ir_version=10))) as runner:
        assert runner.get_input_metadata()["x"].dtype == x.dtype
        assert runner.get_input_metadata(use_numpy_dtypes=False)["x"].dtype is DataType(name)
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
    with OnnxrtRunner(SessionFromOnnx(models.multi_output().proto)) as runner, ThreadPoolExecutor(6) as pool:

        def right(seed: int) -> bool:
            x = models.random(3, 4, seed=seed)
            return all(np.array_equal(runner.infer({"x": x})["relu"], np.maximum(x, 0)) for _ in range(50))

        assert all(pool.map(right, range(6)))


def test_onnx_runtimes_failures_are_inference_errors():
    case = models.reshape()
    with OnnxrtRunner(SessionFromOnnx(models.identity().proto), "r") as runner:
        with pytest.raises(errors.InferenceError, match=r"r: .*x"):
            runner.infer({"y": np.zeros(3)}, check_inputs=False)
        with pytest.raises(errors.InferenceError):
            runner.infer({"x": np.zeros((1, 1, 2, 2), np.float64)}, check_inputs=False)
    runner = OnnxrtRunner(SessionFromOnnx(case.proto))
    with runner, pytest.raises(errors.InferenceError, match=r"(?i)reshape"):
        runner.infer({**case.feed, "shape": np.array([5, 5])})


def test_sequences_and_maps_become_arrays() -> None:
    def outputs(case):
        with OnnxrtRunner(SessionFromOnnx(case.proto)) as runner:
            return runner.infer(dict(case.feed))

    halves = zoo.sequence()
    arrays = outputs(halves)
    np.testing.assert_array_equal(arrays["halves"], np.stack(np.split(arrays["y"], 2, axis=1)))
    arrays = outputs(zoo.zipmap())
    assert arrays["probabilities"].shape == (5, 3)
    np.testing.assert_array_equal(arrays["probabilities"].argmax(axis=1), arrays["label"])
    assert compare_outputs(arrays, arrays)

    halves.proto.graph.node[1].attribute[0].i = 4  # 6 columns in pieces of 4, which cannot be stacked
    arrays = outputs(halves)
    assert [arrays[f"halves/{i}"].shape for i in range(2)] == [(2, 4), (2, 2)]


def test_session_from_every_source(tmp_path):
    case = models.identity()
    path = case.write(tmp_path)
    for source in (case.proto.SerializeToString(), str(path), path, case.proto):
        for session in (SessionFromOnnx(source)(), SessionFromOnnx(constant(source))(), session_from_onnx(source)):
            np.testing.assert_array_equal(session.run(None, dict(case.feed))[0], case.feed["x"])


def test_external_data_is_found(tmp_path):
    case = models.conv_net()
    path = models.write_external(case, tmp_path)

    actual, expected = (session_from_onnx(source).run(None, dict(case.feed))[0] for source in (path, case.proto))

    np.testing.assert_array_equal(actual, expected)


def test_optimization_level_is_passed_on():
    levels = ort.GraphOptimizationLevel
    for level, session_level in ((levels.ORT_DISABLE_ALL, levels.ORT_DISABLE_ALL), (None, levels.ORT_ENABLE_ALL)):
        session = session_from_onnx(models.identity().proto, graph_optimization_level=level)
        assert session.get_session_options().graph_optimization_level == session_level


def test_unusable_models_and_providers_are_refused(tmp_path):
    with pytest.raises(errors.InvalidModelError, match=r"none\.onnx is not a file"):
        session_from_onnx(tmp_path / "none.onnx")
    for content in (b"", b"hello", models.conv_net().proto.SerializeToString()[:500]):
        with pytest.raises(errors.InvalidModelError):
            session_from_onnx(content)
    with pytest.raises(errors.UnsupportedFeatureError, match="Frobnicate"):
        session_from_onnx(models.no_kernel().proto)
    with pytest.raises(errors.BackendUnavailableError, match=r"'gaudi'.*CPUExecutionProvider"):
        session_from_onnx(models.identity().proto, ["gaudi"])
    with pytest.raises(errors.ConfigError, match="at least one"):
        session_from_onnx(models.identity().proto, [])
