"""Polygraphy's ``G_LOGGER``, on top of Python's logger named ``trtops``.

Messages of scripts go to standard output, as in Polygraphy; critical ones and trtops' own messages go to standard
error, except results such as the lines of a comparison.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import itertools
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeAlias

from trtops import errors
from trtops.lazy import known_as
from trtops.system.masking import masked
from trtops.terminal import clear_status, escaped, show_status, with_short_words, wrapped

Severity: TypeAlias = int | Mapping[str, int]

# The letter of each level, and its color as a parameter of the escape sequence "ESC [ n m", 0 for none.
_STYLES = {
    **{2: ("U", 90), 4: ("S", 35), 6: ("X", 35), 10: ("V", 95), 20: ("I", 0), 22: ("I", 96), 28: ("I", 92)},
    **{30: ("W", 93), 40: ("E", 91), 50: ("!", 91)},
}
ON_STDOUT: Mapping[str, object] = {"on_stdout": True}
"""``extra`` of messages that are results, which go to standard output."""

_indent: contextvars.ContextVar[int] = contextvars.ContextVar("trtops_log_indent", default=0)


class LogMode(enum.IntEnum):
    """How often the same message is logged."""

    EACH = 0
    ONCE = 1


class ModuleSeverity(dict[str, int]):
    """Severities by path below the package, such as ``backend/trt``, with ``""`` for all others."""

    def __init__(self, severities: Mapping[str, int], logger: str = "trtops") -> None:
        super().__init__(severities)
        self.logger = logger

    def get(self, path: str = "") -> int:  # type: ignore[override]
        """Return the severity in force for a path."""
        return self.logger_of(path).getEffectiveLevel()

    def logger_of(self, path: str) -> logging.Logger:
        """Return Python's logger for a path."""
        return logging.getLogger(".".join((self.logger, *Path("_", path).with_suffix("").parts[1:])))


def _log_at(severity: int, *, error_ok: bool = False) -> Any:
    def log(self: Logger, message: object, mode: int = LogMode.EACH) -> None:
        self.log(message, severity, mode, stack_depth=3, error_ok=error_ok)

    return log


class Logger:
    """The log; use :data:`G_LOGGER`. Severities are levels of Python's ``logging``, with further names.

    Others that a script makes have settings of their own; what they log goes to the same handlers.
    """

    ULTRA_VERBOSE = 2
    SUPER_VERBOSE = 4
    EXTRA_VERBOSE = 6
    VERBOSE = logging.DEBUG
    INFO = logging.INFO
    START = 22
    FINISH = 28
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    CRITICAL = logging.CRITICAL

    _numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(
        self,
        severity: Severity | None = None,
        colors: bool = True,
        letter: bool = True,
        timestamp: bool = False,
        line_info: bool = False,
    ) -> None:
        """Make a logger; the first one is that of the process.

        Args:
            severity: Minimum severity of logged messages, or these by module path (default: INFO).
            colors: Whether lines have colors, on a terminal and unless NO_COLOR is in the environment.
            letter: Whether lines start with a letter for the severity.
            timestamp: Whether lines have the time.
            line_info: Whether lines have the file and line that logged.
        """
        self.colors = colors
        self.letter = letter
        self.timestamp = timestamp
        self.line_info = line_info
        self.status_only = False  # whether trtops' own messages below WARNING replace each other on a terminal
        self.hides_results = False  # whether trtops' own messages for standard output are left out
        self.use_python_logging_system = False  # whether only the program's own handlers get messages
        self.logger_callbacks: list[Callable[[ModuleSeverity], object]] = []
        number = next(self._numbers)
        self._logger = logging.getLogger(f"trtops.logger.{number}" if number else "trtops")
        self._once: set[str] = set()
        self._file: logging.FileHandler | None = None
        for name in ("ULTRA_VERBOSE", "SUPER_VERBOSE", "EXTRA_VERBOSE", "START", "FINISH"):
            logging.addLevelName(getattr(self, name), name)
        # A program that set a level before this import keeps it.
        if self._logger.level == logging.NOTSET:
            self._logger.setLevel(self.INFO)
        self._severity = ModuleSeverity({"": self._logger.level}, self._logger.name)
        if severity is not None:
            self.module_severity = severity

    @property
    def module_severity(self) -> ModuleSeverity:
        """Minimum severities of logged messages, by module path; may be set to one for all."""
        return self._severity

    @module_severity.setter
    def module_severity(self, value: Severity) -> None:
        severities = {"": self.INFO, **value} if isinstance(value, Mapping) else {"": value}
        for path in self._severity.keys() | severities.keys():
            self._severity.logger_of(path).setLevel(severities.get(path, logging.NOTSET))
        self._severity = ModuleSeverity(severities, self._logger.name)
        self._ensure_console()
        for callback in self.logger_callbacks:
            callback(self._severity)

    def register_callback(self, callback: Callable[[ModuleSeverity], object]) -> None:
        """Call a function with the severities now, and whenever they change."""
        callback(self._severity)
        self.logger_callbacks.append(callback)

    @contextlib.contextmanager
    def verbosity(self, severity: Severity = CRITICAL) -> Iterator[Logger]:
        """Set another severity during a block; by default only critical messages are logged."""
        before = self._severity
        self.module_severity = severity
        try:
            yield self
        finally:
            self.module_severity = before

    @contextlib.contextmanager
    def indent(self, level: int = 1) -> Iterator[Logger]:
        """Indent messages by ``level`` steps of four spaces during a block, in this thread or task."""
        token = _indent.set(_indent.get() + level)
        try:
            yield self
        finally:
            _indent.reset(token)

    @property
    def log_file(self) -> str | None:
        """A file for every line as well, overwritten when set. Folders are created as needed."""
        return None if self._file is None else self._file.baseFilename

    @log_file.setter
    def log_file(self, path: str | os.PathLike[str] | None) -> None:
        if self._file is not None:
            self._logger.removeHandler(self._file)
            self._file.close()
            self._file = None
        if path is not None:
            Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
            self._file = logging.FileHandler(path, "w", encoding="utf-8")
            self._file.setFormatter(_Lines())
            self._logger.addHandler(self._file)

    def log(
        self, message: object, severity: int, mode: int = LogMode.EACH, stack_depth: int = 2, error_ok: bool = False
    ) -> None:
        """Log a message, or a callable's result; the callable is only called if the message is logged.

        ``stack_depth`` selects whose file and line to log: 2 is the caller's. With ``error_ok``, an error in a callable
        is logged instead of raised.
        """
        if not self._logger.isEnabledFor(severity):
            return
        try:
            text = str(message() if callable(message) else message)
        except Exception as exc:
            if not error_ok:
                raise
            text = f"<Error while logging this message: {exc}>"
        if mode == LogMode.ONCE:
            if text in self._once:
                return
            self._once.add(text)
        self._ensure_console()
        margin = " " * (4 * _indent.get())
        text = margin + text.replace("\n", "\n" + margin)
        # As Polygraphy: scripts whose output is read find their messages on standard output.
        extra = {"on_stdout": severity < self.CRITICAL, **({} if self is G_LOGGER else {"settings": self})}
        self._logger.log(severity, "%s", text, stacklevel=stack_depth, extra=extra)

    def print_line(self, message: str, severity: int) -> None:
        """Write a line to standard output and the log file, even if a program has its own handlers."""
        if severity >= self._severity[""]:
            record = self._logger.makeRecord("trtops", severity, __file__, 0, message, (), None, extra=ON_STDOUT)
            for handler in filter(None, (_Console(), self._file)):
                handler.emit(record)

    # Only the verbose levels tolerate errors of callables, as in Polygraphy.
    ultra_verbose = _log_at(ULTRA_VERBOSE, error_ok=True)
    super_verbose = _log_at(SUPER_VERBOSE, error_ok=True)
    extra_verbose = _log_at(EXTRA_VERBOSE, error_ok=True)
    verbose = _log_at(VERBOSE, error_ok=True)
    info = _log_at(INFO)
    start = _log_at(START)
    finish = _log_at(FINISH)
    warning = _log_at(WARNING)
    error = _log_at(ERROR)

    def critical(self, message: object, ExceptionType: type[Exception] | None = None) -> NoReturn:
        """Log with severity ``CRITICAL`` and raise TrtopsError, or ``ExceptionType`` if given."""
        text = str(message() if callable(message) else message)
        self.log(text, self.CRITICAL, stack_depth=3)
        raise (ExceptionType or errors.TrtopsError)(text)

    exit = critical

    def _ensure_console(self) -> None:
        # A program that set up logging has a handler already, and gets each message once.
        logger = logging.getLogger("trtops")
        handled = any(not isinstance(handler.formatter, _Lines) for handler in logger.handlers)
        of_program = logger.propagate and logging.getLogger().handlers
        if not (handled or of_program or self.use_python_logging_system):
            logger.addHandler(_Console())


