"""Runs the command in a child process, and reports how the child died if native code crashes or never returns.

The child is a fork, which takes 3 ms; a :class:`~trtops.system.worker.Worker` imports everything again.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from trtops.cli.signals import FORWARDED, INTERRUPTED, INTERRUPTING
from trtops.system.activity import Page
from trtops.system.processes import end_with_parent, remove_left_folders
from trtops.terminal import print_line

_REPEATS = 5  # seconds in which an interruption is repeated; the command ignores it from the second one on
# Seconds after an interruption until the command is killed: native code, as a build of TensorRT, may run for minutes.
_PATIENCE = 30.0
# Of each computation while the nodes that fail are found, and of all of it.
_EXPLAIN_SECONDS, _LINT_SECONDS = 20.0, 120.0


def supervise(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run a command in a fork of this process, and return its exit code: 3 if it died, or that of an interruption.

    Returns in the child as well. The command runs unsupervised where the system cannot fork safely.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return command()
    page = Page()
    ending = _run_fork(page)
    if ending is None:
        page.publish_here()
        return command()
    code, seconds = ending
    if code >= 0:
        os._exit(code)
    if -code in (*INTERRUPTING, FORWARDED):
        os._exit(INTERRUPTED)
    remove_left_folders()  # the child's; the next command would remove them as well
    if "--silent" not in words:
        hint = "" if seconds is None else " If this is intended, set --timeout to more seconds."
        print_line(f"[E] The command {page.describe_death(code, seconds)}.{hint}", sys.stderr)
        if models := [word for word in words if word.endswith(".onnx") and os.path.isfile(word)]:
            limit = min(_EXPLAIN_SECONDS, seconds or _EXPLAIN_SECONDS)
            page.write(_LINT_SECONDS, time.monotonic() + _LINT_SECONDS, b"")
            if _run_fork(page) is None:
                _print_culprits(models[0], limit)
    os._exit(3)


def _print_culprits(model: str, seconds: float) -> None:
    """Print the nodes of a model with failures of their own within a time limit, and end this process."""
    from trtops.backend.onnx.lint import failing_nodes

    try:
        for line in failing_nodes(model, seconds):
            print_line(f"[E] {line}", sys.stderr)
    finally:
        os._exit(0)


def _run_fork(page: Page) -> tuple[int, float | None] | None:
    """Fork and wait; None in the child.

    Signals sent to the parent alone are forwarded; a child that does not end then is killed.

    Returns:
        The exit code, or the negative number of the signal that ended it, such as an interruption.
        The time limit that the child exceeded.
    """
    parent = os.getpid()
    numbers = [number for number in INTERRUPTING if signal.getsignal(number) is not signal.SIG_IGN]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*numbers, signal.SIGCHLD])
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        end_with_parent(parent)
        return None
    seconds, repeats, patience = None, 0, math.inf
    while True:
        info = signal.sigtimedwait([*numbers, signal.SIGCHLD], 1.0)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), seconds
        if info is None and repeats:
            # Python does not see a signal that arrives just before a system call, and the call may wait for ever.
            os.kill(pid, FORWARDED)
            repeats -= 1
        elif info is not None and info.si_signo != signal.SIGCHLD:
            # A terminal sends its signals to both processes; its code is positive.
            if info.si_code <= 0:
                os.kill(pid, info.si_signo if repeats else FORWARDED)
            repeats = _REPEATS
            patience = min(patience, time.monotonic() + _PATIENCE)
        if patience < time.monotonic():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            print_line(f"[E] Interrupted: killed, since the command did not end within {_PATIENCE:g} s.", sys.stderr)
            return -FORWARDED, None
        if (exceeded := page.exceeded()) is not None:
            seconds = exceeded
            os.kill(pid, signal.SIGKILL)
