"""How long a search may take: seconds that the model's own speed suggests, or that somebody gave."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field

from trtops.backend.onnxrt.tactics import Candidate

log = logging.getLogger(__name__)

STARTS, INFERENCES = 5, 60  # what a search may cost by default, beyond the engine that it begins with
AT_LEAST_SECONDS = 2.0  # nobody waits for these; a small model is tried out whole
_LOADING = 0.5  # of a start: an optimized model is loaded faster than it is optimized


@dataclass
class Budget:
    """The time of one search, counted from when the model's own speed is known.

    Attributes:
        given: Seconds that were asked for; None takes those of :data:`STARTS` starts and :data:`INFERENCES` inferences, but
            no fewer than :data:`AT_LEAST_SECONDS`.
        skipped: Ids of the candidates that there was no time for, in the order in which they came up.
    """

    given: float | None = None
    skipped: list[str] = field(default_factory=list)
    _start: float = 0.0
    _inference: float = 0.0
    _limit: float = math.inf
    _begun: float | None = None

    @property
    def running(self) -> bool:
        """Whether the model's speed is known, and time is counted."""
        return self._begun is not None

    def begin(self, start_seconds: float, inference_seconds: float) -> None:
        """Count from now on.

        Args:
            start_seconds: What making a session of the model took.
            inference_seconds: What one inference takes, at all shapes that are timed.
        """
        self._start, self._inference = start_seconds, inference_seconds
        by_speed = max(STARTS * start_seconds + INFERENCES * inference_seconds, AT_LEAST_SECONDS)
        self._limit = by_speed if self.given is None else self.given
        self._begun = time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds left; all there are before the counting begins."""
        return math.inf if self._begun is None else self._limit - (time.perf_counter() - self._begun)

    def allows_another(self, candidate: Candidate, waiting: int) -> bool:
        """Whether there is time to optimize and to time one more candidate; one that there is not is noted.

        Args:
            candidate: The candidate.
            waiting: How many are optimized already, and have yet to be timed.
        """
        timing = _LOADING * self._start + 3 * self._inference
        if self._start + (waiting + 1) * timing <= self.left:
            return True
        self.skip(candidate)
        return False

    def skip(self, candidate: Candidate) -> None:
        """Note that there was no time for a candidate."""
        if candidate.id not in self.skipped:
            self.skipped.append(candidate.id)

    def say(self, doing: str) -> None:
        """Say on the log what is done now, and how much time is left for it."""
        left = self.left
        log.info("%s%s", doing, "" if math.isinf(left) else f", {max(left, 0):.1f} s left")
