"""End a command on SIGTERM and SIGHUP as on Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on SIGTERM and SIGHUP during the block, so that every ``finally`` runs.

    Does nothing outside the main thread. SIGHUP stays ignored if it is ignored already, as under ``nohup``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
