"""Flows for checking stored runs, and for searching a model for the cause of a bad engine."""

import datetime
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from pydantic import Field

from trtops.comparator.report import Tolerances
from trtops.flows.flow_of import flow_of
from trtops.flows.slots import in_flow
from trtops.ops.auditing import op as audits
from trtops.ops.auditing.op import AuditConfig
from trtops.ops.auditing.result import AuditResult
from trtops.ops.bundling.op import bundle as bundle_op
from trtops.ops.devices import BuildPlace
from trtops.ops.gate.matrix import MatrixResult, gate_all
from trtops.ops.gate.op import approve
from trtops.ops.gate.policy import GateConfig, read_policy
from trtops.ops.gate.result import GateResult
from trtops.ops.search import accuracy as accuracies
from trtops.ops.search import precision as precisions
from trtops.ops.search import reduce as reductions
from trtops.ops.search.accuracy import AccuracyConfig, AccuracyResult, Emulated
from trtops.ops.search.choose import ChooseConfig, ChooseListResult, ChooseResult, choose_all
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.precision import PrecisionConfig, PrecisionResult, emulated_runner
from trtops.ops.search.precision_engines import EngineWriter
from trtops.ops.search.reduce import ReduceConfig, ReduceResult, engine_check
from trtops.ops.triaging.op import triage as triage_op
from trtops.reports.description import without_links
from trtops.spec import BackendName, BuildConfig, Precision
from trtops.tracking.schema import Tag

log = logging.getLogger(__name__)

_APPROVAL_SECONDS = 7 * 86400  # after which a paused flow run fails; the gate stays undecided


def _audit(config: AuditConfig = AuditConfig(), *, backend: BackendName = "onnxruntime", **logged: Any) -> AuditResult:
    """Check stored runs against themselves, rebuild them from the store alone, and grade each.

    Args:
        backend: The back end that rebuilds; runs of another one are left out.
    """
    if config.seed == 0:
        # A scheduled audit has the same parameters each time, and should reach all runs in the end.
        year, week, _ = datetime.datetime.now(datetime.timezone.utc).isocalendar()
        config = replace(config, seed=100 * year + week)
    if not config.runs and (config.has_filter or not config.certificates):
        config = replace(config, tags=(*config.tags, (Tag.BACKEND, backend)))
    return audits.audit(config, **logged)


def _gate(
    models: tuple[Path, ...] = (),
    config: GateConfig = GateConfig(),
    *,
    policy: Path | None = None,
    releases: tuple[str, ...] = (),
    precisions: tuple[Precision, ...] = (),
    kernel: str = "",
    approval: bool = False,
    **logged: Any,
) -> GateResult | MatrixResult:
    """Build candidates, compare each with the accepted engine, and accept it, refuse it or ask for more measurement.

    An accepted version gets its alias in the registry.

    Args:
        models: ONNX files; if empty, the accepted engines of the store, in the newest release.
        policy: The policy, as a YAML file on the worker's machine.
        releases: Constraints files of pip, one for each release of the back end, from the oldest to the newest.
        precisions: Precisions to build in.
        kernel: Without models, only the accepted engines that contain this kernel.
        approval: If the gate of a single candidate is undecided, pause the flow run until a person has decided.
    """
    if policy is not None:
        config = replace(config, policy=read_policy(policy))
    return gate_all(models, config, releases=releases, precisions=precisions, kernel=kernel, **logged)


class Approval(RunInput):
    """The form of an undecided gate."""

    accept: bool
    person: str = Field(min_length=1, description="Who decides.")
    reason: str = Field(min_length=1, description="Why, for the record.")


