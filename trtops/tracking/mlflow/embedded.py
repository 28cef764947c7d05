"""An embedded store that can be used: made under a lock, of the installed MLflow's version, and where its addresses say.

MLflow makes a database wherever it finds none, without a lock, upgrades an old one without asking, and writes absolute
artifact addresses into it. So the database is made here under a lock and appears whole, is checked before MLflow opens it,
and a folder that was moved is noticed. Everything here is plain ``sqlite3``; making and upgrading call
:mod:`trtops.tracking.mlflow.installed`.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trtops import errors
from trtops.locks import locked
from trtops.processes import temporary_prefix
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow.installed import create_database, known_revisions, release, server_command, upgrade_database

_LOCK = ".init.lock"

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


def ensure_store(location: str | Path | Store | None = None) -> Store:
    """An embedded store that is there, of the installed MLflow's version, and where its addresses say.

    Any number of processes may call this at once for a store that does not exist yet: one makes it, all get it.

    Raises:
        StoreVersionError: If another MLflow release wrote it. It has not been touched.
        StoreMovedError: If its folder was moved or copied.
        StoreError: If it is no store or cannot be made, or the location is a server.
    """
    store = location if isinstance(location, Store) else _resolve_embedded(location)
    if not store.database.exists():
        _create_store(store)
    check_version(store)
    check_place(store)
    if is_writable(store):
        store.keep_reserve()
    return store


def is_writable(store: Store) -> bool:
    """Whether this user can write to a store: it may be another's, or on a disk that is mounted for reading."""
    return os.access(store.root, os.W_OK) and os.access(store.database, os.W_OK)


def readable_database(store: Store) -> Path:
    """The database to read: the store's own, or a copy where that cannot be written, since SQLite must write to read it."""
    if is_writable(store) or not store.database.exists():
        return store.database
    beside = (store.database, store.database.with_name(f"{store.database.name}-wal"))
    state = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in beside if path.exists())
    with _copying:
        return _copy_of(state)


_copying = threading.Lock()


@functools.lru_cache(maxsize=4)
def _copy_of(files: tuple[tuple[Path, int, int], ...]) -> Path:
    """A copy of a database that lasts as long as this process; its log has what is not in it yet."""
    folder = Path(tempfile.mkdtemp(prefix=temporary_prefix("readonly")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file, _, _ in files:
        shutil.copyfile(file, folder / file.name)
    return folder / files[0][0].name


def read_only(store: Store) -> str:
    """What is said of a store that this user cannot write to."""
    return (
        f"Store {store.root} cannot be written: it is read-only here. A folder that several people write to needs to be "
        "writable for all of them, with what lies in it; better, serve it: trtops store ui"
    )


def _resolve_embedded(location: str | Path | None) -> Store:
    where = resolve(location)
    if isinstance(where, Store):
        return where
    raise errors.StoreError(
        f"{where} is a server; expected an embedded store's folder. Do this on the server's machine."
    )


def _create_store(store: Store) -> None:
    try:
        with locked(store.root / _LOCK):
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
def open_database(store: Store, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """The store's SQLite file, opened without MLflow; never created."""
    mode = "rw" if write else "ro"
    try:
        place = store.database if write else readable_database(store)
        with closing(sqlite3.connect(f"{place.as_uri()}?mode={mode}", uri=True, timeout=20)) as database:
            yield database
    except OSError as exc:
        raise errors.StoreError(f"{store.database} cannot be read: {exc.strerror}.") from exc
    except (
        sqlite3.Error,
        UnicodeDecodeError,
    ) as exc:  # SQLite's message may name what is damaged, which is no text then
        if write and store.database.exists() and not is_writable(store):
            raise errors.NoRoomError(read_only(store)) from exc
        raise errors.StoreError(f"{store.database} cannot be used as an MLflow database: {exc}.") from exc


def schema_revision(store: Store) -> str:
    """The revision of MLflow's database schema that a store has, read without MLflow.

    Raises:
        StoreError: If it is no MLflow database.
    """
    with open_database(store) as database:
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
    found, (head, *older) = schema_revision(store), known_revisions()
    if found == head:
        return
    start = f"Store {store.root} has MLflow schema {found}; the installed MLflow {release()} has {head}."
    if found in older:
        raise errors.StoreVersionError(
            f"{start} It is older: upgrade it, with a backup, by: {_store_command('upgrade', store)}"
        )
    raise errors.StoreVersionError(
        f"{start} A newer MLflow wrote it, and nothing was changed. Install that release, or go back to the "
        f"{store.database.name}.backup-* beside it, or set TRTOPS_HOME to another folder."
    )


def former_root(store: Store) -> Path | None:
    """The folder that the addresses in a store were made for, or None if the store was not made by trtops.

    MLflow's default experiment, which every database has, was put under the first root.
    """
    with open_database(store) as database:
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
        f"Make them point here by: {_store_command('relocate', store)}"
    )


def _store_command(verb: str, store: Store) -> str:
    return f"python -m trtops.tracking.store {verb} --root {shlex.quote(str(store.root))}"


def relocate(location: str | Path | None = None, *, former: Path | None = None) -> int:
    """Rewrite the addresses in a store whose folder was moved or copied. All are rewritten or none.

    Args:
        location: Where the store is now.
        former: Where it was; found in the store unless given.

    Returns:
        How many addresses were rewritten; 0 if the store is where they say.

    Raises:
        StoreError: If there is no store, or it does not say where it was.
    """
    store = _resolve_embedded(location)
    former = former or former_root(store)
    if former is None:
        raise errors.StoreError(f"Store {store.root} does not say where it was. Give it: --from <the folder it was in>")
    if former == store.root:
        return 0
    prefixes = ((str(former), str(store.root)), (former.as_uri(), store.root.as_uri()))
    with locked(store.root / _LOCK), open_database(store, write=True) as database, database:
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
    store = _resolve_embedded(location)
    with locked(store.root / _LOCK):
        found, (head, *older) = schema_revision(store), known_revisions()
        if found == head:
            return None
        if found not in older:
            check_version(store)
        backup = store.root / f"{store.database.name}.backup-{found}-{time.strftime('%Y%m%dT%H%M%S')}"
        _copy_database(store.database, backup)
        try:
            upgrade_database(store.database)
        except Exception as exc:  # of any kind: the store must not stay half upgraded
            _copy_database(backup, store.database)
            raise errors.StoreError(f"Store {store.root} could not be upgraded and is as it was: {exc}") from exc
    return backup


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database's content, in one transaction, also from or into one that is open."""
    with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)


def serve(location: str | Path | None = None, *, port: int = 5000) -> None:
    """Show an embedded store in MLflow's UI, and serve it to this machine, in place of the calling process.

    Raises:
        StoreError: If the store cannot be used as it is.
    """
    store = ensure_store(_resolve_embedded(location))
    command, environment = server_command(store, port)
    print(
        f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning shows {store.root}; Ctrl+C ends it.",
        flush=True,
    )
    # The server imports modules from its working folder, so it has an empty one; `trtops store reap` removes it.
    os.chdir(tempfile.mkdtemp(prefix=temporary_prefix("server")))
    os.execve(command[0], command, environment)
