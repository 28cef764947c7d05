"""The promote flow: a good build becomes the accepted engine of its model, device and release.

From Python: ``from trtops.flows.promote import promote; promote("<run>")``. From the shell: ``python -m trtops.flows.promote <run>``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.slots import bench_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.campaign.promote import PromoteConfig, PromoteResult, promotion_place
from trtops.ops.campaign.promote import promote as promote_op


@trtops_task(name="promote-build")
def promote_build(good_run: str, config: PromoteConfig) -> PromoteResult:
    """One call of the promote op, logged to the default store and registered there, on a GPU of its own if it needs one."""
    memory = tracker(existing=True)
    with bench_slot(promotion_place(memory.info(memory.whole_id(good_run)), config)) as devices:
        return promote_op(good_run, replace(config, devices=devices), tracker=memory, tags=flow_tags())


@trtops_flow(name="promote")
def promote(good_run: str, config: Annotated[PromoteConfig | None, config_flag] = None) -> PromoteResult:
    """Build again what a good run chose, verify it tactic by tactic and output by output, and register it.

    Args:
        good_run: A good build's run, or a good iteration's.
        config: Everything that can be chosen.

    Returns:
        The registered version and its alias.
    """
    result = promote_build(good_run, PromoteConfig() if config is None else config)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(promote, "promote"))
