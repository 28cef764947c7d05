"""One command of ``trtops``: its module, its options, and its job."""

import contextlib
import functools
import importlib
import itertools
import logging
import os
import time
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

from trtops import terminal
from trtops.cli import registry
from trtops.cli.flags import (
    CHECKS,
    Group,
    Options,
    Parser,
    UsageError,
    flags_of,
    make_parser,
    usual_options,
    without_effect,
)
from trtops.cli.jobs import Command, Job, announcing
from trtops.cli.logs import LOGGING, log_line, logging_as
from trtops.errors import ConfigError, TrtopsError
from trtops.lazy import function
from trtops.logger import G_LOGGER
from trtops.system.allowed import split_script
from trtops.system.limits import limited_time
from trtops.system.processes import remove_left_folders

# Commands of one word that are modules of their own; the others are in `op_commands`.
_MODULES = ("run", "convert", "doctor")


def run_command(path: registry.Path, rest: list[str], words: list[str]) -> int:
    """Run the command of a path with the words after it, or print its help, and return the exit code."""
    started = time.perf_counter(), time.process_time()
    command = load(path)
    own_words = list(itertools.takewhile(lambda word: word not in CHECKS, rest))
    if "-h" in own_words and "--help" not in own_words:
        brief, left = usual_options((*command.groups, LOGGING))
        make_parser(" ".join(("trtops", *path)), command.about, brief, command.examples).print_help()
        if left:
            print(f"\n{left} more options: trtops {' '.join(path)} --help")
        return 0
    parser = parser_of(path, command)
    if "--help" in own_words:
        if parser.extend is not None:
            parser.extend(parser)
        parser.print_help()
        return 0
    for word in rest:
        if any("\ud800" <= character <= "\udfff" for character in word):  # neither runtimes nor stores take such names
            parser.error(f"{terminal.escaped(word)} is not UTF-8 text; give the file or option another name")
    args = parser.parse(rest)
    args.words, args.started = ["trtops", *words], started
    return _run_parsed(path, command, parser, args)


def load(path: registry.Path) -> Command:
    """Import a command."""
    *folder, word = registry.OTHER_WORDS.get(path, path)
    name = "list_" if word == "list" else word.replace("-", "_")
    home = ".".join(folder) if folder else name if name in _MODULES else "op_commands"
    module = importlib.import_module(f"trtops.cli.commands.{home}")
    command = getattr(module, name, None)
    # `precision` and `reduce` are modules below `debug`, since they are as long as all its other commands.
    if not isinstance(command, Command):
        command = getattr(importlib.import_module(f"{module.__name__}.{name}"), name)
        assert isinstance(command, Command)
    return command


def parser_of(path: registry.Path, command: Command) -> Parser:
    """Return the parser of a command."""
    parser = make_parser(" ".join(("trtops", *path)), command.about, (*command.groups, LOGGING), command.examples)
    parser.extend = function("trtops.tools.extend") if path == ("run",) else None
    parser.abbreviable = functools.partial(_polygraphy_options, " ".join(path))
    return parser


@functools.cache
def _polygraphy_options(command: str) -> list[str]:
    """Return the options of Polygraphy's command that may be cut short; those of trtops would change their meaning."""
    table = Path(__file__).with_name("polygraphy_options.txt").read_text()
    options_by_command = dict(line.split(": ") for line in table.splitlines())
    return options_by_command.get(command, "").split()


def _run_parsed(path: registry.Path, command: Command, parser: Parser, args: Options) -> int:
    try:
        refuse_overwriting_files(command, args, LOGGING)  # before the log file is opened
    except ConfigError as exc:
        parser.error(terminal.escaped(str(exc)))
    remove_left_folders()
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(logging_as(args, path))
        except OSError as exc:
            parser.error(terminal.escaped(f"--log-file {error_text(exc)}"))
        try:
            stack.enter_context(limited_time(args.timeout))
            job = command.plan(args)
            refuse_overwriting_files(command, args)  # of the names that the plan has chosen
        except (UsageError, ConfigError) as exc:
            parser.error(terminal.escaped(str(exc)))
        except (TrtopsError, OSError) as exc:
            log.error("%s", error_text(exc))
            return 3
        # After the plan, which has read every option that the job uses.
        for sentence in without_effect(command.groups, args, parser.words):
            log.warning("%s", sentence)
        if parser.written_out:
            meanings = ", ".join(f"{name} is taken for {full_name}" for name, full_name in parser.written_out.items())
            log.warning("Abbreviated options: %s. Write them out", meanings)
        # JSON and scripts on stdout must stay free of other lines.
        if path not in registry.REPORTED or getattr(args, "json", None) or getattr(args, "gen_script", None):
            return _execute(job, log, args)
        line = " ".join(args.words)
        log_line(f"RUNNING | Command: {line}", G_LOGGER.START)
        started = time.perf_counter()
        code = _execute(job, log, args)
        ended, severity = ("FAILED", G_LOGGER.ERROR) if code else ("PASSED", G_LOGGER.FINISH)
        if code == 1 and path[0] == "debug":  # the search has found bad builds, and has not failed
            ended, severity = "FINISHED", G_LOGGER.FINISH
        log_line(f"{ended} | Runtime: {time.perf_counter() - started:.3f}s | Command: {line}", severity)
        return code


