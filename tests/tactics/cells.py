"""Campaigns made to behave as TensorRT does, played from the first build to the verdict: builds as they come, then mixtures.

Layers are chosen with skewed frequencies, neighbours flip together, and some layers are missing from some builds. What is
built next says :class:`trtops.ops.campaign.turning.Turning`, as in a real campaign; mixtures are made as
:mod:`trtops.ops.campaign.bisect` makes them. Run as a script for the figures of cells, one line each, and a line of JSON for
each campaign in a file: ``python -m tests.tactics.cells 100 results.jsonl 20,one,0 100,either,0.05``; all cells if none is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from trtops.ops.campaign.bisected import BisectResult, Culprit, Trial
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.guilty import Guilty, joined, kept_out
from trtops.ops.campaign.mixture import Unit
from trtops.ops.campaign.turning import Pair, Turning
from trtops.tactics.bisection import Bisection, Seen
from trtops.tactics.narrowing import Narrowing
from trtops.tactics.table import CampaignTable, Choice

Kind = Literal["one", "layer", "together", "either", "two of four", "sometimes", "none", "drift", "machines"]
"""``layer``: several choices of one layer are bad, each alone; other kinds plant one choice of a layer."""
Clause: TypeAlias = "tuple[tuple[int, int], ...]"
"""Layers and what they got, which make builds bad together."""
LIMIT = 200
TACTICS = 6


@dataclass
class World:
    """A model's builds: what they choose, and whether they are bad.

    Attributes:
        culprits: Clauses of ``(layer, tactic)`` that make a build bad.
        built: How many builds there were, whatever they were for.
        verdicts: Which of them were bad.
        mixtures: What mixtures chose, by their names.
    """

    seed: int
    layers: int
    kind: Kind
    noise: float = 0.0
    culprits: tuple[tuple[tuple[int, int], ...], ...] = ()
    built: int = 0
    verdicts: list[bool] = field(default_factory=list)
    mixtures: dict[str, np.ndarray] = field(default_factory=dict)
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
        self._loose = rng.choice([0.0, 0.0, 0.1], self.layers)
        self._missing = np.where(rng.random(self.layers) < 0.05, 0.2, 0.0)
        self._rate = float(rng.choice([0.1, 0.3, 0.5]))
        self._plant()

    def _plant(self) -> None:
        if self.kind in ("none", "drift", "machines"):
            return
        drawn = np.array([self.draw() for _ in range(200)])
        low = 0.3 if self.kind in ("together", "two of four") else 0.1
        free = np.flatnonzero((self._copied < 0) & (self._missing == 0))
        shares = {(int(n), code): (drawn[:, n] == code).mean() for n in free for code in range(6)}
        options = [key for key, share in shares.items() if low <= share <= 0.7]
        options = options or [max(shares, key=lambda key: -abs(shares[key] - 0.5))]
        order = [options[i] for i in self._rng.permutation(len(options))]
        wanted = {"together": 2, "either": 2, "two of four": 4}.get(self.kind, 1)
        chosen: list[tuple[int, int]] = []
        for key in order:
            if len(chosen) < wanted and all(key[0] != layer for layer, _ in chosen):
                chosen.append(key)
        if self.kind == "layer":
            chosen = self._bad_half(shares)
        size = 2 if self.kind in ("together", "two of four") else 1
        self.culprits = tuple(combinations(chosen, min(size, len(chosen))))

    def _bad_half(self, shares: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
        """Every second of the choices that builds make of a layer, as where a kernel is wrong that several tactics use."""
        layers = {layer for layer, _ in shares}
        made = {n: [code for code in range(TACTICS) if shares[n, code] >= 0.1] for n in layers}
        layer = max(self._rng.permutation(sorted(layers)).tolist(), key=lambda n: min(len(made[n]), 4))
        return [(layer, code) for code in made[layer][1::2]]

    def draw(self, without: Iterable[tuple[int, int]] = ()) -> np.ndarray:
        """What a build chooses by itself; -1 where it has no such layer.

        Args:
            without: What is not offered, layers and choices.
        """
        codes = np.array([self._rng.choice(len(f), p=f) for f in self._frequencies])
        follows = (self._copied >= 0) & (self._rng.random(self.layers) >= self._loose)
        codes[follows] = codes[self._copied[follows]]
        codes[self._rng.random(self.layers) < self._missing] = -1
        for layer, code in without:
            others = self._frequencies[layer] * (np.arange(len(self._frequencies[layer])) != code)
            if codes[layer] == code and others.sum() > 0:
                codes[layer] = self._rng.choice(len(others), p=others / others.sum())
        return codes

    def is_bad(self, codes: np.ndarray) -> bool:
        """The verdict of a build."""
        self.verdicts.append(self._evaluated(codes))
        return self.verdicts[-1]

    def _evaluated(self, codes: np.ndarray) -> bool:
        self.built += 1
        bad = any(all(codes[layer] == code for layer, code in clause) for clause in self.culprits)
        if self.kind == "sometimes":
            bad = bad and self._rng.random() < 0.6
        if not self.culprits:
            rate = {"drift": 0.1 if self.built < 12 else 0.7, "machines": (0.1, 0.7)[self.built % 2]}
            return bool(self._rng.random() < rate.get(self.kind, self._rate))
        return bool(bad ^ (self._rng.random() < self.noise))


@dataclass(frozen=True)
class Played:
    """How a campaign ended: the clauses it convicted, after how many builds, and how many there were in all.

    ``when`` counts all builds and mixtures until the last conviction; 0 if there was none.
    """

    convicted: frozenset[Clause]
    when: int
    builds: int


def play(world: World, limit: int = LIMIT) -> Played:
    """A campaign ``until decided``."""
    turning = Turning(DebugBuildConfig(max_iterations=limit))
    rows: list[np.ndarray] = []
    bad: list[bool] = []
    when = 0
    while world.built < limit and not turning.is_answered(table := table_of(rows, bad)):
        pair = turning.pair(table)
        if pair is not None:
            result = bisected(world, table, pair, (turning.confidence(), turning.confidence_of_one(pair)), limit)
            turning.take(result, len(table))
            when = world.built if result.culprits or (result.together and result.outcome == "enough") else when
            continue
        rows.append(world.draw(key_of(unit) for unit in kept_out(joined(turning.done), len(rows)) if unit is not None))
        bad.append(world.is_bad(rows[-1]))
    return Played(frozenset(clauses_of(turning.guilty(table_of(rows, bad)))), when, world.built)


def table_of(rows: Sequence[np.ndarray], bad: Sequence[bool]) -> CampaignTable:
    layers = len(rows[0]) if rows else 0
    return CampaignTable.from_columns(
        names=[str(number) for number in range(len(rows))],
        verdicts=["bad" if b else "good" for b in bad],
        layers=[f"layer-{layer}" for layer in range(layers)],
        choices=[Choice(tactic=f"tactic-{code}", op="Conv") for code in range(TACTICS)],
        codes=np.array(rows, np.int32).reshape(len(rows), layers),
    )


def clauses_of(found: Iterable[Guilty]) -> list[Clause]:
    """What a campaign convicted."""
    return [tuple(sorted(key_of(unit) for unit in guilty.units)) for guilty in found]


def key_of(unit: Unit) -> tuple[int, int]:
    layer, code = (int(text.rpartition("-")[2]) for text in (unit.name, unit.bad))
    return layer, code


def bisected(
    world: World, table: CampaignTable, pair: Pair, confidence: tuple[float, float | None], limit: int
) -> BisectResult:
    """Mixtures of two builds, as :mod:`trtops.ops.campaign.bisect` makes them."""
    builds = dict(zip(table.names, table.codes)) | world.mixtures
    good, bad = builds[pair.good].copy(), builds[pair.bad]
    for layer, code in map(key_of, pair.given):
        good[layer] = code
    places = np.flatnonzero((good != bad) & (good >= 0) & (bad >= 0))
    units = [
        Unit(kind="layer", name=f"layer-{n}", good=f"tactic-{good[n]}", bad=f"tactic-{bad[n]}") for n in places.tolist()
    ]
    trials: list[Trial] = []

    def is_bad(codes: np.ndarray) -> bool:
        name = f"mixture-{world.built}"
        world.mixtures[name] = codes.copy()
        verdict = world.is_bad(codes)
        taken = tuple(unit.name for unit, place in zip(units, places) if codes[place] == bad[place])
        trials.append(Trial(run_id=name, taken=taken, verdict="bad" if verdict else "good", counted=True))
        return verdict

    tries = 2 if holds(pair, table) else 3
    is_enough = bool(pair.given) and is_bad_often(is_bad, good, tries, 2 if pair.together else 1)
    if is_enough or pair.together:
        outcome, found = "enough" if is_enough else "not repeatable", []
    else:
        outcome, found = searched(world, is_bad, table, pair, good, units, confidence, limit)
    return BisectResult(
        outcome=outcome,  # type: ignore[arg-type]
        summary="",
        culprits=tuple(found),
        complete=True,
        good_run=pair.good,
        bad_run=pair.bad,
        units=len(units),
        consequences=(),
        given=pair.given,
        together=pair.together,
        trials=tuple(trials),
        seconds=0.0,
        overhead_seconds=0.0,
    )


def is_bad_often(is_bad: Callable[[np.ndarray], bool], codes: np.ndarray, tries: int, wanted: int) -> bool:
    """Whether builds are bad so often, trying no more often than it takes to know."""
    while wanted and tries >= wanted:
        wanted -= is_bad(codes)
        tries -= 1
    return not wanted


def holds(pair: Pair, table: CampaignTable) -> bool:
    return all(bool(unit.taken_by(table)[table.names.index(pair.good)]) for unit in pair.given)


def searched(
    world: World,
    evaluated_bad: Callable[[np.ndarray], bool],
    table: CampaignTable,
    pair: Pair,
    good: np.ndarray,
    units: Sequence[Unit],
    confidence: tuple[float, float | None],
    limit: int,
) -> tuple[str, list[Culprit]]:
    having = np.logical_and.reduce([np.ones(len(table), np.bool_), *(unit.taken_by(table) for unit in pair.given)])
    taken_by = np.array([unit.taken_by(table) for unit in units], np.bool_).reshape(len(units), len(table))
    good_by = np.array([unit.kept_by(table) for unit in units], np.bool_).reshape(taken_by.shape)
    third = ~taken_by & ~good_by
    free = np.ones(len(units), np.bool_)
    healed: set[bytes] = set()
    found: list[Culprit] = []

    def built(taken: np.ndarray) -> bool:
        codes = good.copy()
        for unit, taken_ in zip(units, taken):
            if taken_:
                codes[key_of(unit)[0]] = key_of(unit)[1]
        is_bad = evaluated_bad(codes)
        if not is_bad:
            healed.add(taken.tobytes())
        return is_bad

    while free.any() and len(found) < 4:
        places = np.flatnonzero(free)
        seen = [
            Seen(taken_by[places, row], bool(table.verdicts[row]), third[places, row])
            for row in np.flatnonzero(having).tolist()
        ]
        bisection = Narrowing(Bisection(np.ones(len(places)), world.seed, seen, pair.chance))
        while (decided := bisection.decided(*confidence)) is None and world.built < limit:
            wanted, opposite = bisection.next(*confidence)
            taken = np.zeros(len(units), np.bool_)
            taken[places[wanted]] = True
            bisection.add(wanted, built(taken), opposite)
        if decided != "convicted":
            outcome = "convicted" if found else "not repeatable" if decided == "chance" else "cannot be told"
            return outcome, found
        found.append(culprit_of(bisection, [units[place] for place in places]))
        free[places[list(bisection.best.units)]] = False
        if free.tobytes() in healed or not free.any() or not (built(free) and built(free)):
            break
    return ("convicted" if found else "cannot be told"), found


def culprit_of(bisection: Narrowing, units: Sequence[Unit]) -> Culprit:
    best = bisection.best
    clauses = tuple(tuple(best.units.index(unit) for unit in clause) for clause in best.clauses)
    return Culprit(
        units=tuple(units[unit] for unit in best.units),
        clauses=clauses,
        probability=best.probability,
        log10_e_value=bisection.log_e_value / np.log(10),
        builds=bisection.trials,
    )


@dataclass(frozen=True)
class Cell:
    """Campaigns of one kind."""

    layers: int
    kind: Kind
    noise: float = 0.0

    def play(self, seeds: range) -> Iterator[tuple[World, Played]]:
        for seed in seeds:
            world = World(seed, self.layers, self.kind, self.noise)
            world.built = 0
            yield world, play(world)


CELLS = [
    Cell(layers, kind, noise)
    for layers in (20, 100, 400)
    for kind in ("one", "either", "together")
    for noise in (0.0, 0.05)
]
CELLS += [Cell(layers, kind) for layers in (20, 100) for kind in ("layer", "sometimes", "two of four")]
CELLS += [Cell(layers, kind) for layers in (20, 100) for kind in ("none", "drift", "machines")]


def truth(world: World) -> frozenset[Clause]:
    return frozenset(tuple(sorted(clause)) for clause in world.culprits)


def accuses(world: World, convicted: Iterable[Clause]) -> bool:
    """Whether something is convicted that takes no part in making builds bad."""
    return not {key for c in convicted for key in c} <= {key for c in truth(world) for key in c}


def figures(cell: Cell, seeds: range, log: Path | None = None) -> str:
    played = []
    for world, p in cell.play(seeds):
        played.append((world, p))
        if log is not None:
            line = {"cell": str(cell), "seed": world.seed, "right": p.convicted == truth(world), "when": p.when}
            line |= {"builds": p.builds, "convicted": sorted(p.convicted), "truth": sorted(truth(world))}
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, default=int) + "\n")
    right = sum(p.convicted == truth(w) for w, p in played)
    accused = sum(accuses(w, p.convicted) for w, p in played)
    when = [p.when for _, p in played if p.when]
    return (
        f"{cell.layers:4} layers  {cell.kind:11}  {cell.noise:4.0%} wrong: exactly right {right} of {len(played)}, something "
        f"innocent accused in {accused}; median builds until convicted {np.median(when) if when else 0:g}, "
        f"in all {np.median([p.builds for _, p in played]):g}"
    )


def cell_of(text: str) -> Cell:
    layers, kind, noise = text.split(",")
    return Cell(int(layers), kind, float(noise))  # type: ignore[arg-type]


def main(arguments: Sequence[str]) -> None:
    seeds = range(int(arguments[0]) if arguments else 100)
    log = Path(arguments[1]) if len(arguments) > 1 else None
    for cell in map(cell_of, arguments[2:]) if len(arguments) > 2 else CELLS:
        print(figures(cell, seeds, log), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
