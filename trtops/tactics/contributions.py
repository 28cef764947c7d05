"""Contributions: compare sums over several units with steps as explanations of errors, if no choice decides.

A *step* is one unit, both of two or either of two: the error has one value with it, and another one without it. A
*sum* has a contribution of each of several units. All other units together are noise: half of its variance is their own
small contributions, which add up over a mixture.

Contributions are normal, so each model has a closed marginal likelihood. Each further unit halves the prior of a sum's
size, which is divided among the sets of that size (Castillo, Schmidt-Hieber and van der Vaart, Annals of Statistics
2015). A beam search visits the probable sets. Probabilities and intervals are averages over all of them, so one fit
counts for its share only.
"""

import math
from dataclasses import dataclass

import numpy as np

from trtops.extras import require
from trtops.tactics.model import Bools, Floats, Ints

_CERTAIN = 1e3  # log-odds that need no comparison
MIN_BUILDS = 5
_MAX_TERMS = 8  # units of a sum
_BEAM = 25  # sets of each size from which larger ones are made
_RATIO = 10.0  # prior standard deviation of a contribution, compared with that of the noise
_CHANCE_FACTOR = 5  # times the confidence that naming a unit needs
_RESOLUTION = 0.02  # the least noise, as a share of the range of errors; its logarithm has a flat prior above
SOUND_SPREAD = 2.0  # ratio of the largest to the smallest error up to which no choice is broken
_GAP = 0.2  # share of the range of errors between good and bad builds, below which the limit lies inside it
_CLEAR = 0.25  # share of the gap between good and bad builds that other units may use where one decides
_NAMED = 0.1  # share of the range of errors from which a contribution is named
_DRAWS = 64  # random mixtures from which the next one is chosen
_SHARES = np.array((0.5, 0.25, 0.25))  # of the prior of steps: one unit, both of two, either of two
_MAX_PAIRED = 200  # units that pairs are made of


@dataclass(frozen=True)
class ErrorSum:
    """A sum of errors over units.

    ``contributions`` are those of the named units, the largest first: the unit, its part of the error, and half of the
    width of the 95 % interval. ``increase`` is the sum of all positive parts.

    A unit is sure if it probably adds more than a tenth of the range of errors. The sum is settled if no other one may,
    and if a build without the sure ones has all others. Until then less sure ones are named too. ``log_odds`` compare
    all sums with all steps. Where the limit lies inside the spread of errors, so that small differences decide, steps
    do not count; where one unit decides all verdicts, sums do not.
    """

    contributions: tuple[tuple[int, float, float], ...] = ()
    increase: float = 0.0
    settled: bool = False
    log_odds: float = 0.0


@dataclass(frozen=True)
class _Sums:
    """Sums of the error: of each set the units, the contributions, and their variances.

    Arrays of sets have shape ``(sets, units)``, with zeros where a unit is not in a set. ``log_odds`` has shape
    ``(sets,)``. ``log_step`` and ``log_sum`` are the logarithms of the evidence of all steps and of all sums.
    """

    log_odds: Floats
    values: Floats
    variances: Floats
    log_step: float
    log_sum: float


def find_sum(taken: Bools, error: Floats, bad: Bools, confidence: float = 0.95) -> ErrorSum | None:
    """The most probable sum; with too few builds an empty one if errors are within a factor of two, else None.

    ``taken`` has the shape ``(builds, units)``, ``error`` the shape ``(builds,)`` with positive, finite values, larger
    ones where ``bad``.
    """
    is_alike = error.max() <= SOUND_SPREAD * error.min()
    if len(error) < MIN_BUILDS or not np.ptp(error) > 0:
        return ErrorSum() if is_alike else None
    sums = _weigh(taken, error)
    weights = np.exp(sums.log_odds - np.logaddexp.reduce(sums.log_odds))
    is_in = sums.values != 0
    inclusion = weights @ is_in
    values = weights @ sums.values / np.maximum(inclusion, 1e-12)
    spread = weights @ (is_in * (sums.variances + (sums.values - values) ** 2)) / np.maximum(inclusion, 1e-12)
    p_large = weights @ (np.abs(sums.values) > _NAMED * np.ptp(error))
    # The search stops at the first builds that suffice, so a unit's probability is often just above the threshold.
    sure = p_large >= 1 - (1 - confidence) / _CHANCE_FACTOR
    is_open = ((p_large > 1 - confidence) & ~sure).any()
    settled = bool(sure.any() and not is_open and (taken == ~sure).all(axis=1).any())
    named = sure if settled else p_large >= confidence
    order = [unit for unit in np.argsort(-np.abs(values), kind="stable").tolist() if inclusion[unit] >= 0.5]
    # No step parts good builds from bad ones, on either scale.
    gaps = [(v[bad].min() - v[~bad].max()) / np.ptp(v) for v in (error, np.log(error))]
    is_inside = is_alike or max(gaps) < _GAP
    decides = any(
        weights @ _decides(unit, taken, bad, error, sums.values) >= confidence
        for unit in order[:1]
        if np.array_equal(taken[:, unit], bad)
    )
    log_odds = max(sums.log_sum - sums.log_step, -_CERTAIN)
    return ErrorSum(
        contributions=tuple((unit, float(values[unit]), 2 * math.sqrt(spread[unit])) for unit in order if named[unit]),
        increase=float(values[order].clip(0).sum()),
        settled=settled,
        log_odds=_CERTAIN if is_inside else -_CERTAIN if decides else log_odds,
    )


