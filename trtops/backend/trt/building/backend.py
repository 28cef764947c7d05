"""The TensorRT engine back end."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtops.backend.base import BaseRunner, Build, BuildRequest, Engine, Feed, ProfiledFeed
from trtops.backend.onnx.model import Model
from trtops.backend.trt import library
from trtops.backend.trt.building.build import EngineBuild
from trtops.backend.trt.building.engine import engine_from_bytes
from trtops.backend.trt.building.profile import ShapeTuple
from trtops.backend.trt.choices.selector import unreplayable
from trtops.backend.trt.describe import inspector
from trtops.backend.trt.infer.runner import TrtRunner
from trtops.backend.trt.library import device
from trtops.metadata import is_dynamic
from trtops.record import JSONValue
from trtops.spec import BuildConfig, BuildSpec, Environment, OptimizationProfile
from trtops.tactics.record import TacticRecord


@dataclass(frozen=True)
class TensorRTBackend:
    """Builds and runs TensorRT or TensorRT-RTX engines."""

    name: str = "tensorrt"  # name of the back end
    engine_suffix: str = ".engine"  # suffix of engine files

    def environment(self, config: BuildConfig | None = None) -> Environment:
        """The environment of builds here; BackendUnavailableError without a usable TensorRT or GPU."""
        return device.environment()

    def device_state(self, config: BuildConfig | None = None) -> dict[str, str]:
        """Digest of the GPU's UUID, its clocks, and the number of other processes on it; empty without a GPU."""
        return device.state()

    def build(self, request: BuildRequest) -> Build:
        """Build one engine; see :meth:`trtops.backend.base.EngineBackend.build`."""
        return EngineBuild(request).run()

    def adopt(self, plan: bytes, model: Model, config: BuildConfig) -> Build:
        """Return a build with an engine built elsewhere; see :meth:`trtops.backend.base.EngineBackend.adopt`."""
        environment = self.environment(config)
        engine = engine_from_bytes(plan)
        inputs, outputs = inspector.engine_io(engine)
        layers = tuple(map(inspector.LayerDescription.to_layer, inspector.read_layers(engine)))
        profiles = []
        if any(is_dynamic(dim) for spec in inputs.values() for dim in spec.shape or ()):
            for described in inspector.profiles_of(engine, inputs):
                profiles.append(OptimizationProfile(shapes=described))
        names = [spec.name for spec in model.info.outputs if spec.name in outputs]
        outputs_in_order: list[JSONValue] = [*names, *(name for name in outputs if name not in names)]
        adopted = Engine.packed(self.name, plan, {"outputs": outputs_in_order}, environment)
        return Build(
            spec=BuildSpec(
                model_sha256=model.info.sha256,
                config=replace(config, profiles=tuple(profiles)),
                engine_sha256=adopted.sha256,
                unknown=("builder flags", "tactics that the builder timed", "timing cache", "calibration data"),
            ),
            engine=adopted,
            tactics=TacticRecord(
                mechanism="inspector",
                backend_version=environment.backend_version,
                device_sha256=environment.device_sha256,
                choices=tuple(map(unreplayable, layers)),
            ),
            layers=layers,
            seconds=0.0,
        )

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> BaseRunner:
        """A runner for an engine, or for a callable returning one; outputs are in the order of the model.

        ``interleaved`` has no effect: a waiting process does not slow down the GPU.
        """

        def load() -> Any:
            built = engine() if callable(engine) else engine
            names = built.options.get("outputs")
            runner.output_order = tuple(map(str, names)) if isinstance(names, list) else ()
            if "sha256" in built.options:
                built.check_bytes()
            compatible = bool(built.options.get("version_compatible"))
            built.check_place(device.environment(), any_release=compatible)
            # The digest shows that these are the bytes of the recorded build, so its host code may run.
            return engine_from_bytes(built.plan, allow_host_code=True if compatible else None)

        runner = _EngineRunner(load, name)
        return runner


class _EngineRunner(TrtRunner):
    """Runs each feed in its own profile, or in the current one or the first to accept its shapes."""

    def infer(self, feed_dict: Feed, check_inputs: bool = True, *args: bool, **options: bool) -> dict[str, Any]:
        """Select the profile, and run one inference; see :meth:`TrtRunner.infer`."""
        if self.is_active and (count := self.engine.num_optimization_profiles) > 1:
            current = max(int(self.context.active_optimization_profile), 0)
            profile = feed_dict.profile if isinstance(feed_dict, ProfiledFeed) else None
            if profile is None:
                numbers = (current, *range(count))
                profile = next((number for number in numbers if self._accepts(number, feed_dict)), current)
            if profile != current:
                self.set_profile(profile)
        return super().infer(feed_dict, check_inputs, *args, **options)

    def _accepts(self, profile: int, feed: Feed) -> bool:
        for name in self.get_input_metadata(use_numpy_dtypes=False).keys() & feed.keys():
            ranges = ShapeTuple(*library.line().profile_range(self.engine, name, profile))
            if not self.engine.is_shape_inference_io(name) and not ranges.accepts(np.shape(feed[name])):
                return False
        return True
