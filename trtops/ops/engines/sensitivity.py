"""Sensitivity: each layer's share of the INT8 error, and the layers to keep in FP32 to stay within a budget."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.quantize import insert_qdq, kept_names, quantizable_layers
from trtops.calibration.cache import CalibrationCache
from trtops.calibration.choice import relative_error
from trtops.calibration.data import batches
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.data import DataConfig
from trtops.ops.evaluation.kept_layers import KeptLayersResult, LayerCost
from trtops.ops.result import OnProgress, model_file, model_source, op_run, run_step, tracker_or_default
from trtops.record import setting
from trtops.spec import BackendName, BuildConfig, OptimizationProfile
from trtops.tables import counted, listed
from trtops.terminal import one_line
from trtops.tracking import schema
from trtops.tracking.base import Tracker, Verdict
from trtops.tracking.builds import load_cache

_PRUNED = 32  # kept layers that are tried without, one by one


@dataclass(frozen=True, kw_only=True)
class SensitivityConfig(DataConfig):
    """The measurement of layers, its data, and the error budget.

    Attributes:
        samples: Number of samples to use.
        batch: Samples per feed; None uses feeds as they come.
        budget: The relative error that INT8 may have: the root of the sum of squared differences from the FP32 model,
            over the root of the sum of its squares; of the output where it is largest.
        style: Which back end's way of quantizing is measured (:func:`trtops.backend.onnx.quantize.insert_qdq`). It is
            run by ONNX Runtime on the CPU.
        keep: Layers that always stay in FP32.
    """

    samples: int = setting(64, least=1)
    batch: int | None = setting(None, least=1)
    budget: float = 0.01
    style: BackendName = "onnxruntime"
    keep: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SensitivityResult(KeptLayersResult):
    """The sensitivity of all layers, the worst first."""

    error: float  # relative, with every layer quantized
    budget: float
    error_kept: float  # relative error with the proposed layers kept, measured

    @property
    def next_step(self) -> NextStep | None:
        """Calibrate again with the proposed layers kept, if these meet the budget."""
        if not (self.run_id and "data" in self.options and self.keep and self.verdict == "good"):
            return super().next_step
        arguments = {"model": self.subject, "keep": self.keep, "experiment": self.experiment}
        if self.options.get("style") == "tensorrt":
            arguments["backend"] = "tensorrt"
        return NextStep.after(self.options, "calibrate", arguments)

    @property
    def verdict(self) -> Verdict:
        """Whether the budget is met with the proposed layers kept."""
        return "good" if self.error_kept <= self.budget else "bad"

    @property
    def because(self) -> tuple[str, ...]:
        """The error, and the proposal."""
        error = f"relative error with every layer in INT8: {self.error:.4g}, the budget is {self.budget:g}"
        if not self.keep:
            return (error, "no layer need be kept in higher precision")
        kept = f"relative error {self.error_kept:.4g} with {counted(len(self.keep), 'layer')} kept in higher precision"
        return (error, f"{kept}: {listed(self.keep)}")

    def body(self) -> Iterable[str]:
        """The findings, and the most expensive layers."""
        yield from (f"- {one_line(line)}" for line in self.because)
        yield from ("", self.layer_table())


@checked_arguments
def sensitivity(
    model: str | Path | Model,
    calibration_cache: str | CalibrationCache,
    config: SensitivityConfig = SensitivityConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    progress: OnProgress | None = None,
) -> SensitivityResult:
    """Measure each layer's share of the INT8 error, and propose layers to keep in higher precision.

    ``calibration_cache`` has the ranges: a cache, a file of either format, or ``run:ID``. CalibrationError if the cache
    does not fit, or no layer can be quantized.

    >>> ranges = trtops.calibrate("model.onnx", calibration_data="feed.npz")
    >>> result = trtops.sensitivity("model.onnx", f"run:{ranges.run_id}", data="feed.npz", budget=0.05)
    >>> result.error <= result.budget, result.keep
    (True, ())
    """
    tracker = tracker_or_default(tracker)
    path = model_file(model)
    name = f"{path.stem} sensitivity"
    with op_run(tracker, experiment, name, kind="sensitivity", model=path, tags=tags, parent=parent) as op:
        run = op.run
        run.log_params(config)
        loaded = run_step("load", Model.load, model)
        run.set_tags({schema.Tag.MODEL_SHA256: loaded.info.sha256})
        cache = load_cache(calibration_cache, tracker) if isinstance(calibration_cache, str) else calibration_cache
        result = run_step("measure layers", _measure, loaded, cache, config, progress)
        result = replace(
            result, title=f"sensitivity {path.name}", subject=model_source(model), options=arguments_of(config)
        )
        result.log_layers(run, schema.Artifact.SENSITIVITY)
        numbers = {"error": result.error, "error_kept": result.error_kept}
        counts = {"kept": len(result.keep), "layers": len(result.layers)}
        run.log_metrics(schema.family(schema.Metric.SENSITIVITY, **numbers, **counts))
        return op.finish(result, artifact=schema.Artifact.SENSITIVITY_RESULT, evaluated=False)


def _measure(
    model: Model,
    cache: CalibrationCache,
    config: SensitivityConfig,
    progress: OnProgress | None,
) -> SensitivityResult:
    from trtops.backend.onnxrt.calibration import fold
    from trtops.backend.onnxrt.loader import SessionFromOnnx
    from trtops.backend.onnxrt.log import SessionLog
    from trtops.backend.onnxrt.runner import OnnxrtRunner

    feeds = list(batches(config.open_for(model), config.batch, config.samples))
    proto = model.proto()
    always_kept = kept_names(proto, config.keep)
    # Folded first, as for a build: Q/DQ nodes would keep a convolution and its batch normalization apart.
    folded = fold(proto, SessionLog())
    op_by_name: dict[str, str] = {}
    for node in folded.graph.node:
        op_by_name |= dict.fromkeys(filter(None, (node.name, *node.output)), node.op_type)
    fixed = tuple(filter(always_kept.__contains__, op_by_name))

    def outputs(proto: onnx.ModelProto) -> list[Mapping[str, Any]]:
        with OnnxrtRunner(SessionFromOnnx(proto), "sensitivity") as runner:
            return [runner.infer(feed) for feed in feeds]

    profile = OptimizationProfile.fixed(**{name: np.shape(array) for name, array in feeds[0].items()})
    build = BuildConfig(precision="int8", keep=fixed, profiles=(profile,)).on_backend(config.style)
    layers = quantizable_layers(folded, build)
    if not layers:
        raise errors.CalibrationError(f"No layer of {model.name} can be quantized: it has no FP32 layers to quantize.")
    golden = outputs(folded)

    def error(keep: Sequence[str]) -> float:
        """Relative error of the outputs with all layers quantized but those to keep."""
        if len(set(keep)) == len(layers):
            return 0.0
        quantized = type(folded)()
        quantized.CopyFrom(folded)
        insert_qdq(quantized, cache, replace(build, keep=(*fixed, *keep)))
        return relative_error(outputs(quantized), golden)

    # Each layer is measured as the only quantized one, so that errors of other layers neither hide nor add to its own.
    whole = error(())
    measured: dict[str, float] = {}
    for number, name in enumerate(layers, start=1):
        measured[name] = error([other for other in layers if other != name])
        if progress is not None:
            progress(number, len(layers))
    ranked = sorted(measured, key=lambda name: -measured[name])

    keep, error_kept = list[str](), whole
    if whole > config.budget:
        keep, error_kept = _layers_to_keep(ranked, error, config.budget)
    # Errors of different layers are taken as independent, so their squares add up to the whole.
    total = sum(value**2 for value in measured.values()) or 1.0
    costs = []
    for name in ranked:
        layer_error, is_kept = measured[name], name in keep
        share = layer_error**2 / total
        costs.append(LayerCost(layer=name, op=op_by_name[name], error=layer_error, share=share, keep=is_kept))
    return SensitivityResult(
        error=whole,
        budget=config.budget,
        keep=tuple(keep),
        error_kept=error_kept,
        layers=tuple(costs),
    )


def _layers_to_keep(
    ranked: Sequence[str], error: Callable[[Sequence[str]], float], budget: float
) -> tuple[list[str], float]:
    """Return few layers to keep for an error within the budget, and that error; the worst layers come first."""
    # The error need not fall with each layer that is kept, so the result of this bisection is measured.
    low, high, error_kept = 0, len(ranked), 0.0
    while high - low > 1:
        middle = (low + high) // 2
        measured_error = error(ranked[:middle])
        if measured_error <= budget:
            high, error_kept = middle, measured_error
        else:
            low = middle
    keep = list(ranked[:high])
    # Errors were measured one layer at a time. Together with the other layers, some may not be needed.
    for name in reversed(keep[-_PRUNED:]):
        fewer = [other for other in keep if other != name]
        if (measured_error := error(fewer)) <= budget:
            keep, error_kept = fewer, measured_error
    return keep, error_kept
