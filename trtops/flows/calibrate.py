"""The calibrate flow: a model and real data become a calibration cache, evaluated by the INT8 engine it builds.

From Python: ``from trtops.flows.calibrate import calibrate; calibrate("model.onnx", "images/", labels="labels.npy")``. From the
shell: ``python -m trtops.flows.calibrate model.onnx images/ --algorithm percentile``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.calibration.histogram import Algorithm
from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count, Share
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.engines.calibrate import CalibrateConfig, CalibrateResult
from trtops.ops.engines.calibrate import calibrate as calibrate_op
from trtops.spec import BackendName
from trtops.terminal import progress


@trtops_task(name="calibrate-model")
def calibrate_model(model: str, config: CalibrateConfig, experiment: str | None) -> CalibrateResult:
    """One call of the calibrate op, logged to the default store, on a GPU of its own if it needs one."""
    with current_slot(config.build.backend), progress("Calibrating", "samples") as bar:
        return calibrate_op(
            model,
            config,
            tracker=tracker(),
            experiment=experiment,
            tags=flow_tags(),
            progress=bar.update,
        )


@trtops_flow(name="calibrate")
def calibrate(
    model: Path,
    data: str | None = None,
    config: Annotated[CalibrateConfig | None, config_flag] = None,
    *,
    algorithm: Algorithm | None = None,
    backend: BackendName | None = None,
    batch: Count | None = None,
    samples: Count | None = None,
    check_data: str | None = None,
    labels: str | None = None,
    keep: tuple[str, ...] | None = None,
    output: str | None = None,
    min_precision_share: Share | None = None,
    experiment: str | None = None,
) -> CalibrateResult:
    """Calibrate a model for INT8, evaluate the engine beside FP32 and FP16, and keep everything in MLflow.

    Args:
        model: The ONNX file.
        data: Where calibration data comes from: saved inputs, a folder of arrays, or a script.
        config: Everything that can be chosen; what is given beside it takes its place.
        algorithm: How ranges are chosen; entropy unless given.
        backend: What builds the engines, with that back end's default options; onnxruntime unless given.
        batch: Samples per feed; feeds as they come unless given.
        samples: How many samples to use at most; 512 unless given.
        check_data: Data that was held out, to evaluate the engines with.
        labels: The right class of each held-out sample, as ``.npy``.
        keep: Layers that INT8 leaves in higher precision: names, patterns or op types.
        output: File to write the cache to: our JSON if it ends in ``.json``, else TensorRT's text.
        min_precision_share: The share of kernels, between 0 and 1, that have to compute in the precision asked for; 0
            unless given.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        Verdict, numbers and the ids of the MLflow runs.

    Raises:
        TrtopsError: If no verdict could be reached. What was collected by then is in the run that is marked failed.
    """
    config = CalibrateConfig() if config is None else config
    build, check = config.build.on_backend(backend), config.check
    if keep is not None:
        build = replace(build, keep=keep)
    check = replace(check, data=check_data or check.data, labels=labels or check.labels)
    if min_precision_share is not None:
        check = replace(check, min_precision_share=min_precision_share)
    config = replace(
        config,
        build=build,
        check=check,
        data=data or config.data,
        algorithm=algorithm or config.algorithm,
        batch=batch or config.batch,
        samples=samples or config.samples,
        output=output or config.output,
    )
    result = calibrate_model(str(model), config, experiment)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(calibrate, "calibrate"))
