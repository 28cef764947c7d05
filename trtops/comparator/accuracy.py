"""Results of comparing runs: matches by pair of runners, iteration and output, saved in Polygraphy's format."""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from trtops import errors
from trtops.comparator.metric_results import CompareResult
from trtops.comparator.results import IterationResult, SavedList
from trtops.json import Decoder, Encoder

if TYPE_CHECKING:
    from typing_extensions import Self

    from trtops.comparator.metric_results import Threshold

Aggregation = Literal["per_sample", "average"]
Match: TypeAlias = CompareResult | bool
RunnerPair: TypeAlias = tuple[str, str]
Thresholds: TypeAlias = "Threshold | Mapping[str, Threshold]"


class AccuracyResult(UserDict[RunnerPair, list[dict[str, Match]]]):
    """Results of one compare function: a match per output, for each pair of runners and iteration; true if all match.

    A match is true or false, or an object with numbers and a truth value, such as an
    :class:`~trtops.comparator.metric_results.OutputCompareResult`. ``aggregation`` says what is evaluated: every
    iteration (``per_sample``), or each number's mean over all iterations (``average``).
    """

    def __init__(
        self, dct: Mapping[RunnerPair, list[dict[str, Match]]] | None = None, aggregation: Aggregation = "per_sample"
    ) -> None:
        """Hold matches by pair of runners' names."""
        super().__init__(dct or {})
        self.aggregation: Aggregation = aggregation

    @property
    def dct(self) -> dict[RunnerPair, list[dict[str, Match]]]:
        """The matches."""
        return self.data

    def __bool__(self) -> bool:
        return all(all(map(all, self.matches_by_output(pair).values())) for pair in self)

    def __repr__(self) -> str:
        return f"AccuracyResult({self.dct!r}, aggregation={self.aggregation!r})"

    def _iterations(self, pair: RunnerPair | None) -> list[dict[str, Match]]:
        """The iterations of a pair of runners (default: the first pair)."""
        if pair is None and not self.dct:
            raise errors.ComparisonError("Nothing was compared: there are no pairs of runners.")
        return self.dct[next(iter(self.dct)) if pair is None else pair]

    def stats(self, runner_pair: RunnerPair | None = None) -> tuple[int, int, int]:
        """The numbers of matched, mismatched and all iterations (default: of the first pair)."""
        iterations = self._iterations(runner_pair)
        matched = sum(all(matches.values()) for matches in iterations)
        return matched, len(iterations) - matched, len(iterations)

    def percentage(self, runner_pair: RunnerPair | None = None) -> float:
        """The share of matched iterations, between 0 and 1; 1 without iterations."""
        if not self.dct:
            return 1.0
        matched, _, total = self.stats(runner_pair)
        return matched / total if total else 1.0

    def _all_matches(self) -> Iterator[tuple[str, Match]]:
        """All matches with the outputs' names, pair by pair and iteration by iteration."""
        for iterations in self.values():
            for matches in iterations:
                yield from matches.items()

    def output_names(self) -> list[str]:
        """The compared outputs, in order of appearance."""
        return list(dict(self._all_matches()))

    def metric_fields(self) -> list[str]:
        """Names of the numbers of the matches; empty if they are truth values."""
        return next((m.metric_fields() for _, m in self._all_matches() if not isinstance(m, bool)), [])

    def matches_by_output(self, runner_pair: RunnerPair) -> dict[str, list[Match]]:
        """The matches of each output: of every iteration, or their mean if ``aggregation`` is ``average``."""
        if self.aggregation == "average":
            return {name: [match] for name, match in self.average_results(runner_pair).items()}
        matches_by_name: dict[str, list[Match]] = {}
        for matches in self[runner_pair]:
            for name, match in matches.items():
                matches_by_name.setdefault(name, []).append(match)
        return matches_by_name

    def average_results(self, runner_pair: RunnerPair | None = None) -> dict[str, CompareResult]:
        """Each output's numbers averaged over the iterations, with their thresholds (default: of the first pair).

        Raises ComparisonError if an iteration has no numbers for an output, as after a mismatch of shapes.
        """
        iterations = self._iterations(runner_pair)
        averages = {}
        for name in dict.fromkeys(itertools.chain.from_iterable(iterations)):
            results: list[CompareResult] = []
            output_matches = [matches[name] for matches in iterations if name in matches]
            for match in output_matches:
                results += [] if isinstance(match, bool) else [match]
            if len(results) < len(output_matches) or not results[0].metric_fields():
                raise errors.ComparisonError(
                    f"Output {name!r} cannot be averaged: at least one iteration has no numbers for it (its shapes "
                    "differed, or the compare function returns truth values). Evaluate per sample instead."
                )
            averages[name] = results[0].average(results)
        return averages

    def describe_average(self, runner_pair: RunnerPair | None = None) -> dict[str, tuple[str, bool]]:
        """A line for the log and a verdict per output of :meth:`average_results`; a documented method of Polygraphy."""
        lines: dict[str, tuple[str, bool]] = {}
        for name, result in self.average_results(runner_pair).items():
            line = result.describe()
            if line is not None:
                lines[name] = line
        return lines

    def reevaluate(self, thresholds: Thresholds, aggregation: Aggregation | None = None) -> AccuracyResult:
        """Re-evaluate the stored numbers by other thresholds, in place, and return the result itself.

        ``thresholds`` are one for all outputs, or by output with ``""`` for the others; ``aggregation`` stays unless it
        is given. ComparisonError if an output has no threshold, or no numbers for it; nothing is changed then.
        """
        # All are checked first, so that nothing is changed if one does not fit.
        changes: list[tuple[CompareResult, Threshold]] = []
        for name, match in self._all_matches():
            if isinstance(match, bool) or not match.metric_fields():
                raise errors.ComparisonError(
                    f"Output {name!r} cannot be re-evaluated: no numbers were stored for it (its shapes differed, or "
                    "the compare function returns truth values). Compare the outputs again."
                )
            threshold = thresholds.get(name, thresholds.get("")) if isinstance(thresholds, Mapping) else thresholds
            if threshold is None:
                raise errors.ComparisonError(
                    f"There is no threshold for output {name!r}. Add it, or one under '' for all others."
                )
            recorded = match.metric_fields()
            missing = ", ".join(name for name in threshold.metric_fields() if name not in recorded)
            if missing:
                raise errors.ComparisonError(
                    f"{type(threshold).__name__} needs {missing}; the results have {', '.join(recorded)}."
                )
            changes.append((match, threshold))
        for match, threshold in changes:
            match.set_thresholds(threshold)
        self.aggregation = aggregation or self.aggregation
        return self


