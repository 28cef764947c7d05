"""INT8 by ranges: the smallest and largest value that each tensor takes on calibration data, written in as Q/DQ nodes.

The work is that of ``onnxruntime.quantization``: MinMax calibration, QDQ format. What is ours is that feeds are checked
and streamed, that the ranges are kept as a calibration cache, and that the model is folded before it is quantized.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS, ORT_ERRORS, session_options, why
from trtops.metadata import TensorMetadata, check_feed
from trtops.record import Record, canonical_json

_FORMAT = "trtops onnxruntime calibration cache"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Ranges(Record):
    """The calibration cache: what calibration found.

    Attributes:
        model_sha256: Digest of the model that was calibrated (:attr:`trtops.spec.ModelInfo.sha256`).
        data_sha256: Digest of the feeds: names, dtypes, shapes and contents, in order.
        samples: How many feeds there were.
        ranges: Smallest and largest value of each tensor, by name.
        format: What kind of file this is.
        version: Version of the format.
    """

    model_sha256: str
    data_sha256: str
    samples: int
    ranges: dict[str, tuple[float, float]]
    format: str = _FORMAT
    version: int = _VERSION

    def to_bytes(self) -> bytes:
        """The cache as JSON; equal caches give equal bytes."""
        return canonical_json(self).encode() + b"\n"


def read_ranges(data: bytes, model_sha256: str) -> Ranges:
    """Read a calibration cache.

    Args:
        data: What :meth:`Ranges.to_bytes` wrote.
        model_sha256: Digest of the model that it must be of.

    Raises:
        CalibrationError: If the bytes are no calibration cache of ONNX Runtime's, damaged, too new, or of another model.
    """
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise errors.CalibrationError(f"Not a calibration cache: {len(data)} bytes that are no JSON ({exc}).") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise errors.CalibrationError(f"Not a calibration cache: expected a JSON object with format {_FORMAT!r}.")
    if content.get("version") != _VERSION:
        raise errors.CalibrationError(
            f"The calibration cache has version {content.get('version')!r}; this trtops reads {_VERSION}. Calibrate again."
        )
    try:
        ranges = Ranges.from_dict(content)
    except errors.FormatError as exc:
        raise errors.CalibrationError(f"The calibration cache is damaged: {exc}") from None
    if ranges.model_sha256 != model_sha256:
        raise errors.CalibrationError(
            f"The calibration cache is of model {ranges.model_sha256[:12]}; this one is {model_sha256[:12]}. "
            "Calibrate this model, or give the cache that belongs to it."
        )
    _check_ranges(ranges.ranges, "in the calibration cache")
    return ranges


def fold(proto: onnx.ModelProto, log: SessionLog) -> onnx.ModelProto:
    """The model with constants folded and batch normalizations merged, in ONNX's own ops, with shapes inferred.

    Quantizing first would put Q/DQ nodes between a convolution and its batch normalization, which then stay two.

    Args:
        proto: The model; not changed.
        log: Collects what ONNX Runtime says.

    Raises:
        EngineBuildError: If ONNX Runtime refuses the model.
    """
    options = session_options(log_id=log.log_id)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="trtops-") as folder:
        path = Path(folder, "folded.onnx")
        options.optimized_model_filepath = str(path)
        try:
            with log.collecting():
                ort.InferenceSession(proto.SerializeToString(), options, providers=list(DEFAULT_PROVIDERS))
        except ORT_ERRORS as exc:
            raise errors.EngineBuildError(f"ONNX Runtime {ort.__version__} refuses the model: {why(exc)}") from exc
        return onnx.shape_inference.infer_shapes(onnx.load(path))


def calibrate(
    folded: onnx.ModelProto, feeds: Iterable[Feed], *, inputs: TensorMetadata, samples: int, model_sha256: str
) -> Ranges:
    """Find each tensor's range on calibration data; one feed is in memory at a time.

    Args:
        folded: The model, from :func:`fold`.
        feeds: Feeds; at most ``samples`` are taken.
        inputs: The model's inputs, to check feeds against.
        samples: How many feeds to use.
        model_sha256: Digest of the model, for the cache.

    Raises:
        CalibrationError: If there are no feeds, one does not fit the model or holds NaN or infinity, or a tensor does.
    """
    session = _observing_session(folded)
    own_outputs = {output.name for output in folded.graph.output}
    observed = [output.name for output in session.get_outputs() if output.name not in own_outputs]
    ranges: dict[str, tuple[float, float]] = {}
    digest = hashlib.sha256()
    count = 0
    for count, feed in enumerate(islice(feeds, samples), start=1):
        arrays = _checked(feed, inputs, f"Calibration feed {count}")
        _digest_feed(digest, arrays)
        try:
            values = dict(zip(observed, session.run(observed, arrays)))
        except ORT_ERRORS as exc:
            raise errors.CalibrationError(f"Calibration feed {count}: {why(exc)}") from exc
        fresh = {
            name: (float(values[f"{name}{_MIN}"][0]), float(values[f"{name}{_MAX}"][0])) for name in _tensors(observed)
        }
        _check_ranges(fresh, f"on calibration feed {count}")
        for name, (low, high) in fresh.items():
            so_far = ranges.get(name, (low, high))
            ranges[name] = (min(low, so_far[0]), max(high, so_far[1]))
    if not count:
        raise errors.CalibrationError("No calibration data came; INT8 needs at least one feed of real inputs.")
    return Ranges(model_sha256=model_sha256, data_sha256=digest.hexdigest(), samples=count, ranges=ranges)


def _observing_session(folded: onnx.ModelProto) -> ort.InferenceSession:
    """A session of the model that also gives smallest and largest value of each tensor to be quantized."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    with tempfile.TemporaryDirectory(prefix="trtops-") as folder:
        source = Path(folder, "model.onnx")
        onnx.save(folded, source)
        calibrator = create_calibrator(
            source,
            augmented_model_path=str(Path(folder, "augmented.onnx")),
            calibrate_method=CalibrationMethod.MinMax,
        )
    return calibrator.infer_session


