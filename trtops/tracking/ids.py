"""How people give a run: by its id or what it begins with, as git takes commits.

Whatever takes a run from a person asks :meth:`trtops.tracking.base.Tracker.whole_id` once, at its start. Everything
after that, and everything that is logged, has whole ids.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from trtops import errors
from trtops.tracking.base import RunInfo

RUN_PREFIX = "run:"
"""What a run begins with where something else, such as a file, could be meant too."""

_BEGINNING = re.compile("[0-9a-f]{4,32}")
_WHOLE = 32
_SHOWN = 10


def whole_id(run: str, beginning_with: Callable[[str, int], Sequence[RunInfo]], place: str) -> str:
    """What :meth:`trtops.tracking.base.Tracker.whole_id` promises, for the trackers.

    Args:
        run: As it was given.
        beginning_with: Finds at most so many of the runs whose ids begin with some hexadecimal digits.
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
        raise errors.ConfigError(_ambiguous(digits, found))
    return found[0].id


def _ambiguous(digits: str, found: Sequence[RunInfo]) -> str:
    more = len(found) > _SHOWN
    head = f"{f'More than {_SHOWN}' if more else len(found)} runs have ids that begin with {digits!r}"
    lines = [f"{head}; give more digits of the one that is meant:"]
    for info in found[:_SHOWN]:
        begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start_time))
        lines.append(f"    {info.id}  {begun}  {info.name}")
    return "\n".join([*lines, *(["    ..."] if more else [])])
