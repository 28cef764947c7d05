"""The board: the last verdict of each listed model on each device in each precision, and its trend over the nights."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from trtops import errors
from trtops.ops.engines.build_list import BuildListResult, BuildOutcome
from trtops.ops.result import OpResult, tracker_or_default
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section, Table
from trtops.reports.page import page
from trtops.system.files import open_atomically
from trtops.tables import listed
from trtops.tracking.base import Tracker
from trtops.tracking.records import RunInfo
from trtops.tracking.schema import Artifact, Tag
from trtops.verdict import MARKS, Verdict

_NO_BUILD = "·"


@dataclass(frozen=True, kw_only=True)
class BoardRow(Record):
    """A model on a device in a precision; ``marks`` and ``p50_ms`` are those of its nights, oldest first."""

    last: BuildOutcome
    host: str
    verdict: Verdict | None = None  # None if no night has one, since all builds were skipped
    nights: tuple[str, ...] = ()  # as YYYY-MM-DD
    marks: str = ""
    p50_ms: tuple[float, ...] = ()

    def after(self, outcome: BuildOutcome, night: str) -> "BoardRow":
        """The row after one more outcome. The last one of a night counts.

        A build that was skipped since the store has it, which its run shows, is good; any other leaves the verdict.
        """
        if outcome.outcome == "skipped" and not outcome.run_id:
            return self if self.verdict else replace(self, last=outcome)
        again = night in self.nights[-1:]
        verdict: Verdict = "good" if outcome.outcome == "skipped" else outcome.outcome
        return replace(
            self,
            last=outcome,
            verdict=verdict,
            nights=self.nights if again else (*self.nights, night),
            marks=(self.marks[:-1] if again else self.marks) + MARKS[verdict],
            p50_ms=self.p50_ms if outcome.p50_ms is None else (*self.p50_ms, outcome.p50_ms),
        )

    @property
    def title(self) -> str:
        """Model, precision, back end, device and machine."""
        build = self.last
        where = f"{build.device or 'no device'} of {self.host}"
        return f"{Path(build.model).name} {build.precision} {build.backend} ({where})"


@dataclass(frozen=True, kw_only=True)
class BoardResult(OpResult):
    """All rows, broken ones first; ``unfinished`` are lists whose last night did not end, with how it ended."""

    rows: tuple[BoardRow, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a row is bad or an error, ``unproven`` if one is or a list did not finish, else ``good``."""
        found = {row.verdict for row in self.rows}
        return "bad" if found & {"bad", "error"} else "unproven" if self.unfinished or "unproven" in found else "good"

    @property
    def headline(self) -> str:
        """The number of rows that are not good, and their models."""
        broken = dict.fromkeys(row.title for row in self.rows if row.verdict not in ("good", None))
        return f"{len(broken)} of {len(self.rows)} not good: {listed(broken)}" if broken else f"{len(self.rows)} good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each row that is not good, with its reasons, and each list that did not finish."""
        rows = (row for row in self.rows if row.verdict not in ("good", None))
        return (*self.unfinished, *(f"**{row.title}**: {row.verdict}. {' '.join(row.last.reasons)}" for row in rows))

    def body(self) -> Iterable[str]:
        """The reasons and the table."""
        yield from (f"- {reason}" for reason in self.reasons)
        yield from super().body()

    def sections(self) -> Iterable[Section]:
        """The table of all rows, and the errors as shares of their limits."""
        columns = (
            "model",
            "back end",
            "device",
            "machine",
            "precision",
            "verdict",
            "error / limit",
            "p50 ms",
            "change",
        )
        rows = tuple(
            (
                Path(row.last.model).name,
                row.last.backend,
                row.last.device or None,
                row.host,
                row.last.called or row.last.precision.upper(),
                row.verdict or row.last.outcome,
                row.last.of_limit,
                row.last.p50_ms,
                f"{row.p50_ms[-1] / row.p50_ms[0] - 1:+.0%}" if len(row.p50_ms) > 1 and row.p50_ms[0] else None,
                row.marks or _NO_BUILD,
                row.nights[-1] if row.nights else None,
                row.last.run_id[:8] or None,
            )
            for row in self.rows
        )
        yield Section(table=Table(columns=(*columns, "nights", "last", "run"), rows=rows))
        points = tuple(
            Point(label=row.title, y=row.last.of_limit, tone=row.verdict or "plain")
            for row in self.rows
            if row.last.of_limit is not None
        )
        if points:
            meaning = "error as a share of its limit (above 1 is bad)"
            yield Section(title="Errors", chart=Chart(title="Errors", form="bars", x=meaning, points=points))


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
    rows, unfinished = list[BoardRow](), list[str]()
    for name, host in dict.fromkeys((info.experiment, info.tags.get(Tag.HOST, "")) for info in runs):
        own = [info for info in runs if (info.experiment, info.tags.get(Tag.HOST, "")) == (name, host)]
        shown = sorted({_night(info) for info in own})[-nights:]
        # Rows by device, the newest last, of each build; entries of a list may differ in options only.
        by_build: dict[tuple[str, str, str, int], dict[str, BoardRow]] = {}
        data = None
        for info in reversed(own):
            data = tracker.peek(info.id, Artifact.BUILD_LIST) if _night(info) in shown else None
            entries = Counter[tuple[str, str, str]]()
            for outcome in BuildListResult.from_json(data).builds if data is not None else ():
                build = (outcome.model, outcome.backend, outcome.precision)
                devices = by_build.setdefault((*build, entries[build]), {})
                entries[build] += 1
                device = outcome.device or next(reversed(devices), "")
                row = devices.pop(device, None) or devices.pop("", None) or BoardRow(last=outcome, host=host)
                devices[device] = row.after(replace(outcome, device=device), _night(info))
        rows += [row for devices in by_build.values() for row in devices.values()]
        if data is None and own[0].status != "running":
            unfinished.append(f"The last run of {name} on {host} ended as {own[0].status}: {own[0].id[:8]}.")
    order = {"bad": 0, "error": 0, "unproven": 1}
    rows.sort(key=lambda row: (order.get(row.verdict or "", 2), row.title))
    result = BoardResult(title="board", rows=tuple(rows), unfinished=tuple(unfinished))
    if output is not None:
        with open_atomically(output) as file:
            file.write(page(result.document(), runs[0], (), {}).encode())
    return result


def _night(info: RunInfo) -> str:
    return f"{datetime.fromtimestamp(info.start_time, timezone.utc):%Y-%m-%d}"
