"""Run: several runners on the same inputs, judged against one another and against saved outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtops.backend.runner import BaseRunner
from trtops.comparator.accuracy import AccuracyResults, CompareFunction
from trtops.comparator.comparator import Comparator
from trtops.comparator.results import PostprocessFunction, RunResults
from trtops.record import Record
from trtops.tracking.base import NO_RUN, Run

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Record):
    """How runners are run, and what is done with what they say.

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
class RunResult(Record):
    """What came out.

    Attributes:
        verdict: ``bad`` if outputs differ, or hold what they must not.
        reasons: Why, one sentence each.
        runners: Names of the runners and of the saved results, in the order compared.
        iterations: How many iterations each has.
        mean_ms: Mean inference time of each, where known.
        run_id: The run that remembers it; empty if none does.
    """

    verdict: Literal["good", "bad"]
    reasons: tuple[str, ...]
    runners: tuple[str, ...]
    iterations: tuple[int, ...]
    mean_ms: tuple[float | None, ...]
    run_id: str = ""


def run_models(
    runners: Sequence[BaseRunner],
    config: RunConfig | None = None,
    *,
    data_loader: Iterable[Mapping[str, Any]] | None = None,
    compare: Sequence[CompareFunction] | None = None,
    postprocess: Sequence[PostprocessFunction] = (),
    run: Run = NO_RUN,
) -> RunResult:
    """Run runners on the same inputs, compare each with the next, and with saved outputs.

    Args:
        runners: The runners; none compares saved outputs only.
        config: What to do.
        data_loader: Inputs of each iteration; random unless given.
        compare: Compare functions, all of which must agree; the field's default, 1e-5 for each element, unless given.
        postprocess: Applied to every iteration's outputs before they are compared.
        run: Gets numbers and artifacts; it is not ended.

    Raises:
        InputError: If the inputs do not fit a runner.
        BackendError: If a runner fails.
        IterationMismatchError: If saved outputs have another number of iterations.
        FormatError: If saved outputs cannot be read.
    """
    config = RunConfig() if config is None else config
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
    if len(results) > 1:
        accuracy = Comparator.compare_accuracy(
            results, fail_fast=config.fail_fast, compare_func=compare, check_average=config.check_average
        )
        reasons += _differences(accuracy)
        if config.save_accuracy is not None:
            accuracy.save(config.save_accuracy)
        _log(run, accuracy, results)
    return RunResult(
        verdict="bad" if reasons else "good",
        reasons=tuple(reasons),
        runners=tuple(results.keys()),
        iterations=tuple(len(iterations) for iterations in results.values()),
        mean_ms=tuple(_mean_ms(iterations) for iterations in results.values()),
        run_id=run.id,
    )


def _differences(accuracy: AccuracyResults) -> list[str]:
    """A sentence per pair of runners, and compare function, that do not agree."""
    reasons = []
    for result in accuracy:
        for pair in result:
            if result.aggregation == "average":
                bad = [name for name, found in result.average_results(pair).items() if not found]
            else:
                bad = list(dict.fromkeys(n for matches in result[pair] for n, found in matches.items() if not found))
            if bad:
                reasons.append(f"{pair[0]} and {pair[1]} differ in {', '.join(bad)}.")
    return list(dict.fromkeys(reasons))


def _mean_ms(iterations: Sequence[Any]) -> float | None:
    times = [iteration.runtime for iteration in iterations if iteration.runtime is not None]
    return 1e3 * sum(times) / len(times) if times else None


def _log(run: Run, accuracy: AccuracyResults, results: RunResults) -> None:
    """Keep every statistic of the first pair as metrics, and all numbers as an artifact."""
    if run is NO_RUN:
        return
    from trtops.comparator.report import compare_outputs
    from trtops.ops.judging.judgement import Judgement, log_judgement

    (_, first), (_, second) = results[0], results[1]
    log_judgement(run, Judgement(report=compare_outputs(first, second)))
    run.log_text(accuracy.to_json(), "accuracy/results.polygraphy.json")
