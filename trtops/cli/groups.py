"""The options that commands share, in groups."""

from __future__ import annotations

from trtops.cli import values
from trtops.cli.flags import Flag, Group
from trtops.comparator.table import COMPARISONS, METRICS

MODEL_TYPES = ("onnx", "engine", "trt-network-script", "keras", "frozen", "ckpt", "uff", "caffe")

MODEL = Group(
    "model",
    (
        Flag(
            names=("model_file",), takes="optional", help="the model: .onnx, .engine, .plan, a network script .py, ..."
        ),
        Flag(names=("--model-type",), choices=MODEL_TYPES, help="what the model is; by its ending unless given"),
        Flag(
            names=("--input-shapes", "--inputs"),
            takes="many",
            convert=values.shape,
            shown="NAME:[DIMS]",
            help="shapes of inputs, for data and for engines: x:[1,3,224,224]",
        ),
    ),
)

ONNX_MODEL = Group("model", (Flag(names=("model_file",), help="the ONNX model"),))

ONNX_LOAD = Group(
    "ONNX loading",
    (
        Flag(
            names=("--external-data-dir", "--load-external-data", "--ext"),
            shown="FOLDER",
            help="where the model's external data lies",
        ),
        Flag(names=("--ignore-external-data",), takes="switch", help="load no external data: structure only"),
        Flag(names=("--fp-to-fp16",), takes="switch", help="rewrite the model to compute in FP16"),
    ),
)

ONNX_OUTPUTS = Group(
    "ONNX outputs",
    (
        Flag(
            names=("--onnx-outputs",),
            takes="many",
            shown="NAME",
            help="tensors to be the outputs, by name or pattern; 'mark all' for all",
        ),
        Flag(
            names=("--onnx-exclude-outputs", "--exclude-outputs"),
            takes="many",
            shown="NAME",
            help="outputs to leave out",
        ),
        Flag(
            names=("--onnx-outputs-by-type",),
            takes="many",
            shown="OP",
            help="types of nodes whose results are to be the outputs",
        ),
        Flag(
            names=("--mark-all",),
            takes="switch",
            to="onnx_outputs",
            value=("mark", "all"),
            help="as --onnx-outputs mark all",
        ),
    ),
)

ONNX_SHAPE = Group(
    "ONNX shape inference",
    (
        Flag(names=("--shape-inference", "--do-shape-inference"), takes="switch", help="infer shapes first"),
        Flag(
            names=("--no-onnxruntime-shape-inference",),
            takes="switch",
            help="infer shapes without ONNX Runtime's symbolic inference",
        ),
    ),
)

ONNX_SAVE = Group(
    "ONNX saving",
    (
        Flag(names=("-o", "--output"), required=True, shown="FILE", to="output", help="where to write the model"),
        Flag(
            names=("--save-external-data", "--external-data-path"),
            takes="optional",
            value="",
            shown="FILE",
            help="keep weights in a file beside the model; <model>.data unless named",
        ),
        Flag(
            names=("--external-data-size-threshold",),
            convert=values.size,
            shown="BYTES",
            help="smaller weights stay in the model file",
        ),
        Flag(names=("--no-save-all-tensors-to-one-file",), takes="switch", help="one file for each weight"),
    ),
)

SAVE_ONNX = Group(
    "ONNX saving",
    (
        Flag(names=("--save-onnx",), shown="FILE", help="where to write the ONNX model as it is run"),
        *ONNX_SAVE.flags[1:],
    ),
)

DATA = Group(
    "input data",
    (
        Flag(names=("--seed",), usual="1", convert=int, help="seed of random data"),
        Flag(
            names=("--val-range",),
            takes="many",
            convert=values.value_range,
            shown="[LO,HI]",
            help="range of random data, for all or by input: [0,1] ids:[0,255]",
        ),
        Flag(names=("--int-min",), usual="0", convert=int, help="smallest random integer"),
        Flag(names=("--int-max",), usual="1", convert=int, help="largest random integer"),
        Flag(names=("--float-min",), usual="0", convert=float, help="smallest random float"),
        Flag(names=("--float-max",), usual="1", convert=float, help="largest random float"),
        Flag(names=("--iterations", "--iters"), usual="1", convert=int, shown="N", help="how many random feeds"),
        Flag(
            names=("--data-loader-backend-module",),
            usual="numpy",
            choices=("numpy", "torch"),
            help="what random arrays are made by",
        ),
        Flag(
            names=("--load-inputs", "--load-input-data"),
            takes="many",
            shown="FILE",
            help="saved inputs to use, in place of random data",
        ),
        Flag(
            names=("--data-loader-script",),
            convert=values.script(""),
            shown="FILE[:FUNCTION]",
            help="a script whose function yields feeds; load_data unless named",
        ),
        Flag(names=("--data-loader-func-name",), shown="NAME", help="that function's name, as older scripts say it"),
    ),
)

