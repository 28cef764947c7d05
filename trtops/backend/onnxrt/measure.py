"""Times candidates and the defaults in turns. The slower half drops out after some rounds (successive halving)."""

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.onnxrt.engine import open_plan, provider_settings
from trtops.backend.onnxrt.optimize import Optimized, Optimizer
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.onnxrt.timing_cache import Timing
from trtops.backend.ratio import MIN_STARTS, UNDISTURBED
from trtops.backend.runner import BaseRunner
from trtops.spec import OnnxRuntimeOptions

log = logging.getLogger(__name__)

Feed: TypeAlias = Mapping[str, Any]

ROUNDS_PER_HALVING = 2

# The first inferences allocate memory and pack weights, and are not counted. For a slow model one is enough.
_WARM_UP, _WARM_UP_SLOW, _SLOW_SECONDS = 3, 1, 0.02

# A visit repeats short inferences for this long, since single ones are interrupted by other work.
_VISIT_SECONDS, _MAX_INFERENCES = 0.004, 50

# Candidates are timed in turns, so that other load on the machine affects all alike. All of their sessions are in
# memory then; if the engines have more bytes than this, each is timed in turns with the defaults alone.
_INTERLEAVE_BYTES = 1 << 30

# Visits of a candidate that can be decided, and inferences of it and of the defaults.
_LEAST_VISITS = 2 * MIN_STARTS
_LEAST_INFERENCES = 2 * _LEAST_VISITS


class Budget:
    """The time of one search: unlimited until the model's own speed is known, then limited.

    By default a search may take the time of 5 session starts, or of the inferences that decide on one setting, but at
    least 2 seconds and at most 10; ``requested_seconds`` replace that. ``skipped`` has the ids of the candidates that
    there was no time for.
    """

    def __init__(self, requested_seconds: float | None = None) -> None:
        """Start without a limit."""
        self.requested_seconds = requested_seconds
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
        default = min(max(5 * start_seconds, start_seconds + _LEAST_INFERENCES * inference_seconds, 2.0), 10.0)
        self._deadline = time.perf_counter() + (default if self.requested_seconds is None else self.requested_seconds)

    def allows(self, candidate: Candidate, waiting: int) -> bool:
        """Return True if there is time to optimize and time one more candidate; if not, note it as skipped.

        ``waiting`` candidates are optimized but not yet timed.
        """
        # Loading an optimized model takes about half as long as optimizing it.
        timing = 0.5 * self._start_seconds + _LEAST_VISITS * max(self._inference_seconds, _VISIT_SECONDS)
        if self._start_seconds + (waiting + 1) * timing <= self.left:
            return True
        self.skip(candidate)
        return False

    def skip(self, candidate: Candidate) -> None:
        """Note a candidate as skipped for lack of time."""
        if candidate.id not in self.skipped:
            self.skipped.append(candidate.id)


@dataclass
class Lane:
    """One candidate during timing, with its loaded runner and the cost so far.

    ``samples`` are the seconds of an undisturbed inference, one for each visit; ``rounds`` are those of each round.
    """

    candidate: Candidate
    runner: BaseRunner
    cost: float = 0.0
    samples: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    seconds: float = 0.0  # of the last inference, or of the last visit's

    def infer(self, feed: Feed) -> float:
        """Run one inference; return its seconds."""
        start = time.perf_counter()
        self.runner.infer(feed)
        self.cost += time.perf_counter() - start
        seconds = self.runner.last_inference_time()
        assert seconds is not None  # ONNX Runtime's runner measures every inference
        self.seconds = seconds
        return seconds

    def visit(self, feed: Feed) -> None:
        """Take one sample."""
        count = min(_MAX_INFERENCES, math.ceil(_VISIT_SECONDS / max(self.seconds, 1e-7)))
        seconds = [self.infer(feed) for _ in range(max(1, count))]
        self.seconds = float(np.quantile(seconds, UNDISTURBED))
        self.samples.append(self.seconds)

    def end_round(self) -> None:
        """Combine the two visits of a round: a linear drift adds the same to this value of each lane."""
        self.rounds.append(math.sqrt(self.samples[-1] * self.samples[-2]))

    def timing(self, default: "Lane") -> Timing:
        """Return the result, with the ratios to the default in the same rounds."""
        ratios = [math.log(max(ours, 1e-9) / max(theirs, 1e-9)) for ours, theirs in zip(self.rounds, default.rounds)]
        return Timing(
            median_seconds=statistics.median(self.samples),
            cost_seconds=self.cost,
            log_ratios=() if self is default else tuple(ratios),
        )


