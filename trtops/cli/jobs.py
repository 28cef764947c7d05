"""Commands and their jobs: one call of an op, and the display of its result."""

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from trtops import ops, terminal
from trtops.cli import logs
from trtops.cli.flags import Group, Options
from trtops.cli.script import product

log = logging.getLogger(__name__)

# Seconds after which a command tells which step runs; imports may take 2 s before.
_SILENT = 3.0
_SILENT_IN_FILES = 15.0
_steps: list[tuple[str, float]] = []  # names and starts of the steps that run; a process runs one command at a time

Job: TypeAlias = Callable[[], int]
"""The work of a command line. It prints the result and returns the exit code."""

Store = Literal["none", "reads", "writes", "optional", "temporary"]


@dataclass(frozen=True)
class Command:
    """One command: how it becomes a job, its options, and examples."""

    plan: Callable[[Options], Job]
    groups: tuple[Group, ...]
    examples: tuple[str, ...]

    @property
    def about(self) -> str:
        """The help: the docstring of the planning function, on one line."""
        return " ".join(str(self.plan.__doc__).split())


def command(*groups: Group, examples: tuple[str, ...]) -> Callable[[Callable[[Options], Job]], Command]:
    """Decorate a planning function as a command; its docstring is the command's help.

    The function declares which options the job ignores (``Options.ignore``): they produce a warning before it runs.
    """
    return lambda plan: Command(plan, groups, examples)


def direct_command(*groups: Group, examples: tuple[str, ...]) -> Callable[[Callable[[Options], int]], Command]:
    """Decorate a working function as a command that ignores no option."""

    def decorate(work: Callable[[Options], int]) -> Command:
        @functools.wraps(work)
        def plan(args: Options) -> Job:
            return functools.partial(work, args)

        return Command(plan, groups, examples)

    return decorate


def op_job(
    args: Options,
    op: str,
    *inputs: Any,
    store: Store = "none",
    show: Callable[[Any, str | None], None] | None = None,
    code: Callable[[Any], int] | None = None,
    progress: tuple[str, str] | Callable[..., None] | None = None,
    **options: Any,
) -> Job:
    """Return the job for calling an op.

    Args:
        args: The options, for the store, ``--json``, and the op's ``experiment`` if the command has that option.
        op: The op's name in :mod:`trtops.ops`.
        inputs: Its positional arguments; loaders among the arguments are called by the job.
        store: Which tracking store it gets: ``none``; the one it ``reads``, which must exist, or ``writes``;
            ``optional``, only with an experiment; ``temporary``, in memory unless an experiment or a store is given.
        show: Prints the result, given it and the store's place; by default its page and how it ended.
        code: Returns the exit code for the result; by default the result's own, else 0 if its verdict is good, or 1.
        progress: What a progress bar says, and its unit; or what the op calls with its progress.
        options: The op's keyword arguments.
    """
    if hasattr(args, "experiment"):
        options["experiment"] = args.experiment
    used = store not in ("none", "optional") or (store == "optional" and options.get("experiment") is not None)
    store_address = args.store if used else None
    if not used:
        args.ignore("store")
    as_json, profiled = (bool(getattr(args, name, False)) for name in ("json", "profile"))
    models = getattr(args, "models", None) or [getattr(args, "model_file", "")]
    started, model_path = args.started, str(models[0]) if len(models) == 1 else ""

    def run() -> int:
        from trtops.ops.result import model_file, op_times, step_time, steps_run_by  # help needs no ops

        if model_path.endswith(".onnx") and not set("*?[") & set(model_path):  # patterns
            model_file(model_path)  # a mistyped name costs no store
        with contextlib.ExitStack() as stack:
            times = stack.enter_context(op_times(started))
            stack.enter_context(steps_run_by(_announced))
            with step_time("import"):
                function = getattr(ops, op)
                arguments = [product(value) for value in inputs]
                kwargs = {name: product(value) for name, value in options.items()}
            is_kept = store_address is not None or kwargs.get("experiment") is not None
            if store == "temporary" and not is_kept:  # a run in memory would hold all bytes of the model
                arguments = [
                    dataclasses.replace(value, keep_model=False) if hasattr(value, "keep_model") else value
                    for value in arguments
                ]
            if store != "none":
                with step_time("open store"):
                    kwargs["tracker"] = tracker(store, store_address, kwargs.get("experiment"))
            if isinstance(progress, tuple):
                kwargs["progress"] = stack.enter_context(terminal.progress(*progress))
            elif progress is not None:
                kwargs["progress"] = progress
            result = function(*arguments, **kwargs)
        if store in ("temporary", "optional") and not is_kept and hasattr(result, "run_id"):
            # Its run ends with this process, and the next command is to keep the model.
            changes: dict[str, Any] = {"run_id": "", "url": ""}
            if hasattr(result, "options"):
                changes["options"] = {name: result.options[name] for name in result.options if name != "keep_model"}
            result = dataclasses.replace(result, **changes)
        if as_json:
            logs.say_json(json_of(result))
        elif show is not None:
            show(result, store_address)
        elif hasattr(result, "page"):
            logs.say_result(result, store_address)
        else:
            logs.say(result.text())
        if profiled:
            logs.say(times.text())
        verdict = getattr(result, "verdict", "good")
        return code(result) if code is not None else getattr(result, "exit_code", int(verdict != "good"))

    return run


