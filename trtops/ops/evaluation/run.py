"""Run: several runners on the same inputs, evaluated against one another and against saved outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtops.backend.runner import BaseRunner
from trtops.comparator.accuracy import AccuracyResults, CompareFunction
from trtops.comparator.comparator import Comparator
from trtops.comparator.results import PostprocessFunction, RunResults
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.record import Record
from trtops.tracking.base import NO_RUN, Tracker, Verdict


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
        check_average: Whether means over all iterations are evaluated, not each one.
        save_accuracy: Where to save all numbers, to be re-evaluated.
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
        if run is not NO_RUN and accuracy is not None and len(accuracy[0]):
            from trtops.ops.evaluation.decided import log_decided  # half of what a run imports, for what is kept alone

            log_decided(run, accuracy, results)
        finish_with(run, result, tracker)
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
            bad = [name for name, matches in result.matches_by_output(pair).items() if not all(map(bool, matches))]
            if bad:
                reasons.append(f"{pair[0]} and {pair[1]} differ in {', '.join(bad)}.")
    return list(dict.fromkeys(reasons))


def _mean_ms(iterations: Sequence[Any]) -> float | None:
    times = [iteration.runtime for iteration in iterations if iteration.runtime is not None]
    return 1e3 * sum(times) / len(times) if times else None