def _weigh(taken: Bools, error: Floats) -> _Sums:
    """Weigh all steps and the probable sums."""
    require("scipy")
    from scipy import special  # takes a tenth of a second to import

    builds, units = taken.shape
    reach = float(np.ptp(error))
    # Differences between builds, without their mean, divided by the covariance of the noise.
    contrasts = np.linalg.qr(np.column_stack((np.ones(builds), np.eye(builds)[:, 1:])))[0][:, 1:].T
    small = contrasts @ taken
    noise = np.linalg.cholesky((np.eye(builds - 1) + 4 / units * small @ small.T) / 2)
    white = np.linalg.solve(noise, contrasts)
    target = white @ error / reach
    whole = float(target @ target)
    freedom = builds - 1

    def log_evidence(log_det: Floats, explained: Floats) -> Floats:
        # The noise's standard deviation is integrated out, from the resolution to infinity.
        left = np.maximum(whole - explained, 1e-9)
        log_tail = np.log(special.gammainc(freedom / 2, left / (2 * _RESOLUTION**2)))
        logs: Floats = -log_det / 2 - freedom / 2 * np.log(left) + log_tail
        return logs

    paired = taken[:, :_MAX_PAIRED]
    rows, columns = np.triu_indices(paired.shape[1], 1)
    joint = paired[:, rows] & paired[:, columns]
    either = paired[:, rows] | paired[:, columns]
    steps = white @ np.concatenate((taken, joint, either), axis=1)
    size = (steps**2).sum(axis=0) * _RATIO**2 + 1
    evidence = log_evidence(np.log(size), (steps.T @ target) ** 2 * _RATIO**2 / size)
    share = np.repeat(_SHARES / np.maximum((units, len(rows), len(rows)), 1), (units, len(rows), len(rows)))

    beam: Ints = np.empty((1, 0), np.int64)
    odds = [log_evidence(np.zeros(1), np.zeros(1)) - math.log(2)]
    contributions, variances = [np.zeros((1, units))], [np.zeros((1, units))]
    for terms in range(1, min(_MAX_TERMS, units, builds // 2) + 1):
        larger = np.concatenate([np.column_stack((beam, np.full(len(beam), unit))) for unit in range(units)])
        larger = np.unique(np.sort(larger, axis=1), axis=0)
        larger = larger[(np.diff(larger, axis=1) > 0).all(axis=1)]
        design = np.tensordot(white, taken[:, larger], 1)
        common = np.einsum("bsi,b->si", design, target)
        inner = np.einsum("bsi,bsj->sij", design, design) + np.eye(terms) / _RATIO**2
        inverse = np.linalg.inv(inner)
        solution = np.einsum("sij,sj->si", inverse, common)
        explained = (solution * common).sum(axis=1)
        log_det = np.linalg.slogdet(inner)[1] + 2 * terms * math.log(_RATIO)
        log_sets = math.lgamma(units + 1) - math.lgamma(terms + 1) - math.lgamma(units - terms + 1)
        log_evidences = log_evidence(log_det, explained) - log_sets - (terms + 1) * math.log(2)
        best = np.argsort(-log_evidences, kind="stable")[:_BEAM]
        beam = larger[best]
        odds.append(log_evidences[best])
        left = np.maximum(whole - explained[best], freedom * _RESOLUTION**2)
        for arrays, estimates in (
            (contributions, solution[best]),
            (variances, np.diagonal(inverse[best], axis1=1, axis2=2) * left[:, None] / freedom),
        ):
            full = np.zeros((len(best), units))
            full[np.arange(len(best))[:, None], beam] = estimates
            arrays.append(full)
    return _Sums(
        log_odds=np.concatenate(odds),
        values=np.concatenate(contributions) * reach,
        variances=np.concatenate(variances) * reach**2,
        log_step=float(np.logaddexp.reduce(evidence + np.log(share))),
        log_sum=float(np.logaddexp.reduce(np.concatenate(odds[2:] or [np.array([-math.inf])]))),
    )


def separating_mixture(taken: Bools, held: Bools, left: Bools, rng: np.random.Generator) -> Bools:
    """Return a random mixture, of shape ``(units,)``, for the least correlation of units over all builds.

    It has all units of ``held`` and none of ``left``; the first such one has all others, which those may hide.
    """
    if left.any() and not (taken == ~left).all(axis=1).any():
        return ~left
    signs = np.column_stack((np.ones(len(taken)), 2.0 * taken - 1))
    drawn = held | (~left & (rng.random((_DRAWS, len(held))) < 0.5))
    common = signs.T @ signs
    rows = np.column_stack((np.ones(_DRAWS), 2.0 * drawn - 1))
    # The fourth power makes the largest correlations count most.
    costs = [((common + np.outer(row, row)) ** 4).sum() for row in rows]
    best: Bools = drawn[int(np.argmin(costs))]
    return best


def _decides(unit: int, taken: Bools, bad: Bools, error: Floats, added: Floats) -> Bools:
    """Whether a unit makes builds bad whatever else they have, by each row of ``added``, of shape ``(sets, units)``."""
    base = (error - added @ taken.T).mean(axis=1)
    others = np.delete(added, unit, axis=1)
    good, gap = error[~bad].max(), error[bad].min() - error[~bad].max()
    with_it = base + added[:, unit] + others.clip(max=0).sum(axis=1)
    without = base + others.clip(0).sum(axis=1)
    decides: Bools = (with_it > good + (1 - _CLEAR) * gap) & (without < good + _CLEAR * gap)
    return decides
