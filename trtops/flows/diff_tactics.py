"""The diff-tactics flow: good and bad builds, and the tactic that tells them apart.

From Python: ``from trtops.flows.diff_tactics import diff_tactics; diff_tactics(runs=("<campaign>",))``. From the shell:
``python -m trtops.flows.diff_tactics --runs <campaign>``, or ``--experiment model``, or ``--folder replays``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, DiffTacticsResult
from trtops.ops.campaign.diff_tactics import diff_tactics as diff_tactics_op
from trtops.tactics.findings import By


@trtops_task(name="diff-builds")
def diff_builds(config: DiffTacticsConfig) -> DiffTacticsResult:
    """One call of the diff op, logged to the default store."""
    return diff_tactics_op(config, tracker=tracker(existing=bool(config.runs or config.experiment)), tags=flow_tags())


@trtops_flow(name="diff-tactics")
def diff_tactics(
    config: Annotated[DiffTacticsConfig | None, config_flag] = None,
    *,
    runs: tuple[str, ...] = (),
    experiment: str | None = None,
    folder: str | None = None,
    good: str | None = None,
    bad: str | None = None,
    by: By | None = None,
    also: tuple[By, ...] = (),
) -> DiffTacticsResult:
    """Say which tactic bad builds have and good ones lack, and keep the report in MLflow.

    Args:
        config: Everything that can be chosen; or else one of the sources below.
        runs: Campaigns, or single builds, by their runs.
        experiment: All evaluated builds of an experiment.
        folder: A folder with ``good/`` and ``bad/`` in it.
        good: A tactic record of a good build, or a folder of them.
        bad: Likewise, of bad builds.
        by: What is compared; tactic unless given.
        also: What is compared beside.

    Returns:
        The diff, and the run that holds it.
    """
    if config is None:
        config = DiffTacticsConfig(runs=runs, experiment=experiment, folder=folder, good=good, bad=bad)
    config = replace(config, by=by or config.by, also=also or config.also)
    result = diff_builds(config)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(diff_tactics, "diff_tactics"))
