"""The contract of the tracking store: a tracker holds runs, and a run holds the record of one piece of work.

Ops write to a :class:`Run` and read a :class:`StoredRun`; neither they nor this module know MLflow. The
implementations pass one test suite (``tests/contracts/tracker.py``): :mod:`trtops.tracking.memory`,
:mod:`trtops.tracking.mlflow` over a local store and over a server, and :mod:`trtops.tracking.offline` in front of
either. Rules for all of them:

* Calls are safe from any thread and process; nothing depends on a "current" run.
* Logging the same thing twice changes nothing. A param cannot change its value; a tag or metric can.
* Metric names are given as parts, ``("error", "gpu_0/softmax:1", "max_abs")``, of any text.
* An artifact appears whole or not at all. The manifest, which names every artifact with its size and SHA-256, is
  written last, by :meth:`Run.finish`. A run without a manifest is incomplete.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trtops import errors
from trtops.tracking.no_run import NO_RUN as NO_RUN
from trtops.tracking.reading import StoredRun as StoredRun
from trtops.tracking.records import RUN_PREFIX, is_run_id, may_be_run_id
from trtops.tracking.records import ArtifactEntry as ArtifactEntry
from trtops.tracking.records import EngineQuery as EngineQuery
from trtops.tracking.records import Manifest as Manifest
from trtops.tracking.records import RegisteredVersion as RegisteredVersion
from trtops.tracking.records import RunFilter as RunFilter
from trtops.tracking.records import RunInfo as RunInfo
from trtops.tracking.records import RunStatus as RunStatus
from trtops.tracking.records import Tags as Tags
from trtops.tracking.records import incomplete as incomplete
from trtops.tracking.schema import Artifact, Kind
from trtops.tracking.schema import MetricName as MetricName
from trtops.tracking.writing import Run as Run
from trtops.verdict import Verdict as Verdict


class SearchableTracker(Protocol):
    """The base class of trackers: each searches in its own way."""

    def find(
        self,
        experiment: str | None = None,
        *,
        tags: Tags | None = None,
        parent: str | None = None,
        status: RunStatus | None = None,
        limit: int | None = None,
        id_prefix: str = "",
    ) -> list[RunInfo]:
        """Runs with all these tags, and ids beginning with ``id_prefix``, newest first."""
        conditions = RunFilter(
            experiment=experiment, tags=tags or {}, parent=parent, status=status, id_prefix=id_prefix
        )
        return self.search(conditions, limit)

    @abstractmethod
    def search(self, run_filter: RunFilter, limit: int | None) -> list[RunInfo]:
        """Runs that pass the filter, newest first."""


class Tracker(SearchableTracker, Protocol):
    """Keeps runs in experiments, and a registry of accepted engines.

    A registered model has numbered versions; a version is one artifact of one run. An alias points to one version and
    can be moved to another. Methods that take a run's id raise ``RunNotFoundError`` if there is no such run.
    """

    # Locks on its runs, shared by all processes that reach them on this machine; None if the store has no folder here.
    lock_folder: Path | None

    def start(
        self, experiment: str, name: str, *, kind: Kind, tags: Tags | None = None, parent: str | None = None
    ) -> Run:
        """Begin a run, in an experiment created if missing. Prefer :func:`tracked`, as it also ends the run.

        Raises ConfigError if the kind is unknown, or a name is empty or too long; StoreError if the store cannot be
        used as it is; TrackingUnavailableError if it does not answer.
        """
        ...

    def info(self, run_id: str) -> RunInfo:
        """Tags, params and metrics of a run, complete or not."""
        ...

    def load(self, run_id: str) -> StoredRun:
        """A complete run. Raises ``IncompleteRunError`` if it has no manifest."""
        ...

    def all_runs(self) -> Iterator[tuple[RunInfo, str]]:
        """Every run, also of other programs and deleted ones, with the address of its artifacts."""
        ...

    def log_entries(self) -> tuple[dict[int, str], list[str]]:
        """The texts of all entries of the store's log by number, and problems of the log as a whole."""
        ...

    def close(self, run_id: str, reason: str) -> RunInfo:
        """End a run of a dead process; no effect if it has ended.

        A run that has its manifest becomes ``finished``, since only the status was missing. Any other becomes
        ``killed``, with ``reason`` as the tag ``trtops.error``.
        """
        ...

    def reopen(self, run_id: str) -> Run:
        """Resume an interrupted run: its process is gone, or it failed.

        Its params, tags, metrics and artifacts stay. It is running again, owned by this process, without error and
        verdict.

        Raises LogError if it is complete, or its process may still be writing it.
        """
        ...

    def drop(self, run_id: str, paths: Collection[str]) -> None:
        """Delete artifacts of a complete run, after writing a manifest with them listed as dropped."""
        ...

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An unverified artifact of a run, complete or not; None if it has none with this path."""
        ...

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, also: str = "", tags: Tags | None = None
    ) -> RegisteredVersion:
        """Add an artifact of a complete run as a version of a model, made if missing, and make aliases point to it.

        Raises ConfigError if the alias or the name is not allowed; IncompleteRunError if the run is not complete, or
        has no such artifact.
        """
        ...

    def check_access(self, registered_model: str | None = None) -> None:
        """Raise AccessDeniedError if the server's account may not register versions of a model.

        Without a model: if the account is not an administrator's, which alone sees everything. No effect on stores
        without accounts, or while the server does not answer.
        """
        ...

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version behind an alias, or None; raises ``StoreError`` if it does not point into a run."""
        ...

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers; empty if there is no such model."""
        ...

    def accepted(self, tags: Tags | None = None) -> list[tuple[str, RegisteredVersion]]:
        """Every alias of every registered model with its version, for versions in runs with all these tags."""
        ...

    def engines(self, query: EngineQuery, limit: int | None = None) -> list[tuple[RunInfo, float | None]]:
        """Runs with engines matching a query, with the value of its ``best``: the lowest, or newest, first.

        The best are no iterations.
        """
        ...


@contextmanager
def tracked(
    tracker: Tracker,
    experiment: str,
    name: str,
    *,
    kind: Kind,
    tags: Tags | None = None,
    parent: str | None = None,
) -> Iterator[Run]:
    """Yield a run and always end it: failed, with the message, if the block raises; finished otherwise.

    The block may end the run itself, with a verdict; otherwise it is finished without one.

    >>> from trtops.tracking.memory import MemoryTracker
    >>> tracker = MemoryTracker()
    >>> with tracked(tracker, "experiment", "first build", kind="build") as run:
    ...     run.log_params({"precision": "fp16"})
    ...     run.log_text("built", "build.log")
    ...     run.finish("good")
    >>> stored = tracker.load(run.id)
    >>> stored.info.status, stored.info.verdict, stored.read_bytes("build.log")
    ('finished', 'good', b'built')
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


def run_id_of(id_or_prefix: str, tracker: Tracker) -> str:
    """The id of a run as a user gave it: whole, or its first eight digits or more, also after ``run:``.

    Raises RunNotFoundError if it cannot be an id, or not exactly one run of the store begins with it.
    """
    digits = id_or_prefix.removeprefix(RUN_PREFIX).lower()
    if is_run_id(digits):
        return digits
    if not may_be_run_id(digits):
        expected = "expected the 32 hexadecimal digits of its id, or at least the first 8"
        raise errors.RunNotFoundError(f"Run {id_or_prefix!r}: {expected}. See ids by: trtops runs list")
    matches = [info.id for info in tracker.find(id_prefix=digits, limit=2)]
    if len(matches) != 1:
        count = "the ids of several runs begin" if matches else "no id of a run begins"
        raise errors.RunNotFoundError(f"Run {id_or_prefix!r}: {count} with it. See ids by: trtops runs list")
    return matches[0]
