"""``trtops``: finds the command, parses its options, lets it work, and turns what happened into an exit code.

0: all is well. 1: outputs differ, or a check failed. 2: wrong usage. 3: an error of ours (or of the system), which the
message explains. 130: interrupted. 141: whoever read the output went away before it was known how all is.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Container, Sequence
from typing import Any

import trtops
from trtops.blas import BRIEF_SPIN
from trtops.cli import registry
from trtops.cli.flags import Parser, UsageError, bold, make_parser, without_effect
from trtops.cli.logs import LOGGING, logging_as, tell
from trtops.errors import ConfigError, TrtopsError, near
from trtops.logger import G_LOGGER, module_line

INTERRUPTED = 130
UNREAD = 141  # what a shell says of a command that SIGPIPE has ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        arguments: The words after ``trtops``; this process' own unless given.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for name, value in BRIEF_SPIN.items():
        os.environ.setdefault(name, value)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to fail
    code = None
    try:
        code = _refuse_surroundings(words) or _run_words(words, alone=arguments is None)
        sys.stdout.flush()  # or Python would do it, and exit with 120 where nobody reads
        return code
    except SystemExit as exc:  # argparse's way to say that help was shown, or that usage was wrong
        return exc.code if isinstance(exc.code, int) else 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as exc:  # what was said could not be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it would be tried once more at the end
        if not isinstance(exc, BrokenPipeError):
            print(f"trtops: the output cannot be written: {_error_text(exc)}", file=sys.stderr)
            return 3
        if code is None:  # whoever read it has seen enough; yet what evaluates must not seem to have found all well
            code = 0 if find_command(words)[0] in registry.READERS else UNREAD
        return code
    finally:
        if arguments is None:
            gc.freeze()  # this process ends, and would search all that it imported for circles first


def _refuse_surroundings(words: list[str]) -> int:
    """Wrong usage, where the folder is gone, or names cannot be read in this locale; else 0."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        print("trtops: the folder that this runs in does not exist any more; change into another one", file=sys.stderr)
        return 2
    for text in (*words, here):
        if any("\ud800" <= character <= "\udfff" for character in text):
            shown = ascii(os.fsencode(text))[2:-1]
            print(f"trtops: {shown} is no text in this locale. Set PYTHONUTF8=1, or LC_ALL=C.UTF-8", file=sys.stderr)
            return 2
    return 0


def _run_words(words: list[str], *, alone: bool) -> int:
    """Run a command line, or help on it; ``alone`` if this process was started for it."""
    path, rest = find_command(words)
    if path not in registry.COMMANDS:
        return _help_on_words(path, rest)
    module = load(path)
    parser = parser_of(path, module)
    if ("-h" in rest or "--help" in rest) and not _after_check(rest):
        parser.print_help()
        return 0
    from trtops.signals import interrupted_by_signals

    with interrupted_by_signals():
        return _run_command(path, module, parser, rest, words)


def find_command(words: list[str]) -> tuple[registry.Path, list[str]]:
    """The longest command or folder on a line, and the words after it; behind folders there may be options of the log.

    Those are put before the command's own options. The first word of a line is a folder, a command or ``--version``.
    """
    path, after = registry.find(words)
    moved: list[str] = []
    while path and path not in registry.COMMANDS and (count := _words_of_log_option(after, registry.below(path))):
        moved += after[:count]
        path, after = registry.find([*path, *after[count:]])
    if path not in registry.COMMANDS:
        return path, after
    place = next((place for place, word in enumerate(after) if word.startswith("-")), len(after))
    return path, [*after[:place], *moved, *after[place:]]


def _words_of_log_option(words: list[str], commands: Container[str]) -> int:
    """How many words the option of the log takes that a line begins with, itself included; 0 if it begins with none."""
    if not words:
        return 0
    for flag in LOGGING.flags[1:]:
        if re.fullmatch("-(v+|q+)", words[0]) or (words[0].partition("=")[0] in flag.names and "=" in words[0]):
            return 1
        if words[0] in flag.names:
            if flag.takes != "many":
                return 2 if flag.takes == "one" else 1
            values = itertools.takewhile(lambda word: word not in commands and not word.startswith("-"), words[1:])
            return 1 + len(list(values))
    return 0


def _after_check(rest: list[str]) -> bool:
    """Whether help is asked of the command behind ``--check``, not of this one."""
    asked = min(rest.index(word) for word in ("-h", "--help") if word in rest)
    return any(word in rest[:asked] for word in ("--check", "--check-inference"))


def load(path: registry.Path) -> Any:
    """Import the module of a command."""
    return importlib.import_module(registry.module_of(path))


def parser_of(path: registry.Path, module: Any) -> Parser:
    """The parser of a command."""
    about = module.__doc__ or registry.COMMANDS[path]
    prog = " ".join(("trtops", *path))
    return make_parser(prog, " ".join(about.split()), (*module.GROUPS, LOGGING), module.EXAMPLES)


