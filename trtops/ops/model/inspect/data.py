"""Saved inputs and outputs: types, shapes and statistics."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.accuracy import AccuracyResults
from trtops.comparator.arrays import to_numpy
from trtops.comparator.data_loader import StreamingDataLoader
from trtops.comparator.report_lines import histogram_lines, statistics_text
from trtops.comparator.results import RunResults
from trtops.json import load_json
from trtops.json.numpy_files import load_numpy
from trtops.ops.model.inspect.inspection import Inspection
from trtops.record import JSONValue, Record, to_jsonable

_LINE_WIDTH = 75


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
        path: A ``.json`` file of trtops or Polygraphy, a folder of such files with one iteration each, an ``.npz`` or an
            ``.npy``.
        show_values: Whether to print values.
        histogram: Whether to print how values are spread.
        all_iterations: Whether to show every iteration, or the first.
        items: How many values to print at the ends of each axis; -1 prints all.
        line_width: Longest line of values, 75 unless given; -1 sets no limit.

    Raises:
        FormatError: If it cannot be read, or holds no arrays.
        ConfigError: If there is no such file.
    """
    held = _load_saved(Path(path))
    if isinstance(held, AccuracyResults):
        return Inspection(
            "data", lambda: _evaluation_values(held), lambda: "\n".join(_accuracy_lines(held, all_iterations))
        )
    shown = [
        (runner, number, name, _as_array(array, f"{path}: {name!r}"))
        for runner, iterations in held.runs
        for number, iteration in enumerate(iterations if all_iterations else iterations[:1])
        for name, array in iteration.items()
    ]
    counts = {runner: len(iterations) for runner, iterations in held.runs}

    def summaries() -> list[JSONValue]:
        return [
            to_jsonable(summarize(f"{runner}, iteration {number} of {counts[runner]}", name, array))
            for runner, number, name, array in shown
        ]

    options = _Shown(show_values, histogram, all_iterations, items, line_width)
    return Inspection("data", summaries, lambda: "\n".join(_text_lines(held, options)))


@dataclass(frozen=True)
class _Saved:
    """What a file or folder holds: iterations by runner, or one nameless runner's if they are inputs."""

    runs: list[tuple[str, Sequence[Mapping[str, Any]]]]
    are_results: bool


@dataclass(frozen=True)
class _Shown:
    """What is shown of it."""

    values: bool
    histogram: bool
    all_iterations: bool
    items: int
    line_width: int | None


def _evaluation_values(results: AccuracyResults) -> JSONValue:
    """Every number of a saved comparison, with its verdict."""
    return [
        {
            "runners": list(pair),
            "iteration": number,
            "output": name,
            "passed": bool(match),
            "numbers": {} if isinstance(match, bool) else to_jsonable(match.metric_values()),
        }
        for result in results
        for pair in result
        for number, matches in enumerate(result[pair])
        for name, match in matches.items()
    ]


def _accuracy_lines(results: AccuracyResults, all_iterations: bool) -> Iterator[str]:
    """A saved comparison, laid out as Polygraphy does."""
    yield f"==== Accuracy Results ({len(results)} comparison(s)) ===="
    for result in results:
        yield from ("", f"---- Aggregation: {result.aggregation} ----")
        for pair in result:
            matched, _, total = result.stats(pair)
            yield from ("", f"{pair[0]} vs. {pair[1]} | {matched}/{total} iteration(s) matched")
            for number, matches in enumerate(result[pair] if all_iterations else result[pair][:1]):
                yield from ("", f"    -- Iteration: {number}")
                for name, match in matches.items():
                    numbers = {} if isinstance(match, bool) else match.metric_values()
                    known = ", ".join(f"{n}={value:.5g}" for n, value in numbers.items() if value is not None)
                    verdict = "PASSED" if match else "FAILED"
                    yield f"        {name} | {verdict}{f' | {known}' if known else ''}"


