"""Heartbeats: by a run's last one any host can tell that its process is gone.

A process says every half minute that it is still at each run that it writes. Who cannot see the process, since it belongs to
another machine or container, takes it for dead after five minutes of silence (:mod:`trtops.tracking.owner`). Clocks of hosts
that share a store are taken to agree within a minute or two.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

BEAT_SECONDS = 30.0
SILENT_SECONDS = 300.0


class Beating(Protocol):
    """A run that is being written."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    def beat(self) -> bool:
        """Say that it is; False once there is nothing more to say. Raises nothing."""
        ...


def keep_beating(run: Beating) -> None:
    """Have a run beat until it says that it has ended, or nobody has it any more."""
    hearts.setdefault(os.getpid(), _Heart()).add(run)


def stop_beating(run_id: str) -> None:
    """Have this process say no more that it is at a run, since it has closed it or writes it through another object now."""
    if (heart := hearts.get(os.getpid())) is not None:
        heart.drop(run_id)


class _Heart:
    """A thread, for as long as there are runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Beating] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, run: Beating) -> None:
        with self._lock:
            self._runs.add(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat_on, name="trtops-heartbeat", daemon=True)
                self._thread.start()

    def drop(self, run_id: str) -> None:
        with self._lock:
            for run in [each for each in self._runs if each.id == run_id]:
                self._runs.discard(run)

    def _beat_on(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_SECONDS):
            if not self._beat_once():
                return

    def _beat_once(self) -> bool:
        """Let every run beat; whether there are any."""
        with self._lock:
            runs = list(self._runs)
            if not runs:
                self._thread = None
                return False
        for run in runs:
            if not run.beat():
                self._runs.discard(run)
        return True


hearts: dict[int, _Heart] = {}
"""By process: a thread does not go on in a child made by ``fork``, and locks may be held there for ever."""