IN_ITS_PRECISION = Flag(
    names=("--min-precision-share",),
    convert=float,
    shown="SHARE",
    help="the share of kernels, from 0 to 1, that have to compute in the precision asked for (default: 0, which asks for one)",
)

ONE_FEED = Group(
    DATA.title,
    (
        Flag(
            names=("--iterations", "--iters"), convert=int, shown="N", help="how many feeds", idle="one feed is enough"
        ),
    ),
)
"""For commands that look at the first feed alone."""

TRT_SHAPES = Group(
    "TensorRT profiles (repeat for more profiles)",
    tuple(
        Flag(
            names=(f"--trt-{bound}-shapes",),
            takes="repeat",
            convert=values.shape,
            shown="NAME:[DIMS]",
            help=f"{text} shapes of inputs: x:[1,3,224,224]",
        )
        for bound, text in (("min", "smallest"), ("opt", "usual"), ("max", "largest"))
    ),
)

PRECISIONS = Group(
    "TensorRT precisions",
    (
        Flag(names=("--tf32",), takes="switch", help="let FP32 layers round their inputs to TF32"),
        Flag(names=("--fp16",), takes="switch", help="allow FP16"),
        Flag(names=("--bf16",), takes="switch", help="allow BF16"),
        Flag(names=("--fp8",), takes="switch", help="allow FP8"),
        Flag(names=("--int8",), takes="switch", help="allow INT8"),
        Flag(names=("--fp32",), takes="switch", help="allow no lower precision, which is the default"),
        Flag(
            names=("--precision-constraints",),
            takes="many",
            convert=values.constraint,
            shown="prefer|obey|none|LAYER:TYPE",
            help="how binding layer precisions are; or precisions of layers, which then bind",
        ),
        Flag(
            names=("--calibration-cache",),
            shown="FILE",
            help="INT8 calibration cache, read if it is there, else written",
        ),
        Flag(
            names=("--calib-base-cls", "--calibration-base-class"),
            shown="CLASS",
            help="TensorRT's calibrator class, such as IInt8MinMaxCalibrator",
        ),
        Flag(names=("--quantile",), usual="0.5", convert=float, help="quantile for IInt8LegacyCalibrator"),
        Flag(
            names=("--regression-cutoff",),
            usual="0.5",
            convert=float,
            help="regression cutoff for IInt8LegacyCalibrator",
        ),
    ),
)

TRT_TACTICS = Group(
    "TensorRT tactics and timing",
    (
        Flag(
            names=("--load-timing-cache",),
            shown="FILE",
            help="timing cache to build with; with --experiment also run:<id>, accepted or shared",
        ),
        Flag(names=("--save-timing-cache",), shown="FILE", help="timing cache to write, merged with what is there"),
        Flag(names=("--timing-cache",), shown="FILE", help="timing cache to build with and to write"),
        Flag(names=("--error-on-timing-cache-miss",), takes="switch", help="fail rather than time a tactic"),
        Flag(names=("--disable-compilation-cache",), takes="switch", help="keep compiled code out of the timing cache"),
        Flag(names=("--save-tactics", "--save-tactic-replay"), shown="FILE", help="where to note the tactics chosen"),
        Flag(names=("--load-tactics", "--load-tactic-replay"), shown="FILE", help="tactics to choose again"),
        Flag(
            names=("--exclude-tactics",), shown="FILE", help="tactics that must not be chosen: a deny list, or a record"
        ),
        Flag(names=("--tactic-sources",), takes="any", shown="SOURCE", help="libraries that tactics may come from"),
    ),
)

