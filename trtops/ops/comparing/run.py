"""Run several runners on the same inputs, and compare their outputs with one another and with saved outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.runner import BaseRunner
from trtops.comparator.comparator import Comparator
from trtops.comparator.results import RunResults
from trtops.ops.arguments import checked_arguments
from trtops.ops.result import OpResult, op_run
from trtops.record import Config, setting
from trtops.tables import counted, listed, markdown_table
from trtops.verdict import Verdict

if TYPE_CHECKING:
    from trtops.comparator.accuracy import AccuracyResults, CompareFunction, Match
    from trtops.comparator.report import ComparisonReport
    from trtops.comparator.results import PostprocessFunction
    from trtops.tracking.base import Tracker


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """Options for running runners and using their outputs, with the words of ``trtops run``."""

    warm_up: int = 0  # inferences of each runner before it is timed
    use_subprocess: bool = False  # a child process for each runner
    save_inputs: str | None = setting(None, file="writes")  # a file, or a folder with one file per iteration
    save_input_blob: str | None = setting(None, file="writes")  # a folder for raw bytes
    save_outputs: str | None = setting(None, file="writes")  # like save_inputs
    load_outputs: tuple[str, ...] = setting((), file="reads")  # saved outputs to compare as well, after the runners
    validate: bool = False  # whether NaN and infinities in outputs are faults
    fail_fast: bool = False  # whether to stop at the first iteration that does not match
    check_average: bool = False  # whether to evaluate means over all iterations instead of each iteration
    save_accuracy: str | None = setting(None, file="writes")  # a file for all numbers, to re-evaluate them later


@dataclass(frozen=True, kw_only=True)
class RunResult(OpResult):
    """The result of running and comparing: ``bad`` for different outputs, and for forbidden NaN or infinities."""

    verdict: Verdict
    reasons: tuple[str, ...]
    runners: tuple[str, ...]  # names of the runners and of the saved results, in the order compared
    iterations: tuple[int, ...]  # the number of each
    mean_ms: tuple[float | None, ...]  # of each, where it is known
    agreements: tuple[str, ...] = ()  # of each pair of runners whose outputs match, with the numbers of an output

    @property
    def because(self) -> tuple[str, ...]:
        """How runners differ, or else agree."""
        return self.reasons or self.agreements or ("nothing was compared",)

    @property
    def verdict_text(self) -> str:
        """The verdict; "none" if a single runner was compared with nothing."""
        return self.verdict if self.reasons or self.agreements else "none"

    @property
    def figures(self) -> str:
        """The mean latency of each runner."""
        parts = []
        for name, count, mean in zip(self.runners, self.iterations, self.mean_ms):
            each = "" if mean is None else f", {mean:.4g} ms each"
            parts.append(f"{name}: {counted(count, 'iteration')}{each}")
        return "; ".join(parts)

    def body(self) -> Iterable[str]:
        """A row for each runner."""
        means = ("-" if mean is None else f"{mean:.4g} ms" for mean in self.mean_ms)
        rows = zip((f"`{name}`" for name in self.runners), map(str, self.iterations), means)
        return [markdown_table(("runner", "iterations", "mean"), rows)]


@checked_arguments
def run_models(
    runners: Sequence[BaseRunner],
    config: RunConfig = RunConfig(),
    *,
    data_loader: Iterable[Mapping[str, Any]] | None = None,
    compare: Sequence[CompareFunction] | None = None,
    postprocess: Sequence[PostprocessFunction] = (),
    source: str | Path = "",
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
) -> RunResult:
    """Run runners on the same inputs, compare each with the next, and with saved outputs.

    All of ``compare`` must match; the default is Polygraphy's, 1e-5 for each element. ``postprocess`` is applied to
    every iteration's outputs before. Without a tracker nothing is logged; with one the first pair of runners is, to an
    experiment named after ``source``, the file that the runners run, unless it is given.

    >>> from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    >>> runners = [OnnxrtRunner(SessionFromOnnx("model.onnx"), name=name) for name in ("first", "second")]
    >>> run_models(runners).verdict
    'good'
    """
    path = Path(source)
    title = f"run {path.name}".strip()
    experiment = experiment or path.stem or "run"
    with op_run(tracker, experiment, title, kind="compare", model=source or None, tags=tags) as op:
        run = op.run
        run.log_params({**(params or {}), "run": config})
        results, reasons, agreements, accuracy = RunResults(), list[str](), list[str](), None
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
            if not all(map(len, results.values())):
                raise errors.InputError("Nothing was run: the data has no iteration; expected at least one.")
        if config.validate and not Comparator.validate(results, True, True, config.fail_fast):
            reasons.append("Outputs hold NaN or infinities.")
        for saved in config.load_outputs:
            results.update(RunResults.load(saved))
        for function in postprocess:
            Comparator.postprocess(results, function)
        if len(results) > 1:
            accuracy = Comparator.compare_accuracy(
                results, fail_fast=config.fail_fast, compare_func=compare, check_average=config.check_average
            )
            if config.save_accuracy is not None:
                accuracy.save(config.save_accuracy)
            for result in accuracy:
                for pair in result:
                    matches = result.matches_by_output(pair)
                    bad = [name for name, output_matches in matches.items() if not all(map(bool, output_matches))]
                    compared = f"{pair[0]} and {pair[1]} {'differ' if bad else 'agree'} in {listed(bad or matches)}"
                    (reasons if bad else agreements).append(f"{compared}{_numbers(matches, bad)}")
            reasons = list(dict.fromkeys(reasons))  # several functions may find the same outputs
        mean_ms: list[float | None] = []
        for iterations in results.values():
            times = [iteration.runtime for iteration in iterations if iteration.runtime is not None]
            mean_ms.append(1e3 * sum(times) / len(times) if times else None)
        ended = RunResult(
            title=title,
            verdict="bad" if reasons else "good",
            reasons=tuple(reasons),
            runners=tuple(results.keys()),
            iterations=tuple(map(len, results.values())),
            mean_ms=tuple(mean_ms),
            agreements=tuple(agreements),
        )
        if run.id and accuracy is not None and len(accuracy[0]):
            # Half of the imports of `trtops run`, needed only for logging.
            from trtops.ops.evaluation.check import Evaluation, log_evaluation
            from trtops.tracking import schema

            log_evaluation(run, Evaluation(report=report_of(accuracy, results)))
            run.log_text(accuracy.to_json(), schema.Artifact.ACCURACY_POLYGRAPHY)
        return op.finish(ended)


def _numbers(matches: Mapping[str, Sequence[Any]], bad: Sequence[str]) -> str:
    """Return the numbers of the first mismatch, or else of the first output, with its limits."""
    from trtops.comparator.metric_results import CompareResult, OutputCompareResult

    name = next(iter(bad or matches), None)
    if name is None:
        return ""
    match = next((match for match in matches[name] if bool(match) != bool(bad)), matches[name][0])
    if isinstance(match, OutputCompareResult) and match.max_absdiff is not None:
        limits = (
            f"{match.thresholds.check_error_stat} within atol {match.thresholds.atol:g}, rtol {match.thresholds.rtol:g}"
        )
        return f" (max abs {match.max_absdiff:.4g}, max rel {match.max_reldiff:.4g}; {limits})"
    return f" ({match.summary()})" if isinstance(match, CompareResult) else ""


def report_of(accuracy: AccuracyResults, results: RunResults) -> ComparisonReport:
    """The comparison report of the first pair of runners, with the verdicts of the compare functions.

    Outputs that no function compared are left out. The tolerances are those of the functions; limits that none sets are
    infinite. Functions without tolerances (scripts, indices) show in the verdicts only.
    """
    # Running models without comparing or recording them needs neither.
    from trtops.comparator.metric_results import CompareResult, MetricThreshold, OutputCompareResult, SimpleThreshold
    from trtops.comparator.report import OutputTolerances, Tolerances, compare_outputs

    pair = next(iter(accuracy[0]))
    matches_by_output: dict[str, list[Match]] = {}
    for result in accuracy:
        for name, matches in result.matches_by_output(pair).items():
            matches_by_output.setdefault(name, []).extend(matches)
    per_output, infinities_equal = {}, False
    for name, matches in matches_by_output.items():
        limits: dict[str, Any] = {}
        for match in matches:
            threshold = match.thresholds if isinstance(match, CompareResult) else None
            if isinstance(threshold, SimpleThreshold):
                limits |= dataclasses.asdict(threshold)
            elif isinstance(threshold, MetricThreshold):
                limits |= {str(metric.tolerance): limit for metric, limit in threshold.limits() if metric.tolerance}
            if isinstance(match, OutputCompareResult) and match.statistics is not None:
                infinities_equal = infinities_equal or match.statistics.infinities_equal
        per_output[name] = OutputTolerances(**limits)
    tolerances = Tolerances(atol=math.inf, rtol=math.inf, infinities_equal=infinities_equal, per_output=per_output)
    if len(set(per_output.values())) == 1:
        tolerances = tolerances.of(next(iter(per_output)))
    report = compare_outputs(results[0][1], results[1][1], tolerances)
    outputs = []
    for output in report.outputs:
        if output.name in matches_by_output:
            good = all(map(bool, matches_by_output[output.name]))
            reasons = () if good else output.reasons or ("a compare function does not match",)
            outputs.append(dataclasses.replace(output, verdict="good" if good else "bad", reasons=reasons))
    verdict: Verdict = "good" if all(output.verdict == "good" for output in outputs) else "bad"
    return dataclasses.replace(report, verdict=verdict, outputs=tuple(outputs))
