"""The command ``trtops check accuracy``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtops import comparator
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command
from trtops.cli.logs import log_line, say, say_json
from trtops.comparator.table import METRICS
from trtops.logger import G_LOGGER

_NO_ARRAYS = (
    "the file contains the numbers of a comparison, not the outputs; compare those with "
    "`trtops run --load-outputs A B` and this option"
)
_DECIDED = "this was decided when the outputs were compared"
_NEED_ARRAYS = (
    "--compare-func-script", "--index-tolerance", "--save-heatmaps", "--show-heatmaps", "--save-error-metrics-plot",
    "--show-error-metrics-plot",
)  # fmt: skip
_EARLIER = {
    "--fail-fast": "stop at the first iteration that does not match",
    "--no-shape-check": "compare outputs of different shapes",
    "--infinities-compare-equal": "let infinities of equal sign match",
}

_OPTIONS = {
    "simple": ("rtol", "atol", "check_error_stat", "error_quantile"),
    **{metric.function: (metric.option,) for metric in METRICS if metric.limit is not None},
}
"""The options of each compare function, which select it where no function is named."""


@command(
    Group("comparison", flag("accuracy", "the file")),
    groups.THRESHOLDS.without("--index-tolerance"),
    Group(
        "options of comparing itself",
        *(flag(name, "", refuse=_NO_ARRAYS) for name in _NEED_ARRAYS),
        *(flag(name, text, idle=_DECIDED) for name, text in _EARLIER.items()),
    ),
    groups.JSON,
    examples=(
        "trtops run model.onnx --onnxrt --trt --save-accuracy-results accuracy.json",
        "trtops check accuracy accuracy.json --check-error-stat max --atol 1e-3 --rtol 1e-2",
    ),
)
def accuracy(args: Options) -> Job:
    """Evaluate a saved comparison (of --save-accuracy-results) with other tolerances, without running anything.

    Exits with 1 if it fails.
    """
    names = args.compare or [name for name, flags in _OPTIONS.items() if any(getattr(args, flag) for flag in flags)]
    if "indices" in names:
        raise UsageError("indices saves no numbers to evaluate; compare the outputs with `trtops run --load-outputs`")
    decided = dict.fromkeys(("fail_fast", "no_shape_check", "infinities_compare_equal", "compare_func_script"))
    functions = loading.compare_functions(args.but(**decided, compare=names)) if names else []
    path, average, save, as_json = args.accuracy, bool(args.check_average), args.save_accuracy_results, bool(args.json)

    def run() -> int:
        results = comparator.AccuracyResults.load(path)
        outputs = results.output_names()
        thresholds = [{name: function.thresholds_for(name) for name in outputs} for function in functions]
        if thresholds:
            results.reevaluate(thresholds, "average" if average else None)
        elif average:
            for result in results:
                result.aggregation = "average"
        if save is not None:
            results.save(save)
        lines = list(_verdict_lines(results))
        if as_json:
            say_json({"passed": bool(results), "outputs": lines})
            return 0 if results else 1
        for each in lines:
            say(f"{'PASSED' if each['passed'] else 'FAILED'} {each['runners']} {each['output']}: {each['text']}")
        from trtops.comparator.comparator import log_summary  # imports numpy, which help does not need

        log_summary(results, list(dict.fromkeys(pair for result in results for pair in result)))
        if results:
            log_line("PASSED | Accuracy results passed the requested thresholds.", G_LOGGER.FINISH)
            return 0
        log_line("FAILED | Accuracy results did not pass the requested thresholds.", G_LOGGER.ERROR)
        return 1

    return run


def _verdict_lines(results: Any) -> Iterator[dict[str, Any]]:
    for result in results:
        for pair in result:
            rounds = [result.average_results(pair)] if result.aggregation == "average" else result[pair]
            for index, matches in enumerate(rounds):
                for name, match in matches.items():
                    yield {
                        "runners": f"{pair[0]} vs {pair[1]}",
                        "iteration": index if result.aggregation == "per_sample" else "average",
                        "output": name,
                        "passed": bool(match),
                        "text": str(match) if isinstance(match, bool) else match.summary(),
                    }
