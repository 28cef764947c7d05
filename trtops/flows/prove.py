"""The prove flow: the suspect of a campaign is put into a good build and taken out of a bad one.

From Python: ``from trtops.flows.prove import prove; prove("<campaign>")``. From the shell: ``python -m trtops.flows.prove <campaign>``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count, Index
from trtops.flows.slots import bench_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.campaign.opened import open_campaign
from trtops.ops.campaign.prove import ProveConfig, ProveResult
from trtops.ops.campaign.prove import prove as prove_op
from trtops.terminal import progress


@trtops_task(name="prove-suspect")
def prove_suspect(campaign: str, config: ProveConfig) -> ProveResult:
    """One call of the prove op, logged to the default store, on a GPU of its own if it needs one."""
    memory = tracker(existing=True)
    with (
        bench_slot(
            open_campaign(memory, campaign, allow_scripts=config.allow_scripts).config.place.on(config.devices)
        ) as devices,
        progress("Proving", "builds") as bar,
    ):
        config = replace(config, devices=devices)
        return prove_op(campaign, config, tracker=memory, tags=flow_tags(), progress=bar.update)


@trtops_flow(name="prove")
def prove(
    campaign: str,
    config: Annotated[ProveConfig | None, config_flag] = None,
    *,
    suspect: Index | None = None,
    repeats: Count | None = None,
) -> ProveResult:
    """Find out by intervention whether a suspect makes builds bad; a confirmed one goes on the deny-list.

    Args:
        campaign: The campaign's run.
        config: Everything that can be chosen.
        suspect: Position in the diff's suspects; the diff's explanation unless given.
        repeats: How often each swap is made; 3 unless given.

    Returns:
        ``confirmed``, ``refuted`` or ``not isolable``, and the builds that show it.
    """
    config = ProveConfig() if config is None else config
    if suspect is not None:
        config = replace(config, suspect=suspect)
    result = prove_suspect(campaign, replace(config, repeats=repeats or config.repeats))
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(prove, "prove"))
