"""The command ``trtops convert``."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.backend import trt
from trtops.backend.common import SaveBytes, save_bytes
from trtops.backend.torch import model_stem
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say
from trtops.extras import installed, sentence
from trtops.system.processes import temporary_prefix

if TYPE_CHECKING:
    from trtops.backend.base import Build

log = logging.getLogger(__name__)

TARGET = Group(
    "target",
    flag("-o --output FILE", "where to write it (default: the model's name with .engine, .ort or .converted.onnx)"),
    flag("--convert-to {trt,onnx,onnx-like-trt-network,ort}", "what to make; by the output's suffix unless given"),
)
EVALUATION = configs.config_flags(
    "evaluation, with --experiment or for ONNX Runtime", "ConvertConfig", skip="build replay"
)


_TARGET_BY_SUFFIX = {".onnx": "onnx", ".ort": "ort", ".engine": "trt", ".plan": "trt", ".trt": "trt"}


@command(
    groups.MODEL,
    TARGET,
    groups.TRACKING,
    groups.PROFILE,
    configs.BACKEND,
    configs.QUANTIZING,
    *groups.TRT_BUILD,
    groups.DATA,
    *groups.ONNX,
    groups.SAVE_AS,
    groups.TENSORFLOW,
    groups.STATISTICS,
    EVALUATION,
    examples=(
        "trtops convert model.onnx --fp16 -o model.engine",
        "trtops convert model.onnx --int8 --data-loader-script loader.py --calibration-cache int8.cache",
    ),
)
def convert(args: Options) -> Job:
    """Make a TensorRT engine from a model, an ONNX Runtime engine (.ort), or another ONNX model.

    Engines for ONNX Runtime, and all that are recorded with --experiment, are compared with the model itself: exit code
    1 means that they are not good enough.
    """
    kind = loading.model_type(args)
    chosen = {"onnxruntime": "ort", "tensorrt": "trt"}.get(args.backend or "")
    target = args.convert_to or _TARGET_BY_SUFFIX.get(
        Path(args.output or f"x.{chosen or 'engine'}").suffix.lower(), chosen
    )
    if chosen not in (None, target):
        raise UsageError(f"--{'trt' if chosen == 'trt' else 'onnxrt'} contradicts the output, which is {target}")
    if target is None:
        raise UsageError(f"{args.output}: its suffix does not say what to make; use --convert-to trt, or another kind")
    suffix = {"trt": ".engine", "ort": ".ort"}.get(target, ".converted.onnx")
    is_written = args.output is not None or args.experiment is None
    output = args.output = args.output or f"{model_stem(args.model_file)}{suffix}"
    if target == "ort" or args.experiment is not None:
        if kind in ("torch", "trt-network-script"):
            if args.model_file.endswith(".py"):
                raise UsageError(f"{args.model_file}: name the function that returns the PyTorch module: net.py:make")
            return _evaluated(args, target, output if is_written else None)
        if kind != "onnx" or target not in ("ort", "trt") or loading.wants_onnx_changes(args):
            raise UsageError("only engines of unchanged ONNX files are recorded; convert the model first")
        return _evaluated(args, target, output if is_written else None)
    # As Polygraphy's: nothing is compared or recorded.
    recorded = Group("", groups.STATISTICS, groups.STORE, EVALUATION, configs.QUANTIZING)
    configs.refuse(args, recorded, "is for evaluated engines; add --experiment NAME")
    loader: Any
    weights = Path(tempfile.gettempdir(), f"{temporary_prefix('weights')}convert")
    args.ignore("profile", configs.ONNXRT_ONLY)
    configs.export_torch(args, scripts=target == "onnx")
    if target == "trt":
        args.ignore(groups.SAVE_AS)
        loader = SaveBytes(loading.engine_bytes(args), output)
    elif target == "onnx":
        lower = groups.PRECISIONS.only("fp16", "bf16", "fp8", "int8")
        configs.refuse(args, lower, "is for engines; --fp-to-fp16 rewrites an ONNX file in FP16")
        args.ignore(*groups.TRT_BUILD)
        if not hasattr(args, "export"):  # which data and shapes are for
            args.ignore(groups.DATA, "input_shapes")
        loader = loading.saved_onnx(loading.onnx_model(args, weights), output, args)
    else:
        args.ignore(groups.TRT_SHAPES, groups.TRT_TACTICS, groups.TRT_CONFIG, groups.DATA, "input_shapes")
        args.ignore(groups.PRECISIONS.without("--precision-constraints"))
        loader = loading.saved_onnx(trt.OnnxLikeFromNetwork(loading.network(args)), output, args)

    def write() -> int:
        weights.mkdir(mode=0o700)
        try:
            loader()
        finally:
            shutil.rmtree(weights)
        say(f"Wrote {output}")
        return 0

    return write


def _evaluated(args: Options, target: str, output: str | None) -> Job:
    """Return the job of an evaluated engine; it also writes the engine and parts of the build."""
    args.ignore(groups.SAVE_AS, *groups.ONNX)
    # A cache that exists is read, as by TensorRT's calibrators; otherwise it is written.
    cache = args.calibration_cache
    calibrated = cache is not None and Path(cache).exists()
    timing = args.timing_cache if args.timing_cache and Path(args.timing_cache).exists() else None
    config = configs.make(
        args,
        "ConvertConfig",
        configs.check_values(args),
        build=configs.build_config(args, "tensorrt" if target == "trt" else "onnxruntime"),
        timing_cache=args.load_timing_cache or timing,
        calibration_cache=cache if calibrated else None,
        replay=args.load_tactics,
    )
    parts = {
        "tactics": args.save_tactics,
        "timing_cache": args.save_timing_cache or args.timing_cache,
        "calibration_cache": None if calibrated else cache,
    }
    is_recorded = args.experiment is not None
    last_build: list[Build] = []

    def keep(build: Build) -> None:
        last_build.append(build)

    convert = op_job(args, "convert", args.model_file, config, store="temporary", built=keep)

    def run() -> int:
        code = convert()
        if not is_recorded and not installed("mlflow"):
            log.warning("Nothing was recorded. %s", sentence("mlflow"))
        # Only now: an engine that could not be evaluated must not replace an earlier one.
        build = last_build.pop()
        if output is not None:
            save_bytes(build.engine.plan, output)
        for name, path in parts.items():
            part = getattr(build, name)
            if path is not None and part is not None:
                save_bytes(part if isinstance(part, bytes) else part.to_json().encode(), path)
            elif path is not None:
                log.warning("%s is not written: the build left no %s", path, name.replace("_", " "))
        return code

    return run
