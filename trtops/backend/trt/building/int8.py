"""INT8 and FP8 from a calibration cache: as text for TensorRT's calibrators, or written into the model as Q/DQ nodes.

Calibrators exist up to TensorRT 10.16, and quantize every layer that they can. Every release takes Q/DQ nodes; they
are the only way from 11 on, for FP8, and for a choice of layers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.quantize import insert_qdq, tensors_to_calibrate
from trtops.calibration.cache import CalibrationCache, fit, read_cache, tensorrt_header
from trtops.calibration.quantization import Quantization
from trtops.spec import BuildConfig

if TYPE_CHECKING:
    import onnx

    from trtops.backend.onnx.model import Model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quantized:
    """A model with Q/DQ nodes, the calibration cache behind them, the digest of its data, if known, and the layers."""

    model: onnx.ModelProto = field(repr=False)
    calibration_cache: bytes = field(repr=False)
    data_sha256: str | None
    done: Quantization


def tensorrt_text(data: bytes, model: Model, config: BuildConfig, *, release: str) -> bytes:
    """A calibration cache of either format as a release's calibrator reads it; CalibrationError if it does not fit."""
    cache = read_cache(data)
    tensors = tensors_to_calibrate(model.proto(lean=True))
    # A cache of TensorRT uses other names for some tensors, so it is never refused for those that it lacks.
    missing = fit(cache, tensors, config.calibration_fit if cache.tensorrt_header is None else "partial")
    if missing:
        log.warning(
            "The calibration cache lacks %d of %d tensors, whose layers will not be INT8: %s",
            len(missing),
            len(tensors),
            ", ".join(missing[:8]),
        )
    # With a new header: a calibrator refuses caches of others and of other releases, although the scales mean the same.
    return cache.to_tensorrt(tensorrt_header(release, "EntropyCalibration2"))


def needs_qdq(config: BuildConfig, *, has_calibrators: bool) -> bool:
    """Whether INT8 or FP8 is written into the model, on releases with or without calibrators."""
    chosen = bool(config.keep or config.qdq_op_types) or config.qdq_rules is not None
    return config.precision == "fp8" or chosen or not has_calibrators


def quantize(model: Model, config: BuildConfig, cache: bytes | None, data: Iterable[Feed] | None) -> Quantized:
    """Write Q/DQ nodes into a model, with ranges from a cache or from calibration in ONNX Runtime on the CPU.

    The cache may have either format; data are used without one.

    Raises CalibrationError if there is neither cache nor data, or they do not fit the model; BackendUnavailableError if
    calibration needs ONNX Runtime, and it is not installed.
    """
    proto = model.proto(lean=True)
    if cache is not None:
        ranges = read_cache(cache)
    elif data is not None:
        ranges = best_ranges_of(model, config, data, proto)
    else:
        raise nothing_to_calibrate_with()
    done = insert_qdq(proto, ranges, config)
    done.require_layers()
    log.info("%s", done.sentence())
    return Quantized(proto, cache or ranges.to_bytes(), ranges.data_sha256, done)


def nothing_to_calibrate_with() -> errors.CalibrationError:
    """The error for INT8 without calibration data, calibration cache, and Q/DQ nodes."""
    return errors.CalibrationError(
        "INT8 and FP8 need calibration data or a calibration cache, and the model has no Q/DQ nodes. Give one of them."
    )


def best_ranges_of(model: Model, config: BuildConfig, data: Iterable[Feed], proto: onnx.ModelProto) -> CalibrationCache:
    """Calibrate on the CPU, with the algorithm of the smallest change of the outputs for these data.

    ``proto`` is the model, perhaps without large weights. Raises BackendUnavailableError without ONNX Runtime.
    """
    # Reports how to install ONNX Runtime where it is missing.
    from trtops.backend.onnxrt.calibration import Quantizer, best_ranges
    from trtops.backend.onnxrt.log import SessionLog

    quantized = Quantizer(proto, SessionLog(), config)
    cache, comparison = best_ranges(model, proto, data, quantized, config.calibration_samples)
    log.info(comparison.sentence())
    return cache
