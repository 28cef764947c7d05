"""Bisect: find the layers or settings behind a bad build, by building mixtures of a good and a bad build.

:mod:`trtops.tactics.bisection` chooses the mixtures.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.campaign.bisect_result import BisectConfig, BisectPlan, BisectResult, Unit
from trtops.ops.campaign.bisect_session import BisectSession
from trtops.ops.campaign.bisection_planner import have_all, most_alike
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import CampaignBuilder, EngineEvaluator, errors_of
from trtops.ops.campaign.mixture import Mixture
from trtops.ops.campaign.open_campaign import open_campaign
from trtops.ops.result import OnProgress, OpRun, tracker_or_default
from trtops.system.worker import kept_workers
from trtops.tactics.contributions import SOUND_SPREAD
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.table import CampaignTable
from trtops.tracking import campaigns, schema
from trtops.tracking.base import Run, RunInfo, Tracker, ended_if_whole, run_id_of
from trtops.tracking.schema import Kind
from trtops.tracking.spool import STORE_UNAVAILABLE
from trtops.verdict import PASSED, Verdict

_KIND: Kind = "bisect"
_WANTED: tuple[tuple[Verdict, ...], ...] = (PASSED, ("bad",))  # verdicts of the builds that are mixed
_HISTORY = 50  # proofs and bisections of the store, the last ones, that suspects are taken from
_CUT_SHORT = "The bisection's process ended in the middle of this build, which was repeated."


@checked_arguments
@kept_workers()
def bisect(
    run: str,
    bad: str | None = None,
    config: BisectConfig | None = None,
    *,
    tracker: Tracker | None = None,
    tags: Mapping[str, str] | None = None,
    evaluate: EngineEvaluator | None = None,
    progress: OnProgress | None = None,
    held_units: Sequence[Unit] = (),
) -> BisectResult:
    """Find the cause of a bad build, by building mixtures of it and a good one.

    A bisection can be killed at any moment and resumed: no mixture whose run is complete is built again.

    Args:
        run: A campaign's run: its most similar good and bad builds are mixed. Or the run of
            a good build, with ``bad``. Or that of a bisection, which is resumed, with its own config but for
            ``allow_scripts``; one that has ended gives its result.
        bad: The run of a bad build of the same campaign.
        config: How long, and how sure.
        tracker: The tracking store.
        tags: Further tags of all runs.
        evaluate: The Python callable that evaluated the campaign's engines, if one did.
        progress: Called with the number of builds made, and the maximum.
        held_units: Confirmed choices of the bad build that every mixture gets. If the good build with them is bad, the
            outcome is ``sufficient``; else the bisection searches what else they need.

    Raises ConfigError if there is no good or no bad build, or the two are not of one campaign; LogError if the process
    of a bisection to resume may still be alive.

    >>> campaign = trtops.debug_build("gpu_model.onnx", config)  # doctest: +SKIP
    >>> trtops.bisect(campaign.run_id).summary  # doctest: +SKIP
    'Confirmed in 12 builds: conv1: cutlass_tensorop_h884gemm.'
    """
    tracker = tracker_or_default(tracker)
    info = ended_if_whole(tracker, tracker.info(run_id_of(run, tracker)))
    if bad is None and info.kind == _KIND and info.status == "finished":
        return BisectResult.from_json(tracker.load(info.id).read_bytes(schema.Artifact.BISECTION))
    resumed: list[RunInfo] = []
    if bad is None and info.kind == _KIND:
        parent, plan, mixture, resumed = _resume(tracker, info)
        # A stored config is no permission: everybody with write access to the store could change it.
        allow_scripts = config is not None and config.allow_scripts
        campaign = open_campaign(tracker, str(info.parent), allow_scripts=allow_scripts)
    else:
        config = BisectConfig() if config is None else config
        campaign = campaign_of(tracker, run, bad, allow_scripts=config.allow_scripts)
        plan, mixture = _plan_pair(tracker, campaign, run, bad, config, tuple(held_units))
        parent = tracker.start(campaign.experiment, plan.title, kind=_KIND, tags=tags, parent=campaign.run_id)
        parent.log_json(plan, schema.Artifact.BISECTION_PLAN)
        parent.set_tags({schema.Tag.EVIDENCE: f"{plan.good_run} {plan.bad_run}"})
        parent.log_params(config)
    try:
        campaign = replace(campaign.on(plan.config.devices), tags=tuple((tags or {}).items()))
        builder = CampaignBuilder(campaign, tracker, evaluate)
        session = BisectSession(builder, mixture, plan, parent.id, progress, resumed)
        op = OpRun(parent, tracker, campaign.experiment)
        result = op.recorded(session.run())
        if (entry := _denied(result, mixture, campaigns.load_table(tracker, campaign.run_id))) is not None:
            parent.log_json(entry, schema.Artifact.DENIED)
            # As of a proof, so that the deny-list takes it.
            parent.set_tags({schema.Tag.PROOF: "confirmed"})
        counts = {"builds": len(result.trials), "units": result.units}
        parent.log_metrics({(schema.Metric.BISECT, name): count for name, count in counts.items()})
        return op.finish(result, artifact=schema.Artifact.BISECTION, evaluated=False)
    except BaseException as exc:
        parent.fail(exc)
        raise


def campaign_of(tracker: Tracker, run: str, bad: str | None = None, *, allow_scripts: bool = False) -> Campaign:
    """Return the campaign of a bisection; arguments as in :func:`bisect` and its config."""
    run_id = run_id_of(run, tracker)
    if bad is not None:
        parent = tracker.info(run_id).parent
        if parent is None or parent != tracker.info(run_id_of(bad, tracker)).parent:
            raise errors.ConfigError(
                f"Runs {run_id} and {bad} are not builds of one campaign (`trtops debug build`), which defines how "
                "to build and evaluate."
            )
        run_id = parent
    return open_campaign(tracker, run_id, allow_scripts=allow_scripts)


def _plan_pair(
    tracker: Tracker, campaign: Campaign, run: str, bad: str | None, config: BisectConfig, held_units: tuple[Unit, ...]
) -> tuple[BisectPlan, Mixture]:
    """The two builds to mix."""
    table = campaigns.load_table(tracker, campaign.run_id)
    if bad is None:
        for verdicts in _WANTED:
            if not table.named(*verdicts):
                raise errors.ConfigError(
                    f"Campaign {campaign.run_id} has no {verdicts[0]} build yet, so there is nothing to mix."
                )
        pair = most_alike(table, table.with_verdict(*PASSED), table.with_verdict("bad"))
    else:
        pair = run_id_of(run, tracker), run_id_of(bad, tracker)
    stored = [tracker.load(name) for name in pair]
    for build, allowed_verdicts in zip(stored, _WANTED):
        if build.info.verdict not in allowed_verdicts:
            raise errors.ConfigError(
                f"Run {build.info.id} has the verdict {build.info.verdict}; expected a {allowed_verdicts[0]} build."
            )
    mixture = Mixture(*stored)
    return BisectPlan(
        builds=len(table),
        good_run=mixture.good.info.id,
        bad_run=mixture.bad.info.id,
        config=config,
        held=held_units,
        suspected=suspected_units(tracker, mixture),
    ), mixture


def suspected_units(tracker: Tracker, mixture: Mixture) -> tuple[Unit, ...]:
    """The units to ask about first.

    They have a kernel or setting that a proof or bisection of the same store confirmed; or belong to the first tensor,
    in the engine's order, whose error in the bad build is more than twice that in the good one. Without the store, only
    the latter are known.
    """
    proofs = list[RunInfo]()
    with contextlib.suppress(*STORE_UNAVAILABLE):
        proofs = tracker.find(tags={schema.Tag.PROOF: "confirmed"}, status="finished", limit=_HISTORY)
    confirmed: set[tuple[str, str]] = set()
    for info in proofs:
        if (document := tracker.peek(info.id, schema.Artifact.DENIED)) is not None:
            entry = DeniedTactic.from_json(document)
            for choice in entry.choices:
                confirmed.add(("layer", choice.tactic))
            for name, value in entry.settings:
                confirmed.add(("setting", f"{name}={value}"))
    good, bad = errors_of(mixture.good.info), errors_of(mixture.bad.info)
    diverges: dict[str, bool] = {}
    for metric, error in bad.items():
        if len(metric) == 3 and metric[2] == "max_abs":
            diverges[metric[1]] = error > SOUND_SPREAD * good.get(metric, math.inf)
    # If all outputs diverge, the first one shows nothing.
    layers = [] if all(diverges.values()) else [c.layer for c in mixture.bad_tactics.choices if diverges.get(c.layer)]
    suspected = []
    for unit in mixture.units:
        text = unit.bad if unit.kind == "layer" else unit.describe()
        if unit.name in layers[:1] or (unit.kind, text) in confirmed:
            suspected.append(unit)
    return tuple(suspected)


def _resume(tracker: Tracker, info: RunInfo) -> tuple[Run, BisectPlan, Mixture, list[RunInfo]]:
    """An interrupted bisection, with its complete mixtures, the oldest first; the others are closed and built again."""
    data = tracker.peek(info.id, schema.Artifact.BISECTION_PLAN)
    if data is None or info.parent is None:
        raise errors.ConfigError(f"Bisection {info.id} was killed before it had begun. Bisect its campaign again.")
    plan = BisectPlan.from_json(data)
    run = tracker.reopen(info.id)
    done = []
    for child in reversed(tracker.find(info.experiment, parent=info.id, tags={schema.Tag.KIND: "iteration"})):
        if child.status == "running":
            child = tracker.close(child.id, _CUT_SHORT)
        if child.status == "finished" and child.verdict is not None:
            done.append(child)
    return run, plan, Mixture(tracker.load(plan.good_run), tracker.load(plan.bad_run)), done


def _denied(result: BisectResult, mixture: Mixture, table: CampaignTable) -> DeniedTactic | None:
    """The entry for the deny-list: a culprit sufficient by itself, if one was found."""
    if result.held or not result.culprits:
        return None
    culprit = result.culprits[0]
    # A culprit that good builds have as well needs something that both builds of the pair have.
    if (table.with_verdict(*PASSED) & have_all(table, culprit.units)).any():
        return None
    # Of two layers that fail only together neither fails by itself, and the deny-list takes each layer by itself;
    # settings it takes together.
    only_settings = all(unit.kind == "setting" for unit in culprit.units)
    if len(culprit.clauses) > 1 or (len(culprit.units) > 1 and not only_settings):
        return None
    return DeniedTactic.of(mixture.bad_tactics, {unit.column for unit in culprit.units}, result.run_id)
