"""The contract of the tracking store: a tracker keeps runs, and a run keeps what one piece of work did.

Ops write to a :class:`Run` and read a :class:`StoredRun`; neither they nor this module know MLflow. The implementations pass
one test suite (``tests/contracts/tracker.py``): :mod:`trtops.tracking.memory` for tests, :mod:`trtops.tracking.mlflow` over a
local store and over a server, and :mod:`trtops.tracking.offline` in front of either.

Rules for every implementation:

* Calls are safe from any thread and process; nothing depends on a "current" run.
* Logging the same thing twice changes nothing. A param cannot change its value; a tag or metric can.
* Metric names are given as parts, ``("error", "gpu_0/softmax:1", "max_abs")``, of any text
  (:mod:`trtops.tracking.schema`).
* An artifact appears whole or not at all. The manifest, which names every artifact with its size and SHA-256, is
  written last, by :meth:`Run.finish`. A run without a manifest is incomplete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from trtops import errors
from trtops.record import JSONValue, Record
from trtops.tracking.schema import KINDS, Artifact, Kind, Tag
from trtops.tracking.schema import MetricName as MetricName
from trtops.verdict import VERDICTS
from trtops.verdict import Verdict as Verdict

RunStatus: TypeAlias = Literal["running", "finished", "failed", "killed"]


@dataclass(frozen=True, kw_only=True)
class ArtifactEntry(Record):
    """One artifact in a manifest.

    Attributes:
        path: Its path inside the run, with ``/`` between parts.
        size: Bytes.
        sha256: SHA-256 of its content.
    """

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Dropped(Record):
    """An artifact that was removed after its run had finished, to free space.

    Attributes:
        artifact: The artifact.
        at: When it was removed, in seconds since the epoch.
        why: The rule that removed it.
    """

    artifact: ArtifactEntry
    at: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """Every artifact of a finished run.

    Attributes:
        artifacts: Ordered by path, without the manifest itself.
        dropped: Artifacts that were removed later, ordered likewise.
    """

    artifacts: tuple[ArtifactEntry, ...]
    dropped: tuple[Dropped, ...] = ()

    def to_dict(self) -> dict[str, JSONValue]:
        """The manifest as JSON values; without ``dropped`` while it is empty, since signatures cover the original."""
        values = super().to_dict()
        if not self.dropped:
            del values["dropped"]
        return values

    def original(self) -> Manifest:
        """The manifest as it was when the run finished."""
        entries = (*self.artifacts, *(each.artifact for each in self.dropped))
        return Manifest(artifacts=tuple(sorted(entries, key=lambda entry: entry.path)))

    def __contains__(self, path: object) -> bool:
        """True if there is an artifact with this path."""
        return any(entry.path == path for entry in self.artifacts)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run without its artifacts, as searches return it.

    Attributes:
        id: The run's id.
        experiment: Name of its experiment.
        name: Its own name.
        parent: Id of its parent run, or None.
        status: How it ended, or ``running``.
        start_time: Seconds since the epoch.
        end_time: Likewise; None while it runs.
        tags: Its tags.
        params: Its params, as text.
        metrics: Its metrics, by decoded names.
        url: Address of its page, or an empty string.
    """

    id: str
    experiment: str
    name: str
    parent: str | None
    status: RunStatus
    start_time: float
    end_time: float | None
    tags: Mapping[str, str] = field(repr=False)
    params: Mapping[str, str] = field(repr=False)
    metrics: Mapping[MetricName, float] = field(repr=False)
    url: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if one was reached."""
        return next((verdict for verdict in VERDICTS if verdict == self.tags.get(Tag.VERDICT)), None)

    @property
    def kind(self) -> Kind | None:
        """The kind of work; None if trtops did not make the run."""
        return next((kind for kind in KINDS if kind == self.tags.get(Tag.KIND)), None)


class Run(Protocol):
    """A run being written. Get one from :func:`tracked`."""

    id: str
    url: str

    def reserve(self, size: int) -> None:
        """Check, before artifacts are made, that ``size`` bytes of them can be written, as far as that can be known.

        Raises:
            NoRoomError: If they cannot.
        """
        ...

    def log_params(self, params: Mapping[str, object]) -> None:
        """Log options; values are stored as text, nested ones as JSON.

        Raises:
            LogError: If a param has another value already.
        """
        ...

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        ...

    def log_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        """Log numbers, in one batch; NaN and infinities are kept.

        Raises:
            LogError: If a value is not a number, or a name has no parts.
        """
        ...

    def log_file(self, source: str | Path, path: str) -> None:
        """Copy a file into the run as artifact ``path``, replacing an earlier one.

        Raises:
            LogError: If there is no such file, ``path`` is not a relative path, or the artifact could not be written whole (a
                full disk); the run then does not have it.
        """
        ...

    def log_bytes(self, data: bytes, path: str) -> None:
        """Write bytes as artifact ``path``."""
        ...

    def log_text(self, text: str, path: str) -> None:
        """Write text, in UTF-8, as artifact ``path``."""
        ...

    def log_json(self, value: Record | JSONValue, path: str) -> None:
        """Write a record or JSON value as artifact ``path``."""
        ...

    def logged(self) -> tuple[tuple[ArtifactEntry, ...], frozenset[MetricName]]:
        """The artifacts and the names of the metrics that were logged so far."""
        ...

    def finish(self, verdict: Verdict | None = None) -> None:
        """Write the verdict as a tag and then the manifest, and end the run as finished.

        Nothing can be logged afterwards. A run ends once: finishing or failing it again does nothing.
        """
        ...

    def fail(self, error: BaseException | str) -> None:
        """End the run as failed, without a manifest. Never raises.

        The error's text becomes the tag ``trtops.error``, and the verdict is ``error``.
        """
        ...


class StoredRun(Protocol):
    """A complete run, read back. Every file is checked against the manifest when it is read."""

    info: RunInfo
    manifest: Manifest

    def read_bytes(self, path: str) -> bytes:
        """The content of one artifact.

        Raises:
            IncompleteRunError: If the manifest does not name it, or its size or digest does not match.
        """
        ...

    def local_path(self, path: str) -> Path:
        """A local file with the artifact's content, for reading only. Raises as :meth:`read_bytes`."""
        ...

    def unlisted(self, path: str) -> bytes | None:
        """A file that the manifest does not name, such as its signature; None if there is none. Not checked."""
        ...


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion(Record):
    """One version of a registered model.

    Attributes:
        name: The registered model.
        version: Its number, as text.
        run_id: The run that holds the artifact.
        path: The artifact's path in it.
        tags: The version's own tags.
    """

    name: str
    version: str
    run_id: str
    path: str
    tags: Mapping[str, str] = field(default_factory=dict)


