"""Where runs are kept on this machine, and what keeps that place usable.

The embedded store is a folder, ``./mlruns`` unless ``TRTOPS_HOME`` names another::

    mlflow.db         MLflow's SQLite database, in WAL mode (so not on NFS)
    artifacts/        one folder per experiment, one per run in it
    .prefect/         Prefect's own state
    .init.lock        held while the database is made, upgraded or relocated
    .reserve          space given up when the disk is full, so that a run can still be marked as failed

``MLFLOW_TRACKING_URI`` wins over both; a team shares a server through it (``http://...``).

MLflow makes a database wherever it finds none, with no lock, upgrades an old one without asking, and writes absolute
artifact addresses into it. So the database is made here under a lock and appears whole, is looked at before MLflow opens
it, and a folder that was moved is noticed. Everything here is plain ``sqlite3``; making and upgrading call
:mod:`trtops.tracking.mlflow`. The verbs also run as ``python -m trtops.tracking.store relocate|reap|upgrade|ui``.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.record import sha256
from trtops.tracking import owner, schema
from trtops.tracking.base import RunInfo, Tracker

if TYPE_CHECKING:
    from trtops.tracking.mlflow import MlflowTracker

_RESERVE_BYTES = 1 << 18

_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
    ("workspaces", "default_artifact_root"),
)
"""Columns in which MLflow keeps artifact addresses."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """An embedded store: names of its parts. Making one touches nothing.

    Attributes:
        database: Absolute path of the SQLite file.
    """

    database: Path

    @property
    def root(self) -> Path:
        """The folder that holds everything."""
        return self.database.parent

    @property
    def artifacts(self) -> Path:
        """The folder of all artifacts."""
        return self.root / "artifacts"

    @property
    def prefect_home(self) -> Path:
        """The folder of Prefect's own state."""
        return self.root / ".prefect"

    @property
    def uri(self) -> str:
        """The address that MLflow knows the store by."""
        return f"sqlite:///{self.database}"

    def artifacts_of(self, experiment: str) -> Path:
        """The folder of one experiment's artifacts; other experiments have other ones, whatever their names."""
        name = schema.encode(experiment)
        if len(name.encode("utf-8")) > 200:
            head = name.encode("utf-8")[:170].decode("utf-8", "ignore")
            name = f"{head}-cut-{sha256(name.encode('utf-8'))[:16]}-"
        return self.artifacts / name

    @property
    def _reserve(self) -> Path:
        return self.root / ".reserve"

    def keep_reserve(self) -> None:
        """Set some space aside, if it is not and there is any."""
        if not self._reserve.exists():
            with suppress(OSError):
                self._reserve.write_bytes(os.urandom(_RESERVE_BYTES))

    def give_reserve(self) -> None:
        """Give the reserved space back to a full disk."""
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)


