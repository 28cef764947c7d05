"""The common part of all runs: checks, encodings, the manifest written last, and a single end.

A tracker's run implements the abstract methods of :class:`RunWriter`, and its stored run those of :class:`RunReader`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from trtops import errors, signing
from trtops.masking import masked, masked_values
from trtops.processes import temporary_prefix
from trtops.record import JSONValue, Record, canonical_json, sha256, sha256_file, to_jsonable
from trtops.tracking import owner, schema
from trtops.tracking.base import ArtifactEntry, Dropped, Manifest, MetricName, RunInfo, RunStatus, Verdict, incomplete
from trtops.tracking.disk_space import check_space
from trtops.tracking.ids import new_local_id
from trtops.tracking.schema import Artifact, Kind, Tag

logger = logging.getLogger(__name__)

_BLOCK = 1 << 18
_SIGNED = (Artifact.SPEC, Artifact.ENVIRONMENT, Artifact.MATERIALS)
_REWRITTEN = (Artifact.NAMES, Artifact.SIGNATURE)


class RunWriter(ABC):
    """A :class:`trtops.tracking.base.Run` over a few methods that a store implements."""

    def __init__(self, run_id: str, url: str) -> None:
        self.id = run_id
        self.url = url
        self._lock = threading.RLock()
        self._artifacts: dict[str, ArtifactEntry] = {}
        self._names: set[MetricName] = set()
        self._signed_files: dict[str, bytes] = {}
        self._sealed = False
        self._whole = False
        self._ended: RunStatus | None = None

    def reserve(self, size: int) -> None:
        """Check that ``size`` bytes of artifacts can be written."""
        for folder in self._folders():
            check_space(folder, size)

    def log_params(self, params: Mapping[str, object]) -> None:
        """Log options; values are stored as text, nested ones as JSON."""
        self._must_be_open()
        texts = masked_values({name: schema.text(value) for name, value in params.items()})
        for name, value in texts.items():
            schema.check_value(f"Param {name!r}", value)
        self._put_params(texts)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        self._must_be_open()
        texts = masked_values(tags)
        for name, value in texts.items():
            schema.check_value(f"Tag {name!r}", value)
        self._put_tags(texts)

    def log_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        """Log numbers, in one batch; NaN and infinities are kept."""
        self._must_be_open()
        numbers = {tuple(name): schema.number(name, value) for name, value in metrics.items()}
        for name in numbers:
            schema.metric_key(name)
        with self._lock:
            self._put_metrics(numbers)
            self._names.update(numbers)

    def log_file(self, source: str | Path, path: str) -> None:
        """Copy a file into the run as artifact ``path``."""
        source = Path(source)
        if not source.is_file():
            found = "a folder" if source.is_dir() else "nothing"
            raise errors.LogError(f"Artifact {path!r}: expected a file at {source}, found {found}.")
        self._log_artifact(source, path)

    def log_bytes(self, data: bytes, path: str) -> None:
        """Write bytes as artifact ``path``."""
        self._log_artifact(data, path)

    def log_text(self, text: str, path: str) -> None:
        r"""Write text, in UTF-8, as artifact ``path``; a lone surrogate is written as ``\udc80``, which JSON allows too."""
        self._log_artifact(masked(text).encode("utf-8", "backslashreplace"), path)

    def log_json(self, value: Record | JSONValue, path: str) -> None:
        """Write a record or JSON value as artifact ``path``."""
        self.log_text(json_text(value), path)

    def finish(self, verdict: Verdict | None = None) -> None:
        """Write the verdict, then the manifest, and end the run; no effect if it has ended."""
        with self._lock:
            if self._ended:
                return
            if names := schema.metric_names(sorted(self._names)):
                self.log_json(names, Artifact.NAMES)  # type: ignore[arg-type]
            entries = tuple(entry for _, entry in sorted(self._artifacts.items()))
            manifest = Manifest(artifacts=entries).to_json().encode("utf-8")
            self._sealed = True
            self._put_tags(({} if verdict is None else {Tag.VERDICT: verdict}) | manifest_tags(manifest, entries))
            last = [Artifact.MANIFEST]
            if signing.signs_here():
                self._put_artifact(self._signed(manifest, entries, verdict), Artifact.SIGNATURE)
                last.append(Artifact.SIGNATURE)
            self._sync([entry.path for entry in entries])  # the manifest must not reach the disk before the files
            self._put_artifact(manifest, Artifact.MANIFEST)
            self._sync(last)
            self._whole = True  # only the status is missing now, and fail() must not undo the rest
            self._end("finished")
            self._ended = "finished"

    def fail(self, error: BaseException | str) -> None:
        """End the run as failed, with the error's text and the verdict ``error`` as tags; no effect if it has ended."""
        with self._lock:
            if self._ended:
                return
            self._ended = "finished" if self._whole else "failed"
            try:
                if self._whole:  # only the status that finish() sets was lost
                    self._end("finished")
                else:
                    # A digest of a manifest that could not be written would make the run look finished.
                    unsealed = {Tag.MANIFEST_SHA256: ""} if self._sealed else {}
                    text = error_text(error)
                    note = failure_note(self.id, text)
                    self._put_failure({Tag.ERROR: text, Tag.VERDICT: "error", Tag.NOTE: note, **unsealed})
            except Exception as exc:  # the error that made the run fail is more important
                logger.warning("Run %s could not be marked as %s: %s", self.id, self._ended, exc)

    def continue_from(self, artifacts: Iterable[ArtifactEntry], names: Iterable[MetricName]) -> None:
        """Start with the artifacts and metric names that an earlier process logged to this run."""
        with self._lock:
            self._artifacts = {entry.path: entry for entry in artifacts if entry.path not in _REWRITTEN}
            self._names = set(names)

    def restore(self, info: RunInfo, artifacts: Mapping[str, Path]) -> None:
        """Write all of a run from the spool, and end it with its own status and time.

        Args:
            info: The run.
            artifacts: Its artifacts by path, the manifest last.
        """
        with self._lock:
            self._put_params(info.params)
            self._put_tags(info.tags)
            self._put_metrics(info.metrics)
            for path, file in artifacts.items():
                self._put_artifact(file, path)
            self._end(info.status, at=info.end_time)
            self._ended = info.status

    def logged(self) -> tuple[tuple[ArtifactEntry, ...], frozenset[MetricName]]:
        """The artifacts and the names of the metrics that were logged so far."""
        with self._lock:
            return tuple(self._artifacts.values()), frozenset(self._names)

    def _signed(self, manifest: bytes, entries: Iterable[ArtifactEntry], verdict: Verdict | None) -> bytes:
        """The signature over the manifest, the spec, the inputs, the environment and the verdict."""
        documents = {path: json.loads(data) for path, data in self._signed_files.items()}
        subjects = {Artifact.MANIFEST: sha256(manifest)} | {entry.path: entry.sha256 for entry in entries}
        predicate = {
            "buildDefinition": {
                "buildType": "urn:trtops:build:1",
                "externalParameters": {"spec": documents.get(Artifact.SPEC)},
                "internalParameters": {"environment": documents.get(Artifact.ENVIRONMENT)},
                "resolvedDependencies": _build_materials(
                    documents.get(Artifact.SPEC), documents.get(Artifact.MATERIALS)
                ),
            },
            "runDetails": {
                "builder": {"id": f"urn:trtops:host:{owner.current().host}"},
                "metadata": {"invocationId": self.id},
            },
            "verdict": verdict,
        }
        return signing.sign(signing.statement(subjects, predicate))

    def _put_failure(self, tags: Mapping[str, str]) -> None:
        self._put_tags(tags)
        self._end("failed")

    def _sync(self, paths: Iterable[str]) -> None:  # noqa: B027 - only a local store has a disk
        """Wait until the disk holds these artifacts, if they are on a disk of this machine."""

    def _folders(self) -> list[Path]:
        """Folders of this machine that artifacts are written to."""
        return []

    def _must_be_open(self) -> None:
        if self._ended:
            raise errors.LogError(
                f"Run {self.id} has ended ({self._ended}); nothing can be logged to it. Start another."
            )

    def _log_artifact(self, source: Path | bytes, path: str) -> None:
        self._must_be_open()
        check_path(path)
        if path in (Artifact.MANIFEST, Artifact.SIGNATURE):
            raise errors.LogError(f"Artifact path {path!r} is the manifest's, which finish() writes. Choose another.")
        with self._lock:
            for other in self._artifacts:
                if other.startswith(f"{path}/") or path.startswith(f"{other}/"):
                    raise errors.LogError(
                        f"Artifact path {path!r} conflicts with {other!r}: one is a folder in the other. Choose another."
                    )
        entry = self._put_artifact(source, path)
        with self._lock:
            self._artifacts[path] = entry
            if path in _SIGNED and isinstance(source, bytes):
                self._signed_files[path] = source

    @abstractmethod
    def _put_params(self, params: Mapping[str, str]) -> None:
        """Store params; all or none. Raises LogError if one has another value already."""

    @abstractmethod
    def _put_tags(self, tags: Mapping[str, str]) -> None:
        """Store tags, replacing earlier values."""

    @abstractmethod
    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        """Store metrics, replacing earlier values. One call at a time."""

    @abstractmethod
    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Store an artifact, whole or not at all, replacing an earlier one."""

    @abstractmethod
    def _end(self, status: RunStatus, at: float | None = None) -> None:
        """Store the final status and the time, in seconds since the epoch; now unless given."""


class RunReader(ABC):
    """A :class:`trtops.tracking.base.StoredRun` over one method that a store implements."""

    def __init__(self, info: RunInfo, manifest: Manifest) -> None:
        self.info = info
        self.manifest = manifest
        self._entries = {entry.path: entry for entry in manifest.artifacts}
        self._checked: dict[str, tuple[Path, int, int]] = {}

    def read_bytes(self, path: str) -> bytes:
        """The content of one artifact, checked against the manifest."""
        entry = self._entry(path)
        file = self._file(entry)
        if (size := file.stat().st_size) != entry.size:  # before it is read: it may be of any size
            raise self._mismatch(entry, size)
        data = file.read_bytes()
        if len(data) != entry.size or sha256(data) != entry.sha256:
            raise self._mismatch(entry, len(data))
        return data

    def local_path(self, path: str) -> Path:
        """A local file with the artifact's content, checked against the manifest; for reading only."""
        entry = self._entry(path)
        file = self._file(entry)
        # Hashed once per state of the file: engines are large and read repeatedly.
        stat = file.stat()
        state = (file, stat.st_size, stat.st_mtime_ns)
        if self._checked.get(path) != state:
            if stat.st_size != entry.size or sha256_file(file) != entry.sha256:
                raise self._mismatch(entry, stat.st_size)
            self._checked[path] = state
        return file

    def _entry(self, path: str) -> ArtifactEntry:
        entry = self._entries.get(path)
        if (gone := next((each for each in self.manifest.dropped if each.artifact.path == path), None)) is not None:
            raise incomplete(self.info.id, f"{path!r} was removed to free space ({gone.why})")
        if entry is None:
            raise incomplete(
                self.info.id, f"it has no artifact {path!r}. {errors.near(path, self._entries)}".rstrip(". ")
            )
        return entry

    def _file(self, entry: ArtifactEntry) -> Path:
        file = self._fetch(entry)
        if file is None:
            raise incomplete(self.info.id, f"its artifact {entry.path!r} is missing")
        return file

    def _mismatch(self, entry: ArtifactEntry, size: int) -> errors.IncompleteRunError:
        return incomplete(
            self.info.id,
            f"{entry.path!r} has {size} bytes and other content than its manifest says "
            f"({entry.size} bytes, SHA-256 {entry.sha256[:12]})",
        )

    @abstractmethod
    def unlisted(self, path: str) -> bytes | None:
        """A file that the manifest does not name; None if there is none."""

    @abstractmethod
    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        """A local file that should have the artifact's content, or None."""


