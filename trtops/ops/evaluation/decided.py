"""What compare functions decided, as the report that runs are logged with and re-evaluated from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from trtops.comparator.accuracy import AccuracyResults, Match
from trtops.comparator.metric_results import CompareResult, MetricThreshold, OutputCompareResult, SimpleThreshold
from trtops.comparator.report import (
    ComparisonReport,
    OutputComparison,
    OutputTolerances,
    Tolerances,
    compare_outputs,
)
from trtops.comparator.results import RunResults
from trtops.ops.evaluation.check import Evaluation, log_evaluation
from trtops.tracking import schema
from trtops.tracking.base import Run


def log_decided(run: Run, accuracy: AccuracyResults, results: RunResults) -> None:
    """Log every statistic of the first pair as metrics, all numbers as an artifact, and the verdict as it was decided.

    Args:
        run: The run to log to.
        accuracy: What the compare functions found.
        results: The outputs that they found it in.
    """
    log_evaluation(run, Evaluation(report=decided_report(accuracy, results)))
    run.log_text(accuracy.to_json(), schema.Artifact.ACCURACY_POLYGRAPHY)


def decided_report(accuracy: AccuracyResults, results: RunResults) -> ComparisonReport:
    """All statistics of the first pair that was compared, with the verdicts that the compare functions reached.

    Outputs that no function compared are left out. The tolerances are those of the functions, as far as tolerances can
    say it; what they cannot say (a script, indices, perceptual distance) shows in the verdicts alone.

    Args:
        accuracy: What the compare functions found.
        results: The outputs that they found it in.
    """
    pair = next(iter(accuracy[0]))
    found: dict[str, list[Match]] = {}
    for result in accuracy:
        for name, matches in result.matches_by_output(pair).items():
            found.setdefault(name, []).extend(matches)
    report = compare_outputs(results[0][1], results[1][1], _tolerances_of(found))
    outputs = tuple(_as_decided(output, found[output.name]) for output in report.outputs if output.name in found)
    good = all(output.verdict == "good" for output in outputs)
    return dataclasses.replace(report, verdict="good" if good else "bad", outputs=outputs)


def _as_decided(output: OutputComparison, matches: Iterable[Match]) -> OutputComparison:
    if all(map(bool, matches)):
        return dataclasses.replace(output, verdict="good", reasons=())
    reasons = output.reasons or ("a compare function does not take it for a match",)
    return dataclasses.replace(output, verdict="bad", reasons=reasons)


def _tolerances_of(found: Mapping[str, Iterable[Match]]) -> Tolerances:
    """The tolerances that matches were held against, by output; what no tolerance limits is not evaluated."""
    infinities_equal = any(
        match.statistics is not None and match.statistics.infinities_equal
        for matches in found.values()
        for match in matches
        if isinstance(match, OutputCompareResult)
    )
    limits = {name: _limits_of(matches) for name, matches in found.items()}
    alike = len({tuple(each.items()) for each in limits.values()}) == 1
    usual: dict[str, Any] = {"atol": math.inf, "rtol": math.inf}
    if alike:
        usual |= next(iter(limits.values()))
    per_output = {} if alike else {name: OutputTolerances(**each) for name, each in limits.items()}
    return Tolerances(**usual, infinities_equal=infinities_equal, per_output=per_output)


def _limits_of(matches: Iterable[Match]) -> dict[str, Any]:
    """The tolerances that one output was held against, by their names in :class:`Tolerances`."""
    limits: dict[str, Any] = {}
    for match in matches:
        threshold = match.thresholds if isinstance(match, CompareResult) else None
        if isinstance(threshold, SimpleThreshold):
            limits |= dataclasses.asdict(threshold)
        elif isinstance(threshold, MetricThreshold):
            limits |= {metric.tolerance: limit for metric, limit in threshold.limits() if metric.tolerance is not None}
    return limits
