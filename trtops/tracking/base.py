"""The contract of the memory: a tracker keeps runs, a run keeps what one piece of work did.

Ops write to a :class:`Run` and read :class:`StoredRun`; neither they nor this file know MLflow. Three implementations
pass one test suite (``tests/contracts/tracker.py``): the double in :mod:`trtops.tracking.memory`, and
:mod:`trtops.tracking.mlflow` over a local store and over a server.

Rules that hold for every implementation:

* Calls are safe from any thread and process; nothing depends on a "current" run.
* Logging the same thing twice changes nothing. A param cannot change its value; a tag or metric can.
* Metric names are given as parts, ``("error", "gpu_0/softmax:1", "max_abs")``; any text is allowed in a part, and the
  store encodes it reversibly (:mod:`trtops.tracking.schema`).
* An artifact appears whole or not at all. The manifest, which names every artifact with its size and SHA-256, is
  written last, by :meth:`Run.finish`; a run without one is incomplete, whatever else it holds.
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
    """One artifact, as the manifest lists it.

    Attributes:
        path: Its path inside the run, with ``/`` between parts.
        size: Bytes.
        sha256: Of its content.
    """

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Dropped(Record):
    """An artifact that was removed to make room, after its run had finished.

    Attributes:
        artifact: What it was.
        at: When it was removed, in seconds since the epoch.
        why: The rule that it fell under.
    """

    artifact: ArtifactEntry
    at: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """Every artifact of a finished run.

    Attributes:
        artifacts: Ordered by path; the manifest itself is not among them.
        dropped: What was removed since, likewise ordered.
    """

    artifacts: tuple[ArtifactEntry, ...]
    dropped: tuple[Dropped, ...] = ()

    def to_dict(self) -> dict[str, JSONValue]:
        """The manifest as JSON values, as it ever was while nothing is dropped."""
        values = super().to_dict()
        if not self.dropped:
            del values["dropped"]
        return values

    def original(self) -> Manifest:
        """The manifest as it was when the run finished."""
        entries = (*self.artifacts, *(each.artifact for each in self.dropped))
        return Manifest(artifacts=tuple(sorted(entries, key=lambda entry: entry.path)))

    def __contains__(self, path: object) -> bool:
        """Whether there is an artifact of this path."""
        return any(entry.path == path for entry in self.artifacts)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run as a search returns it: everything but its artifacts.

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
        metrics: Its metrics, decoded names to values; infinities as infinities.
        url: Where a person can look at it, or an empty string.
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
        """What the run is of; None if trtops did not make it."""
        return next((kind for kind in KINDS if kind == self.tags.get(Tag.KIND)), None)


class Run(Protocol):
    """A run being written. Get one from :meth:`Tracker.run`."""

    id: str
    url: str

    def reserve(self, size: int) -> None:
        """Make sure, before they are made, that artifacts of so many bytes can be written, where that can be known.

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
        """Copy a file into the run as artifact ``path``; one of that path is replaced.

        Raises:
            LogError: If there is no such file, ``path`` is not a relative path, or it could not be written whole (a full
                disk); the run then does not have it.
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

        Nothing can be logged after. A run ends once: to finish or fail it again does nothing.
        """
        ...

    def fail(self, error: BaseException | str) -> None:
        """End the run as failed, without a manifest. Never raises.

        The error's text becomes the tag ``trtops.error``, and the verdict is ``error``.
        """
        ...


class StoredRun(Protocol):
    """A whole run, read back: it has a manifest, and every file that is read is checked against it."""

    info: RunInfo
    manifest: Manifest

    def read_bytes(self, path: str) -> bytes:
        """The content of one artifact.

        Raises:
            IncompleteRunError: If the manifest does not name it, or its size or digest does not match.
        """
        ...

    def local_path(self, path: str) -> Path:
        """A local file with the artifact's content, checked; for reading only. Raises as :meth:`read_bytes`."""
        ...

    def unlisted(self, path: str) -> bytes | None:
        """A file beside the manifest that it does not name, such as its signature; None if there is none. Not checked."""
        ...


