"""Run: several runners on the same inputs, judged against one another and against saved outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtops.backend.runner import BaseRunner
from trtops.comparator.accuracy import AccuracyResult, AccuracyResults, CompareFunction, Match, RunnerPair
from trtops.comparator.comparator import Comparator
from trtops.comparator.judgements import CompareResult, MetricThreshold, OutputCompareResult, SimpleThreshold
from trtops.comparator.report import (
    ComparisonReport,
    OutputComparison,
    OutputTolerances,
    Tolerances,
    compare_outputs,
)
from trtops.comparator.results import PostprocessFunction, RunResults
from trtops.ops.judging.judgement import Judgement, log_judgement
from trtops.ops.result import OpResult, op_run
from trtops.record import Record
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker, Verdict


@dataclass(frozen=True, kw_only=True)
class RunConfig(Record):
    """How runners are run, and what is done with their outputs.

    Attributes:
        warm_up: Inferences of each runner before it is timed.
        use_subprocess: Whether each runner runs in a child process of its own.
        save_inputs: Where to save the inputs: a file, or a folder with one file per iteration.
        save_input_blob: A folder for the inputs as raw bytes.
        save_outputs: Where to save the outputs, likewise; loaded ones are not among them.
        load_outputs: Saved outputs that are compared as well, behind the runners.
        validate: Whether NaN and infinities in outputs are faults.
        fail_fast: Whether to stop at the first iteration that does not match.
        check_average: Whether means over all iterations are judged, not each one.
        save_accuracy: Where to save all numbers, to be judged again.
    """

    warm_up: int = 0
    use_subprocess: bool = False
    save_inputs: str | None = None
    save_input_blob: str | None = None
    save_outputs: str | None = None
    load_outputs: tuple[str, ...] = ()
    validate: bool = False
    fail_fast: bool = False
    check_average: bool = False
    save_accuracy: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult(OpResult):
    """What came out.

    Attributes:
        verdict: ``bad`` if outputs differ, or hold what they must not.
        reasons: Why, one sentence each.
        runners: Names of the runners and of the saved results, in the order compared.
        iterations: How many iterations each has.
        mean_ms: Mean inference time of each, where known.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    runners: tuple[str, ...]
    iterations: tuple[int, ...]
    mean_ms: tuple[float | None, ...]

    def body(self) -> Iterable[str]:
        """Why outputs differ, and a row for each runner."""
        yield from (f"- {reason}" for reason in self.reasons)
        yield from ("", "| runner | iterations | mean |", "|---|---|---|")
        for name, count, mean in zip(self.runners, self.iterations, self.mean_ms):
            yield f"| `{name}` | {count} | {'-' if mean is None else f'{mean:.4g} ms'} |"


def run_models(
    runners: Sequence[BaseRunner],
    config: RunConfig | None = None,
    *,
    data_loader: Iterable[Mapping[str, Any]] | None = None,
    compare: Sequence[CompareFunction] | None = None,
    postprocess: Sequence[PostprocessFunction] = (),
    model: str | Path = "",
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
) -> RunResult:
    """Run runners on the same inputs, compare each with the next, and with saved outputs.

    Args:
        runners: The runners; none compares saved outputs only.
        config: What to do.
        data_loader: Inputs of each iteration; random unless given.
        compare: Compare functions, all of which must agree; Polygraphy's default, 1e-5 for each element, unless given.
        postprocess: Applied to every iteration's outputs before they are compared.
        model: The model's file, if all is about one; it names the run.
        tracker: The memory; nothing is kept without one. What is kept of a comparison is what the compare functions
            decided, of the first two runners or saved outputs.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of the run.
        params: Further params of the run.

    Raises:
        InputError: If the inputs do not fit a runner.
        BackendError: If a runner fails.
        IterationMismatchError: If saved outputs have another number of iterations.
        FormatError: If saved outputs cannot be read.
    """
    config = RunConfig() if config is None else config
    path = Path(model)
    title = f"run {path.name}".strip()
    experiment = experiment or path.stem or "run"
    with op_run(tracker, experiment, title, kind="compare", model=model or None, tags=tags) as run:
        run.log_params({**(params or {}), **{f"run.{name}": value for name, value in config.to_dict().items()}})
        results, accuracy, reasons = _run_and_compare(runners, config, data_loader, compare, postprocess)
        result = RunResult(
            title=title,
            verdict="bad" if reasons else "good",
            reasons=tuple(reasons),
            runners=tuple(results.keys()),
            iterations=tuple(len(iterations) for iterations in results.values()),
            mean_ms=tuple(_mean_ms(iterations) for iterations in results.values()),
        )
        if accuracy is not None and len(accuracy[0]):
            _log_comparison(run, accuracy, results, result)
        run.finish(result.verdict)
        return result.kept_in(run, experiment)


