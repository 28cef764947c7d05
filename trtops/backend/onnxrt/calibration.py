"""INT8 on ONNX Runtime: collects the ranges of all tensors over data, and writes them into a model as Q/DQ nodes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import edit, walk
from trtops.backend.onnx.external import expected_bytes
from trtops.backend.onnx.quantize import Quantization, insert_qdq, kept_names
from trtops.backend.onnx.save import serialize
from trtops.backend.onnxrt.inference import Inference
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.runner import SessionFromMemory
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS, ORT_ERRORS, session_options, why
from trtops.calibration.cache import CalibrationCache, FitPolicy, TensorRange
from trtops.calibration.data import FeedDigest, samples_in
from trtops.calibration.histogram import DEFAULT_PERCENTILE, Algorithm, Histogram, check_algorithm
from trtops.metadata import TensorMetadata, TensorSpec, check_feed
from trtops.system.limits import limited_memory, too_much
from trtops.system.processes import temporary_prefix

# Layers to quantize for ONNX Runtime: they take most of the time, and it has integer kernels for them.
INT8_OP_TYPES = ("Conv", "Gemm", "MatMul")

MIN_SAMPLES = 2

_FLOATING = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)"})


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a calibration: feeds done, samples in them, and seconds since it began."""

    feeds: int
    samples: int
    seconds: float


