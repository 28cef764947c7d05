"""What was kept in an outbox is brought into its store: once, under the ids that it had.

A run that the store has made is completed under its id. One that it has not is made now; its local id, a tag, keeps it
from being made twice, however often this is interrupted, and goes on to be taken wherever a run's id is. Runs are made from
parents to children and completed from children to parents, so that a campaign is whole after its iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtops import errors
from trtops.record import Record
from trtops.tracking.base import RunInfo
from trtops.tracking.ids import is_local
from trtops.tracking.outbox import KeptFolder, KeptRun, Outbox
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.writer import RunWriter

if TYPE_CHECKING:
    from trtops.tracking.receiver import Receiver


@dataclass(frozen=True, kw_only=True)
class Uploaded(Record):
    """What became of a run of an outbox.

    Attributes:
        folder: Its folder in the outbox.
        outcome: ``left`` there if it could not be brought in.
        run_id: Its id in the store; empty if it has none.
        name: Its name; empty if it cannot be read.
        why: Why it was left.
    """

    folder: str
    outcome: Literal["brought in", "left"]
    run_id: str = ""
    name: str = ""
    why: str = ""


def upload(tracker: Receiver, outbox: Outbox, *, moved: bool = False) -> list[Uploaded]:
    """Bring in what is kept for a store.

    Args:
        tracker: The store's own tracker.
        outbox: Where runs are kept.
        moved: Whether runs that were meant for another address are for this store, too.

    Returns:
        What became of each run. Nothing if another process is about it.

    Raises:
        TrackingUnavailableError: If the store does not answer. What was not brought in is kept.
        NoRoomError: If it has no room, likewise.
    """
    with outbox.locked() as mine:
        return list(_brought_in(tracker, outbox, moved)) if mine else []


def _brought_in(tracker: Receiver, outbox: Outbox, moved: bool) -> Iterator[Uploaded]:
    opened: list[tuple[KeptFolder, KeptRun, RunWriter | None]] = []
    ids: dict[str, str] = {}
    for folder in outbox.folders():
        try:
            run = _checked_run(folder, tracker.shown, moved)
            if (parent := run.parent) is not None and is_local(parent) and parent not in ids:
                ids |= _id_of_parent(tracker, outbox, parent)
            writer = _open_receiving(tracker, folder, _with_ids(run, ids))
        except _AWAY:
            raise
        except errors.TrtopsError as exc:
            yield _left_behind(folder, exc)
            continue
        ids[run.local_id] = run.id if writer is None else writer.id
        opened.append((folder, run, writer))
    for folder, run, writer in reversed(opened):
        try:
            if writer is not None:
                writer.restore(_with_ids(run, ids).info(), dict(_files_to_send(folder, run)))
        except _AWAY:
            raise
        except errors.TrtopsError as exc:
            yield _left_behind(folder, exc)
            continue
        folder.remove()
        yield Uploaded(folder=str(folder.path), outcome="brought in", run_id=ids[run.local_id], name=run.name)


_AWAY = (errors.TrackingUnavailableError, errors.NoRoomError)


def _checked_run(folder: KeptFolder, shown: str, moved: bool) -> KeptRun:
    """The run of a folder whose every file is as it was written.

    Raises:
        FormatError: If one is not.
        ConfigError: If it is meant for another store.
    """
    folder.check()
    assert folder.run is not None
    if folder.run.store != shown and not moved:
        raise errors.ConfigError(
            f"It is meant for {folder.run.store}, and this is {shown}. If that store has moved here, say --moved."
        )
    return folder.run


def _open_receiving(tracker: Receiver, folder: KeptFolder, run: KeptRun) -> RunWriter | None:
    """A run of the store to be written; None if it is whole there."""
    known = run.run_id and _find_run(tracker, run.run_id)
    if known:
        if _is_whole(tracker, known, folder):
            return None
        if known.tags.get(Tag.OWNER) != run.tags.get(Tag.OWNER):
            raise errors.LogError(
                f"Run {known.id} was taken over by another process meanwhile, on {known.tags.get(Tag.HOST)}, and is {known.status}."
            )
        return tracker.rewrite(known.id)
    if run.only_there:
        raise errors.RunNotFoundError(
            f"{tracker.shown} does not have run {run.id} any more, which alone had {', '.join(run.only_there)}."
        )
    return tracker.create(run.experiment, run.name, tags=run.tags, parent=run.parent, began=run.start_time, known=True)


def _id_of_parent(tracker: Receiver, outbox: Outbox, local_id: str) -> dict[str, str]:
    """The id that the store gave to a parent by now; nothing if it will never have one.

    Raises:
        ConfigError: If it will have one.
    """
    if (known := _find_run(tracker, local_id)) is not None:
        return {local_id: known.id}
    if outbox.is_being_written(local_id):
        raise errors.ConfigError(f"Its parent {local_id} is still being written. Bring it in when that has ended.")
    return {}


def _find_run(tracker: Receiver, run_id: str) -> RunInfo | None:
    try:
        return tracker.info(run_id)
    except errors.RunNotFoundError:
        return None


def _is_whole(tracker: Receiver, info: RunInfo, folder: KeptFolder) -> bool:
    """Whether only the removal of the folder was lost."""
    manifest = folder.read(Artifact.MANIFEST)
    return info.status == "finished" and manifest == tracker.peek(info.id, Artifact.MANIFEST) is not None


def _with_ids(run: KeptRun, ids: dict[str, str]) -> KeptRun:
    """A run that names others by the ids that the store gave them."""
    tags = {name: value if name == Tag.LOCAL_ID else ids.get(value, value) for name, value in run.tags.items()}
    return replace(run, tags=tags, parent=None if run.parent is None else ids.get(run.parent, run.parent))


def _files_to_send(folder: KeptFolder, run: KeptRun) -> Iterator[tuple[str, Path]]:
    paths = sorted((entry.path for entry in run.artifacts), key=lambda path: (path == Artifact.MANIFEST, path))
    for path in paths:
        if (file := folder.file(path)) is not None:
            yield path, file


def _left_behind(folder: KeptFolder, why: errors.TrtopsError) -> Uploaded:
    run = folder.run
    known = {} if run is None else {"run_id": run.run_id or "", "name": run.name}
    return Uploaded(folder=str(folder.path), outcome="left", why=str(why), **known)
