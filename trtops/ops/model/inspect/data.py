"""Saved inputs, outputs and comparisons: types, shapes and statistics; also next to the layers of an engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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

if TYPE_CHECKING:
    from trtops.backend.trt.describe.inspector import EngineDescription

_LINE_WIDTH = 75


@dataclass(frozen=True, kw_only=True)
class ArraySummary(Record):
    """One array of saved inputs or outputs, with statistics of its finite elements; text has none."""

    where: str  # the runner and the iteration
    name: str
    dtype: str
    shape: tuple[int, ...]
    mean: float | None = None
    std: float | None = None
    median: float | None = None
    magnitude: float | None = None  # mean of the absolute values
    percentiles: tuple[float, ...] = ()  # 90th, 95th and 99th
    minimum: float | None = None
    minimum_at: tuple[int, ...] = ()
    maximum: float | None = None
    maximum_at: tuple[int, ...] = ()
    nan: int = 0
    inf: int = 0


@dataclass(frozen=True)
class _Saved:
    """A file's content: iterations by runner, or those of one nameless runner if they are inputs."""

    runs: list[tuple[str, Sequence[Mapping[str, Any]]]]
    are_results: bool


@dataclass(frozen=True)
class _Display:
    values: bool
    histogram: bool
    all_iterations: bool
    items: int
    line_width: int


def inspect_data(
    path: str | Path,
    *,
    show_values: bool = False,
    histogram: bool = False,
    all_iterations: bool = False,
    items: int = 3,
    line_width: int | None = None,
) -> Inspection:
    """Inspect saved inputs, outputs or comparisons.

    Args:
        path: A ``.json`` file of trtops or Polygraphy, a folder of such files with one iteration each, an ``.npz`` or
            an ``.npy``.
        show_values: Whether to print values.
        histogram: Whether to print histograms.
        all_iterations: Whether to show every iteration, or only the first.
        items: Number of values to print at the ends of each axis; -1 prints all.
        line_width: Maximum length of lines of values, 75 unless given; -1 sets no limit.

    Raises:
        FormatError: If it cannot be read, or has no arrays.
        ConfigError: If the file does not exist.
    """
    saved = _load_saved(Path(path))
    if isinstance(saved, AccuracyResults):
        return Inspection(
            "data", lambda: _comparison_values(saved), lambda: "\n".join(_accuracy_lines(saved, all_iterations))
        )
    shown = [
        (f"{runner}, iteration {number} of {len(iterations)}", name, _as_array(array, f"{path}: {name!r}"))
        for runner, iterations in saved.runs
        for number, iteration in enumerate(iterations if all_iterations else iterations[:1])
        for name, array in iteration.items()
    ]
    width = _LINE_WIDTH if line_width is None else line_width
    display = _Display(show_values, histogram, all_iterations, items, width)
    return Inspection(
        "data",
        lambda: [to_jsonable(summarize(where, name, array)) for where, name, array in shown],
        lambda: "\n".join(_text_lines(saved, display)),
    )


def _load_saved(path: Path) -> _Saved | AccuracyResults:
    if not path.exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved inputs, outputs or comparisons.")
    if path.is_dir():
        first = next(iter(sorted(path.glob("*.json"))), None)
        if first is None:
            raise errors.FormatError(f"{path}: no .json files of iterations in it.")
        if isinstance(load_json(str(first)), RunResults):
            return _Saved(list(RunResults.load(path).items()), True)
        return _Saved([("inputs", list(StreamingDataLoader(path)))], False)
    if path.suffix in (".npy", ".npz"):
        arrays = load_numpy(path)
        return _Saved([(path.name, [{path.stem: arrays} if isinstance(arrays, np.ndarray) else arrays])], False)
    loaded = load_json(str(path))
    if isinstance(loaded, RunResults):
        return _Saved(list(loaded.items()), True)
    if isinstance(loaded, AccuracyResults):
        return loaded
    feeds = [loaded] if isinstance(loaded, Mapping) else loaded
    if isinstance(feeds, list) and all(isinstance(feed, Mapping) for feed in feeds):
        return _Saved([("inputs", feeds)], False)
    raise errors.FormatError(f"{path} has a {type(loaded).__name__}; expected saved inputs or outputs.")


def _comparison_values(results: AccuracyResults) -> JSONValue:
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
    """A saved comparison, in Polygraphy's layout."""
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
                    yield f"        {name} | {'PASSED' if match else 'FAILED'}{f' | {known}' if known else ''}"


def _text_lines(saved: _Saved, display: _Display) -> Iterator[str]:
    """Saved inputs or outputs, in Polygraphy's layout."""
    if not saved.are_results:
        [(_, iterations)] = saved.runs
        yield f"==== Data ({len(iterations)} iterations) ===="
        yield from _iteration_lines(iterations, display)
        return
    yield from (f"==== Run Results ({len(saved.runs)} runners) ====", "")
    width = max((len(name) for name, _ in saved.runs), default=0)
    for name, iterations in saved.runs:
        yield f"---- {name:<{width}} ({len(iterations)} iterations) ----"
        yield from (*_iteration_lines(iterations, display), "")