class Scratch:
    """A temporary folder, made on first use and removed by the process that made it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._pid = 0

    def folder(self) -> Path:
        """The folder. It is removed with this object or at the end of the process; a forked child gets its own."""
        with self._lock:
            if self._folder is None or self._pid != os.getpid():
                self._folder, self._pid = Path(tempfile.mkdtemp(prefix=temporary_prefix("fetched"))), os.getpid()
                weakref.finalize(self, _remove_folder, self._folder, self._pid)
            return self._folder


def _remove_folder(folder: Path, pid: int) -> None:
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def read_manifest(run_id: str, data: bytes | None) -> Manifest:
    """A manifest from its bytes; None for a missing one.

    Raises:
        IncompleteRunError: If it is missing, damaged, or names a path outside the run.
    """
    if data is None:
        raise incomplete(run_id, f"it has no {Artifact.MANIFEST}")
    try:
        manifest = Manifest.from_json(data)
        for entry in manifest.artifacts:
            check_path(entry.path)
            if re.fullmatch("[0-9a-f]{64}", entry.sha256) is None or entry.size < 0:
                raise errors.FormatError(f"{entry.path!r} has no SHA-256 or no size")
    except (errors.FormatError, errors.LogError) as exc:
        raise incomplete(run_id, f"its {Artifact.MANIFEST} is damaged ({exc})") from None
    return manifest


def manifest_tags(manifest: bytes, entries: Iterable[ArtifactEntry]) -> dict[str, str]:
    """Tags with the digests of the manifest and of every artifact; the latter only if they fit."""
    digests = canonical_json({entry.path: entry.sha256 for entry in entries})
    tags = {Tag.MANIFEST_SHA256: sha256(manifest)}
    return tags | ({Tag.DIGESTS: digests} if len(digests) <= schema.MAX_TEXT else {})


def without_dropped(manifest: Manifest, paths: Collection[str], why: str) -> Manifest:
    """The manifest after artifacts were dropped now, for this reason."""
    gone = tuple(
        Dropped(artifact=entry, at=time.time(), why=masked(why)) for entry in manifest.artifacts if entry.path in paths
    )
    return Manifest(
        artifacts=tuple(entry for entry in manifest.artifacts if entry.path not in paths),
        dropped=tuple(sorted((*manifest.dropped, *gone), key=lambda each: each.artifact.path)),
    )


def _build_materials(spec: Any, materials: Any) -> list[dict[str, Any]]:
    """The inputs of a build, for the signed statement."""
    named = {"model": (spec or {}).get("model_sha256")}
    named |= {each["name"]: each["sha256"] for each in (materials or {}).get("given", ())}
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in named.items() if digest]


def starting_tags(kind: Kind, tags: Mapping[str, str] | None) -> dict[str, str]:
    """The first tags of every run, with those of the caller.

    Raises:
        ConfigError: If the kind is unknown, or the signing key cannot be read.
    """
    signing.check_key()
    if kind not in schema.KINDS:
        raise errors.ConfigError(f"Unknown kind of run {kind!r}. {errors.near(kind, schema.KINDS)}")
    return {
        Tag.KIND: kind,
        Tag.SCHEMA: str(schema.SCHEMA_VERSION),
        Tag.HOST: owner.current().host,
        **owner.tags_of_owner(),
        Tag.LOCAL_ID: new_local_id(),
        **masked_values(tags or {}),
    }


def check_reopening(info: RunInfo, *, whole: bool) -> None:
    """Refuse to resume a run that is complete, or that its process may still be writing.

    Raises:
        LogError: If it is one of these.
    """
    if whole or info.status == "finished":
        raise errors.LogError(f"Run {info.id} is complete; nothing can be logged to it. Start another.")
    if info.status == "running" and not owner.is_abandoned(info):
        raise errors.LogError(
            f"{owner.describe_owner(info)} Wait for its end, or close the run: trtops runs close {info.id} --force"
        )


def checked_names(experiment: str, name: str) -> tuple[str, str]:
    """Names of an experiment and of a run, with secrets masked.

    Raises:
        ConfigError: If one is empty or too long.
    """
    for what, text, limit in (("experiment", experiment, 500), ("run", name, 250)):
        if not text or len(text) > limit:
            raise errors.ConfigError(
                f"The {what}'s name has {len(text)} characters; expected 1 to {limit}: {text[:60]!r}."
            )
    return masked(experiment), masked(name)


def check_path(path: str) -> None:
    """Refuse artifact paths that leave the run, or that a store would change.

    Raises:
        LogError: If the path is not relative and normal, or has a reserved name in it.
    """
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


TEMPORARY = ".artifact.uploading."
"""Prefix of files that are being written; MLflow uses the same and leaves them out of its listings."""


def write_artifact(source: Path | bytes, target: Path, path: str) -> ArtifactEntry:
    """Copy a file, or write bytes, so that the target appears whole or not at all, and hash the content.

    Args:
        source: The file or bytes to write.
        target: The new file; its folders are made.
        path: The artifact's path, for the entry.

    Raises:
        LogError: If it could not be written, for example on a full disk; nothing is left behind.
    """
    temporary = target.parent / f"{TEMPORARY}{os.getpid()}.{threading.get_ident()}.{os.urandom(4).hex()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            entry = _copy_and_hash(source, temporary, path)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        kind = errors.NoRoomError if full else errors.LogError
        raise kind(f"Artifact {path!r} could not be written to {target.parent}: {exc}.") from exc
    return entry


def _copy_and_hash(source: Path | bytes, target: Path, path: str) -> ArtifactEntry:
    if isinstance(source, (bytes, bytearray, memoryview)):
        target.write_bytes(source)
        return ArtifactEntry(path=path, size=len(source), sha256=sha256(source))
    digest, size = hashlib.sha256(), 0
    block = memoryview(bytearray(_BLOCK))
    with open(source, "rb", buffering=0) as reader, open(target, "xb") as writer:
        while count := reader.readinto(block):
            digest.update(block[:count])
            writer.write(block[:count])
            size += count
    return ArtifactEntry(path=path, size=size, sha256=digest.hexdigest())


def failure_note(run_id: str, error: str) -> str:
    """The description of a run that did not finish: the error, and what to do next."""
    shown = error.replace("```", "~~~")[: schema.MAX_TAG // 2]
    lines = ("**error** · did not finish", "", "```text", shown, "```", "", "**Next**", "", "```sh")
    return "\n".join([*lines, f"trtops inspect run {run_id}  # everything in the store about it", "```"])


def json_text(value: Record | JSONValue) -> str:
    """A record or JSON value as the text of a JSON artifact."""
    if isinstance(value, Record):
        return value.to_json()
    return json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)


def error_text(error: BaseException | str) -> str:
    """An error as a text short enough for a tag; the middle of a very long one is left out."""
    text = masked(error if isinstance(error, str) else f"{type(error).__name__}: {error}")
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > schema.MAX_TAG:
        half = schema.MAX_TAG // 2 - 40
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
    return text
