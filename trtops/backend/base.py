"""The three contracts of a back end: loaders, runners and engine builders.

**Loader.** A callable without arguments that makes one thing: bytes, a model, a session, a network, an engine. Creating
a loader is cheap; every call does the work again. Loaders are frozen dataclasses that can be pickled, compared and
printed. Where a loader takes another's product it takes either the product itself, which stays the caller's, or a
callable, whose product it owns. Scripts override ``call_impl`` of a loader, derive from :class:`BaseLoader`, or pass
plain functions.

**Runner.** Runs inference; see :class:`BaseRunner`.

**Engine back end.** Builds engines from models and runs them; see :class:`EngineBackend`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trtops import errors
from trtops.backend.loader import BaseLoader as BaseLoader
from trtops.backend.loader import ValueOrCallable as ValueOrCallable
from trtops.backend.runner import BaseRunner as BaseRunner
from trtops.backend.runner import Feed as Feed
from trtops.backend.runner import ProfiledFeed as ProfiledFeed
from trtops.calibration.quantization import Quantization
from trtops.lazy import known_as
from trtops.metadata import is_dynamic
from trtops.record import JSONValue, Record, sha256
from trtops.spec import BuildConfig, BuildSpec, Environment, Layer
from trtops.tables import counted, listed
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

known_as(__name__, "loader", "runner")

NO_GAIN = "does not pay"
"""Begins the gain of an engine in 8 bits that is no faster than FP32."""


@dataclass(frozen=True, kw_only=True)
class Caches:
    """Results of earlier builds and calibrations for use in a build; each optional."""

    timing: bytes | None = field(default=None, repr=False)
    calibration: bytes | None = field(default=None, repr=False)
    replay: TacticRecord | None = field(default=None, repr=False)  # the builder must repeat its choices
    # Whether a replay of another release or device is followed where its choices still exist, instead of refused.
    carry_over: bool = False
    denied: DenyList = field(default=DenyList(), repr=False)  # entries of other devices and releases are ignored
    # Settings under which the builder crashed, as named in the attempt file, which receives the name of each setting
    # before it is tried. They are not part of the spec, since they cannot lead to an engine.
    avoid: tuple[str, ...] = ()
    attempt_file: str | None = field(default=None, repr=False)

    @classmethod
    def replaying(cls, record: TacticRecord, timing: bytes | None, **others: Any) -> Caches:
        """Return caches for repeating a record's choices, given the recorded build's timing cache."""
        # Records of the editable timing cache are written into it. With algorithm selectors it saves the timing of
        # layers that no selector is asked about.
        timed = record.mechanism in ("editable_timing_cache", "algorithm_selector")
        return cls(replay=record, timing=timing if timed else None, **others)

    def denied_sha256(self, environment: Environment) -> str | None:
        """Return the digest of the deny-list's entries for an environment; None without any."""
        deny_list = self.denied.here(environment)
        return deny_list.digest if deny_list.entries else None


@dataclass(frozen=True)
class BuildRequest:
    """Everything that a back end needs for one build.

    Attributes:
        model: The model.
        config: How to build.
        caches: Results of earlier builds.
        calibration_data: Feeds to calibrate INT8 and FP8 with, unless there is a calibration cache.
        timing_feed: The feed that ONNX Runtime times tactics on. By default it is random data in the shapes of the
            optimization profiles; without profiles, dynamic dimensions are 1. TensorRT ignores it.
    """

    model: Model
    config: BuildConfig
    caches: Caches = field(default=Caches(), kw_only=True)
    calibration_data: Iterable[Feed] | None = field(default=None, repr=False, kw_only=True)
    timing_feed: Feed | None = field(default=None, repr=False, kw_only=True)

    def spec(self, environment: Environment, data_sha256: str | None = None) -> BuildSpec:
        """Return the spec of the build; ``data_sha256`` is the digest of the calibration data, if any."""
        caches, timed_shapes = self.caches, []
        if self.timing_feed is not None and caches.replay is None and self.config.times_at_data:
            for tensor in self.model.info.inputs:
                if tensor.name in self.timing_feed and (tensor.shape is None or any(map(is_dynamic, tensor.shape))):
                    timed_shapes.append((tensor.name, tuple(self.timing_feed[tensor.name].shape)))
        return BuildSpec(
            model_sha256=self.model.info.sha256,
            config=self.config,
            timed_shapes=tuple(timed_shapes),
            timing_cache_sha256=None if caches.timing is None else sha256(caches.timing),
            calibration_sha256=data_sha256 if caches.calibration is None else sha256(caches.calibration),
            replay_sha256=None if caches.replay is None else caches.replay.digest,
            denied_sha256=caches.denied_sha256(environment),
        )


