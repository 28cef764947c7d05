"""The noise flow: a campaign's engines are run again and again, and their error is split.

From Python: ``from trtops.flows.noise import noise; noise("<campaign>")``. From the shell: ``python -m trtops.flows.noise <campaign>``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Several
from trtops.flows.slots import bench_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.campaign.noise import NoiseConfig, NoiseResult, Statistic
from trtops.ops.campaign.noise import noise as noise_op
from trtops.ops.campaign.opened import open_campaign
from trtops.terminal import progress


@trtops_task(name="measure-noise")
def measure_noise(campaign: str, config: NoiseConfig) -> NoiseResult:
    """One call of the noise op, logged to the default store, on a GPU of its own if it needs one."""
    memory = tracker(existing=True)
    with (
        bench_slot(
            open_campaign(memory, campaign, allow_scripts=config.allow_scripts).config.place.on(config.devices)
        ) as devices,
        progress("Measuring", "engines") as bar,
    ):
        config = replace(config, devices=devices)
        return noise_op(campaign, config, tracker=memory, tags=flow_tags(), progress=bar.update)


@trtops_flow(name="noise")
def noise(
    campaign: str,
    config: Annotated[NoiseConfig | None, config_flag] = None,
    *,
    builds: Several | None = None,
    runs: Several | None = None,
    statistic: Statistic | None = None,
) -> NoiseResult:
    """Say what runs, builds and the precision add to the error of a model, and below which limit it stays.

    Args:
        campaign: The campaign's run.
        config: Everything that can be chosen.
        builds: How many of its engines are run; 8 unless given.
        runs: How often each is; 8 unless given.
        statistic: Which error is split; max_abs unless given.

    Returns:
        The error, split, and the run that holds it.
    """
    config = NoiseConfig() if config is None else config
    config = replace(
        config,
        builds=builds or config.builds,
        runs=runs or config.runs,
        statistic=statistic or config.statistic,
    )
    result = measure_noise(campaign, config)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(noise, "noise"))