def _run_command(path: registry.Path, module: Any, parser: Parser, rest: list[str], words: list[str]) -> int:
    args = parser.parse(rest)
    args.words = ["trtops", *words]

    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(logging_as(args))
        except OSError as exc:
            parser.error(f"--log-file {_error_text(exc)}")
        try:
            plan = module.plan(args)
        except (UsageError, ConfigError) as exc:
            parser.error(str(exc))
        for sentence in without_effect(module.GROUPS, args, rest):
            log.warning("%s", sentence)
        for name, why in registry.IDLE_VARIABLES.items():
            if os.environ.get(name, "0") != "0":
                log.warning("%s has no effect here: %s", name, why)
        if path not in registry.TOLD or args.peek("json") or args.peek("gen_script"):
            return _execute(module, plan, log, words)
        line = " ".join(args.words)
        tell(f"RUNNING | Command: {line}", G_LOGGER.START)
        started = time.perf_counter()
        code = _execute(module, plan, log, words)
        verdict, severity = ("FAILED", G_LOGGER.ERROR) if code else ("PASSED", G_LOGGER.FINISH)
        tell(f"{verdict} | Runtime: {time.perf_counter() - started:.3f}s | Command: {line}", severity)
        return code


def _execute(module: Any, plan: Any, log: logging.Logger, words: list[str]) -> int:
    """Let a command work, and return its exit code; errors are told."""
    try:
        return int(module.execute(plan))
    except (TrtopsError, OSError) as exc:
        if isinstance(exc, BrokenPipeError):
            raise
        log.error("%s", _error_text(exc))
        return 3
    except Exception as exc:
        if lines := _of_a_script(exc, words):
            log.error("%s", lines)
            return 3
        log.exception("This is a mistake in trtops, not in what was asked. Please report it with these lines.")
        return 3


def _error_text(exc: Exception) -> str:
    """An error in words: the system's with the file before them."""
    if isinstance(exc, OSError) and exc.filename is not None and exc.strerror is not None:
        return f"{os.fsdecode(exc.filename)}: {exc.strerror}"
    return str(exc)


def _of_a_script(exc: Exception, words: list[str]) -> str:
    """The lines of a script named on the line that an error comes from, as Python shows them; else nothing."""
    named = {os.path.abspath(word.partition(".py")[0] + ".py") for word in words if ".py" in word}
    if isinstance(exc, SyntaxError) and exc.filename in named:
        return "".join(traceback.format_exception_only(exc)).rstrip()
    frames = traceback.extract_tb(exc.__traceback__)
    own = next((place for place, frame in enumerate(frames) if frame.filename in named), None)
    if own is None:
        return ""
    lines = [f"{frames[own].filename} failed:\n", *traceback.format_list(frames[own:])]
    return "".join([*lines, *traceback.format_exception_only(exc)]).rstrip()


def _help_on_words(path: registry.Path, rest: list[str]) -> int:
    """Help for, or wrong usage of, words that need more words."""
    prog = " ".join(("trtops", *path))
    if not path and rest[:1] in (["--version"], ["-v"]):
        print(module_line(trtops, "trtops"))
        return 0
    if not rest or rest[0] in ("-h", "--help"):
        print(folder_help(path))
        return 0 if rest else 2
    words = (*path, *rest[: 2 - len(path)])
    if words in registry.NOT_CARRIED_OUT:
        print(f"trtops {' '.join(words)} is not carried out: {registry.NOT_CARRIED_OUT[words]}.", file=sys.stderr)
        return 2

    known = registry.below(path)
    print(f"{prog}: unknown command {rest[0]!r}. {near(rest[0], known)}\nTry: {prog} -h", file=sys.stderr)
    return 2


def folder_help(path: registry.Path) -> str:
    """What may follow these words, with an example."""
    prog = " ".join(("trtops", *path))
    words = registry.below(path)
    width = max(map(len, words)) + 2
    about = registry.FOLDERS.get(path, "TensorRT and ONNX Runtime engines: built, evaluated, explained and remembered.")
    lines = [f"usage: {prog} <command> [options]", "", f"{about[0].upper()}{about[1:]}", "", bold("commands:")]
    lines += [f"  {word.ljust(width)}{line}" for word, line in words.items()]
    if not path:
        width = max(map(len, registry.VARIABLES)) + 2
        lines += ["", bold("environment:"), *(f"  {n.ljust(width)}{line}" for n, line in registry.VARIABLES.items())]
    first = next(iter(words))
    example = "trtops run model.onnx --onnxrt --trt" if not path else f"{prog} {first} -h"
    return "\n".join([*lines, "", bold("example:"), f"  {example}", "", f"Help on one: {prog} {first} -h"])


if __name__ == "__main__":
    sys.exit(main())
