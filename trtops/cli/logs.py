"""The log and the output of commands."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import terminal
from trtops.backend.torch import model_stem
from trtops.cli import registry, values
from trtops.cli.flags import Group, Options, flag
from trtops.logger import G_LOGGER
from trtops.record import sha256
from trtops.tables import Row, table

if TYPE_CHECKING:
    from trtops.next_step import NextStep
    from trtops.ops.result import OpResult

_MORE = (G_LOGGER.INFO, G_LOGGER.VERBOSE, G_LOGGER.EXTRA_VERBOSE, G_LOGGER.SUPER_VERBOSE, G_LOGGER.ULTRA_VERBOSE)
_LESS = (G_LOGGER.INFO, G_LOGGER.START, G_LOGGER.FINISH, G_LOGGER.WARNING, G_LOGGER.ERROR, G_LOGGER.CRITICAL)
# Above every severity: even critical messages are not printed.
_OFF = logging.CRITICAL + 1
LEVELS = (
    "ULTRA_VERBOSE", "SUPER_VERBOSE", "EXTRA_VERBOSE", "VERBOSE", "INFO", "START", "FINISH", "WARNING", "ERROR",
    "CRITICAL",
)  # fmt: skip


def _log_level(text: str) -> tuple[str, str]:
    name, level = values.named(text)
    if level.upper() not in LEVELS:
        raise ValueError(f"{level!r} is not a level; expected one of {', '.join(LEVELS)}")
    return name, level.upper()


LOGGING = Group(
    "help, log and time limit",
    flag("-h --help", "show the usual options (-h), or all (--help), and exit"),
    flag("-v --verbose", "log more; repeat for even more", takes="count"),
    flag("--extra-verbose", "as -v -v", takes="count"),
    flag("-q --quiet", "log less; repeat for even less", takes="count"),
    flag(
        "--verbosity LEVEL|PATH:LEVEL+",
        "how much to log, for all or for modules: INFO backend/trt:VERBOSE",
        convert=_log_level,
    ),
    flag("--silent", "log and print nothing; only the exit code reports the outcome"),
    flag("--log-format {timestamp,line-info,no-colors}+", "what log lines contain"),
    flag("--log-file FILE", "a file to log to as well", file="writes"),
    flag("--timeout SECONDS", "how long loading a model, or one inference, may take", usual="600"),
)

# Commands whose lines are their output, as in Polygraphy.
_WITHOUT_SCREEN = ("surgeon", "check", "inspect", "data", "template", "plugin")
_LONGEST_LIST = 6  # names in a printed command; longer lists go to a file

# Of the command that runs. Commands print in many places, and a process runs one command at a time.
_silent = _is_detailed = False
_MOST_LINES, _MOST_ROWS = 12, 6  # of a screen, and of its table


@contextlib.contextmanager
def logging_as(args: Options, path: tuple[str, ...] = ("run",)) -> Iterator[logging.Logger]:
    """Log as the options of a command say during the block."""
    global _silent, _is_detailed
    loudness = (args.verbose or 0) + 2 * (args.extra_verbose or 0) - (args.quiet or 0)
    level = _OFF if args.silent else _LESS[min(-loudness, 5)] if loudness < 0 else _MORE[min(loudness, 4)]
    severities = {"": level, **{path: getattr(G_LOGGER, name) for path, name in args.verbosity or ()}}
    before = G_LOGGER.module_severity, G_LOGGER.timestamp, G_LOGGER.line_info, G_LOGGER.colors, _silent, _is_detailed
    G_LOGGER.timestamp = "timestamp" in (args.log_format or ())
    G_LOGGER.line_info = "line-info" in (args.log_format or ())
    G_LOGGER.colors = "no-colors" not in (args.log_format or ())
    data_log = logging.getLogger("trtops.comparator.data_loader")
    logged: set[str] = set()

    def once(record: logging.LogRecord) -> bool:
        """Let each message pass once: iterations log the same about their data."""
        text = record.getMessage()
        new = text not in logged
        logged.add(text)
        return new

    data_log.addFilter(once)
    # Restored afterwards: `main` is also called by tests and by other programs, in whose process it runs.
    try:
        G_LOGGER.log_file = args.log_file
        _silent, _is_detailed = args.silent or False, loudness > 0 or min(severities.values()) < G_LOGGER.INFO
        has_screen = path[0] not in _WITHOUT_SCREEN
        G_LOGGER.status_only = has_screen and on_brief_terminal()
        G_LOGGER.hides_results = has_screen and (on_brief_terminal() or path not in registry.REPORTED)
        with G_LOGGER.verbosity(severities):
            yield logging.getLogger("trtops.cli")
    finally:
        data_log.removeFilter(once)
        G_LOGGER.status_only = G_LOGGER.hides_results = False
        G_LOGGER.log_file = None
        (
            G_LOGGER.module_severity, G_LOGGER.timestamp, G_LOGGER.line_info, G_LOGGER.colors, _silent, _is_detailed
        ) = before  # fmt: skip


def say(text: str) -> None:
    """Print a command's output, unless --silent is given."""
    if not _silent:
        terminal.print_line(text)


