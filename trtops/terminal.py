"""Output for terminals: lines, pages, and progress bars below them. In a file or a pipe, pages are plain text.

Text of stores and models may contain escape sequences, which could change lines that a terminal has shown. Everything
is printed and logged through :func:`escaped`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


# Control characters except tab and newline, characters without width or that change the direction of text, further line
# separators, and surrogates; and the start of a line that looks like the verdict of a command.
_UNSAFE = re.compile(
    "(?m:^(?=verdict:))|[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def escaped(text: str) -> str:
    r"""Text safe for terminals, unable to control one or forge a verdict: characters become ``\u001b`` and the like."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    import json  # hardly any text needs it, and every command imports this module

    return json.dumps(match[0])[1:-1] or "    "


def one_line(text: str) -> str:
    r"""Text as :func:`escaped`, with ``\n`` for newlines: a name must not look like a line of its own."""
    return escaped(text).replace("\n", "\\n")


def bold(text: str) -> str:
    """Return text in bold on a terminal, unless ``NO_COLOR`` is set."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


_has_status = _has_progress = False


def show_status(text: str) -> None:
    """Show a line on standard error, a terminal, until the next one or other output replaces it."""
    global _has_status
    width = shutil.get_terminal_size().columns
    sys.stderr.write(f"\r\x1b[K{escaped(text)[: width - 1]}")
    sys.stderr.flush()
    _has_status = True


def clear_status() -> None:
    """Remove the line of :func:`show_status`."""
    global _has_status
    if _has_status:
        _has_status = False
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def print_line(text: str, file: TextIO | None = None, *, start: str = "") -> None:
    """Print text, escaped, to a stream (default: standard output). ``start`` is printed before it as it is."""
    clear_status()
    # Flushed, so that lines keep their order with those of child processes and of the log.
    try:
        print(start + escaped(text), file=file or sys.stdout, flush=True)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, "the output") from None


@contextmanager
def progress(label: str, unit: str) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error, if it is a terminal, during a block. Lines on standard error appear above it.

    Yields a function to call with how much is done, and of how much if that is known by now. Without rich, there is no
    bar, and pages are plain text on a terminal as well.
    """
    if not sys.stderr.isatty() or not _has_rich():
        yield lambda done, total=None: None
        return
    # rich is imported on first use, since `trtops -h` must be fast.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    global _has_progress
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), unit)
    clear_status()
    _has_progress = True
    try:
        with Progress(*columns, console=_console(sys.stderr)) as shown:
            task = shown.add_task(label, total=None)
            yield lambda done, total=None: shown.update(task, completed=done, total=total)
    finally:
        _has_progress = False


def has_progress() -> bool:
    """True while a bar is shown."""
    return _has_progress


def print_page(page: str) -> None:
    """Print a page of Markdown: rendered on a terminal, elsewhere as it is."""
    clear_status()
    if sys.stdout.isatty() and _has_rich():
        from rich.markdown import Markdown

        _console(sys.stdout).print(Markdown(_with_narrow_tables(escaped(page), shutil.get_terminal_size().columns)))
    else:
        print_line(re.sub(r"\n{3,}", "\n\n", page).rstrip())


def _with_narrow_tables(page: str, width: int) -> str:
    """Return a page whose tables fit: their last columns are left out and named, since rich would cut all cells."""
    return re.sub(r"(?m)(?:^\|.*\|$\n?)+", lambda match: _narrowed(match[0], width), page)


def _narrowed(table: str, width: int) -> str:
    rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in table.strip().splitlines()]
    used, kept = 1, 0
    for column in zip(*rows):
        used += max(len(cell.strip()) for cell in column) + 3
        if used > width and kept > 1:
            break
        kept += 1
    left_out = [name.strip() for name in rows[0][kept:]]
    lines = [f"|{'|'.join(row[:kept])}|" for row in rows]
    return "\n".join([*lines, "", f"Not shown here: {', '.join(left_out)}.", ""] if left_out else [*lines, ""])


def _has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


def _console(file: TextIO) -> Console:
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False)
