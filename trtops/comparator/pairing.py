"""What compare functions share: which output is compared with which, aligned shapes, statistics computed once."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

from trtops import errors
from trtops.comparator import metrics
from trtops.comparator.arrays import Array, dtype_name, to_numpy
from trtops.comparator.metric_results import CompareResult, SimpleThreshold, Threshold
from trtops.comparator.metrics import OutputStatistics
from trtops.comparator.results import IterationResult
from trtops.comparator.told import FINISH, START, tell, verdict_level

T = TypeVar("T")
PerOutput: TypeAlias = "T | Mapping[str, T]"
Matches: TypeAlias = "dict[str, CompareResult | bool]"
FindOutput: TypeAlias = "Callable[[str, int, IterationResult], Sequence[str] | None]"

_log = logging.getLogger(__name__)


class StatisticsCache:
    """Statistics of one pair of iterations, kept for the next compare function that wants them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[str, str], bool], OutputStatistics] = {}

    def any(self, names: tuple[str, str], a: Array, b: Array) -> OutputStatistics:
        """Statistics whatever the tolerances and levels."""
        return self._kept.get((names, False)) or self._measure_anew(names, a, b, (), 1e-5, 1e-5, False)

    def of(
        self, names: tuple[str, str], a: Array, b: Array, threshold: SimpleThreshold, infinities_equal: bool
    ) -> OutputStatistics:
        """Statistics with the violations of, and the quantile level for, one threshold."""
        kept = self._kept.get((names, infinities_equal))
        level = threshold.error_quantile
        counted = kept is not None and (kept.atol, kept.rtol) == (threshold.atol, threshold.rtol)
        if kept and counted and (level == 0.5 or level in [q.level for q in kept.quantiles]):
            return kept
        return self._measure_anew(names, a, b, (level,), threshold.atol, threshold.rtol, infinities_equal)

    def _measure_anew(
        self, names: tuple[str, str], a: Array, b: Array, levels: Sequence[float], atol: float, rtol: float, inf: bool
    ) -> OutputStatistics:
        quantiles = tuple(sorted({*metrics.QUANTILES, *levels}))
        found = metrics.statistics(a, b, quantiles=quantiles, atol=atol, rtol=rtol, infinities_equal=inf)
        self._kept[names, inf] = found
        return found


