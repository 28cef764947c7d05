"""Calls of workers that run in the process of the test, pickled as for a child: starting one takes half a second."""

import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest.mock import patch

from trtops.ops.gate import engine_process
from trtops.system.worker import Worker

_PLACES = (
    "tests/flows/",
    "tests/cli/",
    "tests/test_examples.py",
    "tests/test_unproven.py",
    *(f"tests/ops/{name}/" for name in ("audit", "bundling", "campaign", "engines", "evaluation", "gate", "model")),
)
"""Tests that do so, except with the fixture ``children``."""

_gate = threading.Lock()


def run_calls_here() -> None:
    """Let workers of this process call functions directly."""
    in_child = Worker._answer_to

    def answer(worker: Worker, call: bytes, timeout: float) -> tuple[bool, Any]:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        is_special = worker._environment or worker._python or worker._script
        if is_special or not test.startswith(_PLACES) or "TRTOPS_TEST_CHILDREN" in os.environ:
            return in_child(worker, call, timeout)
        function, args, named, *_ = ForkingPickler.loads(call)
        try:
            if function.__module__ == engine_process.__name__:
                result = _call_with_engine(worker, function, *args, **named)
            else:
                result = function(*args, **named)
        except Exception as exc:
            return False, exc
        reply: tuple[bool, Any] = True, ForkingPickler.loads(ForkingPickler.dumps(result))
        return reply

    Worker._answer_to = answer  # type: ignore[method-assign]


def _call_with_engine(worker: Any, function: Any, *args: Any, **named: Any) -> Any:
    """Call a function of the gate that uses the open engine of a child: each worker has its own."""
    if function is engine_process._open_engine:
        worker.opened = []
    processors = os.sched_getaffinity(0)
    with _gate, patch.object(engine_process, "_open", worker.__dict__.setdefault("opened", [])):
        try:
            return function(*args, **named)
        finally:
            os.sched_setaffinity(0, processors)
