"""From options to the configs of ops, for what is remembered as the flows do it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.comparator.table import LIMITED
from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile, ShapeRange, TensorRTOptions

if TYPE_CHECKING:
    from trtops.cli.script import Call
    from trtops.comparator.report import Tolerances
    from trtops.ops.evaluation.check import CheckConfig
    from trtops.ops.evaluation.command import CommandCheck

BACKEND = Group(
    "back end",
    (
        Flag(names=("--onnxrt",), takes="switch", to="backend", value="onnxruntime", help="ONNX Runtime, on the CPU"),
        Flag(names=("--trt",), takes="switch", to="backend", value="tensorrt", help="TensorRT"),
        Flag(names=("--allow-approximation",), takes="switch", help="ONNX Runtime: allow tactics that are less exact"),
        Flag(
            names=("--timing-seconds",),
            shown="SECONDS",
            convert=float,
            help="ONNX Runtime: how long settings may be tried; as long as five starts and 60 inferences take unless given",
        ),
    ),
)


def build_config(args: Asked, backend: str) -> BuildConfig:
    """How to build, for ops.

    Raises:
        UsageError: If an option is given that such a config does not have.
    """
    _refuse_others(args, backend)
    asked = [name for name in ("int8", "fp8", "bf16", "fp16") if getattr(args, name, None)]
    options: Any = OnnxRuntimeOptions(
        allow_approximation=bool(getattr(args, "allow_approximation", False)),
        timing_seconds=getattr(args, "timing_seconds", None),
    )
    if backend == "tensorrt":
        mode, layers = loading.constraints(args)
        layers = dict(getattr(args, "layer_precisions", None) or ()) | layers
        options = TensorRTOptions(
            tf32=bool(args.tf32),
            also=tuple(asked[1:]),  # type: ignore[arg-type]
            strongly_typed=bool(args.strongly_typed),
            precision_constraints=mode or "none",  # type: ignore[arg-type]
            workspace_bytes=_workspace_bytes(args),
            optimization_level=args.builder_optimization_level,
            tactic_sources=None if args.tactic_sources is None else tuple(args.tactic_sources),
            sparse_weights=bool(args.sparse_weights),
            refittable=bool(args.refittable),
            version_compatible=bool(args.version_compatible),
            layer_precisions=tuple(layers.items()),
            use_dla=bool(args.use_dla),
            allow_gpu_fallback=bool(args.allow_gpu_fallback),
        )
    precision = asked[0] if asked else "fp32"
    return BuildConfig(precision=precision, profiles=tuple(_optimization_profiles(args)), options=options)  # type: ignore[arg-type]


def _refuse_others(args: Asked, backend: str) -> None:
    """Refuse what a build's spec does not hold, and what only TensorRT knows where ONNX Runtime builds."""
    held = {flag.dest for flag in groups.SPEC.flags}
    files = {
        "fp32",
        "calibration_cache",
        "load_timing_cache",
        "timing_cache",
        "load_tactics",
        "save_tactics",
        "save_timing_cache",
    }
    for flag in (flag for group in (*groups.TRT_BUILD, groups.TRT_LOAD) for flag in group.flags):
        given = args.peek(flag.dest) not in (None, flag.default)
        if given and flag.dest not in held | files:
            raise UsageError(
                f"{flag.names[0]} cannot be remembered: a build's spec has no such thing. Leave it out, or --experiment"
            )
        if given and backend == "onnxruntime" and flag.dest in held and flag.dest not in _EVERYWHERE:
            raise UsageError(
                f"{flag.names[0]} is for TensorRT; the engine is ONNX Runtime's. Leave it out, or add --trt"
            )
    for name in ("allow_approximation", "timing_seconds") if backend == "tensorrt" else ():
        if getattr(args, name, None) not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')} is for ONNX Runtime; add --onnxrt")


_EVERYWHERE = ("fp16", "bf16", "fp8", "int8", "trt_min_shapes", "trt_opt_shapes", "trt_max_shapes")


def refuse(args: Asked, names: Iterable[str], why: str) -> None:
    """Refuse options of which nothing would come.

    Raises:
        UsageError: If one is given.
    """
    for name in names:
        if getattr(args, name, None) not in (None, ()):
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _workspace_bytes(args: Asked) -> int | None:
    limits = dict(args.pool_limit or ()) | ({"workspace": args.workspace} if args.workspace is not None else {})
    others = [pool for pool in limits if pool != "workspace"]
    if others:
        raise UsageError(f"--pool-limit {others[0]} cannot be remembered, only workspace; leave out --experiment")
    return limits.get("workspace")


