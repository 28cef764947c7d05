"""Ids of runs as users give them: whole, or their first digits, as with commits in git.

Code that takes a run from a user calls :meth:`trtops.tracking.base.Tracker.whole_id` once, at its start.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence

from trtops import errors
from trtops.tracking.records import RunInfo

RUN_PREFIX = "run:"
"""Prefix of a run where a file could be meant as well."""

_WHOLE = 32
_SHOWN = 10


def new_local_id() -> str:
    """A run id made by the run's own process, recognized by its UUID version (8; stores use version 4).

    Every run has one, as a tag. It keeps a run from being made twice after an interruption, and a run of the spool
    can be found by it after the upload.
    """
    digits = uuid.uuid4().hex
    return f"{digits[:12]}8{digits[13:]}"


def is_local(run_id: str) -> bool:
    """True for an id of :func:`new_local_id`."""
    return len(run_id) == _WHOLE and run_id[12] == "8"


def whole_id(run: str, beginning_with: Callable[[str, int], Sequence[RunInfo]], place: str) -> str:
    """Implements :meth:`trtops.tracking.base.Tracker.whole_id`.

    Args:
        run: The id as a user gave it.
        beginning_with: Finds runs by the first digits of their ids; the second argument is the maximum number.
        place: The store, for messages.
    """
    digits = run.removeprefix(RUN_PREFIX).lower()
    if not re.fullmatch("[0-9a-f]{4,32}", digits):
        raise errors.RunNotFoundError(
            f"Run {run!r}: expected the 32 hexadecimal digits of its id, or at least its first 4. "
            "See ids by: trtops runs list"
        )
    if len(digits) == _WHOLE:
        return digits
    found = beginning_with(digits, _SHOWN + 1)
    if not found:
        raise errors.RunNotFoundError(
            f"{place} has no run whose id begins with {digits!r}. See ids by: trtops runs list"
        )
    if len(found) > 1:
        count = len(found) if len(found) <= _SHOWN else f"More than {_SHOWN}"
        lines = [f"{count} runs have ids that begin with {digits!r}; give more digits:"]
        for info in found[:_SHOWN]:
            began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start_time))
            lines.append(f"    {info.id}  {began}  {info.name}")
        raise errors.ConfigError("\n".join([*lines, *(["    ..."] if len(found) > _SHOWN else [])]))
    return found[0].id
