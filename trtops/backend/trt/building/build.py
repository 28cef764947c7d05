"""One build of a TensorRT engine: its request, the ways to record and replay tactics, and its results."""

import itertools
import os
import tempfile
import time
from typing import Any

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Engine
from trtops.backend.onnx.quantize import is_quantized
from trtops.backend.trt import library
from trtops.backend.trt.building import int8
from trtops.backend.trt.building.calibrator import CalibrationBatches, Calibrator
from trtops.backend.trt.building.config import CreateConfig
from trtops.backend.trt.building.engine import build_plan, engine_from_bytes
from trtops.backend.trt.building.network import NetworkFromModel, NetworkFromOnnxPath
from trtops.backend.trt.building.network_changes import ModifyNetworkOutputs, SetLayerPrecisions
from trtops.backend.trt.building.precision import layers_to_keep
from trtops.backend.trt.building.profile import Profile
from trtops.backend.trt.choices import editable, selector, timing_cache
from trtops.backend.trt.describe import inspector
from trtops.backend.trt.library import device
from trtops.backend.trt.lines import Feature
from trtops.calibration.cache import CalibrationCache
from trtops.record import JSONValue
from trtops.spec import Layer, TensorRTOptions
from trtops.system.processes import temporary_prefix
from trtops.tactics.record import TacticRecord, carried_over


