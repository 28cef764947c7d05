"""From options to calls: models, input data, networks, builder configs, engines, runners and compare functions."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtops.cli.flags import Asked, UsageError
from trtops.cli.script import Call, Function, Name, call
from trtops.cli.values import per_name
from trtops.comparator.table import COMPARISONS
from trtops.errors import ConfigError
from trtops.metadata import DataType

log = logging.getLogger(__name__)

COMMON = "trtops.backend.common"
ONNX = "trtops.backend.onnx"
ORT = "trtops.backend.onnxrt"
TRT = "trtops.backend.trt"
COMPARATOR = "trtops.comparator"

_TYPES = {
    ".onnx": "onnx", ".engine": "engine", ".plan": "engine", ".py": "trt-network-script", ".hdf5": "keras", ".h5": "keras",
    ".keras": "keras", ".graphdef": "frozen", ".pb": "frozen", ".uff": "uff", ".prototxt": "caffe", ".ort": "ort",
}  # fmt: skip
TENSORFLOW = ("keras", "frozen", "ckpt")


def model_type(args: Asked) -> str:
    """What the model is: as the options say, or by its ending.

    Raises:
        UsageError: If there is no model, its ending says nothing, or it is of a kind that nothing reads any more.
    """
    if args.model_file is None:
        raise UsageError(
            "no model is given. An option that takes several words takes a model behind it as well: name it first"
        )
    path = Path(re.sub(r"\.py:\w+$", ".py", args.model_file))  # a script, and what it calls the function
    found = args.model_type or _TYPES.get(path.suffix.lower())
    if found is None and (path.is_dir() or getattr(args, "ckpt", None)):
        found = "ckpt"
    if found is None:
        raise UsageError(
            f"{args.model_file}: its ending does not say what it is; say it by --model-type, such as --model-type onnx"
        )
    if found in ("uff", "caffe"):
        raise UsageError(f"{args.model_file}: TensorRT reads no {found} models any more; export the model to ONNX")
    return str(found)


def wants_onnx_changes(args: Asked) -> bool:
    """Whether the model has to be loaded and changed before a back end gets it."""
    names = (
        "external_data_dir", "ignore_external_data", "fp_to_fp16", "onnx_outputs", "onnx_exclude_outputs",
        "onnx_outputs_by_type", "shape_inference", "save_onnx",
    )  # fmt: skip
    return any(getattr(args, name, None) for name in names)


def onnx_model(args: Asked) -> Call:
    """The ONNX model, loaded and changed."""
    kind = model_type(args)
    if kind in TENSORFLOW:
        model = call(
            "trtops.backend.onnx.from_tensorflow", "OnnxFromTensorFlow", args.model_file, kind,
            checkpoint=args.ckpt, outputs=_list_or_none(args.tf_outputs), opset=args.opset, variable="load_model",
        )  # fmt: skip
    elif kind == "onnx":
        model = call(
            ONNX, "OnnxFromPath", args.model_file,
            external_data_dir=args.external_data_dir, ignore_external_data=args.ignore_external_data, variable="load_model",
        )  # fmt: skip
    else:
        raise UsageError(f"{args.model_file} is no ONNX model ({kind}), which this needs")
    if getattr(args, "onnx_outputs", None) or getattr(args, "onnx_exclude_outputs", None) or args.onnx_outputs_by_type:
        model = call(
            ONNX, "ModifyOutputs", model,
            outputs=_names_or_all(args.onnx_outputs), exclude_outputs=_list_or_none(args.onnx_exclude_outputs),
            mark_types=_list_or_none(args.onnx_outputs_by_type), variable="modify_outputs",
        )  # fmt: skip
    if args.shape_inference:
        symbolic = False if args.no_onnxruntime_shape_inference else None
        kwargs = () if symbolic is None else (("allow_onnxruntime", False),)
        model = Call(ONNX, "InferShapes", (model,), kwargs, variable="infer_shapes")
    if args.fp_to_fp16:
        model = call(ONNX, "ConvertToFp16", model, variable="convert_to_fp16")
    if getattr(args, "save_onnx", None):
        model = saved_onnx(model, args.save_onnx, args)
    return model


def saved_onnx(model: Call, path: str, args: Asked) -> Call:
    """The model, written to a file on its way."""
    kwargs: list[tuple[str, Any]] = []
    if args.save_external_data is not None:
        kwargs.append(("external_data_path", args.save_external_data))
    if args.external_data_size_threshold is not None:
        kwargs.append(("size_threshold", args.external_data_size_threshold))
    if args.no_save_all_tensors_to_one_file:
        kwargs.append(("all_tensors_to_one_file", False))
    return Call(ONNX, "SaveOnnx", (model, path), tuple(kwargs), variable="save_onnx")


def _names_or_all(names: Iterable[str] | None) -> Any:
    if names is None:
        return None
    return Name("trtops.constants", "MARK_ALL") if list(names) in (["mark", "all"], ["mark all"]) else list(names)


def _list_or_none(words: Iterable[Any] | None) -> list[Any] | None:
    return None if words is None else list(words)


# --- data -----------------------------------------------------------------------------------------------------------


def data_loader(args: Asked) -> Call | None:
    """Where inputs come from; None is random data of the model's own shapes.

    Raises:
        UsageError: If there are two sources.
    """
    if args.load_inputs and args.data_loader_script:
        raise UsageError("--load-inputs and --data-loader-script exclude each other")
    if args.load_inputs:
        return call(COMPARATOR, "StreamingDataLoader", list(args.load_inputs), variable="data_loader")
    if args.data_loader_script:
        path, function = args.data_loader_script
        function = function or args.data_loader_func_name or "load_data"
        return call(COMMON, "invoke_from_script", path, function, variable="data_loader")
    shapes = input_shapes(args) or usual_shapes(args)
    given = (args.seed, args.iterations, args.val_range, args.data_loader_backend_module, shapes)
    older = (args.int_min, args.int_max, args.float_min, args.float_max)
    if not any(value is not None for value in (*given, *older)):
        return None
    return call(
        COMPARATOR, "DataLoader",
        seed=args.seed, iterations=args.iterations, input_metadata=_input_metadata(shapes), val_range=per_name(args.val_range),
        data_loader_backend_module=args.data_loader_backend_module,
        int_range=_value_bounds(args.int_min, args.int_max), float_range=_value_bounds(args.float_min, args.float_max),
        variable="data_loader",
    )  # fmt: skip


def _value_bounds(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None and high is None:
        return None
    return (0 if low is None else low, 1 if high is None else high)


def input_shapes(args: Asked) -> dict[str, tuple[int | str, ...]] | None:
    """The shapes of inputs that were asked for; of several for one input the last, with a warning."""
    given = getattr(args, "input_shapes", None)
    if given and len(dict(given)) < len(given):
        log.warning(
            "--input-shapes has several shapes for one input; the last is taken. Run the command once for each."
        )
    return dict(given) if given else None


def usual_shapes(args: Asked) -> dict[str, tuple[int | str, ...]] | None:
    """The usual shapes of the first profile, which data has unless other shapes are given."""
    rounds = getattr(args, "trt_opt_shapes", None) or getattr(args, "trt_max_shapes", None)
    return dict(rounds[0]) if rounds else None


def _input_metadata(shapes: Mapping[str, Any] | None) -> Call | None:
    if not shapes:
        return None
    adds = tuple(("add", (name,), (("dtype", None), ("shape", shape))) for name, shape in shapes.items())
    return Call("trtops.common", "TensorMetadata", then=adds)


# --- TensorRT -------------------------------------------------------------------------------------------------------


def profiles(args: Asked) -> list[Call] | None:
    """Optimization profiles: one for each time that the shape options were given, or the shapes of the data.

    Where one of min, opt and max is missing, the nearest that is given stands for it.
    """
    rounds = [args.trt_min_shapes or [], args.trt_opt_shapes or [], args.trt_max_shapes or []]
    common = input_shapes(args) or {}
    count = max(map(len, rounds)) or (1 if common else 0)
    made = []
    for index in range(count):
        low, usual, high = (dict(given[index]) if index < len(given) else {} for given in rounds)
        adds = []
        for name in dict.fromkeys((*low, *usual, *high, *common)):
            opt = usual.get(name) or common.get(name) or high.get(name) or low.get(name)
            bounds = {"min": low.get(name, opt), "opt": opt, "max": high.get(name, opt)}
            if name in low and name not in usual and name in high and name not in common:
                raise UsageError(f"profile {index}: input {name!r} has min and max, but no --trt-opt-shapes")
            adds.append(("add", (name,), tuple((bound, fixed(shape)) for bound, shape in bounds.items())))
        made.append(Call(TRT, "Profile", then=tuple(adds)))
    return made or None


def fixed(shape: Any) -> tuple[int, ...]:
    """A shape with 1 for each dynamic dimension."""
    return tuple(dim if isinstance(dim, int) and dim >= 0 else 1 for dim in shape)


def _enum_member(kind: str, word: str) -> Name:
    return Name("trt", f"{kind}.{word.strip().upper().replace('-', '_')}")


def _enum_members(kind: str, words: Iterable[str] | None) -> list[Name] | None:
    return None if words is None else [_enum_member(kind, word) for word in words]


_TYPES_OF_TRT = {"float8e4m3fn": "fp8", "float4": "fp4"}
"""Data types that TensorRT has under another name."""


def _trt_type(word: str) -> Name | str:
    """A data type as TensorRT's own, which scripts take of either tool; a word that stands for none is left to be refused."""
    try:
        found = DataType.of(word).name
    except ConfigError:
        return word
    return Name("trt", _TYPES_OF_TRT.get(found, found))