def _approved(result: GateResult | MatrixResult, arguments: Mapping[str, Any]) -> GateResult | MatrixResult:
    """The result of a gate, decided by a person if it is undecided and approvals are asked for."""
    undecided = isinstance(result, GateResult) and result.decision == "undecided" and bool(result.holder)
    if not (undecided and arguments.get("approval")):
        return result
    assert isinstance(result, GateResult)
    if not in_flow():
        log.warning("Without a Prefect server (PREFECT_API_URL) no person can be asked; the gate stays undecided.")
        return result
    form = Approval.with_initial_data(description=without_links(result.page(), result.url))
    answer = pause_flow_run(wait_for_input=form, timeout=_APPROVAL_SECONDS, poll_interval=5)
    return approve(
        result, arguments["config"], **answer.model_dump(), tracker=arguments["tracker"], tags=arguments["tags"]
    )


def _accuracy(
    model: Path,
    config: AccuracyConfig = AccuracyConfig(),
    *,
    side: Literal["onnxruntime", "tensorrt", "emulated"] = "onnxruntime",
    precision: Precision = "fp32",
    **logged: Any,
) -> AccuracyResult:
    """Compare every tensor of a model with the engine's, and log the table to MLflow.

    Args:
        side: What is under test: an engine of a back end, or 16 bit as a GPU rounds it, emulated on the CPU.
        precision: The precision of the side under test.
    """
    tested: BuildConfig | Emulated = Emulated("bf16" if precision == "bf16" else "fp16")
    if side != "emulated":
        tested = BuildConfig(precision=precision).on_backend(side)
    return accuracies.accuracy(str(model), tested, config, **logged)


def _precision(
    model: Path,
    config: PrecisionConfig = PrecisionConfig(),
    *,
    side: Literal["emulated", "tensorrt"] = "emulated",
    **logged: Any,
) -> PrecisionResult:
    """Search for the nodes to keep in FP32, and log the answer to MLflow.

    Args:
        model: The ONNX file, in FP32.
        side: What candidates are run by: 16 bit as a GPU rounds it, emulated on the CPU; or TensorRT engines.
    """
    runner = EngineWriter().runner if side == "tensorrt" else emulated_runner
    return precisions.precision(str(model), config, runner=runner, **logged)


def _reduce(
    model: Path,
    config: ReduceConfig = ReduceConfig(),
    *,
    command: CommandCheck | None = None,
    backend: BackendName = "onnxruntime",
    precision: Precision = "fp32",
    tolerances: Tolerances | None = None,
    **logged: Any,
) -> ReduceResult:
    """Find the smallest failing part of a model, and log it to MLflow as a model of its own.

    Args:
        command: A command that fails for models that show the failure, with ``{model}`` in place of the path. Without
            one, engines of a back end are compared with the model itself.
        backend: The back end under test.
        precision: Its precision.
        tolerances: When its outputs are good enough; by default those of the precision.
    """
    check = command or engine_check(BuildConfig(precision=precision).on_backend(backend), tolerances)
    return reductions.reduce(model, check, config, **logged)


def _choose(
    models: Sequence[str | Path], config: ChooseConfig = ChooseConfig(), **logged: Any
) -> ChooseResult | ChooseListResult:
    """Choose the fastest engine of each model within limits on its loss and latency."""
    return choose_all(models, config, **logged)


def _place_of_side(tracker: object, config: object, arguments: Mapping[str, Any]) -> BackendName | None:
    tested = arguments.get("side") or arguments.get("backend")
    return "tensorrt" if tested == "tensorrt" and arguments.get("command") is None else None


audit = flow_of(_audit, place_of=lambda tracker, config, arguments: arguments.get("backend"), by_steps=True)
bundle = flow_of(bundle_op)
choose = flow_of(_choose, by_steps=True)
gate = flow_of(
    _gate,
    place_of=lambda tracker, config, arguments: BuildPlace(backend=config.build.backend, devices=config.devices),
    by_steps=True,
    after=_approved,
)
triage = flow_of(triage_op)
accuracy = flow_of(_accuracy, place_of=_place_of_side)
precision = flow_of(_precision, place_of=_place_of_side)
reduce = flow_of(_reduce, place_of=_place_of_side, by_steps=True)
