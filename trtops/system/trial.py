"""Run native code in a child process first if it may crash."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

from trtops.system.activity import needs_child

_survived: set[str] = set()  # digests of calls


def try_in_child(function: Callable[..., object], *args: Any) -> None:
    """Call a function in a warm child, once for equal arguments, if no parent watches this process.

    WorkerError if the child dies. Other errors are ignored: the same call in this process raises them as well.
    """
    if not needs_child() or not hasattr(os, "fork"):  # without `fork` a call of a child runs here, as the next one does
        return
    import hashlib
    from multiprocessing.reduction import ForkingPickler

    from trtops.system.worker import warm_worker

    try:
        call = bytes(ForkingPickler.dumps((function, args)))
    except Exception:  # arguments that only this process has; `__reduce__` may raise anything
        return
    key = hashlib.sha256(call).hexdigest()
    if key not in _survived:
        with warm_worker() as worker:
            worker.run(_call_quietly, os.getcwd(), call)
        _survived.add(key)


def _call_quietly(folder: str, call: bytes) -> None:
    from multiprocessing.reduction import ForkingPickler

    os.chdir(folder)  # paths in the arguments may be relative
    function, args = ForkingPickler.loads(call)
    with contextlib.suppress(Exception):
        function(*args)
