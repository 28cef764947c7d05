"""Run native code in a child process first if it may crash."""

from collections.abc import Callable
from typing import Any

from trtops.system.activity import needs_child


def try_in_child(function: Callable[..., object], *args: Any) -> None:
    """Call a function in the warm child, once for equal arguments, if no parent watches this process.

    WorkerError if the child dies. Other errors are ignored: the same call in this process raises them as well.
    """
    if needs_child():
        from trtops.backend.worker import call_once_in_child  # imports multiprocessing

        call_once_in_child(function, *args)
