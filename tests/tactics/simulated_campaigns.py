"""Campaigns made to behave as TensorRT does, played from the first build to the verdict: builds as they come, then
mixtures.

Layers are chosen with skewed frequencies, neighbours flip together, and some layers are missing from some builds. What
is built next is decided by :class:`trtops.ops.campaign.bisection_planner.Planner`, as in a real campaign; mixtures are
made as :mod:`trtops.ops.campaign.bisect` makes them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np

from tests.tactics.synthetic import TACTICS, chosen_of, layer_table, shares_of
from trtops.ops.campaign.bisect_result import BisectConfig, BisectPlan, BisectResult, Trial, Unit
from trtops.ops.campaign.bisect_session import BisectSession
from trtops.ops.campaign.bisection_planner import BuildPair, Planner
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.tactics.bisection import TrialResult
from trtops.tactics.table import CampaignTable
from trtops.tracking.schema import Metric, MetricName, Tag
from trtops.verdict import Verdict

Kind = Literal[
    "one",
    "common",
    "sum",
    "reformat",
    "format",
    "neighbours",
    "layer",
    "together",
    "either",
    "two of four",
    "sometimes",
    "none",
    "drift",
    "machines",
]
"""``layer``: several choices of one layer are bad, each alone; ``format``: all choices of a layer in one format;
``neighbours``: two layers in a row in different formats; ``common``: builds seldom lack the choice; other kinds plant
one choice of a layer."""
Clause: TypeAlias = "tuple[tuple[int, int], ...]"
"""Layers and what they got, which make builds bad together."""
LIMIT = 200
COMMON = 0.85  # share of builds with a culprit that builds seldom lack
SMALL = 0.05  # the most that choices add to the error which are no culprits


@dataclass
class World:
    """A model's builds, and what mixtures chose; ``culprits`` are clauses of ``(layer, tactic)`` that make one bad."""

    seed: int
    layers: int
    kind: Kind
    noise: float = 0.0
    repeats: bool = False  # to the last bit: a build's error follows from its choices
    culprits: tuple[tuple[tuple[int, int], ...], ...] = ()
    built: int = 0
    mixtures: dict[str, np.ndarray] = field(default_factory=dict)
    codes: dict[str, np.ndarray] = field(default_factory=dict)  # of the campaign's own builds
    measured: dict[tuple[int, ...], float] = field(default_factory=dict)  # the last error of a build with these choices
    _frequencies: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = rng = np.random.default_rng(self.seed)
        tactics = np.where(rng.random(self.layers) < 0.4, 1, rng.integers(2, 7, self.layers))
        self._copied = np.full(self.layers, -1)
        for layer in range(self.layers):
            others = np.flatnonzero(self._copied[:layer] < 0)
            if len(others) and rng.random() < 0.3:
                self._copied[layer] = rng.choice(others)
                tactics[layer] = tactics[self._copied[layer]]
            self._frequencies.append(rng.dirichlet(np.full(tactics[layer], 0.8)))
        if self.kind == "common":
            layer = int(np.flatnonzero(self._copied < 0)[-1])
            self._frequencies[layer] = np.array([COMMON, *(1 - COMMON) * rng.dirichlet(np.full(3, 0.8))])
            self.culprits = (((layer, 0),),)
        # As ``Generator.choice`` draws, for all layers at once.
        self._cumulated = np.full((self.layers, TACTICS), np.inf)
        for row, frequencies in zip(self._cumulated, self._frequencies):
            row[: len(frequencies)] = frequencies.cumsum() / frequencies.cumsum()[-1]
        self._loose = rng.choice([0.0, 0.0, 0.1], self.layers)
        self._missing = np.where(rng.random(self.layers) < 0.05, 0.2, 0.0)
        self._rate = float(rng.choice([0.1, 0.3, 0.5]))
        self._plant()

    def _plant(self) -> None:
        if self.kind in ("none", "drift", "machines", "reformat"):
            return
        if self.kind in ("format", "neighbours"):
            self._missing[:] = 0
        for (layer, _), *_ in self.culprits:
            self._missing[layer] = 0
        drawn = np.array([self.draw() for _ in range(200)])
        self._small = self._rng.normal(
            0, SMALL / 5, (self.layers, TACTICS + 1)
        )  # the last one where a layer is missing
        if self.kind in ("format", "neighbours", "common"):
            self.culprits = self.culprits or self._of_formats(drawn)
            return
        size = 2 if self.kind in ("together", "two of four") else 1
        shares = shares_of(drawn, np.flatnonzero((self._copied < 0) & (self._missing == 0)))
        count = {"together": 2, "either": 2, "two of four": 4, "sum": 5}.get(self.kind, 1)
        chosen = chosen_of(self._rng, shares, count, 0.3 if size == 2 else 0.1)
        if self.kind == "layer":
            chosen = self._bad_half(shares)
        self.culprits = tuple(combinations(chosen, min(size, len(chosen))))
        self._limit = float(np.median([self.error(codes) for codes in drawn]))

    def _bad_half(self, shares: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
        """Every second of the choices that builds make of a layer, as where a kernel is wrong that several tactics
        use."""
        layers = {layer for layer, _ in shares}
        frequent = {n: [code for code in range(TACTICS) if shares[n, code] >= 0.1] for n in layers}
        layer = max(self._rng.permutation(sorted(layers)).tolist(), key=lambda n: min(len(frequent[n]), 4))
        return [(layer, code) for code in frequent[layer][1::2]]

    def _of_formats(self, drawn: np.ndarray) -> tuple[Clause, ...]:
        """All choices of a layer in one format, or all of two layers in a row in different formats."""
        formats = drawn % 2
        bad = formats if self.kind == "format" else formats[:, 1:] != formats[:, :-1]
        layer = int(np.abs(bad.mean(axis=0) - 0.4).argmin())
        if self.kind == "format":
            return tuple(((layer, code),) for code in range(1, TACTICS, 2))
        codes = [(first, second) for first in range(TACTICS) for second in range(TACTICS) if (first + second) % 2]
        return tuple(((layer, first), (layer + 1, second)) for first, second in codes)

    def draw(self, without: Iterable[tuple[int, int]] = (), halved: bool = False) -> np.ndarray:
        """What a build chooses by itself, without some layers' choices; -1 where it has no such layer.

        ``halved``: only half of each layer's tactics are offered, drawn at random.
        """
        cumulated = self._cumulated
        if halved:
            offered = [
                self._rng.permutation(len(layer_shares)) < (len(layer_shares) + 1) // 2
                for layer_shares in self._frequencies
            ]
            cumulated = np.full_like(cumulated, np.inf)
            for row, frequencies, has in zip(cumulated, self._frequencies, offered):
                row[: len(has)] = (frequencies * has).cumsum() / (frequencies * has).sum()
        codes = (cumulated <= self._rng.random((self.layers, 1))).sum(axis=1)
        follows = (self._copied >= 0) & (self._rng.random(self.layers) >= self._loose)
        codes[follows] = codes[self._copied[follows]]
        codes[self._rng.random(self.layers) < self._missing] = -1
        for layer, code in without:
            others = self._frequencies[layer] * (np.arange(len(self._frequencies[layer])) != code)
            if codes[layer] == code and others.sum() > 0:
                codes[layer] = self._rng.choice(len(others), p=others / others.sum())
        return codes

    def reformats(self, codes: np.ndarray) -> np.ndarray:
        """Between which layers in a row a build copies from one format to another."""
        has_formats = self.kind in ("format", "neighbours")
        return (codes[1:] % 2 != codes[:-1] % 2) & has_formats

    def error(self, codes: np.ndarray) -> float:
        """The largest error of a build that repeats to the last bit."""
        has = [all(codes[layer] == code for layer, code in clause) for clause in self.culprits]
        added = np.dot(has, (1.0, 0.8, 0.5, 0.24, 0.12)[: len(has)]) if self.adds else 40.0 * any(has)
        added += self._small[np.arange(self.layers), codes].sum()
        return float(10 + added)

    @property
    def adds(self) -> bool:
        """Whether the verdict follows from an error that several choices change."""
        return self.kind == "sum"

    def errors(self, codes: np.ndarray) -> dict[MetricName, float]:
        """What the record of a build contains; only verdicts where outputs vary and do not decide."""
        if not (self.adds or self.repeats):
            return {}
        is_by_choices = self.culprits and not self.adds
        error = self.error(codes) if is_by_choices else self.measured[tuple(codes.tolist())]
        return {(Metric.ERROR, "y", "max_abs"): error}

    def is_bad(self, codes: np.ndarray) -> bool:
        """The verdict of a build."""
        self.built += 1
        bad = any(all(codes[layer] == code for layer, code in clause) for clause in self.culprits)
        if self.adds:
            noise = 1 + 1e-3 * (not self.repeats) * self._rng.normal()
            self.measured[tuple(codes.tolist())] = self.error(codes) * noise
            return self.measured[tuple(codes.tolist())] > self._limit
        if self.kind == "sometimes":
            bad = bad and self._rng.random() < 0.6
        if not self.culprits:
            rate = {"drift": 0.1 if self.built < 12 else 0.7, "machines": (0.1, 0.7)[self.built % 2]}
            bad = bool(self._rng.random() < rate.get(self.kind, self._rate))
            self.measured[tuple(codes.tolist())] = 50.0 if bad else 10.0
            return bad
        return bool(bad ^ (self._rng.random() < self.noise))


@dataclass(frozen=True)
class Played:
    """How a campaign ended: with culprits, confirmed after ``when`` builds."""

    confirmed: frozenset[Clause]  # or the largest contributions to a sum
    when: int
    builds: int
    trials: int = 0  # of the bisection that confirmed the first one
    done: tuple[BisectResult, ...] = ()


def play(world: World, complete: bool, limit: int = LIMIT) -> Played:
    """A campaign ``until decided``."""
    planner = Planner(DebugBuildConfig(max_iterations=limit, complete=complete))
    rows: list[np.ndarray] = []
    bad: list[bool] = []
    when = 0
    while world.built < limit and not planner.is_answered(table := layer_table(rows, bad)):
        pair = planner.pair(table)
        if pair is not None:
            result = bisected(world, table, pair, planner, limit)
            planner.add(result, len(table))
            when = world.built if result.culprits else when
            continue
        without = [key_of(culprit.units[0]) for culprit in planner.culprits]
        rows.append(world.draw(without, halved=planner.draws(table)))
        bad.append(world.is_bad(rows[-1]))
    confirmed = planner.culprits
    clauses = frozenset(tuple(sorted(key_of(unit) for unit in culprit.units)) for culprit in confirmed)
    for result in planner.done:
        if result.follows:
            clauses, when = frozenset({((-1, 1),)}), world.built
        if result.added is not None:  # others add little
            large = [contribution for contribution in result.added.contributions if abs(contribution.value) > SMALL]
            clauses = frozenset((key_of(contribution.unit),) for contribution in large)
            when = world.built
    trials = next((r.culprits[0].builds for r in planner.done if r.culprits), 0)
    return Played(clauses, when, world.built, trials, tuple(planner.done))


def key_of(unit: Unit) -> tuple[int, int]:
    layer, code = (int(text.rpartition("-")[2]) for text in (unit.name, unit.bad))
    return layer, code


def bisected(world: World, table: CampaignTable, pair: BuildPair, planner: Planner, limit: int) -> BisectResult:
    """A bisection whose mixtures are made by the world."""
    world.codes = dict(zip(table.names, table.codes))
    builds = world.codes | world.mixtures
    good, bad = builds[pair.good], builds[pair.bad]
    places = np.flatnonzero((good != bad) & (good >= 0) & (bad >= 0))
    units = tuple(
        Unit(kind="layer", name=f"layer-{n}", good=f"tactic-{good[n]}", bad=f"tactic-{bad[n]}") for n in places.tolist()
    )

    reformats = np.flatnonzero(world.reformats(good) != world.reformats(bad))

    class Session(BisectSession):
        def build(self, requested: np.ndarray) -> TrialResult:
            codes = good.copy()
            codes[places[requested]] = bad[places[requested]]
            name = f"mixture-{world.built}"
            world.mixtures[name] = codes
            is_bad = world.is_bad(codes)
            names = tuple(unit.name for unit, is_wanted in zip(units, requested) if is_wanted)
            verdict: Verdict = "bad" if is_bad else "good"
            self.trials.append(Trial(run_id=name, taken=names, verdict=verdict, counted=True))
            # A reformat that is chosen by timing and decides, or those that follow from formats.
            copies = world.reformats(codes) == world.reformats(bad)
            followed = (is_bad,) if world.kind == "reformat" else tuple(copies[reformats].tolist())
            result = TrialResult(requested, is_bad, world.errors(codes) or None, followed)
            self.measured.append(result)
            return result

    plan = BisectPlan(
        good_run=pair.good,
        bad_run=pair.bad,
        builds=len(table),
        config=BisectConfig(confidence=planner.confidence(), max_builds=limit - world.built, seed=world.seed),
        held=pair.held,
    )
    infos = [
        SimpleNamespace(metrics=world.errors(drawn), tags={Tag.BAD_IN: "outputs"}, verdict=verdict)
        for drawn, verdict in ((good, "good"), (bad, "bad"))
    ]
    ends = dict(zip(("good", "bad"), (SimpleNamespace(info=info) for info in infos)))
    consequences = (
        ("reformat",) if world.kind == "reformat" else tuple(f"reformat to layer-{n + 1}" for n in reformats.tolist())
    )
    mixture: Any = SimpleNamespace(units=units, consequences=consequences, is_by_settings=False, **ends)
    return Session(None, mixture, plan, "", None, []).run()  # type: ignore[arg-type]


@dataclass(frozen=True)
class Cell:
    """Campaigns of one kind."""

    layers: int
    kind: Kind
    noise: float = 0.0
    repeats: bool = False

    @property
    def complete(self) -> bool:
        """Whether its campaigns search on: where there is more to find than one choice."""
        return self.kind in ("layer", "together", "either", "two of four")

    def play(self, seeds: range) -> Iterator[tuple[World, Played]]:
        for seed in seeds:
            world = World(seed, self.layers, self.kind, self.noise, self.repeats)
            yield world, play(world, self.complete)


def truth(world: World) -> frozenset[Clause]:
    if world.kind == "reformat":
        return frozenset({((-1, 1),)})
    return frozenset(tuple(sorted(clause)) for clause in world.culprits)


def names_wrongly(world: World, confirmed: Iterable[Clause]) -> bool:
    """Whether a choice is confirmed that does not make builds bad, or a layer that adds nothing to a sum."""
    if world.adds:  # the good build may have what adds to the error
        return not {key[0] for c in confirmed for key in c} <= {key[0] for c in truth(world) for key in c}
    return not {key for c in confirmed for key in c} <= {key for c in truth(world) for key in c}


def is_right(world: World, played: Played) -> bool:
    """Whether the culprits are named, and nothing else; or what choices add to a sum of errors."""
    if world.kind in ("format", "neighbours"):  # one of the choices is found first, and ends the campaign
        return bool(played.confirmed) and not names_wrongly(world, played.confirmed)
    if not world.adds:
        return played.confirmed == truth(world)
    result = next((result for result in played.done if result.added is not None), None)
    if result is None or result.added is None:
        return False
    good, bad = ((world.codes | world.mixtures)[name] for name in (result.good_run, result.bad_run))
    adds = {layer: 0.0 for layer in range(world.layers)}
    for layer in np.flatnonzero((good != bad) & (good >= 0) & (bad >= 0)).tolist():
        other = good.copy()
        other[layer] = bad[layer]
        adds[layer] = world.error(other) - world.error(good)
    whole = sum(map(abs, adds.values()))
    shares = {key_of(contribution.unit)[0]: contribution for contribution in result.added.contributions}
    # Within the interval or a tenth of the whole, and each that adds a fifth of it is named.
    is_near = all(
        abs(contribution.value - adds[n]) <= max(1.5 * contribution.margin, 0.1 * whole)
        for n, contribution in shares.items()
    )
    return is_near and {n for n, value in adds.items() if abs(value) >= 0.2 * whole} <= shares.keys()
