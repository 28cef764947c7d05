"""Options of a command line that repeats a build and its evaluation, for the commands that results propose."""

import dataclasses
import shlex
from collections.abc import Iterator, Sequence

from trtops.comparator.report import OutputTolerances, Tolerances
from trtops.comparator.table import LIMITED
from trtops.ops.evaluation.data import DataConfig
from trtops.spec import BackendName, OptimizationProfile, Precision


def engine_options(backend: BackendName | None, precision: Precision) -> str:
    """Back end and precision as options, with a space before each; only the precision for None."""
    place = {None: "", "tensorrt": " --trt", "onnxruntime": " --onnxrt"}[backend]
    return place if precision == "fp32" else f"{place} --{precision}"


def check_options(
    config: DataConfig, tolerances: Tolerances | None = None, profiles: Sequence[OptimizationProfile] = ()
) -> str:
    """Profiles, data, shapes and limits as options, with a space before each."""
    words: list[str] = []
    for profile in profiles:
        for bound in ("min", "opt", "max"):
            shapes = (f"{each.name}:{_dims(getattr(each, bound))}" for each in profile.shapes)
            words += [f"--trt-{bound}-shapes", *shapes]
    return "".join(f" {shlex.quote(word)}" for word in (*words, *data_options(config), *_limits(tolerances)))


def data_options(config: DataConfig) -> Iterator[str]:
    """Yield the words of the options for data and shapes, unquoted."""
    if config.data is not None:
        script = config.data.rpartition(":")[0] if ".py:" in config.data else config.data
        yield from ("--data-loader-script" if script.endswith(".py") else "--load-inputs", config.data)
    if config.input_shapes:
        yield from ("--input-shapes", *(f"{name}:{_dims(shape)}" for name, shape in config.input_shapes.items()))
    for field in dataclasses.fields(DataConfig):
        if field.name in ("iterations", "seed") and getattr(config, field.name) != field.default:
            yield from (f"--{field.name}", str(getattr(config, field.name)))


def limits_text(tolerances: Tolerances) -> str:
    """Limits in words, such as "atol 1e-12, rtol 0.0"."""
    return " ".join(_limits(tolerances)).replace(" --", ", ").removeprefix("--") or "given limits"


def _limits(given: Tolerances | None) -> Iterator[str]:
    if given is None:
        return
    options = {name: f"--{name.replace('_', '-')}" for name in ("atol", "rtol", "check_error_stat", "error_quantile")}
    options |= {str(metric.tolerance): f"--{metric.option.replace('_', '-')}" for metric in LIMITED if metric.limit}
    usual = Tolerances()
    for name, option in options.items():
        values = [] if getattr(given, name) == getattr(usual, name) else [str(getattr(given, name))]
        own: dict[str, OutputTolerances] = dict(given.per_output)
        values += [f"{output}:{value}" for output, each in own.items() if (value := getattr(each, name)) is not None]
        if values:
            yield from (option, *values)


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
