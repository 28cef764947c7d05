"""The precisions of an engine's kernels, from the record of tactics or the engine inspector."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtops.record import Record
from trtops.spec import Precision
from trtops.tracking import schema
from trtops.tracking.base import Run

if TYPE_CHECKING:
    from trtops.backend.base import Build

_NARROWER: dict[Precision, tuple[Precision, ...]] = {
    "fp32": ("fp16", "bf16", "int8", "fp8"),
    "fp16": ("bf16", "int8", "fp8"),
    "bf16": ("fp16", "int8", "fp8"),
}
# An engine has the name of the requested precision if at least this share of its kernels compute in it.
_SHARE_OF_NAME = 0.5
_PRODUCT_OPS = re.compile(r"(Conv|MatMul|Gemm|LSTM|GRU|RNN|Attention|Einsum)", re.IGNORECASE)
_NOT_COMPUTING = re.compile(
    r"(cast|quantizelinear|reshape|transpose|concat|split|slice|gather|squeeze|shape|size|identity|flatten|expand|tile|pad"
    r"|constant|reorder|reformat|shuffle|noop|signal|wait|copy|if|loop|scan|where|scatter|range|nonzero|zipmap)$",
    re.IGNORECASE,
)
_PRECISIONS: dict[str, Precision] = {
    **dict.fromkeys(("float", "float32", "fp32"), "fp32"),
    **dict.fromkeys(("float16", "fp16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("int8", "uint8"), "int8"),
    **dict.fromkeys(("fp8", "float8e4m3fn"), "fp8"),
}


# A back end may accept a request for FP16 or INT8 and compute in FP32 anyway: ONNX Runtime has few FP16 kernels on a
# processor.
@dataclass(frozen=True, kw_only=True)
class PrecisionCheck(Record):
    """The precisions of an engine's kernels, compared with the requested one."""

    requested: Precision
    kernels: tuple[tuple[str, int], ...]  # numbers by precision: of those that multiply matrices, if there are any
    unknown: int = 0  # kernels whose precision the back end does not report
    limit: float = 0.0  # the share that must compute in the requested precision; 0 requires one kernel
    emulates: bool = True  # whether 16 bit may be computed in FP32, and is emulated then: ONNX Runtime on a CPU

    @property
    def total(self) -> int:
        """The number of kernels with known precision."""
        return sum(count for _, count in self.kernels)

    @property
    def share(self) -> float | None:
        """The share of kernels in the requested precision or a narrower one; None if it is not known."""
        return self._share_in(self.requested, *_NARROWER.get(self.requested, ()))

    def _share_in(self, *precisions: Precision) -> float | None:
        counts = dict(self.kernels)
        return sum(counts.get(precision, 0) for precision in precisions) / self.total if self.total else None

    @property
    def lowered(self) -> bool:
        """Whether enough kernels compute in the requested precision, or their precision is not known."""
        if self.requested == "fp32" or self.share is None:
            return True
        return self.share >= self.limit and (self.share > 0 or self.unknown > 0)

    @property
    def emulation_counts(self) -> bool:
        """Whether emulating the model replaces kernels in the requested precision, unless a limit is given."""
        return self.low_precision is not None and not self.limit

    @property
    def low_precision(self) -> Literal["fp16", "bf16"] | None:
        """The precision to emulate: 16 bit was requested from ONNX Runtime, and some kernels compute in another.

        Those of a quantized model compute in 8 bits, and what is between them is not counted.
        """
        if not self.emulates or self._share_in(self.requested) == 1:
            return None
        return self.requested if self.requested in ("fp16", "bf16") else None

    @property
    def name(self) -> str:
        """The engine's precision for people: that of its kernels, and the requested one if few or none have it."""
        requested, share = self.requested.upper(), self._share_in(self.requested)
        if share is None:
            return requested
        present = list(dict(self.kernels))
        if not set(_NARROWER.get(self.requested, ())).isdisjoint(present):  # the model itself chooses them
            mixed = "+".join(present).upper()
            return mixed if share or self.share == 1 else f"{mixed} (not {requested})"
        if self.requested == "fp32":
            return "TF32" if "tf32" in present else requested
        if share and self.lowered and share >= _SHARE_OF_NAME:
            return requested
        return f"{requested} in {share:.0%}" if share else f"{present[0].upper()} (not {requested})"

    def reason(self) -> str:
        """Why the engine does not count as one of the requested precision."""
        return f"No {self.requested.upper()} engine: {self.sentence()}"

    def sentence(self) -> str:
        """The kernels' precisions."""
        if not self.total:
            return "The back end does not report the precision of its kernels."
        counts = ", ".join(f"{count} in {name.upper()}" for name, count in self.kernels)
        text = f"Of {self.total} kernels {counts}."
        if self.requested == "fp32":
            return text
        share, requested = self.share or 0.0, self._share_in(self.requested) or 0.0
        narrower = f", {share - requested:.0%} in a narrower precision" if share > requested else ""
        required = f"; at least {self.limit:.0%} are required" if share < self.limit else ""
        return f"{text} {requested:.0%} compute in the requested {self.requested.upper()}{narrower}{required}."


