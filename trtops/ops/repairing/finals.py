"""The fastest engines that pass, timed in turn: each was timed when it was built, and clocks drift between builds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from trtops import errors
from trtops.backend.base import BaseRunner, Feed
from trtops.backend.engines import engine_backend
from trtops.ops.repairing.space import Outcome, Point
from trtops.tracking import builds
from trtops.tracking.base import Tracker

_MOST = 6
_NEAR = 1.4
"""Engines up to so many times as slow as the fastest are timed again."""
_AT_A_TIME = 4
"""Inferences of one engine before it is another's turn; the first is not counted, since it finds caches cold."""


def retimed(trials: dict[Point, Outcome], tracker: Tracker, feed: Feed, rounds: int) -> dict[Point, Outcome]:
    """The engines that pass and are about as fast as the fastest, with latencies that can be compared.

    Args:
        trials: All engines that were tried.
        tracker: The memory that has them.
        feed: What latency is measured on.
        rounds: How often each has its turn.

    Returns:
        The engines that were timed again; the fastest alone as it is where there is no other to tell it from.
    """
    passing = _near_fastest(trials)
    if len(passing) < 2:
        return {point: trials[point] for point in passing}
    with ExitStack() as stack:
        runners: dict[Point, BaseRunner] = {}
        for point in passing:
            try:
                runners[point] = stack.enter_context(_runner_of(trials[point], tracker))
            except errors.TrtopsError:
                continue  # dropped from the memory meanwhile, or it does not fit beside the others
        found = timed_in_turn(list(runners.values()), feed, rounds)
    return {point: replace(trials[point], latency_ms=ms) for point, ms in zip(runners, found)}


def _near_fastest(trials: dict[Point, Outcome]) -> list[Point]:
    passing = sorted((point for point in trials if trials[point].good), key=lambda point: trials[point].latency_ms)
    return [point for point in passing if trials[point].latency_ms <= _NEAR * trials[passing[0]].latency_ms][:_MOST]


def _runner_of(outcome: Outcome, tracker: Tracker) -> BaseRunner:
    build = builds.load_build(builds.holder_of_engine(tracker, tracker.info(outcome.run_id)))
    return engine_backend(build.spec.config.backend).runner(build.engine)


def timed_in_turn(runners: Sequence[BaseRunner], feed: Feed, rounds: int) -> list[float]:
    """Medians of latencies in ms of active runners, which have their turns forwards and backwards; of the device, if it has clocks."""
    measured: list[list[float]] = [[] for _ in runners]
    order = list(range(len(runners)))
    for _ in range(rounds):
        for index in order:
            for number in range(_AT_A_TIME):
                runners[index].infer(feed, check_inputs=False)
                if number:
                    seconds = runners[index].last_device_time() or runners[index].last_inference_time()
                    measured[index].append(seconds)
        order.reverse()
    return [float(np.median(seconds)) * 1e3 for seconds in measured]
