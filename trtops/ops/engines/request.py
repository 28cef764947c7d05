"""Prepare a build: open the data of a command once, read caches, and make the request to the back end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import Model
from trtops.calibration.data import is_same_source
from trtops.comparator.results import RunResults
from trtops.comparator.tasks.scores import labels_for, task_metrics
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops.evaluation.check import CheckConfig, check_labels
from trtops.ops.evaluation.data import Feeds, golden_outputs, open_feeds
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.result import run_step
from trtops.spec import BuildConfig, BuildSpec, Environment, OptimizationProfile
from trtops.tracking import schema
from trtops.tracking.base import Tracker, run_id_of


class CommandData:
    """The data of a command: each source is opened once, so that a script runs once, and golden outputs with it."""

    def __init__(
        self, model: Model, check: CheckConfig, calibration: str | None = None, *, source: Feeds | None = None
    ) -> None:
        """Open the sources.

        Args:
            model: The model.
            check: The check with its data, and golden outputs.
            calibration: The source of calibration data (default: the check's data).
            source: The check's data, if it is open already.
        """
        self.model = model
        self.check = check
        self.inputs = TensorMetadata.of(model.info.inputs)
        self._source = source
        if source is None and check.data is not None:
            self._source = open_feeds(check.data, self.inputs)
        self._calibration = None
        if calibration is not None:
            is_same = is_same_source(calibration, check.data)
            self._calibration = self._source if is_same else open_feeds(calibration, self.inputs)
        self._feeds: dict[tuple[OptimizationProfile, ...], Feeds] = {}
        self._golden: dict[tuple[OptimizationProfile, ...], RunResults] = {}

    def feeds(self, profiles: Sequence[OptimizationProfile] = ()) -> Feeds:
        """Return the feeds of the check, followed by data for every shape of the profiles."""
        key = tuple(profiles)
        if key not in self._feeds:
            self._feeds[key] = self.check.open_for(self.model, self._source, profiles=profiles)
        return self._feeds[key]

    def golden(self, profiles: Sequence[OptimizationProfile] = ()) -> RunResults:
        """Return the golden outputs of these feeds, computed or read on the first call.

        ComparisonError if the check has labels that do not fit them.
        """
        key = tuple(profiles)
        if key not in self._golden:
            feeds = self.feeds(profiles)
            golden = run_step("run reference", golden_outputs, self.model, feeds, self.check.golden)
            if self.check.metrics:
                tolerances = tolerances_for("fp32", self.check.tolerances, self.model)
                # Labels are for the given data, not for its copies at other shapes.
                check_labels(golden, self.check, tolerances, sum(1 for _ in self.feeds()) if profiles else None)
            self._golden[key] = golden
        return self._golden[key]

    def calibration(self) -> Feeds | None:
        """Return the feeds to calibrate with, by default the data of the check; None if both are random."""
        if self._calibration is not None or self._source is None:
            return self._calibration
        return self.feeds()

    def profiled(self, build: BuildConfig) -> BuildConfig:
        """Return the build with a profile of the data's shapes; see :meth:`DataConfig.profiled`."""
        calibration = self._calibration if build.calibrates else None
        return self.check.profiled(build, self.model, calibration, self._source)

    def request(self, config: BuildConfig, environment: Environment, caches: Caches) -> tuple[BuildRequest, BuildSpec]:
        """Return the request for a build, and its spec. Calibration uses the check's data by default."""
        request = BuildRequest(self.model, config, caches=caches)
        if config.backend == "onnxruntime" and caches.replay is None and config.options.tactic_seed is None:
            timing_feed = next(iter(self.feeds(config.profiles)))
            check_feed(self.inputs, timing_feed)
            request = replace(request, timing_feed=timing_feed)
        if not config.calibrates or caches.calibration is not None:
            return request, request.spec(environment)
        source, samples = self.calibration(), config.calibration_samples
        if source is None:  # the first feeds of random data have the shapes that the first profile is optimized for
            source, samples = self.feeds(config.profiles), min(samples, self.check.iterations)
        feeds = source.first(samples)
        # Other calibration data gives other ranges, and so another engine.
        return replace(request, calibration_data=feeds), request.spec(environment, feeds.digest())


def check_names(model: Model, build: BuildConfig, check: CheckConfig) -> None:
    """Raise ConfigError for layers or outputs that the model does not have, and for unknown metrics or labels."""
    labels_for(task_metrics(check.metrics), check.labels)
    if build.keep:
        walk.select_nodes(model.structure(), build.keep)
    outputs = {spec.name for spec in model.info.outputs}
    for name in () if check.tolerances is None else check.tolerances.per_output:
        errors.check_known(name, outputs, "The tolerances are for an output that does not exist:")


def read_cache_file(path: str | None, field_name: str) -> bytes | None:
    """The content of an option's file; None without the option, ConfigError if it is unreadable."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise errors.ConfigError(f"{field_name}={path!r} cannot be read: {exc.strerror}.") from None


def read_timing_cache(source: str | None, tracker: Tracker, environment: Environment) -> bytes | None:
    """A timing cache from a file, or from a run (``run:ID``); None if the option is not given.

    TimingCacheError if the run's cache is of another device or release.
    """
    if source is None or not source.startswith("run:"):
        return read_cache_file(source, "timing_cache")
    run_id = run_id_of(source, tracker)
    stored = tracker.load(run_id)
    origin = Environment.from_json(stored.read_bytes(schema.Artifact.ENVIRONMENT))
    if origin.device_key != environment.device_key:
        raise errors.TimingCacheError(
            f"The timing cache of run {run_id} is for {origin.device_key}; this is {environment.device_key}. "
            "Timings of another device or release choose wrong tactics. Use a cache of this device, or none."
        )
    cache = stored.get(schema.Artifact.TIMING_CACHE)
    if cache is None:
        raise errors.ConfigError(
            f"Run {run_id} has no timing cache (timing_cache={source!r}). Name a run with a build."
        )
    return cache