class AccuracyResults(SavedList[AccuracyResult]):
    """One :class:`AccuracyResult` per compare function; true if each is.

    With a single result, ``results[pair]``, ``stats``, ``percentage`` and the methods of a mapping are those of the
    result, as in Polygraphy 0.49.
    """

    _DESCRIPTION = "accuracy results"

    def __bool__(self) -> bool:
        return all(map(bool, self.data))

    def __getitem__(self, key: Any) -> Any:
        return self.data[key] if isinstance(key, (int, slice)) else self._only_result()[key]

    def _only_result(self) -> AccuracyResult:
        if len(self.lst) != 1:
            raise errors.ComparisonError(
                f"There are {len(self.lst)} compare functions' results; choose one, such as results[0]."
            )
        return self.lst[0]

    def __getattr__(self, name: str) -> Any:
        if name not in ("keys", "values", "items", "stats", "percentage"):
            raise AttributeError(f"AccuracyResults has no attribute {name!r}")
        return getattr(self._only_result(), name)

    def output_names(self) -> list[str]:
        """The outputs compared by any function, in order of appearance."""
        return list(dict.fromkeys(itertools.chain.from_iterable(map(AccuracyResult.output_names, self.lst))))

    def reevaluate(
        self, thresholds: Thresholds | Sequence[Thresholds], aggregation: Aggregation | None = None
    ) -> AccuracyResults:
        """Re-evaluate the stored numbers by other thresholds, in place; results without a threshold are dropped.

        ``thresholds`` are one or several as in :meth:`AccuracyResult.reevaluate`, each for the result that has its
        numbers. ComparisonError if one fits no result, or not all of one.
        """
        several = isinstance(thresholds, Sequence) and not isinstance(thresholds, Mapping)
        requested_thresholds = cast("Sequence[Thresholds]", thresholds if several else [thresholds])
        # All thresholds are matched first, so that nothing is changed if one fits no result.
        left, chosen = list(self.lst), []
        for threshold in requested_thresholds:
            if isinstance(threshold, Mapping) and not threshold:
                raise errors.ComparisonError("The thresholds by output are empty.")
            fields = (next(iter(threshold.values())) if isinstance(threshold, Mapping) else threshold).metric_fields()
            match = next((r for r in left if r.metric_fields() == fields), None)
            if match is None:
                recorded = "; ".join(", ".join(r.metric_fields()) or "no numbers" for r in self.lst)
                raise errors.ComparisonError(f"No result has {', '.join(fields)}; the results have: {recorded}.")
            left.remove(match)
            chosen.append((match, threshold))
        self.data = [match.reevaluate(threshold, aggregation) for match, threshold in chosen]
        return self

    @classmethod
    def _expect(cls, decoded: object, where: str) -> Self:
        return super()._expect(cls([decoded]) if isinstance(decoded, AccuracyResult) else decoded, where)


Encoder.register(AccuracyResult)(
    lambda result: {"lst": [[list(pair), its] for pair, its in result.items()], "aggregation": result.aggregation}
)


@Decoder.register(AccuracyResult)
def _decode_accuracy(members: dict[str, Any]) -> AccuracyResult:
    if members["aggregation"] not in ("per_sample", "average"):
        raise errors.FormatError(f"the aggregation of an AccuracyResult is {members['aggregation']!r:.80}")
    content = {(str(first), str(second)): list(iterations) for (first, second), iterations in members["lst"]}
    for matches in itertools.chain.from_iterable(content.values()):
        if not isinstance(matches, dict) or not all(isinstance(m, (bool, CompareResult)) for m in matches.values()):
            raise errors.FormatError(f"an AccuracyResult holds {matches!r:.80}; expected matches by output")
    return AccuracyResult(content, members["aggregation"])


Encoder.register(AccuracyResults)(lambda results: {"lst": results.lst})


@Decoder.register(AccuracyResults)
def _decode_accuracies(members: dict[str, Any]) -> AccuracyResults:
    results = members["lst"]
    if not all(isinstance(result, AccuracyResult) for result in results):
        raise errors.FormatError("an AccuracyResults holds something else than AccuracyResults")
    return AccuracyResults(results)


CompareFunction: TypeAlias = Callable[[IterationResult, IterationResult], Mapping[str, Match]]
