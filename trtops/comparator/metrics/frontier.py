"""The Pareto front of both errors: its elements decide the verdict of any tolerances.

If any element exceeds both tolerances, one of these does.
"""

import math

import numpy as np

from trtops.comparator.arrays import Array

# Points that are stored at most, two floats each: 2 KiB for each output of a saved report.
_POINTS = 128
# Elements of a block that a new pivot is chosen from.
_SAMPLE = 256


class Frontier:
    """The front of all errors so far, and a pivot: elements below it in both errors cannot change the front."""

    def __init__(self) -> None:
        self.d = np.empty(0)
        self.r = np.empty(0)
        self.pivot = (-1.0, -1.0)
        self.exact = True

    def aim(self, d: Array, r: Array) -> None:
        """Choose as pivot the point of a sample's front with most elements below it; those are skipped."""
        steps_d, steps_r = _pareto_front(d, r)
        if self.d.size:
            self._merge(steps_d, steps_r)
        else:
            self.d, self.r = steps_d, steps_r
        count = min(steps_d.size, 16)
        thin = np.arange(count) * (steps_d.size - 1) // max(count - 1, 1)
        pivots_d, pivots_r = steps_d[thin, None], steps_r[thin, None]
        covered = ((d <= pivots_d) & (r <= pivots_r)).sum(axis=1)
        best = thin[int(covered.argmax())]
        self.pivot = float(steps_d[best]), float(steps_r[best])

    def add(self, d: Array, r: Array, top_d: float, top_r: float) -> None:
        """Add a block; ``top_d`` and ``top_r`` are its largest errors. NaN counts as infinite."""
        # The comparison is negated because it is false for NaN, too.
        if not (top_d < math.inf and top_r < math.inf):
            d, r = np.where(np.isnan(d), np.inf, d), np.where(np.isnan(r), np.inf, r)
            top_d, top_r = float(d.max()), float(r.max())
        if top_d <= self.pivot[0] and top_r <= self.pivot[1]:
            return
        if self.d.size:  # else there is no pivot yet
            d, r = self._outside(d, r)
        # The pivot rules out too few of these, and finding their front takes a sort.
        if d.size > _SAMPLE:
            step = d.size // _SAMPLE
            self.aim(d[::step], r[::step])
            d, r = self._outside(d, r)
        self._merge(d, r)

    def _outside(self, d: Array, r: Array) -> tuple[Array, Array]:
        keep = (d > self.pivot[0]) | (r > self.pivot[1])
        return d[keep], r[keep]

    def _merge(self, d: Array, r: Array) -> None:
        if self.d.size:
            d, r = np.concatenate([self.d, d]), np.concatenate([self.r, r])
        self.d, self.r = _pareto_front(d, r)
        if self.d.size > 4 * _POINTS:
            self._thin()

    def _thin(self) -> None:
        """Join neighbours into the corner above them: a bad output stays bad, a good one may become bad."""
        groups = np.array_split(np.arange(self.d.size), _POINTS)
        corners_d = np.array([self.d[g[0]] for g in groups])
        corners_r = np.array([self.r[g[-1]] for g in groups])
        self.d, self.r, self.exact = corners_d, corners_r, False

    def points(self) -> tuple[tuple[float, float], ...]:
        """Pairs of absolute and relative error, by falling absolute error."""
        if self.d.size > _POINTS:
            self._thin()
        return tuple(zip(self.d.tolist(), self.r.tolist()))


def _pareto_front(d: Array, r: Array) -> tuple[Array, Array]:
    """The points not exceeded by another one in both coordinates, by falling ``d``."""
    if not d.size:
        return d, r
    order = np.argsort(-d)
    d, r = d[order], r[order]
    rises = np.empty(r.size, bool)
    rises[0] = True
    np.greater(r[1:], np.maximum.accumulate(r)[:-1], out=rises[1:])
    d, r = d[rises], r[rises]
    last = np.ones(d.size, bool)
    # Of equal absolute errors, the one with the largest relative error stays.
    np.not_equal(d[1:], d[:-1], out=last[:-1])
    return d[last], r[last]
