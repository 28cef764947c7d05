"""Saved inputs, outputs and comparisons: types, shapes and statistics; also next to the layers of an engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.comparator.accuracy import AccuracyResults
from trtops.comparator.arrays import to_numpy
from trtops.comparator.data_loader import StreamingDataLoader
from trtops.comparator.report_lines import histogram_lines, statistics_text
from trtops.comparator.results import RunResults
from trtops.comparator.streams import load_saved
from trtops.json import load_json
from trtops.ops.arguments import checked_arguments
from trtops.ops.result import Inspection
from trtops.record import JSONValue, to_jsonable
from trtops.terminal import one_line

if TYPE_CHECKING:
    from trtops.backend.trt.describe.inspector import EngineDescription


@checked_arguments
def inspect_data(
    path: str | Path,
    *,
    show_values: bool = False,
    histogram: bool = False,
    all_iterations: bool = False,
    items: int = 3,
    line_width: int = 75,
) -> Inspection:
    """Inspect saved inputs, outputs or comparisons; the text has Polygraphy's layout.

    The path is a ``.json`` file of trtops or Polygraphy, a folder of such files with one iteration each, an ``.npz`` or
    an ``.npy``. ``items`` values are printed at the ends of each axis, in lines of at most ``line_width`` characters;
    -1 sets no limit. FormatError if it cannot be read, or has no arrays; ConfigError if the file does not exist.

    >>> print(inspect_data("feed.npz").text())
    ==== Data (1 iterations) ====
    <BLANKLINE>
    image [dtype=float32, shape=(2, 3, 8, 8)] | Stats: mean=..., std-dev=...
    """
    saved = _load_saved(Path(path))
    if isinstance(saved, AccuracyResults):
        return Inspection(lambda: _comparison_values(saved), lambda: "\n".join(_accuracy_lines(saved, all_iterations)))
    are_results = isinstance(saved, RunResults)
    runs: list[tuple[str, list[dict[str, Any]], int]] = []  # a runner, the iterations to show, and how many it has
    for runner, iterations in saved.items() if isinstance(saved, RunResults) else [("inputs", saved)]:
        shown = []
        for saved_arrays in iterations if all_iterations else iterations[:1]:
            shown.append({name: _as_array(array, f"{path}: {name!r}") for name, array in saved_arrays.items()})
        runs.append((runner, shown, len(iterations)))

    def describe() -> JSONValue:
        summaries: list[JSONValue] = []
        for runner, iterations, total in runs:
            for number, iteration in enumerate(iterations):
                origin = f"{runner}, iteration {number} of {total}"
                summaries += [{"where": origin, "name": name, **summarize(array)} for name, array in iteration.items()]
        return summaries

    def array_lines(name: str, array: Any) -> Iterator[str]:
        yield f"{one_line(name)} [dtype={array.dtype}, shape={array.shape}] | Stats: {statistics_text(array)}"
        stats: Any = summarize(array)
        if stats["nan"] or stats["inf"]:
            text = f"    NaN={stats['nan']}, inf={stats['inf']}"
            if stats["mean"] is not None:
                text += f" | Others: mean={stats['mean']:.5g}, std-dev={stats['std']:.5g}, median={stats['median']:.5g}"
                text += f", min={stats['minimum']:.5g}, max={stats['maximum']:.5g}"
            yield text
        if histogram and stats["mean"] is not None:
            yield from (f"    {line}" for line in histogram_lines(array))
        if show_values:
            edge, width = (sys.maxsize if n < 1 else n for n in (items, line_width))
            with np.printoptions(edgeitems=edge, linewidth=width):
                yield from (f"    {line}" for line in str(array).splitlines())

    def lines() -> Iterator[str]:
        if are_results:
            yield from (f"==== Run Results ({len(runs)} runners) ====", "")
        longest = max((len(runner) for runner, _, _ in runs), default=0)
        for runner, iterations, total in runs:
            yield (
                f"---- {runner:<{longest}} ({total} iterations) ----"
                if are_results
                else f"==== Data ({total} iterations) ===="
            )
            margin = "    " if len(iterations) > 1 else ""
            for number, iteration in enumerate(iterations):
                yield from ("", f"-- Iteration: {number}") if margin else ()
                for name, array in iteration.items():
                    yield from ("", *(f"{margin}{line}" for line in array_lines(name, array)))
            yield from ("",) if are_results else ()

    return Inspection(describe, lambda: "\n".join(lines()))


def _load_saved(path: Path) -> RunResults | AccuracyResults | list[Any]:
    """The content of a file or folder; inputs are a list of feeds."""
    if not path.exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved inputs, outputs or comparisons.")
    if path.is_dir():
        first = next(iter(sorted(path.glob("*.json"))), None)
        if first is None:
            raise errors.FormatError(f"{path}: no .json files of iterations in it.")
        if isinstance(load_json(str(first)), RunResults):
            return RunResults.load(path)
        return list(StreamingDataLoader(path))
    loaded = load_saved(path)
    if isinstance(loaded, np.ndarray):
        return [{path.stem: loaded}]
    if isinstance(loaded, (RunResults, AccuracyResults)):
        return loaded
    feeds = [loaded] if isinstance(loaded, Mapping) else loaded
    if isinstance(feeds, list) and all(isinstance(feed, Mapping) for feed in feeds):
        return feeds
    raise errors.FormatError(f"{path} has a {type(loaded).__name__}; expected saved inputs or outputs.")


def _comparison_values(results: AccuracyResults) -> JSONValue:
    """Every number of a saved comparison, with its verdict."""
    rows: list[JSONValue] = []
    for result in results:
        for pair, iterations in result.items():
            for number, matches in enumerate(iterations):
                for name, match in matches.items():
                    numbers = {} if isinstance(match, bool) else to_jsonable(match.metric_values())
                    row: dict[str, JSONValue] = {"runners": list(pair), "iteration": number, "output": name}
                    rows.append({**row, "passed": bool(match), "numbers": numbers})
    return rows


def _accuracy_lines(results: AccuracyResults, all_iterations: bool) -> Iterator[str]:
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
                    metrics = ", ".join(f"{n}={value:.5g}" for n, value in numbers.items() if value is not None)
                    yield f"        {name} | {'PASSED' if match else 'FAILED'}{f' | {metrics}' if metrics else ''}"


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """A saved value as an array; arrays are returned unchanged, including incomparable ones."""
    try:
        return value if isinstance(value, np.ndarray) else to_numpy(value, name)
    except errors.ComparisonError as exc:
        raise errors.FormatError(str(exc)) from None


def summarize(array: Any) -> dict[str, JSONValue]:
    """Type, shape, and statistics of the finite elements of an array in host memory; None for text."""
    array = np.asarray(array)
    summary: dict[str, JSONValue] = {
        **{"dtype": str(array.dtype), "shape": list(array.shape), "nan": 0, "inf": 0},
        **dict.fromkeys(("mean", "std", "median", "magnitude", "minimum", "maximum")),
    }
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        return summary
    # Sums in FP16 overflow.
    numbers = array.astype(np.float64, copy=False)
    summary |= {"nan": int(np.isnan(numbers).sum()), "inf": int(np.isinf(numbers).sum())}
    # One NaN would make every statistic NaN, and hide what the other values are.
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        summary |= {
            "mean": float(finite.mean()),
            "std": float(finite.std()),
            "median": float(np.median(finite)),
            "magnitude": float(np.abs(finite).mean()),
            "minimum": float(finite.min()),
            "maximum": float(finite.max()),
        }
    return summary


def tensors_text(engine: EngineDescription, path: str | Path) -> str:
    """An engine's layers with statistics of their tensors, from the first iteration of saved outputs.

    ConfigError if the file does not exist, FormatError if it has no outputs.
    """
    if not Path(path).exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved outputs (trtops run --save-outputs).")
    tensors: dict[str, Any] = {}
    for iterations in RunResults.load(str(path)).values():
        tensors |= dict(iterations[0]) if iterations else {}
    if not tensors:
        raise errors.FormatError(f"{path} has no outputs; expected those of at least one iteration.")
    lines = [f"---- Tensors of {len(engine.layers)} Layers ----"]
    for layer in engine.layers:
        lines.append(f"{layer.name} [Op: {layer.op}]")
        for arrow, side_tensors in (("   ", layer.inputs), (" ->", layer.outputs)):
            for tensor in side_tensors:
                # Only tensors that were outputs or debug tensors (--mark-unfused-tensors-as-debug-tensors) were saved.
                text = "not saved"
                if tensor.name in tensors:
                    array = np.asarray(tensors[tensor.name])
                    text = f"dtype={array.dtype}, shape={array.shape}, {statistics_text(array)}"
                lines.append(f"  {arrow} {tensor.name} [{text}]")
    return "\n".join(lines) + "\n"
