"""How wide an output's noise is: by how much sound engines of one model may differ.

An engine rounds: each kernel in its own order, each precision to its own unit. So two sound engines differ, and by how much
follows from the model. It is measured: the reference runs once more with every weight and every input moved at random by
up to one rounding unit of the precision, and the outputs' change, as a root mean square, is what rounding does here. To it
comes what the accepted engine is away from the reference, which the team has accepted, and what its outputs differ by from
run to run. The three are independent, so their squares add up; and no width is below one unit of the output's own size.

A *distance in widths* is a root mean square of a difference of outputs, divided by that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtops.backend.base import Feed
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import is_large
from trtops.comparator.results import RunResults
from trtops.ops.judging.judgement import collect
from trtops.record import Record
from trtops.spec import Precision

UNITS: dict[Precision, float] = {"fp32": 2.0**-23, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4, "int8": 1 / 254}
"""The rounding error of each precision: of floating-point numbers relative to the number, of INT8 to the largest of its tensor.

Half a step; of FP32 a whole one, since weights that are FP32 themselves cannot be moved by less.
"""


@dataclass(frozen=True, kw_only=True)
class OutputWidth(Record):
    """One output's noise, and how far the candidate is; all as root mean squares in the output's own unit.

    Attributes:
        name: The output.
        width: Its noise width.
        rounding: The part that rounding adds; 0 where the model cannot be moved.
        accepted_error: The part that the accepted engine is away from the reference.
        run_to_run: The part that differs from run to run of the accepted engine.
        unit: One rounding unit of the output's size, below which no width is.
        candidate_error: What the candidate is away from the reference.
        distance: What the candidate is away from the accepted engine; NaN and infinite values count as infinitely far.
    """

    name: str
    width: float
    rounding: float
    accepted_error: float
    run_to_run: float
    unit: float
    candidate_error: float
    distance: float

    @property
    def distance_widths(self) -> float:
        """The distance from the accepted outputs, in widths."""
        return _in_widths(self.distance, self.width)

    @property
    def growth_widths(self) -> float:
        """How much further from the reference than the accepted engine it is, in widths; negative if it is nearer."""
        growth = self.candidate_error - self.accepted_error
        return _in_widths(growth, self.width) if not math.isnan(growth) else math.inf


@dataclass(frozen=True)
class Seen:
    """The outputs that widths are made of; each has as many iterations as there are feeds.

    Attributes:
        candidate: Of the candidate.
        accepted: Of the accepted engine.
        again: Of the accepted engine, run once more.
        golden: What the candidate should say.
        accepted_golden: What the accepted engine should say: other numbers, if it was built from another model. None if that
            cannot be known; it then counts as being as exact as the candidate.
        plain: Of the candidate's reference.
        moved: Of the same with weights and inputs moved; None if that cannot be done.
    """

    candidate: RunResults
    accepted: RunResults
    again: RunResults
    golden: RunResults
    accepted_golden: RunResults | None
    plain: RunResults
    moved: RunResults | None


def measure_widths(seen: Seen, precision: Precision) -> tuple[OutputWidth, ...]:
    """The widths of all outputs of numbers that all of the results have, in the same shapes."""
    runs = (seen.candidate, seen.accepted, seen.again, seen.golden, seen.plain)
    found = []
    for name in _outputs_by_iteration(seen.candidate)[0]:
        columns = [_all_numbers(run, name) for run in runs]
        if any(column is None or column.shape != columns[0].shape for column in columns):  # type: ignore[union-attr]
            continue
        mine, theirs, repeated, right, plain = (np.asarray(column) for column in columns)
        moved = None if seen.moved is None else _all_numbers(seen.moved, name)
        rounding = 0.0 if moved is None or moved.shape != plain.shape else _root_mean_square(moved - plain)
        own = None if seen.accepted_golden is None else _all_numbers(seen.accepted_golden, name)
        candidate_error, noise = _root_mean_square(mine - right), _root_mean_square(repeated - theirs) / math.sqrt(2)
        accepted_error = (
            candidate_error if own is None or own.shape != theirs.shape else _root_mean_square(theirs - own)
        )
        least = UNITS[precision] * _root_mean_square(right)
        width = OutputWidth(
            name=name,
            width=max(math.sqrt(rounding**2 + accepted_error**2 + noise**2), least),
            rounding=rounding,
            accepted_error=accepted_error,
            run_to_run=noise,
            unit=least,
            candidate_error=candidate_error,
            distance=_root_mean_square(mine - theirs),
        )
        found.append(width)
    return tuple(found)


def moved_reference(model: Model, feeds: Sequence[Feed], precision: Precision, *, seed: int = 1) -> RunResults | None:
    """What the reference says when weights and inputs are moved at random by up to one rounding unit of a precision.

    Returns:
        Its outputs for each feed; None for models too large to be changed in memory, and where nothing can be moved.
    """
    proto = model.proto()
    if is_large(proto):
        return None
    random = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(_moved_array(array, precision, random), tensor.name))
    inputs = [
        {name: _moved_array(np.asarray(array), precision, random) for name, array in feed.items()} for feed in feeds
    ]
    with reference_runner(Model.from_proto(proto, model.name)) as runner:
        return collect(runner, inputs)


def _moved_array(array: npt.NDArray[Any], precision: Precision, random: np.random.Generator) -> npt.NDArray[Any]:
    """An array of floating-point numbers moved; any other as it is."""
    if array.dtype.kind != "f" or not array.size:
        return array
    unit = UNITS[precision]
    step = unit * float(np.max(np.abs(array), initial=0.0)) if precision == "int8" else unit * np.abs(array)
    return (array + random.uniform(-1, 1, array.shape) * step).astype(array.dtype)


def _outputs_by_iteration(results: RunResults) -> list[Mapping[str, Any]]:
    return list(results[0][1])


def _all_numbers(results: RunResults, name: str) -> npt.NDArray[np.float64] | None:
    """All of an output's numbers; None if it is missing somewhere, or does not hold numbers."""
    run = _outputs_by_iteration(results)
    if any(name not in iteration for iteration in run):
        return None
    arrays = [np.asarray(iteration[name]) for iteration in run]
    if any(array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16" for array in arrays):
        return None
    return np.concatenate([array.astype(np.float64).ravel() for array in arrays])


def _root_mean_square(difference: npt.NDArray[np.float64]) -> float:
    """Root mean square; infinite if an element is NaN or infinite, 0 without elements."""
    if not difference.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        value = float(np.sqrt(np.mean(np.square(difference))))
    return value if math.isfinite(value) else math.inf


def _in_widths(value: float, width: float) -> float:
    if width > 0:
        return value / width if math.isfinite(width) else (0.0 if math.isfinite(value) else math.inf)
    return 0.0 if value <= 0 else math.inf
