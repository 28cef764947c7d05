"""The memory that a command writes to or reads from, opened when it is needed: that takes longer than most commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.tracking.base import Tracker


def kept_or_forgotten(experiment: str | None, store: str | None) -> Tracker:
    """The memory that an experiment is kept in; without one, a memory that ends with this process."""
    if experiment is None and store is None:
        from trtops.tracking.memory import MemoryTracker

        return MemoryTracker()
    return opened(store)


def kept(experiment: str | None, store: str | None) -> Tracker | None:
    """The memory that an experiment is kept in; without one None, which keeps nothing."""
    return None if experiment is None else opened(store)


def existing(store: str | None) -> Tracker:
    """The store, for what reads it: one that is missing is an error, and is not made."""
    from trtops.tracking.store import existing_tracker

    return existing_tracker(store)


def opened(store: str | None) -> Tracker:
    """The store, made if it is missing."""
    from trtops.tracking.store import open_tracker

    return open_tracker(store)
