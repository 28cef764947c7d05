"""Where the artifacts of a run are: in the run's folder of an embedded store, or behind a server."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from trtops import errors
from trtops.files import sync_to_disk
from trtops.processes import temporary_prefix
from trtops.record import sha256_file
from trtops.tracking.base import ArtifactEntry
from trtops.tracking.location import Store
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.installed import library
from trtops.tracking.schema import Artifact
from trtops.tracking.writer import TEMPORARY, check_path, write_artifact

_DEEPEST = 64
"""Folders within folders; a server that lists more never comes to an end."""

_LARGEST_JSON = 1 << 28
"""Bytes of a JSON artifact: it is read whole, and far larger than any that is written here."""

_BLOCK = 1 << 20

_LARGEST = 1 << 40
"""Bytes that are taken of an artifact of which nothing says how large it is."""

ARTIFACT_HOSTS = "TRTOPS_ARTIFACT_HOSTS"
"""Environment variable: further hosts, with commas between them, at which a tracking server may say that artifacts are."""


class Files(Protocol):
    """The artifacts of one run.

    Attributes:
        folder: Where on this machine they are, or are put before they are sent.
    """

    folder: Path

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Store an artifact, whole or not at all."""
        ...

    def get(self, entry: ArtifactEntry) -> Path | None:
        """A local file that should hold an artifact, or None if there is none."""
        ...

    def manifest(self) -> bytes | None:
        """The manifest's bytes, or None if there is none."""
        ...

    def peek(self, path: str) -> bytes | None:
        """The bytes that an artifact has now, or None if there is none."""
        ...

    def entries(self) -> list[ArtifactEntry]:
        """Every whole artifact that there is, whatever a manifest says."""
        ...

    def remove(self, path: str) -> None:
        """Remove an artifact; nothing if there is none."""
        ...

    def sync(self, paths: Iterable[str]) -> None:
        """Have the disk hold artifacts for good."""
        ...

    def sweep(self) -> None:
        """Remove what an interrupted writer left behind."""
        ...


def files_of(connection: Connection, run_id: str, uri: str) -> Files:
    """The artifacts of a run, whose place MLflow calls ``uri``.

    Raises:
        StoreError: If they are on the disk of a server, or of a host that nobody named, or the run's id is none.
    """
    check_id(run_id, connection.shown)
    if connection.store is not None and (folder := local_folder(connection.store, uri)) is not None:
        return _LocalFiles(folder)
    address = urllib.parse.urlparse(uri)
    if address.scheme in ("mlflow-artifacts", "http", "https"):
        _check_host(connection, run_id, address.hostname)
    if address.scheme in ("", "file"):
        raise errors.StoreError(
            f"Run {run_id} of {connection.shown} keeps its artifacts at {uri!r}, a path on the server's own disk. "
            "Start the server with --artifacts-destination, and make the experiment through it."
        )
    return _RemoteFiles(connection, run_id, uri)


def check_id(run_id: str, shown: str) -> None:
    """Refuse an id that a store gives for a run and that is none: ids become names of folders.

    Raises:
        StoreError: If it is none.
    """
    if not re.fullmatch("[0-9A-Za-z]{1,64}", run_id):
        raise errors.StoreError(
            f"{shown} has a run with the id {run_id[:100]!r}; expected 32 hexadecimal digits. Do not trust this store."
        )


def _check_host(connection: Connection, run_id: str, host: str | None) -> None:
    """Refuse artifacts at a host that was not asked for: it would be sent the password of the server that names it."""
    own = urllib.parse.urlsplit(connection.location).hostname
    if host not in (None, own, *os.environ.get(ARTIFACT_HOSTS, "").split(",")):
        raise errors.StoreError(
            f"{connection.shown} says that run {run_id} keeps its artifacts at the host {host}, which nobody named. If that "
            f"is right, allow it: {ARTIFACT_HOSTS}={host}"
        )


