"""Campaigns whose culprit is known, because it was planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trtops.tactics.record import TacticOption
from trtops.tactics.table import CampaignTable

Culprit = Literal["one", "together", "none"]


@dataclass(frozen=True)
class Campaign:
    """A table, and the ``(layer, tactic)`` pairs that make its builds bad: any, or only together."""

    table: CampaignTable
    culprits: tuple[tuple[str, str], ...]


def campaign(
    seed: int,
    builds: int,
    *,
    culprit: Culprit = "one",
    layers: int | None = None,
    noise: float = 0.0,
    bad_rate: float = 0.3,
    settle: float = 0.4,
    ordered: bool = True,
) -> Campaign:
    """Layers as a builder chooses them.

    Most layers settle on one tactic in most builds; a few waver between two to six. Some copy another layer, always
    or nearly always, as layers of equal shape do that share a timing.

    ``noise`` is the share of verdicts that is turned round, ``settle`` that of layers with one tactic, ``bad_rate``
    that of bad builds without a culprit. There are 20 to 200 layers if ``layers`` is None.
    """
    rng = np.random.default_rng(seed)
    layers = layers or int(rng.integers(20, 201))
    tactics = np.where(rng.random(layers) < settle, 1, rng.integers(2, 7, layers))
    codes = np.empty((builds, layers), np.int32)
    copied = np.full(layers, -1)
    for layer in range(layers):
        others = np.flatnonzero(copied[:layer] < 0)
        if len(others) and rng.random() < 0.3:
            copied[layer] = rng.choice(others)
            tactics[layer] = tactics[copied[layer]]
        frequencies = rng.dirichlet(np.full(tactics[layer], 0.8))
        codes[:, layer] = rng.choice(tactics[layer], builds, p=frequencies)
        if copied[layer] >= 0:
            follows = rng.random(builds) >= rng.choice([0.0, 0.0, 0.1])
            codes[follows, layer] = codes[follows, copied[layer]]
    culprits, bad = _plant(rng, codes, copied, culprit, bad_rate)
    bad ^= rng.random(builds) < noise
    table = CampaignTable(
        names=[f"build-{i}" for i in range(builds)],
        verdicts=["bad" if b else "good" for b in bad],
        columns=[("layer", f"layer-{i}") for i in range(layers)],
        choices=[TacticOption(tactic=f"tactic-{i}", op="Conv") for i in range(6)],
        codes=codes,
        ordered=ordered,
    )
    return Campaign(table=table, culprits=tuple((f"layer-{layer}", f"tactic-{code}") for layer, code in culprits))


def _plant(rng, codes, copied, culprit, bad_rate):  # type: ignore[no-untyped-def]
    builds, layers = codes.shape
    if culprit == "none":
        return (), rng.random(builds) < bad_rate
    options = [
        (layer, code)
        for layer in range(layers)
        if copied[layer] < 0
        for code in range(6)
        if (0.1 if culprit == "one" else 0.3) <= (codes[:, layer] == code).mean() <= 0.7
    ]
    chosen: list[tuple[int, int]] = []
    for index in rng.permutation(len(options)):
        if all(options[index][0] != layer for layer, _ in chosen):
            chosen.append(options[index])
        if len(chosen) == (1 if culprit == "one" else 2):
            break
    bad = np.logical_and.reduce([codes[:, layer] == code for layer, code in chosen])
    return chosen, bad