TRT_CONFIG = Group(
    "TensorRT builder config",
    (
        Flag(
            names=("--trt-config-script",),
            convert=values.script("load_config"),
            shown="FILE[:FUNCTION]",
            help="a script that makes the builder config, in place of these options",
        ),
        Flag(
            names=("--trt-config-postprocess-script", "--trt-cpps"),
            convert=values.script("postprocess_config"),
            shown="FILE[:FUNCTION]",
            help="a script that changes the builder config",
        ),
        Flag(names=("--trt-safety-restricted",), takes="switch", help="stay within the safety-certified scope"),
        Flag(names=("--sparse-weights",), takes="switch", help="allow kernels for 2:4 sparse weights"),
        Flag(names=("--version-compatible",), takes="switch", help="let later releases load the engine"),
        Flag(names=("--exclude-lean-runtime",), takes="switch", help="leave the lean runtime out of such an engine"),
        Flag(names=("--refittable",), takes="switch", help="let weights be exchanged later"),
        Flag(names=("--strip-plan",), takes="switch", help="leave refittable weights out of the engine"),
        Flag(names=("--use-dla",), takes="switch", help="run on DLA core 0"),
        Flag(names=("--allow-gpu-fallback",), takes="switch", help="let layers that DLA cannot run go to the GPU"),
        Flag(
            names=("--pool-limit", "--memory-pool-limit"),
            takes="many",
            convert=values.pool_limit,
            shown="POOL:SIZE",
            help="limits of memory pools: workspace:1G",
        ),
        Flag(names=("--workspace",), convert=values.size, shown="SIZE", help="as --pool-limit workspace:SIZE"),
        Flag(
            names=("--preview-features",), takes="any", shown="FEATURE", help="preview features to switch on, no others"
        ),
        Flag(
            names=("--builder-optimization-level",),
            usual="TensorRT's own",
            convert=int,
            shown="0..5",
            help="how hard to optimize",
        ),
        Flag(names=("--hardware-compatibility-level",), shown="LEVEL", help="devices that the engine should run on"),
        Flag(
            names=("--max-aux-streams",),
            usual="TensorRT's own",
            convert=int,
            shown="N",
            help="streams that the engine may use beside its own",
        ),
        Flag(names=("--quantization-flags",), takes="any", shown="FLAG", help="quantization flags to set, no others"),
        Flag(
            names=("--profiling-verbosity",), shown="LEVEL", help="how much detail the engine keeps for its inspector"
        ),
        Flag(names=("--weight-streaming",), takes="switch", help="let weights stay in host memory until needed"),
        Flag(names=("--runtime-platform",), shown="PLATFORM", help="platform to build for"),
        Flag(names=("--direct-io",), takes="switch", help="forbid reformatting at inputs and outputs"),
        Flag(names=("--tiling-optimization-level",), shown="LEVEL", help="how hard to look for tilings"),
        Flag(names=("--engine-capability",), shown="SCOPE", help="scope of the engine"),
        Flag(
            names=("--pooled-outputs",),
            takes="switch",
            help="keep output memory from one inference to the next",
            idle="runners do so in any case. Limit memory by --pool-limit workspace:SIZE, or by --allocation-strategy of "
            "`trtops run`",
        ),
    ),
)

