"""Descriptions and reports: written into a run before it ends, and reports of any run from the store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from trtops import errors
from trtops.reports.description import description
from trtops.reports.document import Document
from trtops.reports.page import page
from trtops.reports.run_view import RunView, document_of, stored_sections
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker
from trtops.tracking.schema import Artifact, Tag

log = logging.getLogger(__name__)

_PICTURES = (".svg", ".png")
_HEADLINE = 120
"""Characters of a headline that fit into a table of runs."""


def present(run: Run, tracker: Tracker, document: Document) -> None:
    """Write the description and the report of a run that is about to end. Problems are only logged."""
    try:
        info = tracker.info(run.id)
        paths = [entry.path for entry in run.logged() if entry.path.endswith(_PICTURES)]

        def read(path: str) -> bytes | None:
            with contextlib.suppress(errors.TrackingUnavailableError):
                return tracker.peek(run.id, path)
            return None

        def children(limit: int) -> Sequence[RunInfo]:
            with contextlib.suppress(errors.TrackingUnavailableError):  # `trtops report` shows them later
                return tracker.find(info.experiment, parent=info.id, limit=limit)
            return ()

        view = RunView(info=info, read=read, pictures=paths, children=children)
        headline = document.headline if document.headline != document.verdict else ""
        summary = headline or "; ".join(document.why)
        run.set_tags({Tag.NOTE: description(document, info, stored_sections(view)), Tag.HEADLINE: summary[:_HEADLINE]})
        run.log_json(document, Artifact.REPORT_DATA)
        run.log_text(page(document, view), Artifact.REPORT)
    except errors.NoRoomError:
        raise
    except Exception as exc:
        log.warning("The report of run %s could not be written: %s: %s", run.id, type(exc).__name__, exc)


def report_page(tracker: Tracker, run_id: str) -> str:
    """The report of a run as an HTML page, from the store.

    Complete runs are read through their manifest. Of an incomplete run, only tags, params and metrics are shown.

    Raises RunNotFoundError if there is no such run; IncompleteRunError if a file does not match the manifest.
    """
    view = _stored_view(tracker, run_id)
    return page(document_of(view.info, view.read), view)


def _stored_view(tracker: Tracker, run_id: str) -> RunView:
    """A run from the store."""
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

    return RunView(info=info, read=read, pictures=[p for p in paths if p.endswith(_PICTURES)], children=children)
