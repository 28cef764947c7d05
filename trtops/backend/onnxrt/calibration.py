"""INT8 on ONNX Runtime: collects the ranges of all tensors over data, and writes them into a model as Q/DQ nodes."""

import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import copying, edit, walk
from trtops.backend.onnx.model import Model, is_lean
from trtops.backend.onnx.precision import without_functions
from trtops.backend.onnx.quantize import insert_qdq, kept_names
from trtops.backend.onnx.save import serialize
from trtops.backend.onnx.submodel import Array
from trtops.backend.onnx.with_onnxruntime import out_of_memory
from trtops.backend.onnxrt.inference import Inference
from trtops.backend.onnxrt.library import ort
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.runner import SessionFromMemory, reference_outputs
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS, ORT_ERRORS, session_options, why
from trtops.calibration.cache import CalibrationCache, FitPolicy, TensorRange
from trtops.calibration.choice import AlgorithmError, ComparedOn, Comparison, relative_error
from trtops.calibration.data import FeedDigest, samples_in
from trtops.calibration.histogram import ALGORITHMS, DEFAULT_PERCENTILE, Algorithm, Histogram
from trtops.calibration.quantization import OP_TYPES, Quantization
from trtops.metadata import TensorMetadata, TensorSpec, check_feed
from trtops.spec import BuildConfig
from trtops.system.activity import Activity
from trtops.system.limits import limited_memory, too_much
from trtops.system.processes import temporary_prefix

MIN_SAMPLES = 2

# Feeds 2, 4, 6 ... 32 of the calibration data are held out to compare algorithms on, so at most 16 are in memory. One
# feed of four gave another best algorithm than the whole data of a text classifier.
_HELD_OUT_EVERY = 2
_HELD_OUT_UP_TO = 32