def _optimization_profiles(args: Asked) -> list[OptimizationProfile]:
    made = []
    for profile in (loading.profiles(args) if hasattr(args, "trt_opt_shapes") else None) or ():
        ranges = [ShapeRange(name=a[0], **dict(kwargs)) for _, a, kwargs in profile.then]
        made.append(OptimizationProfile(shapes=tuple(ranges)))
    return made


def check_config(args: Asked, **others: Any) -> CheckConfig:
    """How engines are evaluated: data, seed, tolerances, and how much of them has to be in its precision."""
    if args.peek("min_precision_share") is not None:
        others["min_precision_share"] = args.min_precision_share
    return ops.CheckConfig(tolerances=tolerances(args), **data_options(args), **others)


_MADE_UP = ("val_range", "int_min", "int_max", "float_min", "float_max", "data_loader_backend_module")


def made_up_data(args: Asked) -> Call | None:
    """A loader of random data, where options say more of it than seed and iterations."""
    given = any(args.peek(name) is not None for name in (*_MADE_UP, "trt_opt_shapes", "trt_max_shapes"))
    return loading.data_loader(args) if given and not (args.load_inputs or args.data_loader_script) else None


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; without the others an op's own defaults hold."""
    return {name: value for name, value in options.items() if value is not None}


def data_options(args: Asked, *, made_up: bool = False) -> dict[str, Any]:
    """The options of a :class:`~trtops.ops.evaluation.feeds.DataConfig` that were given.

    Args:
        args: The options.
        made_up: Whether :func:`made_up_data` makes the inputs, in place of a source.
    """
    source = None if made_up else data_source(args)
    return given(data=source, iterations=args.iterations, seed=args.seed)


def data_source(args: Asked) -> str | None:
    """Where inputs come from, as ops take it.

    Raises:
        UsageError: If it cannot be said in one path.
    """
    if args.load_inputs and args.data_loader_script:
        raise UsageError("--load-inputs and --data-loader-script exclude each other")
    if args.load_inputs and len(args.load_inputs) > 1:
        raise UsageError("one --load-inputs file is taken here; join several by `trtops data concat`")
    if args.load_inputs:
        return str(args.load_inputs[0])
    if args.data_loader_script:
        path, function = args.data_loader_script
        return f"{path}:{function or args.data_loader_func_name or 'load_data'}"
    for name in _MADE_UP:
        if getattr(args, name, None) is not None:
            raise UsageError(f"--{name.replace('_', '-')} has no place here; give data by --load-inputs or a script")
    return None


def tolerances(args: Asked) -> Tolerances | None:
    """When outputs are good enough; None if no option says so."""
    from trtops.comparator.report import OutputTolerances, Tolerances

    names = {name: name for name in ("atol", "rtol", "check_error_stat", "error_quantile")}
    names |= {str(metric.tolerance): metric.option for metric in LIMITED}
    common: dict[str, Any] = {}
    single: dict[str, dict[str, Any]] = {}
    for name, dest in names.items():
        for output, value in getattr(args, dest, None) or ():
            (single.setdefault(output, {}) if output else common)[name] = value
    equal = bool(getattr(args, "infinities_compare_equal", False))
    if not common and not single and not equal:
        return None
    per_output = {output: OutputTolerances(**found) for output, found in single.items()}
    return Tolerances(**common, infinities_equal=equal, per_output=per_output)


def command_check(args: Asked, default_artifact: str, placeholder: str = "{model}") -> CommandCheck:
    """The external check; a command without ``{model}`` reads the file that the iterations write."""
    command = tuple(args.check)
    said = any(mark in word for word in command for mark in ("{model}", placeholder))
    return ops.CommandCheck(
        command=command,
        fail_codes=tuple(args.fail_code or ()),
        ignore_fail_codes=tuple(args.ignore_fail_code or ()),
        fail_regex=tuple(args.fail_regex or ()),
        timeout_seconds=args.check_timeout,
        artifact=None if said else args.iter_artifact or default_artifact,
    )