def builder_config(args: Asked) -> Any:
    """The builder config's loader."""
    if args.fp32 and (args.fp16 or args.bf16 or args.fp8 or args.int8):
        raise UsageError("--fp32 and lower precisions exclude each other")
    if args.trt_config_script is not None:
        config: Any = Function(*args.trt_config_script)
    else:
        config = call(TRT, "CreateConfig", **_config_options(args), variable="create_config")
    if args.trt_config_postprocess_script is not None:
        config = call(
            TRT,
            "PostprocessConfig",
            config,
            Function(*args.trt_config_postprocess_script),
            variable="postprocess_config",
        )
    return config


def _config_options(args: Asked) -> dict[str, Any]:
    limits = dict(args.pool_limit or ()) | ({"workspace": args.workspace} if args.workspace is not None else {})
    same = (
        "tf32", "fp16", "bf16", "fp8", "int8", "sparse_weights", "version_compatible", "exclude_lean_runtime", "refittable",
        "strip_plan", "use_dla", "allow_gpu_fallback", "builder_optimization_level", "max_aux_streams", "weight_streaming",
        "direct_io", "error_on_timing_cache_miss", "disable_compilation_cache",
    )  # fmt: skip
    one = {
        "profiling_verbosity": "ProfilingVerbosity",
        "hardware_compatibility_level": "HardwareCompatibilityLevel",
        "runtime_platform": "RuntimePlatform",
        "tiling_optimization_level": "TilingOptimizationLevel",
        "engine_capability": "EngineCapability",
    }
    several = {
        "tactic_sources": "TacticSource",
        "preview_features": "PreviewFeature",
        "quantization_flags": "QuantizationFlag",
    }
    return {
        **{name: getattr(args, name) for name in same},
        **{name: _enum_member(kind, v) for name, kind in one.items() if (v := getattr(args, name)) is not None},
        **{name: _enum_members(kind, getattr(args, name)) for name, kind in several.items()},
        "restricted": args.trt_safety_restricted,
        "profiles": profiles(args),
        "precision_constraints": constraints(args)[0],
        "load_timing_cache": args.load_timing_cache or args.timing_cache,
        "memory_pool_limits": {_enum_member("MemoryPoolType", pool): limit for pool, limit in limits.items()} or None,
        "algorithm_selector": _tactic_selector(args),
        "calibrator": _int8_calibrator(args),
    }