_FLOATING = frozenset({"tensor(float)", "tensor(float16)", "tensor(double)"})


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The result of one pass over calibration data: histograms by tensor name, for any algorithm.

    If algorithms are to be compared, every second feed of the first 32 is held out: its values are in
    ``histograms``, but not in ``without_held_out``, which the compared ranges are chosen from. A single feed is not
    held out.
    """

    histograms: Mapping[str, Histogram] = field(repr=False)
    without_held_out: Mapping[str, Histogram] = field(repr=False)
    held_out: Sequence[tuple[Feed, Feed]] = field(default=(), repr=False)  # feeds, each with the model's own outputs
    samples: int
    feeds: int
    data_sha256: str
    model_sha256: str | None = None
    complete: bool = True  # False if the data ended with an error

    def cache(self, algorithm: Algorithm = "minmax", percentile: float = DEFAULT_PERCENTILE) -> CalibrationCache:
        """Return the ranges by one algorithm (:meth:`trtops.calibration.histogram.Histogram.choose`)."""
        histograms, ranges = self.histograms, []
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
            samples=self.samples,
            feeds=self.feeds,
            data_sha256=self.data_sha256,
            model_sha256=self.model_sha256,
            complete=self.complete,
        )


def compare(
    collected: Collected,
    quantized: "Quantizer",
    percentile: float = DEFAULT_PERCENTILE,
    feeds: Sequence[tuple[Feed, Feed]] | None = None,
) -> Comparison:
    """Compare the algorithms by the INT8 model's outputs, with one session for each.

    Args:
        collected: What the ranges are chosen from.
        quantized: The model to quantize.
        percentile: For the algorithm of that name.
        feeds: Feeds with the model's own outputs, of other data than was collected from; by default those that were
            held out, and then ranges are chosen without them.

    Raises:
        CalibrationError: If no layer can be quantized, or the outputs hold no numbers.
    """
    data: ComparedOn = "check data"
    if feeds is None:
        feeds = collected.held_out
        data = "calibration data" if collected.feeds == 1 else "held-out calibration data"
        if data == "held-out calibration data":
            collected = replace(collected, histograms=collected.without_held_out)
    inputs, golden = zip(*feeds)
    algorithm_errors = []
    for algorithm in ALGORITHMS:
        model, _ = quantized(collected.cache(algorithm, percentile), policy="partial")
        error = relative_error(reference_outputs(model, inputs), golden)
        algorithm_errors.append(AlgorithmError(algorithm=algorithm, error=error))
    return Comparison(errors=tuple(algorithm_errors), feeds=len(feeds), data=data)


def best_ranges(
    model: Model, proto: onnx.ModelProto, feeds: Iterable[Feed], quantized: "Quantizer", max_feeds: int
) -> tuple[CalibrationCache, Comparison]:
    """Collect ranges over feeds, and return those of the best algorithm on held-out feeds.

    ``proto`` is the content of ``model``, with all its weights inside. Raises as :func:`collect` and :func:`compare`.
    """
    inputs = TensorMetadata.of(model.info.inputs)
    collected = collect(proto, feeds, inputs=inputs, max_feeds=max_feeds, model_sha256=model.info.sha256, hold_out=True)
    comparison = compare(collected, quantized)
    return collected.cache(comparison.chosen), comparison


def collect(
    model: onnx.ModelProto,
    feeds: Iterable[Feed],
    *,
    inputs: TensorMetadata,
    max_feeds: int | None = None,
    min_samples: int = MIN_SAMPLES,
    model_sha256: str | None = None,
    counted: bool = True,
    hold_out: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Collected:
    """Collect the values of all of a model's tensors over feeds; only one feed and those held out are in memory.

    Args:
        model: The model, with all its weights inside; not changed. It runs on the CPU, without optimizations that would
            merge tensors.
        feeds: Real inputs, in host memory, which are read once.
        inputs: The model's inputs, to check feeds against.
        max_feeds: Maximum number of feeds to use.
        min_samples: Minimum number of samples; the ranges of fewer are not representative.
        model_sha256: Digest of the model, stored in the cache.
        counted: False leaves the histograms empty but for the smallest and largest value, which is all that ``minmax``
            needs.
        hold_out: Hold feeds out, to compare algorithms on.
        progress: Called after every feed with the number of samples so far.

    Raises:
        CalibrationError: If there are too few samples, a feed does not fit the model or contains NaN or infinity, the
            model fails on it, or the source of the feeds raises. ``partial`` is what was collected before.
    """
    # Not with ``onnxruntime.quantization``: here few feeds and the tensors of one are in memory at a time, and what was
    # collected so far survives a failure of the data.
    collecting = _Collecting(model, inputs, model_sha256=model_sha256, counted=counted, hold_out=hold_out)
    source = iter(feeds)
    try:
        while max_feeds is None or collecting.feeds < max_feeds:
            try:
                feed = next(source, None)
            # Whatever the user's data loader raises.
            except Exception as exc:
                raise errors.CalibrationError(
                    f"The calibration data failed at feed {collecting.feeds + 1}: {type(exc).__name__}: {exc}"
                ) from exc
            if feed is None:
                break
            collecting.add(feed)
            if progress is not None:
                progress(collecting.samples)
    except errors.CalibrationError as exc:
        if not collecting.feeds:
            raise
        note = f"The ranges of the {collecting.feeds} feeds before it ({collecting.samples} samples) are kept."
        raise errors.CalibrationError(f"{exc} {note}", partial=collecting.result(complete=False)) from exc
    samples = collecting.samples
    if not collecting.feeds:
        raise errors.CalibrationError("The calibration data is empty; INT8 needs at least one feed of real inputs.")
    if samples < min_samples:
        raise errors.CalibrationError(
            f"The calibration data has {samples} {'sample' if samples == 1 else 'samples'}; expected {min_samples} or "
            "more, since ranges of few samples are not representative. A hundred are usual.",
            partial=collecting.result(complete=False),
        )
    return collecting.result(complete=True)


class _Collecting:
    """Runs a model on one feed after the other, and counts the values of its tensors."""

    def __init__(
        self, model: onnx.ModelProto, inputs: TensorMetadata, *, model_sha256: str | None, counted: bool, hold_out: bool
    ) -> None:
        model = without_functions(model)  # as when the ranges are used
        session = _session_with_outputs(model, edit.tensor_names(model.graph))
        watched = [node.name for node in session.get_outputs() if node.type in _FLOATING]
        floating = [name for name, spec in inputs.items() if spec.dtype is not None and spec.dtype.is_floating]
        self._outputs = list(walk.by_name(model.graph.output)) if hold_out else []
        self._model = model
        self._computed = list(dict.fromkeys((*watched, *self._outputs)))
        self._runs = [_inference(session, inputs, self._computed)]
        self._inputs = inputs
        self._model_sha256 = model_sha256
        self._counted = counted
        self._hold_out = hold_out
        self._histograms = {name: Histogram() for name in (*floating, *watched)}
        self._of_held_out = defaultdict[str, Histogram](Histogram)
        self._held_out: list[tuple[Feed, Feed]] = []
        self._digest = FeedDigest()
        self.feeds = self.samples = 0

    def add(self, feed: Feed) -> None:
        """Count the values of a feed and of the tensors computed from it; a failing feed leaves no trace."""
        arrays = _checked_arrays(self.feeds + 1, feed, self._inputs)
        is_held_out = self._hold_out and self.feeds % _HELD_OUT_EVERY == 1 and self.feeds < _HELD_OUT_UP_TO
        histograms = self._of_held_out if is_held_out else self._histograms
        counted, outputs = self._count(arrays)
        for name, histogram in counted.items():
            histograms[name] = histograms[name].merged(histogram)
        # The first feed is kept as well, until there is a second one to compare on.
        if is_held_out or (self._hold_out and self.feeds == 0):
            # Copied, since a loader may fill the same arrays again.
            copies = {name: array.copy() for name, array in arrays.items()}
            self._held_out = self._held_out[self.feeds == 1 :]
            self._held_out.append((copies, outputs))
        self._digest.add(feed)
        self.feeds += 1
        self.samples += samples_in(arrays)

    def _count(self, arrays: dict[str, Array]) -> tuple[dict[str, Histogram], dict[str, Array]]:
        """Return the histograms of a feed's tensors, and the model's outputs if feeds are held out."""
        while True:
            counted: dict[str, Histogram] = {}
            self._add_histograms(arrays, counted)
            outputs: dict[str, Array] = {}
            try:
                for run in self._runs:
                    tensors, _ = run(arrays)
                    self._add_histograms(tensors, counted)
                    outputs |= {name: tensors[name] for name in self._outputs if name in tensors}
                    del tensors  # before the next part is computed
            except errors.InferenceError as exc:
                parts, cause = 2 * len(self._runs), exc.__cause__
                splits = parts <= len(self._computed) and isinstance(cause, Exception) and out_of_memory(cause)
                if not splits:
                    which = f"Calibration feed {self.feeds + 1}"
                    raise errors.CalibrationError(f"{which}: the model fails on it: {exc}") from exc
            else:
                return counted, outputs
            # The tensors of one feed are too large together. The model runs once for each part of them instead.
            size = math.ceil(len(self._computed) / parts)
            self._runs = []  # before others are made, since all take memory
            for start in range(0, len(self._computed), size):
                names = self._computed[start : start + size]
                self._runs.append(_inference(_session_with_outputs(self._model, names), self._inputs, names))

    def _add_histograms(self, arrays: Mapping[str, Array], counted: dict[str, Histogram]) -> None:
        for name in self._histograms.keys() & arrays.keys():
            counted[name] = Histogram()
            if arrays[name].size:
                counted[name].add(arrays[name], self._counted)

    def result(self, complete: bool) -> Collected:
        """Return the values collected so far."""
        histograms, apart = self._histograms, self._of_held_out
        return Collected(
            histograms={name: histograms[name].merged(apart[name]) for name in histograms} if apart else histograms,
            without_held_out=histograms,
            held_out=self._held_out,
            samples=self.samples,
            feeds=self.feeds,
            data_sha256=self._digest.hexdigest(),
            model_sha256=self._model_sha256,
            complete=complete,
        )


def _session_with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> ort.InferenceSession:
    # The outputs are added to the model itself and removed again: a copy would hold its weights twice.
    outputs = model.graph.output
    count = len(outputs)
    present = walk.names_of(outputs)
    try:
        for name in names:
            if name not in present:
                outputs.append(onnx.helper.make_empty_tensor_value_info(name))
        return SessionFromMemory(model, optimized=False)()
    finally:
        del outputs[count:]


def _inference(session: ort.InferenceSession, inputs: TensorMetadata, names: Iterable[str]) -> Inference:
    return Inference(session, inputs, TensorMetadata.of(map(TensorSpec, names)), "The model")


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

    The model is not changed. One above 2 GiB, whose weights are in files, is returned as it is.
    """
    if is_lean(proto):
        log.add("[trtops] the model has more than 2 GiB and is quantized without being folded")
        return copying.copy_of(proto)
    # Quantizing first would insert Q/DQ nodes between a convolution and its batch normalization, which would not merge.
    options = session_options(log_id=log.log_id)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("calibration")) as folder:
        path = Path(folder, "folded.onnx")
        options.optimized_model_filepath = str(path)
        source = serialize(proto)
        try:
            # Constant folding may produce tensors of any size.
            with (
                log.collecting(),
                limited_memory(6 * walk.weight_bytes(proto)),
                Activity("optimizing the model in ONNX Runtime"),
            ):
                ort.InferenceSession(source, options, providers=list(DEFAULT_PROVIDERS))
        except MemoryError:
            raise errors.EngineBuildError(too_much("What is constant in the model")) from None
        except ORT_ERRORS as exc:
            raise errors.EngineBuildError(f"ONNX Runtime {ort.__version__} refuses the model: {why(exc)}") from exc
        folded = onnx.load(path)
    for node in folded.graph.node:  # a product keeps its name
        node.name = node.name.removesuffix("/MatMulAddFusion")
    return folded


