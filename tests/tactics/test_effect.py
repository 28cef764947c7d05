"""The effect of a choice on the error."""

from __future__ import annotations

import math

import numpy as np

from trtops.tactics.effect import effect_of


def test_effect_interval_covers_the_truth():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        effect = effect_of(rng.normal(math.log(300), 0.3, 6).tolist(), rng.normal(0, 0.1, 9).tolist())
        covered += effect.low < 300 < effect.high
    assert 0.92 <= covered / 400 <= 0.98
    assert effect_of([1.0], [0.0, 0.1]) is None
