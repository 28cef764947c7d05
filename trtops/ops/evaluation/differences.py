"""Differences between two results of one engine: which are rounding, and which the model has itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.runner import BaseRunner, Feed
from trtops.comparator.arrays import Array, copied, is_floating
from trtops.ops.evaluation.batch_rows import Outputs, Result, same_profile
from trtops.ops.evaluation.data import UNITS
from trtops.record import Record
from trtops.spec import Rounding

RelationName: TypeAlias = Literal[
    "equal rows", "permuted rows", "batch size", "other inputs", "shape order", "buffer contents", "repeated inference",
    "two contexts",
]  # fmt: skip
_STATEMENTS: dict[RelationName, str] = {
    "equal rows": "equal rows of a batch have different results",
    "permuted rows": "rows in another order have different results",
    "batch size": "rows have different results in batches of different size",
    "other inputs": "other inputs have the same results",
    "shape order": "the results change after an inference of a larger shape",
    "buffer contents": "the results change with the inputs of the inference before",
    "repeated inference": "the same inputs have different results",
    "two contexts": "two contexts that infer at once have other results than one",
}

# Rounding units of an output's scale by which results may differ: of the same shape, and of another one.
_SAME_SHAPE, _OTHER_SHAPE = 4.0, 16.0
# Inputs are moved by this number of rounding units to measure how much a model amplifies errors, and differences may be
# this many times as large as the effect.
_NUDGE, _TIMES = 4.0, 4.0
# A model breaks a relation itself if its own difference is at least this share of the engine's.
_OWN_SHARE = 1 / 64
# A channel's scale is at most this many times its own largest value, however large the others are.
_CHANNELS = 30.0


@dataclass(frozen=True, kw_only=True)
class Relation(Record):
    """One relation: its outcome, and its largest difference with the allowed one."""

    name: RelationName
    outcome: Literal["held", "broken", "skipped"]
    output: str = ""
    largest: float = 0.0  # of all elements the one with the largest difference relative to its allowance
    allowed: float = 0.0
    detail: str = ""  # why it is skipped, or what fails

    def reason(self) -> str:
        """The broken relation with its numbers."""
        text = f"self-check: {_STATEMENTS[self.name]}"
        if self.detail:
            return f"{text}: {self.detail}"
        if self.name == "other inputs":
            return f"{text}: `{self.output}` is equal, and differs by {self.largest:.3g} in the model"
        return f"{text}: `{self.output}` differs by {self.largest:.3g}, {self.allowed:.3g} is allowed"

    def rank(self, outcomes: str) -> tuple[int, float]:
        """Sort key: the place of the outcome among names, and the difference relative to its allowance."""
        ratio = self.largest / self.allowed if self.allowed else math.inf if self.largest else 0.0
        return outcomes.split().index(self.outcome), ratio


def skipped(name: RelationName, reason: str) -> Relation:
    """Return an unchecked relation."""
    return Relation(name=name, outcome="skipped", detail=reason)


def worst(findings: Iterable[Relation], default: Relation) -> Relation:
    """Return the worst finding of a relation; it is skipped only if it is skipped for each output."""
    by_output: dict[str, Relation] = {}
    for finding in findings:
        candidates = by_output.get(finding.output, finding), finding
        by_output[finding.output] = max(candidates, key=lambda candidate: candidate.rank("held skipped broken"))
    return max(by_output.values(), key=lambda finding: finding.rank("skipped held broken"), default=default)


class OwnResults:
    """A model's own results, which decide about large differences of an engine.

    The runner is activated on its first use; ``close`` deactivates it then.
    """

    def __init__(self, runner: BaseRunner, precision: Rounding) -> None:
        self.inferences = 0
        self._runner = runner
        self._unit = UNITS[precision]
        self._opened = contextlib.ExitStack()
        self._outputs: dict[tuple[int, float], tuple[Feed, Outputs]] = {}  # with the feed, so that its id stays

    def __enter__(self) -> OwnResults:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def outputs(self, feed: Feed, step: float = 0.0) -> Outputs:
        """Return the results for a feed; floating-point values move at random by up to a relative step."""
        if (id(feed), step) not in self._outputs:
            moved = dict(feed)
            if step:
                random = np.random.default_rng(1)
                for name, array in feed.items():
                    moved[name] = multiplied(array, 1 + step * random.uniform(-1, 1, array.shape))
            self._outputs[id(feed), step] = feed, self._infer(moved)
        return self._outputs[id(feed), step][1]

    def _infer(self, feed: Feed) -> Outputs:
        if not self._runner.is_active:
            self._opened.enter_context(self._runner)
        self.inferences += 1
        return copied(self._runner.infer(feed))

    def holds(self, expected: Result, actual: Result) -> bool:
        """Whether results differ by rounding alone, without regard to the model."""
        return all(largest <= allowed for _, largest, allowed in self._differences(expected, actual))

    def compare(self, name: RelationName, expected: Result, actual: Result) -> Iterator[Relation]:
        """Compare results output by output; the model decides on large differences."""
        for output, largest, allowed in self._differences(expected, actual):
            relation = Relation(name=name, outcome="held", output=output, largest=largest, allowed=allowed)
            if largest > allowed:
                relation = self._decide(replace(relation, outcome="broken"), expected, actual)
            yield relation

    def _differences(self, expected: Result, actual: Result) -> Iterator[tuple[str, float, float]]:
        for output, first, second in pairs(expected, actual):
            yield output, *difference(first, second, self._allowed_units(expected, actual))

    def _allowed_units(self, expected: Result, actual: Result) -> float:
        return (_SAME_SHAPE if shapes_of(expected.feed) == shapes_of(actual.feed) else _OTHER_SHAPE) * self._unit

    def _decide(self, relation: Relation, expected: Result, actual: Result) -> Relation:
        """Compare a difference with the model's own in the same relation, and with the effect of rounding errors."""
        output, same_feed = relation.output, expected.feed is actual.feed
        try:
            model_outputs = self.outputs(expected.feed)
            # Three times, since random numbers may be equal by chance.
            repeated_outputs = [self._infer(actual.feed) for _ in range(3 if same_feed else 1)]
            moved = self.outputs(expected.feed, _NUDGE * self._unit)
        except errors.TrtopsError as exc:
            return replace(relation, outcome="skipped", detail=f"the model does not run on the inputs: {exc}"[:300])
        if output not in model_outputs:  # a marked tensor
            return replace(relation, outcome="skipped", detail=f"the model has no output `{output}`")
        largest = 0.0
        before = expected._replace(outputs=model_outputs)
        for outputs in repeated_outputs:
            pair = _pair(before, actual._replace(outputs=outputs), output)
            model_error, allowed = (0.0, 0.0) if pair is None else difference(*pair, _OTHER_SHAPE * UNITS["fp32"])
            largest = max(largest, model_error if model_error > allowed else 0.0)
        if largest > 0 and (same_feed or math.isinf(largest) or largest >= _OWN_SHARE * relation.largest):
            reason = f"the model breaks it itself: `{output}` differs by {largest:.3g}"
            return replace(relation, outcome="skipped", detail=reason)
        noise, pair = _pair(before, expected._replace(outputs=moved), output), _pair(expected, actual, output)
        if noise is None or pair is None or len({noise[0].shape, noise[1].shape, pair[0].shape}) > 1:
            return replace(relation, outcome="skipped", detail=f"the shape of `{output}` depends on rounding errors")
        largest, allowed = difference(*pair, self._allowed_units(expected, actual), noise)
        return replace(relation, outcome="held" if largest <= allowed else "broken", largest=largest, allowed=allowed)

    def equal_outputs(self, base: Result, variant: Result) -> Iterator[Relation]:
        """Find floating-point outputs that are equal for different inputs, and differ in the model."""
        for output, first, second in pairs(base, variant):
            if not is_floating(first) or not np.array_equal(first, second, equal_nan=True):
                continue
            try:
                before = base._replace(outputs=self.outputs(base.feed))
                after = variant._replace(outputs=self.outputs(variant.feed))
            except errors.TrtopsError:
                continue
            pair = _pair(before, after, output)
            largest, allowed = (0.0, 0.0) if pair is None else difference(*pair, _OTHER_SHAPE * self._unit)
            if largest > allowed:
                yield Relation(name="other inputs", outcome="broken", output=output, largest=largest, allowed=allowed)