class Quantizer:
    """Writes ranges into copies of a model as Q/DQ nodes (:func:`trtops.backend.onnx.quantize.insert_qdq`).

    For ONNX Runtime the model is folded first, and CalibrationError is raised if its layers have 16-bit weights.
    """

    def __init__(self, proto: onnx.ModelProto, log: SessionLog, config: BuildConfig) -> None:
        """Take a model and its build config; the model is not changed."""
        proto = without_functions(proto)
        self._model, self._config = proto, config
        if config.backend == "tensorrt":
            return
        read = set(walk.read(node for node in proto.graph.node if node.op_type in OP_TYPES))
        weights = {tensor.data_type for tensor in proto.graph.initializer if tensor.name in read}
        for kind, label in ((onnx.TensorProto.FLOAT16, "FP16"), (onnx.TensorProto.BFLOAT16, "BF16")):
            if kind in weights and onnx.TensorProto.FLOAT not in weights:
                raise errors.CalibrationError(
                    f"The model computes in {label}: its layers have {label} weights, but INT8 needs layers in FP32. "
                    "Quantize the FP32 model that this one was made from."
                )
        fp32_layers = kept_names(proto, config.keep)
        self._model = fold(proto, log)
        # Folding removes nodes and renames some, but a kept layer keeps its name, its output, or both.
        names = chain.from_iterable((node.name, *node.output) for node in self._model.graph.node)
        self._config = replace(config, keep=tuple(filter(fp32_layers.__contains__, names)))

    def __call__(
        self, cache: CalibrationCache, policy: FitPolicy | None = None
    ) -> tuple[onnx.ModelProto, Quantization]:
        """Return a quantized copy; the policy (default: the config's) applies to ranges missing in the cache.

        CalibrationError if the cache does not fit the model, or no layer is quantized.
        """
        copy = onnx.ModelProto()
        copy.CopyFrom(self._model)
        done = insert_qdq(copy, cache, self._config, policy)
        done.require_layers()
        return copy, done
