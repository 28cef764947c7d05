"""The flows of campaigns: repeated builds of one model, and the search for the cause of bad ones."""

import platform
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from trtops import errors
from trtops.extras import require
from trtops.flows.flow_of import flow_of, open_tracker, task_of, task_state
from trtops.flows.slots import device_slot, in_flow
from trtops.ops.campaign import bisect as bisects
from trtops.ops.campaign import debug_build as debug_builds
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.campaign.debug_build import CampaignProgress, DebugBuildResult, Submit
from trtops.ops.campaign.diff_tactics import diff_tactics as diff_tactics_op
from trtops.ops.campaign.iteration import CampaignBuild, iterate_once
from trtops.ops.campaign.open_campaign import open_campaign
from trtops.ops.campaign.prove import prove as prove_op
from trtops.ops.devices import BuildPlace
from trtops.ops.registry import promote as promotions
from trtops.tracking.base import Tracker, run_id_of


def _make_iteration(campaign: Campaign, number: int) -> CampaignBuild:
    """One iteration, on a GPU of its own if it needs one. Dask repeats a task if its worker is lost with the answer."""
    tracker = open_tracker()
    try:
        tracker.info(campaign.run_id)
    except errors.RunNotFoundError as exc:
        # A Dask worker that was started with other settings would log to a store of its own.
        raise errors.ConfigError(
            f"{platform.node()} logs to {tracker.shown}, not to the store of this flow ({exc}). Start Dask's "
            "workers with the MLFLOW_TRACKING_URI or TRTOPS_HOME of this flow (docs/pages/team.md)."
        ) from None
    except errors.TrackingUnavailableError:
        pass  # the spool folder keeps the iteration until the store is back
    with device_slot(campaign.config.place) as devices:
        return iterate_once(campaign.on(devices), number, tracker=tracker)


def _iteration(campaign: Campaign, number: int) -> CampaignBuild | State[CampaignBuild]:
    """An iteration; in the state of its verdict unless that is good."""
    build = _make_iteration(campaign, number)
    return task_state(build, build) or build


make_iteration = task_of(_iteration, "iteration", run_name="iteration {number}")


@contextmanager
def spread(parallel: int, dask: str | None = None) -> Iterator[Submit]:
    """Yield a function to start iterations as Prefect tasks, for the time of a block.

    Args:
        parallel: Number of threads, each with a child process to build in.
        dask: Address of a Dask scheduler whose workers run the iterations instead. All of them must reach the model's
            path, the flow's Prefect server and the tracking store.
    """
    threads = ThreadPoolTaskRunner[Any](max_workers=parallel)
    task_runner: AbstractContextManager[Any] = threads if dask is None else _dask_runner(dask)
    with task_runner as runner:

        def submit(campaign: Campaign, number: int) -> Future[CampaignBuild]:
            task = runner.submit(make_iteration, parameters={"campaign": campaign, "number": number})
            # The campaign waits for the first of several, which is possible for plain futures only.
            done: Future[CampaignBuild] = Future()

            def set_outcome(finished: PrefectFuture[CampaignBuild]) -> None:
                outcome: object
                try:
                    outcome = finished.result(raise_on_failure=False)
                except BaseException as exc:
                    outcome = exc
                if isinstance(outcome, CampaignBuild):
                    done.set_result(outcome)
                else:  # raised where the result is waited for
                    assert isinstance(outcome, BaseException)
                    done.set_exception(outcome)

            task.add_done_callback(set_outcome)
            return done

        yield submit


@contextmanager
def _dask_runner(address: str) -> Iterator[TaskRunner[Any]]:
    """The Dask cluster of a scheduler, for the time of a block. Its workers use the Prefect server of the flow.

    Raises BackendUnavailableError if prefect-dask is not installed; ConfigError if no scheduler answers there, or it
    has no workers.
    """
    require("prefect_dask")
    from prefect_dask.task_runners import DaskTaskRunner

    # Without an address, each worker would start a server of its own: slow, left behind, and without this flow run.
    with get_client(sync_client=True) as client:
        url = PREFECT_API_URL.value() or str(client.api_url)
    with temporary_settings({PREFECT_API_URL: url}), DaskTaskRunner(address=address) as runner:
        try:
            runner.client.wait_for_workers(1, timeout=300)
        except (OSError, ValueError) as exc:
            raise errors.ConfigError(
                f"Dask scheduler {address!r}: {exc}. Start one by `dask scheduler`, and workers by "
                "`dask worker <address>`."
            ) from exc
        yield runner


