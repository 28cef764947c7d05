"""INT8 on ONNX Runtime: the ranges of all tensors collected over data, and written into a model as Q/DQ nodes.

``onnxruntime.quantization`` is not used to collect: here one feed and its tensors are in memory at a time, whatever the
algorithm, and what was collected survives data that fails half-way. See :mod:`trtops.calibration.histogram`.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime as ort

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import edit, external, walk
from trtops.backend.onnx.external import expected_bytes
from trtops.backend.onnx.model import is_large, is_lean
from trtops.backend.onnx.quantize import Quantization, insert_qdq, kept_names
from trtops.backend.onnx.save import save_model, serialize
from trtops.backend.onnxrt.inference import run_session
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.reference import SessionFromMemory
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS, ORT_ERRORS, lean_source, session_options, why
from trtops.calibration.cache import CalibrationCache, FitPolicy, TensorRange
from trtops.calibration.data import FeedDigest, samples_in
from trtops.calibration.histogram import DEFAULT_PERCENTILE, Algorithm, Histogram, check_algorithm
from trtops.limits import limited_memory, too_much
from trtops.metadata import TensorMetadata, check_feed
from trtops.processes import temporary_prefix

log = logging.getLogger(__name__)

INT8_OP_TYPES = ("Conv", "Gemm", "MatMul")
"""Layers to quantize for ONNX Runtime: where the time goes, and where it has integer kernels."""

MIN_SAMPLES = 2

_FLOATING = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)"})


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a calibration is.

    Attributes:
        feeds: Feeds done.
        samples: Samples in them.
        seconds: Wall time since it began.
    """

    feeds: int
    samples: int
    seconds: float


OnProgress: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a calibration collected.

    Attributes:
        cache: The ranges.
        histograms: What they were chosen from, by tensor name.
    """

    cache: CalibrationCache
    histograms: Mapping[str, Histogram]


class RangeCollector:
    """Runs a model on feeds and sums up each of its floating-point tensors, 32 KiB per tensor.

    Attributes:
        histograms: By tensor name: inputs first, then what the nodes make, in the graph's order.
        feeds: Feeds added.
        samples: Samples in them.
    """

    def __init__(self, model: onnx.ModelProto, inputs: TensorMetadata, *, counted: bool = True) -> None:
        """Make ready to run.

        Args:
            model: The model, with all its weights inside; not changed. It runs on the CPU, without optimizations that
                would merge tensors away.
            inputs: Its inputs, to check feeds against.
            counted: False notes the smallest and largest values only: faster, and enough for ``minmax``.

        Raises:
            InvalidModelError: If ONNX Runtime refuses the model.
            UnsupportedFeatureError: If it has no kernel for an op.
        """
        self._session = _watching_session(model)
        self._inputs = inputs
        self._counted = counted
        self._watched = [node.name for node in self._session.get_outputs() if node.type in _FLOATING]
        names = [name for name, spec in inputs.items() if spec.dtype is not None and spec.dtype.is_floating]
        self.histograms: dict[str, Histogram] = {name: Histogram() for name in [*names, *self._watched]}
        self.feeds = 0
        self.samples = 0
        self._digest = FeedDigest()

    def add(self, feed: Feed) -> None:
        """Run the model on one feed and count what its tensors hold; nothing of the feed is kept.

        Raises:
            CalibrationError: If the feed does not fit the model, holds NaN or infinity, or the model fails on it. Nothing
                of it is counted then.
        """
        number = self.feeds + 1  # nothing is counted before the model has run: a feed that fails leaves no trace
        try:
            check_feed(self._inputs, feed)
        except errors.InputError as exc:
            raise errors.CalibrationError(f"Calibration feed {number}: {exc}") from exc
        arrays = {name: np.asarray(feed[name]) for name in self._inputs}
        for name, array in arrays.items():
            _check_finite(number, name, array)
        try:
            found = run_session(self._session, self._watched, arrays, self._inputs)
        except ORT_ERRORS as exc:
            raise errors.CalibrationError(f"Calibration feed {number}: the model fails on it: {why(exc)}") from exc
        for name, array in (*arrays.items(), *zip(self._watched, found)):
            if name in self.histograms and array.size:
                self.histograms[name].add(array, self._counted)
        self._digest.add(feed)
        self.feeds = number
        self.samples += samples_in(arrays)

    def cache(
        self,
        algorithm: Algorithm = "minmax",
        *,
        percentile: float = DEFAULT_PERCENTILE,
        model_sha256: str | None = None,
        complete: bool = True,
    ) -> CalibrationCache:
        """The ranges of what was added so far; choosing costs a few milliseconds per tensor.

        Args:
            algorithm: How to choose them (:meth:`trtops.calibration.histogram.Histogram.choose`).
            percentile: For the algorithm of that name.
            model_sha256: Digest of the model, to be kept with them.
            complete: Whether this is all the data there was.
        """
        seen = {name: histogram for name, histogram in self.histograms.items() if histogram.size}
        return CalibrationCache(
            algorithm=algorithm,
            percentile=percentile if algorithm == "percentile" else None,
            ranges=tuple(
                _tensor_range(name, histogram, algorithm, percentile)
                for name, histogram in seen.items()
                if not histogram.not_finite
            ),
            excluded=tuple(name for name, histogram in self.histograms.items() if histogram.not_finite),
            samples=self.samples,
            feeds=self.feeds,
            data_sha256=self._digest.hexdigest(),
            model_sha256=model_sha256,
            complete=complete,
        )


def _watching_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session with every tensor as an output."""
    # The outputs are added to the model itself and taken away again: a copy would hold its weights twice.
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


