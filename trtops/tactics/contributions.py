"""Whether the error of builds is a sum over units, where no choice decides: a step and a sum are compared.

A *step* is one unit, both of two or either of two: the error has one value with it, and another one without it. A *sum*
has a contribution of each of several units, found by forward selection, to the error or to its logarithm: then units
multiply it. All are compared by the extended Bayesian information criterion (Chen and Chen, Biometrika 2008), which
charges for the number of candidates.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from trtops.tactics.model import Bools, Floats

# Errors are explained to this share of their range. Finer differences come from choices that do not matter here.
_RESOLUTION = 0.03
_MIN_BUILDS = 7
_BUILDS_PER_UNIT = 2.5  # of a sum, at least
_ADVANTAGE = 10.0  # of the criterion's value, which is twice a log-likelihood: odds of 150 to 1
_ADVANTAGE_OF_PRODUCT = 3.0  # likewise, over a sum of the errors themselves: odds of 4 to 1
_STEP = 0.95  # share of the variance of the error or of its logarithm that a step explains, so that it is no sum
_ALIKE = 0.8  # correlation from which units are confounded
SOUND_SPREAD = 2.0  # ratio of the largest to the smallest error up to which no choice is broken
_GAP = 0.2  # share of the range of errors between good and bad builds, below which the limit lies inside it
_DECIDES = 0.6  # share of the sum from which one unit decides
_NAMED = 0.1  # share of the range of errors from which a contribution is named
_DRAWS = 64  # random mixtures from which the next one is chosen
_MAX_PAIRED = 200  # units that pairs are made of


@dataclass(frozen=True)
class ErrorSum:
    """A sum: units by their size, their contributions to the error, and half of the width of 95 % intervals.

    A unit is sure if it adds a tenth of the range of errors and its interval does not contain zero, in this fit and in
    all that leave out one build. The sum is settled if all these fits have the same ones. If units multiply the error,
    contributions are to its natural logarithm. ``criterion`` is the information criterion, smaller for better fits.
    """

    units: tuple[int, ...]
    values: Floats
    margins: Floats
    sure: frozenset[int] = frozenset()
    settled: bool = False
    multiplies: bool = False
    criterion: float = math.inf


def find_sum(taken: Bools, error: Floats, bad: Bools) -> ErrorSum | None:
    """The sum that explains builds better than any step does; None without one, or if one unit is most of it.

    Where the limit lies inside the spread of errors, so that small differences decide, steps do not count.

    ``taken`` has the shape ``(builds, units)``, ``error`` the shape ``(builds,)`` with positive, finite values, larger
    ones where ``bad``.
    """
    fit = functools.partial(_fit, is_inside=is_limit_inside(error, bad))
    sums = [each for multiplies in (False, True) if (each := fit(taken, error, multiplies))]
    if not sums:
        return None
    found = min(sums, key=lambda each: each.criterion + _ADVANTAGE_OF_PRODUCT * each.multiplies)
    rows = range(len(error))
    others = [fit(np.delete(taken, row, axis=0), np.delete(error, row), found.multiplies) for row in rows]
    least = _NAMED * float(np.ptp(np.log(error) if found.multiplies else error))
    named = [_named(each, least) for each in (found, *others)]
    # Another unit that nearly the same builds have may be meant.
    with np.errstate(invalid="ignore"):  # where a unit is in all builds, or in none
        alike = np.abs(np.nan_to_num(np.atleast_2d(np.corrcoef(taken.T)))) >= _ALIKE
    clear = frozenset(unit for unit in found.units if alike[unit].sum() == 1)
    # Factors and summands differ where several units change the error by more than the spread of sound builds.
    is_scale_clear = len(sums) > 1 and abs(sums[0].criterion - sums[1].criterion) >= _ADVANTAGE_OF_PRODUCT
    is_scale_clear |= len(found.units) == 1 or bool(error.max() <= SOUND_SPREAD * error.min())
    is_settled = bool(named[0]) and len(set(named)) == 1 and named[0] <= clear and is_scale_clear
    return replace(found, sure=frozenset.intersection(clear, *named), settled=is_settled)


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


def _named(fit: ErrorSum | None, least: float) -> frozenset[int]:
    if fit is None:
        return frozenset()
    sizes = zip(fit.units, np.abs(fit.values), fit.margins)
    return frozenset(unit for unit, size, margin in sizes if size > max(margin, least))


def _fit(taken: Bools, error: Floats, multiplies: bool, *, is_inside: bool) -> ErrorSum | None:
    builds, units = taken.shape
    if builds < _MIN_BUILDS or not np.ptp(error) > 0:
        return None
    lefts = [_left_by_step(taken, each)[0] / (each.var() * builds) for each in (error, np.log(error))]
    if not is_inside and 1 - min(lefts) >= _STEP:
        return None
    # Densities of logarithms and of errors differ by this factor, in the criterion's units.
    density = 2 * float(np.log(error).sum()) if multiplies else 0.0
    error = np.log(error) if multiplies else error
    floor = builds * (_RESOLUTION * float(np.ptp(error))) ** 2
    left, features = _left_by_step(taken, error)
    of_step = _criterion(left, floor, builds, 1, features)
    best: tuple[float, list[int]] = (math.inf, [])
    chosen: list[int] = []
    rest, scale = error - error.mean(), np.maximum(taken.std(axis=0), 1e-12)
    while len(chosen) < min(units, builds / _BUILDS_PER_UNIT) and float((rest**2).sum()) > floor:
        correlation = np.abs((taken - taken.mean(axis=0)).T @ rest) / scale
        correlation[chosen] = -1
        chosen.append(int(correlation.argmax()))
        rest, _, _ = _regress(taken[:, chosen], error)
        best = min(best, (_criterion(float((rest**2).sum()), floor, builds, len(chosen), units), list(chosen)))
    criterion, chosen = best
    rest, values, covariance = _regress(taken[:, chosen], error)
    is_one = len(chosen) < 2 or np.abs(values).max() >= _DECIDES * np.abs(values).sum()
    if not is_inside and (is_one or criterion + _ADVANTAGE > of_step):
        return None
    free = builds - len(chosen) - 1
    from scipy import special  # takes a tenth of a second to import

    # Intervals of units that were selected cover 95 % on average at this level (Benjamini and Yekutieli, Journal of the
    # American Statistical Association 2005).
    level = 1 - 0.025 * len(chosen) / units
    margins = float(special.stdtrit(free, level)) * np.sqrt(max(float((rest**2).sum()) / free, floor / builds))
    order = np.argsort(-np.abs(values), kind="stable")
    return ErrorSum(
        units=tuple(chosen[place] for place in order),
        values=values[order],
        margins=margins * np.sqrt(covariance[order]),
        multiplies=multiplies,
        criterion=criterion + density,
    )


def _regress(taken: Bools, error: Floats) -> tuple[Floats, Floats, Floats]:
    """What a linear regression leaves, the units' coefficients, and their variances at a variance of one."""
    design: Floats = np.column_stack((np.ones(len(taken)), taken)).astype(np.float64)
    inverse = np.linalg.pinv(design)
    solution = inverse @ error
    return error - design @ solution, solution[1:], (inverse**2).sum(axis=1)[1:]


def _left_by_step(taken: Bools, values: Floats) -> tuple[float, int]:
    """The sum of squares that the best step leaves, and the number of steps."""
    paired = taken[:, :_MAX_PAIRED]
    both, either = paired[:, :, None] & paired[:, None], paired[:, :, None] | paired[:, None]
    steps = np.concatenate((taken, both.reshape(len(taken), -1), either.reshape(len(taken), -1)), axis=1)
    centered, size = values - values.mean(), steps.sum(axis=0)
    among = centered @ steps
    gained = among**2 / np.maximum(size * (1 - size / len(taken)), 1e-12)
    return max(float((centered**2).sum() - gained.max()), 0.0), taken.shape[1] + paired.shape[1] ** 2


def _criterion(left: float, floor: float, builds: int, terms: int, candidates: int) -> float:
    return builds * math.log(max(left, floor) / builds) + terms * (math.log(builds) + 2 * math.log(candidates))
