"""Configs of ops from options: options made from the fields of a config, and the config made from the options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Flag, Group, Options, UsageError, flag
from trtops.comparator.table import LIMITED
from trtops.record import OptionField, option_fields, with_options
from trtops.system.allowed import split_script

if TYPE_CHECKING:
    from trtops.cli.script import Call
    from trtops.comparator.report import Tolerances
    from trtops.ops.search.command import CommandCheck
    from trtops.spec import BuildConfig, OptimizationProfile

_NO_LIMIT = 86400.0  # a day

BACKEND = Group(
    "back end",
    flag("--onnxrt", "ONNX Runtime", to="backend", value="onnxruntime"),
    flag("--trt", "TensorRT", to="backend", value="tensorrt"),
    *groups.PROVIDERS.only("providers").flags,
    flag("--no-cpu-fallback", "ONNX Runtime: fail if the GPU cannot run a node", to="cpu_fallback", value=False),
    flag("--allow-approximation", "ONNX Runtime: allow tactics that are less exact"),
    flag("--timing-seconds SECONDS", "ONNX Runtime: how long settings may be tried (default: by the model's speed)"),
    flag("--tune", "ONNX Runtime: try all settings, and report the gain", to="timing_seconds", value=_NO_LIMIT),
)


def config_flags(title: str, config: str, names: Mapping[str, str] | None = None, skip: str = "") -> Group:
    """Return a group with an option for each field of a config in :mod:`trtops.ops`, and of the records inside it.

    A field that a command's explicit options already cover, by the same name, gets no second option. ``names`` has
    spellings of options that are not called like their field; ``skip`` lists fields, or whole records, without one.
    """
    skipped = skip.split()

    def flags() -> Iterator[Flag]:
        for option in option_fields(getattr(ops, config)):
            if option.path[0] not in skipped and option.name not in skipped:
                spelled = (names or {}).get(option.name) or " ".join(option.metadata.get("names", ()))
                spelled = spelled or _SPELLED.get(option.name) or f"--{option.name.replace('_', '-')}"
                yield from _flags_of_field(option, spelled, config)

    # A function, since importing the config's module takes longer than most commands.
    return Group(title, flags)


# Options whose name on every command line is not their field's: next to other options these names say too little.
_SPELLED = {"timeout_seconds": "--build-timeout", "use_deny_list": "--deny-list"}


def _flags_of_field(option: OptionField, names: str, config: str) -> Iterator[Flag]:
    """Yield the option of a field; two for an optional yes or no, none for a type without words."""
    is_union = get_origin(option.type) in (Union, UnionType)
    kinds = [kind for kind in (get_args(option.type) if is_union else (option.type,)) if kind is not NoneType]
    settings: dict[str, Any] = {"to": f"{config}.{'.'.join(option.path)}", "derived": True, "bounds": option.metadata}
    settings |= {name: option.metadata[name] for name in ("file", "continues") if name in option.metadata}
    text, default, suffix = _phrase(option.help), option.default, ""
    if kinds == [bool]:
        # Where neither is the default (None), a line can say either.
        if default is not True:
            yield flag(names, text, **settings)
        if default is not False:
            negative = " ".join(f"--no-{name.removeprefix('--')}" for name in names.split())
            yield flag(negative, f"do not: {text}", value=False, **settings)
        return
    if len(kinds) == 1 and get_origin(kinds[0]) is tuple and get_args(kinds[0])[1:] == (...,):
        suffix, kinds = "*", [get_args(kinds[0])[0]]
    readers = [kind for kind in kinds if kind in (str, int, float)]
    literals = [kind for kind in kinds if get_origin(kind) is Literal]
    if not kinds or len(readers) + len(literals) != len(kinds):
        return
    # A union such as `int | Literal["auto"]` takes a number or one of the words.
    words = tuple(word for kind in literals for word in get_args(kind))
    if default not in (None, (), dataclasses.MISSING) and "default" not in text:
        settings["usual"] = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    elif default is None and readers != [str] and not re.search("default|unless", text):
        if re.search("default|unless", option.help):
            text = "; ".join(map(_phrase, re.split(r"(?<=\.) ", option.help)))
        else:
            settings["usual"] = "none"
    if words and readers:
        read = readers[0]
        settings |= {"convert": lambda text: text if text in words else read(text), "shown": f"N|{'|'.join(words)}"}
    else:
        settings |= {"choices": words, "shown": None} if words else {"convert": readers[0]}
    word = {int: "N", float: "X"}.get(kinds[0], option.name.upper())
    word += "|@FILE" * bool(suffix and kinds == [str])
    yield flag(f"{names} {word}{suffix}", text, **settings)


def _phrase(text: str) -> str:
    """Return the first sentence of a docstring as a phrase: without a capital and a full stop."""
    first = re.split(r"(?<=[a-z0-9)'\"])\. ", text, maxsplit=1)[0].rstrip(".")
    return first[:1].lower() + first[1:] if first[1:2].islower() or first[1:2] == " " else first


def make(args: Options, config: str, values: Mapping[str, Any] | None = None, **further: Any) -> Any:
    """Return a config from the options of :func:`config_flags`, and further values.

    Values by field (``{"check.seed": 3}``) count before options; None stands for the default.
    """
    prefix, options = f"{config}.", {}
    for name in [name for name in args.__dict__ if name.startswith(prefix)]:
        value = getattr(args, name)
        if value is not None:
            path = tuple(name.removeprefix(prefix).split("."))
            options[path] = tuple(_words_of(value)) if isinstance(value, list) else value
    explicit = {**(values or {}), **further}
    options |= {tuple(name.split(".")): value for name, value in explicit.items() if value is not None}
    return with_options(getattr(ops, config), options)


def _words_of(values: list[Any]) -> Iterator[Any]:
    """Yield the values of an option; for ``@FILE``, the lines of the file."""
    for value in values:
        if isinstance(value, str) and value.startswith("@"):
            try:
                yield from Path(value[1:]).read_text(encoding="utf-8").rstrip("\n").split("\n")
            except (OSError, UnicodeDecodeError) as exc:
                raise UsageError(f"{value}: expected @ and a file with one name per line: {exc}") from None
        else:
            yield value


QUANTIZING = config_flags(
    "layers in lower precision",
    "BuildConfig",
    skip="precision profiles calibration_samples calibration_fit mark options",
)

# Options of a build that are no part of its spec, but are used with it.
_FILES = (
    "fp32", "calibration_cache", "load_timing_cache", "timing_cache", "load_tactics", "save_tactics",
    "save_timing_cache",
)  # fmt: skip


ONNXRT_ONLY = BACKEND.only("providers", "cpu_fallback", "allow_approximation", "timing_seconds")
_TRT_ONLY = groups.SPEC.without(
    "--tf32", "--fp16", "--bf16", "--fp8", "--int8", "--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes"
)


def build_config(args: Options, backend: str) -> BuildConfig:
    """Return the build config, for ops; a UsageError for an option without effect on recorded builds."""
    from trtops.spec import OnnxRuntimeOptions, TensorRTOptions  # not for help

    # A spec identifies a build. An option outside of it would make two builds look alike.
    recorded = {*(build_flag.dest for build_flag in groups.SPEC.flags), *_FILES}
    for build_flag in Group("", *groups.TRT_BUILD, groups.TRT_LOAD).flags:
        if build_flag.dest not in recorded and getattr(args, build_flag.dest, None) not in (None, build_flag.default):
            raise UsageError(f"{build_flag.names[0]} cannot be recorded; leave it out, or --experiment")
    precisions = [name for name in ("int8", "fp8", "bf16", "fp16") if getattr(args, name, None)]
    options: Any
    if backend == "tensorrt":
        args.ignore("fp32", ONNXRT_ONLY)
        mode, layers = loading.constraints(args)
        limits = dict(args.pool_limit or ()) | ({"workspace": args.workspace} if args.workspace is not None else {})
        workspace = limits.pop("workspace", None)
        if limits:
            raise UsageError(f"--pool-limit {next(iter(limits))} cannot be recorded, only workspace")
        chosen = args.fields_of(TensorRTOptions) | {
            "also": tuple(precisions[1:]),
            "precision_constraints": mode or "none",
            "workspace_bytes": workspace,
            "optimization_level": args.builder_optimization_level,
            "layer_precisions": tuple((dict(getattr(args, "layer_precisions", None) or ()) | layers).items()),
        }
        options = TensorRTOptions(**chosen)
    else:
        args.ignore("fp32", _TRT_ONLY)
        options = OnnxRuntimeOptions(**args.fields_of(OnnxRuntimeOptions))
    precision = precisions[0] if precisions else "fp32"
    config: BuildConfig = make(args, "BuildConfig", precision=precision, profiles=profiles(args), options=options)
    return config


def profiles(args: Options) -> tuple[OptimizationProfile, ...]:
    """Return the requested optimization profiles."""
    if not any(args.pick("trt_min_shapes", "trt_opt_shapes", "trt_max_shapes").values()):
        return ()
    from trtops.spec import OptimizationProfile, ShapeRange

    optimization_profiles = []
    for shapes in loading.profiles(args) or ():
        ranges = []
        for name, bounds in shapes.items():
            low, usual, high = map(tuple, (bounds.min, bounds.opt, bounds.max))
            ranges.append(ShapeRange(name=name, min=low, opt=usual, max=high))
        optimization_profiles.append(OptimizationProfile(shapes=tuple(ranges)))
    return tuple(optimization_profiles)


def export_torch(args: Options, *, scripts: bool) -> None:
    """Put an exported file in the place of a PyTorch model; with ``scripts``, a script is one, and no network."""
    kind = None if args.model_file is None else loading.model_type(args)
    if kind == "torch" or (scripts and kind == "trt-network-script" and split_script(args.model_file)[1]):
        from trtops.ops.evaluation.torch_models import exported

        config = ops.CheckConfig(**{name: value for name, value in data_values(args).items() if value is not None})
        args.export, _ = exported(args.model_file, config, profiles=profiles(args))
        args.model_file, args.model_type = str(args.export.path), "onnx"


def refuse(args: Options, group: Group, reason: str) -> None:
    """Reject options without effect."""
    for option in group.flags:
        if getattr(args, option.dest, None) not in (None, ()):
            raise UsageError(f"{option.names[0]} {reason}")


def check_values(args: Options, prefix: str = "check.") -> dict[str, Any]:
    """Return data, seed and tolerances, as values of the ``CheckConfig`` inside a config."""
    return {f"{prefix}tolerances": tolerances(args), **data_values(args, prefix)}


RANDOM_DATA = ("val_range", "int_min", "int_max", "float_min", "float_max", "data_loader_backend_module")


def random_data(args: Options) -> Call | None:
    """Return a loader of random data, if options describe it beyond seed and iterations."""
    # A config holds seed, iterations, shapes and ranges, but nothing else about random data.
    is_described = any(value is not None for value in args.pick(*RANDOM_DATA).values())
    return loading.data_loader(args) if is_described and not (args.load_inputs or args.data_loader_script) else None


def data_values(args: Options, prefix: str = "", *, random: bool = False) -> dict[str, Any]:
    """Return the values of a ``DataConfig``'s fields; without a source if :func:`random_data` makes the inputs."""
    source = None if random else data_source(args)
    shapes = {
        name: tuple(dim if isinstance(dim, int) else -1 for dim in shape)
        for name, shape in (loading.input_shapes(args) or {}).items()
    }
    values = {"data": source, "input_shapes": shapes or None, "iterations": args.iterations, "seed": args.seed}
    values["input_dtypes"] = dict(getattr(args, "input_dtypes", None) or ()) or None
    ranges = None if random or source is not None else getattr(args, "val_range", None)
    values["val_range"] = ranges and dict(ranges)
    return {f"{prefix}{name}": value for name, value in values.items()}