def default_location() -> str:
    """Where runs are kept unless somebody says otherwise: ``MLFLOW_TRACKING_URI``, ``TRTOPS_HOME`` or ``mlruns``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("TRTOPS_HOME") or "mlruns"


def default_root() -> Path:
    """The folder, absolute, for what stays on this machine even if the runs go to a server: Prefect's state, the demo's data.

    The embedded store's own folder wherever that is the default location.
    """
    where = resolve()
    return where.root if isinstance(where, Store) else Path(os.environ.get("TRTOPS_HOME") or "mlruns").resolve()


def resolve(location: str | Path | None = None) -> Store | str:
    """What a location means, with relative paths made absolute now.

    Args:
        location: A folder, ``sqlite:///<file>``, or a server's ``http(s)://`` address; None for the default.

    Returns:
        An embedded store, or a server's address.

    Raises:
        StoreError: If it is none of these.
    """
    text = os.fspath(location if location is not None else default_location())
    scheme = "" if isinstance(location, Path) else (re.match(r"([a-zA-Z][\w+.\-]+):", text) or ["", ""])[1].lower()
    if scheme in ("http", "https"):
        return text.rstrip("/")
    if not scheme:
        database = Path(text).resolve() / "mlflow.db"
    elif text.startswith("sqlite:///") and text.rpartition("/")[2] not in ("", ":memory:"):
        database = Path(text[len("sqlite:///") :])
        database = database.parent.resolve() / database.name
    else:
        raise errors.StoreError(
            f"Store {text!r}: expected a folder, sqlite:///<file>, or the http(s) address of an MLflow server. "
            "Put a server in front of any other database: mlflow server --backend-store-uri <uri> --artifacts-destination <where>."
        )
    if set("%?") & set(str(database)):
        raise errors.StoreError(
            f"Store {database.parent}: its path has a '%' or '?', which MLflow's addresses change. Rename it."
        )
    return Store(database=database)


def open_tracker(location: str | Path | None = None) -> MlflowTracker:
    """A tracker over a location (as :func:`resolve` takes it), opened once per process; made first if it is missing.

    Raises:
        StoreError: If the store cannot be used as it is; ``StoreVersionError`` and ``StoreMovedError`` say what to do.
    """
    return _opened(resolve(location))


@functools.cache
def _opened(where: Store | str) -> MlflowTracker:
    from trtops.tracking.mlflow import MlflowTracker  # MLflow takes 2 s to import

    return MlflowTracker(where)


def default_tracker() -> MlflowTracker:
    """The tracker over the default location (:func:`default_location`)."""
    return open_tracker()


def ensure_store(location: str | Path | Store | None = None) -> Store:
    """An embedded store that is there, of the installed MLflow's version, and where its addresses say.

    Any number of processes may call this at once for a store that does not exist yet: one makes it, all get it.

    Raises:
        StoreVersionError: If another MLflow release wrote it. It has not been touched.
        StoreMovedError: If its folder was moved or copied.
        StoreError: If it is no store, cannot be made, or the location is a server.
    """
    store = location if isinstance(location, Store) else _embedded(location)
    if not store.database.exists():
        _create(store)
    check_version(store)
    check_place(store)
    store.keep_reserve()
    return store


def _embedded(location: str | Path | None) -> Store:
    where = resolve(location)
    if isinstance(where, Store):
        return where
    raise errors.StoreError(
        f"{where} is a server; expected an embedded store's folder. Do this on the server's machine."
    )


def _create(store: Store) -> None:
    from trtops.tracking.mlflow import create_database

    try:
        with _locked(store):
            if store.database.exists():
                return
            for leftover in store.root.glob(f".{store.database.name}.*"):
                leftover.unlink()
            building = store.root / f".{store.database.name}.{os.getpid()}"
            create_database(building, store.artifacts)
            with closing(sqlite3.connect(building)) as database:
                database.execute("PRAGMA journal_mode = WAL")
            os.rename(building, store.database)
    except OSError as exc:
        raise errors.StoreError(
            f"Store {store.root} cannot be made: {exc.strerror or exc}. Set TRTOPS_HOME to another folder."
        ) from exc


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    import fcntl  # not on Windows, where there are servers only

    store.root.mkdir(parents=True, exist_ok=True)
    with open(store.root / ".init.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _database(store: Store, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """The store's SQLite file, opened without MLflow; never made."""
    mode = "rw" if write else "ro"
    try:
        with closing(sqlite3.connect(f"{store.database.as_uri()}?mode={mode}", uri=True, timeout=20)) as database:
            yield database
    except sqlite3.Error as exc:
        raise errors.StoreError(f"{store.database} cannot be used as an MLflow database: {exc}.") from exc


def schema_revision(store: Store) -> str:
    """The revision of MLflow's database schema that a store has, read without MLflow.

    Raises:
        StoreError: If it is no MLflow database.
    """
    with _database(store) as database:
        rows = database.execute("SELECT version_num FROM alembic_version").fetchall()
    if len(rows) != 1:
        raise errors.StoreError(
            f"{store.database} has {len(rows)} schema revisions; expected one. Restore it from a backup."
        )
    return str(rows[0][0])


def check_version(store: Store) -> None:
    """Refuse a store that another MLflow release wrote, before MLflow can change it.

    Raises:
        StoreVersionError: If its schema is older or newer than the installed MLflow's.
    """
    from trtops.tracking.mlflow import known_revisions, release

    found, (head, *older) = schema_revision(store), known_revisions()
    if found == head:
        return
    start = f"Store {store.root} has MLflow schema {found}; the installed MLflow {release()} has {head}."
    if found in older:
        raise errors.StoreVersionError(
            f"{start} It is older: upgrade it, with a backup, by: {_command('upgrade', store)}"
        )
    raise errors.StoreVersionError(
        f"{start} A newer MLflow wrote it, and nothing was changed. Install that release, or go back to the "
        f"{store.database.name}.backup-* beside it, or set TRTOPS_HOME to another folder."
    )


def former_root(store: Store) -> Path | None:
    """The folder that the addresses in a store were made for, or None if the store was not made by trtops.

    MLflow's default experiment, which every database has, was put under the first root.
    """
    with _database(store) as database:
        row = database.execute("SELECT artifact_location FROM experiments WHERE experiment_id = 0").fetchone()
    place = Path(row[0] if row else "")
    return place.parents[1] if place.parts[-2:] == ("artifacts", "0") and place.is_absolute() else None


