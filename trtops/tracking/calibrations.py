"""Calibration caches from files and runs."""

from __future__ import annotations

from pathlib import Path

from trtops import errors
from trtops.calibration.cache import CalibrationCache
from trtops.tracking.base import Tracker
from trtops.tracking.ids import RUN_PREFIX, run_id_of
from trtops.tracking.schema import Artifact


def load_cache(source: str, tracker: Tracker | None = None) -> CalibrationCache:
    """Read a calibration cache from a file of either format, or from a run (``run:<id>``).

    Raises ConfigError if there is no such file, or a run is named without a tracker; FormatError if it is not a
    calibration cache; TrackingError if the run is missing or incomplete, or has none.
    """
    if source.startswith(RUN_PREFIX):
        if tracker is None:
            raise errors.ConfigError(f"{source!r} names a run, but there is no store to read it from.")
        run = tracker.load(run_id_of(source, tracker))
        ours, theirs = Artifact.CALIBRATION_JSON, Artifact.CALIBRATION_CACHE
        return CalibrationCache.from_bytes(run.read_bytes(ours if ours in run.manifest else theirs))
    try:
        return CalibrationCache.from_bytes(Path(source).read_bytes())
    except OSError as exc:
        raise errors.ConfigError(f"Calibration cache {source!r} cannot be read: {exc.strerror}.") from None
