"""Calibration caches by name: a file, or a run that holds one."""

from __future__ import annotations

from pathlib import Path

from trtops import errors
from trtops.calibration.cache import CalibrationCache
from trtops.tracking import schema
from trtops.tracking.base import Tracker
from trtops.tracking.ids import RUN_PREFIX


def load_cache(source: str, tracker: Tracker | None = None) -> CalibrationCache:
    """Read a calibration cache from a file of either format, or from a run (``run:<id>``).

    Raises:
        ConfigError: If there is no such file, or a run is named without a tracker.
        FormatError: If it is no calibration cache.
        TrackingError: If the run is not there, not whole, or holds none.
    """
    if source.startswith(RUN_PREFIX):
        if tracker is None:
            raise errors.ConfigError(f"{source!r} names a run, and there is no store to look for it in.")
        run = tracker.load(tracker.whole_id(source))
        ours, theirs = schema.Artifact.CALIBRATION_JSON, schema.Artifact.CALIBRATION_CACHE
        return CalibrationCache.from_bytes(run.read_bytes(ours if ours in run.manifest else theirs))
    try:
        return CalibrationCache.from_bytes(Path(source).read_bytes())
    except OSError as exc:
        raise errors.ConfigError(f"Calibration cache {source!r} cannot be read: {exc.strerror}.") from None
