"""The probability model, against counting all cases."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.tactics.model import ALWAYS, MOSTLY, Counts, Likelihood, Posterior, features_of, groups_of, weigh


def weighed(codes: np.ndarray, bad: np.ndarray) -> tuple[Posterior, set[frozenset[tuple[int, int]]]]:
    """The evidence, and its best explanation as columns and codes."""
    features = features_of(codes)
    groups = groups_of(features)
    posterior = weigh(groups.present, groups.log_share, bad)
    keys = [(int(features.column[g[0]]), int(features.code[g[0]])) for g in groups.members]
    return posterior, {frozenset(keys[g] for g in clause) for clause in posterior.best}


@pytest.mark.parametrize("prior", [MOSTLY, ALWAYS])
def test_likelihoods_of_all_verdicts_sum_to_one(prior):
    builds, size = 9, 4
    total = 0.0
    for hits, misses in itertools.product(range(size + 1), range(builds - size + 1)):
        ways = math.comb(size, hits) * math.comb(builds - size, misses)
        likelihood = Likelihood(builds, hits + misses)
        total += ways * math.exp(float(likelihood(np.int64(size), np.int64(hits), prior)))
    assert total == pytest.approx(1)
    chance = sum(math.comb(builds, bad) * math.exp(Likelihood(builds, bad).chance) for bad in range(builds + 1))
    assert chance == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 6))
def test_counts_equal_counting_by_hand(seed, builds, choices):
    rng = np.random.default_rng(seed)
    present, bad = rng.random((builds, choices)) < 0.5, rng.random(builds) < 0.4
    counts = Counts.of(present, bad, np.arange(choices))

    for a, b in itertools.combinations(range(choices), 2):
        together, either = present[:, a] & present[:, b], present[:, a] | present[:, b]
        assert (counts.pair_size[a, b], counts.pair_hits[a, b]) == (together.sum(), (together & bad).sum())
        assert (counts.pair_size[b, a], counts.pair_hits[b, a]) == (either.sum(), (either & bad).sum())


@pytest.mark.parametrize("ordered", [True, False])
def test_mean_e_value_is_at_most_one(ordered):
    """Exactly, over all verdicts of a small campaign: this bounds how often chance is blamed."""
    rng = np.random.default_rng(3)
    groups = groups_of(features_of(rng.integers(0, 3, (9, 5))), ordered=ordered)
    mean = dict.fromkeys((0.1, 0.3, 0.5, 0.8), 0.0)
    for verdicts in itertools.product((False, True), repeat=9):
        bad = np.array(verdicts)
        if bad.any() and not bad.all():
            e_value = math.exp(weigh(groups.present, groups.log_share, bad).log_e_value)
            for rate in mean:
                mean[rate] += rate ** bad.sum() * (1 - rate) ** (~bad).sum() * e_value
    assert max(mean.values()) <= 1


def test_priors_do_not_depend_on_later_builds():
    codes = np.random.default_rng(5).integers(0, 4, (40, 8))
    births = []
    for builds in (10, 20, 40):
        features = features_of(codes[:builds])
        keys = zip(features.column.tolist(), features.code.tolist())
        births.append(dict(zip(keys, features.birth.tolist())))
        assert np.exp(groups_of(features).log_share).sum() <= 1 + 1e-12
    assert all(births[2][key] == birth for key, birth in births[0].items())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 14), st.integers(1, 6))
def test_features_are_choices_of_varying_layers(seed, builds, layers):
    codes = np.random.default_rng(seed).integers(-1, 3, (builds, layers))
    features = features_of(codes)

    expected = {
        (layer, code): tuple(codes[:, layer] == code)
        for layer in range(layers)
        for code in set(codes[:, layer].tolist())
        if len(set(codes[:, layer].tolist())) > 1
    }
    columns, present = zip(features.column.tolist(), features.code.tolist()), features.present.T
    assert {key: tuple(row) for key, row in zip(columns, present)} == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda c: c[:, 3] == 1, {frozenset({(3, 1)})}),
        (lambda c: (c[:, 3] == 1) | (c[:, 7] == 2), {frozenset({(3, 1)}), frozenset({(7, 2)})}),
        (lambda c: (c[:, 3] == 1) & (c[:, 7] == 2), {frozenset({(3, 1), (7, 2)})}),
    ],
    ids=["one", "either", "together"],
)
def test_each_kind_of_explanation_is_found(rule, expected):
    codes = np.random.default_rng(11).integers(0, 3, (150, 30))
    bad = rule(codes)
    posterior, best = weighed(codes, bad ^ (np.random.default_rng(1).random(150) < 0.03))

    assert best == expected and posterior.p_chance < 0.01
    assert np.array_equal(posterior.expected_bad, bad)
