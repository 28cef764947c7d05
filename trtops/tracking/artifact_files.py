"""Files of artifacts: their paths in a run, written whole or not at all, and temporary ones."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

from trtops import errors
from trtops.record import sha256_file
from trtops.system.files import sync_to_disk
from trtops.system.processes import temporary_prefix
from trtops.tracking.records import ArtifactEntry

# Prefix of files that are being written; MLflow uses the same and leaves them out of its listings.
TEMPORARY = ".artifact.uploading."
# Bytes of a JSON artifact; far more than trtops writes.
_MAX_JSON = 1 << 28


def check_path(path: str) -> None:
    """Reject artifact paths leading out of the run, or changed by a store."""
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or part.startswith(TEMPORARY) for part in parts)
        or any(c in path for c in "\\\0")
        or any(len(os.fsencode(part)) > 255 for part in parts)
    ):
        raise errors.LogError(
            f"Artifact path {path[:300]!r} is not allowed: expected names of at most 255 bytes with '/' between them, "
            "such as 'engine/model.plan'."
        )


def write_artifact(source: Path | bytes, target: Path, path: str) -> ArtifactEntry:
    """Copy a file, or write bytes, atomically, and hash the content.

    Raises LogError if it could not be written, for example on a full disk; nothing is left behind.
    """
    temporary = target.parent / f"{TEMPORARY}{os.getpid()}.{threading.get_ident()}.{os.urandom(4).hex()}"
    digest, size = hashlib.sha256(), 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if isinstance(source, Path):
                block = memoryview(bytearray(1 << 18))
                with open(source, "rb", buffering=0) as reader, open(temporary, "xb") as writer:
                    while count := reader.readinto(block):
                        digest.update(block[:count])
                        writer.write(block[:count])
                        size += count
            else:
                temporary.write_bytes(source)
                digest.update(source)
                size = len(source)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        kind = errors.NoRoomError if full else errors.LogError
        raise kind(f"Artifact {path!r} could not be written to {target.parent}: {exc}.") from exc
    return ArtifactEntry(path=path, size=size, sha256=digest.hexdigest())


def check_json_size(path: str, size: int) -> None:
    """Reject a JSON artifact that is too large to be read at once."""
    if path.endswith(".json") and size > _MAX_JSON:
        raise errors.StoreError(
            f"Artifact {path!r} has {size} bytes; expected at most {_MAX_JSON}. trtops did not write it."
        )


class LocalFiles:
    """The artifacts of a run in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._resolved = folder.resolve()

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Store an artifact, whole or not at all."""
        return write_artifact(source, self._inside(path), path)

    def adopt(self, source: Path, path: str) -> None:
        """Store another run's file as an artifact: as a link if the disk has links, else as a copy."""
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.unlink(missing_ok=True)
            os.link(source, target)
        except OSError:
            self.put(source, path)

    def get(self, entry: ArtifactEntry) -> Path | None:
        """The file with an artifact's unverified content, or None."""
        return self.find(entry.path)

    def find(self, path: str) -> Path | None:
        """The file of an artifact, or None."""
        check_path(path)
        file = self._inside(path)
        return file if file.is_file() else None

    def peek(self, path: str) -> bytes | None:
        """The present content of an artifact, or None."""
        if (file := self.find(path)) is None:
            return None
        check_json_size(path, file.stat().st_size)
        return file.read_bytes()

    def _inside(self, path: str) -> Path:
        """The file of an artifact; a link must not lead out of the run."""
        file = self.folder / path
        if not file.resolve().is_relative_to(self._resolved):
            raise errors.StoreError(f"Artifact {path!r} is a link that leads out of {self.folder}. Remove the link.")
        return file

    def paths(self) -> list[str]:
        """The paths of everything but folders and half-written files."""
        return [
            file.relative_to(self.folder).as_posix()
            for file in self.folder.rglob("*")
            if (file.is_symlink() or not file.is_dir()) and not file.name.startswith(TEMPORARY)
        ]

    def entries(self) -> list[ArtifactEntry]:
        """Every whole artifact, with or without a manifest."""
        entries = []
        for path in self.paths():
            if (file := self._inside(path)).is_file():
                entries.append(ArtifactEntry(path=path, size=file.stat().st_size, sha256=sha256_file(file)))
        return entries

    def remove(self, path: str) -> None:
        """Delete an artifact, if it is there."""
        self._inside(path).unlink(missing_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        """Wait until the disk holds artifacts."""
        # A new file is only found after a crash if the disk also holds its folder.
        files = [self.folder / path for path in paths]
        folders = {self.folder, *(file.parent for file in files)} if files else ()
        for target in (*files, *folders):
            with contextlib.suppress(FileNotFoundError):
                sync_to_disk(target)

    def sweep(self) -> None:
        """Remove half-written files."""
        for leftover in self.folder.rglob(f"{TEMPORARY}*"):
            leftover.unlink(missing_ok=True)


class Scratch:
    """A temporary folder, made on first use. A forked child gets its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[int, Path] = {}

    def folder(self) -> Path:
        """The folder; removed with this object or at the end of its process."""
        with self._lock:
            if (pid := os.getpid()) not in self._folders:
                folder = self._folders[pid] = Path(tempfile.mkdtemp(prefix=temporary_prefix("fetched")))
                weakref.finalize(self, _remove_folder, folder, pid)
            return self._folders[pid]


def _remove_folder(folder: Path, pid: int) -> None:
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
