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
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import compare_outputs
from trtops.metadata import DataType


class TestOnnxrtRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        return lambda proto, name=None: OnnxrtRunner(SessionFromOnnx(proto), name)


class TestReferenceRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        # Model would refuse the broken model of the contract before a runner exists; a Model whose check was skipped
        # stands for one whose op is unknown to ONNX Runtime alone.
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
def test_types_that_numpy_lacks_go_in_and_come_out_as_ml_dtypes(name, element):
    x = np.array([0.5, -1, 2, 3]).astype(getattr(ml_dtypes, name))

    with OnnxrtRunner(SessionFromOnnx(make_cast(element))) as runner:
        assert runner.get_input_metadata()["x"].dtype is DataType(name)
        outputs = runner.infer({"x": x})

    assert outputs["y"].dtype == x.dtype
    np.testing.assert_array_equal(outputs["y"].view(np.uint8), x.view(np.uint8))
    np.testing.assert_array_equal(outputs["z"], x.astype(np.float32))


def test_a_four_bit_input_is_refused_at_activation_with_advice():
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "scale"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT4, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    runner = OnnxrtRunner(SessionFromOnnx(proto))

    with pytest.raises(errors.UnsupportedFeatureError, match=r"x .*Cast it"):
        runner.activate()
    assert not runner.is_active


@pytest.mark.parametrize("array", [np.array(["a", "日本"]), np.array(["a", "日本"], dtype=object)])
def test_strings_are_taken_as_either_kind_of_numpy_string(array):
    proto = models.model("(string[n] x) => (string[n] y) { y = Identity(x) }")

    with OnnxrtRunner(SessionFromOnnx(proto)) as runner:
        assert list(runner.infer({"x": array})["y"]) == ["a", "日本"]


def test_a_scalar_input_is_taken_and_shown_as_one():
    case = models.branch()

    with OnnxrtRunner(SessionFromOnnx(case.proto)) as runner:
        assert runner.get_input_metadata()["flag"].shape == ()
        case.check(runner.infer)


def test_an_input_of_unknown_rank_takes_any_rank():
    proto = models.model("(float x) => (float y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.ClearField("shape")

    with OnnxrtRunner(SessionFromOnnx(proto)) as runner:
        assert runner.infer({"x": np.ones((2, 3), np.float32)})["y"].shape == (2, 3)


def test_a_session_given_as_a_value_stays_the_callers():
    session = SessionFromOnnx(models.identity().proto)()

    with OnnxrtRunner(session) as runner:
        models.identity().check(runner.infer)

    assert session.get_inputs()[0].name == "x"


def test_outputs_may_be_kept_since_each_inference_makes_new_ones():
    case = models.identity()
    with OnnxrtRunner(SessionFromOnnx(case.proto)) as runner:
        first = runner.infer(case.feed)["y"]
        runner.infer({"x": case.feed["x"] + 1})

    np.testing.assert_array_equal(first, case.feed["x"])


def test_one_runner_serves_several_threads_at_once():
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


def test_an_unchecked_feed_that_does_not_fit_is_an_inference_error():
    with OnnxrtRunner(SessionFromOnnx(models.identity().proto), "r") as runner:
        with pytest.raises(errors.InferenceError, match=r"r: .*x"):
            runner.infer({"y": np.zeros(3)}, check_inputs=False)
        with pytest.raises(errors.InferenceError):
            runner.infer({"x": np.zeros((1, 1, 2, 2), np.float64)}, check_inputs=False)


def test_a_failure_inside_the_session_is_an_inference_error_with_onnx_runtimes_reason():
    case = models.reshape()
    with (
        OnnxrtRunner(SessionFromOnnx(case.proto)) as runner,
        pytest.raises(errors.InferenceError, match=r"(?i)reshape"),
    ):
        runner.infer({**case.feed, "shape": np.array([5, 5])})


def test_the_reference_runs_the_model_with_every_optimization_off():
    case = models.conv_net()
    with reference_runner(Model.from_proto(case.proto), "golden") as golden:
        outputs = golden.infer(case.feed)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(case.proto.SerializeToString(), options)

    np.testing.assert_array_equal(outputs["scores"], session.run(None, dict(case.feed))[0])
    assert golden.name == "golden"
    assert reference_runner(Model.from_proto(case.proto)).name.startswith("onnxrt-reference-N")


def test_sequences_and_maps_come_out_as_arrays() -> None:
    halves, probabilities = zoo.sequence(), zoo.zipmap()
    with OnnxrtRunner(SessionFromOnnx(halves.proto)) as runner:
        found = runner.infer(dict(halves.feed))
    np.testing.assert_array_equal(found["halves"], np.stack(np.split(found["y"], 2, axis=1)))
    with OnnxrtRunner(SessionFromOnnx(probabilities.proto)) as runner:
        found = runner.infer(dict(probabilities.feed))
    assert found["probabilities"].shape == (5, 3)
    np.testing.assert_array_equal(found["probabilities"].argmax(axis=1), found["label"])
    assert compare_outputs(found, found)


def test_a_sequence_of_unlike_tensors_comes_out_one_by_one() -> None:
    case = zoo.sequence()
    case.proto.graph.node[1].attribute[0].i = 4  # 6 columns in pieces of 4
    with OnnxrtRunner(SessionFromOnnx(case.proto)) as runner:
        found = runner.infer(dict(case.feed))
    assert [found[f"halves/{i}"].shape for i in range(2)] == [(2, 4), (2, 2)]
