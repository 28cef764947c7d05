"""Iterations as Polygraphy tells them: each one's verdict and time, and in the end how many passed."""

from __future__ import annotations

import time

from trtops.cli.logs import tell
from trtops.logger import G_LOGGER


class Iterations:
    """Counts and times iterations, and says how they went; time begins when it is made."""

    def __init__(self) -> None:
        self._verdicts: list[bool] = []
        self._began = time.perf_counter()

    def ended(self, passed: bool) -> None:
        """Say how an iteration went; the next begins."""
        self._verdicts.append(passed)
        now = time.perf_counter()
        text = f"Iteration {len(self._verdicts)} | Duration {now - self._began:.3f}s"
        self._began = now
        if passed:
            tell(f"PASSED | {text}", G_LOGGER.FINISH)
        else:
            tell(f"FAILED | {text}", G_LOGGER.ERROR)

    def tell_all(self) -> None:
        """Say how many there were, and how many of them passed; nothing if there were none."""
        total, passed = len(self._verdicts), sum(self._verdicts)
        if total:
            rate = float(passed) * 100 / float(total)
            text = f"Finished {total} iteration(s) | Passed: {passed}/{total} | Pass Rate: {rate}%"
            tell(text, G_LOGGER.FINISH)
