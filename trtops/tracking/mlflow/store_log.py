"""The log of a store in MLflow: entries are params of runs in an experiment of their own.

A param can be set once: MLflow refuses another value, also over HTTP. Of two processes that write an entry with the
same number, one is therefore refused, and takes the next number. A run has ``_PAGE`` entries, so that the last one is
found quickly, and then the id of the next run, by the same rule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from trtops import errors
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.store_log import Entry, Event, Facts, grown, head_of

log = logging.getLogger(__name__)

EXPERIMENT = "trtops.log"

_PAGE = 100
_TRIES = 200  # of 0.05 s each, for the process that makes the log to make its first run
_NEXT = "next"
_NOTE = {"mlflow.note.content": "Do not edit or delete: the log of this store, for `trtops runs audit`."}


class _End(NamedTuple):
    """Where the log ends: the last run with entries, the number of all, and their tree."""

    page: str
    size: int = 0
    tree: tuple[str, ...] = ()

    def after(self, text: str) -> _End:
        return self._replace(size=self.size + 1, tree=grown(self.tree, self.size, text))


class StoreLog:
    """The log of an embedded store or a server, made with its first entry."""

    def __init__(self, connection: Connection, pages: Callable[..., Iterator[Any]]) -> None:
        self._connection, self._pages = connection, pages
        self._call = connection.call
        self._end: _End | None = None  # as far as this process knows

    def entries(self) -> tuple[dict[int, str], list[str]]:
        """The texts of all entries by number, and the parts deleted in MLflow."""
        texts, problems = dict[int, str](), list[str]()
        if (experiment := self._connection.experiment(EXPERIMENT)) is None:
            return texts, problems
        if experiment.lifecycle_stage != "active":
            problems.append(f"experiment {EXPERIMENT!r} was deleted in MLflow")
        search = self._connection.client.search_runs
        for run in self._pages(search, [experiment.experiment_id], run_view_type=3, size=_PAGE):  # deleted ones too
            if (page_entries := _entries(run)) and run.info.lifecycle_stage != "active":
                problems.append(f"entries {min(page_entries)} to {max(page_entries)} were deleted in MLflow")
            texts |= page_entries
        return texts, problems

    def head(self) -> str:
        """The present head, or a former one seen by this process; empty without a log."""
        # append() warns about a damaged log.
        with suppress(errors.StoreError, errors.RunNotFoundError, errors.LogError):
            self._end = self._end or self._find_end()
        return head_of(self._end.tree, self._end.size) if self._end else ""

    def append(self, event: Event, run: str, facts: Facts) -> None:
        """Add an entry. A deleted log leads to a warning only.

        Raises TrackingUnavailableError or NoRoomError if the store cannot be written now.
        """
        try:
            while True:
                end = self._end or self._find_end() or self._make()
                if end.size and end.size % _PAGE == 0:
                    new_page = self._make_page()
                    end = end._replace(page=self._set_once(end.page, _NEXT, new_page))
                    if end.page != new_page:
                        self._call(self._connection.client.delete_run, new_page)
                entry = Entry(tree=end.tree, event=event, time=round(time.time(), 3), run=run, facts=facts)
                text = entry.to_json(indent=None)
                if self._set_once(end.page, str(end.size), text) == text:
                    self._end = end.after(text)
                    return
                self._end = None  # another process was first
        except (errors.TrackingUnavailableError, errors.NoRoomError):
            raise
        except errors.TrackingError as exc:
            self._end = None
            log.warning("Run %s is not in the log of the store, experiment %s (%s): %s", run, EXPERIMENT, event, exc)

    def _set_once(self, run_id: str, key: str, value: str) -> str:
        """Set a param unless it is set, and return its value."""
        try:
            self._call(self._connection.client.log_param, run_id, key, value)
        except errors.LogError:
            stored_value = self._call(self._connection.client.get_run, run_id).data.params.get(key)
            if stored_value is None:
                raise
            return str(stored_value)
        return value

    def _find_end(self) -> _End | None:
        """The end of the log; None if the store has none."""
        if (experiment := self._connection.experiment(EXPERIMENT)) is None:
            return None
        if experiment.lifecycle_stage != "active":
            raise errors.StoreError(f"Experiment {EXPERIMENT!r} was deleted in MLflow. Restore it.")
        options: dict[str, Any] = {"order_by": ["attributes.start_time DESC"], "max_results": 3}
        newest = self._call(self._connection.client.search_runs, [experiment.experiment_id], **options)
        # A process that was not first leaves a run without entries for a moment.
        page = max(newest, key=lambda run: max(_entries(run), default=-1), default=None)
        while page is not None and _NEXT in page.data.params:
            following = self._call(self._connection.client.get_run, page.data.params[_NEXT])
            if not _entries(following):
                break
            page = following
        if page is None or not (page_entries := _entries(page)):
            return None if page is None else _End(page.info.run_id)
        number = max(page_entries)
        try:
            tree = Entry.read(number, page_entries[number]).tree
        except errors.FormatError:  # it was damaged, which an audit reports
            texts, tree = self.entries()[0], ()
            for size in range(number):
                tree = grown(tree, size, texts.get(size, ""))
        return _End(page.info.run_id, number, tree).after(page_entries[number])

    def _make(self) -> _End:
        """Create the log, or wait for the process creating it."""
        location = self._connection.store and str(self._connection.store.artifacts_of(EXPERIMENT))
        try:
            self._call(self._connection.client.create_experiment, EXPERIMENT, location, _NOTE)
        except errors.StoreError:
            for _ in range(_TRIES):
                if self._connection.experiment(EXPERIMENT) is None:
                    raise
                if (end := self._find_end()) is not None:
                    return end
                time.sleep(0.05)
        return _End(self._make_page())

    def _make_page(self) -> str:
        experiment = self._connection.experiment(EXPERIMENT)
        run = self._call(self._connection.client.create_run, experiment.experiment_id, tags=_NOTE, run_name="entries")
        run_id = run.info.run_id
        # It takes params nevertheless, and is not shown as running.
        self._call(self._connection.client.set_terminated, run_id, "FINISHED")
        return str(run_id)


def _entries(run: Any) -> dict[int, str]:
    # A forged number must not make an audit endless.
    return {int(key): text for key, text in run.data.params.items() if key.isdecimal() and len(key) < 7}
