"""Loaders from options: models, input data, networks, builder configs, engines and compare functions."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import comparator, ops
from trtops.backend import common, onnx, trt
from trtops.cli import groups
from trtops.cli.flags import Options, UsageError
from trtops.cli.script import Call, call, given
from trtops.cli.values import per_name
from trtops.comparator.table import COMPARISONS, METRICS
from trtops.extras import require
from trtops.metadata import TensorMetadata
from trtops.patterns import MARK_ALL
from trtops.system.allowed import split_script

if TYPE_CHECKING:
    from trtops.backend.trt import Profile
    from trtops.ops.model.model_files import SaveConfig

log = logging.getLogger(__name__)

_MODEL_TYPE_BY_SUFFIX = {
    ".onnx": "onnx", ".engine": "engine", ".plan": "engine", ".py": "trt-network-script", ".hdf5": "keras",
    ".h5": "keras", ".keras": "keras", ".graphdef": "frozen", ".pb": "frozen", ".uff": "uff", ".prototxt": "caffe",
    ".ort": "ort", ".pt2": "torch",
}  # fmt: skip


def model_type(args: Options) -> str:
    """Return the type of the model: from the options, or from its file name."""
    if args.model_file is None:
        raise UsageError("no model is given. Options that take several words consume it as well: name it first")
    path = Path(split_script(args.model_file)[0])
    kind = getattr(args, "model_type", None) or _MODEL_TYPE_BY_SUFFIX.get(path.suffix.lower())
    if kind is None and path.is_dir():
        kind = "ckpt"
    if kind is None:
        raise UsageError(f"{args.model_file}: its suffix does not say what it is; use --model-type, such as onnx")
    if kind in ("keras", "frozen", "ckpt"):
        raise UsageError(f"{args.model_file} is a TensorFlow model; convert it to ONNX: python -m tf2onnx.convert")
    # Parsers that TensorRT 10 no longer has.
    if kind in ("uff", "caffe"):
        raise UsageError(f"{args.model_file}: TensorRT no longer reads {kind} models; export the model to ONNX")
    return str(kind)


def wants_onnx_changes(args: Options) -> bool:
    """Whether the model has to be loaded and changed before a back end gets it."""
    options = args.pick(
        "external_data_dir", "ignore_external_data", "fp_to_fp16", "onnx_outputs", "onnx_exclude_outputs",
        "onnx_outputs_by_type", "shape_inference", "save_onnx",
    )  # fmt: skip
    return any(options.values())


def onnx_model(args: Options, weights: Path | None = None) -> Any:
    """Return the loader of the ONNX model, with the requested changes.

    With a folder for changed ``weights``, those of large models stay in files, for the loader that writes the model.
    """
    kind = model_type(args)
    if kind != "onnx":
        raise UsageError(f"{args.model_file} is not an ONNX model ({kind}), which this needs")
    options = given(external_data_dir=args.external_data_dir, ignore_external_data=args.ignore_external_data)
    lean: dict[str, Any] = {} if weights is None else {"lean": True}
    model: Any = onnx.OnnxFromPath(args.model_file, **options, **lean)
    outputs = {
        "outputs": names_or_all(getattr(args, "onnx_outputs", None)),
        "exclude_outputs": getattr(args, "onnx_exclude_outputs", None),
        "mark_types": getattr(args, "onnx_outputs_by_type", None),
    }
    if any(outputs.values()):
        model = onnx.ModifyOutputs(model, **given(**outputs))
    if getattr(args, "shape_inference", None):
        symbolic: dict[str, Any] = {"allow_onnxruntime": False} if args.no_onnxruntime_shape_inference else {}
        model = onnx.InferShapes(model, **symbolic)
    if args.fp_to_fp16:
        model = onnx.ConvertToFp16(model, **given(weights=weights))
    if getattr(args, "save_onnx", None):
        model = saved_onnx(model, args.save_onnx, args)
    return model


def session_options(args: Options) -> dict[str, Any]:
    """Return the options of ONNX Runtime's session."""
    level = args.graph_optimization_level
    level = level and ("ORT_DISABLE_ALL" if level == "disable" else f"ORT_ENABLE_{level.upper()}")
    return given(providers=list(args.providers) if args.providers else None, graph_optimization_level=level)


