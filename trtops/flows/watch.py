"""The watch flow: models of a folder that are new or changed are built and evaluated.

From Python: ``from trtops.flows.watch import watch; watch("models")``. From the shell: ``python -m trtops.flows.watch models``. As a
deployment, every few minutes: see ``prefect.yaml``. What is new is told by the digests of models, not by file times: a model
that was copied, renamed or touched is not built again.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trtops.flows.command import run
from trtops.flows.nightly import build_and_show
from trtops.flows.parameters import Count, Seconds
from trtops.flows.tasks import trtops_flow
from trtops.ops.engines.build_list import BuildListConfig, BuildListResult
from trtops.ops.engines.model_list import ListedModel, Policy, folder_list
from trtops.spec import BackendName, Precision

log = logging.getLogger(__name__)


@trtops_flow(name="watch")
def watch(
    folder: Path,
    *,
    pattern: str = "**/*.onnx",
    precisions: Annotated[tuple[Precision, ...], Field(min_length=1)] = ("fp32",),
    backends: Annotated[tuple[BackendName, ...], Field(min_length=1)] = ("onnxruntime",),
    data: str | None = None,
    bad: Literal["fail", "report"] = "fail",
    attempts: Count = 3,
    settle_seconds: Seconds = 10.0,
) -> Any:
    """Build and evaluate the models of a folder that the memory does not have, in this environment.

    Args:
        folder: The folder, on the worker's machine; there may be none yet.
        pattern: Which files in it; ``**`` stands for any folders.
        precisions: What to build each in.
        backends: What to build each with.
        data: Where inputs come from: saved inputs, a folder of them, or a script; random unless given.
        bad: Whether a bad engine makes the run fail, or is something to report.
        attempts: How often in all a build that fails is tried.
        settle_seconds: How long a file must have been left alone, since it may still be being copied.

    Returns:
        What became of each build; without any where nothing is new.

    Raises:
        BuildListError: If builds failed; it has the result.
    """
    entry = ListedModel(model="", precisions=precisions, backends=backends, data=data, policy=Policy(bad=bad))
    models = folder_list(folder, pattern, entry)
    if all(build.missing for build in models.builds()):
        log.info("No file in %s is like %s.", Path(folder).resolve(), pattern)
        return BuildListResult(title=f"build list {Path(folder).name}", builds=())
    return build_and_show(
        models, BuildListConfig(only_new=True, attempts=attempts, settle_seconds=settle_seconds), None
    )


if __name__ == "__main__":
    sys.exit(run(watch, "watch"))