TRT_NETWORK = Group(
    "TensorRT network",
    (
        Flag(
            names=("--layer-precisions",),
            takes="many",
            convert=values.layer_type,
            shown="LAYER:TYPE",
            help="precisions of layers",
        ),
        Flag(names=("--decomposable-attentions",), takes="switch", help="let attention be decomposed"),
        Flag(
            names=("--tensor-dtypes", "--tensor-datatypes"),
            takes="many",
            convert=values.layer_type,
            shown="TENSOR:TYPE",
            help="types of inputs and outputs",
        ),
        Flag(
            names=("--all-tensor-dtypes", "--all-tensor-datatypes"),
            shown="TYPE",
            help="one type for all floating-point inputs and outputs",
        ),
        Flag(
            names=("--tensor-formats",),
            takes="many",
            convert=values.named,
            shown="TENSOR:FORMAT",
            help="formats of inputs and outputs: x:[linear,chw4]",
        ),
        Flag(names=("--all-tensor-formats",), takes="many", shown="FORMAT", help="formats for all inputs and outputs"),
        Flag(
            names=("--trt-network-postprocess-script", "--trt-npps"),
            takes="many",
            convert=values.script("postprocess"),
            shown="FILE[:FUNCTION]",
            help="scripts that change the network, in this order",
        ),
        Flag(
            names=("--trt-network-func", "--trt-network-func-name"),
            shown="NAME",
            help="the function of a network script",
        ),
        Flag(names=("--strongly-typed",), takes="switch", help="take every precision from the model"),
        Flag(names=("--mark-debug",), takes="many", shown="TENSOR", help="debug tensors, by name or pattern"),
        Flag(
            names=("--mark-unfused-tensors-as-debug-tensors",),
            takes="switch",
            help="make debug tensors of all that survive fusion",
        ),
    ),
)

TRT_OUTPUTS = Group(
    "TensorRT outputs",
    (
        Flag(
            names=("--trt-outputs",),
            takes="many",
            shown="NAME",
            help="tensors to be the network's outputs, by name or pattern; 'mark all' for all",
        ),
        Flag(names=("--trt-exclude-outputs",), takes="many", shown="NAME", help="outputs of the network to leave out"),
        Flag(
            names=("--trt-outputs-by-type",),
            takes="many",
            shown="LAYER",
            help="types of layers whose results are to be outputs",
        ),
    ),
)

TRT_PARSE = Group(
    "TensorRT parser and plugins",
    (
        Flag(names=("--plugins",), takes="many", shown="FILE", help="plugin libraries to load"),
        Flag(names=("--onnx-flags",), takes="many", shown="FLAG", help="flags of TensorRT's ONNX parser"),
        Flag(names=("--plugin-instancenorm",), takes="switch", help="use the plugin for InstanceNormalization"),
        Flag(
            names=("--enable-uint8-asymmetric-quantization-dla",),
            takes="switch",
            help="take UINT8 and asymmetric quantization for DLA",
        ),
    ),
)

TRT_LOAD = Group(
    "TensorRT engine loading",
    (
        Flag(names=("--load-runtime",), shown="FILE", help="a lean runtime to load version compatible engines with"),
        Flag(names=("--dla-workspace-allocation-strategy",), shown="STRATEGY", help="how engines share DLA workspaces"),
    ),
)

TRT_BUILD = (TRT_SHAPES, PRECISIONS, TRT_TACTICS, TRT_CONFIG, TRT_NETWORK, TRT_OUTPUTS, TRT_PARSE)

THRESHOLDS = Group(
    "tolerances ([OUTPUT:]VALUE for one output)",
    (
        Flag(
            names=("--compare", "--compare-func"),
            takes="many",
            choices=("simple", "indices", *(comparison.name for comparison in COMPARISONS)),
            shown="FUNCTION",
            help="how to compare: simple (default), indices, or one of "
            + ", ".join(f"{each.name}{' (both)' if len(each.limits) > 1 else ''}" for each in COMPARISONS),
        ),
        Flag(names=("--check-average",), takes="switch", help="evaluate means over all iterations"),
        Flag(names=("--save-accuracy-results",), shown="FILE", help="where to write all numbers, to be re-evaluated"),
        Flag(names=("--rtol", "--rel-tol"), takes="many", convert=values.named_number, shown="[OUTPUT:]X", help="relative tolerance"),
        Flag(names=("--atol", "--abs-tol"), takes="many", convert=values.named_number, shown="[OUTPUT:]X", help="absolute tolerance"),
        Flag(
            names=("--check-error-stat",),
            takes="many",
            convert=values.statistic,
            shown="[OUTPUT:]STAT",
            help="which error is evaluated: elemwise, max, mean, median, quantile; several are evaluated one by one",
        ),
        Flag(
            names=("--error-quantile",), takes="many", convert=values.named_number, shown="[OUTPUT:]Q", help="the level for quantile"
        ),
        Flag(names=("--index-tolerance",), takes="many", convert=values.named_whole, shown="[OUTPUT:]N", help="places an index may be away"),
        *(
            Flag(
                names=(f"--{metric.option.replace('_', '-')}", *metric.other_flags),
                takes="many",
                convert=values.named_number,
                shown=f"[OUTPUT:]{metric.unit.upper() or 'X'}",
                help=f"{metric.limit_kind} {metric.label}",
            )
            for metric in METRICS
            if metric.limit is not None
        ),
    ),
)  # fmt: skip

