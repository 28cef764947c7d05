"""Runs a runner in a child process, which may crash or hang without harm to this one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.comparator.data_loader import DataLoader, DataLoaderCache, StreamingDataLoader
from trtops.comparator.results import IterationResult

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner

_LOG_LINES = 20


def run_in_child(
    runner: BaseRunner, cache: DataLoaderCache, warm_up: int, timeout: float | None
) -> list[IterationResult]:
    """Run a runner on all inputs in a fresh process; ``cache`` gets the inputs that it read.

    Args:
        runner: The runner, inactive; a copy of it runs.
        cache: The inputs.
        warm_up: How often to run before timing.
        timeout: Seconds after which the process is killed; never if None.

    Raises:
        WorkerError: If the process crashes, is killed or takes too long.
        TrtopsError: If the runner raises one, as it is.
        ConfigError: If the runner or the inputs cannot be sent to another process.
    """
    if not isinstance(cache.data_loader, (DataLoader, StreamingDataLoader, Sequence)):
        cache.data_loader = list(cache.data_loader)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        process = context.Process(target=_child, args=(theirs, log), daemon=True)
        try:
            process.start()
            theirs.close()
            _send(ours, (runner, cache, warm_up), runner.name)
            answer = _answer(process, ours, runner.name, timeout, log)
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
            ours.close()
    if isinstance(answer, BaseException):
        raise answer
    results, feeds = answer
    cache.cache, cache._loaded = feeds, True
    return results


def _send(pipe: Connection, work: tuple[Any, ...], name: str) -> None:
    """Hand the work over. Not as arguments of the process: there a child that dies while it reads them leaves us waiting."""
    try:
        pipe.send(work)
    except OSError:
        return  # the child has died, which :func:`_answer` tells
    except (TypeError, AttributeError, ValueError) as exc:
        raise errors.ConfigError(
            f"{name} or its inputs cannot be sent to a child process: {exc}. "
            "Make it from loaders rather than from loaded objects, or do not use_subprocess."
        ) from None
    except Exception as exc:
        if type(exc).__name__ != "PicklingError":
            raise
        raise errors.ConfigError(f"{name} or its inputs cannot be sent to a child process: {exc}.") from None


def _answer(
    process: Any, pipe: Connection, name: str, timeout: float | None, log: str
) -> BaseException | tuple[list[IterationResult], list[Mapping[str, Any]]]:
    ready = wait([pipe, process.sentinel], timeout)
    if not ready:
        raise errors.WorkerError(f"{name}'s child process took more than {timeout} s and was killed.{_tail(log)}")
    try:
        answer: BaseException | tuple[list[IterationResult], list[Mapping[str, Any]]] = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        code = process.exitcode
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise errors.WorkerError(f"{name}'s child process {how} before it had results.{_tail(log)}") from None
    return answer


def _tail(log: str) -> str:
    with contextlib.suppress(FileNotFoundError), open(log, errors="replace") as file:
        lines = [line.rstrip() for line in file][-_LOG_LINES:]
        if lines:
            return " Its last lines:\n" + "\n".join(lines)
    return ""


def _child(pipe: Connection, log: str) -> None:
    from trtops.comparator.comparator import run_to_end

    with open(log, "wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    runner, cache, warm_up = pipe.recv()
    try:
        pipe.send((run_to_end(runner, cache, warm_up), cache.cache))
    except errors.TrtopsError as exc:
        pipe.send(exc)
    except Exception as exc:
        pipe.send(errors.WorkerError(f"{runner.name} failed in its child process: {type(exc).__name__}: {exc}"))
