"""The tests and probabilities, against counting all cases."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.tactics import evidence
from trtops.tactics.exact import FisherTest, holm, wilson
from trtops.tactics.features import features_of, groups_of
from trtops.tactics.rates import Likelihood
from trtops.tactics.several import clauses_text


def counted_tail(hits: int, size: int, bad: int, builds: int) -> Fraction:
    """Share of all ways to choose the bad builds in which at least ``hits`` of the first ``size`` are bad."""
    ways = list(itertools.combinations(range(builds), bad))
    return Fraction(sum(sum(b < size for b in way) >= hits for way in ways), len(ways))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_exact_test_equals_counting_all_ways_to_hand_out_the_bad_verdicts(data):
    builds = data.draw(st.integers(1, 10))
    bad, size = data.draw(st.integers(0, builds)), data.draw(st.integers(0, builds))
    hits = data.draw(st.integers(0, min(bad, size)))

    found = FisherTest(builds, bad)(size, hits)

    assert found == pytest.approx(float(counted_tail(hits, size, bad, builds)), rel=1e-9)


def test_the_exact_test_equals_scipys_on_a_large_campaign():
    stats = pytest.importorskip("scipy.stats")
    for size, hits in ((10, 9), (300, 120), (2000, 700), (9999, 2500)):
        expected = stats.hypergeom.sf(hits - 1, 10_000, 2500, size)
        assert FisherTest(10_000, 2500)(size, hits) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_corrects_each_p_value_by_those_that_are_not_smaller(p_values):
    corrected = holm(np.array(p_values))

    for i, p in enumerate(p_values):
        smaller = [q * sum(r >= q for r in p_values) for q in p_values if q <= p]
        assert corrected[i] == pytest.approx(min(1, max(smaller)))


@pytest.mark.parametrize(("hits", "size"), [(1, 3), (5, 25), (24, 25), (700, 2000)])
def test_wilsons_interval_ends_where_the_rate_found_is_two_standard_errors_away(hits, size):
    for end in wilson(hits, size, 0.95):
        assert abs(hits / size - end) / math.sqrt(end * (1 - end) / size) == pytest.approx(1.959964, rel=1e-5)


def test_wilsons_interval_stays_between_zero_and_one():
    assert wilson(0, 10, 0.95)[0] == 0 and wilson(10, 10, 0.95)[1] == 1
    assert wilson(0, 0, 0.95) == (0, 1)


def test_the_likelihood_sums_to_one_over_all_verdicts():
    """For a fixed split, the integrated probabilities of all verdict vectors are a distribution."""
    builds, size = 9, 4
    total = 0.0
    for hits in range(size + 1):
        for misses in range(builds - size + 1):
            ways = math.comb(size, hits) * math.comb(builds - size, misses)
            likelihood = Likelihood(builds, hits + misses)
            total += ways * math.exp(float(likelihood(np.int64(size), np.int64(hits))))
    assert total == pytest.approx(1)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_e_value_averages_to_at_most_one_when_verdicts_are_chance(ordered):
    """Exactly, over all verdicts of a small campaign: this is what bounds false accusations."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, (9, 5))
    groups = groups_of(features_of(codes), ordered=ordered)
    mean = dict.fromkeys((0.1, 0.3, 0.5, 0.8), 0.0)
    for verdicts in itertools.product((False, True), repeat=9):
        bad = np.array(verdicts)
        if bad.any() and not bad.all():
            e_value = math.exp(evidence.weigh(groups, bad).log_e_value)
            for rate in mean:
                mean[rate] += rate ** bad.sum() * (1 - rate) ** (~bad).sum() * e_value
    assert max(mean.values()) <= 1


def test_priors_of_later_builds_do_not_depend_on_them():
    """A feature keeps its share of the prior as builds arrive; that is what makes it safe to look at any time."""
    codes = np.random.default_rng(5).integers(0, 4, (40, 8))
    shares = []
    for builds in (10, 20, 40):
        features = features_of(codes[:builds])
        groups = groups_of(features)
        total = np.exp(groups.log_share).sum()
        early = {
            (int(features.column[f]), int(features.code[f])): int(features.birth[f]) for f in range(len(features.code))
        }
        shares.append(early)
        assert total <= 1 + 1e-12
    assert all(shares[2][key] == birth for key, birth in shares[0].items())


