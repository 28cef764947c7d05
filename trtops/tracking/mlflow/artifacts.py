"""The artifacts of a run: in the run's folder of an embedded store, or behind a server."""

import contextlib
import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from trtops import errors
from trtops.record import sha256_file
from trtops.system.processes import temporary_prefix
from trtops.tracking.artifact_files import LocalFiles, check_json_size, check_path, write_artifact
from trtops.tracking.base import ArtifactEntry
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.installed import library

# Nested folders: the listing of a server may be endless.
_MAX_DEPTH = 64
# Bytes that are fetched of an artifact of unknown size.
_MAX_BYTES = 1 << 40
# Environment variable: further hosts, separated by commas, at which a tracking server may keep artifacts.
ARTIFACT_HOSTS = "TRTOPS_ARTIFACT_HOSTS"

Files: TypeAlias = "LocalFiles | _RemoteFiles"


def files_of(connection: Connection, run_id: str, uri: str) -> Files:
    """The artifacts of a run with the artifact address ``uri``."""
    check_id(run_id, connection.shown)
    store, address = connection.store, urllib.parse.urlparse(uri)
    if store is not None and (folder := local_folder(store.root, store.artifacts, uri)) is not None:
        return LocalFiles(folder)
    if address.scheme in ("mlflow-artifacts", "http", "https"):
        server_host = urllib.parse.urlsplit(connection.location).hostname
        # Another host would receive the password of the server that names it.
        if address.hostname not in (None, server_host, *os.environ.get(ARTIFACT_HOSTS, "").split(",")):
            raise errors.StoreError(
                f"{connection.shown} keeps the artifacts of run {run_id} at the host {address.hostname}, which is "
                f"not allowed. If that is right, set {ARTIFACT_HOSTS}={address.hostname}"
            )
    if address.scheme in ("", "file"):
        raise errors.StoreError(
            f"Run {run_id} of {connection.shown} keeps its artifacts at {uri!r}, a path on the server's own disk. "
            "Start the server with --artifacts-destination, and make the experiment through it."
        )
    return _RemoteFiles(connection, run_id, uri)


def check_id(run_id: str, shown: str) -> None:
    """Refuse a malformed run id from a store: ids become names of folders."""
    if not re.fullmatch("[0-9A-Za-z]{1,64}", run_id):
        raise errors.StoreError(
            f"{shown} has a run with the id {run_id[:100]!r}; expected 32 hexadecimal digits. Do not trust this store."
        )


def local_folder(root: Path, artifacts: Path, uri: str) -> Path | None:
    """The folder on this machine, below ``root``, for an artifact address; None if it is elsewhere.

    ``artifacts`` is the folder behind addresses of a server, its ``--artifacts-destination``.
    """
    address = urllib.parse.urlparse(uri)
    if address.scheme == "mlflow-artifacts":
        folder = artifacts / address.path.lstrip("/")
    elif address.scheme in ("", "file"):
        folder = Path(urllib.parse.unquote(address.path) if address.scheme else uri)
    else:
        return None
    if "\0" in str(folder) or ".." in folder.parts or not folder.resolve().is_relative_to(root.resolve()):
        raise errors.StoreError(
            f"The address {uri!r} leads out of the store {root}, by its path or a link. Restore it from a backup."
        )
    return folder


