"""The shared options of commands, in groups."""

from trtops.cli import values
from trtops.cli.flags import Group, flag
from trtops.comparator.table import COMPARISONS, METRICS

INPUT_SHAPES = flag("--input-shapes --inputs NAME:[DIMS]+", "shapes of inputs, for data and engines: x:[1,3,224,224]")
INPUT_DTYPES = flag("--input-dtypes NAME:TYPE+", "types of a PyTorch module's inputs: ids:int64", usual="float32")
MODEL_TYPE = flag(
    "--model-type {onnx,engine,torch,trt-network-script,keras,frozen,ckpt,uff,caffe}",
    "what it is (default: by its name)",
)
MODEL = Group(
    "model",
    flag("model_file?", "the model: .onnx, .engine, .plan, .pt2, script.py:function, a network script .py, ..."),
    MODEL_TYPE,
    INPUT_SHAPES,
    INPUT_DTYPES,
)
ONNX_MODEL = Group("model", flag("model_file", "the model: .onnx, .pt2, or script.py:function for a PyTorch module"))

ONNX_LOAD = Group(
    "ONNX loading",
    flag("--external-data-dir --load-external-data --ext FOLDER", "the folder of the model's external data"),
    flag("--ignore-external-data", "load no external data: structure only"),
    flag("--fp-to-fp16", "rewrite the model to compute in FP16"),
)

ONNX_OUTPUTS = Group(
    "ONNX outputs",
    flag("--onnx-outputs NAME+", "tensors to use as outputs, by name or pattern; 'mark all' for all"),
    flag("--onnx-exclude-outputs --exclude-outputs NAME+", "outputs to leave out"),
    flag("--onnx-outputs-by-type OP+", "types of nodes whose results become outputs"),
    flag("--mark-all", "as --onnx-outputs mark all", to="onnx_outputs", value=("mark", "all")),
)

NO_SYMBOLIC_SHAPES = flag(
    "--no-onnxruntime-shape-inference",
    "infer shapes without ONNX Runtime's symbolic inference",
    needs="shape_inference",
)
ONNX_SHAPE = Group(
    "ONNX shape inference", flag("--shape-inference --do-shape-inference", "infer shapes first"), NO_SYMBOLIC_SHAPES
)

ONNX = (ONNX_LOAD, ONNX_OUTPUTS, ONNX_SHAPE)

# How weights are saved.
SAVE_AS = Group(
    "ONNX saving",
    flag(
        "--save-external-data --external-data-path FILE?",
        "save weights in <model>.data or this file",
        value="",
        file="weights",
    ),
    flag("--external-data-size-threshold BYTES", "smaller weights stay in the model file"),
    flag("--no-save-all-tensors-to-one-file", "one file for each weight"),
)

ONNX_SAVE = Group(
    SAVE_AS.title, flag("-o --output FILE", "where to write the model", required=True, to="output"), SAVE_AS
)

DATA = Group(
    "input data",
    flag("--seed N", "seed of random data", usual="1"),
    flag("--val-range [LO,HI]+", "range of random data, for all or by input: [0,1] ids:[0,255]"),
    flag("--int-min N", "smallest random integer", usual="0", least=None),
    flag("--int-max N", "largest random integer", usual="1", least=None),
    flag("--float-min X", "smallest random float", usual="0", least=None),
    flag("--float-max X", "largest random float", usual="1", least=None),
    flag("--iterations --iters N", "number of random feeds", usual="1, or 2 to evaluate engines", least=1),
    flag("--data-loader-backend-module {numpy,torch}", "library that makes random arrays", usual="numpy"),
    flag("--load-inputs --load-input-data --data FILE+", "saved inputs, or a folder of them, instead of random data"),
    flag("--data-loader-script FILE[:]", "a script whose function yields feeds; load_data unless named"),
    flag(
        "--data-loader-func-name NAME",
        "the name of that function, for older command lines",
        needs="data_loader_script",
    ),
)

RANDOM = DATA.only(
    "seed", "val_range", "int_min", "int_max", "float_min", "float_max", "iterations", "data_loader_backend_module"
)

# Data for ops that take one source, which they record.
SOURCE = Group(
    DATA.title,
    INPUT_SHAPES,
    INPUT_DTYPES,
    DATA.only("seed", "val_range", "iterations", "load_inputs", "data_loader_script", "data_loader_func_name"),
)

# For commands that use only the first feed; Polygraphy accepts the option there as well.
ONE_FEED = Group(DATA.title, flag("--iterations --iters N", "number of feeds", idle="only the first feed is used"))

TRT_SHAPES = Group(
    "TensorRT profiles (repeat for more profiles)",
    *(
        flag(f"--trt-{bound}-shapes NAME:[DIMS]", f"{text} shapes of inputs: x:[1,3,224,224]", takes="repeat")
        for bound, text in (("min", "smallest"), ("opt", "usual"), ("max", "largest"))
    ),
)

