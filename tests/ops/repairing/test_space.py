"""The search for the fastest engine that passes, on made-up landscapes that are small enough to try all of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from trtops.ops.repairing.space import Outcome, Point, Search, Space, pareto_front


def landscape(seed: int, count: int = 10) -> tuple[Space, dict[Point, Outcome]]:
    """Ten measures and two settings: 4,096 points. What passes holds one of a few sets; what is taken costs time."""
    random = np.random.default_rng(seed)
    names = tuple(f"m{i}" for i in range(count))
    space = Space(measures=names, settings=(("range", ("entropy", "minmax")), ("level", ("3", "5"))))
    enough = {
        settings: [
            set(random.choice(names, random.integers(1, 4), replace=False)) for _ in range(random.integers(0, 4))
        ]
        for settings in space.all_settings()
    }
    cost = dict(zip(names, random.uniform(0.02, 0.4, count)))
    base = {settings: random.uniform(1.0, 1.5) for settings in space.all_settings()}
    saved = dict(zip(names, random.uniform(0, 0.05, count)))
    found = {}
    for settings in space.all_settings():
        for size in range(count + 1):
            for taken in combinations(names, size):
                good = any(each <= set(taken) for each in enough[settings])
                together = sum(saved[name] for name in taken) if size > 1 else 0.0
                latency = base[settings] + sum(cost[name] for name in taken) - together
                point = Point(measures=tuple(sorted(taken)), settings=settings)
                found[point] = Outcome(good=good, error=0.1 if good else 1.0, latency_ms=float(latency))
    return space, found


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_is_nearly_as_fast_as_the_best_of_all_4096(seed: int) -> None:
    space, found = landscape(seed)
    assert space.size == len(found) == 4096
    search = Search(space, found.__getitem__, max_builds=500, patience=500)
    best = min((o.latency_ms for o in found.values() if o.good), default=None)
    answer = search.run()
    assert (None if answer is None else found[answer].latency_ms) == best or (
        answer is not None and best is not None and found[answer].latency_ms <= 1.05 * best
    )
    assert search.builds <= 500 < len(found) / 8


def test_what_is_faster_only_together_is_found_within_patience() -> None:
    space = Space(measures=("a", "b", "c"))
    taken = {(): 1.0, ("a",): 1.1, ("b",): 1.1, ("c",): 1.2, ("a", "b"): 0.8}

    def evaluate(point: Point) -> Outcome:
        return Outcome(good=True, error=0.0, latency_ms=taken.get(point.measures, 1.3))

    assert Search(space, evaluate, max_builds=20, patience=20).run() == Point(measures=("a", "b"))
    hasty = Search(space, evaluate, max_builds=20, patience=3)
    assert hasty.run() == Point() and hasty.ended.startswith("it stopped improving")


def test_it_says_when_it_stops_improving_and_when_builds_are_used_up() -> None:
    space, found = landscape(1)
    hasty = Search(space, found.__getitem__, max_builds=2000, patience=6)
    hasty.run()
    assert hasty.ended.startswith("it stopped improving")
    poor = Search(space, found.__getitem__, max_builds=5, patience=100)
    poor.run()
    assert poor.ended == "5 builds were made" and poor.builds == 5


def test_a_point_that_the_memory_had_costs_nothing() -> None:
    space, found = landscape(2)
    free = Search(space, lambda p: Outcome(**{**vars(found[p]), "builds": 0}), max_builds=1, patience=1)
    assert free.run() is not None and free.builds == 0 and len(free.trials) > 1


def test_the_front_has_what_nothing_beats_in_both() -> None:
    trials = {
        Point(measures=(name,)): Outcome(good=True, error=error, latency_ms=latency)
        for name, error, latency in [("a", 1.0, 1.0), ("b", 0.5, 2.0), ("c", 0.6, 3.0), ("d", 0.1, 4.0)]
    }
    assert [point.measures[0] for point in pareto_front(trials)] == ["a", "b", "d"]
