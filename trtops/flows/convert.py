"""The convert flow: an ONNX file becomes a tracked, evaluated engine.

From Python: ``from trtops.flows.convert import convert; result = convert("model.onnx", precision="fp16")``. From the shell:
``python -m trtops.flows.convert model.onnx --precision fp16``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Share
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.engines.convert import ConvertConfig, ConvertResult
from trtops.ops.engines.convert import convert as convert_op
from trtops.spec import BackendName, Precision


@trtops_task(name="convert-model")
def convert_model(model: str, config: ConvertConfig, experiment: str | None) -> ConvertResult:
    """One call of the convert op, logged to the default store, on a GPU of its own if it needs one."""
    with current_slot(config.build.backend):
        return convert_op(model, config, tracker=tracker(), experiment=experiment, tags=flow_tags())


@trtops_flow(name="convert")
def convert(
    model: Path,
    config: Annotated[ConvertConfig | None, config_flag] = None,
    *,
    precision: Precision | None = None,
    backend: BackendName | None = None,
    data: str | None = None,
    timing_cache: str | None = None,
    experiment: str | None = None,
    rebuild: bool | None = None,
    min_precision_share: Share | None = None,
    attribute_error: bool | None = None,
) -> ConvertResult:
    """Build an engine from an ONNX file, evaluate it against the model itself, and keep everything in MLflow.

    Args:
        model: The ONNX file.
        config: Everything that can be chosen; what is given beside it takes its place.
        precision: Lowest precision the engine may compute in; fp32 unless given.
        backend: What builds the engine, with that back end's default options; onnxruntime unless given.
        data: Where input data comes from; random unless given.
        timing_cache: A timing cache to build with: a file, "run:<id>", "accepted" or "shared".
        experiment: MLflow experiment; the model's name unless given.
        rebuild: Build even if the memory has this very engine.
        min_precision_share: The share of kernels, between 0 and 1, that have to compute in the precision asked for; 0
            unless given.
        attribute_error: Say how much of the error is the precision's own, how much is noise and how much the builder's.

    Returns:
        Verdict, numbers and the id of the MLflow run.

    Raises:
        TrtopsError: If no verdict could be reached; the MLflow run is marked failed with the message.
    """
    config = ConvertConfig() if config is None else config
    build, check = config.build.on_backend(backend), config.check
    if precision is not None:
        build = replace(build, precision=precision)
    if data is not None:
        check = replace(check, data=data)
    if min_precision_share is not None:
        check = replace(check, min_precision_share=min_precision_share)
    config = replace(
        config,
        build=build,
        check=check,
        timing_cache=config.timing_cache if timing_cache is None else timing_cache,
        rebuild=config.rebuild if rebuild is None else rebuild,
        attribute_error=config.attribute_error if attribute_error is None else attribute_error,
    )
    result = convert_model(str(model), config, experiment)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(convert, "convert"))