def pairs(expected: Result, actual: Result) -> Iterator[tuple[str, Array, Array]]:
    """Yield each output's two arrays to compare; of selected rows, only outputs with a batch axis."""
    for name, array in expected.outputs.items():
        if name not in actual.outputs:
            yield name, array, np.empty(0)
            continue
        first, second = expected.compared(name), actual.compared(name)
        if first is not None and second is not None:
            yield name, first, second


def _pair(expected: Result, actual: Result, output: str) -> tuple[Array, Array] | None:
    return next(((first, second) for name, first, second in pairs(expected, actual) if name == output), None)


def difference(
    expected: Array, actual: Array, units: float, noise: tuple[Array, Array] | None = None
) -> tuple[float, float]:
    """Return the difference and the allowed one, of the element with the largest ratio.

    ``units`` are relative to the expected values' scale; ``noise`` are two results of the model whose difference, some
    times, is allowed as well.
    """
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return math.inf, 0.0
    if np.array_equal(expected, actual):
        return 0.0, 0.0
    if expected.dtype.kind not in "fiub" and expected.dtype.name != "bfloat16":
        return math.inf, 0.0
    first, second = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        equal = (first == second) | (np.isnan(first) & np.isnan(second))
        distance = np.where(equal, 0.0, np.abs(second - first))
        distance = np.where(np.isnan(distance), np.inf, distance)
        allowed = np.broadcast_to(units * _scale(first) if is_floating(expected) else 0.0, first.shape)
        if noise is not None:
            moved = np.abs(noise[1].astype(np.float64) - noise[0].astype(np.float64))
            moved = np.where(np.isnan(moved) & ~np.isnan(noise[0].astype(np.float64)), np.inf, moved)
            allowed = np.maximum(allowed, _TIMES * _scale(moved, infinite=True))
        ratio = np.where(distance > 0, distance / np.where(allowed > 0, allowed, 1e-300), 0.0)
        ratio = np.where(np.isnan(ratio), 1.0, ratio)  # both infinite
    position = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    return float(distance[position]), float(allowed[position])