def refuse_overwriting_files(command: Command, args: Options, written: Group | None = None) -> None:
    """Raise ConfigError if an option, or one of the group ``written``, names a file that another option reads."""
    flags = [flag for _, flag in flags_of((*command.groups, LOGGING)) if flag.file]
    values = {flag.dest: getattr(args, flag.dest, None) for flag in flags}
    writing = [flag for flag in flags if flag.file != "reads" and (written is None or flag in written.flags)]
    if not any(values[flag.dest] for flag in writing):
        return  # nothing is written, and the next import takes a while
    from trtops.ops.arguments import data_path, refuse_overwriting

    label_by_dest = {flag.dest: flag.names[0] for flag in flags}
    output = getattr(args, "save_onnx", None) or getattr(args, "output", None)
    reads, writes = list[tuple[str, Any]](), list[tuple[str, Any, Collection[str]]]()
    for flag in flags:
        value = values[flag.dest]
        if flag.takes == "runner":
            value = [word for kind, word in value or () if kind == flag.value]
        elif flag.takes == "rest":
            value = [word for word in value or () if os.path.isfile(word)]
        elif str(flag.shown).endswith("@FILE"):  # other words are names
            value = [word.removeprefix("@") for word in value or () if word[:1] == "@" or split_script(word)[1]]
        if flag.file == "reads":
            reads.append((flag.names[0], value))
        elif flag not in writing:
            continue
        elif flag.file == "writes":
            writes.append((flag.names[0], value, [label_by_dest[dest] for dest in flag.continues.split()]))
        elif output is not None:
            writes.append((flag.names[0], data_path(output, value or ""), ()))
    refuse_overwriting(reads, writes)


def _execute(job: Job, log: logging.Logger, args: Options) -> int:
    """Run a job, log its errors, and return its exit code."""
    try:
        with announcing("The command"):
            return job()
    except (TrtopsError, OSError) as exc:
        if isinstance(exc, BrokenPipeError):
            raise
        text = error_text(exc)
        is_default = getattr(args, "backend", "") is None and getattr(args, "convert_to", None) is None
        if is_default and "tensorrt" in getattr(exc, "missing", ()):
            text += ". ONNX Runtime does not need it: --onnxrt"
        log.error("%s", text)
    except Exception as exc:
        if lines := _script_error(exc, args.words):
            log.error("%s", lines)
        else:
            log.exception("This is a bug in trtops. Please report it with these lines.")
    return 3


def error_text(exc: Exception) -> str:
    """Return an error's message; the system's with the file in front."""
    if isinstance(exc, OSError) and exc.filename is not None and exc.strerror is not None:
        return f"{os.fsdecode(exc.filename)}: {exc.strerror}"
    return str(exc)


def _script_error(exc: Exception, words: list[str]) -> str:
    """Return the traceback of an error in a script named on the line, otherwise an empty string."""
    named = {os.path.abspath(word.partition(".py")[0] + ".py") for word in words if ".py" in word}
    if isinstance(exc, SyntaxError) and exc.filename in named:
        return "".join(traceback.format_exception_only(exc)).rstrip()
    frames = traceback.extract_tb(exc.__traceback__)
    first_frame = next((index for index, frame in enumerate(frames) if frame.filename in named), None)
    if first_frame is None:
        return ""
    lines = [f"{frames[first_frame].filename} failed:\n", *traceback.format_list(frames[first_frame:])]
    return "".join([*lines, *traceback.format_exception_only(exc)]).rstrip()