def test_without_an_order_every_group_has_the_same_prior_however_many_layers_it_has():
    codes = np.random.default_rng(5).integers(0, 2, (12, 6))[:, [0, 0, 0, 1, 2, 3]]
    groups = groups_of(features_of(codes), ordered=False)

    assert sorted(map(len, groups.members)) == [1] * 6 + [3] * 2
    assert np.exp(groups.log_share) == pytest.approx([1 / 8] * 8)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 14), st.integers(1, 6))
def test_features_are_every_choice_of_every_varying_layer(seed, builds, layers):
    codes = np.random.default_rng(seed).integers(-1, 3, (builds, layers))
    found = features_of(codes)

    expected = {
        (layer, code): tuple(codes[:, layer] == code)
        for layer in range(layers)
        for code in set(codes[:, layer].tolist())
        if len(set(codes[:, layer].tolist())) > 1
    }
    columns, present = zip(found.column.tolist(), found.code.tolist()), found.present.T
    assert {key: tuple(row) for key, row in zip(columns, present)} == expected


def test_three_alternatives_that_each_fail_are_all_found():
    rng = np.random.default_rng(11)
    codes = rng.integers(0, 6, (300, 40))
    bad = (codes[:, 3] == 1) | (codes[:, 17] == 4) | (codes[:, 30] == 0)
    features = features_of(codes)
    groups = groups_of(features)
    found = evidence.weigh(groups, bad)

    names = {
        (int(features.column[groups.members[g][0]]), int(features.code[groups.members[g][0]])) for (g,) in found.best
    }
    assert names == {(3, 1), (17, 4), (30, 0)}
    assert found.guilt[[g for (g,) in found.best]].min() > 0.99


def test_a_pair_that_expects_what_one_group_does_counts_as_that_group():
    """``whole`` comes with ``left`` or ``right``, which share a build: verdicts can never tell the pair from the one."""
    whole = np.array([1, 1, 1, 0, 0, 0, 0, 0] * 4)
    left, right = np.array([1, 1, 0, 0, 0, 0, 0, 0] * 4), np.array([0, 1, 1, 0, 0, 0, 0, 0] * 4)
    other = np.array([0, 1, 0, 1, 0, 1, 1, 0] * 4)
    features = features_of(np.array([other, left, right, whole]).T)
    groups = groups_of(features)

    found = evidence.weigh(groups, whole.astype(bool))

    column = {int(features.column[groups.members[g][0]]) for clause in found.best for g in clause}
    assert column == {3}
    # Whether it is all there is: ``left`` and ``right`` are in no good build, and 12 bad builds and 20 good ones show only so much.
    doubt = 2 / len(groups.members) + 1 / 13 + 1 / 21
    assert found.best_probability == pytest.approx(1 / (1 + doubt), abs=0.02)


def test_any_two_of_four_is_named_whole_from_builds_alone():
    """Which neither one choice nor a pair explains: either of two explains most, against several good builds."""
    codes = np.random.default_rng(5).integers(0, 2, (90, 12))
    bad = (codes[:, :4] == 1).sum(axis=1) >= 2
    features = features_of(codes)
    groups = groups_of(features)

    found = evidence.weigh(groups, bad)

    def choices(clause: tuple[int, ...]) -> frozenset[tuple[int, int]]:
        members = (groups.members[group][0] for group in clause)
        return frozenset((int(features.column[of]), int(features.code[of])) for of in members)

    pairs = {frozenset({(a, 1), (b, 1)}) for a, b in itertools.combinations(range(4), 2)}
    assert set(map(choices, found.best)) == pairs
    assert found.best_probability > 0.9
    assert np.array_equal(found.expected_bad, bad)


@pytest.mark.parametrize(
    ("clauses", "expected"),
    [
        (((0, 1), (0, 2), (1, 2)), "any 2 together of a, or b, or c"),
        (((0, 1), (0, 2)), "a together with b; or a together with c"),
        (((0,), (1,)), "a; or b"),
        (((0, 1),), "a together with b"),
        (tuple(itertools.combinations((3, 1, 2, 0), 3)), "any 3 together of d, or b, or c, or a"),
    ],
)
def test_any_so_many_of_a_set_is_said_in_few_words(clauses, expected):
    assert clauses_text(clauses, "abcd".__getitem__, ";") == expected
