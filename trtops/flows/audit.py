"""The audit flow: what the memory holds is held against itself, built again, and graded.

From Python: ``from trtops.flows.audit import audit; audit(accepted=True)``. From the shell: ``python -m trtops.flows.audit --accepted``. As a
deployment, every week: see ``prefect.yaml``.
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from typing import Annotated, Any

from trtops import errors
from trtops.flows.artifacts import show_result, verdict_state
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.auditing.config import AtLeast, AuditConfig
from trtops.ops.auditing.op import audit as audit_op
from trtops.ops.auditing.result import AuditResult
from trtops.spec import BackendName
from trtops.terminal import progress
from trtops.tracking.schema import Tag


@trtops_task(name="audit-runs")
def audit_runs(config: AuditConfig, backend: BackendName) -> AuditResult:
    """One call of the audit op on the default store, on a GPU of its own if builds are made there."""
    with current_slot(backend), progress("Auditing", "runs") as bar:
        return audit_op(config, tracker=tracker(), tags=flow_tags(), progress=bar.update)


@trtops_flow(name="audit")
def audit(
    config: Annotated[AuditConfig | None, config_flag] = None,
    *,
    backend: BackendName = "onnxruntime",
    experiment: str | None = None,
    accepted: bool = False,
    sample: Count | None = None,
    seed: int | None = None,
    rebuild: bool = True,
    at_least: AtLeast | None = None,
) -> Any:
    """Hold runs against themselves, build them again from the memory alone, and grade each.

    Args:
        config: Everything that can be chosen.
        backend: Who builds again; runs of another back end are left out.
        experiment: All finished runs of an experiment.
        accepted: All runs that the registry points to.
        sample: So many of them, drawn at random; all unless given.
        seed: Seed of the draw; the number of the week unless given, so that every week draws others.
        rebuild: Build each run again; without, runs are only held against themselves.
        at_least: The grade that every run must reach; tactics unless given.

    Returns:
        What was found.

    Raises:
        AuditError: If a run does not pass; it has the result.
    """
    config = AuditConfig() if config is None else config
    config = replace(
        config,
        experiment=experiment or config.experiment,
        accepted=accepted or config.accepted,
        sample=sample or config.sample,
        seed=_this_week() if seed is None and config.seed == 0 else seed or config.seed,
        rebuild=rebuild and config.rebuild,
        at_least=at_least or config.at_least,
        tags=config.tags if config.runs else (*config.tags, (Tag.BACKEND, backend)),
    )
    result = audit_runs(config, backend)
    show_result(result)
    return verdict_state(result, errors.AuditError(result.headline, result))


def _this_week() -> int:
    year, week, _ = datetime.datetime.now(datetime.timezone.utc).isocalendar()
    return 100 * year + week


if __name__ == "__main__":
    sys.exit(run(audit, "audit"))
