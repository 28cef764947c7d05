"""TensorRT as an engine back end: one build config in, one build out, with everything worth remembering."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.base import BaseRunner, Build, Caches, Engine, Feed
from trtops.backend.onnx.quantize import is_quantized
from trtops.backend.trt import library
from trtops.backend.trt.build import int8
from trtops.backend.trt.build.calibrator import Calibrator, TrtopsCalibrator, calibrator_class
from trtops.backend.trt.build.config import CreateConfig
from trtops.backend.trt.build.engine import build_plan, engine_from_bytes
from trtops.backend.trt.build.network import NetworkFromModel, NetworkFromOnnxPath
from trtops.backend.trt.build.network_changes import ModifyNetworkOutputs, SetLayerPrecisions
from trtops.backend.trt.build.profile import Profile
from trtops.backend.trt.choices import editable, selector, timing_cache
from trtops.backend.trt.describe import inspector
from trtops.backend.trt.infer.runner import TrtRunner
from trtops.backend.trt.library import device
from trtops.backend.trt.lines import Feature
from trtops.processes import temporary_prefix
from trtops.record import sha256
from trtops.spec import BuildConfig, BuildSpec, Environment, Layer, TensorRTOptions
from trtops.tactics.record import TacticRecord

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

NO_CACHES = Caches()


@dataclass(frozen=True)
class TensorRTBackend:
    """Builds TensorRT engines (or TensorRT-RTX engines, see :mod:`trtops.backend.trt.library`), and runs them.

    Attributes:
        name: The back end's name.
        engine_suffix: Ending of engine files.
        calibration_algorithm: One of :data:`trtops.backend.trt.build.calibrator.ALGORITHMS`.
    """

    name: str = "tensorrt"
    engine_suffix: str = ".engine"
    calibration_algorithm: str = "entropy2"

    def environment(self) -> Environment:
        """Where builds made now are made.

        Raises:
            BackendUnavailableError: If TensorRT or the GPU cannot be used here.
        """
        return device.environment()

    def device_state(self) -> dict[str, str]:
        """The GPU by a digest of its UUID, its clocks, and how many other processes use it; empty without a GPU."""
        return device.state()

    def build(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = NO_CACHES,
        calibration_data: Iterable[Feed] | None = None,
    ) -> Build:
        """Build one engine; see :meth:`trtops.backend.base.EngineBackend.build`."""
        return _Building(self, model, config, caches, calibration_data).run()

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> BaseRunner:
        """A runner for an engine, or for the one that a callable returns at activation; outputs are in the model's order.

        ``interleaved`` changes nothing: whoever waits for a GPU takes nothing from it.
        """

        def load() -> Any:
            built = engine() if callable(engine) else engine
            runner.output_order = _output_names(built)
            return _load_checked(built)

        runner = TrtRunner(load, name)
        return runner


def _output_names(built: Engine) -> tuple[str, ...]:
    """Names of the model's outputs in its order; none for engines of early builds, which do not have them."""
    names = built.options.get("outputs")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _load_checked(built: Engine) -> Any:
    """Load an engine whose bytes are whole, and that was built for this kind of device and this release.

    Raises:
        EngineLoadError: If one of these is not so.
    """
    # TensorRT checks little itself: it silently runs engines whose weights were altered.
    expected = built.options.get("sha256")
    found = sha256(built.plan)
    if expected is not None and expected != found:
        raise errors.EngineLoadError(
            f"The engine's {len(built.plan)} bytes have digest {found[:12]}, expected {str(expected)[:12]}: they are "
            "damaged. Fetch the engine again, or rebuild it."
        )
    here, there = device.environment(), built.environment
    if here.device_sha256 != there.device_sha256:
        raise errors.EngineLoadError(
            f"The engine was built for {there.device}; this is {here.device}. TensorRT engines run on the kind of GPU "
            "that they were built on: rebuild it here."
        )
    if here.backend_version != there.backend_version and not built.options.get("version_compatible"):
        raise errors.EngineLoadError(
            f"The engine was built by TensorRT {there.backend_version}; this is {here.backend_version}. Rebuild it, or "
            "build with version_compatible=True."
        )
    # The record of the build vouches for it, as the memory vouches for the record.
    return engine_from_bytes(built.plan, allow_host_code=True if built.options.get("version_compatible") else None)


@dataclass(frozen=True)
class _Made:
    """A plan as the builder made it, the config that it was made with, the seconds it took, and whether a selector watched."""

    plan: bytes
    config: Any
    seconds: float
    watched: bool


