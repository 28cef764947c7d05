"""What is done to outputs before they are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, is_floating, to_numpy
from trtops.comparator.results import IterationResult

TopK: TypeAlias = int | tuple[int, int]


class BasePostprocessFunc:
    """Takes an iteration's outputs and returns them changed."""

    def __call__(self, iter_result: IterationResult) -> IterationResult:
        """Process one iteration; the same object may be changed and returned."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopKPostprocessFunc(BasePostprocessFunc):
    """Replaces outputs by the indices of their largest elements, largest first, the earlier first among equals.

    >>> TopKPostprocessFunc(k=2)(IterationResult({"scores": np.array([0.1, 0.7, 0.2])}))["scores"].tolist()
    [1, 2]
    """

    # How many, at most as many as there are; or that and the axis they are looked for along (the last unless given); or
    # either by output, with "" for those it does not name, which else stay as they are.
    k: TopK | Mapping[str, TopK] | None = 10

    def __call__(self, iter_result: IterationResult) -> IterationResult:
        """Replace outputs in place, and return the iteration."""
        for name in list(iter_result):
            k = self.k.get(name, self.k.get("")) if isinstance(self.k, Mapping) else 10 if self.k is None else self.k
            if not k:
                continue
            count, axis = k if isinstance(k, (tuple, list)) else (k, -1)
            iter_result[name] = _top_indices(name, to_numpy(iter_result[name], f"Output {name!r}"), count, axis)
        return iter_result


def _top_indices(name: str, array: Array, count: int, axis: int) -> Array:
    if not -array.ndim <= axis < array.ndim:
        raise errors.ConfigError(
            f"Output {name!r} has shape {array.shape}, which has no axis {axis} to take the top {count} along."
        )
    if array.dtype.kind not in "iub" and not is_floating(array):
        raise errors.ComparisonError(
            f"Output {name!r} has dtype {array.dtype}; the largest of its elements is not defined."
        )
    # Reverses the order without overflow; NaN stays behind all numbers.
    keys = ~array if array.dtype.kind in "iub" else -array
    order = np.argsort(keys, axis=axis, kind="stable")
    taken: Array = np.take(order, np.arange(min(count, array.shape[axis])), axis=axis)
    return taken


class PostprocessFunc:
    """The functions by their names in scripts: ``PostprocessFunc.top_k(k=5)``."""

    top_k = TopKPostprocessFunc
