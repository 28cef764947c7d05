"""What an engine really computes in: the share of its kernels in the precision that was asked for.

A back end may take a request for FP16 or INT8 and compute in FP32 all the same: ONNX Runtime has hardly an FP16 kernel on
a processor. Its optimized graph says so, and so does this.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from trtops.backend.base import Build
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import Model, data_type
from trtops.ops.judging.realised import Computed
from trtops.spec import Precision

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


def computed(build: Build, weight_bytes: int = 0) -> Computed:
    """What the kernels of a build compute in, as its tactics and layers say.

    Args:
        build: The build.
        weight_bytes: Size of the model's floating-point weights in FP32, if that is known.
    """
    found = _of_tactics(build) or [(layer.op, layer.precision) for layer in build.layers]
    kernels = [(op, precision) for op, precision in found if not _NOT_COMPUTING.search(op)]
    products = [(op, precision) for op, precision in kernels if _PRODUCTS.search(op)]
    counts = Counter(_PRECISIONS.get(precision.lower(), "") for _, precision in products or kernels)
    unknown = counts.pop("", 0)
    return Computed(
        asked=build.spec.config.precision,
        kernels=tuple((str(name), count) for name, count in counts.most_common()),
        unknown=unknown,
        plan_bytes=len(build.engine.plan),
        weight_bytes=weight_bytes,
    )


def weight_bytes(model: Model) -> int:
    """Size of a model's floating-point weights, each in FP32."""
    return sum(
        4 * math.prod(tensor.dims)
        for tensor in walk.tensors(model.structure())
        if (dtype := data_type(tensor.data_type)) is not None and dtype.is_floating
    )


def _of_tactics(build: Build) -> list[tuple[str, str]]:
    """Kernels and the type that each reads first, where the record of tactics has every kernel: ONNX Runtime's does."""
    if build.tactics.mechanism != "onnxruntime":
        return []
    choices = build.tactics.choices
    return [
        (choice.op, next((each.dtype for each in choice.inputs if each.dtype in _PRECISIONS), ""))
        for choice in choices
        if any(each.dtype in _PRECISIONS for each in (*choice.inputs, *choice.outputs))
    ]
