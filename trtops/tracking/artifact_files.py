"""Files of artifacts: their paths in a run, written whole or not at all, and temporary ones."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

from trtops import errors
from trtops.system.processes import temporary_prefix
from trtops.tracking.records import ArtifactEntry

# Prefix of files that are being written; MLflow uses the same and leaves them out of its listings.
TEMPORARY = ".artifact.uploading."


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
