"""A tracker for stores with outages: runs refused by the store go to the spool.

When the store stays away longer than :func:`trtops.tracking.location.wait_seconds`, its disk is full, or it fails in
another way, the rest of a run goes to the spool (:mod:`trtops.tracking.spool`), with everything that was logged to it
before. A run that the store did not even make goes there under a local id, which stays valid after the upload. The
store is tried again with each new run, and the spool is uploaded when a run ends and the store answers.

Everything else is read from the store. Of a run in the spool, the process that writes it can read what it logged.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from trtops import errors
from trtops.tracking.artifact_files import Scratch, write_artifact
from trtops.tracking.base import SearchableTracker
from trtops.tracking.location import resolve
from trtops.tracking.reading import StoredRun, read_manifest
from trtops.tracking.records import (
    ArtifactEntry,
    RegisteredVersion,
    RunDetails,
    RunFilter,
    RunInfo,
    RunStatus,
    Tags,
    Values,
    is_local,
)
from trtops.tracking.schema import Artifact, Kind
from trtops.tracking.spool import STORE_UNAVAILABLE, Spool, SpooledRun, SpoolTarget, upload
from trtops.tracking.writing import Run, new_run

log = logging.getLogger(__name__)

_MAX_IN_MEMORY = 1 << 20  # bytes of an artifact


class OfflineTracker(SearchableTracker):
    """A :class:`trtops.tracking.base.Tracker` with a spool for runs refused by the ``inner`` one."""

    def __init__(self, inner: SpoolTarget, spool: Spool) -> None:
        self.inner = inner
        self.spool = spool
        self.shown = inner.shown
        self.store = inner.store
        self.lock_folder = inner.lock_folder
        # These need the store: an engine is accepted only once its run is there.
        self.close, self.drop, self.check_access = inner.close, inner.drop, inner.check_access
        self.registered = inner.registered
        self.aliases, self.accepted = inner.aliases, inner.accepted
        self.engines = inner.engines
        self.all_runs, self.log_entries = inner.all_runs, inner.log_entries
        self._open: dict[str, OfflineRun] = {}  # runs being written by this process
        self._spooled: dict[str, SpooledRun] = {}  # its ended runs that are in the spool
        self._refusals: dict[str, str] = {}  # why the store could not take runs of this process
        self._warned = False

    def __repr__(self) -> str:
        return f"OfflineTracker({self.inner!r})"

    def __reduce__(self) -> tuple[type[OfflineTracker], tuple[SpoolTarget, Spool]]:
        return type(self), (self.inner, self.spool)

    def start(
        self, experiment: str, name: str, *, kind: Kind, tags: Tags | None = None, parent: str | None = None
    ) -> OfflineRun:
        experiment, name, first, params = new_run(experiment, name, kind, tags)
        first = {**self.inner.context, **first}
        began = time.time()
        record = SpooledRun(
            store=self.shown, experiment=experiment, name=name, parent=parent, start_time=began, tags=first
        )
        inner: Run | None = None
        reason = f"Its parent {parent} is in the spool."
        if parent is None or not is_local(parent) or (parent := self._stored_id(parent)) is not None:
            try:
                inner = self.inner.create(experiment, name, tags=first, parent=parent, began=began)
                record.run_id, record.parent = inner.id, parent
            except STORE_UNAVAILABLE as exc:
                reason = str(exc)
        run = OfflineRun(self, record, inner)
        if inner is None:
            run.go_offline(reason)
        self._open[run.id] = run
        run.log_params(params)
        return run

    def reopen(self, run_id: str) -> OfflineRun:
        if self.spool.get(run_id) is not None:
            self.upload_spool()
        self._require_uploaded(run_id)
        inner = self.inner.reopen(run_id)
        info = self.inner.info(run_id)
        record = SpooledRun(
            store=self.shown, run_id=info.id, experiment=info.experiment, name=info.name, parent=info.parent,
            start_time=info.start_time, tags=dict(info.tags), params=dict(info.params), metrics=dict(info.metrics),
            artifacts={entry.path: entry for entry in inner.logged()},
        )  # fmt: skip
        run = self._open[inner.id] = OfflineRun(self, record, inner)
        run.continue_from(inner.logged())
        return run

    def info(self, run_id: str) -> RunInfo:
        if (record := self._record_of(run_id)) is not None:
            return record.info()
        run = self._open.get(run_id)
        try:
            return self.inner.info(run_id)
        except errors.TrackingError:
            # The report of a run that this process is writing needs its tags, params and metrics.
            if run is not None:
                return run.record.info()
            self._require_uploaded(run_id)
            raise

    def search(self, run_filter: RunFilter, limit: int | None) -> list[RunInfo]:
        below: list[RunInfo] = []
        if run_filter.parent is not None:
            # A campaign reads its iterations back. Other searches are about runs that everybody can read.
            spooling = [run.record for run in self._open.values() if run.is_spooling]
            spooled = (run.info() for run in reversed([*self._spooled.values(), *spooling]))
            below = list(filter(run_filter.matches, spooled))
            if is_local(run_filter.parent) and self._record_of(run_filter.parent) is not None:
                return below[:limit]  # the store has no run below one that it did not make
        return [*below, *self.inner.search(run_filter, limit)][:limit]

    def _record_of(self, run_id: str) -> SpooledRun | None:
        """The run of this process with an id, if it is in the spool, ended or not."""
        run = self._open.get(run_id)
        return run.record if run is not None and run.is_spooling else self._spooled.get(run_id)

    def load(self, run_id: str) -> StoredRun:
        record = self._spooled.get(run_id)
        if record is not None and not record.only_in_store:
            files = record.files
            manifest = read_manifest(run_id, files.peek(Artifact.MANIFEST))
            details = RunDetails(user=None, status=("", ""), history={}, files=tuple(record.artifacts))
            return StoredRun(
                record.info(), manifest, lambda entry: files.find(entry.path), files.peek, self.load, lambda: details
            )
        try:
            return self.inner.load(run_id)
        except errors.TrackingError:
            self._require_uploaded(run_id)
            raise

    def peek(self, run_id: str, path: str) -> bytes | None:
        if (record := self._record_of(run_id)) is not None and path not in record.only_in_store:
            return record.files.peek(path)
        run = self._open.get(run_id)
        logged = None if run is None else run.logged_bytes(path)
        return self.inner.peek(run_id, path) if logged is None else logged

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, also: str = "", tags: Tags | None = None
    ) -> RegisteredVersion:
        self._require_uploaded(run_id)  # an engine is accepted only once the store has its run
        return self.inner.register(name, run_id, path, alias=alias, also=also, tags=tags)

    def ended(self, run: OfflineRun, *, spooled: bool) -> None:
        """Note the end of a run, in the store or in the spool."""
        self._open.pop(run.id, None)
        if spooled:
            self._spooled[run.id] = run.record

    def upload_spool(self) -> None:
        """Upload the spool if the store can take it now."""
        try:
            uploaded = {result.folder for result in upload(self.inner, self.spool) if not result.reason}
        except errors.TrackingError:
            return
        if uploaded:
            self._warned = False
            for run_id in [run_id for run_id, record in self._spooled.items() if record.folder in uploaded]:
                del self._spooled[run_id]
            log.warning("%s answers again; %d runs were uploaded from the spool.", self.shown, len(uploaded))

    def refused(self, run_id: str, reason: str) -> None:
        """Note why a run goes to the spool."""
        self._refusals[run_id] = reason.strip()

    def warn(self, text: str) -> None:
        """Warn about a spooled run; further ones, until the store answers, are logged at level INFO."""
        log.log(logging.INFO if self._warned else logging.WARNING, "%s", text)
        self._warned = True

    def _require_uploaded(self, run_id: str) -> None:
        if (spooled := self.spool.get(run_id)) is not None:
            reason = f" ({self._refusals[run_id]})" if run_id in self._refusals else ""
            raise errors.LogError(
                f"{self.shown} could not take run {run_id}{reason}, which is in the spool {spooled.folder}. Upload it "
                "first: trtops store upload"
            )

    def _stored_id(self, local_id: str) -> str | None:
        """The store's id of a run; None if this process is spooling it, or the store does not have it or answer."""
        if (run := self._open.get(local_id)) is not None and run.is_spooling:
            return None
        try:
            return self.inner.info(local_id).id
        except (errors.RunNotFoundError, errors.TrackingUnavailableError):
            return None


