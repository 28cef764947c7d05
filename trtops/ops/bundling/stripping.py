"""Random weights in place of a model's own, with which it still shows the same verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.model import data_type
from trtops.ops.bundling.case import Case, recomputed

_FEW = 16
"""Weights of so few elements stay: epsilons, scales, sizes and axes, which are the structure's and not what was learned."""

Array = Any
Draw = Callable[[Array, "np.random.Generator"], Array]


def _alike(array: Array, generator: np.random.Generator) -> Array:
    """Normal numbers of the same mean and spread."""
    return generator.normal(array.mean(), array.std(), array.shape)


def _as_far(array: Array, generator: np.random.Generator) -> Array:
    """Uniform numbers from the same interval, whose ends are among them."""
    drawn = generator.uniform(array.min(), array.max(), array.size)
    drawn[:2] = array.min(), array.max()
    return generator.permutation(drawn).reshape(array.shape)


def _by_channel(array: Array, generator: np.random.Generator) -> Array:
    """Normal numbers of the same mean and spread along each last axis, where columns differ in size."""
    axes = tuple(range(array.ndim - 1)) or (0,)
    return generator.normal(array.mean(axes, keepdims=True), array.std(axes, keepdims=True), array.shape)


_DRAWS: tuple[tuple[str, Draw], ...] = (
    ("normal numbers of each weight's mean and spread", _alike),
    ("uniform numbers from each weight's smallest to its largest", _as_far),
    ("normal numbers of the mean and spread of each weight's columns", _by_channel),
)


def with_random_weights(
    case: Case, shows: Callable[[Case], str | None], attempts: int, seed: int
) -> tuple[Case, tuple[str, ...], str]:
    """A case with random weights that gives the same verdict.

    Args:
        case: The case.
        shows: None if a case gives its verdict, else what it gives instead.
        attempts: Draws to try.
        seed: Of the first.

    Returns:
        The case, the names of the random weights, and how they were drawn.

    Raises:
        ReproductionError: If golden outputs were given, which fit no other weights, or no draw gives the verdict.
    """
    if case.original is None:
        raise errors.ReproductionError(
            "The golden outputs were given, and say nothing of a model with other weights. Bundle it with its weights, or evaluate "
            "it against the model itself."
        )
    weights = secret_weights(case.original)
    if not weights:
        raise errors.ReproductionError("The model has no weights worth hiding; bundle it as it is.")
    tried = []
    for number, (how, draw) in zip(range(attempts), _draws_in_turn()):
        found = recomputed(case, _redrawn(case.original, draw, seed + number))
        if (instead := shows(found)) is None:
            # Reasons of the true weights hold true numbers.
            return replace(found, reasons=()), weights, f"{how}, seed {seed + number}"
        tried.append(instead)
    counted = ", ".join(f"{tried.count(each)} times {each}" for each in dict.fromkeys(tried))
    raise errors.ReproductionError(
        f"With random weights the model does not give {case.verdict}: {counted} in {len(tried)} draws. The fault lies in the "
        "weights' own values. Cut the model down first (trtops debug reduce), or bundle it with its weights."
    )


def secret_weights(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the weights that are worth hiding: floating-point ones of more than a few elements, those of Constant nodes too."""
    return tuple(tensor.name or "(a Constant's)" for tensor in walk.tensors(model) if _is_secret(tensor))


def _is_secret(tensor: onnx.TensorProto) -> bool:
    dtype = data_type(tensor.data_type)
    return dtype is not None and dtype.is_floating and math.prod(tensor.dims) > _FEW


def _draws_in_turn() -> Iterator[tuple[str, Draw]]:
    while True:
        yield from _DRAWS


def _redrawn(model: onnx.ModelProto, draw: Draw, seed: int) -> onnx.ModelProto:
    """A copy of a model with other weights in their types, and without texts that say where it comes from."""
    changed, generator = copy_of(model), np.random.default_rng(seed)
    for tensor in filter(_is_secret, walk.tensors(changed)):
        array = numpy_helper.to_array(tensor)
        drawn = np.asarray(draw(array.astype(np.float64), generator))
        with np.errstate(over="ignore"):
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(drawn.astype(array.dtype)), tensor.name))
    changed.doc_string = changed.graph.doc_string = changed.producer_name = changed.producer_version = ""
    del changed.metadata_props[:]
    for node in walk.nodes(changed):
        node.doc_string = ""
    return changed