def _scale(values: Array, *, infinite: bool = False) -> Array:
    """Return the largest absolute value, at most some multiple of that of each channel (second or last axis)."""
    size = np.abs(values)
    if not infinite:
        size = np.where(np.isfinite(size), size, 0.0)
    if not size.size:
        return size
    scale = np.full((1,) * size.ndim, size.max(initial=0.0))
    for axis in {1, size.ndim - 1} if size.ndim > 1 else ():
        other_axes = tuple(i for i in range(size.ndim) if i != axis)
        scale = np.minimum(scale, _CHANNELS * size.max(axis=other_axes, keepdims=True))
    return scale


def shapes_of(feed: Feed) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a feed's arrays."""
    return {name: array.shape for name, array in feed.items()}


def multiplied(array: Array, factor: Any) -> Array:
    """Return floating-point values multiplied in FP64, and other arrays unchanged."""
    if not is_floating(array):
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array.astype(np.float64) * factor, array.dtype)


def scaled(feed: Feed, factor: float) -> Feed | None:
    """Return a feed with multiplied floating-point values; None if none of them changes."""
    arrays = {name: multiplied(array, factor) for name, array in feed.items()}
    changed = any(arrays[name].tobytes() != array.tobytes() for name, array in feed.items())
    return same_profile(feed, arrays) if changed else None
