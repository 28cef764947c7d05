"""Whether the error of builds is a sum over units, where no choice decides: steps and sums are compared.

A *step* is one unit, both of two or either of two: the error has one value with it, and another one without it. A *sum*
has a contribution of each of several units, to the error or to its logarithm: then units multiply it. All other units
together are noise: half of its variance is their own small contributions, which add up over a mixture.

Contributions are normal, so each model has a closed marginal likelihood. Each further unit halves the prior of a sum's
size, which is divided among the sets of that size (Castillo, Schmidt-Hieber and van der Vaart, Annals of Statistics
2015). A beam search visits the probable sets. Probabilities and intervals are averages over all of them, so one fit
counts for its share only.
"""

import math
from dataclasses import dataclass

import numpy as np

from trtops.tactics.model import Bools, Floats, Ints

_MIN_BUILDS = 5
_MAX_TERMS = 8  # units of a sum
_BEAM = 25  # sets of each size from which larger ones are made
_RATIO = 10.0  # prior standard deviation of a contribution, compared with that of the noise
_CHANCE_FACTOR = 5  # times the confidence that naming a unit needs
_RESOLUTION = 0.02  # the least noise, as a share of the range of errors; its logarithm has a flat prior above
SOUND_SPREAD = 2.0  # ratio of the largest to the smallest error up to which no choice is broken
_GAP = 0.2  # share of the range of errors between good and bad builds, below which the limit lies inside it
_NAMED = 0.1  # share of the range of errors from which a contribution is named
# Spread of errors up to which a sum and a product differ by less than that: by the product of two contributions.
_ALIKE = ((1 + _NAMED) / (1 - _NAMED)) ** 2
_DRAWS = 64  # random mixtures from which the next one is chosen
_SHARES = np.array((0.5, 0.25, 0.25))  # of the prior of steps: one unit, both of two, either of two
_MAX_PAIRED = 200  # units that pairs are made of


@dataclass(frozen=True)
class ErrorSum:
    """A sum: units by their size, their contributions to the error, and half of the width of 95 % intervals.

    A unit is sure if it probably adds more than a tenth of the range of errors. The sum is settled if no other one may,
    and if it is known whether units add to the error or multiply it; then contributions are to its natural logarithm.
    ``log_odds`` compare all sums with all steps. Where the limit lies inside the spread of errors, so that small
    differences decide, steps do not count; where one unit decides all verdicts, sums do not.
    """

    units: tuple[int, ...]
    values: Floats
    margins: Floats
    sure: frozenset[int] = frozenset()
    settled: bool = False
    multiplies: bool = False
    log_odds: float = 0.0


@dataclass(frozen=True)
class _Scale:
    """Models of the error, or of its logarithm: of each set the units, the contributions, and their variances.

    Arrays of sets have shape ``(sets, units)``, with zeros where a unit is not in a set. ``log_odds`` has shape
    ``(sets,)``. ``log_step`` and ``log_sum`` are the logarithms of the evidence of all steps and of all sums.
    """

    log_odds: Floats
    values: Floats
    variances: Floats
    log_step: float
    log_sum: float
    reach: float


def find_sum(taken: Bools, error: Floats, bad: Bools, confidence: float = 0.95) -> ErrorSum | None:
    """The most probable sum; None with too few builds.

    ``taken`` has the shape ``(builds, units)``, ``error`` the shape ``(builds,)`` with positive, finite values, larger
    ones where ``bad``.
    """
    if len(error) < _MIN_BUILDS or not np.ptp(error) > 0:
        return None
    scales = [_weigh(taken, error, 0.0), _weigh(taken, np.log(error), float(np.log(error).sum()))]
    sure_odds = math.log(confidence / (1 - confidence))
    odds_of_product = float(np.diff([np.logaddexp.reduce(each.log_odds) for each in scales])[0])
    is_alike = bool(error.max() <= _ALIKE * error.min())
    multiplies = bool(odds_of_product >= (sure_odds if is_alike else 0))
    found = scales[int(multiplies)]
    weights = np.exp(found.log_odds - np.logaddexp.reduce(found.log_odds))
    is_in = found.values != 0
    inclusion = weights @ is_in
    values = weights @ found.values / np.maximum(inclusion, 1e-12)
    spread = weights @ (is_in * (found.variances + (found.values - values) ** 2)) / np.maximum(inclusion, 1e-12)
    p_large = weights @ (np.abs(found.values) > _NAMED * found.reach)
    # The search stops at the first builds that suffice, so a unit's probability is often just above what is needed.
    needed = 1 - (1 - confidence) / _CHANCE_FACTOR
    sure = frozenset(np.flatnonzero(p_large >= needed).tolist())
    is_open = ((p_large > 1 - confidence) & (p_large < needed)).any()
    is_scale_clear = is_alike or abs(odds_of_product) >= sure_odds or len(sure) == 1
    order = [unit for unit in np.argsort(-np.abs(values), kind="stable").tolist() if inclusion[unit] >= 0.5]
    log_sum, log_step = (np.logaddexp(*(getattr(each, name) for each in scales)) for name in ("log_sum", "log_step"))
    is_inside = is_limit_inside(error, bad)
    decides = any(np.array_equal(taken[:, unit], bad) for unit in order[:1])
    return ErrorSum(
        units=tuple(order),
        values=values[order],
        margins=2 * np.sqrt(spread[order]),
        sure=sure,
        settled=bool(sure) and not is_open and bool(is_scale_clear),
        multiplies=multiplies,
        log_odds=1e3 if is_inside else -1e3 if decides else max(float(log_sum - log_step), -1e3),
    )


