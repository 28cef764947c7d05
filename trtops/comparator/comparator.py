"""Run runners on the same inputs, and compare their outputs."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from trtops import errors
from trtops.comparator.arrays import to_numpy
from trtops.comparator.data_loader import DataLoader, DataLoaderCache
from trtops.comparator.report_lines import START, log_lines, log_statistics, statistics_text, verdict_level
from trtops.comparator.results import IterationResult, PostprocessFunction, RunResults
from trtops.comparator.running import Feeds, Writers, run_in_child, run_to_end, stream
from trtops.comparator.streams import PathLike

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner
    from trtops.comparator.accuracy import AccuracyResults, CompareFunction, RunnerPair
    from trtops.comparator.compare import Matches

Runs: TypeAlias = RunResults | Iterable[RunResults]

_log = logging.getLogger(__name__)


class Comparator:
    """Runs, compares and checks; a namespace of functions."""

    @staticmethod
    def run(
        runners: Sequence[BaseRunner],
        data_loader: Feeds | None = None,
        warm_up: int | None = 0,
        use_subprocess: bool | None = False,
        subprocess_timeout: float | None = None,
        subprocess_polling_interval: float | None = None,
        save_inputs_path: PathLike | None = None,
        save_outputs_path: PathLike | None = None,
        save_input_blob_path: PathLike | None = None,
        streaming: bool | None = False,
    ) -> Any:
        """Run runners on the same inputs.

        Each runner is activated, run through all iterations and deactivated before the next.

        Args:
            runners: The runners.
            data_loader: The inputs of each iteration: arrays by input name (default: random). A
                :class:`DataLoader` first gets the first runner's input metadata.
            warm_up: How many times each runner runs the first inputs before it is timed.
            use_subprocess: Run each runner in its own child process, which has the GPU for itself and cannot take this
                process down. Runners and data loader must be picklable, and a script needs the guard
                ``if __name__ == "__main__":``.
            subprocess_timeout: Seconds after which a child process is killed (default: never).
            subprocess_polling_interval: Accepted and ignored: a child process that dies is noticed at once.
            save_inputs_path: A file for the inputs, or without a suffix a directory with one file per iteration.
            save_outputs_path: The same for the results.
            save_input_blob_path: A directory for the inputs as raw bytes, ``<iteration>/<input>.bin``.
            streaming: Return an iterator of results with one iteration each, which may be overwritten when the next one
                is taken. All runners are active together, and results may be larger than memory.

        Returns:
            The outputs of all iterations by runner, in host memory; or an iterator of these.

        Raises InputError if the inputs do not fit a runner; WorkerError if a child process crashes or takes too long;
        BackendError if a runner fails; ConfigError if the places to save at are the same or not empty, streaming is
        combined with child processes, or a runner cannot be sent to a child process.

        >>> from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
        >>> runners = [OnnxrtRunner(SessionFromOnnx("model.onnx"), name=name) for name in ("first", "second")]
        >>> results = Comparator.run(runners)
        >>> bool(Comparator.compare_accuracy(results))
        True
        """
        loader: Feeds = DataLoader() if data_loader is None else data_loader
        places = (save_inputs_path, save_outputs_path, save_input_blob_path)
        if streaming:
            if use_subprocess:
                raise errors.ConfigError(
                    "streaming and use_subprocess exclude each other: child processes run to the end."
                )
            return stream(runners, loader, warm_up or 0, places)
        writers = Writers(*places)
        cache = DataLoaderCache(loader)
        results = RunResults()
        for runner in runners:
            if use_subprocess:
                iterations = run_in_child(runner, cache, warm_up or 0, subprocess_timeout)
            else:
                iterations = run_to_end(runner, cache, warm_up or 0)
            results.append((runner.name, iterations))
        for feed, run in itertools.zip_longest(cache.cache, results.split()):
            writers.append(feed, run)
        writers.close()
        return results

    @staticmethod
    def postprocess(run_results: Runs, postprocess_func: PostprocessFunction) -> Any:
        """Apply a function to every iteration's outputs; it returns the iteration or another one.

        Results are changed in place, and lists of results, too; for an iterator of results an iterator is returned.
        """
        if isinstance(run_results, RunResults):
            for _, iterations in run_results:
                iterations[:] = map(postprocess_func, iterations)
            return run_results
        if isinstance(run_results, (list, tuple)):
            return [Comparator.postprocess(run, postprocess_func) for run in run_results]
        return _map_stream(run_results, lambda run: Comparator.postprocess(run, postprocess_func))

    @staticmethod
    def default_comparisons(run_results: RunResults) -> list[tuple[int, int]]:
        """Index pairs of the runners to compare by default: each with the next."""
        return list(itertools.pairwise(range(len(run_results))))

    @staticmethod
    def compare_accuracy(
        run_results: Runs | Sequence[Runs],
        fail_fast: bool = False,
        comparisons: Sequence[tuple[int, int]] | None = None,
        compare_func: CompareFunction | Sequence[CompareFunction | None] | None = None,
        check_average: bool = False,
    ) -> AccuracyResults:
        """Compare runners' outputs, iteration by iteration.

        Args:
            run_results: Results; an iterator of results, such as a streaming run; or several of these, whose runners
                are compared with each other.
            fail_fast: Whether to stop after the first iteration that does not match.
            comparisons: Index pairs of runners (default: each with the next).
            compare_func: Called with two iterations, returns a match per output; one or several, which share
                statistics and get a result each. None stands for ``SimpleCompareFunc()``.
            check_average: Evaluate the mean of each number over all iterations instead of each iteration.

        Raises ComparisonError if the runs have different numbers of iterations, or something cannot be compared;
        ConfigError if averages are requested from a function without numbers, or together with ``fail_fast``.
        """
        # Slow to import, and scripts that only run runners need none of it.
        from trtops.comparator.accuracy import AccuracyResult, AccuracyResults
        from trtops.comparator.compare import Cache, PairingCompareFunc, SimpleCompareFunc
        from trtops.comparator.metric_results import CompareResult

        compare_funcs = compare_func if isinstance(compare_func, Sequence) else [compare_func]
        functions = [SimpleCompareFunc() if function is None else function for function in compare_funcs]
        if check_average:
            check_averageable(functions, fail_fast)
        results = [AccuracyResult(aggregation="average" if check_average else "per_sample") for _ in functions]
        pairs: list[RunnerPair] = []
        # Closing it ends the runners of a stream, also if fail_fast leaves the loop.
        with contextlib.closing(_zip_iterations(run_results)) as iterations:
            for index, run in enumerate(iterations):
                index_pairs = list(comparisons) if comparisons is not None else Comparator.default_comparisons(run)
                if not pairs:
                    for runner_index in itertools.chain.from_iterable(index_pairs):
                        if not -len(run) <= runner_index < len(run):
                            raise errors.ConfigError(f"comparisons names runner {runner_index}; there are {len(run)}.")
                    pairs = [(run[first][0], run[second][0]) for first, second in index_pairs]
                    if len(set(pairs)) < len(pairs):  # results of several processes, whose runners have the same names
                        names = list(RunResults().update(run).keys())
                        pairs = [(names[first], names[second]) for first, second in index_pairs]
                    for pair in pairs:
                        log_lines(START, "Accuracy Comparison | {} vs. {}".format(*pair))
                log_lines(logging.INFO, f"Iteration: {index}")
                failed = False
                for (first, second), pair in zip(index_pairs, pairs):
                    result0, result1 = run[first][1][0], run[second][1][0]
                    cache: Cache = {}
                    matches: list[Matches] = []
                    for function in functions:
                        # A subclass in a script may define what a call does.
                        own_call = type(function).__call__ is not PairingCompareFunc.__call__
                        if isinstance(function, PairingCompareFunc) and not own_call:
                            matches.append(function.compare(result0, result1, cache))
                        else:
                            matches.append({})
                            for name, value in function(result0, result1).items():
                                matches[-1][name] = value if isinstance(value, CompareResult) else bool(value)
                    _log_compared(pair, result0, result1, matches)
                    for result, match in zip(results, matches):
                        result.dct.setdefault(pair, []).append(match)
                        failed = failed or not all(map(bool, match.values()))
                if failed and fail_fast:
                    log_lines(logging.ERROR, f"FAILED | Iteration {index} does not match; stopped there")
                    break
        accuracy = AccuracyResults(results)
        log_summary(accuracy, pairs)
        return accuracy

    @staticmethod
    def validate(
        run_results: Runs | Sequence[Runs],
        check_inf: bool | None = False,
        check_nan: bool | None = True,
        fail_fast: bool | None = False,
    ) -> Any:
        """Return True if outputs have no NaN, and with ``check_inf`` no infinities either.

        For an iterator of results an iterator of the same results is returned, which raises ComparisonError at the
        first fault; for a list of results a list of answers.
        """
        nan, inf = check_nan is None or check_nan, bool(check_inf)
        if isinstance(run_results, RunResults):
            log_lines(START, f"Output Validation | Runners: {list(run_results.keys())}")
            valid = True
            for runner, index, output, array, faults in _validated(run_results, nan, inf):
                checks = f"(check_inf={inf}, check_nan={nan})"
                log_lines(START, f"{runner:35} | Iteration {index} | Validating output: {output} {checks}", indent=1)
                if _log.isEnabledFor(logging.INFO):
                    log_lines(logging.INFO, statistics_text(array), indent=2)
                for fault in faults:
                    log_lines(logging.ERROR, fault, indent=2)
                line = f"PASSED | Output: {output} is valid"
                if faults:
                    line = f"FAILED | Errors detected in output: {output}"
                log_lines(verdict_level(not faults), line, indent=2)
                valid = valid and not faults
                if faults and fail_fast:
                    break
            log_lines(verdict_level(valid), f"{'PASSED' if valid else 'FAILED'} | Output Validation", indent=1)
            return valid
        if isinstance(run_results, (list, tuple)):
            return [Comparator.validate(run, check_inf, check_nan, fail_fast) for run in run_results]

        def checked(run: RunResults) -> RunResults:
            for runner, index, output, _, faults in _validated(run, nan, inf):
                if faults:
                    raise errors.ComparisonError(f"{runner}: output {output!r} of iteration {index}: {faults[0]}.")
            return run

        return _map_stream(cast("Iterable[RunResults]", run_results), checked)


def _close(stream: Iterable[RunResults]) -> None:
    """Close an iterator, if it has ``close``; files saved by it are then written."""
    close = getattr(stream, "close", None)
    if callable(close):
        close()


def _map_stream(stream: Iterable[RunResults], change: Any) -> Iterator[RunResults]:
    try:
        yield from map(change, stream)
    finally:
        _close(stream)


def _zip_iterations(runs: Runs | Sequence[Runs]) -> Generator[RunResults, None, None]:
    """The runs side by side, one iteration at a time: results with one iteration of every runner."""
    sources = cast("list[Runs]", list(runs) if isinstance(runs, (list, tuple)) else [runs])
    streams: list[Iterable[RunResults]] = []
    for source in sources:
        streams += [RunResults([pair]).split() for pair in source] if isinstance(source, RunResults) else [source]
    end = object()
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.callback(_close, stream)
        for index, group in enumerate(itertools.zip_longest(*streams, fillvalue=end)):
            if any(run is end for run in group):
                short = ", ".join(str(number) for number, run in enumerate(group) if run is end)
                raise errors.ComparisonError(
                    f"The runs have different numbers of iterations: number {short} (counted from 0) end after "
                    f"{index}. Run all on the same inputs."
                )
            yield RunResults(itertools.chain.from_iterable(cast("Iterable[RunResults]", group)))


def check_averageable(functions: Sequence[CompareFunction], fail_fast: bool) -> None:
    """Raise `ConfigError` unless each function's errors have an average and no iteration will be left out."""
    if fail_fast:
        raise errors.ConfigError("check_average and fail_fast exclude each other: averages need all iterations.")
    for function in functions:
        threshold = None
        with contextlib.suppress(NotImplementedError):
            threshold = getattr(function, "thresholds_for", lambda output: None)("")
        if threshold is None or getattr(threshold, "check_error_stat", "") == "elemwise":
            raise errors.ConfigError(
                f"check_average needs a number to average, and {type(function).__name__} gives none. Give it a "
                "thresholds_for(output_name) or, instead of 'elemwise', the error statistic max, mean, median or "
                "quantile; or evaluate every iteration."
            )


