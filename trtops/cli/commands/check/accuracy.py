"""Re-evaluate a saved comparison (of --save-accuracy-results) by other tolerances, without running anything.

Exits with 1 if it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtops import comparator
from trtops.cli import groups, loading
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json, tell
from trtops.cli.script import Call, Maker
from trtops.comparator.table import METRICS
from trtops.logger import G_LOGGER

_NO_ARRAYS = (
    "the file has the numbers of a comparison, and not the outputs; compare those by `trtops run --load-outputs A B` "
    "with this option"
)
_DECIDED = "that was decided when the outputs were compared"
_NEED_ARRAYS = (
    "--compare-func-script", "--index-tolerance", "--save-heatmaps", "--show-heatmaps", "--save-error-metrics-plot",
    "--show-error-metrics-plot",
)  # fmt: skip
GROUPS = (
    Group("comparison", (Flag(names=("accuracy",), help="the file"),)),
    groups.THRESHOLDS.without("--index-tolerance"),
    Group(
        "options of comparing itself",
        (
            *(Flag(names=(name,), takes="switch", help="", refuse=_NO_ARRAYS) for name in _NEED_ARRAYS),
            *(
                Flag(names=(name,), takes="switch", help=text, idle=_DECIDED)
                for name, text in (
                    ("--fail-fast", "stop at the first iteration that does not match"),
                    ("--no-shape-check", "compare outputs of different shapes"),
                    ("--infinities-compare-equal", "let infinities of equal sign match"),
                )
            ),
        ),
    ),
    Group("printing", (*groups.JSON.flags,)),
)
EXAMPLES = (
    "trtops run model.onnx --onnxrt --trt --save-accuracy-results accuracy.json",
    "trtops check accuracy accuracy.json --check-error-stat max --atol 1e-3 --rtol 1e-2",
)

_OPTIONS = {
    "simple": ("rtol", "atol", "check_error_stat", "error_quantile"),
    **{metric.function: (metric.option,) for metric in METRICS if metric.limit is not None},
}
"""The options of each compare function, which choose it where no function is named."""


@dataclass(frozen=True)
class Plan:
    """How to evaluate.

    Attributes:
        path: The saved comparison.
        functions: Make the compare functions whose thresholds hold; none keeps those of the file.
        average: Whether means are evaluated.
        save: Where to write the comparison as it is evaluated now.
        json: Whether to print JSON.
    """

    path: str
    functions: tuple[Call, ...]
    average: bool
    save: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    names = args.compare or [name for name, flags in _OPTIONS.items() if any(getattr(args, flag) for flag in flags)]
    if "indices" in names:
        raise UsageError(
            "indices leaves no numbers to be re-evaluated; compare the outputs by `trtops run --load-outputs`"
        )
    others = dict.fromkeys(("fail_fast", "no_shape_check", "infinities_compare_equal"))
    functions = loading.compare_functions(args.but(**others, compare=names or None))
    return Plan(
        args.accuracy,
        tuple(functions) if names else (),
        bool(args.check_average),
        args.save_accuracy_results,
        bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Evaluate, and print."""
    results = comparator.AccuracyResults.load(plan.path)
    names = results.output_names()
    thresholds = [{name: function.thresholds_for(name) for name in names} for function in Maker()(list(plan.functions))]
    if thresholds:
        results.reevaluate(thresholds, "average" if plan.average else None)
    elif plan.average:
        for result in results:
            result.aggregation = "average"
    if plan.save is not None:
        results.save(plan.save)
    lines = list(_verdict_lines(results))
    if plan.json:
        say_json({"passed": bool(results), "outputs": lines})
    else:
        say(
            "\n".join(
                [
                    f"{'PASSED' if line['passed'] else 'FAILED'} {line['runners']} {line['output']}: {line['text']}"
                    for line in lines
                ]
            )
        )
        from trtops.comparator.comparator import log_summary  # brings numpy, which help does not need

        log_summary(results, list(dict.fromkeys(pair for result in results for pair in result)))
        if results:
            tell("PASSED | Accuracy results passed the requested thresholds.", G_LOGGER.FINISH)
        else:
            tell("FAILED | Accuracy results did not pass the requested thresholds.", G_LOGGER.ERROR)
    return 0 if results else 1


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
