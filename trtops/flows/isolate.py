"""The isolate flow: the smallest window of nodes that flips the verdict, or the fewest tensors to mark.

From Python: ``from trtops.flows.isolate import isolate; isolate("model.onnx", precision="fp16")``. From the shell: ``python -m
flows.isolate model.onnx --precision fp16``, and with ``--marks`` for tensors. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import show_result
from trtops.flows.command import config_flag, run
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.search.isolation.marking import IsolationConfig, MarkingResult, find_marks
from trtops.ops.search.isolation.window import IsolateResult
from trtops.ops.search.isolation.window import isolate as isolate_op
from trtops.spec import BackendName, BuildConfig, Precision


@trtops_task(name="keep-apart")
def keep_apart(
    model: str, build: BuildConfig, config: IsolationConfig, marks: bool, experiment: str | None
) -> IsolateResult | MarkingResult:
    """One call of either op, logged to the default store, on a GPU of its own if it needs one."""
    search = find_marks if marks else isolate_op
    with current_slot(build.backend):
        return search(model, build, config, tracker=tracker(), experiment=experiment, tags=flow_tags())


@trtops_flow(name="isolate", run_name="{model.stem}")
def isolate(
    model: Path,
    data: str | None = None,
    config: Annotated[IsolationConfig | None, config_flag] = None,
    *,
    backend: BackendName = "onnxruntime",
    precision: Precision = "fp32",
    marks: bool = False,
    experiment: str | None = None,
) -> IsolateResult | MarkingResult:
    """Find the nodes that go wrong where they are built on their own, or that mend the model when they are kept apart.

    Args:
        model: The ONNX file.
        data: Where inputs come from; random unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        backend: What builds engines.
        precision: The precision asked for.
        marks: Find the fewest tensors that take the error away when they are outputs, in place of a window.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        The window, or the tensors.
    """
    config = IsolationConfig() if config is None else config
    build = BuildConfig(precision=precision).on_backend(backend)
    result = keep_apart(str(model), build, replace(config, data=data or config.data), marks, experiment)
    show_result(result)
    return result


if __name__ == "__main__":
    sys.exit(run(isolate, "isolate"))
