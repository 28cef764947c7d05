"""Limits from the model's own noise: the effect of rounding on the right model and the evaluation's data.

The right model runs once more, without an engine: in 16 bit with every result rounded, in INT8 with Q/DQ pairs, and in
FP32 with weights and inputs moved by up to one rounding unit. The limits of an output are multiples of its root mean
square error and of its largest error there, so "good" means that an engine cannot be distinguished from rounding.
Where the scales of channels differ, each channel has its own limits, since the largest would hide the others.

What is useful in the precision (:func:`useful_tolerances`) bounds the limits. If rounding alone is above, the precision
does not suffice for the model.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.arrays import is_floating, to_numpy
from trtops.comparator.metrics import ChannelErrors
from trtops.comparator.metrics.rows import balanced_agreement
from trtops.comparator.report import (
    ComparisonReport,
    Outputs,
    OutputTolerances,
    Tolerances,
    compare_outputs,
    iterations_of,
)
from trtops.comparator.results import RunResults
from trtops.ops.evaluation.data import (
    UNITS,
    Emulation,
    Overflows,
    golden_outputs,
    moved_reference,
    root_mean_square,
    run_in_16_bit,
)
from trtops.ops.evaluation.output_ranges import output_ranges
from trtops.ops.evaluation.selections import Selections, find_selections
from trtops.ops.evaluation.undefined import NanRows, Undefined, find_undefined, without_own_nan
from trtops.record import Record
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Rounding, TensorRTOptions
from trtops.tables import listed

if TYPE_CHECKING:
    from trtops.backend.base import Feed
    from trtops.backend.onnx.model import Model

log = logging.getLogger(__name__)

# How many times the noise an engine's error may be, as a root mean square and for single elements. An engine rounds in
# other places and orders. For FP32 the noise is that of inputs and weights alone: sums are not emulated.
MULTIPLES: dict[Rounding, float] = {"fp32": 16.0, "tf32": 2.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0, "int8": 2.0}
_LARGEST_MULTIPLES: dict[Rounding, float] = {
    "fp32": 64.0, "tf32": 4.0, "fp16": 4.0, "bf16": 4.0, "fp8": 3.0, "int8": 3.0,
}  # fmt: skip
# TensorRT chooses algorithms with more roundings than are emulated. Its FP32 functions are less exact: nine layers of
# tanh had 18 times the noise (8.6 on an H100).
_TENSORRT, _TENSORRT_FP32 = 1.5, 3.0
# Its FP16 kernels may add up in FP16: sums of this many products double the variance of rounding inputs, weights and
# result. One rounding for each of K/16 partial sums, whose variance grows evenly, has K/32 times the variance of
# rounding the result. A convolution with K = 4608 had 6.8 times the noise (7.0 by this), a perceptron with 512 to 2048
# had 4.6 (4.0), a U-Net with 36 to 2304 had 4.1 (3.2).
_SUM_LENGTH = 96
# The error that is always allowed, in rounding units of the output's size. Nothing is rounded further than FP16 in
# operators that INT8 leaves out.
_UNITS_ALLOWED = {
    "fp32": 8 * UNITS["fp32"],
    **dict.fromkeys(("tf32", "fp16", "fp8", "int8"), UNITS["fp16"]),
    "bf16": UNITS["bf16"],
}
_EIGHT_BITS = ("int8", "fp8")
# The allowed error of an output of zeros.
_ZERO = 1e-9
# Channels have their own limits if the ratio of the largest to the smallest root mean square is above this ...
_SCALES_DIFFER = 30.0
# ... with at least this number of elements in each, unless the engine's errors are predicted, and at most this number
# of channels.
_CHANNEL_ELEMENTS = 16
_MOST_CHANNELS = 1024
# A single draw of the noise scatters too much below this number of independent elements. In INT8, more are drawn until
# all together have as many.
_FEW = 256
_MOST_DRAWS = 8
# Where the engine's own errors are known, a sum may still round to another step. These change less than all errors.
_OTHERWISE = 1.5
# Elements that are in memory as FP64 at a time, since all may be many times as large as the model's own data.
_PIECE = 1 << 20
# Larger values stand for infinity. 16 bit clamps them, so they are left out.
STANDS_FOR_INFINITY = 1e9
_FP32_USEFUL = 1e-3
# If rounding is useful, by little or by much, an engine may have an error above what is useful by this factor, and be
# this similar to the golden output: errors within a multiple of useful noise do not imply more.
_ABOVE_USEFUL = 1.25
_SIMILAR = {"min_cosine": 0.95, "min_correlation": 0.5}
# Errors within the precision's unit of an output's range are useful, but may be larger than how the output varies.
_NOT_SIMILAR = {"min_cosine": -1.0, "min_correlation": -1.0, "min_top1_agreement": 0.0}


def default_tolerances(precision: Rounding) -> Tolerances:
    """The fixed tolerances of a precision, for outputs of unknown noise.

    All are relative to the output's own scale. In every precision the output must vary as the golden one does (a
    constant or shuffled one never passes), and nearly all integers and booleans must be equal.
    """
    if precision in ("int8", "fp8"):
        # These change single values by more than any useful tolerance. The output as a whole is evaluated instead: its
        # direction and its length.
        whole = {"min_cosine": 0.99, "max_nrmse": 0.2, "min_correlation": 0.9, "min_agreement": 0.9}
        return Tolerances(atol=math.inf, rtol=math.inf, **whole, clamped_equal=True)
    # FP16 and TF32 round each value to 11 bits, BF16 to 8, and about twenty such roundings are allowed.
    bound = {"fp32": 1e-5, "tf32": 20 * 2.0**-11, "fp16": 20 * 2.0**-11, "bf16": 20 * 2.0**-8}[precision]
    return Tolerances(
        atol=_ZERO,
        rtol=bound,
        atol_of_scale=bound,
        max_nrmse=bound,
        min_correlation=0.99 if precision == "fp32" else 0.9,
        min_agreement=0.999 if precision == "fp32" else 0.95,
        clamped_equal=True,
    )


def useful_tolerances(precision: Rounding) -> Tolerances:
    """The largest useful errors of an engine of a precision.

    They are the fixed tolerances, with more for FP32 and for single elements: a steep function, such as the sigmoid at
    the end of a sharp map, multiplies rounding by hundreds.
    """
    fixed = default_tolerances(precision)
    if math.isinf(fixed.atol):
        return fixed
    whole = _FP32_USEFUL if precision == "fp32" else fixed.max_nrmse
    bounds: dict[str, Any] = {"rtol": whole, "atol_of_scale": 10 * whole, "max_nrmse": whole}
    return replace(fixed, **bounds)


def tolerances_for(precision: Rounding, requested: Tolerances | None, model: Model | None = None) -> Tolerances:
    """The given tolerances, or else :func:`default_tolerances`, with the axis of classes of each output of scores.

    Use :class:`RightModel` where the model and its data are at hand.
    """
    if model is None:
        return default_tolerances(precision) if requested is None else requested
    if requested is not None:
        return with_classes(requested, model)
    from trtops.backend.onnx.quantize import is_quantized

    if is_quantized(model.structure()):
        precision = "int8"  # rounding moves values to the next step
    return with_classes(default_tolerances(precision), model, top1=precision in ("int8", "fp8"))


def with_classes(tolerances: Tolerances, model: Model, *, top1: bool = False) -> Tolerances:
    """Tolerances with the axis of classes of each output of scores; with ``top1`` the best ones must agree."""
    from trtops.backend.onnx.model import class_axes

    top1_limit: dict[str, Any] = {"min_top1_agreement": 0.95} if top1 else {}
    per_output = {
        name: OutputTolerances(class_axis=axis, **top1_limit) for name, axis in class_axes(model.structure()).items()
    }
    for name, output_tolerances in tolerances.per_output.items():
        if output_tolerances.class_axis is None and name in per_output:
            output_tolerances = replace(output_tolerances, class_axis=per_output[name].class_axis)
        per_output[name] = output_tolerances
    return replace(tolerances, per_output=per_output)


@dataclass(frozen=True, kw_only=True)
class Noise(Record):
    """Errors of rounding, of an output or one of its channels, in the output's own unit."""

    size: float  # root mean square of the right values
    scale: float  # largest right magnitude
    rms: float  # root mean square of the errors
    largest: float
    independent: float  # number of errors of equal size with the same fourth moment; 0 without any error
    draws: int = 1  # how often the errors were drawn; `rms` is of all draws
    predicted: float | None = None  # root mean square of the first draw, if the engine is expected to round the same
    range: float = 0.0  # the width of the values that the graph allows, such as 1 behind a sigmoid; 0 if unknown

    def unit_of_range(self, precision: Rounding) -> float:
        """The error of an output rounded to a precision relative to its range, at least that of FP32."""
        return max(UNITS[precision], _UNITS_ALLOWED["fp32"]) * self.range

    def is_lost(self, precision: Rounding) -> bool:
        """Whether rounding alone hides a value of zero instead of the right ones.

        An error below the precision's unit of the range loses nothing: the right values stay near zero on this data.
        """
        return 0 < self.size <= MULTIPLES["int8"] * self.rms and self.rms > self.unit_of_range(precision)

    def rms_limit(self, precision: Rounding, times: float = 1.0) -> float:
        """The largest root mean square error from rounding; more if few elements determine it.

        ``times`` multiplies the noise.
        """
        if self.predicted is not None:
            noise = max(MULTIPLES[precision] * self.predicted, _OTHERWISE * self.rms)
        else:
            few, in_all = (
                1 + 3 / math.sqrt(2 * count) if count else 1.0
                for count in (self.independent, self.draws * self.independent)
            )
            noise = max(MULTIPLES[precision] * in_all, few) * self.rms
        return max(times * noise, _UNITS_ALLOWED[precision] * self.size, self.unit_of_range("fp32")) or _ZERO

    def largest_limit(self, precision: Rounding, times: float = 1.0) -> float:
        """The largest error of an element from rounding."""
        limit = max(times * _LARGEST_MULTIPLES[precision] * self.largest, 2 * self.rms_limit(precision, times))
        return max(limit, _UNITS_ALLOWED[precision] * self.scale) or _ZERO


