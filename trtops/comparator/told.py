"""Lines that people and scripts read, in the words that Polygraphy has for them."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

START, FINISH = 22, 28
"""Levels between INFO and WARNING: :attr:`trtops.logger.Logger.START` and ``FINISH``, without importing that module."""

_log = logging.getLogger(__name__.rpartition(".")[0])


def tell(level: int, text: str, indent: int = 0) -> None:
    """Log a line that is part of what was asked for: where trtops' log is shown, it goes to standard output.

    Args:
        level: Its severity.
        text: The line, or several.
        indent: How many steps of four spaces to put before each.
    """
    if _log.isEnabledFor(level):
        margin = "    " * indent
        _log.log(level, "%s", margin + text.replace("\n", "\n" + margin), extra={"on_stdout": True})


def verdict_level(passed: bool) -> int:
    """The severity of a line that says how something went."""
    return FINISH if passed else logging.ERROR


def statistics_text(array: Any) -> str:
    """Statistics of an array's elements in a line, NaN and infinities included; quantiles for all but bool.

    Args:
        array: In host memory. Text has no statistics, which is said.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name and "int" not in array.dtype.name:
        return "<Error while computing statistics>"
    if not array.size:
        return "no elements"
    numbers = array.astype(np.float64)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        variance = float(numbers.var())
        median, *percentiles = map(float, np.quantile(numbers, (0.5, 0.9, 0.95, 0.99)))
        places = [tuple(map(int, np.unravel_index(at, array.shape))) for at in (numbers.argmin(), numbers.argmax())]
        text = (
            f"mean={numbers.mean():.5g}, std-dev={variance**0.5:.5g}, var={variance:.5g}, median={median:.5g}, "
            f"min={numbers.min():.5g} at {places[0]}, max={numbers.max():.5g} at {places[1]}, "
            f"avg-magnitude={np.abs(numbers).mean():.5g}"
        )
    if array.dtype.kind == "b":
        return text
    return f"{text}, " + ", ".join(f"p{level}={value:.5g}" for level, value in zip((90, 95, 99), percentiles))
