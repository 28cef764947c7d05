"""What an engine really computes in: the share of its kernels in the precision that was asked for.

A back end may take a request for FP16 or INT8 and compute in FP32 all the same: ONNX Runtime has hardly an FP16 kernel on
a processor. Its optimized graph says so, and so does this.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from trtops.backend.base import Build
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import Model, data_type
from trtops.ops.evaluation.realised import Computed
from trtops.spec import Precision
from trtops.tracking import schema
from trtops.tracking.base import Run
from trtops.tracking.tables import log_table

_PRODUCTS = re.compile(r"(Conv|MatMul|Gemm|LSTM|GRU|RNN|Attention|Einsum)", re.IGNORECASE)
_NOT_COMPUTING = re.compile(
    r"(cast|quantizelinear|reshape|transpose|concat|split|slice|gather|squeeze|shape|size|identity|flatten|expand|tile|pad"
    r"|constant|reorder|reformat|shuffle|noop|signal|wait|copy|if|loop|scan|where|scatter|range|nonzero|zipmap)$",
    re.IGNORECASE,
)
_PRECISIONS: dict[str, Precision] = {
    "float": "fp32",
    "float32": "fp32",
    "fp32": "fp32",
    "float16": "fp16",
    "fp16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "int8": "int8",
    "uint8": "int8",
    "fp8": "fp8",
    "float8e4m3fn": "fp8",
}


def computed(build: Build, weight_bytes: int = 0, limit: float = 0.0) -> Computed:
    """What the kernels of a build compute in, as its tactics and layers say.

    Args:
        build: The build.
        weight_bytes: Size of the model's floating-point weights in FP32, if that is known.
        limit: The share of kernels that have to compute in the precision asked for, between 0 and 1.
    """
    counts = Counter(kernel.precision for kernel in kernels(build) if kernel.counted)
    unknown = counts.pop("", 0)
    return Computed(
        asked=build.spec.config.precision,
        kernels=tuple((str(name), count) for name, count in counts.most_common()),
        unknown=unknown,
        plan_bytes=len(build.engine.plan),
        weight_bytes=weight_bytes,
        limit=limit,
        backend=build.spec.config.backend,
    )


@dataclass(frozen=True)
class Kernel:
    """One kernel of an engine.

    Attributes:
        layer: The layer that it computes.
        op: The layer's type.
        precision: What it computes in; empty if the back end does not say.
        counted: Whether it counts for what the engine computes in: one that multiplies matrices, convolves or recurs, or where
            there is none of these, one that computes at all.
    """

    layer: str
    op: str
    precision: str
    counted: bool


def kernels(build: Build) -> tuple[Kernel, ...]:
    """The kernels of a build, in its own order."""
    found = _of_tactics(build) or [(layer.name, layer.op, layer.precision) for layer in build.layers]
    computing = {layer for layer, op, _ in found if not _NOT_COMPUTING.search(op)}
    counted = {layer for layer, op, _ in found if layer in computing and _PRODUCTS.search(op)} or computing
    return tuple(
        Kernel(layer, op, _PRECISIONS.get(precision.lower(), ""), layer in counted) for layer, op, precision in found
    )


def log_computed(run: Run, build: Build) -> None:
    """Keep what each kernel of a build computes in as a table of its run, beside what was asked for."""
    asked = build.spec.config.precision
    log_table(
        run,
        schema.Artifact.PRECISIONS,
        ("layer", "op", "asked for", "computes in", "counted"),
        ((kernel.layer, kernel.op, asked, kernel.precision, kernel.counted) for kernel in kernels(build)),
    )


def weight_bytes(model: Model) -> int:
    """Size of a model's floating-point weights, each in FP32."""
    return sum(
        4 * math.prod(tensor.dims)
        for tensor in walk.tensors(model.structure())
        if (dtype := data_type(tensor.data_type)) is not None and dtype.is_floating
    )


def _of_tactics(build: Build) -> list[tuple[str, str, str]]:
    """Layers, kernels and the type that each reads first, where the record of tactics has every kernel: ONNX Runtime's does."""
    if build.tactics.mechanism != "onnxruntime":
        return []
    choices = build.tactics.choices
    return [
        (choice.layer, choice.op, next((each.dtype for each in choice.inputs if each.dtype in _PRECISIONS), ""))
        for choice in choices
        if any(each.dtype in _PRECISIONS for each in (*choice.inputs, *choice.outputs))
    ]