def _kernels(build: Build) -> list[tuple[str, str, str, bool]]:
    """Layer, op, precision and relevance of each kernel of a build."""
    kernels = [(layer.name, layer.op, layer.precision) for layer in build.layers]
    if build.tactics.mechanism == "onnxruntime":  # this record has every kernel, with the type that each reads first
        recorded = []
        for choice in build.tactics.choices:
            inputs = [tensor.dtype for tensor in choice.inputs if tensor.dtype in _PRECISIONS]
            if inputs or any(tensor.dtype in _PRECISIONS for tensor in choice.outputs):
                recorded.append((choice.layer, choice.op, inputs[0] if inputs else ""))
        kernels = recorded or kernels
    computing = {layer for layer, op, _ in kernels if not _NOT_COMPUTING.search(op)}
    # Products decide speed and error. Elementwise kernels stay in FP32 in sound FP16 engines, and would hide them.
    counted = {layer for layer, op, _ in kernels if layer in computing and _PRODUCT_OPS.search(op)} or computing
    products_in_fp32: Precision | Literal["tf32"] = "fp32"
    if build.spec.config.rounding == "tf32" and build.engine.environment.has_tf32:
        products_in_fp32 = "tf32"
    rows: list[tuple[str, str, str, bool]] = []
    for layer, op, kernel_precision in kernels:
        precision: str = _PRECISIONS.get(kernel_precision.lower(), "")
        if ".DynamicQuantize" in op:  # its first input is in FP32, and is quantized inside
            precision = "int8"
        elif precision == "fp32" and _PRODUCT_OPS.search(op):
            precision = products_in_fp32
        rows.append((layer, op, precision, layer in counted))
    return rows


def check_precision(build: Build, limit: float = 0.0) -> PrecisionCheck:
    """Count the kernels of a build by precision; ``limit`` is the required share in the requested one."""
    counts = Counter(precision for _, _, precision, counted in _kernels(build) if counted)
    config, unknown = build.spec.config, counts.pop("", 0)
    return PrecisionCheck(
        requested=config.precision,
        kernels=tuple(counts.most_common()),
        unknown=unknown,
        limit=limit,
        emulates=config.backend == "onnxruntime" and build.engine.environment.compute_capability is None,
    )


def engine_precision(build: Build) -> Precision:
    """The lowest precision of an engine's kernels and tensors, for an engine whose requested precision is not known."""
    present = {precision for _, _, precision, counted in _kernels(build) if counted}
    if build.engine.options.get("format") == "ONNX":  # ONNX Runtime widens its weights on a processor
        import onnx

        from trtops.backend.onnx import walk

        for tensor in walk.tensors(onnx.load_model_from_string(build.engine.plan)):
            stored = _PRECISIONS.get(onnx.TensorProto.DataType.Name(tensor.data_type).lower(), "")
            present |= {stored} & {"fp16", "bf16", "fp8"}
    for choice in build.tactics.choices:
        types = {_PRECISIONS.get(tensor.dtype, "") for tensor in (*choice.inputs, *choice.outputs)}
        present |= types & {"fp16", "bf16", "fp8"}
        if "Quantize" in choice.op or choice.op.rpartition(".")[2].startswith("QLinear"):
            present.add("int8")
    return next((precision for precision in ("int8", "fp8", "bf16", "fp16") if precision in present), "fp32")


def log_kernels(run: Run, build: Build) -> None:
    """Log the precision of an engine, and a table of the precision of each kernel."""
    run.log_params({"computes_in": check_precision(build).name})
    columns = ("layer", "op", "asked for", "computes in", "counted")
    requested = build.spec.config.precision
    rows = ((layer, op, requested, precision, counted) for layer, op, precision, counted in _kernels(build))
    run.log_table(schema.Artifact.PRECISIONS, columns, rows)
