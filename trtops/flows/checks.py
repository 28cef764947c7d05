"""The flows that check what is stored: audit runs, gate candidates, bundle a run."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtops.flows.flow_of import flow_of
from trtops.ops.auditing import op as audits
from trtops.ops.auditing.op import AuditConfig
from trtops.ops.auditing.result import AuditResult
from trtops.ops.bundling.op import bundle as bundle_op
from trtops.ops.campaign.config import Place
from trtops.ops.gate.matrix import MatrixResult, gate_all
from trtops.ops.gate.op import GateConfig
from trtops.ops.gate.policy import read_policy
from trtops.ops.gate.releases import Release
from trtops.ops.gate.result import GateResult
from trtops.spec import BackendName, Precision
from trtops.tracking.schema import Tag


def _audit(config: AuditConfig | None = None, *, backend: BackendName = "onnxruntime", **logged: Any) -> AuditResult:
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
    return audits.audit(config, **logged)


def _gate(
    models: tuple[Path, ...],
    config: GateConfig | None = None,
    *,
    policy: Path | None = None,
    releases: tuple[str, ...] = (),
    precisions: tuple[Precision, ...] = (),
    **logged: Any,
) -> GateResult | MatrixResult:
    """Build candidates, compare each with the accepted engine, and accept it, refuse it or ask for more measurement.

    An accepted version gets its alias in the registry.

    Args:
        models: ONNX files.
        config: Everything that can be chosen.
        policy: The policy, as a YAML file on the worker's machine.
        releases: Releases of the back end: constraints files (.txt) or environments, optionally as ``name=path``.
        precisions: Precisions to build in.
    """
    config = GateConfig() if config is None else config
    if policy is not None:
        config = replace(config, policy=read_policy(policy))
    return gate_all(models, config, releases=tuple(map(Release.parse, releases)), precisions=precisions, **logged)


audit = flow_of(_audit, place=lambda tracker, config, given: given.get("backend"), by_steps=True)
gate = flow_of(
    _gate,
    place=lambda tracker, config, given: Place(backend=config.build.backend, devices=config.devices),
    by_steps=True,
)
bundle = flow_of(bundle_op)
