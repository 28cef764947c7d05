"""Saved inputs and outputs: types, shapes and statistics."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.results import RunResults
from trtops.json import load_json
from trtops.ops.model.inspect.inspection import Inspection
from trtops.record import Record, to_jsonable


@dataclass(frozen=True, kw_only=True)
class ArraySummary(Record):
    """One array of saved inputs or outputs.

    Attributes:
        where: The runner, and the iteration.
        name: The tensor.
        dtype: Its element type.
        shape: Its shape.
        mean: Mean of its finite elements, and so on; None for text and for arrays without finite elements.
        std: Standard deviation.
        median: Median.
        magnitude: Mean of the absolute values.
        percentiles: 90th, 95th and 99th percentile.
        minimum: Smallest.
        minimum_at: Where the first such element is.
        maximum: Largest.
        maximum_at: Where the first such element is.
        nan: NaNs.
        inf: Infinities.
    """

    where: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    mean: float | None = None
    std: float | None = None
    median: float | None = None
    magnitude: float | None = None
    percentiles: tuple[float, ...] = ()
    minimum: float | None = None
    minimum_at: tuple[int, ...] = ()
    maximum: float | None = None
    maximum_at: tuple[int, ...] = ()
    nan: int = 0
    inf: int = 0


def inspect_data(
    path: str | Path,
    *,
    show_values: bool = False,
    histogram: bool = False,
    all_iterations: bool = False,
    items: int = 3,
    line_width: int | None = None,
) -> Inspection:
    """Look into saved inputs or outputs.

    Args:
        path: A ``.json`` file of trtops or Polygraphy, an ``.npz`` or an ``.npy``.
        show_values: Whether to print values.
        histogram: Whether to print how values are spread.
        all_iterations: Whether to show every iteration, or the first.
        items: How many values to print at the ends of each axis.
        line_width: Longest line of values; -1 sets no limit, None leaves it to numpy.

    Raises:
        FormatError: If it cannot be read, or holds no arrays.
        ConfigError: If there is no such file.
    """
    arrays = list(_saved_arrays(Path(path), all_iterations))
    summaries = [summarize(where, name, array) for where, name, array in arrays]

    def text() -> str:
        lines: list[str] = []
        before = None
        for (where, _, array), described in zip(arrays, summaries):
            if where != before:
                lines.append(f"---- {where} ----")
                before = where
            lines += _summary_lines(described)
            if histogram and described.mean is not None:
                lines += _histogram_lines(np.asarray(array, np.float64))
            if show_values:
                lines += _value_lines(np.asarray(array), items, line_width)
        return "\n".join(lines)

    return Inspection("data", lambda: [to_jsonable(summary) for summary in summaries], text)


def _saved_arrays(path: Path, all_iterations: bool) -> Iterator[tuple[str, str, Any]]:
    """Each array with where it comes from and its name."""
    if not path.exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved inputs or outputs.")
    if path.suffix in (".npy", ".npz"):
        for name, array in _numpy_arrays(path).items():
            yield path.name, name, array
        return
    for runner, iterations in _saved_runs(path):
        for number, iteration in enumerate(iterations if all_iterations else iterations[:1]):
            for name, array in iteration.items():
                yield f"{runner}, iteration {number} of {len(iterations)}", name, np.asarray(array)


def _numpy_arrays(path: Path) -> dict[str, Any]:
    try:
        loaded = np.load(path, allow_pickle=False)
        return {path.stem: loaded} if isinstance(loaded, np.ndarray) else {n: loaded[n] for n in loaded.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as exc:
        raise errors.FormatError(f"{path} cannot be read: {exc}.") from None


def _saved_runs(path: Path) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """The iterations of each runner; inputs count as those of a runner ``inputs``."""
    loaded = load_json(str(path))
    if isinstance(loaded, RunResults):
        return list(loaded.items())
    if isinstance(loaded, Mapping):
        return [("inputs", [loaded])]
    if isinstance(loaded, list) and all(isinstance(feed, Mapping) for feed in loaded):
        return [("inputs", loaded)]
    raise errors.FormatError(f"{path} holds a {type(loaded).__name__}; expected saved inputs or outputs.")


def summarize(where: str, name: str, array: Any) -> ArraySummary:
    """Statistics of an array.

    Args:
        where: Where it comes from, for people.
        name: The tensor.
        array: The array, of any dtype, in host memory; text has no statistics.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        return ArraySummary(where=where, name=name, dtype=str(array.dtype), shape=array.shape)
    numbers = array.astype(np.float64, copy=False)
    return ArraySummary(
        where=where,
        name=name,
        dtype=str(array.dtype),
        shape=array.shape,
        nan=int(np.isnan(numbers).sum()),
        inf=int(np.isinf(numbers).sum()),
        **_finite_statistics(numbers),
    )


def _finite_statistics(numbers: Any) -> dict[str, Any]:
    """Statistics of the finite elements, by the names of :class:`ArraySummary`."""
    places = np.flatnonzero(np.isfinite(numbers))
    if not places.size:
        return {}
    finite = numbers.reshape(-1)[places]
    least, most = finite.argmin(), finite.argmax()
    median, *percentiles = map(float, np.percentile(finite, (50, 90, 95, 99)))
    return {
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "median": median,
        "magnitude": float(np.abs(finite).mean()),
        "percentiles": tuple(percentiles),
        "minimum": float(finite[least]),
        "minimum_at": tuple(map(int, np.unravel_index(places[least], numbers.shape))),
        "maximum": float(finite[most]),
        "maximum_at": tuple(map(int, np.unravel_index(places[most], numbers.shape))),
    }


def _summary_lines(summary: ArraySummary) -> list[str]:
    lines = [f"    {summary.name} [dtype={summary.dtype}, shape={summary.shape}]"]
    if summary.mean is not None:
        levels = ", ".join(f"p{level}={value:.5g}" for level, value in zip((90, 95, 99), summary.percentiles))
        lines += [
            f"        mean={summary.mean:.5g}, std={summary.std:.5g}, median={summary.median:.5g}, "
            f"min={summary.minimum:.5g} at {summary.minimum_at}, max={summary.maximum:.5g} at {summary.maximum_at}",
            f"        magnitude={summary.magnitude:.5g}, {levels}, NaN={summary.nan}, inf={summary.inf}",
        ]
    return lines


def _histogram_lines(numbers: npt.NDArray[np.float64]) -> Iterator[str]:
    counts, edges = np.histogram(numbers[np.isfinite(numbers)], bins=10)
    most = max(int(counts.max()), 1)
    for count, low, high in zip(counts, edges, edges[1:]):
        yield f"        ({low:<9.3g}, {high:<9.3g}) | {count:>9} | {'#' * round(40 * count / most)}"


def _value_lines(array: npt.NDArray[Any], items: int, line_width: int | None) -> list[str]:
    width = sys.maxsize if line_width is not None and line_width < 1 else line_width
    text = np.array2string(array, threshold=items * 10, edgeitems=items, max_line_width=width)
    return [f"        {line}" for line in text.splitlines()]
