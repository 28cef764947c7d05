"""The flows that check what is stored: audit runs, gate candidates, bundle a run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from prefect.events import emit_event

from trtops.flows.flow_of import flow_of, hold_nothing
from trtops.flows.slots import backend_slot, place_slot
from trtops.ops.auditing import op as audits
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.auditing.result import AuditResult
from trtops.ops.bundling.op import bundle as bundle_op
from trtops.ops.campaign.config import Place
from trtops.ops.gate.matrix import MatrixResult, gate_all
from trtops.ops.gate.op import GateConfig
from trtops.ops.gate.policy import read_policy
from trtops.ops.gate.releases import Release
from trtops.ops.gate.result import GateResult
from trtops.spec import BackendName, Precision
from trtops.tracking.base import Tracker
from trtops.tracking.schema import Tag


def _audit(
    config: AuditConfig | None = None,
    *,
    backend: BackendName = "onnxruntime",
    tracker: Tracker,
    tags: Mapping[str, str],
) -> AuditResult:
    """Check stored runs against themselves, rebuild them from the store alone, and grade each.

    Args:
        config: Everything that can be chosen. A sample without a seed is another one every week.
        backend: The back end that rebuilds; runs of another one are left out.
    """
    config = AuditConfig() if config is None else config
    if config.seed == 0:
        year, week, _ = datetime.datetime.now(datetime.timezone.utc).isocalendar()
        config = replace(config, seed=100 * year + week)
    if not config.runs:
        config = replace(config, tags=(*config.tags, (Tag.BACKEND, backend)))
    with backend_slot(backend, config):
        return audits.audit(config, tracker=tracker, tags=tags)


def _gate(
    models: tuple[Path, ...],
    config: GateConfig | None = None,
    *,
    policy: Path | None = None,
    releases: tuple[str, ...] = (),
    precisions: tuple[Precision, ...] = (),
    experiment: str | None = None,
    tracker: Tracker,
    tags: Mapping[str, str],
) -> GateResult | MatrixResult:
    """Build candidates, compare each with the accepted engine, and accept it, refuse it or ask for more measurement.

    An accepted version gets its alias in the registry. Each decision is sent as an event, ``trtops.gate.accept``,
    ``trtops.gate.refuse`` or ``trtops.gate.measure-more``, which automations of Prefect can follow.

    Args:
        models: ONNX files.
        config: Everything that can be chosen.
        policy: The policy, as a YAML file on the worker's machine.
        releases: Releases of the back end: constraints files (.txt) or environments, optionally as ``name=path``.
        precisions: Precisions to build in.
        experiment: MLflow experiment (default: the model's name, or ``gate`` for several candidates).
    """
    config = GateConfig() if config is None else config
    if policy is not None:
        config = replace(config, policy=read_policy(policy))
    with place_slot(Place(backend=config.build.backend, devices=config.devices)) as devices:
        result = gate_all(
            models,
            replace(config, devices=devices),
            releases=tuple(map(Release.parse, releases)),
            precisions=precisions,
            tracker=tracker,
            experiment=experiment,
            tags=tags,
        )
    for each in result.cells if isinstance(result, MatrixResult) else (result,):
        emit_event(
            event=f"trtops.gate.{each.decision.replace(' ', '-')}",
            resource={
                "prefect.resource.id": f"trtops.run.{each.run_id or 'none'}",
                "trtops.alias": each.alias,
                "trtops.version": each.version,
            },
            payload={"reasons": list(each.reasons), "url": each.url},
        )
    return result


audit = flow_of(_audit, by_steps=True)
gate = flow_of(_gate, hold=hold_nothing, by_steps=True)
bundle = flow_of(bundle_op)