def _run_and_compare(
    runners: Sequence[BaseRunner],
    config: RunConfig,
    data_loader: Iterable[Mapping[str, Any]] | None,
    compare: Sequence[CompareFunction] | None,
    postprocess: Sequence[PostprocessFunction],
) -> tuple[RunResults, AccuracyResults | None, list[str]]:
    """The outputs, what the compare functions found (None if there was nothing to compare), and what is wrong."""
    results = RunResults()
    if runners:
        results = Comparator.run(
            runners,
            data_loader=data_loader,
            warm_up=config.warm_up,
            use_subprocess=config.use_subprocess,
            save_inputs_path=config.save_inputs,
            save_input_blob_path=config.save_input_blob,
            save_outputs_path=config.save_outputs,
        )
    reasons = []
    if config.validate and not Comparator.validate(results, check_inf=True, check_nan=True, fail_fast=config.fail_fast):
        reasons.append("Outputs hold NaN or infinities.")
    for path in config.load_outputs:
        results.extend(RunResults.load(path).items())
    for function in postprocess:
        Comparator.postprocess(results, function)
    if len(results) < 2:
        return results, None, reasons
    accuracy = Comparator.compare_accuracy(
        results, fail_fast=config.fail_fast, compare_func=compare, check_average=config.check_average
    )
    if config.save_accuracy is not None:
        accuracy.save(config.save_accuracy)
    return results, accuracy, reasons + _describe_differences(accuracy)


def _describe_differences(accuracy: AccuracyResults) -> list[str]:
    """A sentence per pair of runners, and compare function, that do not agree."""
    reasons = []
    for result in accuracy:
        for pair in result:
            bad = [name for name, matches in _matches_by_output(result, pair).items() if not all(map(bool, matches))]
            if bad:
                reasons.append(f"{pair[0]} and {pair[1]} differ in {', '.join(bad)}.")
    return list(dict.fromkeys(reasons))


def _matches_by_output(result: AccuracyResult, pair: RunnerPair) -> dict[str, list[Match]]:
    """What one compare function says of each output: of every iteration, or of their mean where that is judged."""
    if result.aggregation == "average":
        return {name: [match] for name, match in result.average_results(pair).items()}
    found: dict[str, list[Match]] = {}
    for matches in result[pair]:
        for name, match in matches.items():
            found.setdefault(name, []).append(match)
    return found


def _mean_ms(iterations: Sequence[Any]) -> float | None:
    times = [iteration.runtime for iteration in iterations if iteration.runtime is not None]
    return 1e3 * sum(times) / len(times) if times else None


def _log_comparison(run: Run, accuracy: AccuracyResults, results: RunResults, result: RunResult) -> None:
    """Log every statistic of the first pair as metrics, all numbers as an artifact, and the verdict as it was decided."""
    if run is NO_RUN:
        return
    report = decided_report(accuracy, results)
    log_judgement(run, Judgement(report=report), verdict=result.verdict, reasons=result.reasons)
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
        for name, matches in _matches_by_output(result, pair).items():
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
    """The tolerances that matches were held against, by output; what no tolerance limits is not judged."""
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
