"""Output for terminals: progress bars below log lines, and pages whose tables fit the width.

In a file or a pipe, pages are plain text and there are no bars. rich is imported on first use, since ``trtops -h``
must be fast.
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from trtops.tables import column_widths, markdown_table, table, text_columns

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

_WIDEST = 120  # characters of an aligned table in a file


class Bar:
    """A progress bar; shows nothing without a terminal."""

    def __init__(self, shown: Progress | None, label: str, unit: str, total: int | None) -> None:
        """Make a bar; ``shown`` is None without a terminal."""
        self._shown, self._unit = shown, unit
        self._task = shown.add_task(label, total=total, note=unit) if shown is not None else None

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show how much is done, of how much if that is known by now, and a note."""
        if self._shown is not None and self._task is not None:
            known = {} if total is None else {"total": total}
            self._shown.update(self._task, completed=done, note=f"{self._unit}{note}", **known)  # type: ignore[arg-type]


@contextmanager
def progress(label: str, unit: str, total: int | None = None, file: TextIO | None = None) -> Iterator[Bar]:
    """Show a bar during a block, on standard error unless a file is given. Log lines and prints appear above it."""
    file = sys.stderr if file is None else file
    if not file.isatty():
        yield Bar(None, label, unit, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=_console(file)) as shown, _logs_above():
        yield Bar(shown, label, unit, total)


@contextmanager
def _logs_above() -> Iterator[None]:
    """Redirect log handlers to the ``sys.stderr`` of rich, which prints their lines above the bar."""
    real = {sys.__stderr__, sys.__stdout__, getattr(sys.stderr, "rich_proxied_file", None)}
    real |= {getattr(sys.stdout, "rich_proxied_file", None)}
    changed: list[tuple[Any, str, Any]] = []
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", ())}:
        for holder, name in ((handler, "stream"), (getattr(handler, "console", None), "file")):
            held = getattr(holder, name, None)
            if held is not None and held in real:
                changed.append((holder, name, held))
                setattr(holder, name, sys.stderr)
    try:
        yield
    finally:
        for holder, name, held in changed:
            setattr(holder, name, held)


def page_text(page: str) -> str:
    """Return a page of Markdown for a file or a pipe, with aligned columns unless a table is too wide."""
    lines: list[str] = []
    for is_table, block in _blocks(page):
        lines += _aligned(block) if is_table else block
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _aligned(block: list[str]) -> list[str]:
    head, *body = _cells(block)
    if any(len(row) != len(head) for row in body):
        return block
    if sum(widths := column_widths([head, *body])) + 3 * len(widths) > _WIDEST:
        return block
    return markdown_table(head, body, aligned=True).splitlines()


def print_page(page: str, file: TextIO | None = None) -> None:
    """Print a page of Markdown: on a terminal with tables that fit it, elsewhere as :func:`page_text`."""
    file = sys.stdout if file is None else file
    if not file.isatty():
        print(page_text(page), file=file, flush=True)
        return
    shown: list[RenderableType] = []
    for is_table, block in _blocks(page):
        cells = _cells(block) if is_table else []
        if is_table and all(len(row) == len(cells[0]) for row in cells):
            shown.append(_rich_table(cells[0], cells[1:]))
        else:
            shown += _rich_lines(block)
    console = _console(file)
    for part in shown:
        console.print(part, soft_wrap=False)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], file: TextIO | None = None) -> None:
    """Print a table: on a terminal to fit it, elsewhere in columns of plain text."""
    file = sys.stdout if file is None else file
    listed = list(rows)
    if file.isatty():
        _console(file).print(_rich_table(header, listed))
    else:
        print(table(header, listed), file=file, flush=True)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)


def _rich_lines(lines: list[str]) -> Iterator[RenderableType]:
    from rich.text import Text

    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    for line in text.splitlines():
        yield Text(line.lstrip("# "), style="bold") if line.startswith("#") else Text(line)


def _rich_table(header: Sequence[str], rows: list[list[str]] | list[Sequence[str]]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_text in zip(header, text_columns(header, rows)):
        made.add_column(Text(name), justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell.strip("`")) for cell in row))
    return made


def _blocks(page: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the lines of a page in blocks, each table as one block."""
    for is_table, group in itertools.groupby(page.rstrip().splitlines(), lambda line: line.startswith("|")):
        yield is_table, list(group)


def _cells(block: list[str]) -> list[list[str]]:
    """Return the cells of a table in Markdown, without the line below its head."""
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block]
    return [[cell.replace("\\|", "|") for cell in line] for line in (lines[0], *lines[2:])]
