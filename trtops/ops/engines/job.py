"""Prepare a build: read everything that decides the engine, and compute its spec.

All ops that build engines for the tracking store use this module, so that the same build has the same spec.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches, EngineBackend
from trtops.backend.onnx.model import Model
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.feeds import Feeds, open_feeds
from trtops.spec import BuildConfig, BuildSpec, Environment
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tracking import builds, schema
from trtops.tracking.base import Tracker
from trtops.tracking.records import run_id_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildJob:
    """One build, ready to be made. ``calibration`` is data to calibrate INT8 with, unless there is a cache."""

    model: Model
    caches: Caches
    calibration: Feeds | None
    environment: Environment
    spec: BuildSpec

    @classmethod
    def prepare(
        cls,
        model: Model,
        config: BuildConfig,
        environment: Environment,
        *,
        caches: Caches,
        check: CheckConfig,
        calibration_data: str | None,
    ) -> BuildJob:
        """Compute the spec. INT8 is calibrated with the data of the check by default."""
        feeds, data_sha256 = None, None
        # Calibration data is read for its digest: other data gives other ranges, and so another engine.
        if config.precision == "int8" and caches.calibration is None:
            inputs = TensorMetadata.of(model.info.inputs)
            source = check.open_for(model) if calibration_data is None else open_feeds(calibration_data, inputs)
            feeds = source.first(config.calibration_samples)
            data_sha256 = feeds.digest()
        spec = caches.spec(model.info.sha256, config, environment, data_sha256)
        return cls(model, caches, feeds, environment, spec)

    def build(self, backend: EngineBackend) -> Build:
        """Build the engine; see :meth:`trtops.backend.base.EngineBackend.build`."""
        return backend.build(self.model, self.spec.config, caches=self.caches, calibration_data=self.calibration)


def read_cache_file(path: str | None, field_name: str) -> bytes | None:
    """The content of a file that an option names; None if the option is not given, ConfigError if it is unreadable."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise errors.ConfigError(f"{field_name}={path!r} cannot be read: {exc.strerror}.") from None


def read_timing_cache(asked: str | None, tracker: Tracker, environment: Environment) -> bytes | None:
    """A timing cache from a file, or from a run (``run:<id>``); None if the option is not given.

    TimingCacheError if the run's cache is of another device or release.
    """
    if asked is None or not asked.startswith("run:"):
        return read_cache_file(asked, "timing_cache")
    run_id = run_id_of(asked, tracker)
    stored = tracker.load(run_id)
    there = Environment.from_json(stored.read_bytes(schema.Artifact.ENVIRONMENT))
    if there.device_key != environment.device_key:
        raise errors.TimingCacheError(
            f"The timing cache of run {run_id} is for {there.device_key}; this is {environment.device_key}. "
            "Timings of another device or release choose wrong tactics. Use a cache of this device, or none."
        )
    cache = builds.load_timing_cache(stored)
    if cache is None:
        raise errors.ConfigError(f"Run {run_id} has no timing cache (timing_cache={asked!r}). Name a run with a build.")
    return cache


def deny_list(tracker: Tracker, environment: Environment) -> DenyList:
    """The tactics that builds in an environment must not use. Damaged entries are left out with a warning."""
    place = {
        schema.Tag.KIND: "deny",
        schema.Tag.BACKEND_VERSION: environment.backend_version,
        schema.Tag.DEVICE_SHA256: environment.device_sha256,
    }
    found = tracker.find(tags=place, status="finished")
    pardoned = {info.tags.get(schema.Tag.PARDONED) for info in found}
    runs = [info.id for info in reversed(found) if info.id not in pardoned and schema.Tag.PARDONED not in info.tags]
    entries = []
    for run_id in runs:
        try:
            entries.append(DeniedTactic.from_json(tracker.load(run_id).read_bytes(schema.Artifact.DENIED)))
        except errors.TrackingUnavailableError:  # without the store, a build could use a denied tactic
            raise
        except errors.TrtopsError as exc:
            hint = "Prove it again, or: trtops runs pardon"
            log.warning("An entry of the deny-list is ignored: %s %s %s", exc, hint, run_id)
    return DenyList(entries=tuple(dict.fromkeys(entries)))
