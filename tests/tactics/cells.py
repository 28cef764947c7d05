"""Campaigns made to behave as TensorRT does, played from the first build to the verdict: builds as they come, then mixtures.

Layers are chosen with skewed frequencies, neighbours flip together, and some layers are missing from some builds. Run as a
script for the figures of every cell: ``python -m tests.tactics.cells [seeds]``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from trtops.tactics.bisection import Bisection

Kind = Literal["one", "together", "either", "sometimes", "none", "drift", "machines"]
Clause: TypeAlias = "tuple[tuple[int, int], ...]"
"""Layers and what they got, which make builds bad together."""
LIMIT = 200
CLEAN = 3


@dataclass
class World:
    """A model's builds: what they choose, and whether they are bad.

    Attributes:
        culprits: Clauses of ``(layer, tactic)`` that make a build bad.
        built: How many builds there were, whatever they were for.
    """

    seed: int
    layers: int
    kind: Kind
    noise: float = 0.0
    culprits: tuple[tuple[tuple[int, int], ...], ...] = ()
    built: int = 0
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
        low = 0.3 if self.kind == "together" else 0.1
        free = np.flatnonzero((self._copied < 0) & (self._missing == 0))
        shares = {(int(n), code): (drawn[:, n] == code).mean() for n in free for code in range(6)}
        options = [key for key, share in shares.items() if low <= share <= 0.7]
        options = options or [max(shares, key=lambda key: -abs(shares[key] - 0.5))]
        order = [options[i] for i in self._rng.permutation(len(options))]
        chosen = order[:1]
        if self.kind in ("together", "either"):
            chosen += [key for key in order if key[0] != order[0][0]][:1]
        self.culprits = (tuple(chosen),) if self.kind == "together" else tuple((key,) for key in chosen)

    def draw(self) -> np.ndarray:
        """What a build chooses by itself; -1 where it has no such layer."""
        codes = np.array([self._rng.choice(len(f), p=f) for f in self._frequencies])
        follows = (self._copied >= 0) & (self._rng.random(self.layers) >= self._loose)
        codes[follows] = codes[self._copied[follows]]
        codes[self._rng.random(self.layers) < self._missing] = -1
        return codes

    def is_bad(self, codes: np.ndarray) -> bool:
        """The verdict of a build."""
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
    """How a campaign ended: the clauses it convicted, after how many builds, and how many there were in all."""

    convicted: frozenset[tuple[tuple[int, int], ...]]
    when: int
    builds: int


def play(world: World, limit: int = LIMIT) -> Played:
    """A campaign ``until decided``."""
    good: list[np.ndarray] = []
    bad: list[np.ndarray] = []
    tried: set[int] = set()
    convicted: dict[Clause, int] = {}  # and the bad build that it was found in
    settled: set[Clause] = set()
    when = clean = since = doubts = 0
    while world.built < limit:
        seen = [*((codes, False) for codes in good), *((codes, True) for codes in bad)]
        against = [(c, j) for c, j in convicted.items() if c not in settled and any(explains([c], g) for g in good)]
        waiting = [i for i, codes in enumerate(bad) if i not in tried and not explains(convicted, codes)]
        if against:
            clause, j = against[0]
            start = min((g for g in good if explains([clause], g)), key=lambda g: int((g != bad[j]).sum()))
            outcome, found = bisected(world, start, bad[j], seen, limit, 0.95)
            del convicted[clause]
            whole = tuple(sorted({*clause, *(key for c in found for key in c)}))
            convicted[whole] = j
            settled.add(whole)
        elif good and waiting:
            _, i, j = min((int((g != bad[j]).sum()), i, j) for j in waiting for i, g in enumerate(good))
            tried.add(j)
            outcome, found = bisected(world, good[i], bad[j], seen, limit, 0.99 if doubts else 0.95)
            convicted |= dict.fromkeys(found, j)
            doubts += outcome == "chance"
            if doubts > 1 and not convicted:
                break
        if against or (good and waiting):
            when = world.built if found else when
            clean = since = 0
            continue
        alike = all(sum(explains([clause], codes) for codes in bad) > CLEAN // 2 for clause in convicted)
        if convicted and ((clean >= CLEAN and alike) or since >= 4 * CLEAN):
            break
        codes = world.draw()
        is_bad = world.is_bad(codes)
        (bad if is_bad else good).append(codes)
        since += 1
        clean += not is_bad and not explains(convicted, codes)
    return Played(frozenset(convicted), when, world.built)


def explains(convicted: Iterable[Clause], codes: np.ndarray) -> bool:
    return any(all(codes[layer] == code for layer, code in clause) for clause in convicted)


def bisected(
    world: World, good: np.ndarray, bad: np.ndarray, seen: list[tuple[np.ndarray, bool]], limit: int, confidence: float
) -> tuple[str, set[Clause]]:
    """Mixtures of two builds, as :mod:`trtops.ops.campaign.bisect` makes them."""
    units = np.flatnonzero((good != bad) & (good >= 0) & (bad >= 0))
    free = np.ones(len(units), np.bool_)
    found: set[Clause] = set()
    healed: set[bytes] = set()

    def built(taken: np.ndarray) -> bool:
        codes = good.copy()
        codes[units[taken]] = bad[units[taken]]
        is_bad = world.is_bad(codes)
        if not is_bad:
            healed.add(taken.tobytes())
        return is_bad

    while free.any() and len(found) < 4:
        places = np.flatnonzero(free)
        known = [(codes[units[places]] == bad[units[places]], was) for codes, was in seen]
        bisection = Bisection(np.ones(len(places)), world.seed, known)
        while (decided := bisection.decided(confidence)) is None and world.built < limit:
            wanted, opposite = bisection.next(confidence)
            taken = np.zeros(len(units), np.bool_)
            taken[places[wanted]] = True
            bisection.add(wanted, built(taken), opposite)
        if decided != "convicted":
            return "convicted" if found else str(decided), found
        best = bisection.best
        found |= {tuple(sorted((int(units[places[u]]), int(bad[units[places[u]]])) for u in c)) for c in best.clauses}
        free[places[list(best.units)]] = False
        if free.tobytes() in healed or not free.any() or not (built(free) and built(free)):
            break
    return "convicted", found


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
CELLS += [Cell(20, "sometimes"), Cell(100, "sometimes")]
CELLS += [Cell(layers, kind) for layers in (20, 100) for kind in ("none", "drift", "machines")]


def truth(world: World) -> frozenset[Clause]:
    return frozenset(tuple(sorted(clause)) for clause in world.culprits)


def figures(cell: Cell, seeds: range) -> str:
    played = list(cell.play(seeds))
    right = sum(p.convicted == truth(w) for w, p in played)
    accused = sum(
        not {key for c in p.convicted for key in c} <= {key for c in truth(w) for key in c} for w, p in played
    )
    when = [p.when for _, p in played if p.when]
    builds = Counter({"convicted": np.median(when) if when else 0, "in all": np.median([p.builds for _, p in played])})
    return (
        f"{cell.layers:4} layers  {cell.kind:9}  {cell.noise:4.0%} wrong: exactly right {right} of {len(played)}, something "
        f"innocent accused in {accused}; median builds until convicted {builds['convicted']:.0f}, in all {builds['in all']:.0f}"
    )


if __name__ == "__main__":
    for cell in CELLS:
        print(figures(cell, range(int(sys.argv[1]) if len(sys.argv) > 1 else 100)), flush=True)
