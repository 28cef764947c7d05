"""Polygraphy's ``G_LOGGER``, on top of Python's logger named ``trtops``.

trtops itself logs through ``logging.getLogger(__name__)`` and leaves handlers to the program. Importing this module
sets the logger to ``INFO`` unless it has a level; the first message through ``G_LOGGER`` adds a handler, unless the
program set up logging itself. Messages of scripts go to standard output, as in Polygraphy; critical ones and trtops'
own messages go to standard error, except results such as the lines of a comparison.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO, TypeAlias

from trtops import errors
from trtops.lazy import known_as
from trtops.system.masking import masked

Message: TypeAlias = "str | Callable[[], object] | object"
Severity: TypeAlias = "int | Mapping[str, int]"

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
    """Severities by path below the package (``"backend/trt"``), with ``""`` for all others."""

    def get(self, path: str | None = None, default: int | None = None) -> int:  # type: ignore[override]
        """Return the severity of a path: that of the longest known path above it."""
        found, parts = self[""] if default is None else default, _path_parts(path or "")
        for known in sorted(self, key=len):
            if known and _path_parts(known) == parts[: len(_path_parts(known))]:
                found = self[known]
        return found


def _log_at(severity: int, *, error_ok: bool = False) -> Any:
    """Return a method that logs with a severity; ``mode`` is that of :meth:`Logger.log`."""

    def log(self: Logger, message: Message, mode: LogMode = LogMode.EACH) -> None:
        self.log(message, severity, mode, stack_depth=3, error_ok=error_ok)

    return log


class Logger:
    """The log; use :data:`G_LOGGER`. Severities are levels of Python's ``logging``, with further names."""

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

    def __init__(
        self,
        severity: Severity | None = None,
        colors: bool = True,
        letter: bool = True,
        timestamp: bool = False,
        line_info: bool = False,
    ) -> None:
        """Make a logger; ``severity`` is the first :attr:`module_severity`."""
        self.colors = colors  # on a terminal, unless NO_COLOR is in the environment
        self.letter = letter  # for the severity
        self.timestamp = timestamp
        self.line_info = line_info  # the file and line that logged
        self.use_python_logging_system = False  # whether only the program's own handlers get messages
        self._logger = logging.getLogger("trtops")
        self._callbacks: list[Callable[[ModuleSeverity], object]] = []
        self._once: set[str] = set()
        self._file: logging.FileHandler | None = None
        for name in ("ULTRA_VERBOSE", "SUPER_VERBOSE", "EXTRA_VERBOSE", "START", "FINISH"):
            logging.addLevelName(getattr(self, name), name)
        if self._logger.level == logging.NOTSET:
            self._logger.setLevel(self.INFO)
        self._severity = ModuleSeverity({"": self._logger.level})
        if severity is not None:
            self.module_severity = severity

    @property
    def module_severity(self) -> ModuleSeverity:
        """Severities below which nothing is logged, by path below the package.

        May be set to one severity, or to a mapping such as ``{"": G_LOGGER.INFO, "backend/trt": G_LOGGER.VERBOSE}``.
        """
        return self._severity

    @module_severity.setter
    def module_severity(self, value: Severity) -> None:
        wanted = ModuleSeverity({"": self.INFO, **value} if isinstance(value, Mapping) else {"": value})
        for path in self._severity.keys() | wanted.keys():
            python_logger = logging.getLogger(".".join(["trtops", *_path_parts(path)]))
            python_logger.setLevel(dict.get(wanted, path, logging.NOTSET))
        self._severity = wanted
        self._ensure_console()
        for callback in self._callbacks:
            callback(wanted)

    @property
    def severity(self) -> int:
        """The severity for all modules without one of their own; setting it sets all."""
        return self._severity[""]

    @severity.setter
    def severity(self, value: int) -> None:
        self.module_severity = value

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
        """A file that gets every line as well, overwritten when set. Folders are created as needed."""
        return None if self._file is None else self._file.baseFilename

    @log_file.setter
    def log_file(self, path: str | os.PathLike[str] | None) -> None:
        if self._file is not None:
            self._logger.removeHandler(self._file)
            self._file.close()
            self._file = None
        if path is not None:
            Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
            self._file = logging.FileHandler(path, mode="w", encoding="utf-8")
            self._file.setFormatter(_Formatter(self, terminal=False))
            self._logger.addHandler(self._file)

    def register_callback(self, callback: Callable[[ModuleSeverity], object]) -> None:
        """Call back now, and whenever the severity changes."""
        callback(self._severity)
        self._callbacks.append(callback)

    def log(
        self,
        message: Message,
        severity: int,
        mode: LogMode = LogMode.EACH,
        stack_depth: int = 2,
        error_ok: bool = False,
    ) -> None:
        """Log a message, or what a callable returns, which is only called if the message is logged.

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
        extra = ON_STDOUT if severity < self.CRITICAL else None
        self._logger.log(severity, "%s", text, stacklevel=stack_depth, extra=extra)

    def print_line(self, message: str, severity: int) -> None:
        """Write a line to standard output and the log file, formatted as the log does."""
        if severity >= self.severity:
            record = logging.LogRecord("trtops", severity, __file__, 0, message, None, None)
            record.on_stdout = True
            print(_Formatter(self, terminal=True).format(record), flush=True)
            if self._file is not None:
                self._file.handle(record)

    ultra_verbose = _log_at(ULTRA_VERBOSE, error_ok=True)
    super_verbose = _log_at(SUPER_VERBOSE, error_ok=True)
    extra_verbose = _log_at(EXTRA_VERBOSE, error_ok=True)
    verbose = _log_at(VERBOSE, error_ok=True)
    info = _log_at(INFO)
    start = _log_at(START)
    finish = _log_at(FINISH)
    warning = _log_at(WARNING)
    error = _log_at(ERROR)

    def critical(self, message: Message, ExceptionType: type[Exception] | None = None) -> NoReturn:
        """Log with severity ``CRITICAL`` and raise TrtopsError, or ``ExceptionType`` if given."""
        text = str(message() if callable(message) else message)
        self.log(text, self.CRITICAL, stack_depth=3)
        raise (ExceptionType or errors.TrtopsError)(text)

    exit = critical

    def _ensure_console(self) -> None:
        """Add a handler if messages have none."""
        handled = any(handler is not self._file for handler in self._logger.handlers)
        of_program = self._logger.propagate and logging.getLogger().handlers
        if not (handled or of_program or self.use_python_logging_system):
            console = _Console()
            console.setFormatter(_Formatter(self, terminal=True))
            self._logger.addHandler(console)


class _Console(logging.Handler):
    """Writes to the current ``sys.stderr``, or ``sys.stdout`` if a message says so."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=_stream_of(record), flush=True)
        except Exception:  # as logging's own handlers: a line that cannot be written does not end the program
            self.handleError(record)


