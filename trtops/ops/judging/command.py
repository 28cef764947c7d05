"""External commands as checks: an exit code and what was printed decide, and only the failure that is meant counts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trtops import errors
from trtops.backend.onnx.submodel import SubModel
from trtops.json import save_json
from trtops.ops.judging.submodel import CheckOutcome
from trtops.record import JSONValue, Record

PLACEHOLDERS = ("{model}", "{inputs}", "{golden}")
_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class CommandCheck(Record):
    """Runs a command on each sub-model; one command is one new process group, which does not outlive its turn.

    Without further options any exit code but 0 is the failure. The rules are those of the field's tool: a code in
    ``ignore_fail_codes`` passes, whatever was printed; with ``fail_codes`` only these can be the failure, and with
    ``fail_regex`` too, only if one is found as well; with ``fail_regex`` alone a match is the failure, whatever the code.

    Attributes:
        command: The program and its arguments, which no shell sees. In each, ``{model}`` stands for the sub-model's path
            (for an engine's, where engines are checked, which may be written ``{engine}`` as well), ``{inputs}`` for a JSON file of its inputs, as ``--load-inputs`` of the field's tool takes them, and
            ``{golden}`` for one of the outputs that are expected, as ``--load-outputs`` takes them.
        fail_codes: Exit codes that are the failure. A signal counts as its negative number.
        ignore_fail_codes: Exit codes that are not.
        fail_regex: Regular expressions of which one must be found in the output.
        timeout_seconds: How long one run may take; None waits for ever.
        timeout_fails: Whether running out of time is the failure that is meant.
        artifact: Where to write the sub-model for commands that do not say ``{model}``. Then sub-models are checked one
            at a time.
        tell_passing: Whether what passing checks print is told as well.
    """

    command: tuple[str, ...]
    fail_codes: tuple[int, ...] = ()
    ignore_fail_codes: tuple[int, ...] = ()
    fail_regex: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    timeout_fails: bool = False
    artifact: str | None = None
    tell_passing: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise errors.ConfigError("The check command is empty; expected a program and its arguments.")
        if self.fail_codes and self.ignore_fail_codes:
            raise errors.ConfigError("Give fail_codes or ignore_fail_codes, not both.")
        if self.artifact is None and not any("{model}" in a or "{engine}" in a for a in self.command):
            raise errors.ConfigError(
                f"The command {' '.join(self.command)!r} does not say where the model goes. Put {{model}} where its path "
                "belongs, or name the file that the command reads as artifact."
            )
        for expression in self.fail_regex:
            try:
                re.compile(expression)
            except re.error as exc:
                raise errors.ConfigError(f"{expression!r} is no regular expression: {exc}.") from None

    def deciding(self) -> JSONValue:
        """What decides the answers: all but what is told of them."""
        return {name: value for name, value in self.to_dict().items() if name != "tell_passing"}

    @property
    def one_at_a_time(self) -> bool:
        """Whether all runs share one file."""
        return self.artifact is not None

    def __call__(self, part: SubModel) -> CheckOutcome:
        """Write the sub-model, run the command, and judge.

        Raises:
            ConfigError: If the program does not exist or cannot be run.
        """
        with tempfile.TemporaryDirectory(prefix="trtops-check-") as folder:
            model = Path(self.artifact) if self.artifact is not None else Path(folder, "model.onnx")
            part.save(model)
            try:
                with tempfile.TemporaryFile() as output:
                    code = run_group(self._arguments(part, model, Path(folder)), output, self.timeout_seconds)
                    output.seek(0)
                    printed = output.read().decode(errors="replace")
            finally:
                if self.artifact is not None:
                    _remove(model)
        return self.judge(code, printed)

    def judge(self, code: int | None, printed: str) -> CheckOutcome:
        """The outcome of an exit code (None: out of time) and of what was printed."""
        tail = printed[-_TAIL_CHARACTERS:].strip()
        if code is None:
            detail = f"no answer within {self.timeout_seconds:g} s\n{tail}"
            return CheckOutcome(verdict="fail" if self.timeout_fails else "error", detail=detail)
        failed = self._is_meant(code, printed)
        # What is neither passing by its code nor the failure that is meant is another failure.
        other = not failed and code != 0 and code not in self.ignore_fail_codes
        verdict = "fail" if failed else "error" if other else "pass"
        told = verdict != "pass" or self.tell_passing
        return CheckOutcome(verdict=verdict, detail=f"exit code {code}\n{tail}" if told else "")  # type: ignore[arg-type]

    def _is_meant(self, code: int, printed: str) -> bool:
        if code in self.ignore_fail_codes:
            return False
        if self.fail_codes and code not in self.fail_codes:
            return False
        if self.fail_regex:
            return any(re.search(expression, printed) for expression in self.fail_regex)
        return bool(self.fail_codes) or code != 0

    def _arguments(self, part: SubModel, model: Path, folder: Path) -> list[str]:
        paths = {"{model}": model, "{inputs}": folder / "inputs.json", "{golden}": folder / "golden.json"}
        used = {name for name in PLACEHOLDERS if any(name in argument for argument in self.command)}
        if "{inputs}" in used:
            save_json(part.feeds, paths["{inputs}"], "inputs of a sub-model")
        if "{golden}" in used:
            _save_golden(part, paths["{golden}"])
        return [_filled(argument, {name: str(paths[name]) for name in used}) for argument in self.command]


def _remove(model: Path) -> None:
    for path in (model, model.with_name(f"{model.name}.data")):
        path.unlink(missing_ok=True)


def _filled(argument: str, paths: dict[str, str]) -> str:
    for name, path in paths.items():
        argument = argument.replace(name, path)
    return argument


def _save_golden(part: SubModel, path: Path) -> None:
    from trtops.comparator.results import IterationResult, RunResults

    iterations = [IterationResult(outputs, runner_name="golden") for outputs in part.golden]
    RunResults([("golden", iterations)]).save(path)


def run_group(arguments: list[str], output: IO[bytes], timeout_seconds: float | None) -> int | None:
    """Run a program in a process group of its own, and end whatever is left of the group.

    Args:
        arguments: The program and its arguments.
        output: Gets what is printed, errors included.
        timeout_seconds: How long it may take; None waits for ever.

    Returns:
        The exit code, negative for a signal; None if the time ran out.

    Raises:
        ConfigError: If there is no such program, or it may not be run.
    """
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as exc:
        raise errors.ConfigError(f"The check command {arguments[0]!r} cannot be run: {exc.strerror or exc}.") from exc
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Its children too: one left running would hold the GPU, or write into the next sub-model's files.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