def _iteration_lines(iterations: Sequence[Mapping[str, Any]], display: _Display) -> Iterator[str]:
    several = len(iterations) > 1 and display.all_iterations
    margin = "    " if several else ""
    for number, iteration in enumerate(iterations if display.all_iterations else iterations[:1]):
        yield from ("", f"-- Iteration: {number}") if several else ()
        for name, value in iteration.items():
            array = _as_array(value, repr(name))
            yield ""
            yield f"{margin}{name} [dtype={array.dtype}, shape={array.shape}] | Stats: {statistics_text(array)}"
            found = summarize("", name, array)
            if found.nan or found.inf:
                yield f"{margin}    {_finite_text(found)}"
            if display.histogram and found.mean is not None:
                yield from (f"{margin}    {line}" for line in histogram_lines(array))
            if display.values:
                edge, width = (sys.maxsize if n < 1 else n for n in (display.items, display.line_width))
                with np.printoptions(edgeitems=edge, linewidth=width):
                    yield from (f"{margin}    {line}" for line in str(array).splitlines())


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """A saved value as an array; arrays are returned as they are, including those that cannot be compared."""
    try:
        return value if isinstance(value, np.ndarray) else to_numpy(value, name)
    except errors.ComparisonError as exc:
        raise errors.FormatError(str(exc)) from None


def summarize(where: str, name: str, array: Any) -> ArraySummary:
    """Statistics of an array of any dtype in host memory; text has none."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        return ArraySummary(where=where, name=name, dtype=str(array.dtype), shape=array.shape)
    numbers = array.astype(np.float64, copy=False)
    finite_places = np.flatnonzero(np.isfinite(numbers))
    statistics: dict[str, Any] = {}
    if finite_places.size:
        finite = numbers.reshape(-1)[finite_places]
        least, most = finite.argmin(), finite.argmax()
        median, *percentiles = map(float, np.percentile(finite, (50, 90, 95, 99)))
        statistics = {
            "mean": float(finite.mean()),
            "std": float(finite.std()),
            "median": median,
            "magnitude": float(np.abs(finite).mean()),
            "percentiles": tuple(percentiles),
            "minimum": float(finite[least]),
            "minimum_at": tuple(map(int, np.unravel_index(finite_places[least], numbers.shape))),
            "maximum": float(finite[most]),
            "maximum_at": tuple(map(int, np.unravel_index(finite_places[most], numbers.shape))),
        }
    return ArraySummary(
        where=where,
        name=name,
        dtype=str(array.dtype),
        shape=array.shape,
        nan=int(np.isnan(numbers).sum()),
        inf=int(np.isinf(numbers).sum()),
        **statistics,
    )


def _finite_text(summary: ArraySummary) -> str:
    """The number of elements that are not finite, and statistics of the others."""
    text = f"NaN={summary.nan}, inf={summary.inf}"
    if summary.mean is None:
        return text
    levels = ", ".join(f"p{level}={value:.5g}" for level, value in zip((90, 95, 99), summary.percentiles))
    return (
        f"{text} | Others: mean={summary.mean:.5g}, std-dev={summary.std:.5g}, median={summary.median:.5g}, "
        f"min={summary.minimum:.5g} at {summary.minimum_at}, max={summary.maximum:.5g} at {summary.maximum_at}, "
        f"avg-magnitude={summary.magnitude:.5g}, {levels}"
    )


def read_tensors(path: str | Path) -> dict[str, ArraySummary]:
    """Statistics of saved outputs by tensor, from each runner's first iteration; the last runner takes precedence.

    Args:
        path: Outputs from ``trtops run --save-outputs``; with ``--mark-unfused-tensors-as-debug-tensors`` those of all
            tensors that were not fused.

    Raises:
        ConfigError: If the file does not exist.
        FormatError: If it is something else, or empty.
    """
    if not Path(path).exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved outputs (trtops run --save-outputs).")
    found = {
        name: summarize(runner, name, array)
        for runner, iterations in RunResults.load(str(path)).items()
        for name, array in (iterations[0].items() if iterations else ())
    }
    if not found:
        raise errors.FormatError(f"{path} has no outputs; expected those of at least one iteration.")
    return found


def tensors_text(engine: EngineDescription, tensors: dict[str, ArraySummary]) -> str:
    """An engine's layers with statistics of their tensors."""
    seen: set[str] = set()
    lines = [f"---- Tensors of {len(engine.layers)} Layers ----"]
    for layer in engine.layers:
        lines.append(f"{layer.name} [Op: {layer.op}]")
        for arrow, each in (("   ", layer.inputs), (" ->", layer.outputs)):
            for tensor in each:
                seen.add(tensor.name)
                found, text = tensors.get(tensor.name), "not saved"
                if found is not None:
                    text = f"dtype={found.dtype}, shape={found.shape}"
                    if found.mean is not None:
                        text += f", mean={found.mean:.5g}, std={found.std:.5g}, min={found.minimum:.5g}, "
                        text += f"max={found.maximum:.5g}, NaN={found.nan}, inf={found.inf}"
                lines.append(f"  {arrow} {tensor.name} [{text}]")
    others = [name for name in tensors if name not in seen]
    if others:
        lines += ["", f"Not of any layer: {', '.join(others)}"]
    return "\n".join(lines) + "\n"
