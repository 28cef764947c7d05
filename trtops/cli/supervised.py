"""Runs the command in a child process, and reports how the child died if native code crashes or never returns."""

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from trtops.cli.main import FORWARDED, INTERRUPTED, INTERRUPTING
from trtops.system.activity import Page, describe_death
from trtops.terminal import print_line

_REPEATS = 5  # seconds in which an interruption is repeated; the command ignores it from the second one on
# Seconds after an interruption until the command is killed: native code, as a build of TensorRT, may run for minutes.
_PATIENCE = 30.0
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
# Of each computation while the nodes that fail are found, and of all of it.
_EXPLAIN_SECONDS, _LINT_SECONDS = 20.0, 120.0


def supervise(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run a command in a fork of this process, and return its exit code: 3 if it died, or that of an interruption.

    Returns in the child as well. The command runs unsupervised where the system cannot fork safely.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return command()
    page = Page()
    pid, code, seconds = _run_fork(page)
    if pid == 0:
        page.publish_here()
        return command()
    if code >= 0:
        os._exit(code)
    if -code in (*INTERRUPTING, FORWARDED):
        os._exit(INTERRUPTED)
    if "--silent" not in words:
        hint = "" if seconds is None else " If this is intended, set --timeout to more seconds."
        text = f"[E] The command {describe_death(code, page.read()[1], seconds)}.{hint}"
        print_line(text, sys.stderr)
        if models := [word for word in words if word.endswith(".onnx") and os.path.isfile(word)]:
            limit = min(_EXPLAIN_SECONDS, seconds or _EXPLAIN_SECONDS)
            page.write(_LINT_SECONDS, time.monotonic() + _LINT_SECONDS, b"")
            if _run_fork(page)[0] == 0:
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


def _run_fork(page: Page) -> tuple[int, int, float | None]:
    """Fork; returns 0 in the child. In the parent, wait, and return the child's exit code or negative signal, too.

    The last value is the time limit that the child exceeded. Signals sent to the parent alone are forwarded; a child
    that does not end then is killed, and has ended by that signal.
    """
    parent = os.getpid()
    numbers = [number for number in INTERRUPTING if signal.getsignal(number) is not signal.SIG_IGN]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*numbers, signal.SIGCHLD])
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)
        return 0, 0, None
    seconds, repeats, patience = None, 0, math.inf
    while True:
        info = signal.sigtimedwait([*numbers, signal.SIGCHLD], 1.0)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return pid, os.waitstatus_to_exitcode(status), seconds
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
            return pid, -FORWARDED, None
        if page.is_late():
            seconds = page.read()[0]
            os.kill(pid, signal.SIGKILL)
