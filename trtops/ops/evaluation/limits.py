"""Limits from the model's own noise, with fixed ones where it is not known.

The limits of an output are multiples of its root mean square error from rounding and of its largest error there, so
"good" means that an engine cannot be distinguished from rounding. Where the scales of channels differ, each channel has
its own limits, since the largest would hide the others.

What is useful in the precision (:func:`useful_tolerances`) bounds the limits. If rounding alone is above, the precision
does not suffice for the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.comparator.metrics import ChannelErrors
from trtops.comparator.report import ComparisonReport, OutputTolerances, Tolerances
from trtops.ops.evaluation.data import UNITS
from trtops.ops.evaluation.noise import MULTIPLES, ZERO, Noise, OutputNoise
from trtops.record import Record
from trtops.spec import Rounding
from trtops.tables import counted, listed

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

EIGHT_BITS = ("int8", "fp8")
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
        atol=ZERO,
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
    from trtops.backend.onnx.class_axes import class_axes

    top1_limit: dict[str, Any] = {"min_top1_agreement": 0.95} if top1 else {}
    per_output: dict[str, OutputTolerances] = {}
    for name, axis in class_axes(model.structure()).items():
        per_output[name] = OutputTolerances(class_axis=axis, **top1_limit)
    for name, output_tolerances in tolerances.per_output.items():
        if output_tolerances.class_axis is None and name in per_output:
            output_tolerances = replace(output_tolerances, class_axis=per_output[name].class_axis)
        per_output[name] = output_tolerances
    return replace(tolerances, per_output=per_output)


def useful_in_range(useful: Tolerances, outputs: Iterable[OutputNoise], precision: Rounding) -> Tolerances:
    """The largest useful errors, possibly units of an output's range."""
    per_output = dict(useful.per_output)
    for output in outputs:
        name, whole = output.name, output.whole
        if whole is not None and whole.size and whole.rms <= (unit := whole.unit_of_range(precision)) != 0:
            bounds: dict[str, Any] = {"atol": max(10 * unit, useful.atol), **_NOT_SIMILAR}
            bounds["max_nrmse"] = max(useful.max_nrmse, unit / whole.size)
            per_output[name] = replace(per_output.get(name, OutputTolerances()), **bounds)
    return replace(useful, per_output=per_output)


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
        too_noisy = dict(self.insufficient)
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
            largest, rms = np.maximum(channel_limits, lower_bound).T.tolist()
            limits["channels"] = ChannelErrors(axis=noise.channel_axis, max_abs=tuple(largest), rms=tuple(rms))
        return limits

    def _origin(self, report: ComparisonReport) -> str:
        """The origin of the deciding error's limit."""
        name, output = self.precision.upper(), report.decisive
        useful = f"what is useful in {(self.useful_in or self.precision).upper()}"
        margin = report.margin
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
            text += f", per channel in {counted(channels, 'output')}"
        return text