def _stream_of(record: logging.LogRecord) -> TextIO:
    return sys.stdout if getattr(record, "on_stdout", False) else sys.stderr


class _Formatter(logging.Formatter):
    """Formats lines such as ``[I] (12:00:00) [logger.py:7] text``; the logger's attributes select the parts."""

    def __init__(self, settings: Logger, *, terminal: bool) -> None:
        super().__init__()
        self.settings = settings
        self.terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        letter, color = _STYLES.get(record.levelno, (record.levelname, 0))
        prefix = f"[{letter}] " if self.settings.letter else ""
        if self.settings.timestamp:
            prefix += f"({self.formatTime(record, '%H:%M:%S')}) "
        if self.settings.line_info:
            prefix += f"[{record.filename}:{record.lineno}] "
        text = prefix + record.getMessage().replace("\n", "\n" + " " * len(prefix))
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        text = masked(text)
        colored = self.terminal and self.settings.colors and color and "NO_COLOR" not in os.environ
        return f"\x1b[{color}m{text}\x1b[0m" if colored and _stream_of(record).isatty() else text


def module_line(module: ModuleType, name: str) -> str:
    """Return a module's version and folders on one line."""
    return f"{name} | Version: {module.__version__} | Path: {[os.path.realpath(folder) for folder in module.__path__]}"


def _path_parts(path: str) -> list[str]:
    return [part for part in path.removesuffix(".py").replace(os.sep, "/").split("/") if part]


G_LOGGER = Logger()
"""The log of the process."""

known_as(__name__, "logger")