def constraints(args: Asked) -> tuple[str | None, dict[str, str]]:
    """How binding layer precisions are, and those that were named with it."""
    pairs = getattr(args, "precision_constraints", None) or ()
    modes = [word for name, word in pairs if not name]
    layers = {name: word for name, word in pairs if name}
    mode = modes[-1] if modes else "obey" if layers else None
    return (None if mode == "none" else mode), layers


def _tactic_selector(args: Asked) -> Call | None:
    given = [n for n in ("load_tactics", "save_tactics", "exclude_tactics") if getattr(args, n)]
    if "load_tactics" in given:
        if len(given) > 1:
            raise UsageError("--load-tactics leaves nothing to save or to exclude; give it alone")
        return call(TRT, "TacticReplayer", args.load_tactics)
    if not given:
        return None
    module = "trtops.backend.trt.choices.selector"
    kept: Any = args.save_tactics or call(TRT, "TacticReplayData")
    if args.exclude_tactics is None:
        return call(TRT, "TacticRecorder", kept)
    denied = call("trtops.tactics.exclusions", "read_exclusions", args.exclude_tactics)
    return call(TRT, "TacticRecorder", kept, restriction=call(module, "restriction", denied, None))


def _int8_calibrator(args: Asked) -> Call | None:
    """A calibrator, where INT8 is asked for."""
    if not args.int8:
        for name in ("calibration_cache", "calib_base_cls", "quantile", "regression_cutoff"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for INT8; add --int8")
        return None
    loader = data_loader(args) or call(COMPARATOR, "DataLoader")
    return call(
        TRT, "Calibrator",
        data_loader=loader, cache=args.calibration_cache, BaseClass=Name("trt", args.calib_base_cls) if args.calib_base_cls else None,
        quantile=args.quantile, regression_cutoff=args.regression_cutoff,
    )  # fmt: skip


def network(args: Asked, *, outputs: bool = True) -> Any:
    """The network's loader: parsed, or from a script, and changed as the options say."""
    kind = model_type(args)
    if kind == "engine":
        raise UsageError(f"{args.model_file} is an engine already; a network is made from an ONNX model or a script")
    made = _parsed_network(args, kind)
    if args.plugins:
        made = call(TRT, "LoadPlugins", list(args.plugins), made, variable="load_plugins")
    for path, function in args.trt_network_postprocess_script or ():
        made = call(TRT, "PostprocessNetwork", made, Function(path, function), variable="postprocess_network")
    if outputs and (args.trt_outputs or args.trt_exclude_outputs or args.trt_outputs_by_type):
        made = call(
            TRT, "ModifyNetworkOutputs", made,
            outputs=_names_or_all(args.trt_outputs), exclude_outputs=_list_or_none(args.trt_exclude_outputs),
            mark_layer_types=_list_or_none(args.trt_outputs_by_type), variable="modify_network_outputs",
        )  # fmt: skip
    if layers := dict(args.layer_precisions or ()) | constraints(args)[1]:
        precisions = {name: _trt_type(word) for name, word in layers.items()}
        made = call(TRT, "SetLayerPrecisions", made, precisions, variable="set_layer_precisions")
    if args.all_tensor_dtypes or args.tensor_dtypes:
        every = args.all_tensor_dtypes
        types = _trt_type(every) if every else {name: _trt_type(word) for name, word in args.tensor_dtypes}
        made = call(TRT, "SetTensorDatatypes", made, types, variable="set_tensor_datatypes")
    if args.all_tensor_formats or args.tensor_formats:
        each = {
            name: _enum_members("TensorFormat", _bracketed_words(words)) for name, words in args.tensor_formats or ()
        }
        formats = _enum_members("TensorFormat", args.all_tensor_formats or None) or each
        made = call(TRT, "SetTensorFormats", made, formats, variable="set_tensor_formats")
    if args.decomposable_attentions:
        made = call(TRT, "SetDecomposableAttentions", made, variable="set_decomposable_attentions")
    if args.mark_debug:
        made = call(TRT, "MarkDebug", made, list(args.mark_debug), variable="mark_debug")
    return made


def _bracketed_words(text: str) -> list[str]:
    return [word.strip() for word in text.strip("[]").split(",")]


def _parsed_network(args: Asked, kind: str) -> Call | Function:
    if kind == "trt-network-script":
        path, _, function = args.model_file.partition(".py:")
        path = f"{path}.py" if function else path
        return Function(path, function or args.trt_network_func or "load_network")
    options = {
        "flags": _enum_members("OnnxParserFlag", args.onnx_flags),
        "plugin_instancenorm": args.plugin_instancenorm,
        "strongly_typed": args.strongly_typed,
        "mark_unfused_tensors_as_debug_tensors": args.mark_unfused_tensors_as_debug_tensors,
        "enable_uint8_asymmetric_quantization_dla": args.enable_uint8_asymmetric_quantization_dla,
    }
    if kind == "onnx" and not wants_onnx_changes(args):
        return call(TRT, "NetworkFromOnnxPath", args.model_file, **options, variable="parse_network")
    data = call(ONNX, "BytesFromOnnx", onnx_model(args))
    return call(TRT, "NetworkFromOnnxBytes", data, **options, variable="parse_network")


def engine(args: Asked, path: str | None = None) -> Call:
    """The engine's loader: built, or loaded from a file."""
    load = {
        "runtime": call(TRT, "LoadRuntime", args.load_runtime) if getattr(args, "load_runtime", None) else None,
        "dla_workspace_allocation_strategy": _enum_member(
            "DLAWorkspaceAllocationStrategy", args.dla_workspace_allocation_strategy
        )
        if getattr(args, "dla_workspace_allocation_strategy", None)
        else None,
    }
    if path is not None or model_type(args) == "engine":
        plan = path or args.model_file
        if getattr(args, "gen_script", None):
            # The script runs with Polygraphy's name too, whose EngineFromPath needs a stream reader that 8.6 does not have.
            made = call(TRT, "EngineFromBytes", call(COMMON, "BytesFromPath", plan), **load, variable="load_engine")
        else:
            made = call(TRT, "EngineFromPath", plan, **load, variable="load_engine")
        return call(TRT, "LoadPlugins", list(args.plugins), made, variable="load_plugins") if args.plugins else made
    made = call(
        TRT, "EngineFromNetwork", network(args), config=builder_config(args),
        save_timing_cache=args.save_timing_cache or args.timing_cache, **load, variable="build_engine",
    )  # fmt: skip
    if getattr(args, "save_engine", None):
        made = call(TRT, "SaveEngine", made, args.save_engine, variable="save_engine")
    return made


def engine_bytes(args: Asked) -> Call:
    """The loader of an engine's bytes, built but not loaded."""
    return call(
        TRT, "EngineBytesFromNetwork", network(args), config=builder_config(args),
        save_timing_cache=args.save_timing_cache or args.timing_cache, variable="build_engine",
    )  # fmt: skip


# --- comparing ------------------------------------------------------------------------------------------------------


def compare_functions(args: Asked) -> list[Any]:
    """The compare functions; several error statistics make one simple function each."""
    if args.compare_func_script is not None:
        if args.compare:
            raise UsageError("--compare and --compare-func-script exclude each other")
        return [Function(*args.compare_func_script)]
    made: list[Any] = []
    asked = (_ONE_BY_ONE.get(name, (name,)) for name in args.compare or ("simple",))
    for name in dict.fromkeys(itertools.chain.from_iterable(asked)):
        if name == "simple":
            made += _simple_functions(args)
        else:
            made.append(_indices_function(args) if name == "indices" else _metric_function(args, name))
    return made


_ONE_BY_ONE = {
    each.name: tuple(metric.function for metric in each.limits.values()) for each in COMPARISONS if len(each.limits) > 1
}
"""The functions that a comparison by several numbers stands for on a line, as with Polygraphy: each has its own verdict."""


def _simple_functions(args: Asked) -> list[Call]:
    options = {
        "rtol": per_name(args.rtol),
        "atol": per_name(args.atol),
        "error_quantile": per_name(args.error_quantile),
        "fail_fast": args.fail_fast,
        "infinities_compare_equal": args.infinities_compare_equal,
        "save_heatmaps": args.save_heatmaps,
        "show_heatmaps": args.show_heatmaps,
        "save_error_metrics_plot": args.save_error_metrics_plot,
        "show_error_metrics_plot": args.show_error_metrics_plot,
    }
    pairs = args.check_error_stat or ()
    plain, own = [stat for name, stat in pairs if not name], {name: stat for name, stat in pairs if name}
    made = []
    for stat in plain or [None]:
        chosen = {**({"": stat} if stat else {}), **own} if own else stat
        made.append(
            _without_shape_check(args, call(COMPARATOR, "SimpleCompareFunc", check_error_stat=chosen, **options))
        )
        options = {k: v for k, v in options.items() if "heatmap" not in k and "plot" not in k}  # drawn once
    return made


def _indices_function(args: Asked) -> Call:
    tolerance = per_name(args.index_tolerance)
    return call(COMPARATOR, "IndicesCompareFunc", fail_fast=args.fail_fast, index_tolerance=tolerance)


def _metric_function(args: Asked, function: str) -> Call:
    comparison = next(comparison for comparison in COMPARISONS if comparison.name == function)
    limits: dict[str, Any] = {
        option: per_name(getattr(args, metric.option)) for option, metric in comparison.limits.items()
    }
    return _without_shape_check(args, call(COMPARATOR, comparison.compare_func, fail_fast=args.fail_fast, **limits))


def _without_shape_check(args: Asked, made: Call) -> Call:
    if not args.no_shape_check:
        return made
    return Call(made.module, made.name, made.args, (("check_shapes", False), *made.kwargs))
