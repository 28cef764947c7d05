"""The command ``trtops convert``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors, ops
from trtops.backend import trt
from trtops.backend.common import SaveBytes, save_bytes
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say
from trtops.cli.script import load

if TYPE_CHECKING:
    from trtops.backend.base import Build
    from trtops.ops.engines.convert import ConvertConfig

log = logging.getLogger(__name__)

TARGET = Group(
    "target",
    flag(
        "-o --output FILE",
        "where to write it (default: the model's name with .engine, .ort or .converted.onnx)",
        to="output",
    ),
    flag("--convert-to {trt,onnx,onnx-like-trt-network,ort}", "what to make; by the output's suffix unless given"),
    flag("--config FILE", "a ConvertConfig as a JSON file, instead of options"),
)
EVALUATION = configs.config_flags(
    "evaluation, with --experiment or for ONNX Runtime", "ConvertConfig", skip="build replay"
)


_SUFFIXES = {".onnx": "onnx", ".ort": "ort", ".engine": "trt", ".plan": "trt", ".trt": "trt"}


@command(
    groups.MODEL,
    TARGET,
    groups.TRACKING,
    configs.BACKEND.without("--onnxrt", "--trt"),
    *groups.TRT_BUILD,
    groups.DATA,
    *groups.ONNX,
    groups.SAVE_AS,
    groups.TENSORFLOW,
    Group(groups.THRESHOLDS.title, groups.THRESHOLDS.only("rtol", "atol")),
    EVALUATION,
    examples=(
        "trtops convert model.onnx --fp16 -o model.engine",
        "trtops convert model.onnx --int8 --data-loader-script loader.py --calibration-cache int8.cache",
        "trtops convert model.onnx --trt-min-shapes x:[1,3,8] --trt-opt-shapes x:[4,3,8] --trt-max-shapes x:[32,3,8]",
        "trtops convert --fp-to-fp16 -o fp16.onnx model.onnx",
        "trtops convert model.onnx --fp16 --experiment resnet50 -o model.engine",
        "trtops convert model.onnx --fp16 --experiment resnet50 --attribute-error --min-precision-share 0.5",
    ),
)
def convert(args: Options) -> Job:
    """Make a TensorRT engine from a model, an ONNX Runtime engine (.ort), or another ONNX model.

    Engines for ONNX Runtime, and all that are recorded with --experiment, are compared with the model itself: exit code
    1 means that they are not good enough.
    """
    if args.config is not None:
        return _of_config_file(args)
    kind = loading.model_type(args)
    target = args.convert_to or _SUFFIXES.get(Path(args.output or "x.engine").suffix.lower())
    if target is None:
        raise UsageError(
            f"{args.output}: its suffix does not say what to make; use --convert-to, such as --convert-to trt"
        )
    suffix = {"trt": ".engine", "ort": ".ort"}.get(target, ".converted.onnx")
    output = args.output or f"{Path(args.model_file).stem}{suffix}"
    if target == "ort" or args.experiment is not None:
        if kind != "onnx" or target not in ("ort", "trt") or loading.wants_onnx_changes(args):
            raise UsageError(
                "only engines of unchanged ONNX files are evaluated; convert the model first, or leave out --experiment"
            )
        return _evaluated(args, target, output if args.output or args.experiment is None else None)
    recorded = Group("", groups.THRESHOLDS.only("rtol", "atol"), groups.STORE, EVALUATION)
    configs.refuse(args, recorded, "is for evaluated engines; add --experiment NAME")
    loader: Any
    if target == "trt":
        loader = SaveBytes(loading.engine_bytes(args), output)
    else:
        made = loading.onnx_model(args) if target == "onnx" else trt.OnnxLikeFromNetwork(loading.network(args))
        loader = loading.saved_onnx(made, output, args)

    def write() -> int:
        load(loader)
        say(f"Wrote {output}")
        return 0

    return write


def _evaluated(args: Options, target: str, output: str | None) -> Job:
    """Return the job of an engine that is evaluated."""
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
    return _convert(args, config, output, parts)


def _of_config_file(args: Options) -> Job:
    """Return the job of a config in a file, which leaves only the outputs to the options.

    Raises:
        UsageError: If a precision is given as well, or the file cannot be read.
    """
    precisions = groups.PRECISIONS.only("int8", "fp8", "bf16", "fp16")
    configs.refuse(args, precisions, "is set by the file of --config; leave one out")
    try:
        config = ops.ConvertConfig.from_json(Path(args.config).read_bytes())
    except OSError as exc:
        raise UsageError(f"--config {args.config} cannot be read: {exc.strerror}") from None
    suffix = ".engine" if config.build.backend == "tensorrt" else ".ort"
    output = args.output or (f"{Path(args.model_file).stem}{suffix}" if args.experiment is None else None)
    return _convert(args, configs.make(args, "ConvertConfig", base=config), output, {})


def _convert(args: Options, config: ConvertConfig, output: str | None, parts: dict[str, str | None]) -> Job:
    """Return the job of the op, which also writes the engine and parts of the build."""
    failed: list[Exception] = []

    def write(build: Build) -> None:
        try:
            if output is not None:
                save_bytes(build.engine.plan, output)
            for name, path in parts.items():
                found = getattr(build, name)
                if path is not None and found is not None:
                    save_bytes(found if isinstance(found, bytes) else found.to_json().encode(), path)
                elif path is not None:
                    log.warning("%s is not written: the build left no %s", path, name.replace("_", " "))
        except (OSError, errors.TrtopsError) as exc:
            failed.append(exc)  # raised in the end: an engine is recorded also if its file cannot be written

    experiment = args.experiment
    convert = op_job(args, "convert", args.model_file, config, store="temporary", experiment=experiment, built=write)

    def run() -> int:
        code = convert()
        if failed:
            raise failed[0]
        return code

    return run