def changed_model(args: Options) -> Any:
    """Return the ONNX model: its path if it is used unchanged, otherwise a loader."""
    model: Any = args.model_file
    if wants_onnx_changes(args):
        model = onnx_model(args.but(model_type="onnx"))
    if not getattr(args, "force_fallback_shape_inference", None):
        return model
    # Shapes are observed on one feed, whatever number is given for the inference.
    source = model if isinstance(model, str) else Call(model)
    return call(ops.with_observed_shapes, source, data_loader(args.but(iterations=None)))


def save_config(args: Options) -> SaveConfig:
    """Return the location of saved weights."""
    threshold = args.external_data_size_threshold
    return ops.SaveConfig(
        external_data=args.save_external_data,
        size_threshold=1024 if threshold is None else threshold,
        one_file=not args.no_save_all_tensors_to_one_file,
    )


def saved_onnx(model: Any, path: str, args: Options) -> onnx.SaveOnnx:
    """Return the loader of a model with a copy in a file."""
    options = given(external_data_path=args.save_external_data, size_threshold=args.external_data_size_threshold)
    one_file: dict[str, Any] = {"all_tensors_to_one_file": False} if args.no_save_all_tensors_to_one_file else {}
    return onnx.SaveOnnx(model, path, **options, **one_file)


def names_or_all(names: Iterable[str] | None) -> Any:
    """Return names as a list, or the constant for all of them."""
    if names is None:
        return None
    return MARK_ALL if list(names) in (["mark", "all"], ["mark all"]) else list(names)


# --- data -----------------------------------------------------------------------------------------------------------


def data_loader(args: Options) -> Call | None:
    """Return the data loader; None is random data of the model's own shapes."""
    if args.load_inputs and args.data_loader_script:
        raise UsageError("--load-inputs and --data-loader-script exclude each other")
    if args.load_inputs or args.data_loader_script:
        args.ignore(groups.RANDOM)
    if args.load_inputs:
        return call(comparator.StreamingDataLoader, args.load_inputs)
    if args.data_loader_script:
        path, function = args.data_loader_script
        function = function or args.data_loader_func_name or "load_data"
        return call(common.invoke_from_script, path, function)
    shapes = input_shapes(args)
    # Without other shapes, data has those that the first profile is optimized for.
    if not shapes and (rounds := getattr(args, "trt_opt_shapes", None) or getattr(args, "trt_max_shapes", None)):
        shapes = dict(rounds[0])
    metadata = TensorMetadata()
    for name, shape in (shapes or {}).items():
        metadata.add(name, dtype=None, shape=shape)
    options = {
        "seed": args.seed,
        "iterations": args.iterations,
        "input_metadata": metadata if shapes else None,
        "val_range": per_name(args.val_range),
        "data_loader_backend_module": args.data_loader_backend_module,
    }
    # One bound is enough on a line; the loader takes both.
    for name, low, high in (("int_range", args.int_min, args.int_max), ("float_range", args.float_min, args.float_max)):
        if low is not None or high is not None:
            options[name] = (0 if low is None else low, 1 if high is None else high)
    if not any(value is not None for value in options.values()):
        return None
    return call(comparator.DataLoader, **options)


def input_shapes(args: Options) -> dict[str, tuple[int | str, ...]] | None:
    """Return the requested shapes of inputs; of several for one input the last."""
    return dict(getattr(args, "input_shapes", None) or ()) or None


# --- TensorRT -------------------------------------------------------------------------------------------------------


