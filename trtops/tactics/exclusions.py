"""Tactics to keep out of a build, read from a file: a deny list, an entry of one, or a record whose every choice is bad."""

from __future__ import annotations

import json
from pathlib import Path

from trtops import errors
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.replays import read_record


def read_exclusions(path: str | Path) -> DenyList:
    """Read what a build must not choose.

    Args:
        path: A saved :class:`~trtops.tactics.denied.DenyList` or :class:`~trtops.tactics.denied.DeniedTactic`, or a tactic
            record, ours or Polygraphy's replay file, of which every choice is kept out.

    Raises:
        FormatError: If the file cannot be read, or holds none of these.
    """
    try:
        data = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise errors.FormatError(
            f"{path} cannot be read as JSON: {exc}. Expected a deny list or a tactic record."
        ) from None
    if isinstance(data, dict) and "entries" in data:
        return DenyList.from_dict(data)
    if isinstance(data, dict) and "choices" in data and "mechanism" not in data:
        return DenyList(entries=(DeniedTactic.from_dict(data),))
    record = read_record(path)
    entry = DeniedTactic(
        backend_version=record.backend_version,
        device_sha256=record.device_sha256,
        choices=record.choices,
        evidence=str(path),
    )
    return DenyList(entries=(entry,))
