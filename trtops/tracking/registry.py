"""Checks that every registry of accepted engines makes (the last methods of :class:`trtops.tracking.base.Tracker`).

MLflow's registry accepts any path as the source of a version. Here a version is a run and an artifact's path, nothing
else. It is read through its run's manifest, and a version that points elsewhere is refused.
"""

from __future__ import annotations

import re

from trtops import errors
from trtops.tracking.base import Tracker


def check_registration(tracker: Tracker, name: str, run_id: str, path: str, alias: str) -> None:
    """Raise the errors of :meth:`trtops.tracking.base.Tracker.register`."""
    if not re.fullmatch(r"[\w\-]{1,255}", alias) or alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        raise errors.ConfigError(
            f"Alias {alias!r}: expected 1 to 255 letters, digits, '_' or '-', and neither 'latest' nor a version's "
            "number."
        )
    if not name.strip() or len(name) > 250 or set("/:") & set(name):
        raise errors.ConfigError(f"Registered model {name[:60]!r}: expected 1 to 250 characters without '/' and ':'.")
    tracker.load(run_id).local_path(path)


def source_of(run_id: str, path: str) -> str:
    """The source of a version in MLflow."""
    return f"runs:/{run_id}/{path}"


def artifact_of(name: str, version: str, source: str) -> tuple[str, str]:
    """The run and the artifact of a version."""
    match = re.fullmatch(r"runs:/(\w+)/(.+)", source)
    if match is None or ".." in match[2].split("/"):
        raise errors.StoreError(
            f"Version {version} of {name!r} points to {source!r}, which is not an artifact of a run, so its content "
            "cannot be checked. Promote a run instead."
        )
    return match[1], match[2]
