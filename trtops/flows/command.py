"""The shell's door to a flow: its parameters as flags, its result as text, its verdict as exit code.

Options have the names that ``trtops`` has for the same thing as well (:data:`ALSO`), and mistakes are told as there: one
message on standard error, and 2 for what was asked wrongly, 3 for what went wrong.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import cyclopts

from trtops.errors import AuditError, BuildListError, ConfigError, TrtopsError
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.signals import interrupted_by_signals
from trtops.terminal import print_page

ALSO: Mapping[str, tuple[str, ...]] = {
    "--load-inputs": ("--data",),
    "--load-timing-cache": ("--timing-cache",),
    "--check": ("--command",),
    "-o": ("--output",),
    "--fp32": ("--precision", "fp32"),
    "--fp16": ("--precision", "fp16"),
    "--bf16": ("--precision", "bf16"),
    "--fp8": ("--precision", "fp8"),
    "--int8": ("--precision", "int8"),
    "--onnxrt": ("--backend", "onnxruntime"),
    "--trt": ("--backend", "tensorrt"),
    "--max-builds": ("--max-iterations",),
}
"""Words of ``trtops``, each with what the flows call it; taken where the flow has that option and not the word itself."""


def _read_config(type_: Any, tokens: Sequence[cyclopts.Token]) -> Record:
    """A config from the JSON text or the JSON file that a flag names."""
    kind = next(t for t in (type_, *get_args(type_)) if isinstance(t, type) and issubclass(t, Record))
    value = tokens[0].value
    try:
        return kind.from_json(value if value.lstrip().startswith("{") else Path(value).read_bytes())
    except OSError as exc:
        raise ConfigError(f"{value}: {exc.strerror}; expected a JSON file, or JSON itself.") from None
    except TrtopsError as exc:
        raise ConfigError(f"{value}: {exc}") from None


config_flag = cyclopts.Parameter(accepts_keys=False, n_tokens=1, converter=_read_config, negative="")
"""Marks a flow's config parameter: a flag that takes a JSON file, or JSON itself."""


def run(flow: Callable[..., OpResult], name: str) -> int:
    """Run a flow with the arguments of this process.

    Returns:
        0 if the verdict is good, 1 if it is bad, 2 on wrong usage, 3 if an error of ours prevented a verdict.
    """
    prog = f"python -m trtops.flows.{name}"
    options = {f"--{parameter.replace('_', '-')}" for parameter in inspect.signature(flow).parameters}
    words = {word: said for word, said in ALSO.items() if said[0] in options and word not in options}
    app = cyclopts.App(
        name=prog,
        version_flags=[],
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        help_epilogue=_words_text(words),
    )
    app.default(flow)
    try:
        with interrupted_by_signals(), _no_tracebacks():
            result: Any = app(_in_our_words(sys.argv[1:], words))
    except (AuditError, BuildListError) as exc:
        result = exc.result  # its flow fails, so that its state says so; here it is a result like others
    except (cyclopts.CycloptsError, TrtopsError) as exc:
        if not isinstance(exc, TrtopsError) or _is_about_options(exc):
            print(f"{prog}: {_one_line(exc)}\nTry: {prog} -h", file=sys.stderr)
            return 2
        print(f"error: {exc}", file=sys.stderr)
        return 3
    except OSError as exc:
        print(f"error: {exc.filename}: {exc.strerror}" if exc.filename else f"error: {exc}", file=sys.stderr)
        return 3
    if not isinstance(result, OpResult):
        return 0  # help was asked for
    print_page(result.page())
    print(f"\n{result.summary_lines()}")
    return 0 if result.verdict == "good" else 1


def _in_our_words(given: Sequence[str], words: Mapping[str, Sequence[str]]) -> list[str]:
    """A command line with the words of ``trtops`` replaced by the flow's."""
    found: list[str] = []
    for word in given:
        name, equals, value = word.partition("=")
        said = words.get(name, (name,))
        found += [*said[:-1], f"{said[-1]}{equals}{value}"]
    return found


def _words_text(words: Mapping[str, Sequence[str]]) -> str:
    """What help says of them."""
    if not words:
        return ""
    return "As in `trtops`: " + ", ".join(f"{word} for {' '.join(said)}" for word, said in words.items()) + "."


def _is_about_options(exc: TrtopsError) -> bool:
    """Whether an error was raised while the flow's parameters became a config, before anything was done."""
    frames = traceback.extract_tb(exc.__traceback__)
    here = Path(__file__).parent
    made = any(frame.name == "__post_init__" for frame in frames) or Path(frames[-1].filename).parent == here
    return isinstance(exc, ConfigError) and made


def _one_line(exc: Exception) -> str:
    """A message without line breaks, and without what pydantic says for those who write Python."""
    text = " ".join(str(exc).split())
    return re.sub(r"\d+ validation errors? for \S+ (.*?) \[type=.*", r"\1.", text)


@contextmanager
def _no_tracebacks() -> Iterator[None]:
    """Keep tracebacks of our own errors off the terminal, where their message is printed; the server gets them still."""
    handlers = {
        handler
        for logger in (logging.getLogger(), *logging.root.manager.loggerDict.values())
        for handler in getattr(logger, "handlers", ())
        if hasattr(handler, "console")
    }
    for handler in handlers:
        handler.addFilter(_is_not_our_error)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_not_our_error)


def _is_not_our_error(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (TrtopsError, OSError)) and "Finished in state Failed" not in record.getMessage()