def data_source(args: Options) -> str | None:
    """Return the data source for ops; a UsageError if one path cannot describe it."""
    if args.load_inputs and args.data_loader_script:
        raise UsageError("--load-inputs and --data-loader-script exclude each other")
    if args.load_inputs and len(args.load_inputs) > 1:
        raise UsageError("only one --load-inputs file is accepted here; join several with `trtops data concat`")
    if args.load_inputs or args.data_loader_script:
        args.ignore(*RANDOM_DATA)
    if args.data_loader_script:
        path, function = args.data_loader_script
        return f"{path}:{function or args.data_loader_func_name or 'load_data'}"
    if args.load_inputs:
        return str(args.load_inputs[0])
    for name in RANDOM_DATA[1:]:
        if getattr(args, name, None) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is not supported here; use --load-inputs or a script")
    return None


def tolerances(args: Options) -> Tolerances | None:
    """Return when outputs are good enough; None if no option sets it."""
    from trtops.comparator.report import OutputTolerances, Tolerances

    # By the tolerance's field: options are named as in Polygraphy.
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
    per_output = {output: OutputTolerances(**limits) for output, limits in single.items()}
    return Tolerances(**common, infinities_equal=equal, per_output=per_output)


def command_check(args: Options, default_artifact: str, placeholder: str = "{model}") -> CommandCheck:
    """Return the external check; a command without ``{model}`` reads the iterations' file."""
    command = tuple(args.check)
    named = any(mark in word for word in command for mark in ("{model}", placeholder))
    return ops.CommandCheck(
        command=command,
        fail_codes=tuple(args.fail_code or ()),
        ignore_fail_codes=tuple(args.ignore_fail_code or ()),
        fail_regex=tuple(args.fail_regex or ()),
        timeout_seconds=args.check_timeout,
        artifact=None if named else args.iter_artifact or default_artifact,
    )
