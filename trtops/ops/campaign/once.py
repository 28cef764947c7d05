"""An iteration that is made once, though it may be handed out again: when a worker of a cluster is lost, so is its answer."""

from __future__ import annotations

from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import IterationResult, iterate
from trtops.tracking import campaigns, schema
from trtops.tracking.base import StoredRun, Tracker

_LOST = "Its process ended in the middle of this iteration, which was handed out again."


def iterate_once(campaign: Campaign, number: int, *, tracker: Tracker) -> IterationResult:
    """Make an iteration of a campaign, as :func:`trtops.ops.campaign.iteration.iterate` does, unless it is there.

    Whatever a process that is gone left of it half done is closed, and the reason kept. One of another machine cannot be
    evaluated from here; it is closed there (``trtops store reap``).
    """
    tags = {schema.Tag.KIND: "iteration", schema.Tag.ITERATION: str(number)}
    for info in tracker.find(campaign.experiment, parent=campaign.run_id, tags=tags):
        info = campaigns.closed_if_abandoned(tracker, info, _LOST)
        if info.status == "finished" and info.verdict is not None:
            return _stored_result(number, tracker.load(info.id))
    return iterate(campaign, number, tracker=tracker)


def _stored_result(number: int, run: StoredRun) -> IterationResult:
    """What a whole iteration came to, from its run; its reasons are in the run's report."""
    info = run.info
    assert info.verdict is not None
    return IterationResult(
        number=number,
        run_id=info.id,
        verdict=info.verdict,
        build_seconds=info.metrics.get(schema.Metric.BUILD_SECONDS, 0.0),
        engine_sha256=info.tags.get(schema.Tag.ENGINE_SHA256, ""),
        tactics=campaigns.load_record(run),
    )
