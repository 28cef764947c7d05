"""Report: a run, or two engines side by side, as one HTML file to look at, print and send around."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.files import open_atomically
from trtops.record import Record
from trtops.reports.present import difference_page, report_page
from trtops.tracking.base import Tracker


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """A report that was written.

    Attributes:
        path: The file.
        runs: The runs that it is about.
    """

    path: str
    runs: tuple[str, ...]


def report(run: str, beside: str | None = None, *, tracker: Tracker, output: str | Path | None = None) -> Report:
    """Write the report of a run, or of two runs side by side.

    Args:
        run: A run's id, or what it begins with.
        beside: Another run, to be held against the first one.
        tracker: The memory.
        output: The file to write; ``report-<run>.html`` here unless given.

    Raises:
        RunNotFoundError: If there is no such run.
        IncompleteRunError: If a file of a run is not what its manifest says.
        ConfigError: If the file cannot be written.
    """
    runs = tuple(tracker.whole_id(each) for each in (run, beside) if each is not None)
    page = report_page(tracker, runs[0]) if len(runs) == 1 else difference_page(tracker, runs[0], runs[1])
    path = Path(output) if output is not None else Path(f"report-{'-'.join(each[:8] for each in runs)}.html")
    try:
        with open_atomically(path) as file:
            file.write(page.encode("utf-8"))
    except OSError as exc:
        raise errors.ConfigError(
            f"The report cannot be written to {path}: {exc.strerror}. Give another --output."
        ) from None
    return Report(path=str(path.absolute()), runs=runs)
