"""External commands as checks: exit code and output give the verdict."""

import builtins
import contextlib
import importlib
import logging
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.submodel import SubModel
from trtops.comparator.results import IterationResult, RunResults
from trtops.json import save_json
from trtops.ops.search.submodel import CheckOutcome, CheckVerdict
from trtops.record import Config, JSONValue, setting
from trtops.system.allowed import check_command
from trtops.system.processes import end_with_parent, temporary_prefix
from trtops.system.worker import warm_worker

_TAIL_CHARACTERS = 2000
_MAX_TRACEBACK = 100_000  # characters of the output that are searched for one
_NOT_RUN = (126, 127)  # exit codes of shells that cannot run a program
_ENDED_FROM_OUTSIDE = frozenset(
    code
    for number in (1, 2, 9, 15)
    for code in (-number, 128 + number)  # SIGHUP, SIGINT, SIGKILL, SIGTERM
)
# How the output of a program ends that refuses its command line, or of Python without a script; by exit code.
_REFUSALS = {
    1: re.compile(r"^\S+: (No module named|Error while finding module) .*\Z", re.MULTILINE),
    2: re.compile(r"^(.+: error: |Try: trtops |\S+: can't open file ).*\Z", re.MULTILINE),
}
# The frames of Python's last traceback, and the exception that ended the program.
_TRACEBACK = re.compile(r'^  File ".*", line \d.*\n(?:[ \t].*\n|\n)*(\w+)(?:: .*)?\Z', re.MULTILINE)
# Idle children that have imported what most commands of trtops need, which takes most of a short one's time.
_IMPORTED = (
    "numpy.random", "onnx", "psutil", "trtops.backend.onnx.model", "trtops.backend.onnxrt.inference",
    "trtops.backend.onnxrt.loader", "trtops.backend.onnxrt.session", "trtops.cli.command_line",
    "trtops.cli.commands.run", "trtops.comparator.accuracy", "trtops.comparator.compare",
    "trtops.comparator.data_loader", "trtops.comparator.running", "trtops.ops.comparing.run", "trtops.tracking.no_run",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CommandCheck(Config):
    """Runs a command on each sub-model, in a process group of its own, ended with the check."""

    # By default any exit code but 0 is the failure, unless the command failed by itself (`is_own_failure`): that raises
    # ScriptError. The rules are Polygraphy's otherwise: a code in `ignore_fail_codes` passes, whatever was printed.
    # With `fail_codes` only these are the failure, and with `fail_regex` as well only if an expression matches. With
    # `fail_regex` alone a match is the failure, whatever the code.

    # The program and its arguments, without a shell. In each, ``{model}`` stands for the sub-model's path (or
    # ``{engine}`` for an engine's), ``{inputs}`` for a JSON file of its inputs, as Polygraphy's ``--load-inputs``
    # reads them, and ``{golden}`` for one of the expected outputs, as ``--load-outputs`` reads them.
    command: tuple[str, ...]
    # Exit codes that are the failure. A signal counts as its negative number.
    fail_codes: tuple[int, ...] = ()
    ignore_fail_codes: tuple[int, ...] = ()  # exit codes that pass
    fail_regex: tuple[str, ...] = ()  # regular expressions; one must match the output
    timeout_seconds: float | None = None  # time limit of one run; None sets no limit
    timeout_fails: bool = False  # whether running out of time is the failure
    # Where to write the sub-model for commands without ``{model}``. Sub-models are then checked one at a time.
    artifact: str | None = setting(None, file="writes")
    tell_passing: bool = False  # whether the outcome of a passing check includes its output

    def __post_init__(self) -> None:
        if not self.command:
            raise errors.ConfigError("The check command is empty; expected a program and its arguments.")
        if self.fail_codes and self.ignore_fail_codes:
            raise errors.ConfigError("Give fail_codes or ignore_fail_codes, not both.")
        if self.artifact is None and not (self.wants("{model}") or self.wants("{engine}")):
            raise errors.ConfigError(
                f"The command {' '.join(self.command)!r} has no place for the model. Put {{model}} where its path "
                "belongs, or name the file that the command reads as artifact."
            )
        for expression in self.fail_regex:
            try:
                re.compile(expression)
            except re.error as exc:
                raise errors.ConfigError(f"{expression!r} is not a regular expression: {exc}.") from None

    def deciding(self) -> JSONValue:
        """All deciding fields of the verdict."""
        return {name: value for name, value in self.to_dict().items() if name != "tell_passing"}

    def __call__(self, part: SubModel) -> CheckOutcome:
        """Write the sub-model, and run the command on it; raises ConfigError if the program cannot be run."""
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("check")) as folder:
            model = Path(folder, "model.onnx") if self.artifact is None else Path(self.artifact)
            paths = {"{model}": model, "{inputs}": Path(folder, "inputs.json"), "{golden}": Path(folder, "golden.json")}
            if self.wants("{inputs}"):
                save_json(part.feeds, paths["{inputs}"])
            if self.wants("{golden}"):
                iterations = [IterationResult(outputs, runner_name="golden") for outputs in part.golden]
                save_json(RunResults([("golden", iterations)]), paths["{golden}"])
            save_model(part.proto, model)
            try:
                return self.run(paths)
            finally:
                if self.artifact is not None:
                    for path in (model, model.with_name(f"{model.name}.data")):
                        path.unlink(missing_ok=True)

    def wants(self, placeholder: str) -> bool:
        """Whether the command has a placeholder."""
        return any(placeholder in argument for argument in self.command)

    def run(self, paths: Mapping[str, Path]) -> CheckOutcome:
        """Run the command once with files by placeholder, and evaluate its exit code and output."""
        arguments = list(self.command)
        for placeholder, path in paths.items():
            arguments = [argument.replace(placeholder, str(path)) for argument in arguments]
        return self.evaluate(*run_group(arguments, self.timeout_seconds))

    def evaluate(self, code: int | None, printed: str) -> CheckOutcome:
        """The outcome for an exit code (None: out of time) and the output; ScriptError if the command itself failed."""
        tail = printed[-_TAIL_CHARACTERS:].strip()
        if code is None:
            detail = f"no answer within {self.timeout_seconds:g} s\n{tail}"
            return CheckOutcome(verdict="fail" if self.timeout_fails else "error", detail=detail)
        if code in self.ignore_fail_codes or (self.fail_codes and code not in self.fail_codes):
            failed = False
        elif self.fail_regex:
            failed = any(re.search(expression, printed) for expression in self.fail_regex)
        else:
            failed = bool(self.fail_codes) or code != 0
        verdict: CheckVerdict = "pass" if code in (0, *self.ignore_fail_codes) else "error"
        verdict = "fail" if failed else verdict
        if failed and not (self.fail_codes or self.fail_regex) and is_own_failure(code, printed.rstrip()):
            raise errors.ScriptError(
                f"The check command {' '.join(self.command)!r:.200} failed by itself, with exit code {code}:\n{tail}\n"
                "This says nothing about what it checks. Correct the command. If this is the failure that you search "
                "for, name it (--fail-code, --fail-regex)."
            )
        shown = verdict != "pass" or self.tell_passing
        return CheckOutcome(verdict=verdict, detail=f"exit code {code}\n{tail}" if shown else "")


