"""``trtops``: find the command, parse its options, run it, and return an exit code.

0: passed. 1: outputs differ, or a check failed. 2: wrong usage. 3: an error of trtops or the system. 130: interrupted.
141: stdout was closed before the verdict was known.
"""

# What only commands need is imported by them, so that help is fast.

import atexit
import contextlib
import gc
import io
import itertools
import os
import re
import signal
import sys
import threading
from collections.abc import Container, Sequence

import trtops
from trtops.cli import registry
from trtops.cli.signals import FORWARDED, INTERRUPTED, INTERRUPTING, UNREAD
from trtops.errors import near
from trtops.terminal import bold, print_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, this process' own unless given, and return the exit code.

    This process' own command runs in a child process, which native code may crash.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is not None:
        return _run_line(words, own_process=False)
    _open_closed_streams()
    atexit.register(_discard_unwritable_rest)  # first, so that it is called last
    try:
        if not {"-h", "--help"}.isdisjoint(words):
            return _run_line(words, own_process=True)
        from trtops.cli.supervised import supervise  # takes as long to import as help takes to print

        return supervise(lambda: _run_line(words, own_process=True), words)
    finally:
        # The last garbage collection of all modules and arrays would only delay the end of the process.
        gc.freeze()


def _open_closed_streams() -> None:
    """Open the null device for each closed standard stream.

    Otherwise a file of the store might get its number, and whatever native code prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):  # it is open if Python had another reason
                os.fstat(number)
                continue
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _discard_unwritable_rest() -> None:
    """Discard what is left in the standard streams, if it cannot be written.

    Otherwise Python tries once more at exit, and replaces the command's exit code by 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_line(words: list[str], own_process: bool) -> int:
    """Run a command line in this process; a shared process gets its signal handlers back."""
    if own_process:
        # Imports make half a million objects, none of them garbage: searching them takes a quarter of a short command.
        gc.set_threshold(1_000_000)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A tensor's name in letters that the terminal lacks must not make a command fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    code, before, interrupted = None, {}, False

    def interrupt(number: int, frame: object) -> None:
        """Raise KeyboardInterrupt, but not for a forwarded signal if there was one already."""
        nonlocal interrupted
        if not (interrupted and number == FORWARDED):
            interrupted = True
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
        # These signals end a command as Ctrl-C does, so that every `finally` runs. Under nohup, SIGHUP stays ignored.
        numbers = {*INTERRUPTING, FORWARDED}
        before = {n: signal.signal(n, interrupt) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        path, rest = find_command(words)
        if path in registry.COMMANDS:
            from trtops.system.processes import BRIEF_SPIN

            for name, value in BRIEF_SPIN.items():  # before numpy is imported, which reads these variables then
                os.environ.setdefault(name, value)
            from trtops.cli.command_line import run_command

            code = run_command(path, rest, words)
        else:
            code = _help_on_words(path, rest)
        # Otherwise Python does it at exit, and exits with 120 if stdout is closed.
        sys.stdout.flush()
        return code
    except SystemExit as exc:  # from argparse, after help or wrong usage
        return exc.code if isinstance(exc.code, int) else 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as exc:  # the output could not be written
        if isinstance(exc, BrokenPipeError):
            exit_code = UNREAD if code is None else code
        else:
            exit_code = 3
            with contextlib.suppress(OSError):  # the log may be on the same full disk
                print_line(f"trtops: the output cannot be written: {exc}", sys.stderr)
        _discard_unwritable_rest()
        return exit_code
    finally:
        for number, handler in () if own_process else before.items():
            signal.signal(number, handler)


def find_command(words: list[str]) -> tuple[registry.Path, list[str]]:
    """Return the longest command or folder on a line, and the words after it.

    Log options between the words of a command are moved after the command.
    """
    path, after = registry.find(words)
    moved: list[str] = []
    while path and path not in registry.COMMANDS and (count := _words_of_log_option(after, registry.below(path))):
        moved += after[:count]
        path, after = registry.find([*path, *after[count:]])
    if path not in registry.COMMANDS:
        return path, after
    # Before the first option, since one that takes the rest of the line would consume them.
    position = next((position for position, word in enumerate(after) if word.startswith("-")), len(after))
    return path, [*after[:position], *moved, *after[position:]]


def _words_of_log_option(words: list[str], commands: Container[str]) -> int:
    """Return the number of words of a line's leading log option, itself included; 0 without one."""
    if not words or words[0] in ("-h", "--help"):
        return 0
    from trtops.cli.logs import LOGGING

    for flag in LOGGING.flags[1:]:
        if re.fullmatch("-(v+|q+)", words[0]) or (words[0].partition("=")[0] in flag.names and "=" in words[0]):
            return 1
        if words[0] in flag.names:
            if flag.takes != "many":
                return 2 if flag.takes == "one" else 1
            values = itertools.takewhile(lambda word: word not in commands and not word.startswith("-"), words[1:])
            return 1 + len(list(values))
    return 0


def _help_on_words(path: registry.Path, rest: list[str]) -> int:
    """Print help on incomplete words, or their wrong usage."""
    prog = " ".join(("trtops", *path))
    if not path and rest[:1] in (["--version"], ["-v"]):
        print(f"trtops | Version: {trtops.__version__} | Path: {list(map(os.path.realpath, trtops.__path__))}")
        return 0
    if not rest or rest[0] in ("-h", "--help"):
        print(folder_help(path))
        return 0 if rest else 2
    words = (*path, *rest[: 2 - len(path)])
    if words in registry.NOT_SUPPORTED:
        problem = f"trtops {' '.join(words)} is not supported: {registry.NOT_SUPPORTED[words]}."
    else:
        paths = dict.fromkeys((*registry.COMMANDS, *registry.OTHER_WORDS))
        deeper = [" ".join(command_path) for command_path in paths if command_path[-1] == rest[0]]
        hint = f"Did you mean {' or '.join(map(repr, deeper))}?" if deeper else near(rest[0], registry.below(path))
        problem = f"{prog}: unknown command {rest[0]!r}. {hint}\nTry: {prog} -h"
    print_line(problem, sys.stderr)
    return 2


def folder_help(path: registry.Path) -> str:
    """Return the possible words after these, with an example."""
    prog = " ".join(("trtops", *path))
    words = registry.below(path)
    width = max(map(len, words)) + 2
    about = registry.FOLDERS.get(path, "TensorRT and ONNX Runtime engines: build, check, debug and record them.")
    lines = [f"usage: {prog} <command> [options]", "", f"{about[0].upper()}{about[1:]}", "", bold("commands:")]
    lines += [f"  {word.ljust(width)}{line}" for word, line in words.items()]
    if not path:
        width = max(map(len, registry.VARIABLES)) + 2
        lines += ["", bold("environment:"), *(f"  {n.ljust(width)}{line}" for n, line in registry.VARIABLES.items())]
    example = f"{prog} {next(iter(words))} -h"
    return "\n".join([*lines, "", bold("example:"), f"  {example}"])


if __name__ == "__main__":
    sys.exit(main())
