"""How people name a run: by its id or its first digits, as they name commits to git.

Whatever takes a run from a person calls :meth:`trtops.tracking.base.Tracker.whole_id` once, at its start. After that, and in
everything that is logged, ids are whole.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence

from trtops import errors
from trtops.tracking.base import RunInfo

RUN_PREFIX = "run:"
"""Prefix of a run where something else, such as a file, could be meant too."""

_BEGINNING = re.compile("[0-9a-f]{4,32}")
_WHOLE = 32
_SHOWN = 10


def new_local_id() -> str:
    """An id that a run's own process gives it, known as such by its version (8; stores give those of version 4).

    Every run has one, as a tag: by it a run whose making was interrupted is not made twice, and one that was kept in an
    outbox is found after it was brought in.
    """
    digits = uuid.uuid4().hex
    return f"{digits[:12]}8{digits[13:]}"


def is_local(run_id: str) -> bool:
    """Whether an id is one of :func:`new_local_id`."""
    return len(run_id) == _WHOLE and run_id[12] == "8"


def whole_id(run: str, beginning_with: Callable[[str, int], Sequence[RunInfo]], place: str) -> str:
    """Implements :meth:`trtops.tracking.base.Tracker.whole_id` for the trackers.

    Args:
        run: As a person gave it.
        beginning_with: Finds runs whose ids begin with some hexadecimal digits, at most so many.
        place: The store, for messages.
    """
    digits = run.removeprefix(RUN_PREFIX).lower()
    if not _BEGINNING.fullmatch(digits):
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
        raise errors.ConfigError(_ambiguity_message(digits, found))
    return found[0].id


def _ambiguity_message(digits: str, found: Sequence[RunInfo]) -> str:
    more = len(found) > _SHOWN
    head = f"{f'More than {_SHOWN}' if more else len(found)} runs have ids that begin with {digits!r}"
    lines = [f"{head}; give more digits of the one that is meant:"]
    for info in found[:_SHOWN]:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start_time))
        lines.append(f"    {info.id}  {begun}  {info.name}")
    return "\n".join([*lines, *(["    ..."] if more else [])])
