"""A verdict with everything it depends on: model, inputs, golden outputs, tolerances, and settings of the back end."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.emulation import LARGEST_FLOAT16, emulate_low_precision, watch_peaks
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnx.quantize import is_quantized
from trtops.backend.onnxrt.builder import model_as_built
from trtops.backend.onnxrt.engine import provider_settings
from trtops.backend.onnxrt.session import CUDA, usable_threads
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.trt.building import int8, precision
from trtops.backend.trt.lines import Feature
from trtops.comparator import standalone
from trtops.comparator.arrays import as_arrays
from trtops.comparator.report import Tolerances
from trtops.comparator.standalone import RULES
from trtops.metadata import DataType
from trtops.ops.evaluation.data import golden_outputs
from trtops.ops.stored_build import Logged
from trtops.record import JSONValue, to_jsonable
from trtops.spec import BuildConfig, Environment, OnnxRuntimeOptions, TensorRTOptions
from trtops.tactics.record import TacticRecord
from trtops.verdict import PASSED, Verdict

_PEAK_LIMIT = LARGEST_FLOAT16 + 16  # values from here on round to infinity
# Builder flags by the option that sets them, and options that are properties of the builder config.
_FLAGS = {
    "TF32": "tf32", "SPARSE_WEIGHTS": "sparse_weights", "REFIT": "refittable",
    "VERSION_COMPATIBLE": "version_compatible", "GPU_FALLBACK": "allow_gpu_fallback",
}  # fmt: skip
_PROPERTIES = ("avg_timing_iterations", "max_num_tactics", "l2_limit_for_tiling", "build_route")


@dataclass(frozen=True)
class Case:
    """What the script of a bundle runs and checks."""

    name: str
    backend: str
    model: onnx.ModelProto = field(repr=False)  # as the back end gets it
    feeds: Sequence[Feed] = field(repr=False)
    golden: Sequence[Mapping[str, Any]] = field(repr=False)
    tolerances: Tolerances
    verdict: Verdict  # to reproduce
    settings: Mapping[str, JSONValue]  # of the back end
    peaks: Mapping[str, float] = field(default_factory=dict)  # the values from which on outputs are too large
    reasons: tuple[str, ...] = ()
    note: str = ""  # on what the script does not repeat

    def manifest(self) -> dict[str, JSONValue]:
        """The content of ``case.json``."""
        rules: dict[str, Any] = {}
        for name in self.golden[0]:
            tolerances = self.tolerances.of(name)
            limits = {key: value for key, value in tolerances.to_dict().items() if value not in (None, False, {})}
            beyond = limits.keys() - RULES - {"allow_extra_outputs"}
            if beyond:
                raise errors.ConfigError(
                    f"Output {name!r} is evaluated by {', '.join(sorted(beyond))}, which the script cannot compute "
                    "with numpy. Evaluate the run with other tolerances first (trtops runs evaluate), or bundle "
                    "another run."
                )
            # JSON has no infinity; a difference of two floats never exceeds this.
            numbers = {key: 1e300 if value == "inf" else value for key, value in limits.items() if key in RULES}
            rules[name] = {"atol": 0.0, "rtol": 0.0, **numbers, "check_dtypes": tolerances.check_dtypes}
        content = to_jsonable(
            {
                "name": self.name,
                "verdict": self.verdict,
                "iterations": len(self.feeds),
                "inputs": list(self.feeds[0]),
                "outputs": list(self.golden[0]),
                "rules": rules,
                "peaks": dict(self.peaks),
                **self.settings,
            }
        )
        assert isinstance(content, dict)
        return content

    def files(self) -> dict[str, bytes]:
        """The files that a script reads, and the module that compares outputs."""
        return {
            "evaluate.py": Path(standalone.__file__).read_bytes(),
            "case.json": json.dumps(self.manifest(), indent=1, ensure_ascii=False).encode("utf-8"),
            "inputs.npz": _npz_of(self.feeds),
            "golden.npz": _npz_of(self.golden),
        }


def _npz_of(iterations: Sequence[Mapping[str, Any]]) -> bytes:
    """Arrays as npz, named by iteration and position, since tensor names may contain anything."""
    file = io.BytesIO()
    arrays = {}
    for i, named in enumerate(iterations):
        for j, array in enumerate(map(np.asarray, named.values())):
            arrays[f"{i}_{j}"] = array.astype(str) if array.dtype.kind == "O" else array
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def evaluated_case(logged: Logged, name: str, verdict: Verdict = "good") -> Case:
    """The case of a logged build's evaluation, without settings of a back end."""
    model = logged.model
    feeds = list(map(as_arrays, logged.check.open_for(model, profiles=logged.build.spec.config.profiles)))
    metrics = [] if logged.recorded is None else [score.metric for score in logged.recorded.tasks]
    return Case(
        name=name,
        backend=logged.build.spec.config.backend,
        model=model.proto(),
        feeds=feeds,
        golden=list(golden_outputs(model, feeds, logged.check.golden)[0][1]),
        tolerances=logged.tolerances,
        verdict=verdict,
        settings={},
        reasons=() if logged.recorded is None else logged.recorded.reasons,
        note=f"A bundle has no labels, so it does not repeat {', '.join(metrics)}." if metrics else "",
    )


