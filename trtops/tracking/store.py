"""The verbs on stores: open, relocate, upgrade, show, and close the runs of processes that are gone.

They also run as ``python -m trtops.tracking.store relocate|reap|upgrade|ui``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from trtops import errors
from trtops.tracking import owner
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import relocate, serve, upgrade


def open_tracker(location: str | Path | None = None) -> MlflowTracker:
    """A tracker over a location (as :func:`resolve` takes it), opened once per process; made first if it is missing.

    Raises:
        StoreError: If the store cannot be used as it is; ``StoreVersionError`` and ``StoreMovedError`` say what to do.
    """
    return _open_once(resolve(location))


@functools.cache
def _open_once(where: Store | str) -> MlflowTracker:
    return MlflowTracker(where)


def default_tracker() -> MlflowTracker:
    """The tracker over the default location (:func:`default_location`)."""
    return open_tracker()


def reap(tracker: Tracker) -> list[RunInfo]:
    """Close the runs whose processes have ended without doing so: killed, crashed, or lost with their machine's power.

    Only processes of this machine can be seen; runs of others are left as they are.

    Returns:
        The runs that were closed, as they are now.
    """
    return [
        tracker.close(info.id, "Its process ended without closing the run: it was killed or crashed.")
        for info in tracker.find(status="running")
        if owner.is_abandoned(info)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m trtops.tracking.store``: one of the verbs above, said in a line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trtops.tracking.store", description="Keep a store of runs usable.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, does in (
        ("relocate", "rewrite the artifact addresses of a store that was moved"),
        ("reap", "close the runs of processes that are gone"),
        ("upgrade", "bring an older store to the installed MLflow's schema, after a backup"),
        ("ui", "show the store in MLflow's UI"),
    ):
        command = verbs.add_parser(verb, help=does)
        command.add_argument("--root", help="the store's folder (default: TRTOPS_HOME or ./mlruns)")
        if verb == "relocate":
            command.add_argument(
                "--from", dest="former", type=Path, help="where the store was, if the store does not say"
            )
        if verb == "ui":
            command.add_argument("--port", type=int, default=5000)
    given = parser.parse_args(arguments)
    try:
        if given.verb == "relocate":
            print(f"{relocate(given.root, former=given.former)} addresses rewritten.")
        elif given.verb == "upgrade":
            backup = upgrade(given.root)
            print(f"Upgraded; the backup is {backup}." if backup else "Nothing to upgrade.")
        elif given.verb == "ui":
            serve(given.root, port=given.port)
        else:
            closed = reap(open_tracker(given.root))
            print(
                "\n".join([f"{len(closed)} runs closed.", *(f"{info.id} {info.status} {info.name}" for info in closed)])
            )
    except errors.TrtopsError as exc:
        print(exc, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    # As the module that others import: running this file as __main__ would make a second copy of everything in it.
    from trtops.tracking import store

    sys.exit(store.main())