# What the calibrator puts behind a tensor's name to name the outputs it adds.
_MIN, _MAX = "_ReduceMin", "_ReduceMax"


def _tensors(observed: Iterable[str]) -> list[str]:
    return [name.removesuffix(_MIN) for name in observed if name.endswith(_MIN)]


def _checked(feed: Feed, inputs: TensorMetadata, which: str) -> dict[str, np.ndarray[Any, Any]]:
    """A calibration feed as arrays that ONNX Runtime takes."""
    try:
        check_feed(inputs, feed)
    except errors.InputError as exc:
        raise errors.CalibrationError(f"{which}: {exc}") from exc
    arrays = {name: np.ascontiguousarray(feed[name]) for name in inputs}
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise errors.CalibrationError(
                f"{which}: input {name!r} holds NaN or infinity, of which no range can be made. Leave this feed out."
            )
    return arrays


def _digest_feed(digest: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    digest.update(b"\0\0")


def quantize(folded: onnx.ModelProto, ranges: Ranges, log: SessionLog) -> onnx.ModelProto:
    """Write the ranges into a model as Q/DQ nodes: unsigned activations, signed weights per channel.

    Args:
        folded: The model that was calibrated, from :func:`fold`; used up.
        ranges: Its ranges.
        log: Collects what the quantizer says.

    Raises:
        CalibrationError: If the ranges lack a tensor of the model.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    arrays = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.ranges.items()}
    with _logging_into(log):
        quantizer = QDQQuantizer(
            folded,
            per_channel=_default_opset(folded) >= 13,
            reduce_range=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, arrays),
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=sorted({*QLinearOpsRegistry, *QDQRegistry}),
            extra_options={},
        )
        try:
            quantizer.quantize_model()
        except ORT_ERRORS as exc:
            raise errors.CalibrationError(f"The model cannot be quantized with these ranges: {exc}") from exc
    quantized: onnx.ModelProto = quantizer.model.model
    return quantized


def _check_ranges(ranges: Mapping[str, tuple[float, float]], where: str) -> None:
    for name, (low, high) in ranges.items():
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise errors.CalibrationError(
                f"Tensor {name!r} ranges from {low} to {high} {where}, of which no scale can be made. "
                "Look for overflows in the model with this data."
            )


def _default_opset(model: onnx.ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


@contextmanager
def _logging_into(log: SessionLog) -> Iterator[None]:
    """Collect what the quantizer says through the root logger, which would otherwise get a handler by it."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.add(f"[{record.levelname[0]}] {record.getMessage()}")

    collector = Collector()
    logging.getLogger().addHandler(collector)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(collector)
