"""The batch of a model's inputs and outputs: its axes, and rows taken from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from trtops.backend.runner import Feed, ProfiledFeed
from trtops.comparator.arrays import Array
from trtops.metadata import TensorMetadata, is_dynamic

Outputs: TypeAlias = dict[str, Array]
Rows: TypeAlias = Sequence[int] | np.ndarray[Any, np.dtype[np.intp]]


class RowSelection(NamedTuple):
    """Rows of a batch of a size, with the batch axes of the outputs."""

    rows: Rows
    axes: Mapping[str, int]
    batch: int


class Result(NamedTuple):
    """The outputs for a feed, and the rows to compare (default: all elements)."""

    feed: Feed
    outputs: Outputs
    selection: RowSelection | None = None

    def compared(self, name: str) -> Array | None:
        """Return an output, or its selected rows; None if it has no block for each row of the batch."""
        array = self.outputs[name]
        if self.selection is None:
            return array
        rows, axes, batch = self.selection
        axis = axes.get(name)
        if axis is None or array.ndim <= axis or array.shape[axis] % batch:
            return None
        blocks = array.reshape(*array.shape[:axis], batch, array.shape[axis] // batch, *array.shape[axis + 1 :])
        return np.take(blocks, rows, axis)


@dataclass(frozen=True)
class Batch:
    """The batch axis of each input that has one; ``dynamic`` if batches may have other sizes."""

    axes: Mapping[str, int]
    dynamic: bool

    def size(self, feed: Feed) -> int:
        """Return the number of rows of a feed."""
        name, axis = next(iter(self.axes.items()))
        return int(feed[name].shape[axis])

    def are_alike(self, first: Feed, second: Feed) -> bool:
        """True for feeds with rows of the same shapes, and with equal inputs without a batch axis."""

        def row(feed: Feed) -> dict[str, Any]:
            return {
                name: np.delete(array.shape, self.axes[name]).tolist() if name in self.axes else array.tobytes()
                for name, array in feed.items()
            }

        return row(first) == row(second)

    def take(self, feed: Feed, rows: Rows) -> Feed:
        """Return a feed of some rows."""
        return same_profile(
            feed, {n: np.take(array, rows, self.axes[n]) if n in self.axes else array for n, array in feed.items()}
        )

    def join(self, feeds: Sequence[Feed]) -> Feed:
        """Return one feed with the rows of all feeds."""
        joined = dict(feeds[0])
        for name, axis in self.axes.items():
            joined[name] = np.concatenate([feed[name] for feed in feeds], axis)
        return same_profile(feeds[0], joined)

    def output_axes(self, base: Result, variant: Result) -> dict[str, int]:
        """Return the batch axis of each output that has one, from results for two batches."""
        base_rows, variant_rows = self.size(base.feed), self.size(variant.feed)
        axes: dict[str, int] = {}
        for name, array in base.outputs.items():
            shape = np.shape(variant.outputs.get(name, ()))
            if len(shape) != array.ndim:
                continue
            for axis, (base_size, variant_size) in enumerate(zip(array.shape, shape)):
                grows = base_size * variant_rows == variant_size * base_rows and not base_size % base_rows
                if base_size and grows and (base_rows != variant_rows or base_size == base_rows):
                    axes[name] = axis
                    break
        return axes


def batch_of(inputs: TensorMetadata, feed: Feed) -> Batch | str:
    """Return the batch axes of the inputs, or why there is no batch."""
    dims = []
    for name, spec in inputs.items():
        if spec.shape and name in feed and feed[name].ndim:
            dims += [(name, axis, dim) for axis, dim in enumerate(spec.shape)]
    named = [entry for entry in dims if isinstance(entry[2], str) and "batch" in entry[2].lower()]
    batch_dims = named or [(name, axis, dim) for name, axis, dim in dims if axis == 0 and is_dynamic(dim)]
    if not batch_dims:
        first_sizes = {name: int(feed[name].shape[0]) for name, _, _ in dims}
        if set(first_sizes.values()) <= {1}:
            return "the model's batch is fixed at one row"
        if len(set(first_sizes.values())) > 1:
            return "the inputs' first sizes differ"
        return Batch(dict.fromkeys(first_sizes, 0), dynamic=False)
    first, first_axis, symbol = batch_dims[0]
    axes: dict[str, int] = {}
    for name, axis, dim in dims:
        same = dim == symbol if isinstance(dim, str) and isinstance(symbol, str) else axis == 0 and is_dynamic(dim)
        if same and feed[name].shape[axis] == feed[first].shape[first_axis]:
            axes.setdefault(name, axis)
    return Batch(axes, dynamic=True)


def same_profile(feed: Feed, arrays: Mapping[str, Array]) -> Feed:
    """Return arrays as a feed for the same profile."""
    return ProfiledFeed(arrays, feed.profile, feed.point) if isinstance(feed, ProfiledFeed) else dict(arrays)