COMPARING = Group(
    "comparing",
    (
        Flag(
            names=("--compare-func-script",),
            convert=values.script("compare_outputs"),
            shown="FILE[:FUNCTION]",
            help="a script with a compare function of its own",
        ),
        Flag(names=("--fail-fast",), takes="switch", help="stop at the first iteration that does not match"),
        Flag(
            names=("--no-shape-check",),
            takes="switch",
            help="compare outputs of different shapes that have as many elements",
        ),
        Flag(names=("--infinities-compare-equal",), takes="switch", help="let infinities of equal sign match"),
        Flag(names=("--save-heatmaps",), shown="FOLDER", help="where to save heat maps of errors"),
        Flag(names=("--show-heatmaps",), takes="switch", help="show heat maps of errors"),
        Flag(
            names=("--save-error-metrics-plot",), shown="FOLDER", help="where to save plots of errors over magnitudes"
        ),
        Flag(names=("--show-error-metrics-plot",), takes="switch", help="show plots of errors over magnitudes"),
    ),
)

CHECK = Group(
    "check",
    (
        Flag(
            names=("--fail-code", "--fail-returncode"),
            usual="any but 0",
            takes="many",
            convert=int,
            shown="CODE",
            help="exit codes that are the failure",
        ),
        Flag(
            names=("--ignore-fail-code", "--ignore-fail-returncode"),
            usual="none",
            takes="many",
            convert=int,
            shown="CODE",
            help="exit codes that are not",
        ),
        Flag(names=("--fail-regex",), takes="many", shown="REGEX", help="what the failure prints"),
        Flag(names=("--show-output",), takes="switch", help="show what the check prints, also when it passes"),
        Flag(names=("--hide-fail-output",), takes="switch", help="hide what the check prints when it fails"),
        Flag(
            names=("--check-timeout",),
            usual="no limit",
            convert=float,
            shown="SECONDS",
            help="how long one check may take",
        ),
        Flag(
            names=("--check", "--check-inference"),
            takes="rest",
            to="check",
            shown="COMMAND ...",
            help="the command that evaluates; the rest of the line belongs to it",
        ),
    ),
)

SORTING = Group(
    "sorting what checks leave",
    (
        Flag(
            names=("--artifacts",),
            takes="many",
            shown="FILE",
            help="files to sort into good/ and bad/ after each check",
        ),
        Flag(
            names=("--art-dir", "--artifacts-dir"),
            shown="FOLDER",
            default="trtops_artifacts",
            help="where good/ and bad/ are",
        ),
    ),
)

ITERATING = Group(
    "iterating",
    (
        Flag(names=("--iter-artifact", "--intermediate-artifact"), shown="FILE", help="the file that each check reads"),
        Flag(names=("--no-remove-intermediate",), takes="switch", help="leave that file in the end"),
        Flag(
            names=("--iter-info", "--iteration-info"),
            shown="FILE",
            help="where to write the iteration's number, for the check to read",
        ),
        Flag(
            names=("--exit-on-bad",),
            takes="switch",
            help="exit with 1 where the verdict is bad; without it, and without --experiment, the work done is exit code 0",
        ),
    ),
)

UNTIL = Group(
    "when to stop",
    (
        Flag(
            names=("--until", "--num-iterations"),
            convert=values.until,
            shown="good|bad|N",
            help="stop at the first good or bad one, or after so many",
        ),
    ),
)

REPLAY = Group(
    "resuming",
    (
        Flag(names=("--load-debug-replay",), shown="FILE", help="answers of an earlier search"),
        Flag(
            names=("--save-debug-replay",),
            shown="FILE",
            default="trtops_debug_replay.json",
            help="where to keep answers",
        ),
    ),
)