def mask_log_records() -> None:
    """Mask and escape the message and the traceback of every log record of this process, for all handlers."""
    make = logging.getLogRecordFactory()

    def masking(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        # A message that does not match its arguments is kept.
        with contextlib.suppress(TypeError, ValueError, KeyError):
            record.msg, record.args = escaped(masked(record.getMessage())), ()
        if record.exc_info:
            record.exc_text = escaped(masked(logging.Formatter().formatException(record.exc_info)))
        return record

    logging.setLogRecordFactory(masking)


class _Lines(logging.Formatter):
    """Formats ``[I] (12:00:00) [logger.py:7] text``; attributes of the logger select the parts."""

    def format(self, record: logging.LogRecord) -> str:
        settings = getattr(record, "settings", G_LOGGER)
        prefix = f"[{_STYLES.get(record.levelno, (record.levelname,))[0]}] " if settings.letter else ""
        if settings.timestamp:
            prefix += time.strftime("(%H:%M:%S) ")
        if settings.line_info:
            prefix += f"[{record.filename}:{record.lineno}] "
        text = prefix + record.getMessage().replace("\n", "\n" + " " * len(prefix))
        text = f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
        return with_short_words(escaped(masked(text)))


_LINES = _Lines()


class _Console(logging.Handler):
    """Writes to the current ``sys.stderr``, or ``sys.stdout`` if a message says so."""

    def emit(self, record: logging.LogRecord) -> None:
        file = sys.stdout if getattr(record, "on_stdout", False) else sys.stderr
        try:
            text, (_, color) = _LINES.format(record), _STYLES.get(record.levelno, ("", 0))
            is_result, is_own = file is sys.stdout, not re.fullmatch(r"trtops(\.logger\.\d+)?", record.name)
            if is_own and is_result and G_LOGGER.hides_results:
                return
            if is_own and not is_result and G_LOGGER.status_only and record.levelno < logging.WARNING:
                show_status(record.getMessage())
                return
            clear_status()
            if file.isatty():
                text = wrapped(text)
            has_colors = getattr(record, "settings", G_LOGGER).colors and "NO_COLOR" not in os.environ
            if has_colors and color and file.isatty():
                text = f"\x1b[{color}m{text}\x1b[0m"
            print(text, file=file, flush=True)
        except OSError:  # the command reports a full output when it ends
            pass
        except Exception:  # as in logging's own handlers: a line that cannot be written does not end the program
            self.handleError(record)


G_LOGGER = Logger()
"""The log of the process."""

known_as(__name__, "logger")
