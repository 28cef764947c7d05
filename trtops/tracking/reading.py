"""Complete runs read back: every file is checked against the manifest."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path

from trtops import errors
from trtops.record import sha256, sha256_file
from trtops.tracking import schema
from trtops.tracking.artifact_files import check_path
from trtops.tracking.records import ArtifactEntry, Manifest, ReusedBuild, RunDetails, RunInfo, incomplete
from trtops.tracking.schema import Artifact

# Bytes that are read at once, of anything but engines and their timings; check data has 64 MiB at most.
_MAX_READ = 1 << 28


class StoredRun:
    """A complete run, read back. Every file is checked against the manifest when it is read.

    The files of a build that the run reused are read from the run that has them.

    ``fetch`` returns a local file that should have an artifact's content, or None. ``unlisted`` reads a file that the
    manifest does not name, such as its signature, without a check; or returns None. ``load`` reads another run,
    and ``details`` what only an audit reads.
    """

    def __init__(
        self,
        info: RunInfo,
        manifest: Manifest,
        fetch: Callable[[ArtifactEntry], Path | None],
        unlisted: Callable[[str], bytes | None],
        load: Callable[[str], StoredRun],
        details: Callable[[], RunDetails],
    ) -> None:
        self.info = info
        self.details = functools.cache(details)
        self.manifest = manifest
        self.unlisted = unlisted
        self._fetch = fetch
        self._load = load
        self._entries = {entry.path: entry for entry in manifest.artifacts}
        self._checked: dict[str, tuple[Path, int, int]] = {}

    @functools.cached_property
    def holder(self) -> StoredRun:
        """The run with the files of this run's build: this one, or the source of a reused build.

        Raises IncompleteRunError if that run is missing, or has other files than those that were reused.
        """
        if Artifact.REUSED not in self.manifest:
            return self
        # Not by the tag, which anybody can edit: the manifest covers this file.
        reused = ReusedBuild.from_json(self.read_bytes(Artifact.REUSED))
        try:
            holder = self._load(reused.run)
        except errors.RunNotFoundError:
            raise incomplete(self.info.id, f"run {reused.run}, whose engine it reused, is missing") from None
        if holder.build_files() != reused.artifacts:
            raise incomplete(self.info.id, f"run {reused.run}, whose engine it reused, has other files now")
        return holder

    def build_files(self) -> tuple[ArtifactEntry, ...]:
        """The files of a build in this run itself, including deleted ones."""
        entries = self.manifest.original().artifacts
        return tuple(entry for entry in entries if entry.path.startswith(schema.BUILD_FILES))

    def paths(self, prefix: str) -> list[str]:
        """Paths of the build files with a prefix, in this run or in the source of a reused build."""
        return [entry.path for entry in self.holder.manifest.artifacts if entry.path.startswith(prefix)]

    def __contains__(self, path: str) -> bool:
        """True if there is an artifact with this path, in this run or in the source of a reused build."""
        return path in self.manifest or (path.startswith(schema.BUILD_FILES) and path in self.holder.manifest)

    def get(self, path: str) -> bytes | None:
        """The content of one artifact, as :meth:`read_bytes` returns it, or None if it has no such path."""
        return self.read_bytes(path) if path in self else None

    def read_bytes(self, path: str) -> bytes:
        """The content of one artifact.

        Raises IncompleteRunError if the manifest does not name it, or its size or digest does not match.
        """
        entry, file = self._find(path)
        if entry.size > _MAX_READ and not path.startswith((Artifact.ENGINE, Artifact.TIMING_CACHE)):
            raise incomplete(self.info.id, f"{path!r} has {entry.size} bytes; trtops writes at most {_MAX_READ} to it")
        # Before it is read, since a file that was changed may be of any size.
        if (size := file.stat().st_size) != entry.size:
            raise self._mismatch(entry, size)
        data = file.read_bytes()
        if len(data) != entry.size or sha256(data) != entry.sha256:
            raise self._mismatch(entry, len(data))
        return data

    def local_path(self, path: str) -> Path:
        """A local file with the artifact's content, for reading only. Raises as :meth:`read_bytes`."""
        entry, file = self._find(path)
        # Each state of the file is hashed once: engines are large and read repeatedly.
        stat = file.stat()
        state = (file, stat.st_size, stat.st_mtime_ns)
        if self._checked.get(path) != state:
            if stat.st_size != entry.size or sha256_file(file) != entry.sha256:
                raise self._mismatch(entry, stat.st_size)
            self._checked[path] = state
        return file

    def _find(self, path: str) -> tuple[ArtifactEntry, Path]:
        if any(entry.path == path for entry in self.manifest.dropped):
            raise incomplete(self.info.id, f"{path!r} was deleted by `trtops runs prune`")
        if (entry := self._entries.get(path)) is None:
            if path.startswith(schema.BUILD_FILES) and self.holder is not self:
                return self.holder._find(path)
            near = errors.near(path, self._entries)
            raise incomplete(self.info.id, f"it has no artifact {path!r}. {near}".rstrip(". "))
        if (file := self._fetch(entry)) is None:
            raise incomplete(self.info.id, f"its artifact {path!r} is missing")
        return entry, file

    def _mismatch(self, entry: ArtifactEntry, size: int) -> errors.IncompleteRunError:
        return incomplete(
            self.info.id,
            f"{entry.path!r} has {size} bytes and other content than its manifest says "
            f"({entry.size} bytes, SHA-256 {entry.sha256[:12]})",
        )


def read_manifest(run_id: str, data: bytes | None) -> Manifest:
    """A manifest from its bytes. It must not be missing (None), or name a path outside the run."""
    if data is None:
        raise incomplete(run_id, f"it has no {Artifact.MANIFEST}")
    try:
        manifest = Manifest.from_json(data)
        for entry in manifest.original().artifacts:
            check_path(entry.path)
            if re.fullmatch("[0-9a-f]{64}", entry.sha256) is None or entry.size < 0:
                raise errors.FormatError(f"{entry.path!r} has no SHA-256 or no size")
    except (errors.FormatError, errors.LogError) as exc:
        raise incomplete(run_id, f"its {Artifact.MANIFEST} is damaged ({exc})") from None
    return manifest


def stated_end(manifest: bytes | None) -> float | None:
    """The end of a run from its manifest, for a run with a process killed just before the end."""
    with contextlib.suppress(errors.FormatError):
        statement = None if manifest is None else Manifest.from_json(manifest).run
        return None if statement is None else statement.end_time
    return None
