"""Make a TensorRT engine of a model, an ONNX Runtime engine (.ort), or another ONNX model.

Engines for ONNX Runtime, and all that are remembered by --experiment, are evaluated against the model itself: exit code
1 says that they are not good enough.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors, ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups, loading, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_result
from trtops.cli.script import Call, Maker, call

if TYPE_CHECKING:
    from trtops.backend.base import Build
    from trtops.ops.engines.convert import ConvertConfig

log = logging.getLogger(__name__)

TARGET = Group(
    "target",
    (
        Flag(
            names=("-o", "--output"),
            to="output",
            shown="FILE",
            help="where to write it (default: the model's name with .engine, .ort or .converted.onnx)",
        ),
        Flag(
            names=("--convert-to",),
            choices=("trt", "onnx", "onnx-like-trt-network", "ort"),
            help="what to make; by the output's ending unless given",
        ),
        Flag(
            names=("--config",),
            shown="FILE",
            help="a ConvertConfig as JSON, which holds every option of a build",
        ),
        Flag(names=("--rebuild",), takes="switch", help="build even if the memory holds the same engine"),
    ),
)
EVALUATION = Group(
    "evaluating, where engines are evaluated",
    (
        *(f for f in groups.THRESHOLDS.flags if f.dest in ("rtol", "atol")),
        groups.IN_ITS_PRECISION,
        Flag(
            names=("--attribute-error",),
            takes="switch",
            help="say how much of the error is the precision's own, how much is noise and how much the builder's",
        ),
    ),
)

GROUPS = (
    groups.MODEL, TARGET, groups.TRACKING, *groups.TRT_BUILD, groups.DATA, groups.ONNX_LOAD, groups.ONNX_OUTPUTS,
    groups.ONNX_SHAPE, Group(groups.ONNX_SAVE.title, groups.ONNX_SAVE.flags[1:]), groups.TENSORFLOW, EVALUATION,
)  # fmt: skip
EXAMPLES = (
    "trtops convert model.onnx --fp16 -o model.engine",
    "trtops convert model.onnx --int8 --data-loader-script loader.py --calibration-cache int8.cache -o model.engine",
    "trtops convert model.onnx --trt-min-shapes x:[1,3,8,8] --trt-opt-shapes x:[4,3,8,8] --trt-max-shapes x:[32,3,8,8]",
    "trtops convert --fp-to-fp16 -o fp16.onnx model.onnx",
    "trtops convert model.onnx --fp16 --experiment resnet50 -o model.engine",
    "trtops convert model.onnx --fp16 --experiment resnet50 --attribute-error --min-precision-share 0.5",
    "trtops convert model.onnx --config fixed.json -o model.engine",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be made.

    Attributes:
        make: Makes and writes it, where nothing is evaluated.
        model: The model, where the result is evaluated and remembered.
        config: The op's config then.
        output: Where the engine or model goes.
        experiment: Where to remember it.
        store: Where the memory is.
        kept: What else of the build goes to files: its field, and the file.
    """

    make: Call | None = None
    model: str = ""
    config: ConvertConfig | None = None
    output: str | None = None
    experiment: str | None = None
    store: str | None = None
    kept: tuple[tuple[str, str], ...] = ()


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    if args.config is not None:
        return _plan_of_config(args)
    kind = loading.model_type(args)
    target = _target_kind(args)
    ending = {"trt": ".engine", "ort": ".ort"}.get(target, ".converted.onnx")
    output = args.output or f"{Path(args.model_file).stem}{ending}"
    if target == "ort" or args.experiment is not None:
        if kind != "onnx" or target not in ("ort", "trt") or loading.wants_onnx_changes(args):
            raise UsageError(
                "what is evaluated is an engine of an ONNX file as it is; convert the model first, or leave out --experiment"
            )
        return Plan(
            model=args.model_file,
            config=_convert_config(args, "tensorrt" if target == "trt" else "onnxruntime"),
            output=output if args.output or args.experiment is None else None,
            experiment=args.experiment,
            store=args.store,
            kept=_parts_to_save(args),
        )
    evaluating = ("rtol", "atol", "min_precision_share", "attribute_error", "rebuild", "store")
    configs.refuse(args, evaluating, "is for what is evaluated; add --experiment NAME")
    if target == "onnx":
        return Plan(make=loading.saved_onnx(loading.onnx_model(args), output, args), output=output)
    if target == "onnx-like-trt-network":
        drawn = call(loading.TRT, "OnnxLikeFromNetwork", loading.network(args), variable="draw")
        return Plan(make=loading.saved_onnx(drawn, output, args), output=output)
    return Plan(make=call(loading.COMMON, "SaveBytes", loading.engine_bytes(args), output), output=output)


