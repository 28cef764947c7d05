"""Output for terminals: progress bars below log lines, and pages whose tables fit the width.

In a file or a pipe, pages are plain text and there are no bars. rich is imported on first use, since ``trtops -h``
must be fast.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from trtops.tables import table, text_columns

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress(
    label: str, unit: str, total: int | None = None, file: TextIO | None = None
) -> Iterator[Callable[..., None]]:
    """Show a bar during a block, on standard error unless a file is given. Lines on standard error appear above it.

    Yields:
        A function to call with how much is done, of how much if that is known by now, and a note.
    """
    file = sys.stderr if file is None else file
    if not file.isatty():
        yield lambda done, total=None, note="": None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=_console(file)) as shown:
        task = shown.add_task(label, total=total, note=unit)

        def update(done: int, total: int | None = None, note: str = "") -> None:
            known: dict[str, Any] = {} if total is None else {"total": total}
            shown.update(task, completed=done, note=f"{unit}{note}", **known)

        yield update


def print_page(page: str, file: TextIO | None = None) -> None:
    """Print a page of Markdown: rendered on a terminal, elsewhere as it is."""
    file = sys.stdout if file is None else file
    if file.isatty():
        from rich.markdown import Markdown

        _console(file).print(Markdown(page))
    else:
        print(re.sub(r"\n{3,}", "\n\n", page).rstrip(), file=file, flush=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], file: TextIO | None = None) -> None:
    """Print a table: on a terminal to fit it, elsewhere in columns of plain text."""
    file = sys.stdout if file is None else file
    listed = list(rows)
    if not file.isatty():
        print(table(header, listed), file=file, flush=True)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_text in zip(header, text_columns(header, listed)):
        made.add_column(Text(name), justify="left" if is_text else "right", overflow="fold")
    for row in listed:
        made.add_row(*map(Text, row))
    _console(file).print(made)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)
