"""The steps of an op. A flow runs each as a task, so that its run shows them; everywhere else they are plain calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

StepRunner: TypeAlias = Callable[[str, Callable[[], Any]], Any]
"""Calls a function as a step of the given name, and returns its result."""

_runner: ContextVar[StepRunner | None] = ContextVar("step_runner", default=None)


def run_step(name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function as a step of an op. It may be called again if infrastructure was lost, so it must allow that."""
    runner = _runner.get()
    if runner is None:
        return function(*args, **kwargs)
    result: R = runner(name, functools.partial(function, *args, **kwargs))
    return result


@contextmanager
def steps_run_by(runner: StepRunner) -> Iterator[None]:
    """Let a function run the steps of all ops that are called in the block, in this thread."""
    token = _runner.set(runner)
    try:
        yield
    finally:
        _runner.reset(token)
