"""Weights pruned, taken out, put back, lowered to 16 bit, and moved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from trtops.backend.onnx import precision, sparsity, weights
from trtops.backend.onnx.model import check_structure
from trtops.ops.model.opening import Source
from trtops.ops.model.saving import SaveConfig
from trtops.ops.model.surgeon.operation import SurgeonResult, first_names, load_with_weights, operate
from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class LowerConfig(Record):
    """How to rewrite a model for 16 bit.

    Attributes:
        to: The type to compute in.
        keep_io: Whether inputs and outputs keep their type, behind Cast nodes.
        exclude: Nodes that stay in FP32: names, patterns of names, or types.
        keep_types: Types of nodes that stay in FP32 beside those.
    """

    to: Literal["fp16", "bf16"] = "fp16"
    keep_io: bool = True
    exclude: tuple[str, ...] = ()
    keep_types: tuple[str, ...] = tuple(sorted(precision.KEPT_TYPES))


def prune(model: Source, output: str | Path | None = None, *, save_as: SaveConfig | None = None) -> SurgeonResult:
    """Make weights 2:4 sparse, to measure what sparse kernels gain; see :mod:`trtops.backend.onnx.sparsity`.

    Raises:
        ModelError: If the model contradicts itself.
    """

    def shrink(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        return [f"Pruned {len(sparsity.prune(proto))} weights."]

    return operate(model, output, save_as, shrink)


def strip_weights(
    model: Source,
    output: str | Path | None = None,
    *,
    exclude: Collection[str] = (),
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Take the weights out of a model, to share its structure; see :mod:`trtops.backend.onnx.weights`.

    Args:
        model: The model, constants folded; not changed.
        output: Where to write the new one; None does not.
        exclude: Names of weights that stay.
        save_as: Where what is left of the weights goes.

    Raises:
        ModelError: If the model contradicts itself.
        ConfigError: If a name to exclude is no weight.
    """

    def strip(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        return [f"Took out {len(weights.strip_weights(proto, exclude))} weights."]

    return operate(model, output, save_as, strip)


def reconstruct_weights(
    model: Source,
    output: str | Path | None = None,
    *,
    original: Source | None = None,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Put weights back into a stripped model.

    Args:
        model: The stripped model; not changed.
        output: Where to write the new one; None does not.
        original: The model that has the weights; None draws random ones.
        save_as: Where weights go.

    Raises:
        ModelError: If the original lacks a weight, or has it in another type or shape.
    """
    known = None if original is None else load_with_weights(original)[0]

    def put_back(proto: onnx.ModelProto) -> list[str]:
        names = weights.reconstruct_weights(proto, known)
        check_structure(proto)
        return [f"Put back {len(names)} {'random ' if known is None else ''}weights."]

    return operate(model, output, save_as, put_back)


def lower_precision(
    model: Source,
    output: str | Path | None = None,
    config: LowerConfig | None = None,
    *,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Rewrite a model to compute in 16 bit; see :func:`trtops.backend.onnx.precision.lower_precision`.

    Raises:
        ModelError: If the model contradicts itself.
        ConfigError: If ``exclude`` fits no node, or the operator set is too old for BF16.
    """
    config = LowerConfig() if config is None else config

    def lower(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
        check_structure(proto)
        done = precision.lower_precision(
            proto, config.to, keep_io=config.keep_io, exclude=config.exclude, keep_types=config.keep_types
        )
        changes = [f"{len(done.lowered)} nodes compute in {config.to.upper()}, {len(done.kept)} stay in FP32."]
        if done.too_large:
            changes.append(f"Kept for weights beyond the 16-bit range: {first_names(done.too_large)}.")
        if done.clamped:
            changes.append(f"Clamped to the 16-bit range: {first_names(done.clamped)}.")
        if done.flushed:
            changes.append(f"{sum(done.flushed.values())} values too small for 16 bit became zero.")
        return done.model, changes

    return operate(model, output, save_as, lower)


def resave(model: Source, output: str | Path, *, save_as: SaveConfig | None = None) -> SurgeonResult:
    """Write a model with its weights inside, or beside it.

    Raises:
        ModelError: If the model contradicts itself, or its external data is missing.
        ConfigError: If ``output`` is a file of the model itself.
    """

    def keep(proto: onnx.ModelProto) -> list[str]:
        check_structure(proto)
        return []

    return operate(model, output, save_as, keep)