OnProgress: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The result of a calibration: the ranges, and the histograms that they were chosen from, by tensor name."""

    cache: CalibrationCache
    histograms: Mapping[str, Histogram]


def collect(
    model: onnx.ModelProto,
    feeds: Iterable[Feed],
    *,
    inputs: TensorMetadata,
    algorithm: Algorithm = "minmax",
    percentile: float = DEFAULT_PERCENTILE,
    max_feeds: int | None = None,
    min_samples: int = MIN_SAMPLES,
    model_sha256: str | None = None,
    counted: bool = True,
    progress: OnProgress | None = None,
) -> Collected:
    """Collect the ranges of all of a model's tensors over feeds; one feed at a time is in memory.

    Args:
        model: The model, with all its weights inside; not changed. It runs on the CPU, without optimizations that would
            merge tensors.
        feeds: Real inputs, in host memory.
        inputs: The model's inputs, to check feeds against.
        algorithm: How ranges are chosen (:meth:`trtops.calibration.histogram.Histogram.choose`).
        percentile: For the algorithm of that name.
        max_feeds: Maximum number of feeds to use.
        min_samples: Minimum number of samples; the ranges of fewer are not representative.
        model_sha256: Digest of the model, stored in the cache.
        counted: False leaves the histograms of ``minmax`` empty, which does not need them.
        progress: Called after every feed.

    Raises:
        CalibrationError: If there are too few samples, a feed does not fit the model or contains NaN or infinity, the
            model fails on it, or the source of the feeds raises. ``partial`` has the ranges collected before.
    """
    # Not with ``onnxruntime.quantization``: here only one feed and its tensors are in memory at a time, and the ranges
    # collected so far survive a failure of the data.
    check_algorithm(algorithm, percentile)
    counted = counted or algorithm != "minmax"
    session = _session_with_all_outputs(model)
    watched = TensorMetadata.of(TensorSpec(node.name) for node in session.get_outputs() if node.type in _FLOATING)
    run = Inference(session, inputs, watched, "The model")
    floating = [name for name, spec in inputs.items() if spec.dtype is not None and spec.dtype.is_floating]
    histograms = {name: Histogram() for name in [*floating, *watched]}
    feed_digest = FeedDigest()
    done = samples = 0

    def so_far(complete: bool) -> CalibrationCache:
        ranges = []
        for name, histogram in histograms.items():
            if histogram.size and not histogram.not_finite:
                amax = histogram.choose(algorithm, percentile)
                clipped = histogram.beyond(amax)
                ranges.append(
                    TensorRange(name=name, amax=amax, low=histogram.low, high=histogram.high, clipped=clipped)
                )
        return CalibrationCache(
            algorithm=algorithm,
            percentile=percentile if algorithm == "percentile" else None,
            ranges=tuple(ranges),
            excluded=tuple(name for name, histogram in histograms.items() if histogram.not_finite),
            samples=samples,
            feeds=done,
            data_sha256=feed_digest.hexdigest(),
            model_sha256=model_sha256,
            complete=complete,
        )

    start = time.perf_counter()
    source = iter(feeds)
    try:
        while max_feeds is None or done < max_feeds:
            try:
                feed = next(source, None)
            # Whatever the user's data loader raises.
            except Exception as exc:
                raise errors.CalibrationError(
                    f"The calibration data failed at feed {done + 1}: {type(exc).__name__}: {exc}"
                ) from exc
            if feed is None:
                break
            arrays = _checked_arrays(done + 1, feed, inputs)
            try:
                found, _ = run(arrays)
            except errors.InferenceError as exc:
                raise errors.CalibrationError(f"Calibration feed {done + 1}: the model fails on it: {exc}") from exc
            # Only now is anything counted: a feed that fails leaves no trace.
            for name, array in (*arrays.items(), *found.items()):
                if name in histograms and array.size:
                    histograms[name].add(array, counted)
            feed_digest.add(feed)
            done += 1
            samples += samples_in(arrays)
            if progress is not None:
                progress(Progress(feeds=done, samples=samples, seconds=time.perf_counter() - start))
    except errors.CalibrationError as exc:
        if not done:
            raise
        kept = f"The ranges of the {done} feeds before it ({samples} samples) are kept."
        raise errors.CalibrationError(f"{exc} {kept}", partial=so_far(False)) from exc
    if not done:
        raise errors.CalibrationError("The calibration data is empty; INT8 needs at least one feed of real inputs.")
    if samples < min_samples:
        raise errors.CalibrationError(
            f"The calibration data has {samples} {'sample' if samples == 1 else 'samples'}; expected {min_samples} or "
            "more, since ranges of few samples are not representative. A hundred are usual.",
            partial=so_far(False),
        )
    return Collected(cache=so_far(True), histograms=histograms)


def _session_with_all_outputs(model: onnx.ModelProto) -> ort.InferenceSession:
    # The outputs are added to the model itself and removed again: a copy would hold its weights twice.
    outputs = model.graph.output
    count = len(outputs)
    present = {value.name for value in outputs}
    try:
        for name in edit.tensor_names(model.graph):
            if name not in present:
                outputs.append(onnx.helper.make_empty_tensor_value_info(name))
        return SessionFromMemory(model, optimized=False)()
    finally:
        del outputs[count:]


def _checked_arrays(number: int, feed: Feed, inputs: TensorMetadata) -> dict[str, np.ndarray[Any, Any]]:
    try:
        check_feed(inputs, feed)
    except errors.InputError as exc:
        raise errors.CalibrationError(f"Calibration feed {number}: {exc}") from exc
    arrays = {name: np.asarray(feed[name]) for name in inputs}
    for name, array in arrays.items():
        bad = ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(0, bool)
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise errors.CalibrationError(
                f"Calibration feed {number}: input {name!r} has {int(bad.sum())} values that are NaN or infinite, the "
                f"first ({array[where]}) at {where}; they give no range. Correct this feed, or leave it out."
            )
    return arrays


def fold(proto: onnx.ModelProto, log: SessionLog) -> onnx.ModelProto:
    """Return the model with constants folded and batch normalizations merged, in ONNX's own ops.

    The model must be below 2 GiB, and is not changed.
    """
    # Quantizing first would insert Q/DQ nodes between a convolution and its batch normalization, which would not merge.
    options = session_options(log_id=log.log_id)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("calibration")) as folder:
        path = Path(folder, "folded.onnx")
        options.optimized_model_filepath = str(path)
        size = sum(expected_bytes(tensor) or 0 for tensor in walk.tensors(proto))
        source = serialize(proto)
        try:
            # Constant folding may produce tensors of any size.
            with log.collecting(), limited_memory(6 * size):
                ort.InferenceSession(source, options, providers=list(DEFAULT_PROVIDERS))
        except MemoryError:
            raise errors.EngineBuildError(too_much("What is constant in the model")) from None
        except ORT_ERRORS as exc:
            raise errors.EngineBuildError(f"ONNX Runtime {ort.__version__} refuses the model: {why(exc)}") from exc
        return onnx.load(path)


def quantize(
    proto: onnx.ModelProto,
    cache: CalibrationCache,
    log: SessionLog,
    *,
    keep: Iterable[str] = (),
    policy: FitPolicy = "refuse",
) -> tuple[onnx.ModelProto, Quantization]:
    """Fold a model and write ranges into it as Q/DQ nodes, in the patterns that ONNX Runtime has integer kernels for.

    The model is not changed. Layers in ``keep`` stay in FP32 (:func:`trtops.backend.onnx.quantize.insert_qdq`); the
    policy decides about ranges that the cache lacks. CalibrationError if the cache does not fit the model, no layer is
    quantized, or the layers have 16-bit weights.
    """
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    layers = [node for node in proto.graph.node if node.op_type in INT8_OP_TYPES]
    weights = {types[name] for node in layers for name in node.input if name in types}
    for kind, label in ((onnx.TensorProto.FLOAT16, "FP16"), (onnx.TensorProto.BFLOAT16, "BF16")):
        if kind in weights and onnx.TensorProto.FLOAT not in weights:
            raise errors.CalibrationError(
                f"The model computes in {label}: its layers have {label} weights, but INT8 needs layers in FP32. "
                "Quantize the FP32 model that this one was made from."
            )
    kept = kept_names(proto, keep)
    folded = fold(proto, log)
    # Folding removes nodes and renames some, but a kept layer keeps its name, its output, or both.
    remaining = [name for node in folded.graph.node for name in (node.name, *node.output) if name in kept]
    done = insert_qdq(folded, cache, style="onnxruntime", keep=remaining, op_types=INT8_OP_TYPES, policy=policy)
    done.require_layers()
    if done.in_bodies:
        log.add(f"[trtops] in bodies of If, Loop or Scan, so kept in FP32: {', '.join(done.in_bodies)}")
    log.add(f"[trtops] {len(done.layers)} layers in INT8, {len(done.kept)} kept in FP32: {', '.join(done.kept) or '-'}")
    if done.missing:
        log.add(f"[trtops] no ranges for {', '.join(done.missing)}: the layers that read them stay in FP32")
    return folded, done
