"""A run's description and report, written into it just before it ends; and the report of any run, from the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from trtops import errors
from trtops.reports.description import description
from trtops.reports.document import Document
from trtops.reports.page import page
from trtops.reports.sight import Sight, difference, document_of, further_sections
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker
from trtops.tracking.schema import Artifact, Tag

log = logging.getLogger(__name__)

_PICTURES = (".svg", ".png")
_HEADLINE = 120
"""Characters of a headline that fit into a table of runs."""


def present(run: Run, tracker: Tracker, document: Document) -> None:
    """Write description and report into a run that is about to end.

    What cannot be shown is told as a warning: no run fails for its page.
    """
    try:
        info = tracker.info(run.id)
        paths = [entry.path for entry in run.logged()[0] if entry.path.endswith(_PICTURES)]
        sight = Sight(
            info=info,
            read=lambda path: _reachable_file(tracker, run.id, path),
            pictures=paths,
            children=lambda limit: _reachable_children(tracker, info, limit),
        )
        said = document.headline if document.headline != document.verdict else ""
        summary = said or "; ".join(document.why)
        run.set_tags(
            {Tag.NOTE: description(document, info, further_sections(sight)), Tag.HEADLINE: summary[:_HEADLINE]}
        )
        run.log_json(document, Artifact.REPORT_DATA)
        run.log_text(page(document, sight), Artifact.REPORT)
    except errors.NoRoomError:
        raise
    except Exception as exc:
        log.warning("The report of run %s could not be written: %s: %s", run.id, type(exc).__name__, exc)


def _reachable_file(tracker: Tracker, run_id: str, path: str) -> bytes | None:
    """A file of a run; None while the store that has it is away."""
    try:
        return tracker.peek(run_id, path)
    except errors.TrackingUnavailableError:
        return None


def _reachable_children(tracker: Tracker, info: RunInfo, limit: int) -> Sequence[RunInfo]:
    """The runs below one; none while the store is away, where a report is drawn anew once it is back (:func:`report_page`)."""
    try:
        return tracker.find(info.experiment, parent=info.id, limit=limit)
    except errors.TrackingUnavailableError:
        return ()


def report_page(tracker: Tracker, run_id: str) -> str:
    """The report of a run as an HTML page, drawn from what the store holds of it.

    Whole runs are read through their manifest. Of a run that is not, only what stands in its tags, params and metrics is
    shown.

    Args:
        tracker: The memory.
        run_id: The run's id, whole.

    Raises:
        RunNotFoundError: If there is no such run.
        IncompleteRunError: If a file is not what the manifest says.
    """
    sight = _stored_sight(tracker, run_id)
    return page(document_of(sight.info, sight.read), sight)


def difference_page(tracker: Tracker, first: str, second: str) -> str:
    """Two runs side by side as an HTML page; raises as :func:`report_page`."""
    one, other = _stored_sight(tracker, first), _stored_sight(tracker, second)
    shown = replace(one.info, params={}, metrics={})
    bare = Sight(info=shown, read=lambda path: None, pictures=(), children=lambda limit: ())
    return page(difference(one, other), bare)


def _stored_sight(tracker: Tracker, run_id: str) -> Sight:
    """A run as the store holds it."""
    info = tracker.info(run_id)
    try:
        stored: StoredRun | None = tracker.load(run_id)
    except errors.IncompleteRunError:
        stored = None
    paths = [] if stored is None else [entry.path for entry in stored.manifest.artifacts]

    def read(path: str) -> bytes | None:
        return stored.read_bytes(path) if stored is not None and path in stored.manifest else None

    def children(limit: int) -> list[RunInfo]:
        return tracker.find(info.experiment, parent=info.id, limit=limit)

    return Sight(info=info, read=read, pictures=[p for p in paths if p.endswith(_PICTURES)], children=children)
