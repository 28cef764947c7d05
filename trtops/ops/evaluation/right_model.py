"""The right model on the data of an evaluation, and what rounding does to it.

It runs once more, without an engine: in 16 bit with every result rounded, in INT8 with Q/DQ pairs, and in FP32 with
weights and inputs moved by up to one rounding unit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.arrays import subset, to_numpy
from trtops.comparator.report import Outputs, Tolerances, compare_outputs, iterations_of
from trtops.comparator.results import RunResults
from trtops.ops.evaluation.data import Emulation, Overflows, golden_outputs, moved_reference, run_in_16_bit
from trtops.ops.evaluation.limits import (
    EIGHT_BITS,
    NoiseLimits,
    tolerances_for,
    useful_in_range,
    useful_tolerances,
    with_classes,
)
from trtops.ops.evaluation.noise import (
    CHANNEL_ELEMENTS,
    OutputNoise,
    largest_noise,
    measure_noise,
    pooled_noise,
    predicted_noise,
)
from trtops.ops.evaluation.output_ranges import output_ranges
from trtops.ops.evaluation.selections import Selections, find_selections
from trtops.ops.evaluation.undefined import NanRows, Undefined, find_undefined, without_own_nan
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Rounding, TensorRTOptions

if TYPE_CHECKING:
    from trtops.backend.base import Feed
    from trtops.backend.onnx.model import Model

log = logging.getLogger(__name__)

# TensorRT chooses algorithms with more roundings than are emulated. Its FP32 functions are less exact: nine layers of
# tanh had 18 times the noise (8.6 on an H100).
_TENSORRT, _TENSORRT_FP32 = 1.5, 3.0
# Its FP16 kernels may add up in FP16: sums of this many products double the variance of rounding inputs, weights and
# result. One rounding for each of K/16 partial sums, whose variance grows evenly, has K/32 times the variance of
# rounding the result. A convolution with K = 4608 had 6.8 times the noise (7.0 by this), a perceptron with 512 to 2048
# had 4.6 (4.0), a U-Net with 36 to 2304 had 4.1 (3.2).
_SUM_LENGTH = 96
# A single draw of the noise scatters too much below this number of independent elements. In INT8, more are drawn until
# all together have as many.
_FEW = 256
_MOST_DRAWS = 8


@dataclass(frozen=True, kw_only=True)
class RightModel:
    """The right model on the data of an evaluation, and the effect of rounding on it.

    The rounded model runs when it is first needed, once for limits and emulation.

    Attributes:
        model: The model.
        build: How the engines are built: their precision and back end, and the nodes that stay in FP32.
        feeds: The inputs.
        golden: The golden outputs; the model's own unless ``golden_given``.
        golden_given: Whether the golden outputs are of another origin.
        calibration: The calibration cache of the engines; INT8 cannot be emulated without.
        measured: The noise, if it was measured before (:func:`noise_and_draws`).
    """

    model: Model
    build: BuildConfig
    feeds: Iterable[Feed]
    golden: RunResults
    golden_given: bool = False
    calibration: bytes | None = None
    measured: NoiseLimits | None = None
    nan: NanRows = field(default_factory=NanRows, repr=False)
    _undefined: dict[str, Undefined] = field(default_factory=dict, repr=False)
    _draws: list[RunResults] = field(default_factory=list, repr=False)
    _drawn_keys: list[RunResults] = field(default_factory=list, repr=False)  # of the rounded selections

    def __post_init__(self) -> None:
        """Replace rows of NaN in the data, and their outputs, so as not to count as an effect of rounding."""
        if self.nan:  # a copy, whose feeds are replaced already
            return
        object.__setattr__(self, "nan", NanRows.of(self.model, self.feeds))
        if self.nan:
            object.__setattr__(self, "feeds", self.nan.replaced(self.feeds))
            object.__setattr__(self, "golden", golden_outputs(self.model, self.feeds, None))
            object.__setattr__(self, "golden_given", False)

    def undefined(self, requested: Tolerances | None) -> Undefined:
        """The incomparable outputs: random beyond the requested limits, or in rows of NaN."""
        key = "" if requested is None else requested.digest
        if key not in self._undefined:
            self._undefined[key] = find_undefined(self.model, self.feeds, self.nan, requested)
        return self._undefined[key]

    @property
    def precision(self) -> Rounding:
        """The precision of the engines; TF32 if FP32 products round their inputs to it.

        For a model that is quantized already it is that of the rest: 16 bit if TensorRT may use it in addition.
        """
        rounding, options = self.build.rounding, self.build.options
        if rounding in EIGHT_BITS and isinstance(options, TensorRTOptions) and self._is_quantized:
            return next((low for low in ("bf16", "fp16") if low in options.also), rounding)
        return rounding

    @cached_property
    def _is_quantized(self) -> bool:
        from trtops.backend.onnx.quantize import is_quantized

        return is_quantized(self.model.structure())

    @cached_property
    def _useful_in(self) -> Rounding:
        """The precision of the useful errors as bounds: rounding moves quantized values to the next step."""
        from trtops.backend.onnx.quantize import rounds_to_steps

        return "int8" if rounds_to_steps(self.model.structure()) else self.precision

    @property
    def times(self) -> float:
        """The back end's factor on the noise."""
        if isinstance(self.build.options, OnnxRuntimeOptions):
            return _TENSORRT if self.build.options.on_gpu and self.precision == "fp16" else 1.0
        if self.precision == "fp16":
            from trtops.backend.onnx.walk import mean_sum_length

            return max(_TENSORRT, math.sqrt(1 + mean_sum_length(self.model.structure().graph) / _SUM_LENGTH))
        return _TENSORRT_FP32 if self.precision == "fp32" else _TENSORRT

    @cached_property
    def plain(self) -> RunResults:
        """The model's own outputs."""
        return golden_outputs(self.model, self.feeds, None) if self.golden_given else self.golden

    @cached_property
    def rounded(self) -> tuple[RunResults, Overflows]:
        """The outputs in the precision, every result rounded and nothing fused, and the overflowing tensors.

        Those of the model itself in FP32, and in 8 bits for a model that is quantized already. Raises TrtopsError if
        the precision cannot be emulated, or the rewritten model does not run.
        """
        from trtops.backend.onnxrt.runner import reference_outputs

        overflows: Overflows = ()
        if self.precision == "fp32" or (self.precision in EIGHT_BITS and self._is_quantized):
            return self.plain, ()
        if self.precision == "int8" or self.precision == "fp8":
            return self._quantized(), ()
        elif self.precision == "tf32":
            from trtops.backend.onnx.emulation import round_to_tf32

            outputs = reference_outputs(round_to_tf32(self._watched.proto(lean=True)), list(self.feeds))
        else:
            outputs, overflows = run_in_16_bit(self._watched, self.precision, self.feeds, self.build.keep)
        return self._results(outputs), overflows

    @cached_property
    def _selections(self) -> Selections | None:
        return find_selections(self.model, list(self.feeds), self.plain[0][1])

    @property
    def _watched(self) -> Model:
        return self.model if self._selections is None else self._selections.model

    def _results(self, iterations: Sequence[Mapping[str, Any]]) -> RunResults:
        """The outputs of the rounded model, with the golden selection for ties; they determine the ties."""
        if self._selections is not None:
            self._drawn_keys.append(_results_of(iterations, self._selections.keys))
            iterations = self._selections.align(iterations, self._tied_widths, rounded=True)
        return _results_of(iterations, self.plain[0][1][0])

    @property
    def _tied_widths(self) -> dict[str, float]:
        """The largest difference of candidates exchangeable by rounding, by the keys of their ranking."""
        assert self._selections is not None
        if not self._drawn_keys or not self._selections.keys:
            return {}
        golden = _results_of(self._selections.golden, self._selections.keys)
        widths: dict[str, float] = {}
        for keys in measure_noise(golden, self._drawn_keys, largest_noise):
            if keys.whole is not None:
                widths[keys.name] = keys.whole.largest_limit(self.precision, self.times)
        return widths

    def aligned(self, outputs: Outputs) -> list[Mapping[str, Any]]:
        """The outputs of an engine for each feed, with the golden selection for ties."""
        iterations = iterations_of(outputs, "actual")
        if self._selections is None:
            return iterations
        arrays: list[Mapping[str, Any]] = []
        for iteration in iterations:
            selected = {n: to_numpy(iteration[n], "The output") for n in self._selections.outputs if n in iteration}
            arrays.append({**iteration, **selected})
        return [*self._selections.align(arrays, self._tied_widths)]

    def _quantized(self, jitter: np.random.Generator | None = None) -> RunResults:
        """The outputs of the model with Q/DQ pairs; ``jitter`` draws other rounding errors."""
        from trtops.backend.onnx.quantize import insert_qdq
        from trtops.backend.onnxrt.runner import reference_outputs
        from trtops.calibration.cache import read_cache

        if self.calibration is None:
            raise errors.CalibrationError(f"the {self.precision.upper()} build left no calibration cache")
        proto, ranges = self._watched.proto(lean=True), read_cache(self.calibration)
        # TensorRT's text is of a calibrator, which quantizes every layer that it can.
        everywhere = ranges.tensorrt_header is not None and self.precision == "int8"
        build = replace(self.build, qdq_rules=()) if everywhere else self.build
        insert_qdq(proto, ranges, build, "partial", jitter=jitter)
        return self._results(reference_outputs(proto, list(self.feeds)))

    @cached_property
    def moved(self) -> RunResults | None:
        """The outputs with weights and inputs moved by up to a rounding unit of FP32; None for large models."""
        moved = moved_reference(self._watched, list(self.feeds), "fp32")
        return None if moved is None else self._results(moved[0][1])

    @cached_property
    def noise(self) -> NoiseLimits:
        """What rounding does to each output."""
        if self.measured is not None:
            return self.measured
        precision = self.precision
        try:
            if precision in ("fp32", *EIGHT_BITS) and self._is_quantized:
                raise errors.UnsupportedFeatureError("the model is quantized already")
            rounded = self.moved if precision == "fp32" else self.rounded[0]
            if rounded is None:
                raise errors.UnsupportedFeatureError("the model is too large to be changed in memory")
            self._draws.append(rounded)
            outputs = self._noise_of(self.plain, self._draws)
            min_independent = float(_FEW)
            for output in outputs:
                for noise in filter(None, (output.whole, *output.channels)):
                    if noise.rms > 0 and noise.size > 0:
                        min_independent = min(min_independent, noise.independent)
            if min_independent < _FEW:
                self._draws.extend(self._further_draws(math.ceil(_FEW / min_independent) - 1))
                outputs = self._noise_of(self.plain, self._draws)
        except errors.TrtopsError as exc:
            return NoiseLimits(precision=precision, why_not=str(exc)[:600].rstrip("."))
        report = compare_outputs(*without_own_nan(rounded, self.plain), self._useful_in_range(outputs))
        insufficient = tuple((output.name, "; ".join(output.reasons)) for output in report.bad)
        return NoiseLimits(
            precision=precision,
            times=self.times,
            outputs=outputs,
            insufficient=insufficient,
            useful_in=self._useful_in,
        )

    def _further_draws(self, count: int) -> Iterator[RunResults]:
        """Other rounding errors of the precision: up to ``count`` times those of quantized tensors, else few."""
        if self.precision in ("int8", "fp8"):
            random = np.random.default_rng(2)
            for _ in range(min(count, _MOST_DRAWS - 1)):
                yield self._quantized(random)
            return
        # Among few elements of a quantized model, a draw may move no value to the next step, which is more than all
        # other noise.
        for seed in range(2, 6 if self._useful_in != self.precision else 3):
            moved = moved_reference(self._watched, list(self.feeds), self.precision, seed=seed)
            if moved is not None:
                yield self._results(moved[0][1])

    @cached_property
    def _ranges(self) -> dict[str, npt.NDArray[np.float64]]:
        return output_ranges(self.model, next(iter(self.feeds)))

    def _noise_of(self, plain: RunResults, draws: Sequence[RunResults]) -> tuple[OutputNoise, ...]:
        join, elements = largest_noise, CHANNEL_ELEMENTS
        if self.precision in ("int8", "fp8"):
            # ONNX Runtime's engine is the first draw's model, apart from sums that round to another step.
            join, elements = (predicted_noise, 1) if self.build.backend == "onnxruntime" else (pooled_noise, elements)
        selected = frozenset[str]() if self._selections is None else self._selections.ranked
        noise = measure_noise(plain, draws, join, self._ranges, elements)
        return tuple(replace(output, selected=output.name in selected) for output in noise)

    @property
    def useful(self) -> Tolerances:
        """The largest useful errors of the precision, with the axes of classes."""
        return with_classes(useful_tolerances(self._useful_in), self.model, top1=self._useful_in in EIGHT_BITS)

    def _useful_in_range(self, outputs: Iterable[OutputNoise]) -> Tolerances:
        return useful_in_range(self.useful, outputs, self.precision)

    def tolerances(self, requested: Tolerances | None) -> Tolerances:
        """The given tolerances, else limits from noise, else the fixed ones of the precision."""
        if requested is None and self.noise.outputs:
            limits = self.noise.tolerances(self.useful)
        else:
            limits = tolerances_for(self.precision, requested, self.model)
        # Marked tensors become outputs of the engine that the model itself does not have.
        return replace(limits, allow_extra_outputs=limits.allow_extra_outputs or bool(self.build.mark))

    def tolerances_of(self, numbers: Sequence[int]) -> Tolerances:
        """The limits for some of the feeds, by number: the effect of rounding on these if larger than on all.

        An output of few elements needs no correlation: whether it varies as it should shows in all feeds together.
        """
        overall = self.tolerances(None)
        if not self.noise.outputs:
            return overall
        per_output = dict(overall.per_output)
        unlimited = Tolerances(atol=math.inf, rtol=math.inf)
        some: list[RunResults] = []
        for run in (self.plain, *self._draws):
            some.append(RunResults([("some feeds", [run[0][1][number] for number in numbers])]))
        for noise in self._noise_of(some[0], some[1:]):
            if noise.name in dict(self.noise.insufficient):
                continue
            output_tolerances = per_output[noise.name]
            some_limits = replace(self.noise, outputs=(noise,)).tolerances(unlimited).of(noise.name)
            looser: dict[str, Any] = {"min_correlation": -1.0, "min_cosine": -1.0, "min_top1_agreement": 0.0}
            for name, choose in (("atol", max), ("max_nrmse", max), ("min_agreement", min)):
                if getattr(output_tolerances, name) is not None and getattr(some_limits, name) is not None:
                    looser[name] = choose(getattr(output_tolerances, name), getattr(some_limits, name))
            per_output[noise.name] = replace(output_tolerances, channels=None, **looser)
        return replace(overall, per_output=per_output)

    def emulation(self, requested: Tolerances | None) -> Emulation | None:
        """The model in 16 bit, evaluated by the requested tolerances or useful ones; None if it does not run."""
        try:
            outputs, overflows = self.rounded
        except errors.TrtopsError as exc:
            log.warning("The model was not emulated in %s: %s", self.precision.upper(), exc)
            return None
        assert self.precision in ("fp16", "bf16")
        allowed = self._useful_in_range(self.noise.outputs) if requested is None else self.tolerances(requested)
        report = compare_outputs(*self.undefined(requested).comparable(outputs, self.aligned(self.golden)), allowed)
        return Emulation(precision=self.precision, report=report, overflows=overflows)


def noise_and_draws(right: RightModel) -> tuple[NoiseLimits, list[RunResults], list[RunResults]]:
    """Measure the noise of a right model; return the noise and its runs, for copies."""
    return right.noise, right._draws, right._drawn_keys


def _results_of(iterations: Sequence[Mapping[str, Any]], names: Iterable[str]) -> RunResults:
    """Some outputs of each feed as results."""
    results, names = RunResults(), list(names)
    results.add([subset(outputs, names) for outputs in iterations])
    return results
