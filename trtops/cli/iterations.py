"""Iterations as Polygraphy reports them: the verdict and time of each, and a summary."""

from __future__ import annotations

import time

from trtops.cli.logs import log_line
from trtops.logger import G_LOGGER


class Iterations:
    """Counts and times iterations; time starts when it is made."""

    def __init__(self) -> None:
        self._verdicts: list[bool] = []
        self._start = time.perf_counter()

    def ended(self, passed: bool) -> None:
        """Log the outcome of an iteration; the next starts."""
        self._verdicts.append(passed)
        now = time.perf_counter()
        text = f"Iteration {len(self._verdicts)} | Duration {now - self._start:.3f}s"
        self._start = now
        if passed:
            log_line(f"PASSED | {text}", G_LOGGER.FINISH)
        else:
            log_line(f"FAILED | {text}", G_LOGGER.ERROR)

    def log_summary(self) -> None:
        """Log how many iterations there were, and how many passed; nothing if there were none."""
        total, passed = len(self._verdicts), sum(self._verdicts)
        if total:
            rate = float(passed) * 100 / float(total)
            log_line(f"Finished {total} iteration(s) | Passed: {passed}/{total} | Pass Rate: {rate}%", G_LOGGER.FINISH)
