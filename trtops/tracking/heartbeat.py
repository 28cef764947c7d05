"""Heartbeats: other hosts and containers see from a run's last heartbeat whether its process is alive.

A process renews the heartbeat of each run that it writes every half minute. Without one for five minutes it counts as
dead (:mod:`trtops.tracking.owner`). The clocks of hosts that share a store are assumed to agree within a minute or
two.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtops.tracking.mlflow import MlflowRun

BEAT_SECONDS = 30.0


def start_heartbeat(run: MlflowRun) -> None:
    """Send heartbeats for a run until it ends or is garbage-collected."""
    heartbeats.setdefault(os.getpid(), HeartbeatThread()).add(run)


def stop_heartbeat(run_id: str) -> None:
    """Send no more heartbeats for a run, which this process has closed or reopened."""
    if (thread := heartbeats.get(os.getpid())) is not None:
        thread.drop(run_id)


class HeartbeatThread:
    """A thread that exists as long as there are runs."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[MlflowRun] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def add(self, run: MlflowRun) -> None:
        """Send heartbeats for one more run."""
        with self._lock:
            self._runs.add(run)
            if self.thread is None:
                self.thread = threading.Thread(target=self._beat_all, name="trtops-heartbeat", daemon=True)
                self.thread.start()

    def drop(self, run_id: str) -> None:
        """Forget a run."""
        with self._lock:
            for run in [each for each in self._runs if each.id == run_id]:
                self._runs.discard(run)

    def _beat_all(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_SECONDS):
            with self._lock:
                runs = list(self._runs)
                if not runs:
                    self.thread = None
                    return
            for run in runs:
                if not run.beat():
                    self._runs.discard(run)
            del runs


heartbeats: dict[int, HeartbeatThread] = {}
"""By process id: threads do not survive a fork, and their locks may stay held in the child."""
