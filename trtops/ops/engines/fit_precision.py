"""Keep layers in FP32 whose values do not fit FP16 or BF16."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtops import errors
from trtops.calibration.cache import CalibrationCache, read_cache
from trtops.next_step import option_text
from trtops.ops.engines.request import CommandData, read_cache_file
from trtops.ops.result import run_step
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tables import counted

if TYPE_CHECKING:
    from trtops.backend.onnx.precision import LowPrecision


def fit_precision(build: BuildConfig, data: CommandData, calibration_cache: str | None) -> tuple[BuildConfig, str]:
    """Keep layers in FP32 if FP16 or BF16 cannot hold their values.

    Ranges are those of a calibration cache, or are measured on the data of calibration or of the check. A quantized
    model has the precisions of its author: its layers are named, and not kept.

    Returns:
        The config with these layers kept.
        A line on the ranges; empty if the build computes in neither.
    """
    tensorrt = build.options if isinstance(build.options, TensorRTOptions) else None
    precisions = (build.precision, *(tensorrt.also if tensorrt else ()))
    low: LowPrecision | None = next((name for name in ("fp16", "bf16") if name in precisions), None)
    if low is None:
        return build, ""
    from trtops.backend.onnx.precision import beyond_range, without_functions
    from trtops.backend.onnx.quantize import is_quantized
    from trtops.backend.onnxrt.calibration import collect  # imports ONNX Runtime

    called, proto = low.upper(), without_functions(data.model.proto(lean=True))
    cache: CalibrationCache
    if calibration_cache is not None:
        cache = read_cache(read_cache_file(calibration_cache, "calibration_cache") or b"")
    elif (feeds := data.calibration()) is None:
        return build, f"Without data or a calibration cache, no ranges show whether all values fit {called}"
    else:

        def measure() -> CalibrationCache:
            max_feeds = build.calibration_samples
            collected = collect(proto, feeds, inputs=data.inputs, max_feeds=max_feeds, min_samples=1, counted=False)
            return collected.cache()

        try:
            cache = run_step("measure ranges", measure)
        except errors.TrtopsError as exc:
            return build, f"Ranges were not measured, so that values may not fit {called}: {exc}"
    layers = beyond_range(proto, cache, low)
    requested_by_layer = dict(tensorrt.layer_precisions) if tensorrt else {}
    for name in requested_by_layer:
        layers.pop(name, None)
    overflowing = ", ".join(f"{name} ({tensor}: {peak:.3g})" for name, (tensor, peak) in layers.items())
    measured = f"ranges of {counted(len(cache.ranges), 'tensor')} from {counted(cache.feeds, 'feed')}"
    keep = tuple(dict.fromkeys((*build.keep, *layers)))
    if layers and is_quantized(proto):
        reason = f"values do not fit {called}, but the model sets its precisions: {overflowing}"
        return build, f"{measured}; {reason} ({option_text('keep', keep)})"
    build = replace(build, keep=keep)
    if build.calibrates and tensorrt:  # layers that 8 bits leave alone may be in 16
        by_layer = dict.fromkeys(layers, "float32") | requested_by_layer
        build = replace(build, options=replace(tensorrt, layer_precisions=tuple(by_layer.items())))
    return build, f"{measured}; kept in FP32, since their values do not fit {called}: {overflowing or 'none'}"