class Tracker(Protocol):
    """Keeps runs in experiments, and a registry of accepted engines.

    A registered model has numbered versions; a version is one artifact of one run. An alias points to one version and can be
    moved to another.

    Attributes:
        lock_folder: Folder of the locks on its runs, shared by all processes that reach them on this machine; None if the
            store has no folder here.
    """

    lock_folder: Path | None

    def start(
        self,
        experiment: str,
        name: str,
        *,
        kind: Kind,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> Run:
        """Begin a run. Prefer :func:`tracked`, which also ends it.

        Args:
            experiment: The experiment's name; made if missing.
            name: The run's name.
            kind: The kind of work (:data:`trtops.tracking.schema.KINDS`).
            tags: Further tags.
            parent: Id of the parent run.

        Raises:
            ConfigError: If the kind is unknown, or a name is empty or too long (500 characters for an experiment's, 250
                for a run's).
            StoreError: If the store cannot be used as it is.
            TrackingUnavailableError: If it does not answer.
        """
        ...

    def whole_id(self, run: str) -> str:
        """The full id of a run given by a user: an id or at least its first four digits, with or without ``run:`` before it.

        No other method accepts a part of an id. A full id is returned without a search.

        Raises:
            RunNotFoundError: If it cannot be an id, or no run's id begins with it; deleted runs do not count.
            ConfigError: If several runs' ids begin with it; the message lists them.
        """
        ...

    def info(self, run_id: str) -> RunInfo:
        """A run's tags, params and metrics, whether it is complete or not.

        Raises:
            RunNotFoundError: If there is no run with this id.
        """
        ...

    def load(self, run_id: str) -> StoredRun:
        """A complete run.

        Raises:
            RunNotFoundError: If there is no run with this id.
            IncompleteRunError: If it has no manifest.
        """
        ...

    def find(
        self,
        experiment: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
        status: RunStatus | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Runs that have all these tags, newest first."""
        ...

    def close(self, run_id: str, why: str) -> RunInfo:
        """End a run whose process can no longer do it; no effect if it has ended.

        A run that has its manifest becomes ``finished``, since only the status was missing. Any other becomes ``killed``,
        with ``why`` as the tag ``trtops.error``. Use it only if the process is known to be gone (:func:`trtops.tracking.check.reap`).

        Raises:
            RunNotFoundError: If there is no run with this id.
        """
        ...

    def reopen(self, run_id: str) -> Run:
        """Resume a run that was interrupted: its process is gone, or it failed.

        Its params, tags, metrics and artifacts stay. It is running again, owned by this process, without error and verdict.

        Raises:
            RunNotFoundError: If there is no run with this id.
            LogError: If it is complete, or its process may still be writing it: a live process, or one of another machine
                (:meth:`close` the run if that machine is gone).
        """
        ...

    def drop(self, run_id: str, paths: Collection[str], why: str) -> Manifest:
        """Remove artifacts of a complete run. The manifest that says so is written first.

        Args:
            run_id: The run.
            paths: Artifacts of it; missing ones are skipped.
            why: The rule that removes them, reported to users who look for them.

        Returns:
            The new manifest.

        Raises:
            RunNotFoundError: If there is no such run.
            IncompleteRunError: If it has no manifest.
        """
        ...

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be complete; None if it has none with that path.

        The content is not checked. Where that matters, keep a digest in a tag, or use a format that has its own.

        Raises:
            RunNotFoundError: If there is no run with this id.
        """
        ...

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, tags: Mapping[str, str] | None = None
    ) -> RegisteredVersion:
        """Add a version and make an alias point to it.

        Args:
            name: The registered model; made if missing.
            run_id: A complete run.
            path: The artifact in it.
            alias: Letters, digits, ``_`` and ``-``.
            tags: Tags of the version.

        Raises:
            ConfigError: If the alias or the name is not allowed.
            IncompleteRunError: If the run is not complete, or has no such artifact.
        """
        ...

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias points to, or None if there is no such model or alias.

        Raises:
            StoreError: If the version does not point into a run.
        """
        ...

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers; empty if there is no such model."""
        ...

    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """Every alias of every registered model with its version; versions that do not point into a run are left out."""
        ...


@contextmanager
def tracked(
    tracker: Tracker,
    experiment: str,
    name: str,
    *,
    kind: Kind,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> Iterator[Run]:
    """A run that always ends: failed, with the message, if the block raises; finished otherwise.

    The block may end the run itself, with a verdict; otherwise it is finished without one.
    """
    run = tracker.start(experiment, name, kind=kind, tags=tags, parent=parent)
    try:
        yield run
        run.finish()
    except BaseException as exc:
        run.fail(exc)
        raise


def ended_if_whole(tracker: Tracker, info: RunInfo) -> RunInfo:
    """The run, closed first if its process was killed between writing the manifest and the status."""
    if info.status != "running" or tracker.peek(info.id, Artifact.MANIFEST) is None:
        return info
    return tracker.close(info.id, "")


class _NoRun:
    """The run of an op that is not tracked: accepts everything and stores nothing."""

    id = ""
    url = ""

    def reserve(self, size: int) -> None: ...
    def log_params(self, params: Mapping[str, object]) -> None: ...
    def set_tags(self, tags: Mapping[str, str]) -> None: ...
    def log_metrics(self, metrics: Mapping[MetricName, float]) -> None: ...
    def log_file(self, source: str | Path, path: str) -> None: ...
    def log_bytes(self, data: bytes, path: str) -> None: ...
    def log_text(self, text: str, path: str) -> None: ...
    def log_json(self, value: Record | JSONValue, path: str) -> None: ...
    def finish(self, verdict: Verdict | None = None) -> None: ...
    def fail(self, error: BaseException | str) -> None: ...

    def logged(self) -> tuple[tuple[ArtifactEntry, ...], frozenset[MetricName]]:
        return (), frozenset()


NO_RUN: Run = _NoRun()


def incomplete(run_id: str, why: str) -> errors.IncompleteRunError:
    """The error for a run that is not complete, with the reason and what to do."""
    return errors.IncompleteRunError(
        f"Run {run_id} is incomplete: {why}. It was interrupted while logging, or its files were changed since. "
        "Use another run, or repeat this one."
    )