@dataclass(frozen=True, kw_only=True)
class TimingCacheUse(Record):
    """Use of a timing cache in one build: timings found, timings added, and the measuring time saved."""

    # TensorRT 8.6 does not cache all timings if tactics are drawn by a seed or denied (15 of 23 in a net of two
    # convolutions); the others are not counted.

    hits: int = 0
    misses: int = 0
    saved_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine as bytes, with everything needed to load it."""

    backend: str
    plan: bytes = field(repr=False)  # a TensorRT plan, or an optimized model in ORT format
    options: Mapping[str, JSONValue] = field(default_factory=dict)  # further options of the loader
    environment: Environment

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of the plan."""
        return sha256(self.plan)

    @classmethod
    def packed(cls, backend: str, plan: bytes, options: Mapping[str, JSONValue], environment: Environment) -> Engine:
        """Return an engine whose options state the digest of its plan, which :meth:`check_bytes` compares."""
        engine = cls(backend=backend, plan=plan, environment=environment)
        object.__setattr__(engine, "options", {"sha256": engine.sha256, **options})
        return engine

    def check_bytes(self) -> None:
        """Raise EngineLoadError if the plan has another digest: libraries load damaged weights without an error."""
        digest = self.options.get("sha256") or self.options.get("plan_sha256")  # its name in runs of earlier releases
        if digest != self.sha256:
            raise errors.EngineLoadError(
                f"The engine's {len(self.plan)} bytes have digest {self.sha256[:12]}, expected {str(digest)[:12]}: "
                "they are damaged. Fetch the engine again, or rebuild it."
            )

    def check_place(self, current: Environment, *, any_release: bool = False) -> None:
        """Raise EngineLoadError if the engine was built by another release than here, or on another kind of device."""
        built = self.environment
        if built.backend_version != current.backend_version and not any_release:
            raise errors.EngineLoadError(
                f"The engine was built by {built.backend} {built.backend_version}; this is {current.backend_version}. "
                "Rebuild it here, or use that release."
            )
        if built.device_sha256 != current.device_sha256:
            raise errors.EngineLoadError(
                f"The engine was built for {built.device!r} ({built.device_sha256[:8]}); this is {current.device!r} "
                f"({current.device_sha256[:8]}). It only runs on the kind of device it was built on: rebuild it here."
            )


@dataclass(frozen=True, kw_only=True)
class Build:
    """One finished build."""

    spec: BuildSpec
    engine: Engine
    tactics: TacticRecord
    layers: tuple[Layer, ...]
    timing_cache: bytes | None = field(default=None, repr=False)  # including the given one
    timing_cache_use: TimingCacheUse = TimingCacheUse()
    skipped: tuple[str, ...] = ()  # settings that the builder had no time to try
    tuning: str = ""  # what timing settings gained; empty if none were timed in this build
    gain: str = ""  # the time of an INT8 engine compared with FP32; empty if it was not timed in this build
    denied: tuple[str, ...] = ()  # choices left out since they are on the deny-list, each with its reason
    calibration_cache: bytes | None = field(default=None, repr=False)
    quantization: Quantization | None = None  # layers with Q/DQ nodes that this build wrote
    seconds: float  # wall time, without reading the model and logging
    log: str = field(default="", repr=False)

    @property
    def left_out(self) -> str:
        """The choices excluded by the deny-list, in a line; empty without any."""
        kind = "setting" if self.tactics.mechanism == "onnxruntime" else "tactic"
        return f"{counted(len(self.denied), kind)} left out: {listed(self.denied, 3, '; ')}" if self.denied else ""

    @property
    def fallback(self) -> str:
        """The layers of a GPU's engine running on the CPU, with their share; empty without any."""
        left = [layer for layer in self.layers if layer.tactic.endswith("@CPUExecutionProvider")]
        if not left or self.engine.environment.compute_capability is None:
            return ""
        named = listed((f"{layer.op} `{layer.name}`" for layer in left), 8)
        share = len(left) / len(self.layers)
        return f"{len(left)} of {len(self.layers)} nodes ({share:.0%}) run on the CPU: {named}"


class EngineBackend(Protocol):
    """Builds engines from ONNX models, and runs them. Has no state; :func:`trtops.backend.engines.engine_backend`."""

    @property
    def name(self) -> str:
        """The back end's name."""
        ...

    @property
    def engine_suffix(self) -> str:
        """Suffix of its engine files, with the dot."""
        ...

    def environment(self, config: BuildConfig | None = None) -> Environment:
        """Return the current build environment, on the device of the config's engines.

        BackendUnavailableError if the library or the device is unusable here.
        """
        ...

    def device_state(self, config: BuildConfig | None = None) -> Mapping[str, str]:
        """Return the current state of the config's device (``sm_clock_mhz`` ...) for a run's tags."""
        ...

    def build(self, request: BuildRequest) -> Build:
        """Build one engine.

        Raises:
            ConfigError: If the config contradicts itself or the model, or is for another back end.
            EngineBuildError: If the build fails; the message contains the builder's last error lines.
            EngineLoadError: If the engine does not load.
            CalibrationError: If INT8 is requested without a cache or data, or calibration fails.
            TimingCacheError: If the timing cache is damaged, or of another device or release.
            TacticMismatchError: If the replay was not followed, asks for a denied tactic, or is of another device.
            UnsupportedFeatureError: If this release does not support the config.
        """
        ...

    def adopt(self, plan: bytes, model: Model, config: BuildConfig) -> Build:
        """Return a build with an engine that another program built of a model, with what can be read from it.

        Its spec names what is not known. Profiles are those of the engine. EngineLoadError if it does not load here.
        """
        ...

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> BaseRunner:
        """Return a runner for an engine, or for the engine returned by a callable at activation.

        Activation raises ``EngineLoadError`` if the bytes are damaged or belong to another release or device. With
        ``interleaved``, threads sleep between inferences, since other engines are timed in turn with this one.
        """
        ...
