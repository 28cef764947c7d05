"""Opening stores."""

import functools
from pathlib import Path

from trtops import errors
from trtops.extras import RECORDING, require
from trtops.system.signing import signs_here
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import default_spool


def open_tracker(location: str | Path | None = None) -> OfflineTracker:
    """A tracker over a location (:func:`trtops.tracking.location.resolve`), opened once per process; made if missing.

    Runs that the store cannot take go to the spool (:mod:`trtops.tracking.offline`).

    Raises BackendUnavailableError if MLflow is not installed; StoreError if the store cannot be used as it is.
    """
    require(*RECORDING, *(["cryptography"] if signs_here() else []))
    return _open_once(resolve(location))


def existing_tracker(location: str | Path | None = None) -> OfflineTracker:
    """A tracker for read-only commands: a missing store is an error, and is not made.

    Raises StoreError if there is no store yet, or as :func:`open_tracker`.
    """
    require(*RECORDING)
    where = resolve(location)
    if isinstance(where, Store) and not where.database.exists():
        raise errors.StoreError(
            f"There is no store in {where.root}: {where.database.name} is missing. Change to the folder that has "
            "mlruns, or name the store by --store or TRTOPS_HOME."
        )
    return open_tracker(location)


# Opening takes seconds, and runs that this process is spooling are known to their tracker only.
@functools.cache
def _open_once(where: Store | str) -> OfflineTracker:
    inner = MlflowTracker(where)
    return OfflineTracker(inner, default_spool(inner.store))


def default_tracker() -> OfflineTracker:
    """The tracker over the default location (:func:`trtops.tracking.location.default_location`)."""
    return open_tracker()