def profiles(args: Options) -> list[Profile] | None:
    """Return optimization profiles: one for each set of shape options, or the shapes of the data.

    Where one of min, opt and max is missing, the nearest given one is used.
    """
    rounds = [args.trt_min_shapes or [], args.trt_opt_shapes or [], args.trt_max_shapes or []]
    common = input_shapes(args) or {}
    count = max(map(len, rounds)) or (1 if common else 0)
    trt_profiles = []
    for index in range(count):
        low, usual, high = (dict(shapes[index]) if index < len(shapes) else {} for shapes in rounds)
        profile = trt.Profile()
        for name in dict.fromkeys((*low, *usual, *high, *common)):
            if name in low and name not in usual and name in high and name not in common:
                raise UsageError(f"profile {index}: input {name!r} has min and max, but no --trt-opt-shapes")
            opt = usual.get(name) or common.get(name) or high.get(name) or low.get(name)
            profile.add(name, fixed(low.get(name, opt)), fixed(opt), fixed(high.get(name, opt)))
        trt_profiles.append(profile)
    return trt_profiles or None


def fixed(shape: Any) -> tuple[int, ...]:
    """Return a shape with 1 for each dynamic dimension."""
    return tuple(dim if isinstance(dim, int) and dim >= 0 else 1 for dim in shape)


_CONFIG_SCRIPTS = ("--trt-config-script", "--trt-config-postprocess-script")


def builder_config(args: Options) -> Any:
    """Return the loader of the builder config."""
    if args.fp32 and (args.fp16 or args.bf16 or args.fp8 or args.int8):
        raise UsageError("--fp32 and lower precisions exclude each other")
    if args.trt_config_script is not None:
        args.ignore(groups.TRT_SHAPES, groups.PRECISIONS, groups.TRT_CONFIG.without(*_CONFIG_SCRIPTS))
        args.ignore(groups.TRT_TACTICS.without("--save-timing-cache", "--timing-cache"))
        config: Any = common.InvokeFromScript(*args.trt_config_script)
    else:
        config = trt.CreateConfig(**_config_options(args))
    if args.trt_config_postprocess_script is not None:
        config = trt.PostprocessConfig(config, common.InvokeFromScript(*args.trt_config_postprocess_script))
    return config


def _config_options(args: Options) -> dict[str, Any]:
    limits = dict(args.pool_limit or ()) | ({"workspace": args.workspace} if args.workspace is not None else {})
    options = args.pick(*(field.name for field in fields(trt.CreateConfig)))
    options |= {
        "restricted": args.trt_safety_restricted,
        "profiles": profiles(args),
        "precision_constraints": constraints(args)[0],
        "load_timing_cache": args.load_timing_cache or args.timing_cache,
        "memory_pool_limits": limits or None,
        "algorithm_selector": _tactic_selector(args),
        "calibrator": _int8_calibrator(args),
    }
    return given(**options)


def constraints(args: Options) -> tuple[str | None, dict[str, str]]:
    """Return how binding layer precisions are, and the layer precisions given with it."""
    pairs = getattr(args, "precision_constraints", None) or ()
    modes = [word for name, word in pairs if not name]
    layers = {name: word for name, word in pairs if name}
    # A layer's precision that need not be obeyed has no effect.
    mode = modes[-1] if modes else "obey" if layers else None
    return (None if mode == "none" else mode), layers


def _tactic_selector(args: Options) -> Call | None:
    if args.load_tactics:
        if args.save_tactics or args.exclude_tactics:
            raise UsageError("--load-tactics leaves nothing to save or to exclude; give it alone")
        return call(trt.TacticReplayer, args.load_tactics)
    if not (args.save_tactics or args.exclude_tactics):
        return None
    # Exclusions need a selector, which always records.
    record: Any = args.save_tactics or call(trt.TacticReplayData)
    if args.exclude_tactics is None:
        return call(trt.TacticRecorder, record)
    from trtops.backend.trt.choices.selector import restriction_for
    from trtops.tactics.denied import read_exclusions

    restriction = call(restriction_for, call(read_exclusions, args.exclude_tactics), None)
    return call(trt.TacticRecorder, record, restriction=restriction)