PRECISIONS = Group(
    "TensorRT precisions",
    flag("--tf32", "let FP32 layers round their inputs to TF32 (also ONNX Runtime's, on a GPU)"),
    flag("--fp16", "allow FP16"),
    flag("--bf16", "allow BF16"),
    flag("--fp8", "allow FP8"),
    flag("--int8", "allow INT8"),
    flag("--fp32", "allow no lower precision, which is the default"),
    flag(
        "--precision-constraints MODE|LAYER:TYPE+",
        "prefer, obey or none; or binding precisions of layers",
        single=lambda word: word if word in values.CONSTRAINTS else None,
    ),
    flag("--calibration-cache FILE", "INT8 calibration cache, read if it exists, otherwise written"),
    flag("--calib-base-cls --calibration-base-class CLASS", "TensorRT's calibrator class: IInt8MinMaxCalibrator"),
    flag("--quantile X", "quantile for IInt8LegacyCalibrator", usual="0.5", most=1),
    flag("--regression-cutoff X", "regression cutoff for IInt8LegacyCalibrator", usual="0.5"),
)

TRT_TACTICS = Group(
    "TensorRT tactics and timing",
    flag("--load-timing-cache FILE", "timing cache to build with; with --experiment also run:ID"),
    flag(
        "--save-timing-cache FILE",
        "timing cache to write, merged with an existing file",
        continues="load_timing_cache timing_cache",
    ),
    flag("--timing-cache FILE", "timing cache to build with and to write"),
    flag("--error-on-timing-cache-miss", "fail rather than time a tactic"),
    flag("--disable-compilation-cache", "keep compiled code out of the timing cache"),
    flag("--save-tactics --save-tactic-replay FILE", "where to record the chosen tactics"),
    flag("--load-tactics --load-tactic-replay FILE", "recorded tactics to choose again"),
    flag("--exclude-tactics FILE", "tactics that must not be chosen: a deny-list, or a record"),
    flag("--tactic-sources SOURCE*", "libraries that tactics may come from"),
)

TRT_CONFIG = Group(
    "TensorRT builder config",
    flag("--trt-config-script FILE[:load_config]", "a script that makes the builder config, instead of these options"),
    flag("--trt-config-postprocess-script --trt-cpps FILE[:postprocess_config]", "a script that changes that config"),
    flag("--trt-safety-restricted", "stay within the safety-certified scope"),
    flag("--sparse-weights", "allow kernels for 2:4 sparse weights"),
    flag("--version-compatible", "let later releases load the engine"),
    flag("--exclude-lean-runtime", "leave the lean runtime out of such an engine"),
    flag("--refittable", "allow weights to be replaced later"),
    flag("--strip-plan", "leave refittable weights out of the engine"),
    flag("--use-dla", "run on DLA core 0"),
    flag("--allow-gpu-fallback", "run layers on the GPU that DLA cannot run"),
    flag("--pool-limit --memory-pool-limit POOL:SIZE+", "limits of memory pools: workspace:1G"),
    flag("--workspace SIZE", "as --pool-limit workspace:SIZE"),
    flag("--preview-features FEATURE*", "preview features to switch on; all others are off"),
    flag("--builder-optimization-level 0..5", "how hard to optimize", usual="TensorRT's own", convert=int, most=5),
    flag(
        "--avg-timing-iterations N",
        "measurements averaged per timing of a tactic",
        usual="TensorRT's own",
        convert=int,
        least=1,
    ),
    flag("--max-num-tactics N", "tactics timed where there is a choice", usual="TensorRT's own", convert=int, least=1),
    flag("--l2-limit-for-tiling SIZE", "L2 cache that tilings aim at"),
    flag("--build-route TEXT", "settings of TensorRT's compiler: '-name=value -other=value'"),
    flag("--hardware-compatibility-level LEVEL", "devices that the engine should run on"),
    flag("--max-aux-streams N", "streams that the engine may use besides its own", usual="TensorRT's own"),
    flag("--quantization-flags FLAG*", "quantization flags to set; all others are cleared"),
    flag("--profiling-verbosity LEVEL", "how much detail the engine keeps for its inspector"),
    flag("--weight-streaming", "keep weights in host memory until needed"),
    flag("--runtime-platform PLATFORM", "platform to build for"),
    flag("--direct-io", "forbid reformatting at inputs and outputs"),
    flag("--tiling-optimization-level LEVEL", "how hard to search for tilings"),
    flag("--engine-capability SCOPE", "scope of the engine"),
    flag("--pooled-outputs", "keep output memory from one inference to the next", idle="runners always do so"),
)

