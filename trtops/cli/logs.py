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
from trtops.cli import values
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

_LONGEST_LIST = 6  # names in a printed command; longer lists go to a file

# Of the command that runs. Commands print in many places, and a process runs one command at a time.
_silent = _is_detailed = False
_MOST_LINES = 3  # of each text of an ending on a terminal


@contextlib.contextmanager
def logging_as(args: Options) -> Iterator[logging.Logger]:
    """Log as the options say during the block."""
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
        _silent, _is_detailed = args.silent or False, loudness > 0
        with G_LOGGER.verbosity(severities):
            yield logging.getLogger("trtops.cli")
    finally:
        data_log.removeFilter(once)
        G_LOGGER.log_file = None
        (
            G_LOGGER.module_severity, G_LOGGER.timestamp, G_LOGGER.line_info, G_LOGGER.colors, _silent, _is_detailed
        ) = before  # fmt: skip


def say(text: str) -> None:
    """Print a command's output, unless --silent is given."""
    if not _silent:
        terminal.print_line(text)


def log_line(text: str, severity: int = G_LOGGER.INFO) -> None:
    """Print one of Polygraphy's lines on its stream, as the log writes it, unless the log is too quiet."""
    if not _silent:
        G_LOGGER.print_line(text, severity)


def say_table(header: Sequence[str], rows: Iterable[Row]) -> None:
    """Print a table, cut to the width of a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    say(table(header, rows, width))


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


def _is_brief() -> bool:
    return sys.stdout.isatty() and not _is_detailed


def say_result(result: OpResult, store: str | None = None) -> None:
    """Print a result's page, then verdict, run and next step; on a terminal only its screen, unless -v is given."""
    if page := result.screen() if _is_brief() else result.page():
        say_page(page)
    say_ending(result, store)


def say_ending(result: OpResult, store: str | None = None) -> None:
    """Print verdict, run and next step."""
    if not _silent:
        lines = result.summary_lines(_MOST_LINES, " ... (-v)") if _is_brief() else result.summary_lines()
        if (step := result.next_step) is not None:
            lines += f"\nnext:    {terminal.one_line(str(with_lists_in_files(step.in_store(store))))}"
        terminal.print_line(lines.removeprefix("verdict:"), start="\nverdict:")


def with_lists_in_files(step: NextStep) -> NextStep:
    """Return the step with each long list of names in a file of the working folder, if it is writable."""
    arguments = dict(step.arguments)
    for name, value in step.arguments.items():
        is_list = isinstance(value, (tuple, list)) and all(isinstance(word, str) for word in value)
        if is_list and len(value) > _LONGEST_LIST:
            text = "".join(f"{word}\n" for word in value)
            stem = Path(str(step.arguments.get("model", "trtops"))).stem
            path = Path(f"{stem}.{name}-{sha256(text.encode())[:8]}.txt")  # so that no other file is overwritten
            with contextlib.suppress(OSError):
                path.write_text(text, encoding="utf-8")
                arguments[name] = f"@{path}"
    return replace(step, arguments=arguments)
