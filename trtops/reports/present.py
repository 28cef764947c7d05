"""Descriptions and reports: written into a run before it ends, and reports of any run from the store."""

import contextlib
import logging
import textwrap
from dataclasses import replace
from itertools import chain, combinations

from trtops import errors
from trtops.reports.description import description
from trtops.reports.document import Document
from trtops.reports.page import layout, page
from trtops.reports.sections import document_of, stored_sections
from trtops.tracking.base import Run, StoredRun, Tracker
from trtops.tracking.schema import BUILD_FILES, Artifact, Tag

log = logging.getLogger(__name__)

_PICTURES = (".svg", ".png")
# Characters of a headline that fit into a table of runs.
_HEADLINE = 100


def present(run: Run, tracker: Tracker, document: Document) -> None:
    """Write the description and the report of a run about to end. Problems are only logged."""

    def read(path: str) -> bytes | None:
        holder = info.tags.get(Tag.REUSED_FROM)
        with contextlib.suppress(errors.TrackingError):
            if holder is not None and path.startswith(BUILD_FILES):
                return tracker.load(holder).read_bytes(path)
            return tracker.peek(run.id, path)
        return None

    try:
        document = Document.from_json(document.to_json())  # the page shows numbers as they are read back
        info = tracker.info(run.id)
        sections = list(stored_sections(tracker, info, read))
        if run.is_spooling:  # the store has builds as they were before it went away
            sections = [section for section in sections if section.title != "Builds"]
        paths = sorted(entry.path for entry in run.logged() if entry.path.endswith(_PICTURES))
        pictures = {path: read(path) for path in paths}
        headline = document.headline if document.headline != document.verdict else ""
        summary = headline or "; ".join(document.reasons)
        summary = textwrap.shorten(summary, _HEADLINE, placeholder=" …")
        run.set_tags({Tag.NOTE: description(document, info, sections), Tag.HEADLINE: summary})
        run.log_json(document, Artifact.REPORT_DATA)
        run.log_text(page(document, info, sections, pictures), Artifact.REPORT)
    except errors.NoRoomError:
        raise
    except Exception as exc:
        # A build that took hours must not fail because of its page.
        log.warning("The report of run %s could not be written: %s: %s", run.id, type(exc).__name__, exc)


def render_report(tracker: Tracker, stored: StoredRun) -> list[tuple[str, str]]:
    """The report and the description of a finished run, as they may have been drawn from its data and the store.

    Empty if another release drew them. Several if the run was spooled, since parts of the store could not be read then.
    """
    if f'layout {layout()}"'.encode() not in stored.read_bytes(Artifact.REPORT):
        return []
    info, stated = stored.info, stored.manifest.run
    spooled = stated is not None and stated.spooled
    if stated is not None:  # a spooled run was drawn under its local id
        info = replace(info, id=stated.id, parent=stated.parent)
    document, sections = document_of(info, stored.get), list(stored_sections(tracker, info, stored.get))
    paths = [entry.path for entry in stored.manifest.original().artifacts if entry.path.endswith(_PICTURES)]
    needed = [title for title in ("Outputs", "Builds", "Layers") if spooled]
    drawn = []
    for missing in chain.from_iterable(combinations(needed, count) for count in range(len(needed) + 1)):
        shown = [section for section in sections if not section.title.startswith(missing)]
        for pictures in (paths, []) if spooled and paths else (paths,):
            texts = {path: stored.get(path) for path in pictures}
            drawn.append((page(document, info, shown, texts), description(document, info, shown)))
    return drawn


def report_page(tracker: Tracker, run_id: str) -> str:
    """The report of a run as an HTML page, from the store.

    Complete runs are read through their manifest. Of an incomplete run, only tags, params and metrics are shown.

    Raises RunNotFoundError if there is no such run; IncompleteRunError if a file does not match the manifest.
    """
    info = tracker.info(run_id)
    stored: StoredRun | None = None
    with contextlib.suppress(errors.IncompleteRunError):
        stored = tracker.load(run_id)

    def read(path: str) -> bytes | None:
        return None if stored is None else stored.get(path)

    entries = stored.manifest.artifacts if stored is not None else ()
    pictures = {entry.path: read(entry.path) for entry in entries if entry.path.endswith(_PICTURES)}
    return page(document_of(info, read), info, list(stored_sections(tracker, info, read)), pictures)
