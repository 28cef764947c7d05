"""Sensitivity: each layer's share of the INT8 error, and the layers to keep in FP32 to stay within a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.quantize import Style, insert_qdq, kept_names, quantizable_layers
from trtops.calibration.cache import CalibrationCache, FitPolicy
from trtops.calibration.data import batches
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.feeds import open_feeds
from trtops.ops.result import OnProgress, OpResult, finish_with, model_file, op_run
from trtops.record import Record
from trtops.tracking import schema
from trtops.tracking.base import Run, Tracker, Verdict
from trtops.tracking.calibrations import load_cache
from trtops.tracking.tables import log_table

if TYPE_CHECKING:
    import onnx

_PRUNED = 32  # kept layers that are tried without, one by one
_SHOWN = 30  # layers on a page


@dataclass(frozen=True, kw_only=True)
class SensitivityConfig(Record):
    """How layers are measured, and the error budget.

    Attributes:
        data: Where inputs come from (:func:`trtops.ops.evaluation.feeds.open_feeds`); random data by default.
        samples: Number of samples to use.
        batch: Samples per feed; None uses feeds as they come.
        budget: The relative error that INT8 may have: the root of the sum of squared differences from the FP32 model,
            over the root of the sum of its squares; of the output where it is largest.
        mode: ``one`` quantizes one layer at a time; ``rest`` all but one, which includes errors that add up or cancel,
            but measures small differences of large errors.
        style: Which back end's way of quantizing is measured (:func:`trtops.backend.onnx.quantize.insert_qdq`). It is
            run by ONNX Runtime on the CPU.
        keep: Layers that always stay in FP32.
        fit: How to treat ranges that the cache lacks.
    """

    data: str | None = None
    samples: int = 64
    batch: int | None = None
    budget: float = 0.01
    mode: Literal["one", "rest"] = "one"
    style: Style = "onnxruntime"
    keep: tuple[str, ...] = ()
    fit: FitPolicy = "refuse"

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise errors.ConfigError(f"The error budget is {self.budget}; expected more than 0.")


@dataclass(frozen=True, kw_only=True)
class LayerSensitivity(Record):
    """The cost of quantizing one layer."""

    layer: str
    op: str
    error: float
    share: float
    kept: bool


@dataclass(frozen=True, kw_only=True)
class SensitivityResult(OpResult):
    """The sensitivity of all layers.

    Attributes:
        error: Relative error with every layer quantized.
        budget: The allowed error.
        keep: Layers to keep in higher precision, for :attr:`trtops.spec.BuildConfig.keep`.
        error_kept: Relative error with those kept, measured.
        layers: Every layer, the worst first.
        inferences: Number of models measured.
    """

    error: float
    budget: float
    keep: tuple[str, ...]
    error_kept: float
    layers: tuple[LayerSensitivity, ...]
    inferences: int

    @property
    def verdict(self) -> Verdict:
        """Whether the budget is met with the proposed layers kept."""
        return "good" if self.error_kept <= self.budget else "bad"

    def body(self) -> Iterable[str]:
        """The error, the proposal, and the layers that cost most."""
        yield f"Relative error with every layer in INT8: {self.error:.4g}; the budget is {self.budget:g}."
        yield ""
        if self.keep:
            kept = ", ".join(f"`{name}`" for name in self.keep)
            yield f"Kept in higher precision: {kept}. Relative error then: {self.error_kept:.4g}."
        else:
            yield "No layer need be kept in higher precision."
        yield from ("", "| layer | op | error | share | keep |", "|---|---|---|---|---|")
        for each in self.layers[:_SHOWN]:
            keep = "yes" if each.kept else ""
            yield f"| `{each.layer}` | {each.op} | {each.error:.4g} | {each.share:.1%} | {keep} |"
        if len(self.layers) > _SHOWN:
            yield from ("", f"And {len(self.layers) - _SHOWN} layers with less.")


def sensitivity(
    model: str | Path,
    calibration_cache: str | CalibrationCache,
    config: SensitivityConfig | None = None,
    *,
    tracker: Tracker,
    data: Iterable[Feed] | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    progress: OnProgress | None = None,
) -> SensitivityResult:
    """Measure each layer's share of the INT8 error, and propose layers to keep in higher precision.

    The worst layers are kept until the budget is met, and then those that were not needed are quantized again. The
    error of the proposal is measured. This takes one quantized model per layer, and some more.

    Args:
        model: The ONNX file.
        calibration_cache: The ranges: a cache, a file of either format, or ``run:<id>``.
        config: How to measure.
        tracker: The tracking store.
        data: Input data, instead of the config's source.
        experiment: Experiment to log to; the model file's name without its suffix by default.
        tags: Further tags of the run.
        parent: Id of a parent run.
        progress: Called after every layer.

    Raises:
        CalibrationError: If the cache does not fit, no layer can be quantized, or there is no data.
        TrtopsError: For any other failure.
    """
    config = SensitivityConfig() if config is None else config
    path = model_file(model)
    experiment = experiment or path.stem
    name = f"{path.stem} sensitivity"
    with op_run(tracker, experiment, name, kind="sensitivity", model=path, tags=tags, parent=parent) as run:
        run.log_params(schema.flat_params(config))
        loaded = Model.load(path)
        run.set_tags({schema.Tag.MODEL_SHA256: loaded.info.sha256})
        cache = load_cache(calibration_cache, tracker) if isinstance(calibration_cache, str) else calibration_cache
        trial = _Trial.prepare(loaded, cache, config, data)
        result = replace(_propose_layers(trial, config, progress), title=f"sensitivity {path.name}", subject=str(path))
        result = result.kept_in(run, experiment)
        _log_result(run, result)
        finish_with(run, result, tracker, evaluated=False)
        return result


def _propose_layers(trial: _Trial, config: SensitivityConfig, progress: OnProgress | None) -> SensitivityResult:
    whole = trial.error(())
    measured = _measure_layers(trial, config.mode, whole, progress)
    ranked = sorted(measured, key=lambda name: -measured[name])
    keep, error_kept = _keep_within_budget(trial, ranked, whole, config.budget)
    total = sum(error**2 for error in measured.values()) or 1.0
    return SensitivityResult(
        error=whole,
        budget=config.budget,
        keep=tuple(name for name in ranked if name in keep),
        error_kept=error_kept,
        layers=tuple(
            LayerSensitivity(
                layer=name,
                op=trial.ops[name],
                error=measured[name],
                share=measured[name] ** 2 / total,
                kept=name in keep,
            )
            for name in ranked
        ),
        inferences=trial.count,
    )


def _measure_layers(
    trial: _Trial, mode: Literal["one", "rest"], whole: float, progress: OnProgress | None
) -> dict[str, float]:
    """The error that each layer is to blame for."""
    measured = {}
    for number, name in enumerate(trial.ops, start=1):
        if mode == "one":
            measured[name] = trial.error([other for other in trial.ops if other != name])
        else:
            measured[name] = math.sqrt(max(whole**2 - trial.error([name]) ** 2, 0.0))
        if progress is not None:
            progress(number, len(trial.ops))
    return measured


def _keep_within_budget(trial: _Trial, ranked: Sequence[str], whole: float, budget: float) -> tuple[set[str], float]:
    """The layers to keep so that the error is within the budget, and the error then."""
    if whole <= budget:
        return set(), whole
    # The error need not fall with each layer that is kept; the search takes it to, and measures what it arrives at.
    low, high, found = 0, len(ranked), 0.0  # keeping all leaves no error
    while high - low > 1:
        middle = (low + high) // 2
        error = trial.error(ranked[:middle])
        if error <= budget:
            high, found = middle, error
        else:
            low = middle
    keep = list(ranked[:high])
    # Shares were measured one layer at a time: together with the others, some may not be needed after all.
    for name in reversed(keep[-_PRUNED:]):
        fewer = [other for other in keep if other != name]
        if (error := trial.error(fewer)) <= budget:
            keep, found = fewer, error
    return set(keep), found


@dataclass
class _Trial:
    """A model made ready to be quantized in part, with what it computes in FP32."""

    model: onnx.ModelProto
    cache: CalibrationCache
    config: SensitivityConfig
    ops: dict[str, str]
    fixed: tuple[str, ...]
    quantizable: tuple[str, ...]
    feeds: list[Feed]
    golden: list[dict[str, Any]]
    count: int = 0

    @classmethod
    def prepare(
        cls, model: Model, cache: CalibrationCache, config: SensitivityConfig, data: Iterable[Feed] | None
    ) -> _Trial:
        from trtops.backend.onnxrt.calibration import INT8_OP_TYPES, fold
        from trtops.backend.onnxrt.log import SessionLog

        inputs = TensorMetadata.of(model.info.inputs)
        source = config.data if data is None else data
        feeds = list(batches(open_feeds(source, inputs), config.batch, config.samples))
        proto = model.proto()
        kept = kept_names(proto, config.keep)
        folded = fold(proto, SessionLog())
        fixed = tuple(n for node in folded.graph.node for n in (node.name, *node.output) if n in kept)
        trial = cls(folded, cache, config, {}, fixed, INT8_OP_TYPES, feeds, [])
        names = quantizable_layers(folded, keep=fixed, op_types=INT8_OP_TYPES)
        if config.fit == "partial":
            names = trial.quantize(_copy_proto(folded), ())
        by_name = {n: node.op_type for node in folded.graph.node for n in (node.name, *node.output) if n}
        trial.ops = {name: by_name[name] for name in names}
        if not trial.ops:
            raise errors.CalibrationError(
                f"No layer of {model.name} can be quantized: it has no FP32 {', '.join(INT8_OP_TYPES)} to quantize."
            )
        trial.golden = trial.outputs(folded)
        return trial

    def quantize(self, proto: onnx.ModelProto, keep: Iterable[str]) -> tuple[str, ...]:
        """Quantize all layers but some, in place; returns those that were."""
        done = insert_qdq(
            proto,
            self.cache,
            style=self.config.style,
            keep=(*self.fixed, *keep),
            op_types=self.quantizable,
            policy=self.config.fit,
        )
        return done.layers

    def error(self, keep: Iterable[str]) -> float:
        """Relative error of the outputs with all layers quantized but some; 0 if none is left."""
        keep = tuple(keep)
        if len(set(keep)) == len(self.ops):
            return 0.0
        proto = _copy_proto(self.model)
        self.quantize(proto, keep)
        self.count += 1
        return _relative_error(self.outputs(proto), self.golden)

    def outputs(self, proto: onnx.ModelProto) -> list[dict[str, Any]]:
        from trtops.backend.onnxrt.loader import SessionFromOnnx
        from trtops.backend.onnxrt.runner import OnnxrtRunner

        with OnnxrtRunner(SessionFromOnnx(proto), "sensitivity") as runner:
            return [runner.infer(feed) for feed in self.feeds]


def _copy_proto(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _relative_error(actual: Iterable[Mapping[str, Any]], golden: Sequence[Mapping[str, Any]]) -> float:
    """Relative error over all feeds, of the floating-point output where it is largest; NaN counts as infinite."""
    differences: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for ours, theirs in zip(actual, golden):
        for name, right in theirs.items():
            if not np.issubdtype(right.dtype, np.floating):
                continue
            right = right.astype(np.float64)
            difference = float(np.square(ours[name] - right).sum())
            differences[name] = differences.get(name, 0.0) + (math.inf if math.isnan(difference) else difference)
            sizes[name] = sizes.get(name, 0.0) + float(np.square(right).sum())
    if not differences:
        raise errors.CalibrationError("The model has no floating-point output to measure an error of.")
    ratios = ((difference, sizes[name]) for name, difference in differences.items())
    return max(0.0 if d == 0 else math.sqrt(d / size) if size else math.inf for d, size in ratios)


def _log_result(run: Run, result: SensitivityResult) -> None:
    log_table(
        run,
        schema.Artifact.SENSITIVITY,
        ("layer", "op", "error", "share", "keep"),
        ((each.layer, each.op, each.error, each.share, each.kept) for each in result.layers),
    )
    run.log_json(result, schema.Artifact.SENSITIVITY_RESULT)
    run.log_metrics(
        {
            (schema.Metric.SENSITIVITY, "error"): result.error,
            (schema.Metric.SENSITIVITY, "error_kept"): result.error_kept,
            (schema.Metric.SENSITIVITY, "kept"): float(len(result.keep)),
            (schema.Metric.SENSITIVITY, "layers"): float(len(result.layers)),
            **{(schema.Metric.SENSITIVITY, "layer", each.layer): each.error for each in islice(result.layers, 100)},
        }
    )
