"""Opening stores."""

import functools
import shutil
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.system.masking import masked
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.installed import run_context
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import default_spool

# Free bytes below which a disk is taken to be full.
_LITTLE = 1 << 16


def open_tracker(location: str | Path | None = None) -> OfflineTracker:
    """A tracker over a location (:func:`trtops.tracking.location.resolve`), opened once per process; made if missing.

    Runs that the store cannot take go to the spool (:mod:`trtops.tracking.offline`).

    Raises StoreError if the store cannot be used as it is.
    """
    return _open_once(resolve(location))


def existing_tracker(location: str | Path | None = None) -> OfflineTracker:
    """A tracker for read-only commands: a missing store is an error, and is not made.

    Raises StoreError if there is no store yet, or as :func:`open_tracker`.
    """
    where = resolve(location)
    if isinstance(where, Store) and not where.database.exists() and not default_spool(where).runs():
        raise errors.StoreError(
            f"There is no store in {where.root}: {where.database.name} is missing. Change to the folder that has "
            "mlruns, or name the store by --store or TRTOPS_HOME."
        )
    return open_tracker(location)


# Opening takes seconds, and runs that this process is spooling are known to their tracker only.
@functools.cache
def _open_once(where: Store | str) -> OfflineTracker:
    try:
        inner: Any = MlflowTracker(where)
    except (errors.StoreError, errors.NoRoomError) as exc:
        # SQLite cannot even read on a full disk, and reports that in several ways.
        if not isinstance(where, Store) or not where.database.exists():
            raise
        if shutil.disk_usage(where.root).free >= _LITTLE and not isinstance(exc, errors.NoRoomError):
            raise
        inner = _UnopenedTracker(where)
    return OfflineTracker(inner, default_spool(inner.store))


class _UnopenedTracker:
    """A store that cannot be opened, since its disk is full or read-only; each call tries again."""

    def __init__(self, where: Store) -> None:
        self.store, self.lock_folder, self.shown = where, where.locks, masked(where.uri)
        self.context = run_context()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Any:
            try:
                opened = MlflowTracker(self.store)
            except errors.StoreError as exc:
                raise errors.NoRoomError(str(exc)) from exc
            return getattr(opened, name)(*args, **named)

        return call


def default_tracker() -> OfflineTracker:
    """The tracker over the default location (:func:`trtops.tracking.location.default_location`)."""
    return open_tracker()