@dataclass(frozen=True, kw_only=True)
class OutputNoise(Record):
    """What rounding does to one output."""

    name: str
    whole: Noise | None = None  # None for an output that does not hold floating-point numbers
    equal: float | None = None  # share of equal values, as the metric `agreement`; None for floating point
    counted: int = 0  # values that the smaller of the two parts of this share has
    selected: bool = False  # whether a selection orders them: then all that ties do not explain must be equal
    channel_axis: int | None = None  # if the scales of channels along it differ
    channels: tuple[Noise, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NoiseLimits(Record):
    """What rounding to a precision does to the right model: tolerances are derived from it."""

    precision: Rounding
    times: float = 1.0  # the back end's factor on the noise
    outputs: tuple[OutputNoise, ...] = ()
    # By output for which rounding alone exceeds what is useful in the precision: how.
    insufficient: tuple[tuple[str, str], ...] = ()
    why_not: str = ""  # why nothing was measured; fixed tolerances count then
    useful_in: Rounding | None = None  # whose useful errors bound the limits; by default the precision

    def tolerances(self, base: Tolerances) -> Tolerances:
        """Tolerances with limits for each output of known noise, none of them far above those of ``base``."""
        per_output = dict(base.per_output)
        too_noisy = {name for name, _ in self.insufficient}
        for noise in self.outputs:
            if noise.name not in too_noisy:
                output_tolerances = per_output.get(noise.name, OutputTolerances())
                per_output[noise.name] = replace(output_tolerances, **self._limits(noise, base))
        return replace(base, per_output=per_output)

    def _limits(self, noise: OutputNoise, base: Tolerances) -> dict[str, Any]:
        if noise.equal is not None:
            # Twice as many may differ, and three where none or few did.
            share = 1 - 2 * (1 - noise.equal) - (0 if noise.selected else 3 / max(noise.counted, 1))
            return {"min_agreement": max(share, base.min_agreement or 0.0)}
        whole, scaled = noise.whole, (self.precision, self.times)
        assert whole is not None
        # The useful tolerances bound an element by a share of the scale; they do not bound one in INT8.
        useful = math.inf if math.isinf(base.atol) else max(base.atol, (base.atol_of_scale or 0.0) * whole.scale)
        in_range = whole.unit_of_range(self.precision)
        limits: dict[str, Any] = {
            "atol": min(whole.largest_limit(*scaled), _ABOVE_USEFUL * max(useful, in_range)),
            "rtol": 0.0,
            "atol_of_scale": 0.0,
            **{name: lower_bound for name, lower_bound in _SIMILAR.items() if getattr(base, name) is not None},
        }
        if whole.size > 0:
            useful = _ABOVE_USEFUL * max(base.max_nrmse or math.inf, in_range / whole.size)
            limits["max_nrmse"] = min(whole.rms_limit(*scaled) / whole.size, useful)
        if whole.rms <= in_range and whole.range:
            limits |= _NOT_SIMILAR
        if noise.channel_axis is not None:
            # Functions are computed to a unit of FP32 of what they may return, not of saturated values of a channel.
            # A channel of zeros has no scale of its own.
            lower_bound, whole_limit = UNITS["fp32"] * whole.scale, whole.largest_limit(*scaled)
            channel_limits = []
            for channel in noise.channels:
                limit = channel.rms_limit(*scaled) if channel.size else whole_limit
                # An engine that is better than rounding may still be good.
                limit = channel.size / MULTIPLES["int8"] if channel.is_lost(self.precision) else limit
                channel_limits.append((channel.largest_limit(*scaled) if channel.size else whole_limit, limit))
            largest, rms = (tuple(max(limit, lower_bound) for limit in column) for column in zip(*channel_limits))
            limits["channels"] = ChannelErrors(axis=noise.channel_axis, max_abs=largest, rms=rms)
        return limits

    def _origin(self, report: ComparisonReport) -> str:
        """The origin of the deciding error's limit."""
        name, output = self.precision.upper(), report.decisive
        useful = f"what is useful in {(self.useful_in or self.precision).upper()}"
        margin = None if output is None else output.margin(report.tolerances)
        if output is None or margin is None:
            return f"those of {name}'s rounding of the model on this data"
        if output.name in dict(self.insufficient):
            return f"{useful}, since rounding alone exceeds it in `{output.name}`"
        noise = next((noise for noise in self.outputs if noise.name == output.name), None)
        if noise is not None and noise.equal is not None and margin.label == "share of equal values":
            if margin.limit > 1.001 - 2 * (1 - noise.equal) - 3 / max(noise.counted, 1):
                return f"a fixed one of {name}, since its rounding of the model on this data changes less"
            return (
                f"twice the share of values that {name}'s rounding changes ({1 - noise.equal:.3g}), and 3 values more"
            )
        group = None if noise is None else noise.whole
        if noise is not None and (channel := re.match(r"channel (\d+): ", margin.label)):
            group = noise.channels[int(channel[1])]
        label = margin.label.rpartition(": ")[2]
        if group is None or label not in ("max abs", "RMS", "relative"):
            return f"fixed ones of {name}"
        largest = label == "max abs"
        limit_of, error = (Noise.largest_limit, group.largest) if largest else (Noise.rms_limit, group.rms)
        limit, scaled = margin.limit * (group.size if label == "relative" else 1.0), (self.precision, self.times)
        if not math.isfinite(error):
            return f"{useful}, since its rounding of the model gives infinity or NaN"
        if not group.scale:
            return f"a fixed one of {name} for outputs of zeros"
        if limit < 0.999 * limit_of(group, *scaled):
            return f"{useful}, which is less than its rounding of the model on this data allows"
        if limit > 1.001 * limit_of(group, *scaled) or limit_of(replace(group, rms=0.0, largest=0.0), *scaled) >= limit:
            return f"a fixed one of {name}, since its rounding of the model on this data changes less"
        shown = f"largest error {error:.3g}" if largest else f"relative error {error / group.size:.3g}"
        return f"{limit / error:.3g} times {name}'s rounding of the model on this data ({shown})"

    def reasons(self, report: ComparisonReport) -> tuple[str, ...]:
        """Why bad outputs cannot be better in this precision, one sentence each."""
        bad = {output.name for output in report.bad}
        name = self.precision.upper()
        return tuple(
            f"{output}: {name} does not suffice for this model on this data; of rounding alone, {explanation}"
            for output, explanation in (*self.insufficient, *self.lost)
            if output in bad
        )

    @property
    def lost(self) -> tuple[tuple[str, str], ...]:
        """By output with channels lost to rounding alone: the explanation."""
        described = []
        for output in self.outputs:
            numbers = [str(n) for n, channel in enumerate(output.channels) if channel.is_lost(self.precision)]
            if numbers:
                described.append((output.name, f"nothing is left of channel {listed(numbers, 3)}"))
        return tuple(described)

    def sentence(self, report: ComparisonReport) -> str:
        """The origin of the deciding limit, in part of a line."""
        name = self.precision.upper()
        if self.why_not:
            return f"fixed ones of {name}, since its noise was not measured ({self.why_not})"
        text = self._origin(report)
        channels = sum(output.channel_axis is not None for output in self.outputs)
        if channels:
            text += f", per channel in {channels} outputs"
        return text


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
        if rounding in _EIGHT_BITS and isinstance(options, TensorRTOptions) and self._is_quantized:
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
        if self.precision == "fp32" or (self.precision in _EIGHT_BITS and self._is_quantized):
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
            keys = [{name: arrays[name] for name in self._selections.keys} for arrays in iterations]
            self._drawn_keys.append(_results_of(keys))
            iterations = self._selections.align(iterations, self._tied_widths, rounded=True)
        return _results_of([{name: arrays[name] for name in self.plain[0][1][0]} for arrays in iterations])

    @property
    def _tied_widths(self) -> dict[str, float]:
        """The largest difference of candidates exchangeable by rounding, by the keys of their ranking."""
        assert self._selections is not None
        if not self._drawn_keys or not self._selections.keys:
            return {}
        golden = [{name: arrays[name] for name in self._selections.keys} for arrays in self._selections.golden]
        noise = _noise_of(_results_of(golden), self._drawn_keys, _largest)
        return {
            keys.name: keys.whole.largest_limit(self.precision, self.times) for keys in noise if keys.whole is not None
        }

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
            if precision in ("fp32", *_EIGHT_BITS) and self._is_quantized:
                raise errors.UnsupportedFeatureError("the model is quantized already")
            rounded = self.moved if precision == "fp32" else self.rounded[0]
            if rounded is None:
                raise errors.UnsupportedFeatureError("the model is too large to be changed in memory")
            self._draws.append(rounded)
            outputs = self._noise_of(self.plain, self._draws)
            groups = [noise for output in outputs for noise in (output.whole, *output.channels) if noise is not None]
            min_independent = min(
                (noise.independent for noise in groups if noise.rms > 0 and noise.size > 0), default=_FEW
            )
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
            yield from (self._quantized(random) for _ in range(min(count, _MOST_DRAWS - 1)))
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
        join, elements = _largest, _CHANNEL_ELEMENTS
        if self.precision in ("int8", "fp8"):
            # ONNX Runtime's engine is the first draw's model, apart from sums that round to another step.
            join, elements = (_predicted, 1) if self.build.backend == "onnxruntime" else (_pooled, elements)
        selected = frozenset[str]() if self._selections is None else self._selections.ranked
        noise = _noise_of(plain, draws, join, self._ranges, elements)
        return tuple(replace(output, selected=output.name in selected) for output in noise)

    @property
    def useful(self) -> Tolerances:
        """The largest useful errors of the precision, with the axes of classes."""
        return with_classes(useful_tolerances(self._useful_in), self.model, top1=self._useful_in in _EIGHT_BITS)

    def _useful_in_range(self, outputs: Iterable[OutputNoise]) -> Tolerances:
        """The largest useful errors, possibly units of an output's range."""
        useful = self.useful
        per_output = dict(useful.per_output)
        for name, whole in ((output.name, output.whole) for output in outputs):
            if whole is not None and whole.size and whole.rms <= (unit := whole.unit_of_range(self.precision)) != 0:
                bounds: dict[str, Any] = {"atol": max(10 * unit, useful.atol), **_NOT_SIMILAR}
                bounds["max_nrmse"] = max(useful.max_nrmse, unit / whole.size)
                per_output[name] = replace(per_output.get(name, OutputTolerances()), **bounds)
        return replace(useful, per_output=per_output)

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
        runs = [run[0][1] for run in (self.plain, *self._draws)]
        some = [RunResults([("some feeds", [iterations[number] for number in numbers])]) for iterations in runs]
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


def _results_of(iterations: Sequence[Mapping[str, Any]]) -> RunResults:
    results = RunResults()
    results.add([dict(arrays) for arrays in iterations])
    return results


def _noise_of(
    plain: RunResults,
    draws: Sequence[RunResults],
    join: Callable[[Sequence[Noise]], Noise],
    ranges: Mapping[str, npt.NDArray[Any]] = MappingProxyType({}),
    channel_elements: int = _CHANNEL_ELEMENTS,
) -> tuple[OutputNoise, ...]:
    """The noise of each output of fixed shape, joined from that in each draw.

    ``ranges`` are those of :func:`output_ranges`. Channels with fewer elements have no noise of their own.
    """
    noises = []
    for name in plain[0][1][0]:
        try:
            right, *moved = ([to_numpy(a[name], "The output") for a in run[0][1]] for run in (plain, *draws))
        except errors.ComparisonError:  # maps, and sequences of tensors of other shapes
            continue
        if any([a.shape for a in draw] != [a.shape for a in right] for draw in moved):
            continue
        if right[0].dtype.kind in "iubOSU":
            shares = [balanced_agreement(list(zip(draw, right))) for draw in moved]
            agreements = [share for share in shares if share is not None]
            if agreements:
                noises.append(OutputNoise(name=name, equal=min(agreements), counted=_counted(right)))
        elif is_floating(right[0]):
            axis = _channel_axis(right, channel_elements)
            [whole] = _join_draws(right, moved, None, ranges.get(name), join)
            channels = () if axis is None else _join_draws(right, moved, axis, ranges.get(name), join)
            noises.append(OutputNoise(name=name, whole=whole, channel_axis=axis, channels=channels))
    return tuple(noises)


def _join_draws(
    right: Sequence[npt.NDArray[Any]],
    moved: Sequence[Sequence[npt.NDArray[Any]]],
    axis: int | None,
    ranges: npt.NDArray[Any] | None,
    join: Callable[[Sequence[Noise]], Noise],
) -> tuple[Noise, ...]:
    """The noise in all draws, of each channel along an axis or of all numbers."""
    parts = zip(*(_measure(right, draw, axis) for draw in moved))
    widths = [0.0] * (1 if axis is None else right[0].shape[axis])
    if ranges is not None and (axis is None or ranges.shape[axis] == len(widths)):
        rows = ranges.reshape(1, -1) if axis is None else np.moveaxis(ranges, axis, 0)
        widths = [root_mean_square(row) for row in rows]
    return tuple(replace(join(part), range=width) for part, width in zip(parts, widths))


def _pieces(arrays: Sequence[npt.NDArray[Any]], axis: int | None) -> Iterator[npt.NDArray[np.float64]]:
    """All numbers, ``(channels, elements)``, or ``(1, elements)`` without an axis, about a million at a time."""
    for array in arrays:
        rows = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        width = max(1, _PIECE // max(1, len(rows)))
        for start in range(0, rows.shape[1], width):
            yield rows[:, start : start + width].astype(np.float64)


def _counted(right: Sequence[npt.NDArray[Any]]) -> int:
    """The number of values in the smaller part of :func:`balanced_agreement`."""
    values = np.concatenate([array.ravel() for array in right])
    _, counts = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_counts=True)
    largest = int(counts.max())
    return values.size if 2 * largest < values.size or largest == values.size else values.size - largest


def _channel_axis(right: Sequence[npt.NDArray[Any]], elements: int) -> int | None:
    """The second axis or the last one, whichever has channels of more different scales; None if neither has.

    The last axis of images is one of pixels.
    """
    ratios = {}
    for axis in dict.fromkeys((1, 2 if right[0].ndim == 3 else 1)):
        if axis < 1 or len({array.shape[axis] for array in right if array.ndim > axis}) != 1:
            continue
        channels = right[0].shape[axis]
        if 1 < channels <= _MOST_CHANNELS and sum(array.size for array in right) >= elements * channels:
            squares = np.zeros(channels)
            for rows in _pieces(right, axis):
                rows[~np.isfinite(rows) | (np.abs(rows) >= STANDS_FOR_INFINITY)] = 0
                squares += np.square(rows).sum(axis=1)
            sizes = np.sqrt(squares[squares > 0])
            ratios[axis] = float(sizes.max() / sizes.min()) if sizes.size else 0.0
    if not ratios:
        return None
    axis = max(ratios, key=ratios.__getitem__)
    return axis if ratios[axis] > _SCALES_DIFFER else None


def _measure(
    right: Sequence[npt.NDArray[Any]], moved: Sequence[npt.NDArray[Any]], axis: int | None = None
) -> list[Noise]:
    """The noise of all numbers together, or of each channel along an axis."""
    count, squares, scale, rms, fourth, largest = np.zeros((6, 1 if axis is None else right[0].shape[axis]))
    for values, others in zip(_pieces(right, axis), _pieces(moved, axis)):
        ignored = ~np.isfinite(values) | (np.abs(values) >= STANDS_FOR_INFINITY)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.nan_to_num(np.abs(others - values), copy=False, nan=math.inf, posinf=math.inf)
            values[ignored] = error[ignored] = 0
            count += (~ignored).sum(axis=1)
            scale = np.maximum(scale, np.abs(values).max(axis=1))
            largest = np.maximum(largest, error.max(axis=1))
            squares += np.square(values, out=values).sum(axis=1)
            rms += np.square(error, out=error).sum(axis=1)
            fourth += np.square(error, out=error).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        independent = np.where(np.isinf(largest), 1.0, np.where(fourth > 0, rms**2 / fourth, 0.0))
        columns = np.sqrt(squares / np.maximum(count, 1)), scale, np.sqrt(rms / np.maximum(count, 1)), largest
    return [
        Noise(size=row[0], scale=row[1], rms=row[2], largest=row[3], independent=row[4])
        for row in np.stack([*columns, independent], axis=1).tolist()
    ]


def _largest(draws: Sequence[Noise]) -> Noise:
    worst = max(draws, key=lambda noise: noise.rms)
    return replace(worst, largest=max(noise.largest for noise in draws))


def _pooled(draws: Sequence[Noise]) -> Noise:
    """The noise of several draws of the same distribution."""
    return replace(
        _largest(draws),
        rms=math.sqrt(sum(noise.rms**2 for noise in draws) / len(draws)),
        independent=sum(noise.independent for noise in draws) / len(draws),
        draws=len(draws),
    )


def _predicted(draws: Sequence[Noise]) -> Noise:
    return replace(_pooled(draws), predicted=draws[0].rms)