def _plan_of_config(args: Asked) -> Plan:
    """The plan of a config in a file, which leaves nothing to be said but where results go.

    Raises:
        UsageError: If a precision is given beside it, or the file cannot be read.
    """
    configs.refuse(args, ("int8", "fp8", "bf16", "fp16"), "is said by the file of --config; leave one out")
    try:
        config = ops.ConvertConfig.from_json(Path(args.config).read_bytes())
    except OSError as exc:
        raise UsageError(f"--config {args.config} cannot be read: {exc.strerror}") from None
    ending = ".engine" if config.build.backend == "tensorrt" else ".ort"
    return Plan(
        model=args.model_file,
        config=replace(config, rebuild=bool(args.rebuild) or config.rebuild),
        output=args.output or (f"{Path(args.model_file).stem}{ending}" if args.experiment is None else None),
        experiment=args.experiment,
        store=args.store,
    )


def _target_kind(args: Asked) -> str:
    if args.convert_to is not None:
        return str(args.convert_to)
    suffix = Path(args.output or "x.engine").suffix.lower()
    found = {".onnx": "onnx", ".ort": "ort", ".engine": "trt", ".plan": "trt", ".trt": "trt"}.get(suffix)
    if found is None:
        raise UsageError(
            f"{args.output}: its ending does not say what to make; say it by --convert-to, such as --convert-to trt"
        )
    return found


def _convert_config(args: Asked, backend: str) -> ConvertConfig:
    return ops.ConvertConfig(
        build=configs.build_config(args, backend),
        check=configs.check_config(args),
        timing_cache=args.load_timing_cache or _path_if_exists(args.timing_cache),
        calibration_cache=_path_if_exists(args.calibration_cache),
        replay=args.load_tactics,
        rebuild=bool(args.rebuild),
        attribute_error=bool(args.attribute_error),
    )


def _path_if_exists(path: str | None) -> str | None:
    """A cache that is read if it is there, and else written."""
    return path if path is not None and Path(path).exists() else None


def _parts_to_save(args: Asked) -> tuple[tuple[str, str], ...]:
    wanted = {
        "tactics": args.save_tactics,
        "timing_cache": args.save_timing_cache or args.timing_cache,
        "calibration_cache": None if _path_if_exists(args.calibration_cache) else args.calibration_cache,
    }
    return tuple((name, path) for name, path in wanted.items() if path is not None)


def execute(plan: Plan) -> int:
    """Make it."""
    if plan.make is not None:
        Maker()(plan.make)()
        say(f"Wrote {plan.output}")
        return 0
    failed: list[Exception] = []

    def write(build: Build) -> None:
        """Write the engine before the memory has it, which may be away; a file that cannot be written does not keep it from that."""
        try:
            if plan.output is not None:
                save_bytes(build.engine.plan, plan.output)
            for name, path in plan.kept:
                _save_part(build, name, path)
        except (OSError, errors.TrtopsError) as exc:
            failed.append(exc)

    tracker = memory.kept_or_forgotten(plan.experiment, plan.store)
    result = ops.convert(plan.model, plan.config, tracker=tracker, experiment=plan.experiment, built=write)
    if failed:
        raise failed[0]
    say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1


def _save_part(build: Build, name: str, path: str) -> None:
    """Write a part of a build to a file, with a warning if the build has none."""
    found = getattr(build, name)
    if found is None:
        log.warning("%s is not written: the build left no %s", path, name.replace("_", " "))
        return
    save_bytes(found if isinstance(found, bytes) else found.to_json().encode(), path)
