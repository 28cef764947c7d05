"""A tracker that loses nothing: what its store cannot take is kept in an outbox, whole, and brought in later.

:class:`KeepingTracker` stands before another tracker and does what that one does, until the store stays away longer than
it is waited for (:func:`trtops.tracking.location.wait_seconds`) or has no room. From then on a run goes to the outbox: all
that was logged to it, and all that still will be. A run that the store did not even make begins there, under a local id,
which stays good for reading after :func:`trtops.tracking.upload.upload`. Whoever reads through this tracker finds kept runs
as if they had been brought in. The store is asked again with each new run, and when a kept run ends.

Questions to a store that is away are answered as they were last, as long as this process asked them before; the deny-list
that a campaign minds is one. Others raise.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from trtops import errors
from trtops.record import sha256, sha256_file
from trtops.tracking.base import ArtifactEntry, Manifest, MetricName, RunInfo, RunStatus, StoredRun, incomplete
from trtops.tracking.ids import RUN_PREFIX, is_local
from trtops.tracking.outbox import KeptDraft, KeptFolder, KeptRun, Outbox
from trtops.tracking.receiver import Receiver
from trtops.tracking.registry import RegisteredVersion
from trtops.tracking.schema import Artifact, Kind, Tag
from trtops.tracking.upload import upload
from trtops.tracking.writer import (
    RunReader,
    RunWriter,
    Scratch,
    checked_names,
    read_manifest,
    starting_tags,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_AWAY = (errors.TrackingUnavailableError, errors.NoRoomError)
_ANSWERS = 256


class KeepingTracker:
    """A :class:`trtops.tracking.base.Tracker` that keeps in an outbox what another one cannot take.

    Args:
        inner: The other one.
        outbox: Where to keep.
    """

    def __init__(self, inner: Receiver, outbox: Outbox) -> None:
        self.inner = inner
        self.outbox = outbox
        self.shown = inner.shown
        self.store = inner.store
        self.lock_folder = inner.lock_folder
        self._answers: OrderedDict[Hashable, object] = OrderedDict()
        self._runs: weakref.WeakValueDictionary[str, KeepingRun] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._scratch = Scratch()
        self._told = False

    def __repr__(self) -> str:
        return f"KeepingTracker({self.inner!r})"

    def __reduce__(self) -> tuple[type[KeepingTracker], tuple[Receiver, Outbox]]:
        return type(self), (self.inner, self.outbox)

    def start(
        self,
        experiment: str,
        name: str,
        *,
        kind: Kind,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> KeepingRun:
        """Begin a run, in the outbox if the store is away or does not have its parent."""
        experiment, name = checked_names(experiment, name)
        first = {**self.inner.context, **starting_tags(kind, tags)}
        begun = _Logged(experiment, name, parent, time.time(), tags=first)
        if parent is not None and is_local(parent):
            stored = self._stored_id(parent)
            if stored is None:
                return self._begin_apart(begun, f"So is its parent {parent}.")
            parent = stored
        try:
            run = self.inner.create(experiment, name, tags=first, parent=parent)
        except errors.TrackingUnavailableError as exc:
            return self._begin_apart(begun, str(exc))
        return self._begun(KeepingRun(self, begun, run))

    def whole_id(self, run: str) -> str:
        """The id of a run as people give it."""
        digits = run.removeprefix(RUN_PREFIX).lower()
        kept = [each.id for each in self._kept_infos() if each.id.startswith(digits)] if len(digits) >= 4 else []
        try:
            return self.inner.whole_id(run)
        except (errors.RunNotFoundError, errors.TrackingUnavailableError):
            if len(kept) != 1:
                raise
            return kept[0]

    def info(self, run_id: str) -> RunInfo:
        """What is known of a run, complete or not."""
        if (kept := self._kept_info(run_id)) is not None:
            return kept
        run = self._runs.get(run_id)
        try:
            return self.inner.info(run_id)
        except errors.TrackingUnavailableError:
            if run is None:
                raise
            return run.info()

    def load(self, run_id: str) -> StoredRun:
        """A whole run."""
        if (folder := self.outbox.get(run_id)) is not None and folder.run is not None:
            return _KeptStoredRun(folder, folder.run, self.inner, self._scratch)
        if (run := self._runs.get(run_id)) is not None and run.apart and not run.ended:
            raise incomplete(run_id, "it is still being written")
        # What a whole run holds does not change.
        return self._answered(("load", run_id), lambda: self.inner.load(run_id))

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
        wanted = (tags or {}).items()
        # By local ids: the store may have made a run and its answer been lost.
        kept = {info.tags[Tag.LOCAL_ID]: info for info in self._kept_infos()}
        question = ("find", experiment, tuple(sorted(wanted)), parent, status, limit)
        more = None if limit is None else limit + len(kept)
        stored = self._answered(
            question, lambda: self.inner.find(experiment, tags=tags, parent=parent, status=status, limit=more)
        )
        parents = {None} if parent is None else self._names_of(parent)
        own = [
            info
            for info in kept.values()
            if experiment in (None, info.experiment)
            and (parent is None or info.parent in parents)
            and status in (None, info.status)
            and wanted <= info.tags.items()
        ]
        found = [*own, *(info for info in stored if info.tags.get(Tag.LOCAL_ID) not in kept)]
        if own:
            found.sort(key=lambda info: info.start_time, reverse=True)
        return found[:limit]

    def close(self, run_id: str, why: str) -> RunInfo:
        """End a run whose own process can no longer do it; one that is kept has ended."""
        kept = self._kept_info(run_id)
        return self.inner.close(run_id, why) if kept is None else kept

    def reopen(self, run_id: str) -> KeepingRun:
        """Go on writing a run that was interrupted; one that is kept is brought in first."""
        if self.outbox.get(run_id) is not None:
            self.bring_in()
        if (folder := self.outbox.get(run_id)) is not None:
            raise errors.LogError(
                f"Run {run_id} is kept in {folder.path}, since {self.shown} could not take it. Bring it in by: trtops store upload"
            )
        run = self.inner.reopen(run_id)
        info = self.inner.info(run_id)
        tags = {name: value for name, value in info.tags.items() if name not in (Tag.ERROR, Tag.VERDICT)}
        logged = _Logged(
            info.experiment,
            info.name,
            info.parent,
            info.start_time,
            tags=tags,
            params=dict(info.params),
            metrics=dict(info.metrics),
        )
        artifacts, names = run.logged()
        logged.artifacts.update({entry.path: entry for entry in artifacts})
        again = self._begun(KeepingRun(self, logged, run))
        again.take_over(artifacts, names)
        return again

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be whole."""
        if (folder := self.outbox.get(run_id)) is not None and folder.run is not None:
            return self.inner.peek(run_id, path) if path in folder.run.only_there else folder.read(path)
        run = self._runs.get(run_id)
        if run is not None and ((data := run.peek(path)) is not None or run.is_apart_from_the_start):
            return data
        return self.inner.peek(run_id, path)

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, tags: Mapping[str, str] | None = None
    ) -> RegisteredVersion:
        """Add a version and let an alias point to it."""
        return self.inner.register(name, run_id, path, alias=alias, tags=tags)

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias points to."""
        return self.inner.registered(name, alias)

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers."""
        return self.inner.aliases(name)

    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """Every alias of every registered model with the version that it points to."""
        return self.inner.accepted()

    def drop(self, run_id: str, paths: Collection[str], why: str) -> Manifest:
        """Remove artifacts of a whole run; one that is kept is brought in first."""
        if self.outbox.get(run_id) is not None:
            self.bring_in()
        return self.inner.drop(run_id, paths, why)

    def bring_in(self) -> None:
        """Bring in what is kept, if the store takes it by now."""
        try:
            brought = [each for each in upload(self.inner, self.outbox) if each.outcome == "brought in"]
        except _AWAY:
            return
        if brought:
            self._told = False
            log.warning("%s answers again; %d runs were brought in from the outbox.", self.shown, len(brought))

    def tell_once(self, text: str) -> None:
        """Warn that a run is kept; of those after it, until the store is back, nobody wants a line each."""
        log.log(logging.INFO if self._told else logging.WARNING, "%s", text)
        self._told = True

    def _begun(self, run: KeepingRun) -> KeepingRun:
        self._runs[run.id] = run
        return run

    def _begin_apart(self, logged: _Logged, why: str) -> KeepingRun:
        run = KeepingRun(self, logged, None)
        run.keep_apart(why)
        return self._begun(run)

    def _stored_id(self, local_id: str) -> str | None:
        """The store's id of a run; None if it does not have it, or does not answer."""
        run = self._runs.get(local_id)
        if run is not None and run.apart and not run.ended:
            return None
        try:
            return self.inner.info(local_id).id
        except (errors.RunNotFoundError, errors.TrackingUnavailableError):
            return None

    def _kept_infos(self) -> list[RunInfo]:
        running = [run.info() for run in list(self._runs.values()) if run.apart and not run.ended]
        return [*running, *(folder.run.info() for folder in self.outbox.folders() if folder.run is not None)]

    def _kept_info(self, run_id: str) -> RunInfo | None:
        if (folder := self.outbox.get(run_id)) is not None and folder.run is not None:
            return folder.run.info()
        run = self._runs.get(run_id)
        return run.info() if run is not None and run.apart and not run.ended else None

    def _names_of(self, run_id: str) -> set[str | None]:
        """What a run may be called by its children."""
        folder = self.outbox.get(run_id)
        return {run_id} if folder is None or folder.run is None else {folder.run.run_id, folder.run.local_id} - {None}

    def _answered(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The store's answer, or the last one that it gave if it is away."""
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
            while len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        return answer


@dataclasses.dataclass
class _Logged:
    """All that was logged to a run so far, and what artifacts were made of."""

    experiment: str
    name: str
    parent: str | None
    start_time: float
    tags: dict[str, str]
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    metrics: dict[MetricName, float] = dataclasses.field(default_factory=dict)
    artifacts: dict[str, ArtifactEntry] = dataclasses.field(default_factory=dict)
    sources: dict[str, Path | bytes] = dataclasses.field(default_factory=dict)

    @property
    def local_id(self) -> str:
        return self.tags[Tag.LOCAL_ID]


class KeepingRun(RunWriter):
    """A run being written to its store, or, from the moment that this one fails, to an outbox."""

    def __init__(self, tracker: KeepingTracker, logged: _Logged, inner: RunWriter | None) -> None:
        super().__init__(logged.local_id if inner is None else inner.id, "" if inner is None else inner.url)
        self.logged_so_far = logged
        self._tracker = tracker
        self._inner = inner
        self._run_id = None if inner is None else inner.id
        self._draft: KeptDraft | None = None
        self._no_room = False

    @property
    def apart(self) -> bool:
        """Whether it goes to the outbox."""
        return self._inner is None

    @property
    def is_apart_from_the_start(self) -> bool:
        """Whether the store did not even make it."""
        return self._run_id is None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended is not None

    def info(self) -> RunInfo:
        """The run as it stands."""
        with self._lock:
            logged = self.logged_so_far
            return RunInfo(
                id=self.id,
                experiment=logged.experiment,
                name=logged.name,
                parent=logged.parent,
                status="running",
                start_time=logged.start_time,
                end_time=None,
                tags=dict(logged.tags),
                params=dict(logged.params),
                metrics=dict(logged.metrics),
                url=self.url,
            )

    def peek(self, path: str) -> bytes | None:
        """An artifact as it was logged, if this process still has it."""
        with self._lock:
            if self._draft is not None and (file := self._draft.file(path)) is not None:
                return file.read_bytes()
            source = self.logged_so_far.sources.get(path)
            return source if isinstance(source, bytes) else None

    def keep_apart(self, why: str) -> None:
        """Go to the outbox from now on, with everything that was logged so far.

        Raises:
            NoRoomError: If nothing can be kept there either.
        """
        logged = self.logged_so_far
        draft = self._tracker.outbox.begin(logged.local_id)
        try:
            for path, source in logged.sources.items():
                _keep_again(draft, logged.artifacts[path], source)
        except errors.LogError:
            draft.drop()
            raise
        self._draft, self._inner = draft, None
        logged.sources.clear()
        self._tracker.tell_once(
            f"Run {self.id} is kept in {draft.folder.parent}: {why} Bring it in by: trtops store upload"
        )

    def _folders(self) -> list[Path]:
        return (
            [self._draft.folder] if self._draft is not None else [] if self._inner is None else self._inner._folders()
        )

    def _put_params(self, params: Mapping[str, str]) -> None:
        with self._lock:
            if not self._stored(lambda run: run._put_params(params)):
                for name, value in params.items():
                    if (old := self.logged_so_far.params.get(name, value)) != value:
                        raise errors.LogError(
                            f"Param {name!r} of run {self.id} is {old!r} already; it cannot become {value!r}."
                        )
            self.logged_so_far.params.update(params)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        with self._lock:
            self._stored(lambda run: run._put_tags(tags))
            self.logged_so_far.tags.update(tags)

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        with self._lock:
            self._stored(lambda run: run._put_metrics(metrics))
            self.logged_so_far.metrics.update(metrics)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        inner = self._inner
        if inner is not None:
            try:
                entry = inner._put_artifact(source, path)
            except _AWAY as exc:
                self._leave(inner, exc)
            else:
                with self._lock:
                    self.logged_so_far.artifacts[path] = entry
                    if self._tracker.store is None:  # what a store on this machine has is here anyway
                        self.logged_so_far.sources[path] = source
                return entry
        with self._lock:
            assert self._draft is not None
            entry = self.logged_so_far.artifacts[path] = self._draft.put(source, path)
        return entry

    def _put_failure(self, tags: Mapping[str, str]) -> None:
        with self._lock:
            if not self._stored(lambda run: run._put_failure(tags)):
                self._put_tags(tags)
                self._end("failed")

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        with self._lock:
            if self._stored(lambda run: run._end(status, at)):
                return
            logged, draft = self.logged_so_far, self._draft
            assert draft is not None
            artifacts = logged.artifacts
            kept = KeptRun(
                store=self._tracker.shown,
                run_id=self._run_id,
                local_id=logged.local_id,
                experiment=logged.experiment,
                name=logged.name,
                parent=logged.parent,
                status=status,
                start_time=logged.start_time,
                end_time=time.time() if at is None else at,
                tags=logged.tags,
                params=logged.params,
                metrics=logged.metrics,
                artifacts=tuple(entry for _, entry in sorted(artifacts.items())),
                only_there=tuple(sorted(path for path in artifacts if draft.file(path) is None)),
            )
            try:
                draft.finish(kept)
            except OSError as exc:
                raise errors.NoRoomError(f"Run {self.id} could not be kept in {draft.folder.parent}: {exc}.") from exc
        if not self._no_room:
            self._tracker.bring_in()

    def _stored(self, put: Callable[[RunWriter], None]) -> bool:
        """Whether the store took something; if not, the run is kept apart from now on."""
        if self._inner is None:
            return False
        try:
            put(self._inner)
        except _AWAY as exc:
            self._leave(self._inner, exc)
            return False
        return True

    def _leave(self, inner: RunWriter, why: errors.TrackingError) -> None:
        with self._lock:
            if self._inner is not inner:  # another thread was first
                return
            self._no_room = isinstance(why, errors.NoRoomError)
            try:
                self.keep_apart(str(why))
            except errors.LogError as exc:
                raise type(why)(f"{why} {exc}") from why


def _keep_again(draft: KeptDraft, entry: ArtifactEntry, source: Path | bytes) -> None:
    """Keep an artifact that the store has, too, unless the file that it was made of is another one by now."""
    if isinstance(source, bytes) or source.is_file():
        draft.put(source, entry.path)
        if (file := draft.file(entry.path)) is not None and sha256_file(file) != entry.sha256:
            file.unlink()


class _KeptStoredRun(RunReader):
    """A whole run in an outbox."""

    def __init__(self, folder: KeptFolder, run: KeptRun, inner: Receiver, scratch: Scratch) -> None:
        manifest = folder.read(Artifact.MANIFEST)
        if manifest is None and Artifact.MANIFEST in run.only_there:
            manifest = inner.peek(run.id, Artifact.MANIFEST)
        super().__init__(run.info(), read_manifest(run.id, manifest))
        self._kept_folder, self._inner, self._scratch = folder, inner, scratch

    def unlisted(self, path: str) -> bytes | None:
        there = path in self._kept_folder.run.only_there if self._kept_folder.run is not None else False
        return self._inner.peek(self.info.id, path) if there else self._kept_folder.read(path)

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        file = self._kept_folder.file(entry.path)
        if file is not None:
            return file
        data = self._inner.peek(self.info.id, entry.path)
        if data is None:
            return None
        file = self._scratch.folder() / sha256(data) / Path(entry.path).name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        return file
