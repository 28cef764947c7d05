"""The engines that pass, timed in turn: each was timed when it was built, and clocks drift between builds."""

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

_MOST = 31
"""Engines that are timed again."""
_AT_ONCE = 6
"""Engines loaded at a time."""
_AT_A_TIME = 4
"""Inferences of one engine before it is another's turn; the first is not counted, since it finds caches cold."""


def retimed(trials: dict[Point, Outcome], tracker: Tracker, feed: Feed, rounds: int) -> dict[Point, Outcome]:
    """The engines that pass, with latencies that can be compared.

    Each was timed when it was built, and a machine may be half as fast a minute later. So a few at a time have their turns
    beside one that is in every group. What counts of that are the ratios; their level is that of the builds' own
    measurements, since engines that take turns find caches cold.

    Args:
        trials: All engines that were tried.
        tracker: The memory that has them.
        feed: What latency is measured on.
        rounds: How often each has its turn.

    Returns:
        The engines that were timed again; those that pass, as they are, where no two of them can be loaded.
    """
    passing = _passing(trials)
    for number, anchor in enumerate(passing[:-1]):
        ratios, beside = _ratios_to(anchor, passing[number + 1 :], trials, tracker, feed, rounds)
        if ratios:
            built = [trials[point].latency_ms / ratio for point, ratio in ratios.items()]
            level = float(np.median(built if np.isfinite(built).all() else beside))
            return {point: replace(trials[point], latency_ms=level * ratio) for point, ratio in ratios.items()}
    return {point: trials[point] for point in passing}


def _passing(trials: dict[Point, Outcome]) -> list[Point]:
    """The engines that pass, the one with the fewest changes first, then by what they took when they were built."""
    passing = sorted((point for point in trials if trials[point].good), key=lambda point: trials[point].latency_ms)
    simplest = min(passing, key=lambda point: len(point.measures), default=None)
    passing.sort(key=lambda point: point != simplest)
    return passing[:_MOST]


def _ratios_to(
    anchor: Point, points: list[Point], trials: dict[Point, Outcome], tracker: Tracker, feed: Feed, rounds: int
) -> tuple[dict[Point, float], list[float]]:
    """Latencies as multiples of the anchor's, its own 1 among them, and the anchor's in ms; nothing if there are no two."""
    ratios: dict[Point, float] = {}
    beside: list[float] = []
    for first in range(0, len(points), _AT_ONCE - 1):
        with ExitStack() as stack:
            runners: dict[Point, BaseRunner] = {}
            for point in (anchor, *points[first : first + _AT_ONCE - 1]):
                try:
                    runners[point] = stack.enter_context(_runner_of(trials[point], tracker))
                except errors.TrtopsError:
                    if point == anchor:
                        return {}, []
                    # It was dropped from the memory meanwhile, or does not fit beside the others.
            found = dict(zip(runners, timed_in_turn(list(runners.values()), feed, rounds)))
        ratios |= {point: latency / found[anchor] for point, latency in found.items()}
        beside.append(found[anchor])
    return (ratios, beside) if len(ratios) > 1 else ({}, [])


def _runner_of(outcome: Outcome, tracker: Tracker) -> BaseRunner:
    build = builds.load_build(builds.holder_of_engine(tracker, tracker.info(outcome.run_id)))
    return engine_backend(build.spec.config.backend).runner(build.engine, interleaved=True)


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
