"""The commands of ``trtops check``."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtops import comparator, ops
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import log_line, say, say_json
from trtops.cli.script import product
from trtops.logger import G_LOGGER
from trtops.metadata import TensorMetadata


@command(
    groups.ONNX_MODEL,
    Group("back end (default: TensorRT)", configs.BACKEND.only("backend")),
    groups.JSON,
    examples=("trtops check compatibility model.onnx --onnxrt",),
)
def compatibility(args: Options) -> Job:
    """Report whether a back end supports every node of a model. Exits with 1 if it does not."""
    backend, code = args.backend or "tensorrt", lambda report: int(not report.supported)
    return op_job(args, "capability", args.model_file, backend, partition=False, code=code)


@command(
    groups.ONNX_MODEL,
    Group("shapes", groups.INPUT_SHAPES),
    Group("report", flag("-o --output FILE", "where to write the report, as JSON")),
    groups.JSON,
    groups.ONNX_LOAD,
    groups.DATA.without("--iterations"),
    groups.ONE_FEED,
    groups.PROVIDERS.idle("each node is checked as it is, on the CPU, without optimization"),
    examples=("trtops check lint model.onnx", "trtops check lint model.onnx --input-shapes x:[4,3,8,8] -o report.json"),
)
def lint(args: Options) -> Job:
    """Find all defects of an ONNX model, node by node, in one pass.

    Exits with 1 if something is.
    """
    # Accepted with a warning: only the first feed is used.
    args.iterations = None
    configs.export_torch(args, scripts=True)
    model, loader, as_json = loading.changed_model(args), loading.data_loader(args), bool(args.json)
    described = any(value is not None for value in args.pick("seed", *configs.RANDOM_DATA).values())
    if loader is not None and loader.function is comparator.DataLoader and not described:
        # Only shapes were given, which the op takes itself.
        loader = None
    shapes = {} if described else loading.input_shapes(args) or {}
    output = args.output

    def run() -> int:
        source, data, feed = product(model), product(loader), None
        if data is not None:
            if hasattr(data, "input_metadata"):
                data.input_metadata = TensorMetadata.of(ops.open_model(source).info.inputs)
            feed = next(iter(data))
        result = ops.lint(source, input_shapes=shapes, feed=feed)
        if output is not None:
            Path(output).write_text(json.dumps(result.to_lint_json(), indent=1), encoding="utf-8")
        if as_json:
            say_json(result.to_lint_json())
        else:
            say(result.text())
        return int(not result.ok)

    return run


# A saved comparison holds numbers, not arrays, so some options of `run` can no longer have an effect.
_NO_ARRAYS = (
    "the file contains the numbers of a comparison, not the outputs; compare those with "
    "`trtops run --load-outputs A B` and this option"
)
_DECIDED = "this was decided when the outputs were compared"
_NEED_ARRAYS = (
    "--compare-func-script", "--index-tolerance", "--save-heatmaps", "--show-heatmaps", "--save-error-metrics-plot",
    "--show-error-metrics-plot",
)  # fmt: skip
_EARLIER = ("--fail-fast", "--no-shape-check", "--infinities-compare-equal")


@command(
    Group("comparison", flag("accuracy", "the file", file="reads")),
    groups.THRESHOLDS.without("--index-tolerance"),
    Group(
        "options of comparing itself",
        *(flag(name, "", refuse=_NO_ARRAYS) for name in _NEED_ARRAYS),
        *(replace(flag, idle=_DECIDED) for flag in groups.COMPARING.flags if set(flag.names) & set(_EARLIER)),
    ),
    groups.JSON,
    examples=("trtops check accuracy accuracy.json --check-error-stat max --atol 1e-3 --rtol 1e-2",),
)
def accuracy(args: Options) -> Job:
    """Evaluate a saved comparison (of --save-accuracy-results) with other tolerances, without running anything.

    Exits with 1 if it fails.
    """
    names = list(args.compare or ())
    for name, options in () if names else loading.FUNCTION_OPTIONS.items():
        if any(args.pick(*options).values()):
            names.append(name)
    if "indices" in names:
        raise UsageError("indices saves no numbers to evaluate; compare the outputs with `trtops run --load-outputs`")
    decided = dict.fromkeys(("fail_fast", "no_shape_check", "infinities_compare_equal", "compare_func_script"))
    functions = loading.compare_functions(args.but(**decided, compare=names)) if names else []
    path, average, save, as_json = args.accuracy, bool(args.check_average), args.save_accuracy_results, bool(args.json)

    def run() -> int:
        results: Any = comparator.AccuracyResults.load(path)
        outputs = results.output_names()
        thresholds: list[dict[str, Any]] = []
        for function in functions:
            thresholds.append({name: function.thresholds_for(name) for name in outputs})
        if thresholds:
            results.reevaluate(thresholds, "average" if average else None)
        elif average:
            for result in results:
                result.aggregation = "average"
        if save is not None:
            results.save(save)
        lines = list(_outcomes(results))
        if as_json:
            say_json({"passed": bool(results), "outputs": lines})
            return 0 if results else 1
        for line in lines:
            say(f"{'PASSED' if line['passed'] else 'FAILED'} {line['runners']} {line['output']}: {line['text']}")
        # Imports numpy, which help does not need.
        from trtops.comparator.comparator import log_summary

        log_summary(results, list(dict.fromkeys(itertools.chain.from_iterable(results))))
        if results:
            log_line("PASSED | Accuracy results passed the requested thresholds.", G_LOGGER.FINISH)
        else:
            log_line("FAILED | Accuracy results did not pass the requested thresholds.", G_LOGGER.ERROR)
        return 0 if results else 1

    return run


def _outcomes(results: Any) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each output, of each pair of runners in each iteration."""
    for result in results:
        for pair in result:
            averaged = result.aggregation == "average"
            for index, matches in enumerate([result.average_results(pair)] if averaged else result[pair]):
                iteration = {"runners": f"{pair[0]} vs {pair[1]}", "iteration": "average" if averaged else index}
                for name, match in matches.items():
                    text = str(match) if isinstance(match, bool) else match.summary()
                    yield {**iteration, "output": name, "passed": bool(match), "text": text}
