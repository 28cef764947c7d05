"""Output for terminals: lines, pages, and progress bars below them. In a file or a pipe, pages are plain text.

Text of stores and models may contain escape sequences, which could change lines that a terminal has shown. Everything
is printed and logged through :func:`escaped`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


# Control characters except tab and newline, characters without width or that change the direction of text, further line
# separators, and surrogates; and the start of a line that looks like one of a command's screen.
_UNSAFE = re.compile(
    "(?m:^(?=(?:verdict|because|figures|run|next):))|[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


# Characters of a word, and of a name or sentence; names of tensors may be megabytes long.
_MAX_WORD, _MAX_LINE = 300, 3000


def escaped(text: str) -> str:
    r"""Text safe for terminals, unable to control one or forge a screen: characters become ``\u001b`` and the like."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    import json  # hardly any text needs it, and every command imports this module

    return json.dumps(match[0])[1:-1] or "    "


def one_line(text: str) -> str:
    r"""Text as :func:`escaped`, with ``\n`` for newlines and long words cut in their middle.

    Names of models, tensors, experiments and libraries enter all texts through this function: a name must not look like
    a line of its own, and must not fill the screen.
    """
    line = escaped(text).replace("\n", "\\n")
    return line if len(line) <= _MAX_WORD else _shortened(with_short_words(line), _MAX_LINE)


def with_short_words(text: str) -> str:
    """Return text of several lines with long words, which are names, cut in their middle."""
    return re.sub(rf"\S{{{_MAX_WORD + 1},}}", lambda word: _shortened(word[0], _MAX_WORD), text)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]} ({len(text)} characters)"


def bold(text: str) -> str:
    """Return text in bold on a terminal, unless ``NO_COLOR`` is set."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def wrapped(text: str) -> str:
    """Return text with lines that fit the terminal, as far as words allow it."""
    import textwrap  # few commands log lines that long

    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        fitting = textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        lines += [line] if len(line) <= width else fitting
    return "\n".join(lines)


_has_status = _has_progress = False


def show_status(text: str) -> None:
    """Show a line on standard error, a terminal, until the next one or other output replaces it; none below a bar."""
    global _has_status
    if _has_progress:
        return
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


def print_line(text: str, file: TextIO | None = None) -> None:
    """Print text, escaped, to a stream (default: standard output)."""
    _print(escaped(text), file or sys.stdout)


def print_screen(lines: Iterable[str]) -> None:
    """Print the last lines of a command, after an empty one. Each is one line, of parts made by :func:`one_line`."""
    _print("\n".join(("", *lines)), sys.stdout)


def _print(text: str, file: TextIO) -> None:
    clear_status()
    # Flushed, so that lines keep their order with those of child processes and of the log.
    try:
        print(text, file=file, flush=True)
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
        with Progress(*columns, console=_console(sys.stderr), transient=True) as shown:
            task = shown.add_task(label, total=None)
            yield lambda done, total=None: shown.update(task, completed=done, total=total)
    finally:
        _has_progress = False


def print_page(page: str) -> None:
    """Print a page of Markdown: rendered on a terminal, elsewhere as it is."""
    clear_status()
    page = with_short_words(page)
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