TRT_NETWORK = Group(
    "TensorRT network",
    flag("--layer-precisions LAYER:TYPE+", "precisions of layers"),
    flag("--decomposable-attentions", "let attention be decomposed"),
    flag("--tensor-dtypes --tensor-datatypes TENSOR:TYPE+", "types of inputs and outputs"),
    flag("--all-tensor-dtypes --all-tensor-datatypes TYPE", "one type for all floating-point inputs and outputs"),
    flag("--tensor-formats TENSOR:FORMAT+", "formats of inputs and outputs: x:[linear,chw4]"),
    flag("--all-tensor-formats FORMAT+", "formats for all inputs and outputs"),
    flag("--trt-network-postprocess-script --trt-npps FILE[:postprocess]+", "scripts that change the network"),
    flag("--trt-network-func --trt-network-func-name NAME", "the function of a network script"),
    flag("--strongly-typed", "take every precision from the model"),
    flag("--mark-debug TENSOR+", "debug tensors, by name or pattern"),
    flag("--mark-unfused-tensors-as-debug-tensors", "make debug tensors of all that survive fusion"),
)

TRT_OUTPUTS = Group(
    "TensorRT outputs",
    flag("--trt-outputs NAME+", "tensors to use as the network's outputs, by name or pattern; 'mark all' for all"),
    flag("--trt-exclude-outputs NAME+", "outputs of the network to leave out"),
    flag("--trt-outputs-by-type LAYER+", "types of layers whose results become outputs"),
)

TRT_PARSE = Group(
    "TensorRT parser and plugins",
    flag("--plugins FILE+", "plugin libraries to load"),
    flag("--onnx-flags FLAG+", "flags of TensorRT's ONNX parser"),
    flag("--plugin-instancenorm", "use the plugin for InstanceNormalization"),
    flag("--enable-uint8-asymmetric-quantization-dla", "allow UINT8 and asymmetric quantization for DLA"),
)

TRT_LOAD = Group(
    "TensorRT engine loading",
    flag("--load-runtime FILE", "a lean runtime to load version compatible engines with"),
    flag("--dla-workspace-allocation-strategy STRATEGY", "how engines share DLA workspaces"),
)

CALIBRATION = PRECISIONS.only("calibration_cache", "calib_base_cls", "quantile", "regression_cutoff")
TRT_BUILD = (TRT_SHAPES, PRECISIONS, TRT_TACTICS, TRT_CONFIG, TRT_NETWORK, TRT_OUTPUTS, TRT_PARSE)

# What only a build uses; shapes of profiles are those of random data, too.
ENGINE_BUILD = Group("", *TRT_BUILD).without("--trt-opt-shapes", "--trt-max-shapes", "--plugins")

THRESHOLDS = Group(
    "tolerances ([OUTPUT:]VALUE for one output)",
    flag(
        "--compare --compare-func FUNCTION+",
        "how to compare: simple (default), indices, or one of "
        + ", ".join(
            f"{comparison.name}{' (both)' if len(comparison.limits) > 1 else ''}" for comparison in COMPARISONS
        ),
        choices=("simple", "indices", *(comparison.name for comparison in COMPARISONS)),
    ),
    flag("--check-average", "compare means over all iterations"),
    flag("--save-accuracy-results FILE", "where to write all numbers, for `trtops check accuracy`"),
    flag("--rtol --rel-tol [OUTPUT:]X+", "relative tolerance"),
    flag("--atol --abs-tol [OUTPUT:]X+", "absolute tolerance"),
    flag("--check-error-stat [OUTPUT:]STAT+", "errors to check: elemwise, max, mean, median, quantile"),
    flag("--error-quantile [OUTPUT:]Q+", "the level for quantile", most=1),
    flag("--index-tolerance [OUTPUT:]N+", "how many positions an index may be off"),
    *(
        flag(
            f"--{metric.option.replace('_', '-')} {' '.join(metric.other_flags)} [OUTPUT:]X+",
            f"{metric.limit_kind} {metric.label}",
            shown=f"[OUTPUT:]{metric.unit.upper() or 'X'}",
            least=0 if metric.better == "lower" else None,
        )
        for metric in METRICS
        if metric.limit is not None
    ),
    flag(
        "--lpips-threshold --lpips-tolerance X*", "", shown=None, refuse="LPIPS is not computed; use --psnr-tolerance"
    ),
)

# Tolerances for ops that store all statistics and derive verdicts from them.
STATISTICS = Group(
    THRESHOLDS.title,
    *(
        flag
        for flag in THRESHOLDS.flags
        if flag.dest not in ("compare", "check_average", "save_accuracy_results", "index_tolerance")
    ),
)

