"""The flows that search a model for the cause of a bad engine, the first wrong tensor, or the smallest failing part."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trtops.comparator.report import Tolerances
from trtops.flows.flow_of import flow_of
from trtops.ops.evaluation.command import CommandCheck
from trtops.ops.evaluation.submodel import Check
from trtops.ops.search import accuracy as accuracies
from trtops.ops.search import precision as precisions
from trtops.ops.search import reduce as reductions
from trtops.ops.search.accuracy import AccuracyConfig, AccuracyResult, Emulated
from trtops.ops.search.precision import PrecisionConfig, PrecisionResult, emulated_runner
from trtops.ops.search.precision_engines import EngineWriter
from trtops.ops.search.reduce import ReduceConfig, ReduceResult, engine_check
from trtops.ops.triaging.op import triage as triage_op
from trtops.spec import BackendName, BuildConfig, Precision


def _accuracy(
    model: Path,
    config: AccuracyConfig | None = None,
    *,
    side: Literal["onnxruntime", "tensorrt", "emulated"] = "onnxruntime",
    precision: Precision = "fp32",
    **logged: Any,
) -> AccuracyResult:
    """Compare every tensor of a model with what an engine computes, and log the table to MLflow.

    Args:
        model: The ONNX file.
        config: Everything that can be chosen.
        side: What is under test: an engine of a back end, or 16 bit as a GPU rounds it, emulated on the CPU.
        precision: The precision of the side under test.
    """
    tested: BuildConfig | Emulated = Emulated("bf16" if precision == "bf16" else "fp16")
    if side != "emulated":
        tested = BuildConfig(precision=precision).on_backend(side)
    return accuracies.accuracy(str(model), tested, config, **logged)


def _precision(
    model: Path,
    config: PrecisionConfig | None = None,
    *,
    side: Literal["emulated", "tensorrt"] = "emulated",
    **logged: Any,
) -> PrecisionResult:
    """Search for the nodes that must stay in FP32, and log the answer to MLflow.

    Args:
        model: The ONNX file, in FP32.
        config: Everything that can be chosen.
        side: What candidates are run by: 16 bit as a GPU rounds it, emulated on the CPU; or TensorRT engines.
    """
    runner = EngineWriter().runner if side == "tensorrt" else emulated_runner
    return precisions.precision(str(model), config, runner=runner, **logged)


def _reduce(
    model: Path,
    config: ReduceConfig | None = None,
    *,
    command: str | None = None,
    fail_codes: tuple[int, ...] = (),
    ignore_fail_codes: tuple[int, ...] = (),
    fail_regex: tuple[str, ...] = (),
    timeout_seconds: float | None = None,
    backend: BackendName = "onnxruntime",
    precision: Precision = "fp32",
    tolerances: Tolerances | None = None,
    **logged: Any,
) -> ReduceResult:
    """Find the smallest part of a model that still fails, and log it to MLflow as a model of its own.

    Args:
        model: The ONNX file.
        config: Everything that can be chosen.
        command: A command that fails for models that show the failure, with ``{model}`` in place of the path. Without
            one, engines of a back end are compared with the model itself.
        fail_codes: Exit codes of the command that mean the failure; any but 0 unless given.
        ignore_fail_codes: Exit codes that do not.
        fail_regex: Regular expressions; the output of the command must match one to count as the failure.
        timeout_seconds: How long one run of the command may take (default: no limit).
        backend: The back end under test.
        precision: Its precision.
        tolerances: When its outputs are good enough; by default those of the precision.
    """
    check: Check = engine_check(BuildConfig(precision=precision).on_backend(backend), tolerances)
    if command is not None:
        check = CommandCheck(
            command=tuple(shlex.split(command)),
            fail_codes=fail_codes,
            ignore_fail_codes=ignore_fail_codes,
            fail_regex=fail_regex,
            timeout_seconds=timeout_seconds,
        )
    return reductions.reduce(model, check, config, **logged)


def _place_of_side(tracker: object, config: object, given: Mapping[str, Any]) -> BackendName | None:
    tested = given.get("side") or given.get("backend")
    return "tensorrt" if tested == "tensorrt" and given.get("command") is None else None


triage = flow_of(triage_op)
accuracy = flow_of(_accuracy, place=_place_of_side)
precision = flow_of(_precision, place=_place_of_side)
reduce = flow_of(_reduce, place=_place_of_side, by_steps=True)
