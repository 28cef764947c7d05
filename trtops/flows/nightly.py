"""The nightly flow: every model of a list is built and evaluated, and a page says what became of each.

From Python: ``from trtops.flows.nightly import nightly; nightly("models.yaml")``. From the shell:
``python -m trtops.flows.nightly models.yaml``. As a deployment, every night: see ``prefect.yaml``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State

from trtops import errors
from trtops.flows.artifacts import show_result, verdict_state
from trtops.flows.command import run
from trtops.flows.parameters import Count
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.engines.build_list import BuildListConfig
from trtops.ops.engines.build_list import build_list as build_list_op
from trtops.ops.engines.convert import ConvertConfig, ConvertResult
from trtops.ops.engines.convert import convert as convert_op
from trtops.ops.engines.model_list import ModelList
from trtops.spec import BackendName
from trtops.terminal import progress

log = logging.getLogger(__name__)


@trtops_task(name="build-listed")
def build_listed(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
    """One call of the convert op, logged to the default store, on a GPU of its own if it needs one."""
    with current_slot(config.build.backend):
        return convert_op(model, config, tracker=tracker(), experiment=experiment, tags=tags)


@trtops_flow(name="nightly")
def nightly(
    models: Path,
    *,
    backends: tuple[BackendName, ...] | None = None,
    only_new: bool = False,
    attempts: Count = 3,
    experiment: str | None = None,
) -> Any:
    """Build and evaluate every model of a list, keep everything in MLflow, and show a summary.

    Args:
        models: The list, a YAML file on the worker's machine.
        backends: Only builds with these back ends; all unless given.
        only_new: Only builds that the memory does not have, by content; what failed is tried again.
        attempts: How often in all what failed is tried, with "only new".
        experiment: MLflow experiment of the summary; builds go to those of their models.

    Returns:
        What became of each build.

    Raises:
        FormatError: If the list cannot be read.
        BuildListError: If builds failed; it has the result.
    """
    config = BuildListConfig(backends=backends, only_new=only_new, attempts=attempts)
    return build_and_show(models, config, experiment)


def build_and_show(models: Path | ModelList, config: BuildListConfig, experiment: str | None) -> State[Any]:
    """Build what a list asks for, each build a task; the flow's state says how many failed."""
    with progress("Building", "builds") as bar:

        def tell(done: int, total: int, name: str) -> None:
            log.info("Building %s (%d of %d)", name, done + 1, total)
            bar.update(done, total, f" {name}")

        result = build_list_op(
            models,
            config,
            tracker=tracker(),
            experiment=experiment,
            tags=flow_tags(),
            convert_one=_convert_as_task,
            progress=tell,
        )
    if result.experiment:
        show_result(result)
    return verdict_state(result, errors.BuildListError(result.headline, result))


def _convert_as_task(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
    name = f"{Path(model).stem} {config.build.precision} {config.build.backend}"
    return build_listed.with_options(task_run_name=name)(model, config, experiment, tags)


if __name__ == "__main__":
    sys.exit(run(nightly, "nightly"))