@contextlib.contextmanager
def announcing(work: str) -> Iterator[None]:
    """Tell how long work during the block has taken, and its running step.

    A terminal shows one line that is replaced every second. A file or a pipe gets log lines, 15 s and later a tenth of
    the time so far apart.
    """
    ended, start = threading.Event(), time.monotonic()

    def announce() -> None:
        is_terminal = sys.stderr.isatty()
        pause = _SILENT if is_terminal else _SILENT_IN_FILES
        while not ended.wait(pause):
            current = time.monotonic()
            step = "".join(f"; step {name!r}: {current - since:.0f} s" for name, since in _steps[-1:])
            text = f"{work} has taken {current - start:.0f} s so far{step}"
            if not is_terminal:
                log.info("%s", text)
                pause = max(_SILENT_IN_FILES, (current - start) / 10)
            elif log.isEnabledFor(logging.INFO):
                terminal.show_status(text)
                pause = 1.0

    announcer = threading.Thread(target=announce, daemon=True)
    announcer.start()
    try:
        yield
    finally:
        ended.set()
        announcer.join(1.0)  # it may be about to show a line
        terminal.clear_status()


def _announced(name: str, step: Callable[[], Any]) -> Any:
    _steps.append((name, time.monotonic()))
    try:
        return step()
    finally:
        _steps.pop()


def store_of(args: Options) -> str | None:
    """Return the store of a command that records with ``--experiment`` only."""
    if args.experiment is None:
        args.ignore("store")
        return None
    address: str | None = args.store
    return address


def tracker(store: Store, address: str | None, experiment: str | None = None) -> Any:
    """Open a tracking store; see :func:`op_job` for the kinds. None if an ``optional`` one is not used."""
    if store == "none" or (store == "optional" and experiment is None):
        return None
    # No record is requested, and the op needs a tracker.
    if store == "temporary" and experiment is None and address is None:
        from trtops.tracking.memory import MemoryTracker

        return MemoryTracker()
    # Imports MLflow, which takes longer than most commands.
    from trtops.tracking.store import existing_tracker, open_tracker

    return existing_tracker(address) if store == "reads" else open_tracker(address)


def no_verdict(result: Any) -> int:
    """Return exit code 0 for a result without a verdict of the command."""
    return 0


def json_of(result: Any) -> Any:
    """Return a result as JSON values; lists of results as lists."""
    if isinstance(result, (list, tuple)):
        return [json_of(entry) for entry in result]
    return result.to_dict() if hasattr(result, "to_dict") else result.to_json()