class _Building:
    """One build: its request, and what the steps leave for those after them."""

    def __init__(
        self,
        backend: TensorRTBackend,
        model: Model,
        build_config: BuildConfig,
        caches: Caches,
        calibration_data: Iterable[Feed] | None,
    ) -> None:
        if not isinstance(build_config.options, TensorRTOptions):
            raise errors.ConfigError(
                f"The build config is for {build_config.backend!r}; expected BuildConfig(options=TensorRTOptions(...))."
            )
        self.backend = backend
        self.model = model
        self.build_config = build_config
        self.options = build_config.options
        self.caches = caches
        self.calibration_data = calibration_data
        self.line = library.line()
        self.environment = device.environment()
        self.timing = None if caches.timing is None else timing_cache.TimingCache.from_bytes(caches.timing)
        self.timings_read: int | None = None
        self.ops = {} if self.timing is None else {op.key: op for op in self.timing.ops}
        self.recorded = selector.TacticReplayData()
        self.denied = caches.denied.here(self.environment)
        self.restriction = selector.restriction(self.denied, self.options.tactic_seed)
        self.calibrator: TrtopsCalibrator | None = None
        self.quantized: int8.Quantized | None = None

    def run(self) -> Build:
        """Build, load the engine to read its layers, and put everything together."""
        self._check_request()
        with library.collect_log() as log, tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
            self._quantize()
            made = self._make(folder)
            cache = self._collect_cache(made)
            layers = self._layers(made.plan)
            record = self._record(made.config, layers, watched=made.watched)
            self._check_denied(record)
        return Build(
            spec=self._spec(),
            engine=self._engine(made.plan),
            tactics=record,
            layers=layers,
            timing_cache=None if cache is None else cache.to_bytes(),
            timing_cache_use=timing_cache.use(self.timing, cache, made.seconds, self.timings_read),
            calibration_cache=self._calibration_cache(),
            seconds=made.seconds,
            log=log.text + "".join(f"\n[trtops] {note}" for note in dict.fromkeys(self.restriction.notes)),
        )

    def _make(self, folder: str) -> _Made:
        """Build the plan; a replay that is not followed beside a timing cache is tried once more without."""
        try:
            return self._make_once(folder)
        except errors.TacticMismatchError as exc:
            if not self._replays_by_selector or self.timing is None:
                raise
            self.restriction.notes.append(
                f"the replay was repeated without its timing cache: {str(exc).splitlines()[0]}"
            )
            self.timing = None
            return self._make_once(folder)

    def _make_once(self, folder: str) -> _Made:
        algorithm_selector = self._algorithm_selector()
        loader = self._config_loader(None if self._times_first else algorithm_selector, folder)
        builder, network, _parser = self._network(loader)  # the parser holds weights that the build reads
        builder_config = loader(builder, network)
        self.timings_read = timing_cache.held(builder_config) if loader.load_timing_cache else None
        started = time.perf_counter()
        try:
            plan = self._build_plan(builder, network, builder_config, algorithm_selector)
        finally:
            if self.calibrator is not None:
                self.calibrator.free()
        seconds = time.perf_counter() - started
        return _Made(plan, builder_config, seconds, watched=algorithm_selector is not None)

    def _build_plan(self, builder: Any, network: Any, builder_config: Any, algorithm_selector: Any) -> bytes:
        def build_once() -> bytes:
            return bytes(build_plan(builder, network, builder_config, selector=algorithm_selector))

        if not self._edits:
            if self._times_first:
                build_plan(builder, network, builder_config)
                self.line.set_algorithm_selector(builder_config, algorithm_selector)
            return build_once()
        editing = editable.Editing(
            config=builder_config,
            build_once=build_once,
            record_of=lambda plan: self._record(builder_config, self._layers(plan), watched=False),
            ops=self.ops,
        )
        if self.caches.replay is not None:
            plan = editing.replay(self.caches.replay)
        else:
            plan = editing.build(self.options.tactic_seed, self.denied)
        self.restriction.notes.extend(editing.notes)
        return plan

    # --- before -------------------------------------------------------------------------------------------------

    @property
    def _edits(self) -> bool:
        """Whether tactics are recorded through the editable timing cache rather than by a selector."""
        return self.line.supports(Feature.EDITABLE_TIMING_CACHE)

    @property
    def _records(self) -> bool:
        """Whether an algorithm selector watches the builder, and prescribes nothing."""
        wanted = self.options.record_tactics or self._restricted
        return (
            wanted and not self._edits and self.line.supports(Feature.ALGORITHM_SELECTOR) and self.caches.replay is None
        )

    @property
    def _restricted(self) -> bool:
        """Whether some tactics must not be chosen: those that are denied, or all that a seed does not draw."""
        return bool(self.denied.entries) or self.options.tactic_seed is not None

    @property
    def _times_first(self) -> bool:
        """Whether the network is built once without a selector before what is chosen is recorded.

        TensorRT 8.6 times all tactics before it asks a selector, and keeps no timing of a layer that it asked about. With the
        timings of a build that nobody watched it asks about the fastest tactics alone, within half a second: so what is
        recorded is in the timing cache, and both a replay and a build by that cache find it there.
        """
        return self._records and not self._restricted

    @property
    def _replays_by_selector(self) -> bool:
        return self.caches.replay is not None and not self._edits

    @property
    def _precisions(self) -> tuple[str, ...]:
        wanted = {self.build_config.precision, *self.options.also} - {"fp32"}
        return tuple(name for name in ("fp16", "bf16", "fp8", "int8") if name in wanted)

    @property
    def _kept(self) -> dict[str, str]:
        """Layers that are kept out of 16 bit; what INT8 spares is written into the model."""
        lowered = self.build_config.precision in ("fp16", "bf16")
        return dict.fromkeys(self.build_config.keep, "float32") if lowered else {}

    def _check_request(self) -> None:
        """Refuse a request that cannot be met, before anything is built."""
        if self.timing is not None:
            self.timing.check(self.environment)
        if self.caches.replay is not None:
            self._check_replay(self.caches.replay)
        if self.options.tactic_seed is not None and self.caches.replay is not None:
            raise errors.UnsupportedFeatureError(
                "tactic_seed and a replay exclude each other: the one draws tactics, the other says which. Leave one out."
            )

    def _check_replay(self, replay: TacticRecord) -> None:
        if not self._edits:
            self.line.require(Feature.ALGORITHM_SELECTOR)
        if (why := self.denied.why(replay.choices)) is not None:
            raise errors.TacticMismatchError(
                f"The tactic record may not be followed: {why}. Pardon it, or replay another."
            )
        here = (self.line.version, self.environment.device_sha256)
        if (replay.backend_version, replay.device_sha256) != here:
            raise errors.TacticMismatchError(
                f"The tactic record is of TensorRT {replay.backend_version} on a device {replay.device_sha256[:8]}; this is "
                f"{here[0]} on {here[1][:8]}. Tactics are numbered per release and device: record them here.",
            )

    def _algorithm_selector(self) -> Any:
        if self._edits or not self.line.supports(Feature.ALGORITHM_SELECTOR):
            return None
        if self.caches.replay is not None:
            replayer = selector.TacticReplayer(selector.from_record(self.caches.replay))
            self.recorded = replayer.chosen
            return replayer
        if not self._records:
            return None
        return selector.TacticRecorder(self.recorded, self.restriction if self._restricted else None)

    def _config_loader(self, algorithm_selector: Any, folder: str) -> CreateConfig:
        options = self.options
        trt = library.load()
        pools = None if options.workspace_bytes is None else {trt.MemoryPoolType.WORKSPACE: options.workspace_bytes}
        wanted = self._precisions
        return CreateConfig(
            tf32=options.tf32,
            calibrator=self._make_calibrator(folder),
            profiles=[Profile.of(profile) for profile in self.build_config.profiles] or None,
            load_timing_cache=self._timing_data(),
            algorithm_selector=algorithm_selector,
            sparse_weights=options.sparse_weights,
            tactic_sources=self._tactic_sources(),
            memory_pool_limits=pools,
            refittable=options.refittable,
            version_compatible=options.version_compatible,
            builder_optimization_level=options.optimization_level,
            edit_timing_cache=self._edits,
            fp16="fp16" in wanted,
            bf16="bf16" in wanted,
            fp8="fp8" in wanted,
            int8="int8" in wanted,
            use_dla=options.use_dla,
            allow_gpu_fallback=options.allow_gpu_fallback,
            precision_constraints="obey"
            if self._kept
            else None
            if options.precision_constraints == "none"
            else options.precision_constraints,
        )

    def _timing_data(self) -> bytes | None:
        """The timing cache to build with; empty where none is given, or where it would leave a selector without a choice."""
        if not self.line.supports(Feature.TIMING_CACHE):
            return None
        if self.timing is None:
            # A replay is given none, and not an empty one: what TensorRT times for it is of no use to other builds.
            return None if self._replays_by_selector else b""
        if self._records and self._restricted:
            self.restriction.notes.append(
                "the timing cache was not used: of a layer in it TensorRT offers a selector the fastest tactics alone"
            )
            self.timing = None
            return b""
        return self.timing.data

    def _tactic_sources(self) -> list[Any] | None:
        if self.options.tactic_sources is None:
            return None
        members = library.load().TacticSource.__members__
        for name in self.options.tactic_sources:
            if name.upper() not in members:
                raise errors.ConfigError(
                    f"{self.line.name} has no tactic source {name!r}. {errors.near(name, members)}"
                )
        return [members[name.upper()] for name in self.options.tactic_sources]

    def _quantize(self) -> None:
        """Write INT8 into the model where the release has no calibrators, or where layers are to keep higher precision."""
        if "int8" not in self._precisions or self._is_quantized():
            return
        if self.build_config.keep or not self.line.supports(Feature.CALIBRATOR):
            self.quantized = int8.quantize(
                self.model, self.build_config, self.caches.calibration, self.calibration_data
            )

    def _make_calibrator(self, folder: str) -> Any:
        if "int8" not in self._precisions or self.quantized is not None or self._is_quantized():
            return None
        if self.caches.calibration is None and self.calibration_data is None:
            raise int8.nothing_to_calibrate_with()
        algorithm, data = self.backend.calibration_algorithm, self.calibration_data
        path = os.path.join(folder, "calibration.cache")
        if self.caches.calibration is not None:
            text = int8.tensorrt_text(
                self.caches.calibration, self.model, self.build_config, release=self.line.version, algorithm=algorithm
            )
            with open(path, "wb") as file:
                file.write(text)
        feeds = itertools.islice(() if data is None else data, self.build_config.calibration_samples)
        self.calibrator = Calibrator(feeds, cache=path, BaseClass=calibrator_class(algorithm))
        return self.calibrator

    def _calibration_cache(self) -> bytes | None:
        if self.quantized is not None:
            return self.quantized.calibration_cache
        return None if self.calibrator is None else self.calibrator.cache_contents

    def _is_quantized(self) -> bool:
        return is_quantized(self.model.structure())

    def _network(self, loader: CreateConfig) -> tuple[Any, Any, Any]:
        strongly = self.options.strongly_typed
        network: Any
        if self.model.path is not None and self.quantized is None:
            network = NetworkFromOnnxPath(self.model.path, strongly_typed=strongly, config=loader)
        else:
            proto = self.model.proto() if self.quantized is None else self.quantized.model
            network = NetworkFromModel(model=proto, strongly_typed=strongly, config=loader)
        if self.options.layer_precisions or self._kept:
            network = SetLayerPrecisions(network, {**self._kept, **dict(self.options.layer_precisions)})
        if self.build_config.mark:
            outputs = [spec.name for spec in self.model.info.outputs]
            network = ModifyNetworkOutputs(network, [*outputs, *self.build_config.mark])
        parts: tuple[Any, Any, Any] = network()
        return parts

    # --- after --------------------------------------------------------------------------------------------------

    def _collect_cache(self, made: _Made) -> timing_cache.TimingCache | None:
        if not self.line.supports(Feature.TIMING_CACHE):
            return None
        if self._replays_by_selector:
            return None  # what was chosen among one is no timing that another build should go by
        before = None if self.timings_read == 0 else self.timing
        return timing_cache.collect(made.config, self.environment, before, made.seconds, tuple(self.ops.values()))

    def _layers(self, plan: bytes) -> tuple[Layer, ...]:
        """The engine's layers, which takes loading it; none where there is no GPU for that."""
        if library.uses_rtx() and self.environment.compute_capability is None:
            return ()
        return tuple(found.to_layer() for found in inspector.read_layers(engine_from_bytes(plan, allow_host_code=True)))

    def _record(self, builder_config: Any, layers: tuple[Layer, ...], *, watched: bool) -> TacticRecord:
        version, sha = self.line.version, self.environment.device_sha256
        if self._edits:
            entries = self.line.timing_entries(builder_config)
            return editable.to_record(
                entries, backend_version=version, device_sha256=sha, layers=layers, ops=self.ops.values()
            )
        if watched:
            return selector.to_record(self.recorded, backend_version=version, device_sha256=sha, layers=layers)
        choices = tuple(selector.unreplayable(layer) for layer in layers)
        return TacticRecord(mechanism="inspector", backend_version=version, device_sha256=sha, choices=choices)

    def _check_denied(self, record: TacticRecord) -> None:
        """Refuse a build with a denied tactic for which the log named no other, or that came back after each replacement."""
        why = self.denied.why(record.choices) if self._edits else None
        if why is not None:
            raise errors.EngineBuildError(
                f"{self.line.name} chose a tactic on the deny-list: {why}. No tactic that is not denied is known for this "
                "layer: build from the tactic record of a good run, or without a timing cache, which times all of them again."
            )

    def _engine(self, plan: bytes) -> Engine:
        return Engine(
            backend=self.backend.name,
            plan=plan,
            options={
                "sha256": sha256(plan),
                "version_compatible": self.options.version_compatible,
                "outputs": [*(spec.name for spec in self.model.info.outputs), *self.build_config.mark],
            },
            environment=self.environment,
        )

    def _spec(self) -> BuildSpec:
        data = None if self.calibrator is None else self.calibrator.data_digest()
        if data is None and self.quantized is not None:
            data = self.quantized.data_sha256
        return self.caches.spec(self.model.info.sha256, self.build_config, self.environment, data)
