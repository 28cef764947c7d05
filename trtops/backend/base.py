"""The three contracts of a back end: loaders, runners and engine builders.

**Loader.** A callable without arguments that makes one thing: bytes, a model, a session, a network, an engine. Making
a loader costs nothing; calling it does the work, anew at every call. Loaders are values: frozen dataclasses that can be
pickled, compared and printed. Wherever one takes another's product it takes either the product itself, which stays the
caller's, or a callable, whose product it owns.

**Runner.** Runs inference; see :class:`BaseRunner`.

**Engine back end.** Builds engines from models and runs them; see :class:`EngineBackend`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from trtops import errors
from trtops.metadata import FeedCheck, TensorMetadata
from trtops.record import JSONValue
from trtops.spec import BuildConfig, BuildSpec, Environment, Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

    from trtops.backend.onnx.model import Model

T = TypeVar("T")

Feed: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""Arrays by input name, in host memory unless a runner says that it takes others."""

ValueOrCallable: TypeAlias = "T | Callable[[], T]"


class BaseRunner(ABC):
    """Runs inference on one model or engine.

    A runner is made cheaply and does nothing until it is activated, by ``with`` or by :meth:`activate`; then it holds
    its session or context, and lets go of it at :meth:`deactivate`, also when something fails in between. It may be
    activated again afterwards. Arrays returned by :meth:`infer` belong to the runner, and may be overwritten by the
    next call: copy what is to be kept.

    Subclasses fill in :meth:`infer_impl`, :meth:`get_input_metadata_impl` and, where there is something to hold,
    :meth:`activate_impl` and :meth:`deactivate_impl`.

    Attributes:
        name: Names the runner in results. Unless given it is counted up per kind of runner, so that a script gives
            its runners the same names every time.
        is_active: Whether the runner is active now.
    """

    _counters: ClassVar[defaultdict[str, itertools.count[int]]] = defaultdict(itertools.count)

    def __init__(self, name: str | None = None, prefix: str = "runner") -> None:
        """Name the runner, as ``<prefix>-N<count>`` unless a name is given."""
        self.name = name if name is not None else f"{prefix}-N{next(self._counters[prefix])}"
        self.is_active = False
        self._inference_seconds: float | None = None
        self._input_metadata: TensorMetadata | None = None
        self._feed_check: FeedCheck | None = None

    def __enter__(self) -> Self:
        self.activate()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.deactivate()

    def activate(self) -> None:
        """Take hold of what inference needs. Costs whatever building or loading costs.

        Raises:
            BackendError: If that fails; the runner is left inactive and holds nothing.
        """
        if self.is_active:
            return
        try:
            self.activate_impl()
        except BaseException:
            self.deactivate_impl()
            raise
        self.is_active = True

    def deactivate(self) -> None:
        """Let go of everything; does nothing to an inactive runner."""
        if not self.is_active:
            return
        self.is_active = False
        self._inference_seconds = None
        self._input_metadata = None
        self._feed_check = None
        self.deactivate_impl()

    def infer(self, feed_dict: Feed, check_inputs: bool = True) -> dict[str, Any]:
        """Run one inference.

        Args:
            feed_dict: One array per input of the model, by name, with the input's dtype and a shape that fits.
            check_inputs: Whether names, dtypes and shapes are checked first.

        Returns:
            The outputs by name, in the model's order, in host memory; owned by the runner and valid until the next
            call.

        Raises:
            InputError: If the feed does not fit; see :func:`trtops.metadata.check_feed`.
            InferenceError: If the back end fails, or the runner is not active.
        """
        if not self.is_active:
            raise errors.InferenceError(
                f"{self.name} is not active. Use it in a `with` block, or call activate() first."
            )
        if check_inputs:
            if self._feed_check is None:
                self._feed_check = FeedCheck(self.get_input_metadata())
            self._feed_check(feed_dict)
        return self.infer_impl(feed_dict)

    def get_input_metadata(self, use_numpy_dtypes: bool | None = None) -> TensorMetadata:
        """The model's inputs: names, dtypes and shapes, in order.

        Args:
            use_numpy_dtypes: Accepted for scripts that pass it; dtypes are :class:`trtops.metadata.DataType` either way.

        Raises:
            InferenceError: If the runner is not active.
        """
        if not self.is_active:
            raise errors.InferenceError(
                f"{self.name} is not active. Use it in a `with` block, or call activate() first."
            )
        if self._input_metadata is None:
            self._input_metadata = self.get_input_metadata_impl()
        return self._input_metadata

    def last_inference_time(self) -> float:
        """Seconds that the last inference took inside the back end.

        Raises:
            InferenceError: If there was none since activation.
        """
        if self._inference_seconds is None:
            raise errors.InferenceError(f"{self.name} has not run an inference since it was activated.")
        return self._inference_seconds

    @property
    def inference_time(self) -> float:
        """What :meth:`last_inference_time` returns; subclasses set it after each inference."""
        return self.last_inference_time()

    @inference_time.setter
    def inference_time(self, seconds: float) -> None:
        self._inference_seconds = seconds

    @abstractmethod
    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run one inference on a feed that was checked, and set :attr:`inference_time`."""

    @abstractmethod
    def get_input_metadata_impl(self) -> TensorMetadata:
        """The inputs' metadata; called once per activation."""

    def activate_impl(self) -> None:  # noqa: B027 - optional to fill in
        """Take hold of what inference needs."""

    def deactivate_impl(self) -> None:  # noqa: B027 - optional to fill in
        """Let go of it; also called after :meth:`activate_impl` failed half-way."""


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What earlier builds and calibrations left for this one; each optional.

    Attributes:
        timing: A timing cache, in the back end's own bytes.
        calibration: A calibration cache, in bytes.
        replay: A tactic record whose choices the builder must make again.
        denied: Tactics that the builder must not choose; those of other devices and releases do not count. The builder
            takes the next best, and says so in its log. A replay of a denied tactic is refused.
    """

    timing: bytes | None = field(default=None, repr=False)
    calibration: bytes | None = field(default=None, repr=False)
    replay: TacticRecord | None = field(default=None, repr=False)
    denied: DenyList = field(default=DenyList(), repr=False)

    def denied_sha256(self, environment: Environment) -> str | None:
        """Digest of what is denied in an environment; None if nothing is."""
        here = self.denied.here(environment)
        return here.digest if here.entries else None


@dataclass(frozen=True, kw_only=True)
class TimingCacheUse:
    """What a timing cache was good for in one build.

    Attributes:
        hits: Timings found in it.
        misses: Timings that were added to it. TensorRT 8.6 caches fewer while an algorithm selector watches (8 of 14 in a
            net of three convolutions), and times the others anew every time; they are not counted.
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
        caches: Caches = Caches(),
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

    def runner(self, engine: Engine | Callable[[], Engine], name: str | None = None) -> BaseRunner:
        """A runner for an engine, or for what a callable returns when the runner is activated.

        Activating it raises ``EngineLoadError`` if the bytes are damaged or belong to another release or device.
        """
        ...
