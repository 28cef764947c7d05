"""Precisions written into the ONNX model, for strongly typed networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.describe.layers import layers_of
from trtops.backend.trt.library import dtypes
from trtops.metadata import DataType
from trtops.patterns import expand
from trtops.spec import BuildConfig, TensorRTOptions

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True)
class ModelPrecision:
    """Precisions to write into an ONNX model."""

    precisions: tuple[str, ...] = ()  # precisions below FP32 that the whole model may use
    # Data types by node name or pattern, for nodes whose type differs from the rest.
    layers: tuple[tuple[str, DataType], ...] = ()

    @classmethod
    def of(cls, precisions: Iterable[str], layers: Mapping[str, object] | None) -> ModelPrecision:
        """From a builder config's precisions and the mapping of :class:`SetLayerPrecisions`."""
        trt_type = library.load().DataType
        types = []
        for name, dtype in (layers or {}).items():
            types.append((name, DataType.of(dtypes.from_trt(dtype) if isinstance(dtype, trt_type) else dtype)))
        return cls(precisions=tuple(precisions), layers=tuple(types))

    def __bool__(self) -> bool:
        return bool(self.precisions or self.layers)


def layers_to_keep(model: onnx.ModelProto, config: BuildConfig) -> dict[str, str]:
    """Data types, by name, of the nodes left in FP32 by FP16 and BF16 (:attr:`trtops.spec.BuildConfig.keep`).

    A node that 8 bits leave alone may compute in FP16, unless it has a precision of its own as well.
    """
    from trtops.backend.onnx.precision import without_functions
    from trtops.backend.onnx.quantize import kept_names
    from trtops.backend.onnx.walk import node_name

    assert isinstance(config.options, TensorRTOptions)
    patterns = config.keep
    if config.precision not in ("fp16", "bf16"):
        patterns = tuple(name for name, _ in config.options.layer_precisions if name in config.keep)
    if not patterns:
        return {}
    model = without_functions(model)
    fp32_names = kept_names(model, patterns)
    return {node_name(node): "float32" for node in model.graph.node if fp32_names & {node.name, *node.output}}


def write_into_model(
    model: onnx.ModelProto, model_precision: ModelPrecision, weights: Path | None = None
) -> onnx.ModelProto:
    """Write precisions into an ONNX model with Cast nodes; inputs and outputs keep their types.

    The model, with its weights inside or lean (:meth:`trtops.backend.onnx.model.Model.proto`), is not changed.
    ``weights`` is a folder for a lean model's weights in FP16; it must exist as long as the result is used.

    Raises UnsupportedFeatureError for BF16; for INT8 and FP8 unless the model is quantized. Raises ConfigError if the
    model has no layer of a name.
    """
    from trtops.backend.onnx import copying, walk
    from trtops.backend.onnx.opset import raise_opset
    from trtops.backend.onnx.quantize import OPSET_OF_FP16_SCALES, is_quantized

    quantized = is_quantized(model)
    for precision in model_precision.precisions:
        if precision in ("int8", "fp8"):
            require_quantized(quantized, precision)
        elif precision != "fp16":
            raise errors.UnsupportedFeatureError(
                f"{library.line().name} takes precisions from the model, and trtops writes FP16 into models, not "
                f"{precision}. Export the model in {precision}, or use fp16."
            )
    excluded = _fp32_nodes(model, model_precision)
    if excluded is None:
        return model
    from trtops.backend.onnx.precision import convert_to_fp16

    if quantized and walk.opset(model) < OPSET_OF_FP16_SCALES:
        # With scales in FP16, DequantizeLinear feeds operators in FP16, without a Cast that TensorRT would not fuse.
        model = copying.copy_of(model)
        raise_opset(model, OPSET_OF_FP16_SCALES, "Q/DQ nodes with scales in FP16")

    # Inputs and outputs keep their types, so that the engine takes the feeds of the model.
    return convert_to_fp16(model, keep_io=True, exclude=excluded, weights=weights)


def require_quantized(quantized: bool, precision: str = "int8") -> None:
    """Raise UnsupportedFeatureError for INT8 or FP8 in a strongly typed network without Q/DQ nodes."""
    if not quantized:
        raise errors.UnsupportedFeatureError(
            f"{library.line().name} takes {precision.upper()} from Q/DQ nodes in the model, and this model has none. "
            "TensorRTBackend puts them in, from calibration data or a calibration cache; for a loader, insert_qdq of "
            "trtops.backend.onnx.quantize does."
        )


def _fp32_nodes(model: onnx.ModelProto, model_precision: ModelPrecision) -> list[str] | None:
    """Names of the nodes in FP32; None if all nodes are."""
    from trtops.backend.onnx.walk import node_name

    names = list(map(node_name, model.graph.node))
    chosen: dict[str, DataType] = {}
    for pattern, dtype in model_precision.layers:
        chosen.update(dict.fromkeys(expand([pattern], names, kind="node"), dtype))
    if others := set(chosen.values()) - {DataType.FLOAT32, DataType.FLOAT16}:
        raise errors.UnsupportedFeatureError(
            f"{library.line().name} takes layer precisions from the model; trtops writes float16 and float32 into "
            f"models, not {', '.join(sorted(d.value for d in others))}."
        )
    default = DataType.FLOAT16 if "fp16" in model_precision.precisions else DataType.FLOAT32
    excluded = [name for name in names if chosen.get(name, default) is DataType.FLOAT32]
    return None if len(excluded) == len(names) else excluded


def check_network(network: Any, precisions: Iterable[str]) -> None:
    """Raise UnsupportedFeatureError if a strongly typed network lacks precisions requested by a builder config."""
    # Without this check, fp16=True would silently build in FP32: the config cannot add precisions to such a network.
    requested = set(precisions)
    if not requested:
        return
    trt = library.load()
    tensor_dtypes: set[str] = set()
    quantized = False
    for layer in layers_of(network):
        quantized = quantized or layer.type == trt.LayerType.QUANTIZE
        tensor_dtypes.update(layer.get_output_type(i).name for i in range(layer.num_outputs))
    if "int8" in requested:
        require_quantized(quantized)
    for precision, name in (("fp16", "HALF"), ("bf16", "BF16"), ("fp8", "FP8")):
        if precision in requested and name not in tensor_dtypes:
            raise errors.UnsupportedFeatureError(
                f"{precision}=True, but this network is strongly typed and has no {precision} tensor: it would build "
                f"in {'/'.join(sorted(tensor_dtypes)).lower()}. Let the loader put the precision into the model: "
                "NetworkFromOnnxPath(path, config=config), or convert the model first."
            )
