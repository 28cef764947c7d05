"""A tracker that works while its store is away: runs that the store cannot take go to the spool.

:class:`OfflineTracker` wraps another tracker. When the store stays away longer than
:func:`trtops.tracking.location.wait_seconds`, or its disk is full, the rest of a run goes to the spool
(:mod:`trtops.tracking.spool`). A run that the store did not even make goes there under a local id, which stays valid
after the upload. Reading through this tracker finds spooled runs as if they had been uploaded. The store is tried
again with each new run, and the spool is uploaded when a run ends and the store answers.

Searches and complete runs that this process has read before are answered from memory while the store is away, so that a
campaign keeps its deny-list. Other questions raise.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from trtops import errors
from trtops.record import sha256
from trtops.tracking.base import (
    ArtifactEntry,
    Manifest,
    MetricName,
    RunInfo,
    RunStatus,
    StoredRun,
    incomplete,
)
from trtops.tracking.ids import RUN_PREFIX, is_local
from trtops.tracking.records import Tags
from trtops.tracking.run import Run, Scratch, checked_names, read_manifest, starting_tags
from trtops.tracking.schema import Artifact, Kind, Tag
from trtops.tracking.spool import AWAY, Draft, Spool, SpooledRun, SpoolTarget, upload

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_ANSWERS = 256


class OfflineTracker:
    """A :class:`trtops.tracking.base.Tracker` that spools what another one cannot take.

    Args:
        inner: The other tracker.
        spool: The spool.
    """

    def __init__(self, inner: SpoolTarget, spool: Spool) -> None:
        self.inner = inner
        self.spool = spool
        self.shown = inner.shown
        self.store = inner.store
        self.lock_folder = inner.lock_folder
        # The registry needs the store: an engine is accepted only once its run is there.
        self.register, self.registered = inner.register, inner.registered
        self.aliases, self.accepted = inner.aliases, inner.accepted
        self._answers: OrderedDict[Hashable, object] = OrderedDict()
        self._runs: weakref.WeakValueDictionary[str, OfflineRun] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._scratch = Scratch()
        self._warned = False

    def __repr__(self) -> str:
        return f"OfflineTracker({self.inner!r})"

    def __reduce__(self) -> tuple[type[OfflineTracker], tuple[SpoolTarget, Spool]]:
        return type(self), (self.inner, self.spool)

    def start(
        self, experiment: str, name: str, *, kind: Kind, tags: Tags | None = None, parent: str | None = None
    ) -> OfflineRun:
        """Begin a run, in the spool if the store is away or does not have its parent."""
        experiment, name = checked_names(experiment, name)
        first = {**self.inner.context, **starting_tags(kind, tags)}
        record = SpooledRun(self.shown, None, experiment, name, parent, time.time(), tags=first)
        inner, why = None, f"Its parent {parent} is in the spool."
        if parent is None or not is_local(parent) or (parent := self._stored_id(parent)) is not None:
            try:
                inner = self.inner.create(experiment, name, tags=first, parent=parent)
                record.run_id, record.parent = inner.id, parent
            except errors.TrackingUnavailableError as exc:
                why = str(exc)
        run = OfflineRun(self, record, inner)
        if inner is None:
            run.go_offline(why)
        self._runs[run.id] = run
        return run

    def whole_id(self, run: str) -> str:
        """The full id of a run given by a user."""
        digits = run.removeprefix(RUN_PREFIX).lower()
        spooled = [each.id for each in self._spooled() if each.id.startswith(digits)] if len(digits) >= 4 else []
        try:
            return self.inner.whole_id(run)
        except (errors.RunNotFoundError, errors.TrackingUnavailableError):
            if len(spooled) != 1:
                raise
            return spooled[0]

    def info(self, run_id: str) -> RunInfo:
        """A run's tags, params and metrics."""
        if (spooled := self._spooled_run(run_id)) is not None:
            return spooled.info()
        try:
            return self.inner.info(run_id)
        except errors.TrackingUnavailableError:
            if (run := self._runs.get(run_id)) is None:
                raise
            return run.record.info()

    def load(self, run_id: str) -> StoredRun:
        """A complete run."""
        if (spooled := self._spooled_run(run_id)) is not None:
            if spooled.status == "running":
                raise incomplete(run_id, "it is still being written")
            return _SpooledStoredRun(spooled, self.inner, self._scratch)
        # A complete run does not change.
        return self._answer(("load", run_id), lambda: self.inner.load(run_id))

    def find(
        self,
        experiment: str | None = None,
        *,
        tags: Tags | None = None,
        parent: str | None = None,
        status: RunStatus | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Runs that have all these tags, newest first."""
        wanted = (tags or {}).items()
        # By local id, since the store may have made a run although its answer was lost.
        spooled = {run.local_id: run for run in self._spooled()}
        question = ("find", experiment, tuple(sorted(wanted)), parent, status, limit)
        more = None if limit is None else limit + len(spooled)
        stored = self._answer(
            question, lambda: self.inner.find(experiment, tags=tags, parent=parent, status=status, limit=more)
        )
        parents: set[str | None] = {parent}
        if parent is not None and (above := self.spool.get(parent)) is not None:
            parents = {above.run_id, above.local_id} - {None}
        own = [
            run.info()
            for run in spooled.values()
            if experiment in (None, run.experiment)
            and (parent is None or run.parent in parents)
            and status in (None, run.status)
            and wanted <= run.tags.items()
        ]
        found = [*own, *(info for info in stored if info.tags.get(Tag.LOCAL_ID) not in spooled)]
        if own:
            found.sort(key=lambda info: info.start_time, reverse=True)
        return found[:limit]

    def close(self, run_id: str, why: str) -> RunInfo:
        """End a run whose process can no longer do it; a spooled run has ended."""
        spooled = self._spooled_run(run_id)
        return self.inner.close(run_id, why) if spooled is None else spooled.info()

    def reopen(self, run_id: str) -> OfflineRun:
        """Resume a run that was interrupted; a spooled one is uploaded first."""
        self._upload_first(run_id)
        inner = self.inner.reopen(run_id)
        info = self.inner.info(run_id)
        artifacts, names = inner.logged()
        record = SpooledRun(
            self.shown, info.id, info.experiment, info.name, info.parent, info.start_time,
            tags={name: value for name, value in info.tags.items() if name not in (Tag.ERROR, Tag.VERDICT)},
            params=dict(info.params), metrics=dict(info.metrics), artifacts={entry.path: entry for entry in artifacts},
        )  # fmt: skip
        run = self._runs[inner.id] = OfflineRun(self, record, inner)
        run.continue_from(artifacts, names)
        return run

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be complete."""
        if (run := self.spool.get(run_id)) is not None:
            return self.inner.peek(run_id, path) if path in run.only_in_store else run.read(path)
        writing = self._runs.get(run_id)
        if writing is not None and ((data := writing.peek(path)) is not None or writing.record.run_id is None):
            return data
        return self.inner.peek(run_id, path)

    def drop(self, run_id: str, paths: Collection[str], why: str) -> Manifest:
        """Remove artifacts of a complete run; a spooled one is uploaded first."""
        self._upload_first(run_id)
        return self.inner.drop(run_id, paths, why)

    def upload_spool(self) -> None:
        """Upload the spool if the store can take it now."""
        try:
            uploaded = [each for each in upload(self.inner, self.spool) if each.outcome == "uploaded"]
        except AWAY:
            return
        if uploaded:
            self._warned = False
            log.warning("%s answers again; %d runs were uploaded from the spool.", self.shown, len(uploaded))

    def warn(self, text: str) -> None:
        """Warn about a spooled run; further ones, until the store answers, are logged at level INFO."""
        log.log(logging.INFO if self._warned else logging.WARNING, "%s", text)
        self._warned = True

    def _upload_first(self, run_id: str) -> None:
        if self.spool.get(run_id) is not None:
            self.upload_spool()
        if (run := self.spool.get(run_id)) is not None:
            raise errors.LogError(
                f"Run {run_id} is in the spool {run.folder}, since {self.shown} could not take it. "
                "Upload it first: trtops store upload"
            )

    def _stored_id(self, local_id: str) -> str | None:
        """The store's id of a run; None if it does not have it, or does not answer."""
        if (run := self._runs.get(local_id)) is not None and run.is_spooling:
            return None
        try:
            return self.inner.info(local_id).id
        except (errors.RunNotFoundError, errors.TrackingUnavailableError):
            return None

    def _spooled(self) -> list[SpooledRun]:
        running = [run.record for run in list(self._runs.values()) if run.is_spooling]
        return [*running, *self.spool.runs()]

    def _spooled_run(self, run_id: str) -> SpooledRun | None:
        return next((run for run in self._spooled() if run_id in (run.run_id, run.local_id)), None)

    def _answer(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The store's answer; while it is away, its last answer to the same question."""
        try:
            answer = ask()
        except errors.TrackingUnavailableError:
            with self._lock:
                if question not in self._answers:
                    raise
                return self._answers[question]  # type: ignore[return-value]
        with self._lock:
            self._answers[question] = answer
            self._answers.move_to_end(question)
            while len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        return answer


class OfflineRun(Run):
    """A run written to its store, or, once the store has failed, to the spool."""

    def __init__(self, tracker: OfflineTracker, record: SpooledRun, inner: Run | None) -> None:
        super().__init__(record.id, "" if inner is None else inner.url)
        self.record = record
        self._tracker = tracker
        self._inner = inner
        self._draft: Draft | None = None
        self._sources: dict[str, Path | bytes] = {}
        self._no_space = False

    @property
    def is_spooling(self) -> bool:
        """True while the run is written to the spool."""
        return self._inner is None and self._ended is None

    def peek(self, path: str) -> bytes | None:
        """An artifact as it was logged, if this process still has it."""
        with self._lock:
            if self._draft is not None and (file := self._draft.artifacts / path).is_file():
                return file.read_bytes()
            source = self._sources.get(path)
            return source if isinstance(source, bytes) else None

    def go_offline(self, why: str) -> None:
        """Write to the spool from now on, with everything that was logged so far.

        Raises:
            NoRoomError: If the spool cannot be written either.
        """
        draft = self._tracker.spool.begin(self.record.local_id)
        try:
            for path, source in self._sources.items():
                if isinstance(source, bytes) or source.is_file():
                    # The source file may have changed since; then only the store has the artifact.
                    entry = draft.put(source, path)
                    if entry != self.record.artifacts[path]:
                        (draft.artifacts / path).unlink()
        except errors.LogError:
            draft.remove()
            raise
        self._draft, self._inner = draft, None
        self._sources.clear()
        self._tracker.warn(
            f"Run {self.id} goes to the spool {draft.folder.parent}: {why} Upload it by: trtops store upload"
        )

    def _folders(self) -> list[Path]:
        if self._draft is not None:
            return [self._draft.folder]
        return [] if self._inner is None else self._inner._folders()

    def _sync(self, paths: Iterable[str]) -> None:
        if self._inner is not None:
            self._inner._sync(paths)

    def _put_params(self, params: Mapping[str, str]) -> None:
        with self._lock:
            if not self._put(lambda run: run._put_params(params)):
                for name, value in params.items():
                    if (old := self.record.params.get(name, value)) != value:
                        raise errors.LogError(
                            f"Param {name!r} of run {self.id} is {old!r}; it cannot become {value!r}."
                        )
            self.record.params.update(params)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        with self._lock:
            self._put(lambda run: run._put_tags(tags))
            self.record.tags.update(tags)

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        with self._lock:
            self._put(lambda run: run._put_metrics(metrics))
            self.record.metrics.update(metrics)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        inner = self._inner
        if inner is not None:
            try:
                entry = inner._put_artifact(source, path)
            except AWAY as exc:
                self._leave(inner, exc)
            else:
                with self._lock:
                    self.record.artifacts[path] = entry
                    if self._tracker.store is None:  # the artifacts of a local store are on this machine anyway
                        self._sources[path] = source
                return entry
        with self._lock:
            assert self._draft is not None
            entry = self.record.artifacts[path] = self._draft.put(source, path)
        return entry

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        with self._lock:
            if self._put(lambda run: run._end(status, at)):
                return
            run, draft = self.record, self._draft
            assert draft is not None
            run.status, run.end_time = status, time.time() if at is None else at
            run.artifacts = dict(sorted(run.artifacts.items()))
            run.only_in_store = tuple(path for path in run.artifacts if not (draft.artifacts / path).is_file())
            try:
                draft.finish(run)
            except OSError as exc:
                raise errors.NoRoomError(
                    f"Run {self.id} could not be spooled to {draft.folder.parent}: {exc}."
                ) from exc
        if not self._no_space:
            self._tracker.upload_spool()

    def _put(self, put: Callable[[Run], None]) -> bool:
        """Write to the store; False if the run is, or now becomes, spooled."""
        if self._inner is None:
            return False
        try:
            put(self._inner)
        except AWAY as exc:
            self._leave(self._inner, exc)
            return False
        return True

    def _leave(self, inner: Run, why: errors.TrackingError) -> None:
        with self._lock:
            if self._inner is not inner:  # another thread was first
                return
            self._no_space = isinstance(why, errors.NoRoomError)
            try:
                self.go_offline(str(why))
            except errors.LogError as exc:
                raise type(why)(f"{why} {exc}") from why


class _SpooledStoredRun(StoredRun):
    """A complete run in the spool."""

    def __init__(self, run: SpooledRun, inner: SpoolTarget, scratch: Scratch) -> None:
        manifest = run.read(Artifact.MANIFEST)
        if manifest is None and Artifact.MANIFEST in run.only_in_store:
            manifest = inner.peek(run.id, Artifact.MANIFEST)
        super().__init__(run.info(), read_manifest(run.id, manifest))
        self._run, self._inner, self._scratch = run, inner, scratch

    def unlisted(self, path: str) -> bytes | None:
        return self._inner.peek(self.info.id, path) if path in self._run.only_in_store else self._run.read(path)

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        if (file := self._run.file(entry.path)) is not None:
            return file
        if (data := self._inner.peek(self.info.id, entry.path)) is None:
            return None
        file = self._scratch.folder() / sha256(data) / Path(entry.path).name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        return file
