"""The debug-build flow: one model is built again and again, until it is known which tactic makes some builds bad.

From Python: ``from trtops.flows.debug_build import debug_build; debug_build("model.onnx", until=20)``. From the shell:
``python -m trtops.flows.debug_build model.onnx --until 20``; to resume a campaign that was killed:
``python -m trtops.flows.debug_build --resume <run>``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count, Share
from trtops.flows.spread import spread
from trtops.flows.tasks import flow_tags, tracker, trtops_flow
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import DebugBuildResult, Progress
from trtops.ops.campaign.debug_build import debug_build as debug_build_op
from trtops.ops.campaign.opened import open_campaign
from trtops.spec import BackendName, Precision
from trtops.terminal import Bar, progress

_EVERY = 1.0  # seconds between updates of the artifact, each of which is a request


@trtops_flow(name="debug-build")
def debug_build(
    model: Path | None = None,
    config: Annotated[DebugBuildConfig | None, config_flag] = None,
    *,
    resume: str | None = None,
    until: Count | Literal["good", "bad", "decided"] | None = None,
    max_iterations: Count | None = None,
    precision: Precision | None = None,
    backend: BackendName | None = None,
    data: str | None = None,
    random_tactics: bool | None = None,
    min_precision_share: Share | None = None,
    parallel: Count | None = None,
    dask: str | None = None,
    experiment: str | None = None,
    allow_scripts: bool = False,
) -> DebugBuildResult:
    """Build a model until it is known which tactic makes some of its builds bad, and keep every build in MLflow.

    Args:
        model: The ONNX file; not needed to resume a campaign.
        config: Everything that can be chosen; what is given beside it takes its place.
        resume: Run of a campaign to resume. What is finished is not built again.
        until: A number of builds, the first ``good`` or ``bad`` one, or ``decided``, until the diff has
            an answer; decided unless given.
        max_iterations: Builds at the latest; 200 unless given.
        precision: Lowest precision the engines may compute in; fp32 unless given.
        backend: What builds the engines, with that back end's default options; onnxruntime unless given.
        data: Where input data comes from; random unless given.
        random_tactics: Choose tactics at random and not by their time.
        min_precision_share: The share of kernels, between 0 and 1, that have to compute in the precision asked for; 0
            unless given.
        parallel: Iterations under way at a time; on GPUs, one on each; 1 unless given.
        dask: Address of a Dask scheduler whose workers make the iterations.
        experiment: MLflow experiment; the model's name unless given.
        allow_scripts: Run scripts and commands that the campaign to resume names, which whoever may write to the store can
            change.

    Returns:
        How many builds were good and bad, and what the diff says about why.

    Raises:
        TrtopsError: Whatever keeps all builds from being made; what one build does is a verdict.
    """
    if resume is not None and config is None:
        config = open_campaign(tracker(), resume, model=model, allow_scripts=allow_scripts).config
    config = DebugBuildConfig() if config is None else config
    build = config.build.on_backend(backend)
    if precision is not None:
        build = replace(build, precision=precision)
    check = config.check if data is None else replace(config.check, data=data)
    if min_precision_share is not None:
        check = replace(check, min_precision_share=min_precision_share)
    config = replace(
        config,
        build=build,
        check=check,
        vary=config.vary if random_tactics is None else replace(config.vary, random_tactics=random_tactics),
        until=config.until if until is None else until,
        max_iterations=max_iterations or config.max_iterations,
        parallel=parallel or config.parallel,
        bisect=config.bisect and dask is None,  # mixtures are built here, and only Dask's workers may have the GPU
    )
    with spread(config.parallel, dask) as submit, _shown_progress() as shown:
        result = debug_build_op(
            model,
            config,
            tracker=tracker(),
            resume=resume,
            experiment=experiment,
            tags=flow_tags(),
            submit=submit,
            progress=shown.tell,
        )
        shown.end(result)
    return ended(result)


class _Shown:
    """Progress as a bar on a terminal and as an artifact of the flow run, which ends on what came of it."""

    def __init__(self, bar: Bar) -> None:
        artifact = create_progress_artifact(0.0, description="Builds: none yet")
        assert isinstance(artifact, UUID)  # a coroutine in asynchronous flows only
        self._artifact, self._bar, self._shown = artifact, bar, time.monotonic()
        self._share, self._text = 0.0, "none yet"

    def tell(self, now: Progress) -> None:
        """Show where the campaign stands."""
        counted = f"{now.good} good, {now.bad} bad, {now.error} crashed or hung, {now.mixtures} mixtures"
        found = f"; {now.found.conclusion}" if now.found is not None else ""
        self._bar.update(now.done, now.limit, note=f"; {counted}{found}")
        self._share, self._text = 100.0 * now.done / now.limit, f"{now.done} builds: {counted}{found}"
        if time.monotonic() - self._shown >= _EVERY:
            self._shown = time.monotonic()
            update_progress_artifact(self._artifact, self._share, description=self._text)

    def end(self, result: DebugBuildResult) -> None:
        """Show what came of it."""
        counted = f"{result.good} good, {result.bad} bad, {result.errors} crashed or hung, {result.mixtures} mixtures"
        said = f"{result.iterations} builds: {counted}; {result.headline}"
        update_progress_artifact(self._artifact, 100.0, description=said)

    def stop(self) -> None:
        """Show that it ended before its time."""
        update_progress_artifact(self._artifact, self._share, description=f"Stopped after {self._text}")


@contextmanager
def _shown_progress() -> Iterator[_Shown]:
    with progress("Building", "builds") as bar:
        shown = _Shown(bar)
        try:
            yield shown
        except BaseException:
            shown.stop()
            raise


if __name__ == "__main__":
    sys.exit(run(debug_build, "debug_build"))