@contextmanager
def _shown_progress() -> Iterator[Any]:
    """Yield a function to show the progress of a campaign as an artifact of the flow run."""
    artifact = create_progress_artifact(0.0, description="Builds: none yet")
    assert isinstance(artifact, UUID)  # a coroutine in asynchronous flows only
    last, text = time.monotonic(), ""

    def show(progress: CampaignProgress) -> None:
        nonlocal last, text
        conclusion = f"; {progress.diff.conclusion}" if progress.diff is not None else ""
        counts = (
            f"{progress.good} good, {progress.bad} bad, {progress.unproven} unproven, {progress.error} crashed or hung"
        )
        text = f"{progress.done} builds: {counts}, {progress.mixtures} mixtures{conclusion}"
        if time.monotonic() - last >= 1.0:  # each update is a request
            last = time.monotonic()
            update_progress_artifact(artifact, 100.0 * progress.done / progress.limit, description=text)

    yield show
    update_progress_artifact(artifact, 100.0, description=text)


def _debug_build(
    model: Path | None = None,
    config: DebugBuildConfig = DebugBuildConfig(),
    *,
    resume: str | None = None,
    dask: str | None = None,
    allow_scripts: bool = False,
    **logged: Any,
) -> DebugBuildResult:
    """Build a model until the tactic behind its bad builds is found, and log every build to MLflow.

    Args:
        model: The ONNX file; not needed to resume a campaign.
        resume: The run of a campaign to resume. Finished builds are not repeated.
        dask: Address of a Dask scheduler whose workers run the iterations.
        allow_scripts: Run scripts and commands that the campaign to resume names. Everybody who may write to the store
            can change them.
    """
    # A bisection builds in this process, while only Dask's workers may have the GPU.
    config = replace(config, bisect=config.bisect and dask is None)
    if not in_flow():
        if dask is not None:
            raise errors.ConfigError(
                f"dask={dask!r} needs a Prefect server that its workers reach: set PREFECT_API_URL, or leave dask out."
            )
        return debug_builds.debug_build(model, config, resume=resume, allow_scripts=allow_scripts, **logged)
    with spread(config.parallel, dask) as submit, _shown_progress() as show:
        options = {"resume": resume, "submit": submit, "progress": show, "allow_scripts": allow_scripts}
        return debug_builds.debug_build(model, config, **options, **logged)


def _config_to_resume(tracker: Tracker, arguments: Mapping[str, Any]) -> DebugBuildConfig | None:
    if arguments.get("resume") is None:
        return None
    allow_scripts = bool(arguments.get("allow_scripts"))
    return open_campaign(tracker, arguments["resume"], model=arguments.get("model"), allow_scripts=allow_scripts).config


def _place_of_campaign(tracker: Tracker, config: Any, arguments: Mapping[str, Any]) -> BuildPlace:
    run = arguments["run"] if "run" in arguments else arguments["campaign_run"]
    campaign = bisects.campaign_of(tracker, run, arguments.get("bad"), allow_scripts=config.allow_scripts)
    return campaign.on(config.devices).config.place


debug_build = flow_of(_debug_build, base=_config_to_resume, place_of=lambda *_: None, by_steps=True)
diff_tactics = flow_of(diff_tactics_op, by_steps=True)
bisect = flow_of(bisects.bisect, place_of=_place_of_campaign)
prove = flow_of(prove_op, place_of=_place_of_campaign)
promote = flow_of(
    promotions.promote,
    place_of=lambda store, config, arguments: promotions.promotion_place(
        store.info(run_id_of(arguments["run_id"], store)), config
    ),
)
