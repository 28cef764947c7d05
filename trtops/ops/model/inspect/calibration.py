"""Calibration caches: the range of each tensor, and what differs between two."""

from __future__ import annotations

from trtops.calibration.compare import CacheDiff, diff
from trtops.ops.model.inspect.inspection import Inspection
from trtops.tables import table
from trtops.tracking.base import Tracker
from trtops.tracking.calibrations import load_cache


def inspect_calibration(source: str, *, tracker: Tracker | None = None) -> Inspection:
    """Look into a calibration cache: a file of either format, or ``run:<id>``.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is no calibration cache.
        TrackingError: If the run is not there, or holds none.
    """
    cache = load_cache(source, tracker)

    def text() -> str:
        head = f"{len(cache)} tensors by {cache.algorithm}, from {cache.samples} samples"
        if not cache.complete:
            head += " (not complete: the data ended with an error)"
        rows = (
            (
                entry.name,
                f"{entry.amax:.6g}",
                f"{entry.scale:.6g}",
                "-" if entry.low is None or entry.high is None else f"{entry.low:.5g} to {entry.high:.5g}",
                "-" if entry.clipped is None else f"{entry.clipped:.3%}",
            )
            for entry in cache.ranges
        )
        lines = [head, "", table(("tensor", "amax", "scale", "seen", "clipped"), rows)]
        if cache.excluded:
            lines += ["", f"Without a range, since NaN or infinity occurred: {', '.join(cache.excluded)}"]
        return "\n".join(lines)

    return Inspection("calibration", lambda: cache, text)


def compare_calibrations(first: str, second: str, ratio: float = 1.25, *, tracker: Tracker | None = None) -> CacheDiff:
    """What differs between two calibration caches: files of either format, or ``run:<id>``.

    Args:
        first: The cache to compare with.
        second: The other.
        ratio: Ranges further apart count as changed.
        tracker: The memory that has the runs.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If one is no calibration cache.
        TrackingError: If a run is not there, or holds none.
    """
    return diff(load_cache(first, tracker), load_cache(second, tracker), ratio)