def _load_saved(path: Path) -> _Saved | AccuracyResults:
    if not path.exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved inputs, outputs or comparisons.")
    if path.is_dir():
        return _saved_folder(path)
    if path.suffix in (".npy", ".npz"):
        return _Saved([(path.name, [_numpy_arrays(path)])], False)
    loaded = load_json(str(path))
    if isinstance(loaded, RunResults):
        return _Saved(list(loaded.items()), True)
    if isinstance(loaded, AccuracyResults):
        return loaded
    feeds = [loaded] if isinstance(loaded, Mapping) else loaded
    if isinstance(feeds, list) and all(isinstance(feed, Mapping) for feed in feeds):
        return _Saved([("inputs", feeds)], False)
    raise errors.FormatError(f"{path} holds a {type(loaded).__name__}; expected saved inputs or outputs.")


def _saved_folder(path: Path) -> _Saved:
    """A folder with a file for each iteration, of results or of inputs."""
    first = next(iter(sorted(path.glob("*.json"))), None)
    if first is None:
        raise errors.FormatError(f"{path}: no .json files of iterations in it.")
    if isinstance(load_json(str(first)), RunResults):
        return _Saved(list(RunResults.load(path).items()), True)
    return _Saved([("inputs", list(StreamingDataLoader(path)))], False)


def _text_lines(held: _Saved, shown: _Shown) -> Iterator[str]:
    """The whole, laid out as Polygraphy does."""
    if not held.are_results:
        [(_, iterations)] = held.runs
        yield f"==== Data ({len(iterations)} iterations) ===="
        yield from _iteration_lines(iterations, shown)
        return
    yield from (f"==== Run Results ({len(held.runs)} runners) ====", "")
    width = max((len(name) for name, _ in held.runs), default=0)
    for name, iterations in held.runs:
        yield f"---- {name:<{width}} ({len(iterations)} iterations) ----"
        yield from (*_iteration_lines(iterations, shown), "")


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """What a file holds as an array: any that it has itself is shown, also of what cannot be compared."""
    try:
        return value if isinstance(value, np.ndarray) else to_numpy(value, name)
    except errors.ComparisonError as exc:
        raise errors.FormatError(str(exc)) from None


def _iteration_lines(iterations: Sequence[Mapping[str, Any]], shown: _Shown) -> Iterator[str]:
    several = len(iterations) > 1 and shown.all_iterations
    margin = "    " if several else ""
    for number, iteration in enumerate(iterations if shown.all_iterations else iterations[:1]):
        yield from ("", f"-- Iteration: {number}") if several else ()
        for name, value in iteration.items():
            array = _as_array(value, repr(name))
            yield ""
            yield f"{margin}{name} [dtype={array.dtype}, shape={array.shape}] | Stats: {statistics_text(array)}"
            found = summarize("", name, array)
            if found.nan or found.inf:
                yield f"{margin}    {_finite_text(found)}"
            if shown.histogram and found.mean is not None:
                yield from (f"{margin}    {line}" for line in histogram_lines(array))
            if shown.values:
                yield from (f"{margin}    {line}" for line in _value_lines(array, shown.items, shown.line_width))


def _numpy_arrays(path: Path) -> dict[str, Any]:
    loaded = load_numpy(path)
    return {path.stem: loaded} if isinstance(loaded, np.ndarray) else loaded


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


def _finite_text(summary: ArraySummary) -> str:
    """What of an array is not finite, and statistics of the rest."""
    text = f"NaN={summary.nan}, inf={summary.inf}"
    if summary.mean is None:
        return text
    levels = ", ".join(f"p{level}={value:.5g}" for level, value in zip((90, 95, 99), summary.percentiles))
    return (
        f"{text} | Others: mean={summary.mean:.5g}, std-dev={summary.std:.5g}, median={summary.median:.5g}, "
        f"min={summary.minimum:.5g} at {summary.minimum_at}, max={summary.maximum:.5g} at {summary.maximum_at}, "
        f"avg-magnitude={summary.magnitude:.5g}, {levels}"
    )


def _value_lines(array: npt.NDArray[Any], items: int, line_width: int | None) -> list[str]:
    width = _LINE_WIDTH if line_width is None else line_width
    with np.printoptions(edgeitems=_or_all(items), linewidth=_or_all(width)):
        return str(array).splitlines()


def _or_all(number: int) -> int:
    return sys.maxsize if number < 1 else number