def check_place(store: Store) -> None:
    """Refuse a store that is not where its artifact addresses say.

    Raises:
        StoreMovedError: If its folder was moved or copied.
    """
    former = former_root(store)
    if former is None or former == store.root or (former.exists() and former.samefile(store.root)):
        return
    raise errors.StoreMovedError(
        f"Store {store.root} was moved or copied: its artifact addresses point to {former}. "
        f"Make them point here by: {_command('relocate', store)}"
    )


def _command(verb: str, store: Store) -> str:
    return f"python -m trtops.tracking.store {verb} --root {shlex.quote(str(store.root))}"


def relocate(location: str | Path | None = None, *, former: Path | None = None) -> int:
    """Rewrite the addresses in a store whose folder was moved or copied. All are rewritten or none.

    Args:
        location: Where the store is now.
        former: Where it was; found in the store unless given.

    Returns:
        How many addresses were rewritten; 0 if the store was in its place.

    Raises:
        StoreError: If there is no store, or it does not say where it was.
    """
    store = _embedded(location)
    former = former or former_root(store)
    if former is None:
        raise errors.StoreError(f"Store {store.root} does not say where it was. Say it: --from <the folder it was in>")
    if former == store.root:
        return 0
    prefixes = ((str(former), str(store.root)), (former.as_uri(), store.root.as_uri()))
    with _locked(store), _database(store, write=True) as database, database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return sum(
            database.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
            ).rowcount
            for table, column in _ADDRESSES
            if table in tables
            for old, new in prefixes
        )


def upgrade(location: str | Path | None = None) -> Path | None:
    """Bring an older store to the installed MLflow's schema, after a backup. Nobody else may be using it.

    Returns:
        The backup, a database beside the store's; None if the store had the right version.

    Raises:
        StoreVersionError: If the store is newer than the installed MLflow.
        StoreError: If the upgrade failed; the store is then as it was.
    """
    from trtops.tracking.mlflow import known_revisions, upgrade_database

    store = _embedded(location)
    with _locked(store):
        found, (head, *older) = schema_revision(store), known_revisions()
        if found == head:
            return None
        if found not in older:
            check_version(store)
        backup = store.root / f"{store.database.name}.backup-{found}-{time.strftime('%Y%m%dT%H%M%S')}"
        _copy_database(store.database, backup)
        try:
            upgrade_database(store.database)
        except Exception as exc:  # whatever it was, the store must not stay half upgraded
            _copy_database(backup, store.database)
            raise errors.StoreError(f"Store {store.root} could not be upgraded and is as it was: {exc}") from exc
    return backup


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database's content, in one transaction, also from or into one that is open."""
    with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)


def reap(tracker: Tracker) -> list[RunInfo]:
    """Close the runs whose processes have ended without doing so: killed, crashed, or lost with their machine's power.

    Only processes of this machine can be judged; runs of others are left alone.

    Returns:
        The runs that were closed, as they are now.
    """
    return [
        tracker.close(info.id, "Its process ended without closing the run: it was killed or crashed.")
        for info in tracker.find(status="running")
        if is_abandoned(info)
    ]


def is_abandoned(info: RunInfo) -> bool:
    """Whether a running run's process has certainly ended; one of another machine, or not of ours, never has."""
    own = _owner(info)
    return own is not None and owner.is_gone(own)


def _owner(info: RunInfo) -> owner.Owner | None:
    try:
        return owner.Owner.from_json(info.tags.get(schema.Tag.OWNER, ""))
    except errors.FormatError:
        return None  # not a run of ours


def serve(location: str | Path | None = None, *, port: int = 5000) -> None:
    """Show an embedded store in MLflow's UI, and serve it to this machine, in place of the calling process.

    Raises:
        StoreError: If the store cannot be used as it is.
    """
    from trtops.tracking.mlflow import server_command

    store = ensure_store(_embedded(location))
    command, environment = server_command(store, port)
    print(
        f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning shows {store.root}; Ctrl+C ends it.",
        flush=True,
    )
    os.chdir(store.root)  # the server imports what lies in its working folder
    os.execve(command[0], command, environment)


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
                "--from", dest="former", type=Path, help="where the store was, if it does not say so itself"
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
    # As the module that others import, lest there be two classes of everything in it.
    from trtops.tracking import store

    sys.exit(store.main())