class BaseCompareFunc:
    """What compare functions share: pairing outputs, aligning shapes, stopping early.

    Subclasses say in :meth:`thresholds_for` what they evaluate by, and in :meth:`match` how.
    """

    label: ClassVar[str] = ""

    check_shapes: bool
    fail_fast: bool
    find_output_func: FindOutput | None

    def __call__(self, iter_result0: IterationResult, iter_result1: IterationResult) -> Matches:
        """Compare two iterations.

        Args:
            iter_result0: The outputs under test.
            iter_result1: The reference.

        Returns:
            A match per output of the first that has a counterpart in the second.

        Raises:
            ComparisonError: If no output has a counterpart, or something in them cannot be compared.
            MetricUnavailableError: If the metric cannot be computed here.
        """
        return self.compare(iter_result0, iter_result1, StatisticsCache())

    def compare(self, iter_result0: IterationResult, iter_result1: IterationResult, cache: StatisticsCache) -> Matches:
        """As calling it, with statistics shared with other compare functions on the same two iterations."""
        self._warn_of_unknown_outputs({*iter_result0, *iter_result1, ""})
        matches: Matches = {}
        for name0, name1 in _counterpart_names(iter_result0, iter_result1, self.find_output_func):
            self._tell_pair(name0, iter_result0[name0], name1, iter_result1[name1])
            found = self._match_pair(name0, iter_result0[name0], name1, iter_result1[name1], cache)
            if matches.get(name0, True):  # of several counterparts the first that differs counts
                matches[name0] = found
            if self.fail_fast and not found:
                break
        if not matches and (len(iter_result0) or len(iter_result1)):
            raise errors.ComparisonError(
                f"No output of {iter_result0.runner_name} ({', '.join(iter_result0) or 'none'}) has a counterpart in "
                f"{iter_result1.runner_name} ({', '.join(iter_result1) or 'none'}). "
                "Name the counterparts with find_output_func."
            )
        self._tell_summary(matches)
        return matches

    def thresholds_for(self, output_name: str) -> Threshold:
        """What an output's numbers are held against."""
        raise NotImplementedError

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> CompareResult | bool:
        """Compare two arrays of one shape.

        Args:
            names: The output's name, and its counterpart's.
            a: The output under test.
            b: Its counterpart.
            cache: Where statistics come from.
        """
        raise NotImplementedError

    def _match_pair(self, name0: str, out0: Any, name1: str, out1: Any, cache: StatisticsCache) -> CompareResult | bool:
        a, b = to_numpy(out0, f"Output {name0!r}"), to_numpy(out1, f"Output {name1!r}")
        if a.shape != b.shape:
            aligned = None if self.check_shapes else _align_shape(b, a.shape)
            if aligned is None:
                text = f"FAILED | Output: `{name0}` | Will not compare outputs of different shapes.\n"
                tell(logging.ERROR, f"{text}Note: Output shapes are {a.shape} and {b.shape}.", indent=2)
                return False
            b = aligned
        found = self.match((name0, name1), a, b, cache)
        if not isinstance(found, bool):
            found.output0_name, found.output1_name = name0, name1
        self._log_match(name0, a, b, found)
        return found

    def _tell_pair(self, name0: str, out0: Any, name1: str, out1: Any) -> None:
        if _log.isEnabledFor(START):
            one, other = (f"'{n}' (dtype={o.dtype}, shape={tuple(o.shape)})" for n, o in ((name0, out0), (name1, out1)))
            tell(START, f"{self.label} | Comparing Output: {one} with {other}", indent=1)

    def _tell_summary(self, matches: Matches) -> None:
        mismatched = [name for name, match in matches.items() if not match]
        if mismatched:
            tell(logging.ERROR, f"FAILED | {self.label} | Mismatched outputs: {mismatched}", indent=1)
        else:
            tell(FINISH, f"PASSED | {self.label} | All outputs matched | Outputs: {list(matches)}", indent=1)

    def _log_match(self, name: str, a: Array, b: Array, found: CompareResult | bool) -> None:
        passed = bool(found)
        level = verdict_level(passed)
        if not _log.isEnabledFor(level):
            return
        if not isinstance(found, bool) and found.describe() is None:
            shown = f"Output {name!r} ({dtype_name(a)}, shape {a.shape}) | {found.summary()}"
            tell(logging.ERROR if not passed else logging.INFO, shown, indent=2)
        if _log.isEnabledFor(logging.INFO):
            self.tell_numbers(name, a, b, found)
        tell(level, self.verdict_line(name, found), indent=2)

    def tell_numbers(self, name: str, a: Array, b: Array, found: CompareResult | bool) -> None:
        """Tell more of a match, where information is shown; nothing unless a subclass has more to tell.

        Args:
            name: The output's name.
            a: The output under test.
            b: Its counterpart, of the same shape.
            found: The match.
        """

    def verdict_line(self, name: str, found: CompareResult | bool) -> str:
        """Whether an output matches, in a line that begins with ``PASSED`` or ``FAILED`` or ends so."""
        line = None if isinstance(found, bool) else found.describe()
        return line[0] if line else f"{'PASSED' if found else 'FAILED'} | Output: '{name}' | {self.label}"

    def _warn_of_unknown_outputs(self, known: set[str]) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if isinstance(value, Mapping):
                for name in value:
                    if name not in known:
                        _log.warning(
                            "%s names output %r, which does not exist. %s", option.name, name, errors.near(name, known)
                        )


class WithDefaults(BaseCompareFunc):
    """Options in which None stands for the default."""

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            if getattr(self, option.name) is None and option.default is not dataclasses.MISSING:
                object.__setattr__(self, option.name, option.default)


def of_output(value: PerOutput[T], output: str, default: T) -> T:
    """The value for one output."""
    if isinstance(value, Mapping):
        return cast("T", value.get(output, value.get("", default)))
    return value


def _counterpart_names(
    result0: IterationResult, result1: IterationResult, find: FindOutput | None
) -> Iterator[tuple[str, str]]:
    for index, name0 in enumerate(result0):
        names = _guess_counterpart(name0, index, result1, result0) if find is None else find(name0, index, result1)
        for name1 in names or []:
            if name1 in result1:
                yield name0, name1
            else:
                _log.warning("Output %r is skipped: its counterpart %r is not in %s", name0, name1, result1.runner_name)


def _guess_counterpart(name: str, index: int, where: IterationResult, base: IterationResult) -> list[str]:
    """The counterpart by name, or failing that by a name inside the other, or by place; never one that is taken."""
    if name in where:
        return [name]
    near = [other for other in where if name.lower() in other.lower() or other.lower() in name.lower()]
    found = near[0] if near else (list(where)[index] if index < len(where) else None)
    if found is None or found in base:
        _log.warning("Output %r is skipped: %s has no counterpart for it", name, where.runner_name)
        return []
    _log.warning("Output %r is taken to correspond to %r of %s", name, found, where.runner_name)
    return [found]


def _align_shape(array: Array, shape: tuple[int, ...]) -> Array | None:
    """The array in another shape: its axes permuted if that does it, else its elements in a row; None if it has others."""
    if sorted(array.shape) == sorted(shape):
        left = list(range(array.ndim))
        axes = []
        for dim in shape:
            axes.append(next(axis for axis in left if array.shape[axis] == dim))
            left.remove(axes[-1])
        moved: Array = array.transpose(axes)
        return moved
    return array.reshape(shape) if array.size == math.prod(shape) else None