def local_folder(store: Store, uri: str) -> Path | None:
    """Where on this machine the artifacts are that MLflow's address names; None if they are elsewhere.

    Raises:
        StoreError: If the address leads out of the store.
    """
    address = urllib.parse.urlparse(uri)
    if address.scheme == "mlflow-artifacts":
        # Logged through the server that `trtops.tracking.mlflow.embedded.serve` puts before this store.
        folder = store.artifacts / address.path.lstrip("/")
    elif address.scheme in ("", "file"):
        folder = Path(urllib.parse.unquote(address.path) if address.scheme else uri)
    else:
        return None
    if "\0" in str(folder) or ".." in folder.parts or not folder.resolve().is_relative_to(store.root.resolve()):
        raise errors.StoreError(
            f"{uri!r} in {store.database} leads out of the store, by its path or a link. Restore it from a backup."
        )
    return folder


class _LocalFiles:
    """Artifacts of an embedded store: the run's folder itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        return write_artifact(source, self._inside(path), path)

    def get(self, entry: ArtifactEntry) -> Path | None:
        file = self._inside(entry.path)
        return file if file.is_file() else None

    def manifest(self) -> bytes | None:
        return self.peek(Artifact.MANIFEST)

    def peek(self, path: str) -> bytes | None:
        check_path(path)
        file = self._inside(path)
        if not file.is_file():
            return None
        _check_size(path, file.stat().st_size)
        return file.read_bytes()

    def _inside(self, path: str) -> Path:
        """The file of an artifact, which no link may lead out of the run."""
        file = self.folder / path
        if not file.resolve().is_relative_to(self.folder.resolve()):
            raise errors.StoreError(f"Artifact {path!r} is a link that leads out of {self.folder}. Remove the link.")
        return file

    def entries(self) -> list[ArtifactEntry]:
        found = (file for file in self.folder.rglob("*") if file.is_file() and not file.name.startswith(TEMPORARY))
        files = (self._inside(file.relative_to(self.folder).as_posix()) for file in found)
        return [
            ArtifactEntry(
                path=file.relative_to(self.folder).as_posix(), size=file.stat().st_size, sha256=sha256_file(file)
            )
            for file in files
        ]

    def remove(self, path: str) -> None:
        self._inside(path).unlink(missing_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        files = [self.folder / path for path in paths]
        for place in (*files, *{folder for file in files for folder in (file.parent, self.folder)}):
            with contextlib.suppress(FileNotFoundError):
                sync_to_disk(place)

    def sweep(self) -> None:
        for leftover in self.folder.rglob(f"{TEMPORARY}*"):
            leftover.unlink(missing_ok=True)


class _RemoteFiles:
    """Artifacts of a server, through its client. The server makes each appear whole."""

    def __init__(self, connection: Connection, run_id: str, uri: str) -> None:
        self._connection = connection
        self._client = connection.client
        self._run_id = run_id
        self._uri = uri
        self.folder = Path(tempfile.gettempdir())

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        # The client gives an artifact the name of the file, so the file must have the artifact's.
        name = PurePosixPath(path)
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("artifact")) as folder:
            file = Path(folder) / name.name
            if isinstance(source, Path):
                file.symlink_to(source.resolve())
                entry = ArtifactEntry(path=path, size=file.stat().st_size, sha256=sha256_file(file))
            else:
                entry = write_artifact(source, file, path)
            parent = None if name.parent == PurePosixPath() else str(name.parent)
            self._connection.call(self._client.log_artifact, self._run_id, str(file), parent)
        return entry

    def get(self, entry: ArtifactEntry) -> Path | None:
        return self._download(entry.path, entry.sha256, entry.size)

    def manifest(self) -> bytes | None:
        return self.peek(Artifact.MANIFEST)

    def peek(self, path: str) -> bytes | None:
        check_path(path)
        listed = next((item for item in self._list(path.rpartition("/")[0]) if item.path == path), None)
        if listed is None:
            return None
        _check_size(path, listed.file_size or 0)
        file = self._download(path, self._run_id, listed.file_size, again=True)
        return file.read_bytes() if file else None

    def entries(self) -> list[ArtifactEntry]:
        entries, folders = [], [""]
        while folders:
            for item in self._list(folders.pop()):
                if item.is_dir:
                    folders.append(item.path)
                elif (file := self._download(item.path, self._run_id, item.file_size, again=True)) is not None:
                    size = file.stat().st_size
                    entries.append(ArtifactEntry(path=item.path, size=size, sha256=sha256_file(file)))
        return entries

    def _repository(self) -> Any:
        """MLflow's reader of this run's artifacts. Its client makes one too, and asks for the run anew each time."""
        return library().store.artifact.artifact_repository_registry.get_artifact_repository(
            self._uri, tracking_uri=self._connection.location
        )

    def _list(self, folder: str) -> list[Any]:
        found = list(self._connection.call(lambda: self._repository().list_artifacts(folder or None)))
        for item in found:  # what a server says becomes a path on this machine
            if not _is_path_below(folder, item.path):
                raise errors.StoreError(
                    f"{self._connection.shown} lists {item.path!r} among the artifacts of run {self._run_id} in "
                    f"{folder or 'its root'!r}, which leads out of there. Do not trust this server."
                )
        return found

    def _download(self, path: str, key: str, size: int | None, *, again: bool = False) -> Path | None:
        """Fetch an artifact, whole or not at all, unless one that was fetched under the same key will do."""
        file = self._connection.downloads.folder() / key / path
        if file.is_file() and not again:
            return file
        with tempfile.TemporaryDirectory(dir=self._connection.downloads.folder()) as folder:
            fetched = Path(folder, "fetched")
            try:
                self._connection.call(self._fetch, path, fetched, _LARGEST if size is None else size)
            except (errors.RunNotFoundError, errors.LogError):
                return None
            file.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fetched, file)
        return file

    def remove(self, path: str) -> None:
        check_path(path)
        if any(item.path == path for item in self._list(path.rpartition("/")[0])):
            self._connection.call(self._connection.remove_artifact, self._run_id, path)

    def _fetch(self, path: str, target: Path, limit: int) -> None:
        """Fetch an artifact into a new file; more bytes than there should be are not taken."""
        repository = self._repository()
        if not hasattr(repository, "_host_creds"):  # a cloud's, whose own client gives it
            os.replace(self._client.download_artifacts(self._run_id, path, str(target.parent)), target)
            return
        from mlflow.utils.request_utils import augmented_raise_for_status
        from mlflow.utils.rest_utils import http_request

        # MLflow's own download takes whatever comes, and a whole folder where the server calls the artifact one.
        answer = http_request(repository._host_creds, f"/{path}", "GET", stream=True)  # type: ignore[no-untyped-call]
        with answer, open(target, "wb") as file:
            augmented_raise_for_status(answer)  # type: ignore[no-untyped-call]
            for block in answer.iter_content(_BLOCK):
                if (limit := limit - len(block)) < 0:
                    raise errors.StoreError(
                        f"{self._connection.shown} sends more of {path!r} of run {self._run_id} than it says there is. "
                        "Do not trust this server."
                    )
                file.write(block)

    def sync(self, paths: Iterable[str]) -> None:
        """Nothing: the server's disk is its own."""

    def sweep(self) -> None:
        """Nothing: the server's own uploads are its own."""


def _check_size(path: str, size: int) -> None:
    """Refuse a JSON artifact that is too large to be one."""
    if path.endswith(".json") and size > _LARGEST_JSON:
        raise errors.StoreError(
            f"Artifact {path!r} has {size} bytes; expected {_LARGEST_JSON} at most. It is none of ours."
        )


def _is_path_below(folder: str, path: str) -> bool:
    try:
        check_path(path)
    except errors.LogError:
        return False
    return path.startswith(f"{folder}/" if folder else "") and path.count("/") < _DEEPEST