class EngineBuild:
    """One build: the request, the ways it will be built and its tactics recorded, and the results of its steps."""

    def __init__(self, request: BuildRequest) -> None:
        """Decide how tactics are recorded and replayed; ConfigError for the config of another back end."""
        build_config, caches = request.config, request.caches
        if not isinstance(build_config.options, TensorRTOptions):
            raise errors.ConfigError(
                f"The build config is for {build_config.backend!r}; expected BuildConfig(options=TensorRTOptions(...))."
            )
        self.request = request
        self.model, self.build_config, self.caches = request.model, build_config, caches
        self.calibration_data = request.calibration_data
        self.options = build_config.options
        self.line = line = library.line()
        self.environment = device.environment()
        self.timing = None if caches.timing is None else timing_cache.TimingCache.from_bytes(caches.timing)
        # Entries of the timing cache that TensorRT read, before the build; None without a cache, or if unknown.
        self.entries_read: int | None = None
        # Ops of an editable timing cache by key, with all their tactics.
        self.ops = {} if self.timing is None else {op.key: op for op in self.timing.ops}
        self.recorded = selector.TacticReplayData()
        self.denied = caches.denied.here(self.environment)
        self.restriction = selector.restriction_for(self.denied, self.options.tactic_seed)
        self.calibrator: CalibrationBatches | None = None
        self.ranges: CalibrationCache | None = None  # from the calibration data, for a calibrator
        self.quantized: int8.Quantized | None = None
        requested_precisions = {build_config.precision, *self.options.also} - {"fp32"}
        self.precisions = tuple(name for name in ("fp16", "bf16", "fp8", "int8") if name in requested_precisions)
        # Layers that stay in FP32, by the API; for INT8 this is written into the model instead.
        self.fp32_layers = layers_to_keep(self.model.structure(), build_config)
        # There are three ways to record tactics. ``edits``: through the editable timing cache, which also replays and
        # restricts them. ``records`` and ``replays_by_selector``: by an algorithm selector, on releases without it.
        # Neither: the inspector names the tactics of the finished engine, and they cannot be replayed.
        # The header of 10.8 to 10.16 promises no stable builds of weakly typed networks from an editable cache.
        selects = line.supports(Feature.ALGORITHM_SELECTOR)
        record = caches.replay
        # A record of another release or GPU, or one with a timing cache of another CUDA release.
        self.carried_from = None
        if record is not None and caches.carry_over:
            key = self.environment.device_key
            if not record.is_of(self.environment) or (self.timing is not None and self.timing.key not in (None, key)):
                self.carried_from, self.timing, self.ops = record, None, {}
        self.edits = line.supports(Feature.EDITABLE_TIMING_CACHE) and (build_config.strongly_typed or not selects)
        self.restricted = bool(self.denied.entries) or self.options.tactic_seed is not None or bool(self.carried_from)
        has_selector = not self.edits and selects
        self.replays = record is not None and self.carried_from is None
        self.replays_by_selector = self.replays and not self.edits
        self.records = has_selector and not self.replays and (self.options.record_tactics or self.restricted)
        # TensorRT 8.6 times all tactics before it asks a selector, and stores no timing of a layer it asked about.
        # With the timing cache of a build without selector it only offers the fastest tactics, within half a second.
        # So the network is built twice: the timing cache is then complete, and a replay or a build with it times
        # nothing.
        self.times_first = self.records and not self.restricted
        self.to_8_bits = build_config.precision == "fp8" or "int8" in self.precisions
        self.is_quantized = self.to_8_bits and is_quantized(self.model.structure())

    def run(self) -> Build:
        """Build, load the engine to read its layers, and return the results."""
        self._check_request()
        if self.timing is not None and self.records and self.restricted:
            self.restriction.notes.append(
                "the timing cache was not used: TensorRT only offers the fastest tactics of layers in it to a selector"
            )
            self.timing = None
        with library.collect_log() as log, tempfile.TemporaryDirectory(prefix=temporary_prefix("build")) as folder:
            self._quantize()
            plan, builder_config, seconds = self._build_with_retry(folder)
            cache = None
            if self.line.supports(Feature.TIMING_CACHE) and not self.replays_by_selector:
                before, ops = None if self.entries_read == 0 else self.timing, tuple(self.ops.values())
                cache = timing_cache.collect(builder_config, self.environment, before, seconds, ops)
            layers = self._layers(plan)
            record = self._record(builder_config, layers)
            # The log named no alternative to a denied tactic, or replacing it failed.
            if self.edits and (denial := self.denied.why(record.choices)) is not None:
                raise errors.EngineBuildError(
                    f"{self.line.name} chose a tactic on the deny-list: {denial}. No other tactic of this layer is "
                    "known: build from the tactic record of a good run, or without a timing cache, which times all "
                    "again."
                )
            if self.carried_from is not None:
                self.restriction.notes.append(carried_over(self.carried_from, record))
        calibration = data = None
        if self.quantized is not None:
            calibration, data = self.quantized.calibration_cache, self.quantized.data_sha256
        elif self.calibrator is not None:
            calibration = self.calibrator.cache_contents
            data = self.calibrator.data_digest() if self.ranges is None else self.ranges.data_sha256
        return Build(
            spec=self.request.spec(self.environment, data),
            engine=self._engine(plan),
            tactics=record,
            layers=layers,
            timing_cache=None if cache is None else cache.to_bytes(),
            timing_cache_use=timing_cache.use(self.timing, cache, seconds, self.entries_read),
            calibration_cache=calibration,
            quantization=None if self.quantized is None else self.quantized.done,
            denied=tuple(dict.fromkeys(self.restriction.left_out)),
            seconds=seconds,
            log=log.text + "".join(f"\n[trtops] {note}" for note in dict.fromkeys(self.restriction.notes)),
        )

    def _build_with_retry(self, folder: str) -> tuple[bytes, Any, float]:
        """The plan, its builder config and build time; a replay failing with a timing cache is repeated without."""
        # With a timing cache TensorRT only offers the fastest tactics to a selector, perhaps without the recorded one.
        try:
            return self._build_once(folder)
        except errors.TacticMismatchError as exc:
            if not self.replays_by_selector or self.timing is None:
                raise
            self.restriction.notes.append(
                f"the replay was repeated without its timing cache: {str(exc).splitlines()[0]}"
            )
            self.timing = None
            return self._build_once(folder)

    def _build_once(self, folder: str) -> tuple[bytes, Any, float]:
        algorithm_selector: Any = None
        if self.replays_by_selector and self.caches.replay is not None:
            algorithm_selector = selector.TacticReplayer(selector.from_record(self.caches.replay))
            self.recorded = algorithm_selector.chosen
        elif self.records:
            restriction: Any = self.restriction if self.restricted else None
            if self.carried_from is not None:
                restriction = selector.preferring(self.carried_from, self.restriction)
            algorithm_selector = selector.TacticRecorder(self.recorded, restriction)
        loader = self._config_loader(None if self.times_first else algorithm_selector, folder)
        # The parser owns weights that the build reads, so it must live until then.
        builder, network, _parser = self._network(loader)
        builder_config = loader(builder, network)
        self.entries_read = timing_cache.held(builder_config) if loader.load_timing_cache else None
        begin = time.perf_counter()
        try:
            plan = self._build_plan(builder, network, builder_config, algorithm_selector)
        finally:
            if self.calibrator is not None:
                self.calibrator.free()
        return plan, builder_config, time.perf_counter() - begin

    def _build_plan(self, builder: Any, network: Any, builder_config: Any, algorithm_selector: Any) -> bytes:
        def build() -> bytes:
            return bytes(build_plan(builder, network, builder_config, selector=algorithm_selector))

        if not self.edits:
            if not self.times_first:
                return build()
            plan = bytes(build_plan(builder, network, builder_config))
            self.line.set_algorithm_selector(builder_config, algorithm_selector)
            try:
                return build()
            except errors.EngineBuildError as exc:  # 8.6 found no kernel with a selector at optimization level 0
                self.records = False
                self.restriction.notes.append(f"the tactics were not recorded: {str(exc).splitlines()[0]}")
                return plan
        editing = editable.Editing(
            config=builder_config,
            build_once=build,
            record_of=lambda plan: self._record(builder_config, self._layers(plan)),
            ops=self.ops,
        )
        if self.carried_from is not None:
            plan = editing.carry(self.carried_from)
        elif self.caches.replay is not None:
            plan = editing.replay(self.caches.replay)
        else:
            plan = editing.build(self.options.tactic_seed, self.denied)
        self.restriction.notes.extend(editing.notes)
        self.restriction.left_out.extend(editing.left_out)
        return plan

    def _check_request(self) -> None:
        """Check the request before anything is built."""
        if self.timing is not None:
            self.timing.check(self.environment)
        replay = self.caches.replay
        if replay is None:
            return
        if self.options.tactic_seed is not None:
            raise errors.UnsupportedFeatureError(
                "tactic_seed and a replay exclude each other: both determine the tactics. Leave one out."
            )
        if not self.edits:
            self.line.require(Feature.ALGORITHM_SELECTOR)
        if (denial := self.denied.why(replay.choices)) is not None:
            raise errors.TacticMismatchError(
                f"The tactic record may not be followed: {denial}. Allow it, or replay another."
            )
        if self.carried_from is None:
            replay.require_of(self.environment)

    def _config_loader(self, algorithm_selector: Any, folder: str) -> CreateConfig:
        options = self.options
        precisions: dict[str, Any] = dict.fromkeys(self.precisions, True)
        shared = (
            "tf32", "sparse_weights", "refittable", "version_compatible", "use_dla", "allow_gpu_fallback",
            "avg_timing_iterations", "max_num_tactics", "l2_limit_for_tiling", "build_route",
        )  # fmt: skip
        trt = library.load()
        workspace, sources = trt.MemoryPoolType.WORKSPACE, trt.TacticSource.__members__
        named = options.tactic_sources
        for name in named or ():
            errors.check_known(name.upper(), sources, f"{self.line.name} has no tactic source")
        # Where the model takes the precisions, there is nothing to constrain.
        by_layer = self.line.supports(Feature.LAYER_PRECISION) and not self.build_config.strongly_typed
        constraints = "obey" if self.fp32_layers and by_layer else options.precision_constraints
        timings: bytes | None = None
        if self.line.supports(Feature.TIMING_CACHE):
            # An empty cache fills up during the build. A replay by selector gets none: it offers one tactic per layer,
            # so its timings are useless for other builds.
            timings = (None if self.replays_by_selector else b"") if self.timing is None else self.timing.data
        return CreateConfig(
            calibrator=self._make_calibrator(folder),
            profiles=[Profile.of(profile) for profile in self.build_config.profiles] or None,
            load_timing_cache=timings,
            algorithm_selector=algorithm_selector,
            tactic_sources=named and [sources[name.upper()] for name in named],
            memory_pool_limits=None if options.workspace_bytes is None else {workspace: options.workspace_bytes},
            builder_optimization_level=options.optimization_level,
            edit_timing_cache=self.edits,
            # TensorRT takes a second GPU of the same kind for another device; the choices of a replay are checked.
            other_device=self.replays,
            precision_constraints=None if constraints == "none" else constraints,
            **{name: getattr(options, name) for name in shared},
            **precisions,
        )

    def _quantize(self) -> None:
        """Write Q/DQ nodes into the model, or choose the ranges for a calibrator (it then chooses the layers)."""
        if self.build_config.precision == "fp8":
            self.line.require(Feature.FP8_IN_MODELS)
        if not self.to_8_bits or self.is_quantized:
            return
        if int8.needs_qdq(self.build_config, has_calibrators=self.line.supports(Feature.CALIBRATOR)):
            self.quantized = int8.quantize(
                self.model, self.build_config, self.caches.calibration, self.calibration_data
            )
        elif self.caches.calibration is None and self.calibration_data is not None:
            try:
                data, proto = self.calibration_data, self.model.proto(lean=True)
                self.ranges = int8.best_ranges_of(self.model, self.build_config, data, proto)
            except errors.TrtopsError as exc:  # without ONNX Runtime, or it cannot run the model: one with plugins
                reason = str(exc).splitlines()[0]
                self.restriction.notes.append(
                    f"calibrated by TensorRT's entropy calibrator, not by the best of three algorithms: {reason}"
                )

    def _make_calibrator(self, folder: str) -> Any:
        if not self.to_8_bits or self.quantized is not None or self.is_quantized:
            return None
        if self.caches.calibration is None and self.calibration_data is None:
            raise int8.nothing_to_calibrate_with()
        path = os.path.join(folder, "calibration.cache")
        cache = self.caches.calibration if self.ranges is None else self.ranges.to_bytes()
        if cache is not None:
            text = int8.tensorrt_text(cache, self.model, self.build_config, release=self.line.version)
            with open(path, "wb") as file:
                file.write(text)
        feeds = itertools.islice(self.calibration_data or (), self.build_config.calibration_samples)
        self.calibrator = Calibrator(feeds, cache=path)
        return self.calibrator

    def _network(self, loader: CreateConfig) -> tuple[Any, Any, Any]:
        strongly = self.build_config.strongly_typed
        network: Any
        if self.model.path is not None and self.quantized is None:
            network = NetworkFromOnnxPath(self.model.path, strongly_typed=strongly, config=loader)
        else:
            proto = self.model.proto() if self.quantized is None else self.quantized.model
            network = NetworkFromModel(model=proto, strongly_typed=strongly, config=loader)
        if self.options.layer_precisions or self.fp32_layers:
            precisions = {**self.fp32_layers, **dict(self.options.layer_precisions)}
            network = SetLayerPrecisions(
                network, precisions, optional=frozenset((*self.fp32_layers, *self.build_config.keep))
            )
        if self.build_config.mark:
            outputs = [spec.name for spec in self.model.info.outputs]
            network = ModifyNetworkOutputs(network, [*outputs, *self.build_config.mark])
        parts: tuple[Any, Any, Any] = network()
        return parts

    def _layers(self, plan: bytes) -> tuple[Layer, ...]:
        """Load the engine and return its layers; empty without a GPU."""
        if library.uses_rtx() and self.environment.compute_capability is None:
            return ()
        described = inspector.read_layers(engine_from_bytes(plan, allow_host_code=True))
        return tuple(map(inspector.LayerDescription.to_layer, described))

    def _record(self, builder_config: Any, layers: tuple[Layer, ...]) -> TacticRecord:
        version, sha = self.line.version, self.environment.device_sha256
        if self.edits:
            entries = self.line.timing_entries(builder_config)
            return editable.to_record(
                entries, backend_version=version, device_sha256=sha, layers=layers, ops=self.ops.values()
            )
        if self.records or self.replays_by_selector:
            return selector.to_record(self.recorded, backend_version=version, device_sha256=sha, layers=layers)
        choices = tuple(selector.unreplayable(layer) for layer in layers)
        return TacticRecord(mechanism="inspector", backend_version=version, device_sha256=sha, choices=choices)

    def _engine(self, plan: bytes) -> Engine:
        options: dict[str, JSONValue] = {
            "version_compatible": self.options.version_compatible,
            "outputs": [*(spec.name for spec in self.model.info.outputs), *self.build_config.mark],
        }
        return Engine.packed("tensorrt", plan, options, self.environment)
