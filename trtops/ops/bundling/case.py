"""A verdict with all that it rests on: model, inputs, golden outputs, rules, and how a back end is to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import Build, Feed
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.emulate import LARGEST_FLOAT16, emulate_low_precision, watch_peaks
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnxrt.builder import model_as_built
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.backend.onnxrt.session import usable_threads
from trtops.backend.onnxrt.tactics import Candidate
from trtops.comparator.report import Tolerances
from trtops.comparator.results import RunResults
from trtops.comparator.standalone import RULES
from trtops.ops.auditing.rebuilding import Logged
from trtops.ops.evaluation.check import collect, tolerances_for
from trtops.record import JSONValue, to_jsonable
from trtops.spec import BuildConfig, OnnxRuntimeOptions, TensorRTOptions
from trtops.verdict import Verdict

_PEAK_LIMIT = LARGEST_FLOAT16 + 16  # from here on a value rounds to infinity
_FLAGS = {"fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "int8": "INT8"}


@dataclass(frozen=True)
class Case:
    """What a bundle's script runs and evaluates.

    Attributes:
        name: What it is called.
        backend: ``onnxruntime`` or ``tensorrt``.
        model: The model as the back end is given it.
        feeds: Its inputs.
        golden: What it should give for each.
        tolerances: When outputs are good enough.
        verdict: What comes out.
        settings: How the back end is to run it, as JSON values.
        peaks: Outputs that hold largest magnitudes, and from where on these are too large.
        original: The model that golden outputs are computed of; None where they were given.
        remake: Makes :attr:`model` of such a model.
        reasons: Why the verdict is what it is.
    """

    name: str
    backend: str
    model: onnx.ModelProto = field(repr=False)
    feeds: Sequence[Feed] = field(repr=False)
    golden: Sequence[Mapping[str, Any]] = field(repr=False)
    tolerances: Tolerances
    verdict: Verdict
    settings: Mapping[str, JSONValue]
    peaks: Mapping[str, float] = field(default_factory=dict)
    original: onnx.ModelProto | None = field(default=None, repr=False)
    remake: Callable[[onnx.ModelProto], onnx.ModelProto] = field(default=lambda proto: proto, repr=False)
    reasons: tuple[str, ...] = ()

    def rules(self) -> dict[str, dict[str, JSONValue]]:
        """The tolerances of each output, as a bundle's script reads them.

        Raises:
            ReproductionError: If one asks for more than that script can evaluate.
        """
        return {name: _rule_of(name, self.tolerances.of(name)) for name in self.golden[0]}

    def manifest(self) -> dict[str, JSONValue]:
        """``case.json``: all that the script reads but arrays and model."""
        values: dict[str, Any] = {
            "name": self.name,
            "verdict": self.verdict,
            "iterations": len(self.feeds),
            "inputs": list(self.feeds[0]),
            "outputs": list(self.golden[0]),
            "rules": self.rules(),
            "peaks": dict(self.peaks),
            **self.settings,
        }
        found = to_jsonable(values)
        assert isinstance(found, dict)
        return found


def _rule_of(name: str, tolerances: Tolerances) -> dict[str, JSONValue]:
    given = {key: value for key, value in tolerances.to_dict().items() if value not in (None, False, {})}
    beyond = given.keys() - RULES - {"allow_extra_outputs"}
    if beyond:
        raise errors.ReproductionError(
            f"Output {name!r} is evaluated by {', '.join(sorted(beyond))}, which takes more than numpy. Evaluate the run by other "
            "tolerances first (trtops runs evaluate), or bundle another."
        )
    rule = {key: value for key, value in given.items() if key in RULES}
    numbers: dict[str, JSONValue] = {key: 1e300 if value == "inf" else value for key, value in rule.items()}
    return {"atol": 0.0, "rtol": 0.0, **numbers, "check_dtypes": tolerances.check_dtypes}


def case_of(logged: Logged, name: str, verdict: Verdict) -> Case:
    """The case of a logged build.

    Args:
        logged: The build, and what it was evaluated on.
        name: What to call it.
        verdict: The run's.

    Raises:
        ReproductionError: If the verdict rests on something that a script cannot show.
        TrtopsError: If the data or the model cannot be read.
    """
    model, check = logged.model, logged.check
    feeds = [{n: np.asarray(a) for n, a in feed.items()} for feed in check.open_for(model)]
    golden = golden_outputs(model, feeds, check.golden)
    recorded = logged.recorded
    case = Case(
        name=name,
        backend=logged.build.spec.config.backend,
        model=model.proto(),
        feeds=feeds,
        golden=golden,
        tolerances=recorded.report.tolerances
        if recorded
        else tolerances_for(logged.build.spec.config.precision, check.tolerances, model),
        verdict=verdict,
        settings={},
        original=model.proto() if check.golden is None else None,
        reasons=() if recorded is None else recorded.reasons,
    )
    if case.backend == "tensorrt":
        return built_case(case, logged.build, None)
    emulated = None if recorded is None else recorded.emulated
    if recorded is None or recorded.report.verdict == "bad" or verdict == "good":
        return built_case(case, logged.build, logged.caches.calibration)
    if emulated is not None and emulated.verdict == "bad":
        return emulated_case(case, emulated.precision)
    raise errors.ReproductionError(
        f"The outputs of {name} are right: it is bad because {'; '.join(case.reasons)}. That is read off the engine's kernels, "
        "and running the model does not show it."
    )


def golden_outputs(model: Model, feeds: Sequence[Feed], golden: str | None) -> list[dict[str, Any]]:
    """The golden outputs of each feed: those that were given, or those of the model itself, not optimized."""
    if golden is not None:
        results = RunResults.load(golden)
    else:
        with reference_runner(model) as runner:
            results = collect(runner, feeds)
    return [{name: np.asarray(array) for name, array in iteration.items()} for iteration in results[0][1]]


def built_case(case: Case, build: Build, calibration: bytes | None) -> Case:
    """The case of an engine: its model as the builder was given it, with the settings that it was built with.

    Args:
        case: The case, with the model that the engine was built from.
        build: The build.
        calibration: The calibration cache of an INT8 build.
    """
    if case.backend == "tensorrt":
        return replace(case, settings=_tensorrt_settings(build.spec.config))
    return _onnxruntime_case(case, build.spec.config, build.tactics.settings, calibration)


def failing_case(case: Case, config: BuildConfig, calibration: bytes | None) -> Case:
    """The case of a build that came to no engine; of ONNX Runtime with its usual settings."""
    if case.backend == "tensorrt":
        return replace(case, settings=_tensorrt_settings(config))
    return _onnxruntime_case(case, config, (), calibration)


def _onnxruntime_case(
    case: Case, config: BuildConfig, settings: Sequence[tuple[str, str]], calibration: bytes | None
) -> Case:

    def remake(proto: onnx.ModelProto) -> onnx.ModelProto:
        return model_as_built(Model.from_proto(proto), config, calibration)

    return replace(case, model=remake(case.model), remake=remake, settings=_onnxruntime_settings(config, settings))


def emulated_case(case: Case, precision: LowPrecision, keep: Sequence[str] = ()) -> Case:
    """The case of a model in 16 bit as a GPU rounds it, which overflows or gives wrong outputs."""

    def remake(proto: onnx.ModelProto) -> onnx.ModelProto:
        return _emulated_model(proto, precision, keep)[0]

    proto, peaks = _emulated_model(case.model, precision, keep)
    return replace(case, model=proto, remake=remake, peaks=peaks, settings=unoptimized_settings())


def _emulated_model(
    proto: onnx.ModelProto, precision: LowPrecision, keep: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, float]]:
    """A model in 16 bit, with an output for the largest magnitude of each tensor; and the limits of these."""
    low = lower_precision(proto, precision, exclude=keep).model
    emulate_low_precision(low)
    peaks = watch_peaks(low) if precision == "fp16" else {}
    return low, dict.fromkeys(peaks.values(), _PEAK_LIMIT)


def unoptimized_settings() -> dict[str, JSONValue]:
    """Settings of ONNX Runtime under which a model runs node by node."""
    return {
        "optimization_level": "ORT_DISABLE_ALL",
        "session_config": {},
        "disabled_optimizers": [],
        "providers": ["CPUExecutionProvider"],
        "threads": 1,
    }


def _onnxruntime_settings(config: BuildConfig, settings: Sequence[tuple[str, str]]) -> dict[str, JSONValue]:
    options = config.options
    assert isinstance(options, OnnxRuntimeOptions)
    candidate = Candidate.from_settings(settings)
    return {
        "optimization_level": candidate.optimization_level,
        "session_config": dict(candidate.session_config),
        "disabled_optimizers": list(candidate.disabled_optimizers),
        "providers": list(options.providers),
        "threads": usable_threads(options.intra_op_threads),
    }


def _tensorrt_settings(config: BuildConfig) -> dict[str, JSONValue]:
    options = config.options
    assert isinstance(options, TensorRTOptions)
    lowered = {config.precision, *options.also} - {"fp32"}
    flags = [_FLAGS[each] for each in sorted(lowered) if each in _FLAGS]
    flags += [name for name, given in (("TF32", options.tf32), ("SPARSE_WEIGHTS", options.sparse_weights)) if given]
    keep = config.keep if config.precision in ("fp16", "bf16") else ()
    if keep:
        flags.append("OBEY_PRECISION_CONSTRAINTS")
    profiles: list[JSONValue] = [
        {r.name: [list(r.min), list(r.opt), list(r.max)] for r in profile.shapes} for profile in config.profiles
    ]
    return {
        "flags": list(flags),
        "cleared_flags": [] if options.tf32 else ["TF32"],  # it is on by default
        "optimization_level": options.optimization_level,
        "workspace_bytes": options.workspace_bytes,
        "tactic_sources": None if options.tactic_sources is None else [name.upper() for name in options.tactic_sources],
        "profiles": profiles,
        "keep": list(keep),
        "mark": list(config.mark),
    }


def recomputed(case: Case, original: onnx.ModelProto) -> Case:
    """The case of another model of the same structure: golden outputs, where there are any, are computed anew."""
    if not case.golden[0]:
        return replace(case, model=case.remake(original), original=original)
    golden = [{n: np.asarray(array) for n, array in out.items()} for out in reference_outputs(original, case.feeds)]
    return replace(case, model=case.remake(original), original=original, golden=golden)
