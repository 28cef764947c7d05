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
        The engines that were timed again, the one with the fewest changes among them; one alone as it is.
    """
    passing = _passing(trials)
    ratios: dict[Point, float] = {}
    while passing and len(ratios) < 2:
        anchor, rest = passing[0], passing[1:]
        ratios = {anchor: 1.0}
        for first in range(0, len(rest), _AT_ONCE - 1):
            ratios |= _ratios_to(anchor, rest[first : first + _AT_ONCE - 1], trials, tracker, feed, rounds)
        passing = rest  # had the anchor been loaded, others would have been, too
    level = float(np.median([trials[point].latency_ms / ratio for point, ratio in ratios.items()])) if ratios else 0.0
    return {point: replace(trials[point], latency_ms=level * ratio) for point, ratio in ratios.items()}


def _passing(trials: dict[Point, Outcome]) -> list[Point]:
    """The engines that pass, the one with the fewest changes first, then by what they took when they were built."""
    passing = sorted((point for point in trials if trials[point].good), key=lambda point: trials[point].latency_ms)
    simplest = min(passing, key=lambda point: len(point.measures), default=None)
    return [point for point in passing if point == simplest] + [point for point in passing if point != simplest][
        : _MOST - 1
    ]


def _ratios_to(
    anchor: Point, points: list[Point], trials: dict[Point, Outcome], tracker: Tracker, feed: Feed, rounds: int
) -> dict[Point, float]:
    """Latencies as multiples of the anchor's, measured in turn; nothing where the anchor cannot be loaded."""
    with ExitStack() as stack:
        runners: dict[Point, BaseRunner] = {}
        for point in (anchor, *points):
            try:
                runners[point] = stack.enter_context(_runner_of(trials[point], tracker))
            except errors.TrtopsError:
                if point == anchor:
                    return {}
                # It was dropped from the memory meanwhile, or does not fit beside the others.
        found = dict(zip(runners, timed_in_turn(list(runners.values()), feed, rounds)))
    return {point: found[point] / found[anchor] for point in runners if point != anchor}


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