PROVIDERS = Group(
    "ONNX Runtime",
    (
        Flag(
            names=("--providers", "--execution-providers"),
            takes="many",
            shown="PROVIDER",
            help="execution providers in order of preference: cuda cpu",
        ),
        Flag(
            names=("--graph-optimization-level",),
            usual="all",
            convert=values.optimization_level,
            choices=("disable", "basic", "extended", "all"),
            help="how far ONNX Runtime optimizes; its own names are taken too, such as ORT_ENABLE_BASIC",
        ),
    ),
)

_NO_SESSION = "no TensorFlow session is run: models go by way of ONNX (tf2onnx)"

TENSORFLOW = Group(
    "TensorFlow models, by way of tf2onnx",
    (
        Flag(names=("--ckpt",), shown="NAME", help="a checkpoint's name without its ending"),
        Flag(names=("--tf-outputs",), takes="many", shown="TENSOR", help="output tensors of the graph"),
        Flag(names=("--opset",), usual="the model's own", convert=int, help="ONNX operator set to convert to"),
        *(
            Flag(names=names, takes="optional", help="", refuse=f"{why}. Models go by way of ONNX (tf2onnx)")
            for names, why in (
                (("--save-pb",), "a frozen graph is not made; use --save-onnx"),
                (("--save-tensorboard",), "no TensorFlow session is run; use --save-onnx and a viewer"),
                (("--save-timeline",), "no TensorFlow session is run"),
                (("--tftrt", "--use-tftrt"), "TensorFlow-TensorRT is not used; add --trt"),
                (("--minimum-segment-size",), "TensorFlow-TensorRT is not used; add --trt"),
                (("--dynamic-op",), "TensorFlow-TensorRT is not used; add --trt"),
            )
        ),
        Flag(names=("--freeze-graph",), takes="switch", help="freeze the graph", idle="tf2onnx does so by itself"),
        Flag(names=("--gpu-memory-fraction",), shown="X", help="GPU memory for TensorFlow", idle=_NO_SESSION),
        Flag(names=("--allow-growth",), takes="switch", help="GPU memory as it is needed", idle=_NO_SESSION),
        Flag(names=("--xla",), takes="switch", help="compile by XLA", idle=_NO_SESSION),
    ),
)

TRACKING = Group(
    "memory",
    (
        Flag(names=("--experiment",), shown="NAME", help="remember this as a run of that experiment, as the flows do"),
        Flag(
            names=("--store",),
            shown="PLACE",
            help="the store: a folder or an MLflow server (default: TRTOPS_HOME or ./mlruns)",
        ),
    ),
)

STORE = Group("memory", TRACKING.flags[1:])

REMEMBERED = Group(
    "code that a run names",
    (
        Flag(
            names=("--allow-scripts",),
            takes="switch",
            help="run the scripts and commands that the run names, after having looked at them",
        ),
    ),
)

JSON = Group("printing", (Flag(names=("--json",), takes="switch", help="print JSON"),))

SOURCE = Group(
    "input data",
    tuple(
        flag
        for flag in DATA.flags
        if flag.dest in ("seed", "iterations", "load_inputs", "data_loader_script", "data_loader_func_name")
    ),
)
"""Data for ops that take one source of it."""

_OF_SPECS = (
    "tf32", "fp16", "bf16", "fp8", "int8", "precision_constraints", "trt_min_shapes", "trt_opt_shapes", "trt_max_shapes",
    "tactic_sources", "sparse_weights", "version_compatible", "refittable", "strongly_typed", "pool_limit", "workspace",
    "builder_optimization_level", "layer_precisions", "use_dla", "allow_gpu_fallback",
)  # fmt: skip

SPEC = Group("building", tuple(flag for group in TRT_BUILD for flag in group.flags if flag.dest in _OF_SPECS))
"""What a build's spec holds: options of commands whose builds are remembered, or made by ops."""

_NOT_RECORDED = [metric.option for metric in METRICS if not metric.recorded]

STATISTICS = Group(
    THRESHOLDS.title,
    tuple(
        flag
        for flag in THRESHOLDS.flags
        if flag.dest not in ("compare", "check_average", "save_accuracy_results", "index_tolerance", *_NOT_RECORDED)
    ),
)
"""Tolerances for ops that keep all statistics and derive verdicts from them."""
