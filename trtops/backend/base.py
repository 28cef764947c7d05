"""The three contracts of a back end: loaders, runners and engine builders.

**Loader.** A callable without arguments that makes one thing: bytes, a model, a session, a network, an engine. Making
a loader costs nothing; calling it does the work, anew at every call. Loaders are values: frozen dataclasses that can be
pickled, compared and printed. Wherever one takes another's product it takes either the product itself, which stays the
caller's, or a callable, whose product it owns.

A script's own loaders may derive from :class:`BaseLoader` and fill in ``call_impl``, or be plain functions.

**Runner.** Runs inference; see :class:`BaseRunner`.

**Engine back end.** Builds engines from models and runs them; see :class:`EngineBackend`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trtops.backend.runner import BaseRunner as BaseRunner
from trtops.backend.runner import Feed as Feed
from trtops.backend.runner import ValueOrCallable as ValueOrCallable
from trtops.lazy import known_as
from trtops.record import JSONValue, sha256
from trtops.spec import BuildConfig, BuildSpec, Environment, Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

known_as(__name__, "loader", "runner")


class BaseLoader:
    """A loader of a script's own: calling it calls :meth:`call_impl`, which it fills in."""

    def call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Make the thing."""
        raise NotImplementedError(f"{type(self).__name__} has no call_impl; a loader makes something there.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the thing."""
        return self.call_impl(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What earlier builds and calibrations left for this one; each optional.

    Attributes:
        timing: A timing cache, in the back end's own bytes.
        calibration: A calibration cache, in bytes.
        replay: A tactic record whose choices the builder must make again.
        denied: Tactics that the builder must not choose; those of other devices and releases do not count. The builder
            takes the next best, and says so in its log. A replay of a denied tactic is refused.
        avoid: Settings under which the builder took its process down, as it named them in ``attempt_file``. They are no part
            of the spec: no engine can come of them.
        attempt_file: A file in which the builder notes the settings that it is about to try, if it tries several.
    """

    timing: bytes | None = field(default=None, repr=False)
    calibration: bytes | None = field(default=None, repr=False)
    replay: TacticRecord | None = field(default=None, repr=False)
    denied: DenyList = field(default=DenyList(), repr=False)
    avoid: tuple[str, ...] = ()
    attempt_file: str | None = field(default=None, repr=False)

    @classmethod
    def replaying(cls, record: TacticRecord, timing: bytes | None, **others: Any) -> Caches:
        """Caches with which a build makes a record's choices again.

        Args:
            record: The choices.
            timing: The timing cache of the recorded build. A record made through the editable timing cache is written into
                it; beside one made by algorithm selectors it saves the time of what no selector is asked about. Others are
                replayed without one.
            others: Further caches.
        """
        timed = record.mechanism in ("editable_timing_cache", "algorithm_selector")
        return cls(replay=record, timing=timing if timed else None, **others)

    def denied_sha256(self, environment: Environment) -> str | None:
        """Digest of what is denied in an environment; None if nothing is."""
        here = self.denied.here(environment)
        return here.digest if here.entries else None

    def spec(
        self, model_sha256: str, config: BuildConfig, environment: Environment, data_sha256: str | None = None
    ) -> BuildSpec:
        """What is asked for when a model is built with these caches; all specs are made here.

        Args:
            model_sha256: Digest of the model's content.
            config: How to build.
            environment: Where: what is denied elsewhere does not count.
            data_sha256: Digest of the calibration data, where INT8 is calibrated by it and not by a cache.
        """
        return BuildSpec(
            model_sha256=model_sha256,
            config=config,
            timing_cache_sha256=None if self.timing is None else sha256(self.timing),
            calibration_sha256=data_sha256 if self.calibration is None else sha256(self.calibration),
            replay_sha256=None if self.replay is None else self.replay.digest,
            denied_sha256=self.denied_sha256(environment),
        )


NO_CACHES = Caches()


@dataclass(frozen=True, kw_only=True)
class TimingCacheUse:
    """What a timing cache was good for in one build.

    Attributes:
        hits: Timings found in it.
        misses: Timings that were added to it. TensorRT 8.6 caches fewer where tactics are drawn by a seed or denied (15 of 23
            in a net of two convolutions), and times the others anew every time; they are not counted.
        saved_seconds: Time that the hits would have cost, as the cache remembers it.
    """

    hits: int = 0
    misses: int = 0
    saved_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine as bytes, with what it takes to load it.

    Attributes:
        backend: Name of the back end that loads it.
        plan: The serialized engine: a TensorRT plan, or an optimized model in ORT format.
        options: What the loader needs beside the bytes (session options); JSON values.
        environment: Where it was built.
    """

    backend: str
    plan: bytes = field(repr=False)
    options: Mapping[str, JSONValue] = field(default_factory=dict)
    environment: Environment

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of the plan."""
        return sha256(self.plan)


@dataclass(frozen=True, kw_only=True)
class Build:
    """One finished build.

    Attributes:
        spec: What was asked for.
        engine: What came out.
        tactics: The choices made on the way.
        layers: The engine's layers.
        timing_cache: The timing cache after the build, with what was given and what was added; None if the back end
            keeps none.
        timing_cache_use: What the given timing cache was good for.
        skipped: Settings that the builder had no time to try.
        calibration_cache: The calibration cache that INT8 was built with.
        seconds: Wall time of the build, without reading the model and without logging.
        log: What the builder said.
    """

    spec: BuildSpec
    engine: Engine
    tactics: TacticRecord
    layers: tuple[Layer, ...]
    timing_cache: bytes | None = field(default=None, repr=False)
    timing_cache_use: TimingCacheUse = TimingCacheUse()
    skipped: tuple[str, ...] = ()
    calibration_cache: bytes | None = field(default=None, repr=False)
    seconds: float
    log: str = field(default="", repr=False)


class EngineBackend(Protocol):
    """Builds engines from ONNX models, and runs them.

    Implementations hold no state between calls and may be made anew for each. They are found by name through
    :func:`trtops.backend.engines.engine_backend`.
    """

    @property
    def name(self) -> str:
        """The back end's name."""
        ...

    @property
    def engine_suffix(self) -> str:
        """Ending of its engine files, with the dot."""
        ...

    def environment(self) -> Environment:
        """Where builds made now are made.

        Raises:
            BackendUnavailableError: If the back end's library is missing or unusable here.
        """
        ...

    def device_state(self) -> Mapping[str, str]:
        """What the device is doing now, for the tags of a build's run: names such as ``sm_clock_mhz`` to values.

        Empty where there is nothing to tell. Must not fail for want of a tool that tells.
        """
        ...

    def build(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = NO_CACHES,
        calibration_data: Iterable[Feed] | None = None,
    ) -> Build:
        """Build one engine.

        Args:
            model: The model; its weights are read as needed.
            config: How to build; its options are this back end's.
            caches: Caches to use. A timing cache or replay made by another device or release is refused.
            calibration_data: Feeds to calibrate INT8 with, unless a calibration cache is given.

        Raises:
            ConfigError: If the config asks for something contradictory, or for another back end.
            EngineBuildError: If no engine comes out; the message carries the builder's last error lines.
            CalibrationError: If INT8 is asked for without a cache or data, or calibration fails.
            TimingCacheError: If the timing cache does not fit this device and release.
            TacticMismatchError: If the replay was not followed, or asks for a tactic that is denied.
            UnsupportedFeatureError: If this release cannot do what the config asks for.
        """
        ...

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> BaseRunner:
        """A runner for an engine, or for what a callable returns when the runner is activated.

        Args:
            engine: The engine.
            name: The runner's name; counted up if not given.
            interleaved: Whether other engines are timed in turn with this one: its threads sleep between inferences, and do
                not wait for the next one at the cost of the processor.

        Activating it raises ``EngineLoadError`` if the bytes are damaged or belong to another release or device.
        """
        ...
