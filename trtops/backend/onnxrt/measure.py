"""Candidates timed in turns; the slower half drops out again and again (successive halving)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trtops.backend.onnxrt.budget import Budget
from trtops.backend.onnxrt.engine import open_plan
from trtops.backend.onnxrt.optimize import Optimized, Optimizer
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.onnxrt.timing_cache import Timing

Feed: TypeAlias = "Mapping[str, Any]"

# Inferences that are not counted: the first ones allocate memory and pack weights. A slow model has done all that in one.
_WARM_UP, _WARM_UP_SLOW, _SLOW_SECONDS = 3, 1, 0.02

_TURNS_PER_ROUND = 2

# Candidates are timed in turns, so that all suffer alike from whatever else the machine does. That keeps all of their
# sessions in memory; beyond this many bytes of engines they are timed one after the other.
_INTERLEAVE_BYTES = 1 << 30


@dataclass
class Measurement:
    """What times the candidates of one build.

    Attributes:
        optimizer: Makes their engines.
        providers: Execution providers in order of preference.
        threads: Threads within one operator; 0 lets ONNX Runtime decide.
        turns: Timed inferences per candidate and feed at most.
        budget: How long all of it may take.
    """

    optimizer: Optimizer
    providers: tuple[str, ...]
    threads: int
    turns: int
    budget: Budget
    _default: tuple[OnnxrtRunner, float] | None = field(default=None, repr=False)

    def first_seconds(self, feeds: Sequence[Feed]) -> float:
        """Seconds that ONNX Runtime's default takes for one inference of each feed; its session stays for the timing.

        Raises:
            InferenceError: If it refuses a feed.
        """
        start = time.perf_counter()
        runner = self._open(self.optimizer(Candidate()))
        total = 0.0
        for feed in feeds:
            runner.infer(feed)
            runner.infer(feed)
            total += runner.last_inference_time()
        self._default = runner, time.perf_counter() - start
        return total

    def seconds(self, candidates: Sequence[Candidate], feed: Feed) -> dict[Candidate, Timing]:
        """Time candidates with one feed, as far as there is time; those that there was none for are left out.

        Raises:
            InferenceError: If one refuses the feed.
        """
        engines = [self.optimizer(candidate) for candidate in candidates]
        timings: dict[Candidate, Timing] = {}
        for group in _groups_in_memory(engines):
            if not timings or self.budget.left > 0:
                timings |= self._in_turns(group, feed)
        for candidate in candidates:
            if candidate not in timings:
                self.budget.skip(candidate)
        return timings

    def _in_turns(self, group: Sequence[Optimized], feed: Feed) -> dict[Candidate, Timing]:
        self.budget.say(f"Timing {len(group)} settings of ONNX Runtime")
        lanes: list[_Lane] = []
        for engine in group:
            if not lanes or self.budget.left > 0:
                lanes.append(self._lane(engine, feed))
        standing = list(lanes)
        for turn in range(self.turns):
            # Each begins a turn in its turn, so that whatever befalls the first one befalls all alike.
            shift = turn % len(standing)
            for lane in standing[shift:] + standing[:shift]:
                lane.run(feed)
            if self.budget.left <= 0:
                break
            if turn % _TURNS_PER_ROUND == _TURNS_PER_ROUND - 1 and len(standing) > 2:
                standing = sorted(standing, key=_Lane.median)[: (len(standing) + 1) // 2]
        return {
            lane.candidate: Timing(median_seconds=lane.median(), cost_seconds=lane.cost, undisturbed=True)
            for lane in lanes
        }

    def _lane(self, engine: Optimized, feed: Feed) -> _Lane:
        """A candidate that is loaded and warm."""
        start = time.perf_counter()
        runner, cost = None, 0.0
        if self._default is not None and engine.candidate == Candidate():
            (runner, cost), self._default = self._default, None
        if runner is None:
            runner = self._open(engine)
        runner.infer(feed)
        for _ in range((_WARM_UP if runner.last_inference_time() < _SLOW_SECONDS else _WARM_UP_SLOW) - 1):
            runner.infer(feed)
        return _Lane(engine.candidate, runner, cost + time.perf_counter() - start)

    def _open(self, engine: Optimized) -> OnnxrtRunner:
        self.optimizer.note_attempt(engine.candidate)
        session = open_plan(engine.plan, providers=self.providers, threads=self.threads, interleaved=True)
        runner = OnnxrtRunner(session, "timing")
        runner.activate()
        return runner


@dataclass
class _Lane:
    """One candidate under way: its session, what it cost so far, and its samples in seconds."""

    candidate: Candidate
    runner: OnnxrtRunner
    cost: float
    samples: list[float] = field(default_factory=list)

    def run(self, feed: Feed) -> None:
        """Take one sample."""
        start = time.perf_counter()
        self.runner.infer(feed)
        self.cost += time.perf_counter() - start
        self.samples.append(self.runner.last_inference_time())

    def median(self) -> float:
        """Of the samples so far."""
        return statistics.median(self.samples)


def _groups_in_memory(engines: Sequence[Optimized]) -> Iterator[Sequence[Optimized]]:
    """All engines at once if they fit into the memory meant for that, else one by one."""
    if sum(engine.path.stat().st_size for engine in engines) <= _INTERLEAVE_BYTES:
        yield engines
    else:
        yield from ([engine] for engine in engines)
