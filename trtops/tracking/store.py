"""The verbs on stores: open, relocate, upgrade, show, bring in what was kept, close the runs of dead processes.

They also run as ``python -m trtops.tracking.store relocate|reap|upgrade|upload|check|ui``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from trtops import errors
from trtops.tracking.base import RunInfo
from trtops.tracking.check import Finding, check_store, leftovers, mended
from trtops.tracking.check import reap as reap
from trtops.tracking.keeping import KeepingTracker
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import relocate, serve, upgrade
from trtops.tracking.outbox import default_outbox
from trtops.tracking.upload import Uploaded, upload


def open_tracker(location: str | Path | None = None) -> KeepingTracker:
    """A tracker over a location (as :func:`resolve` takes it), opened once per process; made first if it is missing.

    What the store cannot take is kept on this machine (:mod:`trtops.tracking.keeping`).

    Raises:
        StoreError: If the store cannot be used as it is; ``StoreVersionError`` and ``StoreMovedError`` say what to do.
    """
    return _open_once(resolve(location))


def existing_tracker(location: str | Path | None = None) -> KeepingTracker:
    """The same for what only reads: a store that is missing is an error, and is not made.

    Raises:
        StoreError: If nothing was kept there yet, or as :func:`open_tracker`.
    """
    where = resolve(location)
    if isinstance(where, Store) and not where.database.exists() and not default_outbox(where).places[0].exists():
        raise errors.StoreError(
            f"Nothing is kept in {where.root}: there is no {where.database.name}. Change into the folder that holds "
            "mlruns, or name the store by --store or TRTOPS_HOME."
        )
    return open_tracker(location)


@functools.cache
def _open_once(where: Store | str) -> KeepingTracker:
    inner = MlflowTracker(where)
    return KeepingTracker(inner, default_outbox(inner.store))


def default_tracker() -> KeepingTracker:
    """The tracker over the default location (:func:`default_location`)."""
    return open_tracker()


def clear(tracker: KeepingTracker) -> tuple[list[RunInfo], list[Finding]]:
    """Close the runs of processes that are gone, and remove what these left on this machine: see :func:`leftovers`."""
    return reap(tracker), [mended(finding, do) for finding, do in leftovers()]


def bring_in(location: str | Path | None = None, *, moved: bool = False) -> list[Uploaded]:
    """Bring into a store what was kept for it on this machine; see :func:`trtops.tracking.upload.upload`."""
    tracker = open_tracker(location)
    return upload(tracker.inner, tracker.outbox, moved=moved)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m trtops.tracking.store``: one of the verbs above, said in a line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trtops.tracking.store", description="Keep a store of runs usable.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, does in (
        ("relocate", "rewrite the artifact addresses of a store that was moved"),
        ("reap", "close the runs of processes that are gone, and remove what these left on this machine"),
        ("check", "find what is wrong with the store: runs without files, files without runs, what the dead left"),
        ("upgrade", "bring an older store to the installed MLflow's schema, after a backup"),
        ("upload", "bring in the runs that were kept on this machine while the store could not take them"),
        ("ui", "show the store in MLflow's UI"),
    ):
        command = verbs.add_parser(verb, help=does)
        command.add_argument("--root", help="the store's folder (default: TRTOPS_HOME or ./mlruns)")
        if verb == "relocate":
            command.add_argument(
                "--from", dest="former", type=Path, help="where the store was, if the store does not say"
            )
        if verb == "upload":
            command.add_argument(
                "--moved",
                action="store_true",
                help="also runs that were meant for another address, where it was before",
            )
        if verb == "check":
            command.add_argument("--mend", action="store_true", help="mend what is safe")
            command.add_argument("--artifacts", type=Path, help="of a server: the folder that it keeps its files in")
        if verb == "ui":
            command.add_argument("--port", type=int, default=5000)
    given = parser.parse_args(arguments)
    try:
        if given.verb == "relocate":
            print(f"{relocate(given.root, former=given.former)} addresses rewritten.")
        elif given.verb == "upgrade":
            backup = upgrade(given.root)
            print(f"Upgraded; the backup is {backup}." if backup else "Nothing to upgrade.")
        elif given.verb == "upload":
            return _say_uploaded(bring_in(given.root, moved=given.moved))
        elif given.verb == "ui":
            serve(given.root, port=given.port)
        elif given.verb == "check":
            found = check_store(existing_tracker(given.root), mend=given.mend, artifacts=given.artifacts)
            print(found.text())
            return 0 if found.sound else 1
        else:
            closed, left = clear(existing_tracker(given.root))
            lines = [f"{info.id} {info.status} {info.name}" for info in closed] + [finding.text() for finding in left]
            print("\n".join([f"{len(closed)} runs closed.", *lines]))
    except errors.TrtopsError as exc:
        print(exc, file=sys.stderr)
        return 3
    return 0


def _say_uploaded(found: Sequence[Uploaded]) -> int:
    """Say what was brought in; 1 if something was left."""
    left = [each for each in found if each.outcome == "left"]
    print(f"{len(found) - len(left)} runs brought in, {len(left)} left.")
    for each in found:
        print(f"{each.run_id or '-'} {each.name}" if each.outcome != "left" else f"Left in {each.folder}: {each.why}")
    return 1 if left else 0


if __name__ == "__main__":
    # As the module that others import: running this file as __main__ would make a second copy of everything in it.
    from trtops.tracking import store

    sys.exit(store.main())