def successive_halving(lanes: Sequence[Lane], feed: Feed, rounds: int, budget: Budget) -> dict[Candidate, Timing]:
    """Time lanes in turns, in ``rounds`` rounds at most; keep the first lane and the faster half of the others.

    In a round, each lane is visited on the way there and on the way back: A B C C B A, then C B A A B C.
    """
    standing = list(lanes)
    for number in range(rounds):
        order = standing[::-1] if number % 2 else standing
        for lane in (*order, *reversed(order)):
            if number and budget.left <= 0:
                break  # a part of a round compares nothing
            lane.visit(feed)
        else:
            for lane in standing:
                lane.end_round()
        if budget.left <= 0:
            break
        if (number + 1) % ROUNDS_PER_HALVING == 0 and len(standing) > 2:
            others = sorted(standing[1:], key=lambda lane: statistics.median(lane.samples))
            standing = [standing[0], *others[: (len(others) + 1) // 2]]
    return {lane.candidate: lane.timing(lanes[0]) for lane in lanes}


@dataclass
class Measurement:
    """Times the candidates of one build, in at most ``timing_iterations`` rounds for each candidate and feed."""

    optimizer: Optimizer
    options: OnnxRuntimeOptions
    budget: Budget
    failed: dict[Candidate, str] = field(default_factory=dict)  # why candidates do not load or run
    _default: Lane | None = field(default=None, repr=False)

    def first_seconds(self, feeds: Sequence[Feed]) -> float:
        """Return the seconds for one inference of each feed with ONNX Runtime's defaults."""
        lane = self._open(self.optimizer(Candidate()))
        self._default = lane  # its session is used again for the timing
        total = 0.0
        for feed in feeds:
            lane.infer(feed)
            total += lane.infer(feed)
        return total

    def seconds(self, candidates: Sequence[Candidate], feed: Feed) -> dict[Candidate, Timing]:
        """Time candidates with one feed, in turns with the first; candidates beyond the time limit are skipped."""
        first, *others = (self.optimizer(candidate) for candidate in candidates)
        in_memory = sum(engine.path.stat().st_size for engine in (first, *others)) <= _INTERLEAVE_BYTES
        timings: dict[Candidate, Timing] = {}
        groups = [others] if in_memory or not others else [[engine] for engine in others]
        default = self.warm_lane(first, feed)
        for group in groups:
            if timings and self.budget.left <= 0:
                break
            log.debug("Timing %d settings of ONNX Runtime, %.1f s left", len(group) + 1, max(self.budget.left, 0))
            lanes = [replace(default, samples=[], rounds=[])]
            for engine in group:
                if self.budget.left > 0:
                    try:
                        lanes.append(self.warm_lane(engine, feed))
                    except errors.BackendError as exc:
                        # A provider refuses some of its options for some models, such as a graph of all kernels.
                        if not engine.candidate.provider_settings:
                            raise
                        self.failed[engine.candidate] = str(exc)
            rounds = self.options.timing_iterations if len(lanes) > 1 else 1
            timings = successive_halving(lanes, feed, rounds, self.budget) | timings
        for candidate in candidates:
            if candidate not in timings and candidate not in self.failed:
                self.budget.skip(candidate)
        return timings

    def warm_lane(self, engine: Optimized, feed: Feed) -> Lane:
        """Load an engine, and run it until inferences take their usual time."""
        if self._default is not None and engine.candidate == Candidate():
            lane, self._default = self._default, None
        else:
            lane = self._open(engine)
        first = lane.infer(feed)
        for _ in range((_WARM_UP if first < _SLOW_SECONDS else _WARM_UP_SLOW) - 1):
            lane.infer(feed)
        return lane

    def _open(self, engine: Optimized) -> Lane:
        self.optimizer.note_attempt(engine.candidate)
        start = time.perf_counter()
        settings = provider_settings(self.options, engine.candidate)
        session = open_plan(engine.path, self.options, settings, interleaved=True, quiet=True)
        runner = OnnxrtRunner(session, "timing")
        runner.activate()
        self.budget.loaded.add(engine.candidate.id)
        return Lane(engine.candidate, runner, time.perf_counter() - start)
