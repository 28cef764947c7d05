"""The bisect flow: mixtures of a good and a bad build say which choice makes builds bad.

From Python: ``from trtops.flows.bisect import bisect; bisect("<campaign>")``. From the shell: ``python -m trtops.flows.bisect <campaign>``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count, Positive
from trtops.flows.slots import bench_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.campaign.bisect import bisect as bisect_op
from trtops.ops.campaign.bisect import campaign_of
from trtops.ops.campaign.bisected import BisectConfig, BisectResult
from trtops.terminal import progress


@trtops_task(name="build-mixtures")
def build_mixtures(campaign: str, bad: str | None, config: BisectConfig) -> BisectResult:
    """One call of the bisect op, logged to the default store, on a GPU of its own if it needs one."""
    memory = tracker(existing=True)
    with (
        bench_slot(
            campaign_of(memory, campaign, bad, allow_scripts=config.allow_scripts).config.place.on(config.devices)
        ) as devices,
        progress("Bisecting", "builds") as bar,
    ):
        config = replace(config, devices=devices)
        return bisect_op(campaign, bad, config, tracker=memory, tags=flow_tags(), progress=bar.update)


@trtops_flow(name="bisect")
def bisect(
    campaign: str,
    bad: str | None = None,
    config: Annotated[BisectConfig | None, config_flag] = None,
    *,
    max_builds: Count | None = None,
    max_minutes: Positive | None = None,
) -> BisectResult:
    """Find what makes a build bad, by building mixtures of it and a good build of the same campaign.

    Args:
        campaign: The campaign's run, or that of a good build.
        bad: The run of a bad build, beside a good one; the most alike pair of the campaign unless given.
        config: Everything that can be chosen.
        max_builds: Builds at most; 60 unless given.
        max_minutes: No build is begun after so many minutes; no limit unless given.

    Returns:
        The culprits, with their probability and their effect on the error, and the builds that show it.
    """
    config = BisectConfig() if config is None else config
    config = replace(config, max_builds=max_builds or config.max_builds, max_minutes=max_minutes or config.max_minutes)
    result = build_mixtures(campaign, bad, config)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(bisect, "bisect"))
