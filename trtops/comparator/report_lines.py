"""Log lines about outputs and comparisons, in Polygraphy's words."""

from __future__ import annotations

import logging
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trtops.comparator.metrics import OutputStatistics
    from trtops.comparator.metrics.totals import Errors

# Levels between INFO and WARNING: the same as in trtops.logger.Logger, without importing it.
START, FINISH = 22, 28

_log = logging.getLogger(__name__.rpartition(".")[0])
_MAX_SHOWN_ELEMENTS = 100  # arrays up to this size are shown whole, as Polygraphy does


def log_lines(level: int, text: str, indent: int = 0) -> None:
    """Log lines of a command's result: the handler of trtops writes them to standard output.

    ``indent`` is the number of steps of four spaces to put before each.
    """
    if _log.isEnabledFor(level):
        margin = "    " * indent
        _log.log(level, "%s", margin + text.replace("\n", "\n" + margin), extra={"on_stdout": True})


def verdict_level(passed: bool) -> int:
    """The severity of a line with a verdict."""
    return FINISH if passed else logging.ERROR


def log_statistics(
    label: str, array: Any, *, failed: bool, indent: int, among: Any = None, text: str | None = None
) -> None:
    """Log an array's statistics, and its histogram and a small array's values if something failed or at level DEBUG.

    The histogram covers the range of ``among`` as well. ``text`` is :func:`statistics_text` of the array, if known.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    array = np.asarray(array)
    log_lines(logging.INFO, f"{label} | Stats: {text or statistics_text(array)}", indent)
    level = logging.INFO if failed else logging.DEBUG
    if not _log.isEnabledFor(level) or not array.size or not _is_numeric(array):
        return
    if array.size <= _MAX_SHOWN_ELEMENTS:
        log_lines(level, "---- Values ----\n" + textwrap.indent(str(array), " " * 4), indent + 1)
    if array.dtype.kind != "b":
        pooled = array if among is None else np.concatenate([array.reshape(-1), np.asarray(among).reshape(-1)])
        if histogram := "\n".join(histogram_lines(array, pooled)):
            log_lines(level, histogram, indent + 1)


def histogram_lines(array: npt.NDArray[Any], among: npt.NDArray[Any] | None = None) -> Iterator[str]:
    """A histogram of an array's finite elements, over the range of ``among``; nothing if the range is too narrow."""
    numbers = np.asarray(array).astype(np.float64)
    others = numbers if among is None else np.asarray(among).astype(np.float64)
    finite = others[np.isfinite(others)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    scale = 1.0 if math.isfinite(ends[1] - ends[0]) else 0.25  # numpy computes the distance of the ends
    try:
        with np.errstate(all="ignore"):
            held = numbers[np.isfinite(numbers)] * scale
            counts, edges = np.histogram(held, bins=10, range=(ends[0] * scale, ends[1] * scale))
    except ValueError:  # there are not ten different numbers between the ends
        return
    highest_count = max(int(counts.max()), 1)
    texts = [f"{edge / scale:.3g}" for edge in edges]
    low, high = max(map(len, texts)), max(map(len, texts[1:]))
    yield "---- Histogram ----"
    yield f"{'Bin Range':{low + high + 5}}|  Num Elems | Visualization"
    for count, begin, end in zip(counts, texts, texts[1:]):
        yield f"({begin:<{low}}, {end:<{high}}) | {count:10} | {'#' * int(40 * float(count) / float(highest_count))}"


def _is_numeric(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind in "fiub" or "float" in array.dtype.name or "int" in array.dtype.name


def statistics_text(array: Any) -> str:
    """Statistics of an array's elements in a line, NaN and infinities included; quantiles for all but booleans."""
    array = np.asarray(array)
    if not _is_numeric(array):
        return "<Error while computing statistics>"
    if not array.size:
        return "no elements"
    # Slow to import, and few commands need them.
    from trtops.comparator.metrics.difference import BLOCK
    from trtops.comparator.metrics.quantiles import quantiles
    from trtops.comparator.metrics.totals import Errors

    flat, total, magnitude = array.reshape(-1), Errors(), 0.0
    total.max = -math.inf
    # Blocks that fit into the cache: temporary arrays of the whole size would take most of the time.
    blocks = [flat[start : start + BLOCK] for start in range(0, flat.size, BLOCK)]
    buffer = np.empty(blocks[0].size)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        for number, block in enumerate(blocks):
            x = buffer[: block.size]
            x[:] = block
            total.add(x, number * BLOCK)
            magnitude = total.sum if total.min >= 0 else magnitude + float(np.absolute(x, out=x).sum())
        mean = total.sum / flat.size
        variance = total.squares / flat.size - mean * mean
        if not variance > 1e-6 * mean * mean:  # the difference has too few digits left
            squares = 0.0
            for block in blocks:
                x = buffer[: block.size]
                x[:] = block
                x -= mean
                squares += float(np.einsum("i,i->", x, x))
            variance = squares / flat.size
        if math.isnan(total.max):
            total.min, total.min_at = total.max, total.max_at
            quantile_values = [math.nan] * 4
        else:
            quantile_values = quantiles(
                flat if flat.dtype == np.float32 else flat.astype(np.float64), (0.5, 0.9, 0.95, 0.99)
            )
    ends = (total.min, total.min_at), (total.max, total.max_at)
    return _statistics_line(mean, variance, ends, magnitude / flat.size, quantile_values, array)


def error_statistics_text(errors: Errors, statistics: OutputStatistics, kind: str, array: Any) -> str | None:
    """:func:`statistics_text` of the errors of an output, ``kind`` is ``abs`` or ``rel``; None if they have NaN."""
    if not statistics.elements or math.isnan(errors.max):
        return None
    mean = errors.sum / statistics.elements
    variance = max(errors.squares / statistics.elements - mean * mean, 0.0)
    if variance < 1e-12 * mean * mean:  # only the rounding of the sums is left
        variance = 0.0
    levels = [float(getattr(statistics.quantile(level), kind)) for level in (0.5, 0.9, 0.95, 0.99)]
    ends = (errors.min, errors.min_at), (errors.max, errors.max_at)
    return _statistics_line(mean, variance, ends, mean, levels, np.asarray(array))


def _statistics_line(
    mean: float,
    variance: float,
    ends: tuple[tuple[float, int], tuple[float, int]],
    magnitude: float,
    levels: Sequence[float],
    array: npt.NDArray[Any],
) -> str:
    """The line of an array's statistics; ``ends`` are the least and the largest element with their flat places."""
    (minimum, min_at), (maximum, max_at) = ends
    places = [tuple(map(int, np.unravel_index(at, array.shape))) for at in (min_at, max_at)]
    # numpy returns 0 or -0 as the minimum, by their order in memory; adding 0 makes both 0.
    text = (
        f"mean={mean:.5g}, std-dev={variance**0.5:.5g}, var={variance:.5g}, median={levels[0]:.5g}, "
        f"min={minimum + 0.0:.5g} at {places[0]}, max={maximum:.5g} at {places[1]}, avg-magnitude={magnitude:.5g}"
    )
    if array.dtype.kind == "b":
        return text
    return f"{text}, " + ", ".join(f"p{level}={value:.5g}" for level, value in zip((90, 95, 99), levels[1:]))