def case_of(logged: Logged, name: str, verdict: Verdict) -> Case:
    """The case of a logged build, with the name and the verdict of its run.

    For an unproven run the case is ``good``: a script repeats the comparison, and not what its data can prove.
    """
    verdict, recorded = "good" if verdict in PASSED else verdict, logged.recorded
    case = evaluated_case(logged, name, verdict)
    if recorded is None or recorded.report.verdict == "bad" or verdict == "good":
        build = logged.build
        return engine_case(case, build.spec.config, build.tactics, logged.caches.calibration, build.engine.environment)
    if case.backend == "onnxruntime" and recorded.emulated is not None and recorded.emulated.verdict == "bad":
        return emulated_case(case, recorded.emulated.precision, logged.build.spec.config.keep)
    raise errors.ConfigError(
        f"The outputs of {name} are correct: it is bad because {'; '.join(case.reasons)}. Running the model does not "
        f"show that. {case.note}".rstrip()
    )


def engine_case(
    case: Case,
    config: BuildConfig,
    tactics: TacticRecord | None,
    calibration: bytes | None,
    environment: Environment,
) -> Case:
    """The case of an engine, with the model and the settings of its build; without tactics, ONNX Runtime's own."""
    options = config.options
    if isinstance(options, TensorRTOptions):
        return _tensorrt_case(case, config, options, tactics, calibration, environment)
    assert isinstance(options, OnnxRuntimeOptions)
    candidate = Candidate.from_settings(() if tactics is None else tactics.settings)
    settings: JSONValue = dict(provider_settings(options, candidate))
    model = model_as_built(Model.from_proto(case.model), config, calibration)
    return replace(
        case,
        model=model,
        settings={
            "optimization_level": candidate.optimization_level,
            "session_config": {**candidate.session_config(model)},
            "disabled_optimizers": list(candidate.disabled_optimizers),
            "providers": [[name, settings] if name == CUDA else name for name in options.providers],
            "threads": usable_threads(options.intra_op_threads),
        },
    )


def _tensorrt_case(
    case: Case,
    config: BuildConfig,
    options: TensorRTOptions,
    tactics: TacticRecord | None,
    calibration: bytes | None,
    environment: Environment,
) -> Case:
    """What the script sets, on the release of the build: precisions are flags there, or else are in the model."""
    rtx = environment.backend == "tensorrt-rtx"
    major, minor = map(int, environment.backend_version.split(".")[:2])

    def has(feature: Feature) -> bool:
        return feature.is_in((major, minor), rtx=rtx)

    model = case.model
    lowered = {config.precision, *options.also} - {"fp32"}
    keep = precision.layers_to_keep(model, config)
    layers = [*keep.items(), *options.layer_precisions]
    quantizes = ("int8" in lowered or config.precision == "fp8") and not is_quantized(model)
    if quantizes and int8.needs_qdq(config, has_calibrators=has(Feature.CALIBRATOR)):
        model = int8.quantize(Model.from_proto(model), config, calibration, None).model
        quantizes = False
    strongly = config.strongly_typed or not has(Feature.PRECISION_FLAGS)
    if strongly:
        types = tuple((name, DataType.of(dtype)) for name, dtype in layers)
        model_precision = precision.ModelPrecision(precisions=tuple(sorted(lowered)), layers=types)
        model, layers = (precision.write_into_model(model, model_precision) if model_precision else model), []
    constraints = "obey" if keep else options.precision_constraints
    flags = (
        *(() if strongly else sorted(name.upper() for name in lowered)),
        *(() if strongly or constraints == "none" else (f"{constraints.upper()}_PRECISION_CONSTRAINTS",)),
        *(name for name, option in _FLAGS.items() if getattr(options, option)),
        *(("EDITABLE_TIMING_CACHE",) if tactics is not None and tactics.mechanism == "editable_timing_cache" else ()),
    )
    properties: dict[str, JSONValue] = {
        "builder_optimization_level": options.optimization_level,
        **{name: getattr(options, name) for name in _PROPERTIES},
    }
    sources = options.tactic_sources
    profiles: list[JSONValue] = []
    for profile in config.profiles:
        profiles.append({shape.name: [list(shape.min), list(shape.opt), list(shape.max)] for shape in profile.shapes})
    return replace(
        case,
        model=model,
        settings={
            "module": "tensorrt_rtx" if rtx else "tensorrt",
            "strongly_typed": config.strongly_typed,
            "flags": list(flags),
            "cleared_flags": [] if options.tf32 else ["TF32"],  # TensorRT sets it by default
            "properties": {name: value for name, value in properties.items() if value is not None},
            "use_dla": options.use_dla,
            "workspace_bytes": options.workspace_bytes,
            "tactic_sources": None if sources is None else [name.upper() for name in sources],
            "profiles": profiles,
            "layers": list(map(list, layers)),
            "mark": list(config.mark),
            "calibrates": quantizes,
        },
    )


def emulated_case(case: Case, precision: LowPrecision, keep: Sequence[str] = ()) -> Case:
    """The case of a 16-bit model, rounded as on a GPU, with overflow or wrong outputs."""
    # The model itself does the rounding, so that ONNX Runtime on any CPU shows what a GPU does.
    low = lower_precision(case.model, precision, exclude=keep).model
    emulate_low_precision(low)
    peaks = watch_peaks(low) if precision == "fp16" else {}
    settings: dict[str, JSONValue] = {
        # Optimizers would remove the Casts that round.
        "optimization_level": "ORT_DISABLE_ALL",
        "session_config": {},
        "disabled_optimizers": [],
        "providers": ["CPUExecutionProvider"],
        "threads": 1,
    }
    return replace(case, model=low, peaks=dict.fromkeys(peaks.values(), _PEAK_LIMIT), settings=settings)
