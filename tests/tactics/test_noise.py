"""Where an error comes from."""

from __future__ import annotations

import numpy as np
import pytest

from trtops import errors
from trtops.tactics.noise import noise


def errors_of(seed: int, shared: float, build: float, run: float, builds: int = 40, runs: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return shared + build * rng.normal(size=(builds, 1)) + run * rng.normal(size=(builds, runs))


@pytest.mark.parametrize(
    ("parts", "cause", "advice"),
    [
        ((1.0, 0.1, 0.1), "precision", "another precision may"),
        ((0.1, 1.0, 0.1), "tactic", "pin a good one"),
        ((0.1, 0.1, 1.0), "inference", "no choice of build will help"),
    ],
)
def test_largest_part_is_the_cause(parts, cause, advice):
    found = noise(errors_of(1, *parts))

    assert found.cause == cause and advice in found.summary
    assert found.share_precision + found.share_build + found.share_run == pytest.approx(1)


def test_variances_are_unbiased():
    found = [noise(errors_of(seed, 0, 0.5, 1.0, builds=12, runs=4)) for seed in range(300)]

    assert np.mean([f.run_to_run**2 for f in found]) == pytest.approx(1.0, rel=0.03)
    assert np.mean([f.build_to_build**2 for f in found]) == pytest.approx(0.25, rel=0.1)


def test_equal_builds_differ_in_5_of_100():
    p_values = [noise(errors_of(seed, 1, 0, 1, builds=10, runs=3)).p_value for seed in range(1000)]

    assert 0.03 < np.mean(np.array(p_values) < 0.05) < 0.07


def test_rows_may_differ_in_length():
    rows = [row[: 3 + i % 4].tolist() for i, row in enumerate(errors_of(2, 0, 1.0, 0.1))]
    found = noise(rows)

    assert found.builds == 40 and found.runs == sum(map(len, rows))
    assert found.build_to_build == pytest.approx(1.0, rel=0.3)


def test_exact_repetition_has_no_run_noise():
    found = noise([[1.0, 1.0], [3.0, 3.0], [8.0, 8.0]])

    assert found.run_to_run == 0 and found.p_value == 0 and found.cause in {"tactic", "precision"}
    assert noise([[0.0, 0.0], [0.0, 0.0]]).cause == "nothing"


def test_another_run_stays_below_the_limit():
    found = noise(errors_of(3, 5.0, 1.0, 0.5))
    more = errors_of(4, 5.0, 1.0, 0.5, builds=4000, runs=1)

    assert np.mean(more < found.limit()) > 0.99
    assert 0.9 < np.mean(more < found.limit(deviations=1.5)) < 0.97


def test_limit_stays_below_builds_set_apart():
    """Bad builds among good ones widen the spread so far that three deviations above the mean let every build pass."""
    rows = errors_of(5, 1e-4, 2e-5, 1e-6, builds=9, runs=4)
    rows[6:] *= 4

    together, apart = noise(rows), noise(rows.tolist(), [False] * 6 + [True] * 3)

    assert together.limit() > rows[6:].min()
    assert rows[:6].max() < apart.limit() < rows[6:].min()
    shares = (apart.share_choice, apart.share_precision, apart.share_build, apart.share_run)
    assert sum(shares) == pytest.approx(1) and apart.share_choice > 0.5
    assert apart.cause == "tactic" and "because of a choice" in apart.summary
    assert noise(rows.tolist(), [False] * 9) == together


@pytest.mark.parametrize(
    "rows", [[], [[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 2.0], []], [[1.0, float("nan")], [1.0, 2.0]]]
)
def test_insufficient_data_is_refused(rows):
    with pytest.raises(errors.ConfigError, match=r"[Nn]oise"):
        noise(rows)