class OfflineRun(Run):
    """A run written to its store, or, once the store has failed, to the spool."""

    def __init__(self, tracker: OfflineTracker, record: SpooledRun, inner: Run | None) -> None:
        super().__init__(record.id, "" if inner is None else inner.url)
        self.record = record
        self._tracker = tracker
        self._inner = inner
        # What was logged to the store, which may be lost; large bytes are in files.
        self._sources: dict[str, Path | bytes] = {}
        self._scratch = Scratch()
        self._no_space = False

    @property
    def is_spooling(self) -> bool:
        """True while the run is written to the spool."""
        return self._inner is None and self._ended is None

    @property
    def store_folder(self) -> str | None:
        """The folder to name in commands; None for the default store, and for a server."""
        store = self._tracker.store
        return None if store is None or store == resolve() else str(store.root)

    def logged_bytes(self, path: str) -> bytes | None:
        """The content of an artifact logged as bytes; None for others."""
        source = self._sources.get(path)
        if isinstance(source, Path):
            return source.read_bytes() if source.parent == self._scratch.folder() else None
        return source

    def go_offline(self, reason: str) -> None:
        """Write to the spool from now on, including everything logged so far."""
        folder = self.record.folder = self._tracker.spool.begin(self.record.local_id)
        for path, source in self._sources.items():
            try:
                # The source file may have changed since; then only the store has the artifact.
                if (isinstance(source, bytes) or source.is_file()) and (
                    self.record.files.put(source, path) != self.record.artifacts[path]
                ):
                    self.record.files.remove(path)
            except errors.LogError:
                if self._tracker.store is None:  # the artifacts of an embedded store are on this machine
                    raise
        self._inner = None
        self._sources.clear()
        self._tracker.refused(self.id, reason)
        self._tracker.warn(
            f"Run {self.id} goes to the spool {folder.parent}: {reason} Upload it by: trtops store upload"
        )

    def _sync(self, paths: Iterable[str]) -> None:
        with self._lock:
            self._try(lambda run: run._sync(paths))

    def _log_head(self) -> str:
        with contextlib.suppress(*STORE_UNAVAILABLE):
            return self._inner._log_head() if self._inner else ""
        return ""

    def _linked_metrics(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        return self._inner._linked_metrics() if self._inner else {}

    def _info(self) -> RunInfo:
        return self.record.info()

    def _put(self, values: Values) -> None:
        with self._lock:
            self.record.check_params(values)
            self._try(lambda run: run._put(values))
            self.record.add(values)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        inner = self._inner
        if inner is not None:
            try:
                # Without the lock, so that threads can log large files at the same time.
                entry = inner._put_artifact(source, path)
            except errors.TrackingError as exc:
                self._leave(inner, exc)
            else:
                if isinstance(source, bytes) and len(source) > _MAX_IN_MEMORY:
                    file = self._scratch.folder() / entry.sha256
                    with contextlib.suppress(errors.LogError):  # a full disk: the bytes stay in memory
                        write_artifact(source, file, path)
                        source = file
                with self._lock:
                    self.record.artifacts[path], self._sources[path] = entry, source
                return entry
        with self._lock:
            entry = self.record.artifacts[path] = self.record.files.put(source, path)
        return entry

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        with self._lock:
            is_stored = self._try(lambda run: run._end(status, at))
            if not is_stored:
                run = self.record
                run.status, run.end_time = status, time.time() if at is None else at
                run.only_in_store = tuple(path for path in run.artifacts if run.files.find(path) is None)
                self._tracker.spool.finish(run)
            self._tracker.ended(self, spooled=not is_stored)
        if not self._no_space:
            self._tracker.upload_spool()  # also what earlier processes left there

    def _try(self, write: Callable[[Run], None]) -> bool:
        """Write to the store; False if the run is, or now becomes, spooled, whatever is wrong with the store."""
        if self._inner is None:
            return False
        try:
            write(self._inner)
        except errors.TrackingError as exc:
            self._leave(self._inner, exc)
            return False
        return True

    def _leave(self, inner: Run, error: errors.TrackingError) -> None:
        with self._lock:
            # Another thread may have been first.
            if self._inner is inner:
                self._no_space = isinstance(error, errors.NoRoomError)
                try:
                    self.go_offline(str(error))
                except errors.LogError as exc:
                    raise type(error)(f"{error} {exc}") from error