def _weigh(taken: Bools, values: Floats, log_density: float) -> _Scale:
    """All steps, and the probable sums; ``log_density`` is what the scale takes from a density of errors."""
    from scipy import special  # takes a tenth of a second to import

    builds, units = taken.shape
    reach = float(np.ptp(values))
    # Differences between builds, without their mean, divided by the covariance of the noise.
    contrasts = np.linalg.qr(np.column_stack((np.ones(builds), np.eye(builds)[:, 1:])))[0][:, 1:].T
    small = contrasts @ taken
    noise = np.linalg.cholesky((np.eye(builds - 1) + 4 / units * small @ small.T) / 2)
    white = np.linalg.solve(noise, contrasts)
    design, target = white @ taken, white @ values / reach
    whole = float(target @ target)
    freedom = builds - 1
    offset = -log_density - builds * math.log(reach)

    def log_evidence(log_det: Floats, explained: Floats) -> Floats:
        # The noise's standard deviation is integrated out, from the resolution to infinity.
        left = np.maximum(whole - explained, 1e-9)
        log_tail = np.log(special.gammainc(freedom / 2, left / (2 * _RESOLUTION**2)))
        logs: Floats = offset - log_det / 2 - freedom / 2 * np.log(left) + log_tail
        return logs

    paired = taken[:, :_MAX_PAIRED]
    rows, columns = np.triu_indices(paired.shape[1], 1)
    both = paired[:, rows] & paired[:, columns]
    either = paired[:, rows] | paired[:, columns]
    steps = white @ np.concatenate((taken, both, either), axis=1)
    size = (steps**2).sum(axis=0) * _RATIO**2 + 1
    evidence = log_evidence(np.log(size), (steps.T @ target) ** 2 * _RATIO**2 / size)
    share = np.repeat(_SHARES / np.maximum((units, len(rows), len(rows)), 1), (units, len(rows), len(rows)))
    log_step = float(np.logaddexp.reduce(evidence + np.log(share)))

    gram, common = design.T @ design, design.T @ target
    beam: Ints = np.empty((1, 0), np.int64)
    most = min(_MAX_TERMS, units, builds // 2)
    odds = [log_evidence(np.zeros(1), np.zeros(1)) - math.log(2)]
    contributions, variances = [np.zeros((1, units))], [np.zeros((1, units))]
    for terms in range(1, most + 1):
        added = np.concatenate([np.column_stack((beam, np.full(len(beam), unit))) for unit in range(units)])
        added = np.unique(np.sort(added, axis=1), axis=0)
        added = added[(np.diff(added, axis=1) > 0).all(axis=1)]
        inner = gram[added[:, :, None], added[:, None]] + np.eye(terms) / _RATIO**2
        inverse = np.linalg.inv(inner)
        solution = np.einsum("sij,sj->si", inverse, common[added])
        explained = (solution * common[added]).sum(axis=1)
        log_det = np.linalg.slogdet(inner)[1] + 2 * terms * math.log(_RATIO)
        log_sets = math.lgamma(units + 1) - math.lgamma(terms + 1) - math.lgamma(units - terms + 1)
        evidence = log_evidence(log_det, explained) - log_sets - (terms + 1) * math.log(2)
        best = np.argsort(-evidence, kind="stable")[:_BEAM]
        beam = added[best]
        odds.append(evidence[best])
        left = np.maximum(whole - explained[best], freedom * _RESOLUTION**2)
        for arrays, found in (
            (contributions, solution[best]),
            (variances, np.diagonal(inverse[best], axis1=1, axis2=2) * left[:, None] / freedom),
        ):
            full = np.zeros((len(best), units))
            full[np.arange(len(best))[:, None], beam] = found
            arrays.append(full)
    log_odds = np.concatenate(odds)
    return _Scale(
        log_odds=log_odds,
        values=np.concatenate(contributions) * reach,
        variances=np.concatenate(variances) * reach**2,
        log_step=log_step,
        log_sum=float(np.logaddexp.reduce(np.concatenate(odds[2:] or [np.array([-math.inf])]))),
        reach=reach,
    )


def separating_mixture(taken: Bools, held: Bools, rng: np.random.Generator) -> Bools:
    """The random mixture, of shape ``(units,)``, after which units are least correlated over all builds."""
    signs = np.column_stack((np.ones(len(taken)), 2.0 * taken - 1))
    drawn = held | (rng.random((_DRAWS, len(held))) < 0.5)
    common = signs.T @ signs
    rows = np.column_stack((np.ones(_DRAWS), 2.0 * drawn - 1))
    # The fourth power makes the largest correlations count most.
    costs = [((common + np.outer(row, row)) ** 4).sum() for row in rows]
    best: Bools = drawn[int(np.argmin(costs))]
    return best


def is_limit_inside(error: Floats, bad: Bools) -> bool:
    """Whether no step parts good builds from bad ones.

    Either all errors are alike, or the largest of good builds is near to the smallest of bad builds: compared with the
    range of all errors, and of their logarithms.
    """
    if error.max() <= SOUND_SPREAD * error.min():
        return True
    gaps = [values[bad].min() - values[~bad].max() for values in (error, np.log(error))]
    return all(gap < _GAP * np.ptp(values) for gap, values in zip(gaps, (error, np.log(error))))