class Tracker(Protocol):
    """Keeps runs, in experiments.

    Attributes:
        lock_folder: Where locks on its runs lie, for all processes that reach them as this one does; None where that is
            no folder.
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
            kind: What the run is of (:data:`trtops.tracking.schema.KINDS`).
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
        """The id of a run as people give it: an id or its first digits, with or without ``run:`` before it.

        Only this accepts a part of an id. A whole one is returned without asking the store.

        Args:
            run: At least the first four hexadecimal digits of an id.

        Raises:
            RunNotFoundError: If it cannot be one, or no run's id begins with it; deleted runs do not count.
            ConfigError: If several runs' ids begin with it; the message lists them.
        """
        ...

    def info(self, run_id: str) -> RunInfo:
        """What is known of a run, complete or not.

        Raises:
            RunNotFoundError: If there is none with this id.
        """
        ...

    def load(self, run_id: str) -> StoredRun:
        """A whole run.

        Raises:
            RunNotFoundError: If there is none with this id.
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
        """End a run whose own process can no longer do it; nothing if it has ended.

        A run that has its manifest becomes ``finished``, since nothing but that status was missing; any other becomes
        ``killed``, with ``why`` as the tag ``trtops.error``. Use it only on runs whose process is known to be gone (:func:`trtops.tracking.store.reap`).

        Raises:
            RunNotFoundError: If there is none with this id.
        """
        ...

    def reopen(self, run_id: str) -> Run:
        """Resume a run that was interrupted: its process is gone, or it failed.

        What it has logged stays, and all of its artifacts will be in the manifest. The caller owns the run now; it is running
        again, and its error and its verdict are removed.

        Raises:
            RunNotFoundError: If there is none with this id.
            LogError: If it is whole, or its process may still be writing it: one that is alive, or one of another machine
                (:meth:`close` the run if that machine is gone).
        """
        ...

    def drop(self, run_id: str, paths: Collection[str], why: str) -> Manifest:
        """Remove artifacts of a whole run, and say so in its manifest, which is written first.

        What is dropped already, or was never there, is passed over.

        Args:
            run_id: The run.
            paths: Artifacts of it.
            why: The rule that they fall under, for whoever misses them.

        Returns:
            The manifest as it is now.

        Raises:
            RunNotFoundError: If there is no such run.
            IncompleteRunError: If it has no manifest.
        """
        ...

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be whole; None if it has none of that path.

        The content is not checked: where that matters, keep a digest in a tag, or use a format that has its own.

        Raises:
            RunNotFoundError: If there is none with this id.
        """
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
    """A run that is always ended: failed, with the message, if the block raises; finished otherwise.

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
    """A run, ended if nothing but its end is missing: its process was killed between the manifest and the status."""
    if info.status != "running" or tracker.peek(info.id, Artifact.MANIFEST) is None:
        return info
    return tracker.close(info.id, "")


class _NoRun:
    """Accepts everything and keeps nothing: the run of an op that nobody tracks."""

    id = ""
    url = ""

    def reserve(self, size: int) -> None:
        """Need nothing."""

    def log_params(self, params: Mapping[str, object]) -> None:
        """Keep nothing."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Keep nothing."""

    def log_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        """Keep nothing."""

    def log_file(self, source: str | Path, path: str) -> None:
        """Keep nothing."""

    def log_bytes(self, data: bytes, path: str) -> None:
        """Keep nothing."""

    def log_text(self, text: str, path: str) -> None:
        """Keep nothing."""

    def log_json(self, value: Record | JSONValue, path: str) -> None:
        """Keep nothing."""

    def logged(self) -> tuple[tuple[ArtifactEntry, ...], frozenset[MetricName]]:
        """Nothing."""
        return (), frozenset()

    def finish(self, verdict: Verdict | None = None) -> None:
        """Keep nothing."""

    def fail(self, error: BaseException | str) -> None:
        """Keep nothing."""


NO_RUN: Run = _NoRun()


def incomplete(run_id: str, why: str) -> errors.IncompleteRunError:
    """The error for a run that is not whole: names it, says why, and what can be done."""
    return errors.IncompleteRunError(
        f"Run {run_id} is incomplete: {why}. It was interrupted while logging, or its files were changed since. "
        "Use another run, or repeat this one."
    )
