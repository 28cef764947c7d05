"""Ids of runs: those of the store, those that a run's own process makes, and as users give them."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from trtops import errors

if TYPE_CHECKING:
    from trtops.tracking.base import Tracker

RUN_PREFIX = "run:"
"""Prefix of a run where a file could be meant as well."""


def is_run_id(text: str) -> bool:
    """True for 32 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None


def new_local_id() -> str:
    """A run id made by the run's own process, recognized by its UUID version (8; stores use version 4).

    Every run has one, as a tag. It keeps a run from being made twice after an interruption, and a run of the spool
    can be found by it after the upload.
    """
    digits = uuid.uuid4().hex
    return f"{digits[:12]}8{digits[13:]}"


def is_local(run_id: str) -> bool:
    """True for an id of :func:`new_local_id`."""
    return len(run_id) == 32 and run_id[12] == "8"


def run_id_of(given: str, tracker: Tracker) -> str:
    """The id of a run as a user gave it: whole, or its first eight digits or more, also after ``run:``.

    Raises RunNotFoundError if it cannot be an id, or not exactly one run of the store begins with it.
    """
    digits = given.removeprefix(RUN_PREFIX).lower()
    if is_run_id(digits):
        return digits
    if re.fullmatch("[0-9a-f]{8,31}", digits) is None:
        expected = "expected the 32 hexadecimal digits of its id, or at least the first 8"
        raise errors.RunNotFoundError(f"Run {given!r}: {expected}. See ids by: trtops runs list")
    found = [info.id for info in tracker.find(id_prefix=digits, limit=2)]
    if len(found) != 1:
        count = "several runs have ids" if found else "no run has an id"
        raise errors.RunNotFoundError(f"Run {given!r}: {count} that begin so. See ids by: trtops runs list")
    return found[0]
