"""The reduce flow: the smallest part of a model that still fails, with several candidates checked at a time.

From Python: ``from trtops.flows.reduce import reduce; reduce("model.onnx", backend="tensorrt", precision="fp16")``. From the
shell: ``python -m trtops.flows.reduce model.onnx --command "python check.py {model}"``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from trtops.comparator.report import Tolerances
from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count, Positive
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.evaluation.command import CommandCheck
from trtops.ops.evaluation.submodel import Check
from trtops.ops.search.delta import Items as Parts
from trtops.ops.search.reduce import ReduceResult, engine_check
from trtops.ops.search.reduce import reduce as reduce_op
from trtops.ops.search.reduce_search import ReduceConfig
from trtops.spec import BackendName, BuildConfig, Precision


@trtops_task(name="check-part")
def check_part(ask: Callable[[Parts], Any], parts: Parts) -> Any:
    """Check one candidate; ``ask`` is the op's own."""
    return ask(parts)


def check_together(ask: Callable[[Parts], Any], candidates: Iterable[Parts]) -> list[Any]:
    """Check candidates at the same time, each as a task run of its own; the answers in order."""
    futures = [check_part.submit(ask, parts) for parts in candidates]
    return [future.result() for future in futures]


@trtops_flow(name="reduce")
def reduce(
    model: Path,
    data: str | None = None,
    config: Annotated[ReduceConfig | None, config_flag] = None,
    *,
    command: str | None = None,
    fail_codes: tuple[int, ...] = (),
    ignore_fail_codes: tuple[int, ...] = (),
    fail_regex: tuple[str, ...] = (),
    timeout_seconds: Positive | None = None,
    backend: BackendName = "onnxruntime",
    precision: Precision = "fp32",
    tolerances: Tolerances | None = None,
    width: Count | None = None,
    output: str | None = None,
    experiment: str | None = None,
) -> ReduceResult:
    """Find the smallest part of a model that still fails, and keep it in MLflow as a model of its own.

    Args:
        model: The ONNX file.
        data: Where the whole model's inputs come from; random unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        command: A command that fails for models that show the failure, with ``{model}`` where the path belongs. Without
            one, engines of a back end are compared with the model itself.
        fail_codes: Exit codes of the command that are the failure meant; any but 0 unless given.
        ignore_fail_codes: Exit codes that are not.
        fail_regex: Regular expressions of which one must be found in what the command prints, for the failure meant.
        timeout_seconds: How long one run of the command may take; no limit unless given.
        backend: The back end under test.
        precision: Its precision.
        tolerances: When its outputs are good enough; by default what is expected of the precision.
        width: How many candidates to check at a time; 1 unless given.
        output: Where to save the reduced model. Answers are kept beside it until the end: give that file as the config's
            journal, and a flow that was killed resumes.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        What was found.
    """
    config = ReduceConfig() if config is None else config
    config = replace(config, data=data or config.data, output=output or config.output, width=width or config.width)
    check: Check
    if command is None:
        check = engine_check(BuildConfig(precision=precision).on_backend(backend), tolerances)
    else:
        check = CommandCheck(
            command=tuple(shlex.split(command)),
            fail_codes=fail_codes,
            ignore_fail_codes=ignore_fail_codes,
            fail_regex=fail_regex,
            timeout_seconds=timeout_seconds,
        )
    evaluate = check_together if config.width > 1 else None
    with current_slot(backend if command is None else "onnxruntime"):
        result = reduce_op(
            model, check, config, tracker=tracker(), experiment=experiment, tags=flow_tags(), evaluate=evaluate
        )
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(reduce, "reduce"))
