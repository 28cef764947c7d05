"""The contract of runners. A subclass supplies how a runner is made from a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import BaseRunner
from trtops.metadata import DataType


class RunnerContract:
    """Subclass it as ``Test...``, and supply ``make_runner``."""

    @pytest.fixture
    def make_runner(self) -> Callable[..., BaseRunner]:
        """``make_runner(proto, name=None)`` makes an inactive runner of a model."""
        raise NotImplementedError

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
            metadata = runner.get_input_metadata()

        assert list(metadata) == ["x"]
        assert metadata["x"].dtype is DataType.FLOAT32
        assert metadata["x"].shape[1] == 4

    def test_runner_can_be_activated_again(self, make_runner, case):
        runner = make_runner(case.proto)
        assert not runner.is_active

        for _ in range(2):
            with runner:
                assert runner.is_active
                case.check(runner.infer)
        runner.deactivate()
        assert not runner.is_active

    def test_inactive_runner_refuses_to_infer(self, make_runner, case):
        runner = make_runner(case.proto)

        with pytest.raises(errors.InferenceError, match="not active"):
            runner.infer(case.feed)
        with pytest.raises(errors.InferenceError, match="not active"):
            runner.get_input_metadata()

    def test_inference_time_needs_an_inference(self, runner, case):
        with pytest.raises(errors.InferenceError, match="has not run"):
            runner.last_inference_time()

        runner.infer(case.feed)

        assert 0 < runner.last_inference_time() < 60

    def test_names_are_given_or_numbered(self, make_runner, case):
        first, second = make_runner(case.proto), make_runner(case.proto)
        prefix, _, number = first.name.rpartition("N")

        assert second.name == f"{prefix}N{int(number) + 1}"
        assert make_runner(case.proto, "mine").name == "mine"

    def test_unsuitable_feeds_are_refused(self, runner, case):
        x = case.feed["x"]
        for feed, error, message in (
            ({}, errors.InputError, "'x' is not fed"),
            ({"X": x}, errors.InputError, r"'X'.*Did you mean 'x'|'X'.*Known: 'x'"),
            ({"x": x.astype(np.float64)}, errors.InputDtypeError, "float64; expected float32"),
            ({"x": x.astype(">f4")}, errors.InputDtypeError, "order"),
            ({"x": x.tolist()}, errors.InputDtypeError, "is a list"),
            *(
                (
                    {"x": np.zeros(shape, np.float32)},
                    errors.InputShapeError,
                    rf"(?s){re.escape(str(shape))}.*1, 1, 2, 2",
                )
                for shape in ((1, 1, 2, 3), (1, 1, 2), (4,))
            ),
        ):
            with pytest.raises(error, match=message):
                runner.infer(feed)
        case.check(runner.infer)

    def test_arrays_need_not_be_contiguous(self, make_runner):
        x = models.random(6, 8)[::2, ::2]

        with make_runner(models.multi_output().proto) as runner:
            strided, plain = runner.infer({"x": x})["relu"].copy(), runner.infer({"x": x.copy()})["relu"]

        np.testing.assert_array_equal(strided, plain)

    def test_outputs_do_not_depend_on_earlier_inferences(self, make_runner):
        small, large = models.random(1, 4), models.random(5, 4, seed=1)

        with make_runner(models.multi_output().proto) as runner:
            first = {name: np.array(array) for name, array in runner.infer({"x": small}).items()}
            runner.infer({"x": large})
            again = {name: np.array(array) for name, array in runner.infer({"x": small}).items()}

        for name, array in first.items():
            np.testing.assert_array_equal(again[name], array)

    def test_separate_runners_work_in_threads(self, make_runner):
        x = {seed: models.random(3, 4, seed=seed) for seed in range(4)}

        def work(seed: int) -> np.ndarray:
            with make_runner(models.multi_output().proto, f"thread-{seed}") as runner:
                return [np.array(runner.infer({"x": x[seed]})["relu"]) for _ in range(20)][-1]

        with ThreadPoolExecutor(len(x)) as pool:
            found = list(pool.map(work, x))

        for seed, array in x.items():
            np.testing.assert_array_equal(found[seed], np.maximum(array, 0))

    def test_failing_activation_leaves_runner_inactive(self, make_runner, case):
        broken = onnx.ModelProto()
        broken.CopyFrom(case.proto)
        broken.graph.node[0].op_type = "NoSuchOp"
        runner = make_runner(broken)

        with pytest.raises(errors.TrtopsError):
            runner.activate()

        assert not runner.is_active