def _int8_calibrator(args: Options) -> Call | None:
    """Return a calibrator if INT8 is allowed."""
    if not args.int8:
        args.ignore(groups.CALIBRATION)
        return None
    return call(
        trt.Calibrator,
        data_loader=data_loader(args) or call(comparator.DataLoader),
        cache=args.calibration_cache,
        BaseClass=args.calib_base_cls,
        quantile=args.quantile,
        regression_cutoff=args.regression_cutoff,
    )


def network(args: Options, *, outputs: bool = True) -> Any:
    """Return the loader of the network: parsed or from a script, with the requested changes."""
    kind = model_type(args)
    if kind == "engine":
        raise UsageError(f"{args.model_file} is an engine already; a network is made from an ONNX model or a script")
    loader = _parsed_network(args, kind)
    # Around the parser, which finds plugins in TensorRT's registry.
    if args.plugins:
        loader = trt.LoadPlugins(args.plugins, loader)
    for path, function in args.trt_network_postprocess_script or ():
        loader = trt.PostprocessNetwork(loader, common.InvokeFromScript(path, function))
    if outputs and (args.trt_outputs or args.trt_exclude_outputs or args.trt_outputs_by_type):
        changes = {
            "outputs": names_or_all(args.trt_outputs),
            "exclude_outputs": args.trt_exclude_outputs,
            "mark_layer_types": args.trt_outputs_by_type,
        }
        loader = trt.ModifyNetworkOutputs(loader, **given(**changes))
    if layers := dict(args.layer_precisions or ()) | constraints(args)[1]:
        loader = trt.SetLayerPrecisions(loader, layers)
    if args.all_tensor_dtypes:
        args.ignore("tensor_dtypes")
    if args.all_tensor_dtypes or args.tensor_dtypes:
        loader = trt.SetTensorDatatypes(loader, args.all_tensor_dtypes or dict(args.tensor_dtypes))
    if args.all_tensor_formats or args.tensor_formats:
        formats = {name: words.strip("[]").split(",") for name, words in args.tensor_formats or ()}
        loader = trt.SetTensorFormats(loader, args.all_tensor_formats or formats)
    if args.decomposable_attentions:
        loader = trt.SetDecomposableAttentions(loader)
    return trt.MarkDebug(loader, args.mark_debug) if args.mark_debug else loader


def _parsed_network(args: Options, kind: str) -> Any:
    if kind == "trt-network-script":
        args.ignore(*groups.ONNX, groups.TRT_PARSE.without("--plugins"))
        args.ignore("strongly_typed", "mark_unfused_tensors_as_debug_tensors")
        path, function = split_script(args.model_file)
        return common.InvokeFromScript(path, function or args.trt_network_func or "load_network")
    args.ignore("trt_network_func")
    options = given(
        flags=args.onnx_flags,
        plugin_instancenorm=args.plugin_instancenorm,
        strongly_typed=args.strongly_typed,
        mark_unfused_tensors_as_debug_tensors=args.mark_unfused_tensors_as_debug_tensors,
        enable_uint8_asymmetric_quantization_dla=args.enable_uint8_asymmetric_quantization_dla,
    )
    if kind == "onnx" and not wants_onnx_changes(args):
        return trt.NetworkFromOnnxPath(args.model_file, **options)
    return trt.NetworkFromOnnxBytes(onnx.BytesFromOnnx(onnx_model(args)), **options)


def engine(args: Options, path: str | None = None) -> Any:
    """Return the loader of the engine: built, or loaded from a file."""
    strategy = getattr(args, "dla_workspace_allocation_strategy", None)
    runtime = trt.LoadRuntime(args.load_runtime) if getattr(args, "load_runtime", None) else None
    load = given(runtime=runtime, dla_workspace_allocation_strategy=strategy)
    loader: Any
    if path is not None or model_type(args) == "engine":
        if path is None:
            args.ignore(groups.ENGINE_BUILD, "save_engine")
        plan = path or args.model_file
        if getattr(args, "gen_script", None):
            # Scripts also run with Polygraphy, whose EngineFromPath needs a stream reader that TensorRT 8.6 lacks.
            loader = trt.EngineFromBytes(common.BytesFromPath(plan), **load)
        else:
            loader = trt.EngineFromPath(plan, **load)
        return trt.LoadPlugins(args.plugins, loader) if args.plugins else loader
    loader = trt.EngineFromNetwork(network(args), **_build_options(args), **load)
    return trt.SaveEngine(loader, args.save_engine) if getattr(args, "save_engine", None) else loader


