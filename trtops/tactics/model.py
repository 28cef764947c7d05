"""The probability model behind diff, bisection and campaign: one choice, either of two, both of two, or chance.

A *choice* is "this layer got this tactic", true or false for each build. In a bisection it is a *unit* that a mixture
takes from the bad build. In a table it is a *feature*, and features that occur in the same builds are one *group*,
which counts as one choice: :func:`features_of`, then :func:`groups_of`, then :func:`weigh`.

An *explanation* says which builds come out bad: those with one choice, those with either of two, or those with both of
two. Its likelihood is the probability of all verdicts, with the rates of bad builds among those it expects to be bad,
and among the others, integrated over Beta priors. So a few wrong verdicts, or a culprit that fails only sometimes, do
no harm.

Two thresholds guard against blaming chance: a posterior probability, and the *evidence*, also called e-value: a test
martingale that exceeds ``1 / alpha`` with a probability of at most ``alpha``, at any number of builds (Ville's
inequality; Wasserman, Ramdas and Balakrishnan, "Universal inference", PNAS 2020).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Clauses: TypeAlias = tuple[tuple[int, ...], ...]
"""An explanation: builds are bad that have all choices of any clause. ``((0,),)``, ``((0, 1),)`` or ``((0,),
(1,))``."""

Prior: TypeAlias = tuple[float, float, float, float]
"""Beta priors of the rate of bad builds: parameters (bad, good) for builds with the culprit, and (bad, good) for the
others."""
MOSTLY: Prior = (3.0, 0.5, 0.5, 3.0)
"""For a culprit that fails most of the time, where other builds are bad as well."""
ALWAYS: Prior = (40.0, 0.1, 0.1, 40.0)
"""For a culprit that always fails, but for a wrong verdict in some hundreds."""
ALWAYS_SHARE = 0.3
"""Share of ``ALWAYS`` in the prior. A larger one delays culprits that fail only sometimes by several builds."""


class Likelihood:
    """Log-probabilities of verdicts, for explanations expecting ``size`` bad builds, ``hits`` of them correctly.

    ``chance`` is the same where no choice decides; ``supremum`` at the one rate that makes verdicts most probable.
    """

    def __init__(self, builds: int, bad: int) -> None:
        # Where no choice decides, all builds have one rate, under Jeffreys' prior.
        self.builds, self.bad = builds, bad
        half, uniform = _log_gammas(0.5, builds), _log_gammas(1.0, builds)
        self.chance = float(half[bad] + half[builds - bad] - 2 * half[0] - uniform[builds])
        rate = bad / builds if builds else 0.0
        self.supremum = sum(count * math.log(p) for count, p in ((bad, rate), (builds - bad, 1 - rate)) if count)

    def __call__(self, size: Ints, hits: Ints, prior: Prior = MOSTLY) -> Floats:
        """Log-probabilities, elementwise, under one Beta prior."""
        outside, misses = self.builds - size, self.bad - hits
        logs: Floats = self._part(size, hits, *prior[:2]) + self._part(outside, misses, *prior[2:])
        return logs

    def _part(self, size: Ints, hits: Ints, bad: float, good: float) -> Floats:
        of_bad, of_good, of_both = (_log_gammas(x, self.builds) for x in (bad, good, bad + good))
        logs: Floats = of_bad[hits] + of_good[size - hits] - of_both[size] + (of_both[0] - of_bad[0] - of_good[0])
        return logs

    def mixed(self, size: Ints, hits: Ints) -> Floats:
        """Log-probabilities under the mixture of both priors, as the evidence takes them."""
        always = math.log(ALWAYS_SHARE) + self(size, hits, ALWAYS)
        result: Floats = np.logaddexp(always, math.log(1 - ALWAYS_SHARE) + self(size, hits))
        return result


@lru_cache(maxsize=256)
def _log_gammas(start: float, count: int) -> Floats:
    """Logarithms of the gamma function at ``start, start + 1, ... start + count``."""
    return np.array([math.lgamma(start + step) for step in range(count + 1)])


@dataclass(frozen=True)
class Features:
    """Differences between builds: "this column got this code", with -1 for "the build has no such layer".

    ``present`` has the shape ``(builds, features)``, the others ``(features,)``. ``birth`` is the build (from 0) with
    which the column began to vary or the code first occurred, whichever is later.
    """

    present: Bools
    column: Ints
    code: Ints
    birth: Ints


def features_of(codes: npt.NDArray[np.integer]) -> Features:
    """The features of a matrix of codes of shape ``(builds, columns)``, -1 for absent."""
    # No loop over columns, since a campaign has thousands. A feature's key is its column times the number of codes plus
    # its code, moved up by one so that absent (-1) becomes 0. The keys that occur become features.
    differs = codes != codes[:1]
    columns = np.flatnonzero(differs.any(axis=0))
    varying = np.asarray(codes[:, columns], np.int64) + 1
    limit = int(varying.max(initial=0)) + 1
    keys = varying + np.arange(len(columns)) * limit
    occurs = np.zeros(len(columns) * limit, np.bool_)
    occurs[keys] = True
    used = np.flatnonzero(occurs)
    position = np.cumsum(occurs) - 1
    present = np.zeros((len(codes), len(used)), np.bool_)
    present[np.arange(len(codes))[:, None], position[keys]] = True
    owner = used // limit
    # A column can vary from the second build on, so no birth is 0.
    first_change = differs[:, columns].argmax(axis=0) if len(columns) else np.empty(0, np.int64)
    birth = np.maximum(first_change[owner], present.argmax(axis=0) if len(used) else 0)
    return Features(present=present, column=columns[owner], code=used % limit - 1, birth=birth)


@dataclass(frozen=True)
class Groups:
    """Features, grouped by the builds they are true of, as no verdict can distinguish those.

    ``present`` has the shape ``(builds, groups)``. ``members`` are positions of features. ``log_share`` are logarithms
    of the groups' shares of the evidence's prior.
    """

    present: Bools
    members: tuple[tuple[int, ...], ...]
    log_share: Floats


def groups_of(features: Features, *, ordered: bool = True) -> Groups:
    """Group features, and divide the prior of the evidence among the groups; without an order, equally."""
    # Evidence is valid at any time only if the prior of a feature does not depend on later builds. The features born
    # with build i divide 1 / (i (i + 1)), which sums to one over all i. A group's share is the sum of its features', so
    # that nothing changes when later builds split the group.
    packed = np.ascontiguousarray(np.packbits(features.present, axis=0).T)
    features_by_row: dict[bytes, list[int]] = {}
    for feature, row in enumerate(packed):
        features_by_row.setdefault(row.tobytes(), []).append(feature)
    members = tuple(map(tuple, features_by_row.values()))
    shares = np.ones(len(members)) / len(members)
    if ordered:
        births, counts = np.unique(features.birth, return_counts=True)
        share = dict(zip(births.tolist(), (1.0 / (births * (births + 1.0) * counts)).tolist()))
        shares = np.array([math.fsum(share[int(features.birth[f])] for f in group) for group in members], np.float64)
    return Groups(
        present=features.present[:, [group[0] for group in members]], members=members, log_share=np.log(shares)
    )


@dataclass(frozen=True)
class Counts:
    """Builds expected bad by each explanation (``size``), and the bad ones among them (``hits``).

    Arrays of single choices have shape ``(choices,)``, those of pairs ``(paired, paired)``: above the diagonal both of
    two, below it either of two. The diagonal has no meaning. ``nested`` are pairs where one choice occurs only in
    builds that have the other one as well.
    """

    single_size: Ints
    single_hits: Ints
    pair_size: Ints
    pair_hits: Ints
    nested: Bools

    @classmethod
    def of(cls, present: Bools, bad: Bools, paired: Ints) -> "Counts":
        """Count builds."""
        size, hits = present.sum(axis=0), present[bad].sum(axis=0)
        among = present[:, paired].astype(np.float32)  # its matrix product is the fastest, and exact up to 2**24
        common = (among.T @ among).astype(np.int64)
        common_hits = (among[bad].T @ among[bad]).astype(np.int64)
        sizes, single_hits = size[paired], hits[paired]
        is_joint = np.triu(np.ones(common.shape, np.bool_), 1)
        return cls(
            single_size=size,
            single_hits=hits,
            pair_size=np.where(is_joint, common, sizes[:, None] + sizes - common),
            pair_hits=np.where(is_joint, common_hits, single_hits[:, None] + single_hits - common_hits),
            nested=common == np.minimum(sizes[:, None], sizes),
        )


def marginals(single: Floats, pair: Floats, paired: Ints) -> Floats:
    """The mass of all explanations with each choice, of shape ``(choices,)``."""
    mass: Floats = single.copy()
    mass[paired] += pair.sum(axis=0) + pair.sum(axis=1)
    return mass


def clauses_of_pair(flat_index: int, paired: Ints) -> Clauses:
    """The explanation at a flat position of a matrix of pairs."""
    row, column = divmod(flat_index, len(paired))
    first, second = sorted((int(paired[row]), int(paired[column])))
    return ((first, second),) if row < column else ((first,), (second,))


@dataclass(frozen=True)
class Posterior:
    """Probabilities of explanations for verdicts on builds other than mixtures, and the evidence."""

    p_chance: float  # posterior probability that no choice decides
    probabilities: Floats  # posterior probability of each choice to be among the culprits, of shape ``(choices,)``
    best: Clauses  # the most probable explanation; ``expected_bad`` are the builds that it expects to be bad
    p_best: float  # its posterior probability
    expected_bad: Bools
    # Natural logarithm of the evidence. In builds in their order of arrival it is valid however often one looks, else
    # only at a number of builds fixed beforehand.
    log_e_value: float


# Log-priors of single choices and of each kind of pair, without the shares of the choices. A pair can be drawn in two
# orders.
LOG_ONE, LOG_PAIR = math.log(1 / 2), math.log(1 / 4) + math.log(2)
_MAX_PAIRED = 1024  # choices, the most suspicious, that pairs are made of: 1024 x 1024 doubles are 8 MiB
_IMPROBABLE = 12.0  # log-distance from the best at which explanations do not matter


def weigh(present: Bools, log_share: Floats, bad: Bools) -> Posterior:
    """Weigh every explanation against the verdicts; half of the prior is for chance.

    For probabilities all choices are alike. For the evidence each has its own share of the prior (:func:`groups_of`).
    ``present`` has the shape ``(builds, choices)``, with at least one column and no two alike.
    """
    choices = present.shape[1]
    uniform = -math.log(choices)
    likelihood = Likelihood(len(bad), int(bad.sum()))
    alone = likelihood(present.sum(axis=0), present[bad].sum(axis=0))
    paired = np.argsort(-alone, kind="stable")[:_MAX_PAIRED]
    counts = Counts.of(present, bad, paired)
    occurring = (counts.pair_size > 0) & ~np.eye(len(paired), dtype=np.bool_)
    # A nested pair expects the same builds as one of its choices alone, which is the simpler explanation.
    single = LOG_ONE + uniform + alone
    pair = np.where(
        occurring & ~counts.nested, LOG_PAIR + 2 * uniform + likelihood(counts.pair_size, counts.pair_hits), -np.inf
    )
    # Nested pairs are part of the prior of the evidence, since later builds may part them. Pairs that are not among the
    # most suspicious are left out, which only makes the evidence smaller.
    share = log_share[paired]
    evidence_of_pairs = LOG_PAIR + share[:, None] + share + likelihood.mixed(counts.pair_size, counts.pair_hits)
    evidence_of_singles = LOG_ONE + log_share + likelihood.mixed(counts.single_size, counts.single_hits)
    evidence = np.concatenate((evidence_of_singles, evidence_of_pairs[occurring]))
    _merge_equal_pairs(counts, present, paired, single, pair)
    # The largest term is subtracted before exponentials, or all of them would be zero after a thousand builds.
    peak = max(float(single.max()), float(pair.max(initial=-np.inf)), likelihood.chance)
    mass, mass_of_pairs, chance = np.exp(single - peak), np.exp(pair - peak), math.exp(likelihood.chance - peak)
    total = float(mass.sum() + mass_of_pairs.sum()) + chance
    best_single, best_pair = int(single.argmax()), int(pair.argmax())
    is_pair = pair.flat[best_pair] > single[best_single]
    best = clauses_of_pair(best_pair, paired) if is_pair else ((best_single,),)
    expected: Bools = np.logical_or.reduce([present[:, list(clause)].all(axis=1) for clause in best])
    probability = float(mass_of_pairs.flat[best_pair] if is_pair else mass[best_single]) / total
    return Posterior(
        p_chance=chance / total,
        probabilities=np.minimum(marginals(mass, mass_of_pairs, paired) / total, 1.0),
        best=best,
        p_best=probability,
        expected_bad=expected,
        log_e_value=float(np.logaddexp.reduce(evidence)) - likelihood.supremum,
    )


def _merge_equal_pairs(counts: Counts, present: Bools, paired: Ints, single: Floats, pair: Floats) -> None:
    """Move the probability of pairs to single choices with the same expected builds, in place."""
    # No verdict can tell the two apart, and the single choice says the same in fewer words.
    # As many pairs may equal a choice as there are choices, each that much less probable.
    threshold = max(float(single.max()), float(pair.max())) - _IMPROBABLE - math.log(len(single))
    singles = np.flatnonzero(single > threshold)
    # Equal counts are necessary and quick to compare; packed rows then show whether the builds are the same.
    builds = len(present) + 1
    keys_of_singles = counts.single_size[singles] * builds + counts.single_hits[singles]
    same_counts = np.isin(counts.pair_size * builds + counts.pair_hits, keys_of_singles)
    packed = np.packbits(present, axis=0)
    owner = {packed[:, choice].tobytes(): choice for choice in singles.tolist()}
    for row, column in np.argwhere((pair > threshold) & same_counts).tolist():
        first, second = packed[:, paired[row]], packed[:, paired[column]]
        choice = owner.get((first & second if row < column else first | second).tobytes())
        if choice is not None:
            single[choice] = np.logaddexp(single[choice], pair[row, column])
            pair[row, column] = -np.inf