def _check_finite(number: int, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = ~np.isfinite(array)
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    raise errors.CalibrationError(
        f"Calibration feed {number}: input {name!r} holds {int(bad.sum())} values that are NaN or infinite, the first "
        f"({array[where]}) at {where}; no range can be made of them. Mend this feed, or leave it out."
    )


def _tensor_range(name: str, histogram: Histogram, algorithm: Algorithm, percentile: float) -> TensorRange:
    amax = histogram.choose(algorithm, percentile)
    return TensorRange(name=name, amax=amax, low=histogram.low, high=histogram.high, clipped=histogram.beyond(amax))


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
    """Collect the ranges of all of a model's tensors over feeds, one of which is in memory at a time.

    Args:
        model: The model, with all its weights inside; not changed.
        feeds: Real inputs, in host memory.
        inputs: The model's inputs, to check feeds against.
        algorithm: How ranges are chosen.
        percentile: For the algorithm of that name.
        max_feeds: Take no more feeds than this.
        min_samples: Fewer samples than this are refused: their ranges say little about others.
        model_sha256: Digest of the model, to be kept in the cache.
        counted: False leaves the histograms of ``minmax`` empty, which it does not need.
        progress: Called after every feed.

    Raises:
        CalibrationError: If there are no feeds or too few samples, a feed does not fit the model or holds NaN or infinity,
            the model fails on one, or the source of the feeds raises. What was collected up to there is the error's
            ``partial``.
        ConfigError: If the algorithm or percentile cannot be meant.
    """
    check_algorithm(algorithm, percentile)
    collector = RangeCollector(model, inputs, counted=counted or algorithm != "minmax")

    def so_far(complete: bool) -> CalibrationCache:
        return collector.cache(algorithm, percentile=percentile, model_sha256=model_sha256, complete=complete)

    try:
        _add_all(collector, feeds, max_feeds, progress)
    except errors.CalibrationError as exc:
        if not collector.feeds:
            raise
        kept = f"What the {collector.feeds} feeds before it gave ({collector.samples} samples) is kept."
        raise errors.CalibrationError(f"{exc} {kept}", partial=so_far(False)) from exc
    if collector.samples < min_samples:
        raise errors.CalibrationError(
            f"The calibration data has {collector.samples} {'sample' if collector.samples == 1 else 'samples'}; expected "
            f"{min_samples} or more, since the ranges of so few say little about others. A hundred are usual.",
            partial=so_far(False),
        )
    return Collected(cache=so_far(True), histograms=collector.histograms)


def _add_all(
    collector: RangeCollector, feeds: Iterable[Feed], max_feeds: int | None, progress: OnProgress | None
) -> None:
    start = time.perf_counter()
    source = iter(feeds)
    while max_feeds is None or collector.feeds < max_feeds:
        try:
            feed = next(source, None)
        except Exception as exc:  # whatever the user's data loader raises
            raise errors.CalibrationError(
                f"The calibration data failed at feed {collector.feeds + 1}: {type(exc).__name__}: {exc}"
            ) from exc
        if feed is None:
            break
        collector.add(feed)
        if progress is not None:
            progress(Progress(feeds=collector.feeds, samples=collector.samples, seconds=time.perf_counter() - start))
    if not collector.feeds:
        raise errors.CalibrationError("No calibration data came; INT8 needs at least one feed of real inputs.")


def fold(proto: onnx.ModelProto, log: SessionLog, weights: Path | None = None) -> onnx.ModelProto:
    """The model with constants folded and batch normalizations merged, in ONNX's own ops.

    Quantizing first would put Q/DQ nodes between a convolution and its batch normalization, which then stay two.

    Args:
        proto: The model; not changed.
        log: Collects what ONNX Runtime says.
        weights: An empty folder of the caller's, where the weights of a model near 2 GiB and beyond stay as long as the result
            is used; without one they are read.

    Raises:
        EngineBuildError: If ONNX Runtime refuses the model.
    """
    options = session_options(log_id=log.log_id)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=temporary_prefix("calibration")))
        path = Path(folder, "folded.onnx")
        options.optimized_model_filepath = str(path)
        source: bytes | str
        outside = is_large(proto)  # for one protobuf message, on the way in and on the way out
        if is_lean(proto):
            source = stack.enter_context(lean_source(proto, options))
        elif outside:
            source = str(Path(folder, "model.onnx"))
            save_model(proto, source, external_data_path="")
        else:
            source = serialize(proto)
        if outside:
            if weights is not None:
                path = weights / "folded.onnx"
                options.optimized_model_filepath = str(path)
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "folded.data")
        try:
            own = 6 * sum(expected_bytes(tensor) or 0 for tensor in walk.tensors(proto))
            with log.collecting(), limited_memory(own):  # it computes what is constant
                ort.InferenceSession(source, options, providers=list(DEFAULT_PROVIDERS))
        except MemoryError:
            raise errors.EngineBuildError(too_much("What is constant in the model")) from None
        except ORT_ERRORS as exc:
            raise errors.EngineBuildError(f"ONNX Runtime {ort.__version__} refuses the model: {why(exc)}") from exc
        if not outside or weights is None:
            return onnx.load(path)
        folded = onnx.load(path, load_external_data=False)
        external.anchor(folded, weights)
        return folded


