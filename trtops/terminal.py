"""Output for terminals: progress bars below log lines, and pages. In a file or a pipe, pages are plain text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress(
    label: str, unit: str, total: int | None = None, file: TextIO | None = None
) -> Iterator[Callable[..., None]]:
    """Show a bar during a block, on standard error unless a file is given. Lines on standard error appear above it.

    Yields a function to call with how much is done, of how much if that is known by now, and a note.
    """
    file = sys.stderr if file is None else file
    if not file.isatty():
        yield lambda done, total=None, note="": None
        return
    # rich is imported on first use, since `trtops -h` must be fast.
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


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)