class _RemoteFiles:
    """The artifacts of a run on a server. Each appears whole."""

    def __init__(self, connection: Connection, run_id: str, uri: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._uri = uri

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        # The client names an artifact after the file, so the file needs the artifact's name.
        name = PurePosixPath(path)
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("artifact")) as folder:
            file = Path(folder) / name.name
            if isinstance(source, Path):
                file.symlink_to(source.resolve())
                entry = ArtifactEntry(path=path, size=file.stat().st_size, sha256=sha256_file(file))
            else:
                entry = write_artifact(source, file, path)
            parent = None if name.parent == PurePosixPath() else str(name.parent)
            self._connection.call(
                lambda: self._repository().log_artifact(str(file), parent), transferred=lambda: entry.size
            )
        return entry

    adopt = put

    def get(self, entry: ArtifactEntry) -> Path | None:
        # Next to the run's other artifacts: a model needs its data files there.
        file = self._connection.downloads.folder() / f"{self._run_id}.artifacts" / entry.path
        return file if file.is_file() else self._download(entry.path, file, entry.size)

    def peek(self, path: str) -> bytes | None:
        check_path(path)
        listed = next((item for item in self._list(path.rpartition("/")[0]) if item.path == path), None)
        if listed is None:
            return None
        check_json_size(path, listed.file_size or 0)
        file = self._download(path, self._connection.downloads.folder() / self._run_id / path, listed.file_size)
        return file.read_bytes() if file else None

    def paths(self) -> list[str]:
        return [item.path for item in self._items()]

    def entries(self) -> list[ArtifactEntry]:
        entries = []
        for item in self._items():
            target = self._connection.downloads.folder() / self._run_id / item.path
            if (file := self._download(item.path, target, item.file_size)) is not None:
                size = file.stat().st_size
                entries.append(ArtifactEntry(path=item.path, size=size, sha256=sha256_file(file)))
        return entries

    def _items(self) -> Iterator[Any]:
        folders = [""]
        while folders:
            for item in self._list(folders.pop()):
                if item.is_dir:
                    folders.append(item.path)
                else:
                    yield item

    def remove(self, path: str) -> None:
        self._connection.call(lambda: self._repository().delete_artifacts(path))

    def sync(self, paths: Iterable[str]) -> None:
        """The server's disk is its own."""

    def sweep(self) -> None:
        """The server's half-written files are its own."""

    def _repository(self) -> Any:
        # That of MLflow's client would read the run again for each call.
        registry = library().store.artifact.artifact_repository_registry
        return registry.get_artifact_repository(self._uri, tracking_uri=self._connection.location)

    def _list(self, folder: str) -> list[Any]:
        listed = list(self._connection.call(lambda: self._repository().list_artifacts(folder or None)))
        # The server's answer becomes a path on this machine.
        for item in listed:
            below = False
            with contextlib.suppress(errors.LogError):
                check_path(item.path)
                below = item.path.startswith(f"{folder}/" if folder else "") and item.path.count("/") < _MAX_DEPTH
            if not below:
                raise errors.StoreError(
                    f"{self._connection.shown} lists {item.path!r} among the artifacts of run {self._run_id} in "
                    f"{folder or 'its root'!r}, which leads out of there. Do not trust this server."
                )
        return listed

    def _download(self, path: str, file: Path, size: int | None) -> Path | None:
        """Fetch an artifact into a file, whole or not at all; None if there is no such artifact."""
        with tempfile.TemporaryDirectory(dir=self._connection.downloads.folder()) as folder:
            fetched = Path(folder, "fetched")

            def transferred() -> int:
                with contextlib.suppress(FileNotFoundError):  # a client of a cloud storage renames its files
                    return sum(part.stat().st_size for part in Path(folder).rglob("*") if part.is_file())
                return 0

            limit = _MAX_BYTES if size is None else size
            try:
                self._connection.call(self._fetch, path, fetched, limit, transferred=transferred)
            except (errors.RunNotFoundError, errors.LogError):
                return None
            file.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fetched, file)
        return file

    def _fetch(self, path: str, target: Path, limit: int) -> None:
        """Fetch an artifact of at most ``limit`` bytes into a new file."""
        from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

        repository = self._repository()
        if not isinstance(repository, HttpArtifactRepository):
            # A cloud storage has its own client.
            client = self._connection.client
            os.replace(client.download_artifacts(self._run_id, path, str(target.parent)), target)
            return
        # MLflow's own download has no limit, and fetches a whole folder if the server calls the artifact one.
        answer = self._connection.get(repository.artifact_uri, f"/{path}", stream=True)
        with answer, open(target, "wb") as file:
            for block in answer.iter_content(1 << 20):
                if (limit := limit - len(block)) < 0:
                    raise errors.StoreError(
                        f"{self._connection.shown} sends more of {path!r} of run {self._run_id} than its size. "
                        "Do not trust this server."
                    )
                file.write(block)
