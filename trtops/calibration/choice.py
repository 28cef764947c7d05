"""The choice between calibration algorithms: the error of each, and the best one."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.calibration.histogram import Algorithm
from trtops.record import Record
from trtops.tables import counted

AlgorithmOrBest: TypeAlias = Literal["best", "minmax", "entropy", "percentile"]

ComparedOn: TypeAlias = Literal["check data", "held-out calibration data", "calibration data"]

# Errors this close are equal: the order of sums, which differs between processors, should not decide.
_EQUAL = 1.01
# Of equal algorithms the one that clips less comes first, since it is safer on data that was not seen.
_PREFERRED: tuple[Algorithm, ...] = ("minmax", "percentile", "entropy")


@dataclass(frozen=True, kw_only=True)
class AlgorithmError(Record):
    """The error of the INT8 model with one algorithm's ranges (:func:`relative_error`)."""

    algorithm: Algorithm
    error: float  # infinite if the outputs are not finite or have other shapes


@dataclass(frozen=True, kw_only=True)
class Comparison(Record):
    """The INT8 errors of all algorithms, on the same feeds.

    The errors are of the model with Q/DQ nodes, in FP32 arithmetic on the CPU, without the optimizations of ONNX
    Runtime, so that they do not depend on the processor's integer kernels.
    """

    COLUMNS: ClassVar = ("algorithm", "relative error", "chosen")

    errors: tuple[AlgorithmError, ...]
    feeds: int
    data: ComparedOn  # "calibration data" was not held out: there was a single feed

    @property
    def chosen(self) -> Algorithm:
        """The algorithm with the smallest error; within 1 % of it, the one clipping least."""
        error_of = {entry.algorithm: entry.error for entry in self.errors}
        smallest = min(error_of.values())
        return next(name for name in _PREFERRED if name in error_of and error_of[name] <= _EQUAL * smallest)

    def rows(self) -> Iterable[tuple[str, float, str]]:
        """A row for each algorithm, with the values of :attr:`COLUMNS`."""
        return ((e.algorithm, e.error, "yes" if e.algorithm == self.chosen else "") for e in self.errors)

    def sentence(self) -> str:
        """A sentence on the best algorithm, its gain, and the data."""
        best, *others = sorted(self.errors, key=lambda entry: (entry.algorithm != self.chosen, entry.error))
        compared = ", ".join(f"{entry.algorithm} {entry.error:.3g}" for entry in others)
        gain = "equal to the next within 1%"
        if others[0].error > _EQUAL * best.error:
            gain = f"{1 - best.error / others[0].error:.0%} smaller than with the next"
        alone = self.data == "calibration data"
        note = " It was not held out: the calibration data is a single feed." if alone else ""
        return (
            f"Best algorithm: {best.algorithm}, relative error {best.error:.3g}, {gain} ({compared}), on "
            f"{counted(self.feeds, 'feed')} of the {self.data}.{note}"
        )


def relative_error(actual: Iterable[Mapping[str, Any]], golden: Sequence[Mapping[str, Any]]) -> float:
    """Return the root mean square of all feeds' differences, relative to the golden output's.

    Of the floating-point output where it is largest, without the elements that are NaN or infinite in the golden
    output. A model without such outputs has the root of the share of integers that differ. Infinite for an output that
    is not finite or has another shape, and for any difference from an output of zeros.

    CalibrationError if the outputs hold no numbers.
    """
    differences: dict[str, float] = {}
    sizes: dict[str, float] = {}
    arrays = itertools.chain.from_iterable(outputs.values() for outputs in golden)
    kinds = {np.asarray(array).dtype.kind for array in arrays}
    for ours, theirs in zip(actual, golden):
        for name, array in theirs.items():
            right, left = np.asarray(array), np.asarray(ours[name])
            if right.dtype.kind not in ("f" if "f" in kinds else "iub"):
                continue
            if left.shape != right.shape:
                difference, size = math.inf, 0.0
            elif right.dtype.kind == "f":
                finite = np.isfinite(right)
                right = right[finite].astype(np.float64)
                difference, size = float(np.square(left[finite] - right).sum()), float(np.square(right).sum())
            else:
                difference, size = float(np.count_nonzero(left != right)), float(right.size)
            differences[name] = differences.get(name, 0.0) + (math.inf if math.isnan(difference) else difference)
            sizes[name] = sizes.get(name, 0.0) + size
    if not differences:
        raise errors.CalibrationError("The model has no output of numbers to measure an error of.")
    ratios = ((difference, sizes[name]) for name, difference in differences.items())
    return max(0.0 if d == 0 else math.sqrt(d / size) if size else math.inf for d, size in ratios)
