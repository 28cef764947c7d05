"""The contract of engine back ends. A subclass supplies the back end, and a config that it can build."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.spec import Environment, OnnxRuntimeOptions, OptimizationProfile, TensorRTOptions
from trtops.tactics.record import TacticRecord

_LOAD = """
import json, os, sys
import numpy as np
from trtops.backend.base import Engine
from trtops.backend.engines import engine_backend
from trtops.spec import Environment

os.chdir(sys.argv[1])
kept = json.load(open("engine.json"))
kept["environment"] = Environment.from_dict(kept["environment"])
engine = Engine(plan=open("engine.bin", "rb").read(), **kept)
with engine_backend(engine.backend).runner(engine) as runner:
    np.savez("outputs.npz", **runner.infer(dict(np.load("feed.npz"))))
"""


class EngineBackendContract:
    """Subclass it as ``Test...``, and supply ``backend``, and ``config``, in FP32, whose builds may vary."""

    rtol = 1e-4
    atol = 1e-4

    @pytest.fixture
    def case(self) -> models.Case:
        return models.transformer()

    @pytest.fixture
    def model(self, case) -> Model:
        return Model.from_proto(case.proto, case.name)

    @pytest.fixture
    def build(self, backend, model, config):
        return backend.build(BuildRequest(model, config))

    def test_build_and_environment_are_complete(self, backend, build, model, config):
        environment = backend.environment(config)
        assert environment.backend == backend.name
        assert environment.backend_version and environment.device and len(environment.device_sha256) == 64
        assert environment.build_digest() == backend.environment(config).build_digest()
        assert Environment.from_json(environment.to_json()) == environment
        assert build.spec.model_sha256 == model.info.sha256 and build.spec.config == config and build.seconds > 0
        assert build.engine.backend == backend.name
        assert build.engine.environment.device_key == environment.device_key
        assert build.layers and all(layer.name and layer.op for layer in build.layers)
        assert TacticRecord.from_json(build.tactics.to_json()) == build.tactics
        assert 0 <= build.tactics.coverage <= 1

    def test_engine_gives_the_models_outputs(self, backend, build, model, case):
        from trtops.backend.onnxrt.runner import reference_runner

        with reference_runner(model) as reference, backend.runner(build.engine) as runner:
            golden, outputs = reference.infer(case.feed), runner.infer(case.feed)

            assert list(outputs) == list(golden)
            for name, array in golden.items():
                np.testing.assert_allclose(outputs[name], array, rtol=self.rtol, atol=self.atol)

    def test_engine_runs_in_another_process(self, backend, build, case, tmp_path):
        with backend.runner(build.engine) as runner:
            expected = {name: np.array(array) for name, array in runner.infer(case.feed).items()}
        (tmp_path / "engine.bin").write_bytes(build.engine.plan)
        engine_fields = {"backend": build.engine.backend, "options": dict(build.engine.options)}
        (tmp_path / "engine.json").write_text(
            json.dumps(engine_fields | {"environment": build.engine.environment.to_dict()})
        )
        np.savez(tmp_path / "feed.npz", **case.feed)

        root = Path(__file__).parents[2]
        done = subprocess.run([sys.executable, "-c", _LOAD, str(tmp_path)], cwd=root, capture_output=True, text=True)

        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / "outputs.npz") as outputs:
            for name, array in expected.items():
                np.testing.assert_array_equal(outputs[name], array)

    def test_runner_fetches_the_engine_at_activation(self, backend, build, case):
        fetch = Mock(return_value=build.engine)
        runner = backend.runner(fetch, "lazy")
        assert runner.name == "lazy" and not fetch.called
        with runner:
            runner.infer(case.feed)
        fetch.assert_called_once_with()

    def test_damaged_engines_are_refused(self, backend, build):
        plan = bytearray(build.engine.plan)
        half = bytes(plan[: len(plan) // 2])
        plan[len(plan) // 2] ^= 0xFF
        for damaged in (b"", half, bytes(plan), b"\0" * 4096):
            runner = backend.runner(replace(build.engine, plan=damaged))
            with pytest.raises(errors.EngineLoadError):
                runner.activate()
            assert not runner.is_active

    def test_foreign_engines_are_refused(self, backend, build):
        for part in ({"backend_version": "0.0.1"}, {"device": "Z80", "device_sha256": "0" * 64}):
            elsewhere = replace(build.engine.environment, **part)
            with pytest.raises(errors.EngineLoadError, match=next(iter(part.values()))):
                backend.runner(replace(build.engine, environment=elsewhere)).activate()

    def test_contradictory_configs_are_refused(self, backend, model, config):
        other = TensorRTOptions() if isinstance(config.options, OnnxRuntimeOptions) else OnnxRuntimeOptions()
        unknown, wrong = OptimizationProfile.fixed(xx=(2, 5, 16)), OptimizationProfile.fixed(x=(2, 5, 17))
        for change, message in (
            ({"options": other}, r"\S"),
            ({"profiles": (unknown,)}, r"'xx'.*'x'"),
            ({"profiles": (wrong,)}, "17"),
        ):
            with pytest.raises(errors.ConfigError, match=message):
                backend.build(BuildRequest(model, replace(config, **change)))

    def test_unknown_op_is_named(self, backend, config):
        with pytest.raises(errors.EngineBuildError, match=r"(?s)Frobnicate.*|frob.*"):
            backend.build(BuildRequest(Model.from_proto(models.no_kernel().proto), config))

    def test_unusable_caches_are_refused(self, backend, model, config, build):
        with pytest.raises(errors.CalibrationError, match="calibration"):
            backend.build(BuildRequest(model, replace(config, precision="int8")))
        with pytest.raises(errors.TimingCacheError):
            backend.build(BuildRequest(model, config, caches=Caches(timing=b"\x00not a cache")))
        with pytest.raises(errors.TacticMismatchError):
            backend.build(
                BuildRequest(model, config, caches=Caches(replay=replace(build.tactics, device_sha256="0" * 64)))
            )

    def test_timing_cache_repeats_the_choices(self, backend, model, config, build):
        if build.timing_cache is None:
            pytest.skip("this back end keeps no timing cache")

        again = backend.build(BuildRequest(model, config, caches=Caches(timing=build.timing_cache)))

        assert again.tactics == build.tactics
        assert again.spec.timing_cache_sha256 is not None

    def test_replay_repeats_choices_and_outputs(self, backend, model, config, build, case):
        if not any(choice.replayable for choice in build.tactics.choices):
            pytest.skip("this build has no replayable choices here")

        again = backend.build(BuildRequest(model, config, caches=Caches(replay=build.tactics)))

        assert build.tactics.differing_layers(again.tactics) == ()
        assert again.spec.replay_sha256 == build.tactics.digest
        with backend.runner(build.engine) as first, backend.runner(again.engine) as second:
            expected, actual = first.infer(case.feed), second.infer(case.feed)
            for name, array in expected.items():
                np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-6)