def log_line(text: str, severity: int = G_LOGGER.INFO) -> None:
    """Print one of Polygraphy's lines on its stream, as the log writes it, unless it has no reader."""
    if not _silent and not on_brief_terminal():
        G_LOGGER.print_line(text, severity)


def say_table(header: Sequence[str], rows: Iterable[Row], expendable: Sequence[str] = ()) -> None:
    """Print a table that fits a terminal; columns are left out, ``expendable`` ones first."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    say(table(header, rows, width, expendable))


def say_json(value: Any) -> None:
    """Print a value as JSON."""
    import json  # few commands print it

    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def say_page(page: str) -> None:
    """Print a page of Markdown, rendered on a terminal."""
    if not _silent:
        terminal.print_page(page)


def say_report(result: Any, store: str | None = None) -> None:
    """Print a result's text as Polygraphy logs it. The log itself would hide failing writes."""
    text = result.text().rstrip().replace("\n", "\n    ")
    say(f"[I] {text}")


def say_progress(text: str) -> None:
    """Print a line about the work so far; on a terminal without -v, the next one replaces it."""
    if not on_brief_terminal():
        say(text)
    elif not _silent:
        terminal.show_status(text)


def is_detailed() -> bool:
    """True with -v."""
    return _is_detailed


def on_brief_terminal() -> bool:
    """True on a terminal without -v: lines for scripts that read Polygraphy's output are left out."""
    return sys.stdout.isatty() and sys.stderr.isatty() and not _is_detailed


def say_result(result: OpResult, store: str | None = None, *, with_page: bool = False) -> None:
    """Print a result's screen: table, verdict, run and next step; with -v below its page, and whole."""
    table_lines = 0
    if _is_detailed or with_page:
        say_page(result.page())
    elif (overview := result.overview()) is not None:
        rows = overview.rows[:_MOST_ROWS]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80  # in a pipe, the same screen
        say(table(overview.columns, rows, width))
        if len(overview.rows) > len(rows):
            say(f"... and {len(overview.rows) - len(rows)} more (-v)")
        table_lines = len(rows) + 3
    step = result.next_step
    step = None if step is None else with_lists_in_files(step.in_store(store))
    most = None if _is_detailed else max(_MOST_LINES - table_lines, 6)
    if not _silent:
        terminal.print_screen(result.screen(step, most, " ... (-v)"))


def with_lists_in_files(step: NextStep) -> NextStep:
    """Return the step with each long list of names in a file of the working folder, if it is writable."""
    arguments = dict(step.arguments)
    for name, value in step.arguments.items():
        if not isinstance(value, (tuple, list)) or not all(isinstance(word, str) for word in value):
            continue
        # A name that begins with a dash or @ would be read as an option or a file. A line of a file holds one name.
        is_ambiguous = any(word[:1] in ("-", "@") for word in value)
        if (len(value) > _LONGEST_LIST or is_ambiguous) and not any("\n" in word for word in value):
            text = "".join(f"{word}\n" for word in value).encode("utf-8", "surrogateescape")
            stem = model_stem(str(step.arguments.get("model", "trtops")))
            path = Path(f"{stem}.{name}-{sha256(text)[:8]}.txt")  # so that no other file is overwritten
            with contextlib.suppress(OSError):
                path.write_bytes(text)
                arguments[name] = f"@{path}"
    return replace(step, arguments=arguments)