def engine_bytes(args: Options) -> Any:
    """Return the loader of an engine's bytes, built but not loaded."""
    if not args.int8 or args.trt_config_script is not None:
        args.ignore(groups.DATA)
    return trt.EngineBytesFromNetwork(network(args), **_build_options(args))


def _build_options(args: Options) -> dict[str, Any]:
    return given(config=builder_config(args), save_timing_cache=args.save_timing_cache or args.timing_cache)


# --- comparing ------------------------------------------------------------------------------------------------------


PLOTS = ("save_heatmaps", "show_heatmaps", "save_error_metrics_plot", "show_error_metrics_plot")
FUNCTION_OPTIONS = {
    "simple": ("rtol", "atol", "check_error_stat", "error_quantile"),
    "indices": ("index_tolerance",),
    **{metric.key: (metric.option,) for metric in METRICS if metric.limit is not None},
}
"""The tolerances of each compare function."""


def compare_functions(args: Options) -> list[Any]:
    """Return the compare functions; several error statistics make one simple function each."""
    if args.compare_func_script is not None:
        if args.compare:
            raise UsageError("--compare and --compare-func-script exclude each other")
        args.ignore("no_shape_check", "infinities_compare_equal", *PLOTS, *itertools.chain(*FUNCTION_OPTIONS.values()))
        return [common.InvokeFromScript(*args.compare_func_script)]
    functions: list[Any] = []
    separate = (_SEPARATELY.get(name, (name,)) for name in args.compare or ("simple",))
    names = dict.fromkeys(itertools.chain.from_iterable(separate))
    for name, function_options in FUNCTION_OPTIONS.items():
        if name not in names:
            args.ignore(*function_options)
    if "simple" not in names:
        args.ignore("infinities_compare_equal", *PLOTS)
    options = given(fail_fast=args.fail_fast)
    shapes: dict[str, Any] = {"check_shapes": False} if args.no_shape_check else {}
    for name in names:
        if name == "simple":
            functions += (
                comparator.SimpleCompareFunc(**shapes, **options, **simple_options)
                for simple_options in _simple_options(args)
            )
        elif name == "indices":
            tolerance = given(index_tolerance=per_name(args.index_tolerance))
            functions.append(comparator.IndicesCompareFunc(**options, **tolerance))
        else:
            comparison = next(comparison for comparison in COMPARISONS if comparison.name == name)
            limits = {option: per_name(getattr(args, metric.option)) for option, metric in comparison.limits.items()}
            function = getattr(comparator, comparison.compare_func)
            functions.append(function(**shapes, **options, **given(**limits)))
    return functions


# Comparisons by several metrics, with the functions they stand for. As in Polygraphy, each has its own verdict.
_SEPARATELY = {
    comparison.name: tuple(metric.key for metric in comparison.limits.values())
    for comparison in COMPARISONS
    if len(comparison.limits) > 1
}


def _simple_options(args: Options) -> Iterable[dict[str, Any]]:
    """Yield the options of each simple function."""
    numbers = given(
        rtol=per_name(args.rtol),
        atol=per_name(args.atol),
        error_quantile=per_name(args.error_quantile),
        infinities_compare_equal=args.infinities_compare_equal,
    )
    plots = given(**args.pick(*PLOTS))
    if plots:
        require("matplotlib")
    pairs = args.check_error_stat or ()
    stat_of_output = {name: stat for name, stat in pairs if name}
    for stat in [stat for name, stat in pairs if not name] or [None]:
        chosen = {**({"": stat} if stat else {}), **stat_of_output} if stat_of_output else stat
        yield {**numbers, **plots, **given(check_error_stat=chosen)}
        # The plots show errors, which are the same for every statistic.
        plots = {}
