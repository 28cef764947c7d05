"""What a repair may change, and the search for the fastest way that passes.

Two kinds of changes. *Measures* are taken or not: a node kept in FP32, a tactic left out, a tensor marked. The more are taken
the likelier an engine passes, and the slower it mostly is. *Settings* have one value of several: how INT8 ranges are
chosen, the builder's optimization level. The search knows neither models nor back ends, only points and trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import TypeAlias

from trtops.ops.search import algorithms
from trtops.record import Record

_MEASURED_SINGLY = 16
"""Measures up to which each is tried alone first, to know what it costs."""


@dataclass(frozen=True, kw_only=True)
class Point(Record):
    """One engine that could be built.

    Attributes:
        measures: The measures taken, sorted.
        settings: Names and values of the settings, in the order of the space.
    """

    measures: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        """The point in words."""
        said = [*self.measures, *(f"{name} {value}" for name, value in self.settings)]
        return ", ".join(said) or "as asked for"


@dataclass(frozen=True, kw_only=True)
class Outcome(Record):
    """What an engine is like.

    Attributes:
        good: Whether it passes.
        error: Largest relative error of an output, as a number to draw; infinite where it cannot be told.
        latency_ms: Median of one inference; infinite where it does not run.
        builds: Engines built to know: none where the memory had it.
        run_id: Its run.
        why: Why it does not pass.
    """

    good: bool
    error: float
    latency_ms: float
    builds: int = 1
    run_id: str = ""
    why: str = ""


Evaluate: TypeAlias = "Callable[[Point], Outcome]"


@dataclass(frozen=True)
class Space:
    """All points.

    Attributes:
        measures: Measures that may be taken, those that cost least first where that is known.
        settings: Values that each setting may have, the one asked for first.
    """

    measures: tuple[str, ...] = ()
    settings: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def size(self) -> int:
        """How many points there are."""
        count = 1 << len(self.measures)
        for _, values in self.settings:
            count *= len(values)
        return count

    def all_settings(self) -> list[tuple[tuple[str, str], ...]]:
        """Every combination of settings; what was asked for first, and those nearest to it next."""
        names = [name for name, _ in self.settings]
        asked = [values[0] for _, values in self.settings]
        found = [tuple(zip(names, values)) for values in product(*(values for _, values in self.settings))]
        return sorted(found, key=lambda each: sum(value != first for (_, value), first in zip(each, asked)))


_AS_FAST = 1.02
"""Latencies this near each other count as the same: clocks do not tell them apart."""


class SpentError(Exception):
    """No further build may be made, or none has helped for long."""


@dataclass
class Search:
    """A search under way: each point is tried once.

    Attributes:
        space: What may be changed.
        evaluate: Builds and evaluates a point.
        max_builds: Builds at most.
        patience: Builds without a faster engine that passes after which the search has stopped improving.
        trials: What was tried, in order.
        ended: Why the search ended, in words.
        progress: Called after each trial.
    """

    space: Space
    evaluate: Evaluate
    max_builds: int
    patience: int
    progress: Callable[[Point, Outcome], None] | None = None
    trials: dict[Point, Outcome] = field(default_factory=dict)
    ended: str = ""
    _builds: int = 0
    _idle: int = 0

    @property
    def builds(self) -> int:
        """Engines built so far."""
        return self._builds

    @property
    def best(self) -> Point | None:
        """The fastest point that passes, of those as fast within a hair the one with the fewest measures; None if none does."""
        return fastest(self.trials)

    def run(self) -> Point | None:
        """Search; the answer is :attr:`best`."""
        self.ended = "every way to pass was tried"
        try:
            for settings in self.space.all_settings():
                self._search_measures(settings)
            self._improve()
        except SpentError as exc:
            self.ended = str(exc)
        return self.best

    def try_point(self, measures: Iterable[str], settings: tuple[tuple[str, str], ...]) -> Outcome:
        """Try a point, once.

        Raises:
            SpentError: If it may not be tried any more.
        """
        point = Point(measures=tuple(sorted(measures)), settings=settings)
        if point in self.trials:
            return self.trials[point]
        if self._builds >= self.max_builds:
            raise SpentError(f"{self.max_builds} builds were made")
        if self.best is not None and self._idle >= self.patience:
            raise SpentError(f"it stopped improving: nothing faster passed in {self._idle} builds")
        before = self.best
        outcome = self.trials[point] = self.evaluate(point)
        self._builds += outcome.builds
        self._idle = 0 if self.best != before else self._idle + outcome.builds
        if self.progress is not None:
            self.progress(point, outcome)
        return outcome

    def _search_measures(self, settings: tuple[tuple[str, str], ...]) -> None:
        """Every smallest set of measures that passes under these settings, those that cost least first."""
        if self.try_point((), settings).good or not self.space.measures:
            return
        if not self.try_point(self.space.measures, settings).good:
            return  # measures only help: where all are not enough, fewer are not
        names = self._cheapest_first(settings)

        def ask(sets: Sequence[algorithms.Items]) -> Iterator[bool]:
            return (self._helps([names[i] for i in items], settings) for items in sets)

        def find(within: algorithms.Items) -> algorithms.Items:
            return frozenset(algorithms.quickxplain(ask, sorted(within)))

        for items in algorithms.find_all(ask, range(len(names)), find):
            self.try_point((names[i] for i in items), settings)

    def _helps(self, measures: Sequence[str], settings: tuple[tuple[str, str], ...]) -> bool:
        """Whether measures pass; where more of them failed these do too, and where fewer passed."""
        asked = set(measures)
        for point, outcome in self.trials.items():
            if point.settings == settings:
                if outcome.good and asked >= set(point.measures):
                    return True
                if not outcome.good and asked <= set(point.measures):
                    return False
        return self.try_point(measures, settings).good

    def _cheapest_first(self, settings: tuple[tuple[str, str], ...]) -> list[str]:
        """The measures by what each costs alone; as they are where there are too many to try."""
        names = list(self.space.measures)
        if len(names) > _MEASURED_SINGLY:
            return names
        cost = {name: self.try_point((name,), settings).latency_ms for name in names}
        return sorted(names, key=lambda name: cost[name])

    def _improve(self) -> None:
        """From the best: what is beside it, as long as that is faster; then ever farther away, until patience ends."""
        improved = True
        while improved and self.best is not None:
            start = self.best
            for measures, settings in self._beside(start):
                self.try_point(measures, settings)
            improved = self.best != start or self._is_faster_farther_away(start)

    def _is_faster_farther_away(self, start: Point) -> bool:
        """Whether some changes at once make it faster, where none does alone: kernels of one engine are chosen together."""
        for distance in range(2, len(self.space.measures) + 1):
            for measures, settings in self._farther(start, distance):
                if self._may_pass(measures, settings):
                    self.try_point(measures, settings)
                if self.best != start:
                    return True
        return False

    def _may_pass(self, measures: set[str], settings: tuple[tuple[str, str], ...]) -> bool:
        """Whether no larger set of measures failed under these settings."""
        return not any(
            point.settings == settings and not outcome.good and measures <= set(point.measures)
            for point, outcome in self.trials.items()
        )

    def _farther(self, point: Point, distance: int) -> Iterator[tuple[set[str], tuple[tuple[str, str], ...]]]:
        """Points with so many changes, of which one may be a setting."""
        taken = set(point.measures)
        for names in combinations(self.space.measures, distance):
            yield taken ^ set(names), point.settings
        for settings in self.space.all_settings():
            if sum(one != two for one, two in zip(settings, point.settings)) == 1:
                for names in combinations(self.space.measures, distance - 1):
                    yield taken ^ set(names), settings

    def _beside(self, point: Point) -> Iterator[tuple[set[str], tuple[tuple[str, str], ...]]]:
        taken = set(point.measures)
        for name in self.space.measures:
            yield taken ^ {name}, point.settings
        for out in point.measures:
            for name in self.space.measures:
                if name not in taken:
                    yield taken - {out} | {name}, point.settings
        for settings in self.space.all_settings():
            if sum(one != two for one, two in zip(settings, point.settings)) == 1:
                yield taken, settings


def fastest(trials: Mapping[Point, Outcome]) -> Point | None:
    """The fastest point that passes, of those as fast within a hair the one with the fewest measures; None if none does."""
    passing = {point: outcome.latency_ms for point, outcome in trials.items() if outcome.good}
    limit = min(passing.values(), default=0.0) * _AS_FAST
    near = [point for point, latency in passing.items() if latency <= limit]
    return min(near, key=lambda point: (len(point.measures), passing[point]), default=None)


def pareto_front(trials: dict[Point, Outcome]) -> list[Point]:
    """The points that no other beats in both error and latency, the fastest first."""
    front: list[Point] = []
    least = float("inf")
    for point, outcome in sorted(trials.items(), key=lambda item: (item[1].latency_ms, item[1].error)):
        if outcome.error < least:
            front.append(point)
            least = outcome.error
    return front
