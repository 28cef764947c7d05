"""Times candidates in turns. After every round the slower half drops out (successive halving)."""

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trtops import errors
from trtops.backend.onnxrt.engine import open_plan, provider_settings
from trtops.backend.onnxrt.optimize import Optimized, Optimizer
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.onnxrt.timing_cache import Timing
from trtops.backend.runner import BaseRunner
from trtops.spec import OnnxRuntimeOptions

log = logging.getLogger(__name__)

Feed: TypeAlias = Mapping[str, Any]

TURNS_PER_ROUND = 2

# The first inferences allocate memory and pack weights, and are not counted. For a slow model one is enough.
_WARM_UP, _WARM_UP_SLOW, _SLOW_SECONDS = 3, 1, 0.02

# Candidates are timed in turns, so that other load on the machine affects all alike. All of their sessions are in
# memory then; if the engines have more bytes than this, they are timed one by one.
_INTERLEAVE_BYTES = 1 << 30


class Budget:
    """The time of one search: unlimited until the model's own speed is known, then limited.

    By default a search may take the time of 5 session starts, but at least 2 seconds and at most 10; ``given`` seconds
    replace that. ``skipped`` has the ids of the candidates that there was no time for.
    """

    def __init__(self, given: float | None = None) -> None:
        """Start without a limit."""
        self.given = given
        self.skipped: list[str] = []
        self.loaded: set[str] = set()  # ids of the candidates whose engines were loaded
        self._start_seconds = self._inference_seconds = 0.0
        self._deadline = math.inf

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._deadline - time.perf_counter()

    def begin(self, start_seconds: float, inference_seconds: float) -> None:
        """Limit the time from now on, given how long a session start and an inference at all shapes take."""
        self._start_seconds, self._inference_seconds = start_seconds, inference_seconds
        default = min(max(5 * start_seconds, 2.0), 10.0)
        self._deadline = time.perf_counter() + (default if self.given is None else self.given)

    def allows(self, candidate: Candidate, waiting: int) -> bool:
        """Return whether there is time to optimize and time one more candidate; if not, note it as skipped.

        ``waiting`` candidates are optimized but not yet timed.
        """
        # Loading an optimized model takes about half as long as optimizing it.
        timing = 0.5 * self._start_seconds + 3 * self._inference_seconds
        if self._start_seconds + (waiting + 1) * timing <= self.left:
            return True
        self.skip(candidate)
        return False

    def skip(self, candidate: Candidate) -> None:
        """Note that there was no time for a candidate."""
        if candidate.id not in self.skipped:
            self.skipped.append(candidate.id)


@dataclass
class Lane:
    """One candidate that is being timed, with its loaded runner, the cost so far and the samples in seconds."""

    candidate: Candidate
    runner: BaseRunner
    cost: float = 0.0
    samples: list[float] = field(default_factory=list)

    def run(self, feed: Feed) -> None:
        """Take one sample."""
        start = time.perf_counter()
        self.runner.infer(feed)
        self.cost += time.perf_counter() - start
        self.samples.append(self.runner.last_inference_time())

    def median(self) -> float:
        """Return the median of the samples so far."""
        return statistics.median(self.samples)


def successive_halving(lanes: Sequence[Lane], feed: Feed, turns: int, budget: Budget) -> dict[Candidate, Timing]:
    """Time lanes in turns, at most ``turns`` times each, and keep only the faster half after every round."""
    standing = list(lanes)
    for turn in range(turns):
        # A different lane begins each turn, since the first place may be slower.
        shift = turn % len(standing)
        for lane in standing[shift:] + standing[:shift]:
            lane.run(feed)
        if budget.left <= 0:
            break
        if (turn + 1) % TURNS_PER_ROUND == 0 and len(standing) > 2:
            standing = sorted(standing, key=Lane.median)[: (len(standing) + 1) // 2]
    return {lane.candidate: Timing(median_seconds=lane.median(), cost_seconds=lane.cost) for lane in lanes}


@dataclass
class Measurement:
    """Times the candidates of one build, with at most ``timing_iterations`` timed inferences per candidate and feed."""

    optimizer: Optimizer
    options: OnnxRuntimeOptions
    budget: Budget
    failed: dict[Candidate, str] = field(default_factory=dict)  # why candidates do not load or run
    _default: Lane | None = field(default=None, repr=False)

    def first_seconds(self, feeds: Sequence[Feed]) -> float:
        """Return the seconds that one inference of each feed takes with ONNX Runtime's defaults."""
        lane = self._open(self.optimizer(Candidate()))
        total = 0.0
        for feed in feeds:
            lane.run(feed)
            lane.run(feed)
            total += lane.samples.pop()
        lane.samples.clear()
        self._default = lane  # its session is used again for the timing
        return total

    def seconds(self, candidates: Sequence[Candidate], feed: Feed) -> dict[Candidate, Timing]:
        """Time candidates with one feed; those that there is no time for are skipped."""
        engines = [self.optimizer(candidate) for candidate in candidates]
        in_memory = sum(engine.path.stat().st_size for engine in engines) <= _INTERLEAVE_BYTES
        timings: dict[Candidate, Timing] = {}
        for group in [engines] if in_memory else [[engine] for engine in engines]:
            log.info("Timing %d settings of ONNX Runtime, %.1f s left", len(group), max(self.budget.left, 0))
            lanes: list[Lane] = []
            for engine in group:
                if not (timings or lanes) or self.budget.left > 0:
                    try:
                        lanes.append(self._warm_lane(engine, feed))
                    except errors.BackendError as exc:
                        # A provider refuses some of its options for some models, such as a graph of all kernels.
                        if not engine.candidate.provider_settings:
                            raise
                        self.failed[engine.candidate] = str(exc)
            if lanes:
                timings |= successive_halving(lanes, feed, self.options.timing_iterations, self.budget)
        for candidate in candidates:
            if candidate not in timings and candidate not in self.failed:
                self.budget.skip(candidate)
        return timings

    def _warm_lane(self, engine: Optimized, feed: Feed) -> Lane:
        if self._default is not None and engine.candidate == Candidate():
            lane, self._default = self._default, None
        else:
            lane = self._open(engine)
        lane.run(feed)
        for _ in range((_WARM_UP if lane.samples[0] < _SLOW_SECONDS else _WARM_UP_SLOW) - 1):
            lane.run(feed)
        lane.samples.clear()
        return lane

    def _open(self, engine: Optimized) -> Lane:
        self.optimizer.note_attempt(engine.candidate)
        start = time.perf_counter()
        settings = provider_settings(self.options, engine.candidate)
        session = open_plan(engine.plan, self.options, settings, interleaved=True, quiet=True)
        runner = OnnxrtRunner(session, "timing")
        runner.activate()
        self.budget.loaded.add(engine.candidate.id)
        return Lane(engine.candidate, runner, time.perf_counter() - start)