COMPARING = Group(
    "comparing",
    flag("--compare-func-script FILE[:compare_outputs]", "a script with its own compare function"),
    flag("--fail-fast", "stop at the first iteration that does not match"),
    flag("--no-shape-check", "compare outputs of different shapes that have as many elements"),
    flag("--infinities-compare-equal", "let infinities of equal sign match"),
    flag("--save-heatmaps FOLDER", "where to save heat maps of errors"),
    flag("--show-heatmaps", "show heat maps of errors"),
    flag("--save-error-metrics-plot FOLDER", "where to save plots of errors over magnitudes"),
    flag("--show-error-metrics-plot", "show plots of errors over magnitudes"),
)

CHECK = Group(
    "check",
    Group(
        "",
        flag("--fail-code --fail-returncode CODE+", "exit codes that count as failures", usual="any but 0", least=None),
        flag("--ignore-fail-code --ignore-fail-returncode CODE+", "exit codes that do not", usual="none", least=None),
        flag("--fail-regex REGEX+", "what the failure prints"),
        flag("--check-timeout SECONDS", "how long one check may take", usual="no limit"),
    ).each(needs="check"),
    flag("--show-output", "show what the check prints, also when it passes"),
    flag("--hide-fail-output", "hide what the check prints when it fails"),
    flag(
        "--check --check-inference COMMAND",
        "the command that checks: the rest of the line",
        takes="rest",
        shown="COMMAND ...",
        file="reads",
    ),
)

SORTING = Group(
    "sorting files",
    flag("--artifacts FILE+", "files to sort into good/ and bad/ after each check", file="writes", continues="check"),
    flag("--art-dir --artifacts-dir FOLDER", "the folder of good/ and bad/", default="trtops_artifacts", file="writes"),
)

ITERATING = Group(
    "iterating",
    flag(
        "--iter-artifact --intermediate-artifact FILE",
        "the file that each check reads",
        file="writes",
        continues="check",
    ),
    flag("--no-remove-intermediate", "keep that file at the end"),
    flag(
        "--iter-info --iteration-info FILE",
        "where to write the iteration's number, for the check to read",
        file="writes",
        continues="check",
    ),
    flag("--exit-on-bad", "exit with 1 if the verdict is bad; otherwise only with --experiment"),
)

UNTIL = Group(
    "when to stop",
    flag("--until --num-iterations good|bad|N", "stop at the first good or bad one, or after N", convert=values.until),
)

REPLAY = Group(
    "resuming",
    flag("--load-debug-replay FILE", "answers of an earlier search"),
    flag(
        "--save-debug-replay FILE",
        "where to save answers",
        default="trtops_debug_replay.json",
        continues="load_debug_replay",
    ),
)

PROVIDERS = Group(
    "ONNX Runtime",
    flag(
        "--providers --execution-providers PROVIDER+",
        "ONNX Runtime: execution providers in order of preference, such as cuda",
    ),
    flag("--graph-optimization-level OPTIMIZATION", "how far ONNX Runtime optimizes", usual="all"),
)

# Options of Polygraphy's TensorFlow loader and runner.
TENSORFLOW = Group(
    "TensorFlow models",
    *(
        flag(f"{names} WORD*", "", shown=None, refuse="convert the model to ONNX first: python -m tf2onnx.convert")
        for names in (
            "--tf", "--ckpt", "--tf-outputs", "--opset", "--save-pb", "--save-tensorboard", "--save-timeline",
            "--tftrt --use-tftrt", "--minimum-segment-size", "--dynamic-op", "--freeze-graph",
            "--gpu-memory-fraction", "--allow-growth", "--xla",
        )
    ),
)  # fmt: skip

TRACKING = Group(
    "tracking",
    flag("--experiment NAME", "record this as a run of that experiment, as the flows do"),
    flag("--store PLACE", "the store: a folder or an MLflow server (default: TRTOPS_HOME or ./mlruns)"),
)
STORE = TRACKING.without("--experiment")
ROOT = flag("--root --store FOLDER", "the store's folder or address (default: TRTOPS_HOME or ./mlruns)", file="")
JSON = Group("printing", flag("--json", "print JSON"))
PROFILE = Group("printing", flag("--profile", "print the time of each step (timing.json of the run)"))

_OF_SPECS = (
    "tf32", "fp16", "bf16", "fp8", "int8", "precision_constraints", "trt_min_shapes", "trt_opt_shapes",
    "trt_max_shapes", "tactic_sources", "sparse_weights", "version_compatible", "refittable", "strongly_typed",
    "pool_limit", "workspace", "builder_optimization_level", "avg_timing_iterations", "max_num_tactics",
    "l2_limit_for_tiling", "build_route", "layer_precisions", "use_dla", "allow_gpu_fallback",
)  # fmt: skip

# What a build's spec holds: options of commands whose builds are recorded, or made by ops.
SPEC = Group("building", *(flag for group in TRT_BUILD for flag in group.flags if flag.dest in _OF_SPECS))