def log_summary(accuracy: AccuracyResults, pairs: Sequence[RunnerPair]) -> None:
    """Log how many iterations of each pair of runners match.

    An iteration, or an output's average, passes if all compare functions pass it.
    """
    for pair in pairs:
        try:
            matches_by_function = [result.matches_by_output(pair) for result in accuracy]
        except errors.ComparisonError:  # the verdict raises the same error
            continue
        if any(result.aggregation == "average" for result in accuracy):
            names = dict.fromkeys(itertools.chain.from_iterable(matches_by_function))
            passed = []
            for name in names:
                passed.append(all(all(matches.get(name, ())) for matches in matches_by_function))
            text = f"Passed: {sum(passed)}/{len(passed)} outputs"
        else:
            passed = []
            for iteration in zip(*(result[pair] for result in accuracy)):
                passed.append(all(all(matches.values()) for matches in iteration))
            rate = 100 * sum(passed) / len(passed) if passed else 100.0
            text = f"Passed: {sum(passed)}/{len(passed)} iterations | Pass Rate: {rate:.2f}%"
        log_lines(verdict_level(all(passed)), f"Accuracy Summary | {pair[0]} vs. {pair[1]} | {text}")


def _log_compared(
    pair: RunnerPair, result0: IterationResult, result1: IterationResult, matches_by_function: Sequence[Matches]
) -> None:
    """Log statistics of the compared outputs, once for all compare functions."""
    if not _log.isEnabledFor(logging.INFO) or not matches_by_function:
        return
    for name, match in matches_by_function[0].items():
        name1 = getattr(match, "output1_name", name)
        if name not in result0 or name1 not in result1:
            continue
        failed = not all(bool(matches.get(name, True)) for matches in matches_by_function)
        a, b = to_numpy(result0[name], f"Output {name!r}"), to_numpy(result1[name1], f"Output {name1!r}")
        text = statistics_text(a)
        log_statistics(f"{pair[0]}: {name}", a, failed=failed, indent=1, among=b, text=text)
        same = (a.dtype, a.shape) == (b.dtype, b.shape) and getattr(match, "max_absdiff", None) == 0
        log_statistics(f"{pair[1]}: {name1}", b, failed=failed, indent=1, among=a, text=text if same else None)


def _validated(run: RunResults, nan: bool, inf: bool) -> Iterator[tuple[str, int, str, Any, list[str]]]:
    """Every output of a run: runner, iteration, name, array, and the faults of its values."""
    for runner, iterations in run:
        for index, iteration in enumerate(iterations):
            for output, value in iteration.items():
                array, faults = to_numpy(value, f"Output {output!r}"), []
                if array.dtype.kind not in "biuSUO":
                    numbers = array if array.dtype.kind == "f" else array.astype(np.float32)
                    for name, rejected, is_fault in (("NaN", nan or inf, np.isnan), ("Inf", inf, np.isinf)):
                        count = np.count_nonzero(is_fault(numbers)) if rejected else 0
                        if count:
                            faults.append(
                                f"{name} Detected | {count} of {array.size} elements of this output are {name}"
                            )
                yield runner, index, output, array, faults
