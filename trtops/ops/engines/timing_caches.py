"""Timing caches from the tracking store: of one run, of the accepted engine, or the common one of a device.

The common cache of a device and release is a chain of runs of kind ``timing_cache``. Each holds the whole cache as an
artifact, and a tag names the run that it extends. If two builds extend the same run at the same time, the next one
merges both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from trtops import errors
from trtops.backend.base import Build, EngineBackend
from trtops.backend.engines import merge_timing_caches
from trtops.backend.worker import IsolatedBackend
from trtops.ops.engines.job import read_cache_file
from trtops.ops.result import op_run
from trtops.record import sha256
from trtops.spec import Environment
from trtops.tracking import builds, schema
from trtops.tracking.base import RunInfo, Tracker

log = logging.getLogger(__name__)

EXPERIMENT = "timing caches"
SHARED, ACCEPTED, RUN = "shared", "accepted", "run:"


@dataclass(frozen=True)
class TimingCacheSource:
    """The source of a build's timing cache.

    Attributes:
        asked: ``shared``, ``accepted``, ``run:`` and a run's id, or a path; None for no cache.
        tracker: The tracking store.
        environment: Where the build is made.
    """

    asked: str | None
    tracker: Tracker
    environment: Environment

    def read(self, model_sha256: str) -> bytes | None:
        """The cache; None if none is requested, or there is no shared or accepted one yet.

        Raises:
            ConfigError: If the file cannot be read, or the run left no timing cache.
            TimingCacheError: If the run's cache is of another device or release.
            RunNotFoundError: If there is no such run.
            IncompleteRunError: If the cache's bytes do not match the run's manifest.
        """
        if self.asked is None:
            return None
        if self.asked.startswith(RUN):
            return self._of_run(self.tracker.whole_id(self.asked[len(RUN) :]))
        if self.asked == ACCEPTED:
            accepted = self._find("promote", **{schema.Tag.MODEL_SHA256: model_sha256})
            if not accepted:
                log.warning("No engine of this model is accepted on this device and release; building without a cache.")
                return None
            # The promotion replayed tactics and timed nothing; the build that it promoted did.
            return self._of_run(accepted[0].tags[schema.Tag.EVIDENCE])
        if self.asked == SHARED:
            return next(iter(self._heads().values()), None)
        return read_cache_file(self.asked, "timing_cache")

    def share(self, build: Build, backend: EngineBackend, run_id: str) -> None:
        """Add the timings of a build to the shared cache, if that is requested and there are any."""
        if self.asked != SHARED or build.timing_cache is None or not build.timing_cache_use.misses:
            return
        heads = self._heads()
        try:
            whole = _merge(backend, [*heads.values(), build.timing_cache]) if heads else build.timing_cache
        except errors.BackendError as exc:  # the engine is worth more than the cache
            log.warning("The shared timing cache was not extended: %s", exc)
            return
        if whole in heads.values():
            return
        tags = {
            **builds.environment_tags(self.environment),
            schema.Tag.EVIDENCE: run_id,
            schema.Tag.FOLLOWS: ",".join(heads),
        }
        name = f"timing cache {self.environment.device}, {self.environment.backend} {self.environment.backend_version}"
        with op_run(self.tracker, EXPERIMENT, name, kind="timing_cache", tags=tags) as run:
            run.log_json(self.environment, schema.Artifact.ENVIRONMENT)
            run.log_bytes(whole, schema.Artifact.TIMING_CACHE)
        log.info("The shared timing cache has %d bytes now (digest %s).", len(whole), sha256(whole)[:12])

    def _heads(self) -> dict[str, bytes]:
        """The shared caches that no run extends, by their runs, newest first: usually one.

        A damaged run is ignored with a warning, and the run that it extends counts again.
        """
        heads, followed = {}, set[str]()
        for info in self._find("timing_cache"):
            if info.id in followed:
                continue
            try:
                heads[info.id] = self._of_run(info.id)
            except (errors.IncompleteRunError, errors.ConfigError, errors.FormatError) as exc:
                log.warning("A shared timing cache is ignored: %s", exc)
                continue
            followed.update(info.tags.get(schema.Tag.FOLLOWS, "").split(","))
        return heads

    def _find(self, kind: str, **tags: str) -> list[RunInfo]:
        here = {
            schema.Tag.KIND: kind,
            schema.Tag.DEVICE_SHA256: self.environment.device_sha256,
            schema.Tag.BACKEND: self.environment.backend,
            schema.Tag.BACKEND_VERSION: self.environment.backend_version,
        }
        return self.tracker.find(tags=here | tags, status="finished")

    def _of_run(self, run_id: str) -> bytes:
        stored = self.tracker.load(run_id)
        there = Environment.from_json(stored.read_bytes(schema.Artifact.ENVIRONMENT))
        if there.device_key != self.environment.device_key:
            raise errors.TimingCacheError(
                f"The timing cache of run {run_id} is for {there.device_key}; this is {self.environment.device_key}. "
                "Timings of another device or release choose wrong tactics. Use a cache of this device, or none."
            )
        cache = builds.load_timing_cache(stored)
        if cache is None:
            raise errors.ConfigError(
                f"Run {run_id} left no timing cache (timing_cache='run:{run_id}'). Name a run that built an engine."
            )
        return cache


def _merge(backend: EngineBackend, caches: Sequence[bytes]) -> bytes:
    if isinstance(backend, IsolatedBackend):
        return backend.worker.run(merge_timing_caches, backend.name, caches, timeout=backend.timeout)
    return merge_timing_caches(backend.name, caches)