def _require_fp32_layers(proto: onnx.ModelProto) -> None:
    """Refuse models whose layers have 16-bit weights, which are quantized from nothing that is known.

    Raises:
        CalibrationError: If no layer that could be quantized has a weight in FP32, and one has it in 16 bit.
    """
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    low = {onnx.TensorProto.FLOAT16: "FP16", onnx.TensorProto.BFLOAT16: "BF16"}
    read = [
        types[name]
        for node in proto.graph.node
        if node.op_type in INT8_OP_TYPES
        for name in node.input
        if name in types
    ]
    found = next((low[kind] for kind in read if kind in low), None)
    if found is not None and onnx.TensorProto.FLOAT not in read:
        raise errors.CalibrationError(
            f"The model computes in {found}: its layers have {found} weights, and INT8 is made of layers in FP32. Quantize "
            "the model in FP32 that this one was made from."
        )


def quantize(
    proto: onnx.ModelProto,
    cache: CalibrationCache,
    log: SessionLog,
    *,
    keep: Iterable[str] = (),
    policy: FitPolicy = "refuse",
    weights: Path | None = None,
) -> tuple[onnx.ModelProto, Quantization]:
    """Fold a model and write ranges into it as Q/DQ nodes, in the patterns that ONNX Runtime has integer kernels for.

    Args:
        proto: The model, without Q/DQ nodes; not changed.
        cache: Ranges of its tensors.
        log: Collects what ONNX Runtime says, and which layers stayed in FP32.
        keep: Layers to leave in FP32 (:func:`trtops.backend.onnx.quantize.insert_qdq`), as the model names them.
        policy: What to do about ranges that the cache lacks.
        weights: As for :func:`fold`.

    Raises:
        EngineBuildError: If ONNX Runtime refuses the model.
        ConfigError: If a pattern of ``keep`` chooses nothing.
        CalibrationError: If the cache does not fit the model, or no layer is quantized.
    """
    _require_fp32_layers(proto)
    kept = kept_names(proto, keep)
    folded = fold(proto, log, weights)
    # Folding removes nodes and renames some, but a kept layer keeps its name, its output, or both.
    there = [name for node in folded.graph.node for name in (node.name, *node.output) if name in kept]
    done = insert_qdq(folded, cache, style="onnxruntime", keep=there, op_types=INT8_OP_TYPES, policy=policy)
    done.require_layers()
    if done.in_bodies:
        log.add(f"[trtops] in bodies of If, Loop or Scan, so kept in FP32: {', '.join(done.in_bodies)}")
    log.add(f"[trtops] {len(done.layers)} layers in INT8, {len(done.kept)} kept in FP32: {', '.join(done.kept) or '-'}")
    if done.missing:
        log.add(f"[trtops] no ranges for {', '.join(done.missing)}: the layers that read them stay in FP32")
    return folded, done
