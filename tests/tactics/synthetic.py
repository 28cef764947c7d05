"""Campaigns whose culprit is known, because it was planted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from trtops.tactics.record import TacticChoice, TacticOption, TacticRecord, TensorFormat
from trtops.tactics.table import CampaignTable
from trtops.verdict import VERDICTS

Culprit = Literal["one", "together", "none"]
TACTICS = 6


def layer_table(codes: npt.ArrayLike, verdicts: Iterable[int], *, ordered: bool = True) -> CampaignTable:
    """Builds "0", "1", ... of layers "layer-0", ... with tactics "tactic-0", ...; ``codes`` has a row per build.

    A verdict is its place among ``VERDICTS``, or whether the build is bad.
    """
    words = [VERDICTS[int(verdict)] for verdict in verdicts]
    matrix = np.array(codes, np.int32)
    matrix = matrix.reshape(len(words), matrix.size // max(len(words), 1))
    return CampaignTable(
        names=[str(number) for number in range(len(words))],
        verdicts=words,
        columns=[("layer", f"layer-{layer}") for layer in range(matrix.shape[1])],
        choices=[TacticOption(tactic=f"tactic-{code}", op="Conv") for code in range(TACTICS)],
        codes=matrix,
        ordered=ordered,
    )


def record(settings: Mapping[str, str] | None = None, dtype: str = "float32", **tactics: str) -> TacticRecord:
    """A build of ONNX Runtime: what its layers got."""
    formats = (TensorFormat(dtype=dtype, strides=(8, 1), vectorized_dim=1, components_per_element=4),)
    return TacticRecord(
        mechanism="onnxruntime",
        backend_version="1.20",
        device_sha256="d",
        settings=tuple(sorted((settings or {}).items())),
        choices=tuple(TacticChoice(layer=k, op="Conv", tactic=v, outputs=formats) for k, v in tactics.items()),
    )


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
    ordered: bool = True,
) -> Campaign:
    """Layers as a builder chooses them.

    Most layers settle on one tactic in most builds; a few waver between two to six. Some copy another layer, always
    or nearly always, as layers of equal shape do that share a timing.

    ``noise`` is the share of wrong verdicts, ``bad_rate`` that of bad builds without a culprit. There are 20 to 200
    layers if ``layers`` is None.
    """
    rng = np.random.default_rng(seed)
    layers = layers or int(rng.integers(20, 201))
    tactics = np.where(rng.random(layers) < 0.4, 1, rng.integers(2, 7, layers))
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
    table = layer_table(codes, bad, ordered=ordered)
    return Campaign(table=table, culprits=tuple((f"layer-{layer}", f"tactic-{code}") for layer, code in culprits))


def _plant(rng, codes, copied, culprit, bad_rate):  # type: ignore[no-untyped-def]
    if culprit == "none":
        return (), rng.random(len(codes)) < bad_rate
    shares = shares_of(codes, np.flatnonzero(copied < 0))
    chosen = chosen_of(rng, shares, 1, 0.1) if culprit == "one" else chosen_of(rng, shares, 2, 0.3)
    return chosen, np.logical_and.reduce([codes[:, layer] == code for layer, code in chosen])


def shares_of(codes: np.ndarray, layers: np.ndarray) -> dict[tuple[int, int], float]:
    """In which share of builds each choice of these layers was made."""
    return {(n, code): float((codes[:, n] == code).mean()) for n in layers.tolist() for code in range(TACTICS)}


def chosen_of(
    rng: np.random.Generator, shares: Mapping[tuple[int, int], float], count: int, low: float
) -> list[tuple[int, int]]:
    """Choices of different layers, each made in ``low`` to 0.7 of builds, or the one that is nearest to a half."""
    options = [key for key, share in shares.items() if low <= share <= 0.7]
    options = options or [min(shares, key=lambda key: abs(shares[key] - 0.5))]
    chosen: dict[int, int] = {}
    for index in rng.permutation(len(options)):
        layer, code = options[index]
        if len(chosen) < count:
            chosen.setdefault(layer, code)
    return list(chosen.items())
