"""The board: the last verdict of each listed model on each device in each precision, and its trend over the nights."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.engines.build_list import BuildListResult, BuildOutcome
from trtops.ops.result import OpResult, tracker_or_default
from trtops.record import Record
from trtops.reports.document import Section, Table
from trtops.reports.page import page
from trtops.system.files import open_atomically
from trtops.tracking.base import Tracker
from trtops.tracking.owner import host_of
from trtops.tracking.records import RunInfo
from trtops.tracking.schema import Artifact, Tag
from trtops.verdict import MARKS, Verdict


@dataclass(frozen=True, kw_only=True)
class BoardRow(Record):
    """A model on a device of a machine in a precision, with its last outcome of each night, by YYYY-MM-DD in order."""

    host: str
    nights: Mapping[str, BuildOutcome]

    @property
    def last(self) -> BuildOutcome:
        """The last outcome not skipped; a bad one counts as failed, whatever the policy of its list."""
        *_, latest = sorted(self.nights.values(), key=lambda outcome: outcome.outcome != "skipped")
        return replace(latest, failed=latest.outcome in ("bad", "error"))


@dataclass(frozen=True, kw_only=True)
class BoardResult(OpResult):
    """All rows, broken ones first; ``unfinished`` are lists without an end of the last night, with the reason."""

    rows: tuple[BoardRow, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def _last(self) -> BuildListResult:
        return BuildListResult(builds=tuple(row.last for row in self.rows))

    @property
    def verdict(self) -> Verdict:
        """That of a list with these outcomes; unproven instead of good if a list did not finish."""
        return "unproven" if self.unfinished and self._last.verdict == "good" else self._last.verdict

    @property
    def headline(self) -> str:
        """The number of outcomes of each kind, and the broken models."""
        return self._last.headline

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each unfinished list, and each row not good, with its reasons."""
        return (*self.unfinished, *self._last.reasons)

    def sections(self) -> Iterable[Section]:
        """The table of all rows."""
        yield Section(table=self.table())

    def table(self) -> Table:
        """Return a row for each model, device and precision, broken ones first."""
        table = []
        for row in self.rows:
            last, times = row.last, [night.p50_ms for night in row.nights.values() if night.p50_ms]
            model = Path(last.model).name
            precision = last.called or last.precision.upper()
            table.append((
                model, last.backend, last.device or None, row.host, precision, last.outcome, last.of_limit, last.p50_ms,
                f"{times[-1] / times[0] - 1:+.0%}" if len(times) > 1 else None,
                "".join("·" if night.outcome == "skipped" else MARKS[night.outcome] for night in row.nights.values()),
                max(row.nights), last.run_id[:8] or None,
            ))  # fmt: skip
        build = ("model", "back end", "device", "machine", "precision")
        columns = (*build, "verdict", "error / limit", "p50 ms", "change", "nights", "last", "run")
        return Table(columns=columns, rows=tuple(table))


@checked_arguments
def board(*, tracker: Tracker | None = None, nights: int = 14, output: str | Path | None = None) -> BoardResult:
    """The board of all lists of the store, from the results of their builds.

    A model whose device is not known, since nothing could be built, is shown on the device where it was built last. One
    that is no longer listed stays for as many nights of its list as are shown.

    Args:
        tracker: The tracking store.
        nights: Number of days with builds, for each list and machine.
        output: Also write the board as a page of HTML.
    """
    if nights < 1:
        raise errors.ConfigError(f"nights is {nights}; expected 1 or more.")
    tracker = tracker_or_default(tracker)
    runs = tracker.find(tags={Tag.KIND: "build_list"})
    if not runs:
        raise errors.ConfigError("The store has no run of a list. Make one: trtops build-list models.yaml")
    runs_by_list: dict[tuple[str, str], list[RunInfo]] = {}
    for info in runs:
        runs_by_list.setdefault((info.experiment, host_of(info)), []).append(info)
    rows, unfinished = list[BoardRow](), list[str]()
    for (name, host), list_runs in runs_by_list.items():
        is_finished = _add_rows(rows, list_runs, host, nights, tracker)
        status, run_id = list_runs[0].status, list_runs[0].id[:8]
        if not is_finished and status != "running":
            unfinished.append(f"The last run of {name} on {host} is {status}, without a result: {run_id}.")
    order = {"bad": 0, "error": 0, "unproven": 1}
    rows.sort(key=lambda row: (order.get(row.last.outcome, 2), row.last.model))
    board_result = BoardResult(title="board", rows=tuple(rows), unfinished=tuple(unfinished))
    if output is not None:
        with open_atomically(output) as file:
            file.write(page(board_result.document(), runs[0], (), {}).encode())
    return board_result


def _add_rows(rows: list[BoardRow], list_runs: list[RunInfo], host: str, nights: int, tracker: Tracker) -> bool:
    """Add a row for each build of a list on each device; return whether the list's newest run has a result."""
    shown = sorted(set(map(_night, list_runs)))[-nights:]
    # Nights by device, the newest last, of each build; entries of a list may differ in options only.
    by_build: dict[tuple[str, str, str, int], dict[str, dict[str, BuildOutcome]]] = {}
    result = None
    for info in reversed(list_runs):
        data = tracker.peek(info.id, Artifact.BUILD_LIST) if _night(info) in shown else None
        entries, result = Counter[tuple[str, str, str]](), None
        with contextlib.suppress(errors.FormatError):  # the run is damaged
            result = None if data is None else BuildListResult.from_json(data)
        for outcome in () if result is None else result.builds:
            build = (outcome.model, outcome.backend, outcome.precision)
            devices = by_build.setdefault((*build, entries[build]), {})
            entries[build] += 1
            device = outcome.device or next(reversed(devices), "")
            devices[device] = row = devices.pop(device, None) or devices.pop("", None) or {}
            if outcome.outcome != "skipped" or outcome.run_id:  # the store has a good one
                good = outcome.outcome == "skipped"
                row[_night(info)] = replace(outcome, device=device, outcome="good" if good else outcome.outcome)
            else:
                row.setdefault(_night(info), outcome)
    for devices in by_build.values():
        rows += (BoardRow(host=host, nights=row) for row in devices.values())
    return result is not None


def _night(info: RunInfo) -> str:
    return f"{datetime.fromtimestamp(info.start_time, timezone.utc):%Y-%m-%d}"