def is_own_failure(code: int, printed: str) -> bool:
    """Whether a check command failed by itself, so that its exit code says nothing about what it checks.

    A shell cannot run it, it was ended from outside, as for lack of memory, it refuses its options, or a Python script
    ended in one of Python's own exceptions other than AssertionError. Crashes, other exit codes and exceptions of
    libraries may be the model's.
    """
    if code in _NOT_RUN or code in _ENDED_FROM_OUTSIDE:
        return True
    if code in _REFUSALS and _REFUSALS[code].search(printed):
        return True
    match = _TRACEBACK.search(printed[-_MAX_TRACEBACK:]) if code == 1 else None
    exception = getattr(builtins, match[1], None) if match else None
    return isinstance(exception, type) and not issubclass(exception, AssertionError)


def run_group(arguments: Sequence[str], timeout_seconds: float | None) -> tuple[int | None, str]:
    """Run a program in a process group of its own, and kill the group when the program ends.

    A command of this installation's ``trtops`` is a fork of a process that has done the imports. Returns the exit code,
    negative for a signal and None if the time ran out, and what the program printed. ConfigError if there is no such
    program, or the system or :mod:`trtops.system.allowed` does not allow it.
    """
    check_command(list(arguments))
    with tempfile.NamedTemporaryFile(prefix=temporary_prefix("output")) as output:
        trtops_program = Path(sys.executable).with_name("trtops")
        if hasattr(os, "fork") and trtops_program.exists() and shutil.which(arguments[0]) == str(trtops_program):
            with warm_worker("commands of trtops") as worker:
                code = worker.run(
                    _run_fork, list(arguments), os.getcwd(), dict(os.environ), output.name, timeout_seconds
                )
        else:
            code = _run_program(arguments, output, timeout_seconds)
        return code, Path(output.name).read_text(errors="replace")


def _run_program(arguments: Sequence[str], output: Any, timeout_seconds: float | None) -> int | None:
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    environment = {"PYTHONUNBUFFERED": "1", **os.environ}  # so that a traceback follows what was printed before it
    try:
        process = subprocess.Popen(arguments, start_new_session=True, env=environment, **streams)
    except OSError as exc:
        message = f"The check command {arguments[0]!r} cannot be run: {exc.strerror or exc}."
        raise errors.ConfigError(message) from exc
    code = None
    try:
        code = process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # The whole group: a child left running would hold the GPU, or write into the next sub-model's files.
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    return code


def _run_fork(
    words: list[str], folder: str, environment: dict[str, str], output: str, timeout_seconds: float | None
) -> int | None:
    """Run a command of trtops in a fork of this process; otherwise like :func:`_run_program`."""
    for name in _IMPORTED:
        importlib.import_module(name)
    fork = multiprocessing.get_context("fork").Process(
        target=_run_command, args=(os.getpid(), words, folder, environment, output)
    )
    fork.start()
    fork.join(timeout_seconds)
    in_time = fork.exitcode is not None
    fork.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(fork.pid or 0, signal.SIGKILL)
    fork.join()
    return fork.exitcode if in_time else None


def _run_command(parent: int, words: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    os.setsid()
    if sys.platform == "linux":
        end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().handlers.clear()  # the worker's own, which a new process does not have
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv[:] = words
    runpy.run_module("trtops.cli", run_name="__main__")
