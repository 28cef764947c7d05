"""Output for terminals: progress bars below log lines, and pages. In a file or a pipe, pages are plain text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress(label: str, unit: str) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error during a block, if that is a terminal. Lines on standard error appear above it.

    Yields a function to call with how much is done, and of how much if that is known by now.
    """
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    # rich is imported on first use, since `trtops -h` must be fast.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), unit)
    with Progress(*columns, console=_console(sys.stderr)) as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, total=None: shown.update(task, completed=done, total=total)


def print_page(page: str) -> None:
    """Print a page of Markdown: rendered on a terminal, elsewhere as it is."""
    if sys.stdout.isatty():
        from rich.markdown import Markdown

        _console(sys.stdout).print(Markdown(page))
    else:
        print(re.sub(r"\n{3,}", "\n\n", page).rstrip(), flush=True)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)
