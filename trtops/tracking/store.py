"""Opening stores, and the commands of ``trtops store``, which also run as ``python -m trtops.tracking.store``."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from trtops import errors
from trtops.tracking.check import check_store, remove_leftovers
from trtops.tracking.check import reap as reap
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import serve
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import default_spool, upload


def open_tracker(location: str | Path | None = None) -> OfflineTracker:
    """A tracker over a location (:func:`trtops.tracking.location.resolve`), opened once per process; made if missing.

    Runs that the store cannot take go to the spool (:mod:`trtops.tracking.offline`).

    Raises:
        StoreError: If the store cannot be used as it is.
    """
    return _open_once(resolve(location))


def existing_tracker(location: str | Path | None = None) -> OfflineTracker:
    """A tracker for read-only commands: a missing store is an error, and is not made.

    Raises:
        StoreError: If there is no store yet, or as :func:`open_tracker`.
    """
    where = resolve(location)
    if isinstance(where, Store) and not where.database.exists() and not default_spool(where).runs():
        raise errors.StoreError(
            f"There is no store in {where.root}: {where.database.name} is missing. Change to the folder that has "
            "mlruns, or name the store by --store or TRTOPS_HOME."
        )
    return open_tracker(location)


@functools.cache
def _open_once(where: Store | str) -> OfflineTracker:
    inner = MlflowTracker(where)
    return OfflineTracker(inner, default_spool(inner.store))


def default_tracker() -> OfflineTracker:
    """The tracker over the default location (:func:`trtops.tracking.location.default_location`)."""
    return open_tracker()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m trtops.tracking.store`` with these arguments. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trtops.tracking.store", description="Maintain a tracking store.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (
        ("reap", "close the runs of dead processes, and remove their leftovers on this machine"),
        ("check", "find problems: runs without files, files without runs, leftovers of dead processes"),
        ("upload", "upload the runs that were spooled on this machine while the store was away"),
        ("ui", "show the store in MLflow's UI"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("--root", help="the store's folder or address (default: TRTOPS_HOME or ./mlruns)")
        if verb == "upload":
            command.add_argument("--moved", action="store_true", help="also runs that were meant for another address")
        if verb == "check":
            command.add_argument("--artifacts", type=Path, help="for a server: the folder of its files")
        if verb == "ui":
            command.add_argument("--port", type=int, default=5000)
    given = parser.parse_args(arguments)
    try:
        if given.verb == "ui":
            serve(given.root, port=given.port)
        if given.verb == "upload":
            tracker = open_tracker(given.root)
            results = upload(tracker.inner, tracker.spool, moved=given.moved)
            left = [each for each in results if each.why]
            print(f"{len(results) - len(left)} runs uploaded, {len(left)} left.")
            for each in results:
                print(f"Left in {each.folder}: {each.why}" if each in left else f"{each.run_id} {each.name}")
            return 1 if left else 0
        tracker = existing_tracker(given.root)
        if given.verb == "check":
            found = check_store(tracker, artifacts=given.artifacts)
            print(found.text())
            return 1 if found.findings else 0
        closed = reap(tracker)
        print("\n".join([f"{len(closed)} runs closed.", *(f"{run.id} {run.status} {run.name}" for run in closed)]))
        for removed in remove_leftovers(tracker):
            print(f"Removed: {removed}")
    except errors.TrtopsError as exc:
        print(exc, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    # As the module that others import: running this file as __main__ would make a second copy of it.
    from trtops.tracking import store

    sys.exit(store.main())
