"""The contract of runners. A subclass supplies how a runner is made from a model."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors


class RunnerContract:
    """Subclass it as ``Test...``, and supply ``make_runner(proto, name=None)``, which makes an inactive runner."""

    @pytest.fixture
    def case(self) -> models.Case:
        return models.identity()

    @pytest.fixture
    def runner(self, make_runner, case):
        with make_runner(case.proto) as runner:
            yield runner

    @pytest.mark.parametrize("build", [models.identity, models.dynamic_identity, models.multi_output, models.reshape])
    def test_outputs_have_names_and_values(self, make_runner, build):
        case = build()

        with make_runner(case.proto) as runner:
            case.check(runner.infer)

    def test_input_metadata(self, make_runner):
        with make_runner(models.multi_output().proto) as runner:
            [(name, tensor)] = runner.get_input_metadata().items()
        assert (name, tensor.dtype, tensor.shape[1]) == ("x", np.float32, 4)

    def test_runner_can_be_activated_again(self, make_runner, case):
        runner = make_runner(case.proto)
        for _ in range(2):
            assert not runner.is_active
            with runner:
                assert runner.is_active
                case.check(runner.infer)
        runner.deactivate()
        assert not runner.is_active

    def test_calls_before_their_time_are_refused(self, make_runner, case):
        runner = make_runner(case.proto)
        for call in (lambda: runner.infer(case.feed), runner.get_input_metadata):
            with pytest.raises(errors.InferenceError, match="Must be activated"):
                call()
        with runner:
            assert runner.last_inference_time() is None
            runner.infer(case.feed)
            assert 0 < runner.last_inference_time() < 60

    def test_names_are_given_or_numbered(self, make_runner, case):
        first, second = make_runner(case.proto).name, make_runner(case.proto).name
        prefix, _, number = first.rpartition("N")
        assert second == f"{prefix}N{int(number) + 1}" and make_runner(case.proto, "mine").name == "mine"

    def test_unsuitable_feeds_are_refused(self, runner, case):
        x = case.feed["x"]
        for feed, error, message in (
            ({}, errors.InputError, r"inputs were not found: \['x'\]"),
            ({"X": x}, errors.InputError, r"not found: \['x'\]. The feed has \['X'\]"),
            ({"x": x.astype(np.float64)}, errors.InputError, "float64. Expected float32"),
            ({"x": x.astype(">f4")}, errors.InputError, "order"),
            ({"x": x.tolist()}, errors.InputError, "fed a list"),
        ):
            with pytest.raises(error, match=message):
                runner.infer(feed)
        for shape in ((1, 1, 2, 3), (1, 1, 2), (4,)):
            with pytest.raises(errors.InputError, match=rf"(?s){re.escape(str(shape))}.*1, 1, 2, 2"):
                runner.infer({"x": np.zeros(shape, np.float32)})
        case.check(runner.infer)

    def test_outputs_depend_on_values_only(self, make_runner):
        strided, large = models.random(2, 8)[::2, ::2], models.random(5, 4, seed=1)

        with make_runner(models.multi_output().proto) as runner:
            first = {name: np.array(array) for name, array in runner.infer({"x": strided}).items()}
            runner.infer({"x": large})
            again = {name: np.array(array) for name, array in runner.infer({"x": strided.copy()}).items()}

        for name, array in first.items():
            np.testing.assert_array_equal(again[name], array)

    def test_separate_runners_work_in_threads(self, make_runner):
        x = {seed: models.random(3, 4, seed=seed) for seed in range(4)}

        def work(seed: int) -> np.ndarray:
            with make_runner(models.multi_output().proto, f"thread-{seed}") as runner:
                return [np.array(runner.infer({"x": x[seed]})["relu"]) for _ in range(20)][-1]

        with ThreadPoolExecutor(len(x)) as pool:
            outputs = list(pool.map(work, x))

        for seed, array in x.items():
            np.testing.assert_array_equal(outputs[seed], np.maximum(array, 0))

    def test_failing_activation_leaves_runner_inactive(self, make_runner, case):
        broken = onnx.ModelProto.FromString(case.proto.SerializeToString())
        broken.graph.node[0].op_type = "NoSuchOp"
        runner = make_runner(broken)
        with pytest.raises(errors.TrtopsError):
            runner.activate()
        assert not runner.is_active
