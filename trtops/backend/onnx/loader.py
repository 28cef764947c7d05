"""Loaders of ONNX models, each with a function in snake_case for calling it immediately.

A loader takes a model as a ``ModelProto``, a :class:`trtops.backend.onnx.Model`, or a callable that returns a
``ModelProto``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import onnx

from trtops import errors
from trtops.backend.loader import BaseLoader, ValueOrCallable, immediately
from trtops.backend.onnx import edit, external, fold, precision, save, shapes
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.model import Model, is_large, parse_proto, read_proto
from trtops.func import value_of
from trtops.metadata import TensorSpec

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

log = logging.getLogger(__name__)

OnnxModel: TypeAlias = onnx.ModelProto | Model | Callable[[], onnx.ModelProto]
Partitioning: TypeAlias = Literal["basic", "recursive"] | None


def _model_to_read(source: OnnxModel) -> onnx.ModelProto:
    """Return the model for reading only: it may be the caller's."""
    model = value_of(source)
    return model.proto() if isinstance(model, Model) else model


def _model_to_change(source: OnnxModel, copy: bool | None) -> onnx.ModelProto:
    """Return a model free to be changed."""
    # What a callable returns has no other owner, and is changed in place. A model given as a value is copied first.
    # ``copy`` overrides both.
    model = _model_to_read(source)
    owned_by_caller = isinstance(source, onnx.ModelProto)
    return copy_of(model) if copy is True or (copy is None and owned_by_caller) else model


@dataclass(frozen=True)
class OnnxFromPath(BaseLoader[onnx.ModelProto]):
    """Loads a model file with its external data.

    >>> model = onnx_from_path("model.onnx")
    >>> [node.op_type for node in model.graph.node][:3]
    ['Conv', 'BatchNormalization', 'Relu']
    """

    path: str | Path
    external_data_dir: str | Path | None = None  # the model's folder unless given; files outside of it are refused
    ignore_external_data: bool = False  # such a model has structure but no weights
    lean: bool = False  # whether large weights of a model above 2 GiB stay in their files, as in `Model.proto`

    def call_impl(self) -> onnx.ModelProto:
        log.info("Loading model: %s", self.path)
        model = read_proto(self.path)
        if not self.ignore_external_data:
            load = external.anchor if self.lean and is_large(model) else external.load_external_data
            load(model, Path(self.external_data_dir or Path(self.path).absolute().parent))
        return model


@dataclass(frozen=True)
class OnnxFromBytes(BaseLoader[onnx.ModelProto]):
    """Parses a serialized model, or the bytes returned by a callable; external data is not loaded."""

    serialized_onnx: ValueOrCallable[bytes] = field(repr=False)

    def call_impl(self) -> onnx.ModelProto:
        return parse_proto(value_of(self.serialized_onnx))


@dataclass(frozen=True)
class GsFromOnnx(BaseLoader["gs.Graph"]):
    """Imports a model into an ONNX-GraphSurgeon graph, possibly sharing weights, without changing the model."""

    model: OnnxModel = field(repr=False)

    def call_impl(self) -> gs.Graph:
        import onnx_graphsurgeon as gs

        return gs.import_onnx(_model_to_read(self.model))


@dataclass(frozen=True)
class ModifyOutputs(BaseLoader[onnx.ModelProto]):
    """Changes a model's outputs, by names or shell patterns (``conv_*``); types and shapes are inferred.

    ``"mark-all"`` selects everything that nodes produce, except constants.

    >>> model = modify_outputs(OnnxFromPath("model.onnx"), outputs=["logits", "r*"])
    >>> [output.name for output in model.graph.output]
    ['logits', 'r0', 'r1']
    """

    model: OnnxModel = field(repr=False)
    outputs: Sequence[str] | None = None  # None keeps the outputs
    exclude_outputs: Sequence[str] | None = None  # removed afterwards
    copy: bool | None = None
    mark_types: Sequence[str] | None = None  # types of nodes whose outputs are selected, instead of names

    def call_impl(self) -> onnx.ModelProto:
        model = _model_to_change(self.model, self.copy)
        outputs = self.outputs
        if self.mark_types is not None:
            outputs = edit.outputs_of_types(model.graph, self.mark_types)
        if outputs is not None:
            edit.set_outputs(model, outputs)
        if self.exclude_outputs is not None:
            edit.drop_outputs(model, self.exclude_outputs)
        return model


@dataclass(frozen=True)
class ConvertToFp16(BaseLoader[onnx.ModelProto]):
    """Rewrites a model to compute in FP16; see :func:`trtops.backend.onnx.precision.convert_to_fp16`.

    Inputs and outputs keep their types, with Cast nodes. TensorRT's own FP16 mode does not need this. The result is a
    new model; ``copy`` has no effect. If weights of the model are in files, the folder ``weights`` gets those of the
    result.
    """

    model: OnnxModel = field(repr=False)
    copy: bool | None = None
    weights: Path | None = None

    def call_impl(self) -> onnx.ModelProto:
        return precision.convert_to_fp16(_model_to_read(self.model), weights=self.weights)


@dataclass(frozen=True)
class FoldConstants(BaseLoader[onnx.ModelProto]):
    """Folds constants; see :func:`trtops.backend.onnx.fold.fold_constants`."""

    model: OnnxModel = field(repr=False)
    num_passes: int | None = None
    do_shape_inference: bool = True
    # No effect: a node that cannot be evaluated never prevents others from being folded, as "recursive" requests.
    partitioning: Partitioning = None
    fold_shapes: bool = True
    copy: bool | None = None
    error_ok: bool = True  # otherwise nodes that cannot be evaluated are errors
    size_threshold: int | None = None
    allow_onnxruntime_shape_inference: bool = True

    def call_impl(self) -> onnx.ModelProto:
        model = _model_to_change(self.model, self.copy)
        fold.fold_constants(
            model,
            passes=self.num_passes,
            fold_shapes=self.fold_shapes,
            infer_shapes=self.do_shape_inference,
            symbolic=self.allow_onnxruntime_shape_inference,
            size_threshold=self.size_threshold,
            error_ok=self.error_ok,
        )
        return model


@dataclass(frozen=True)
class SetUpperBound(BaseLoader[onnx.ModelProto]):
    """Bounds sizes computed at run time with Min nodes, for TensorRT to plan memory for them.

    Constants must be folded and shapes inferred.
    """

    model: OnnxModel = field(repr=False)
    upper_bounds: int | Mapping[str, int]  # by tensor name, with "" for those not named; or one bound for all
    copy: bool | None = None

    def call_impl(self) -> onnx.ModelProto:
        model = _model_to_change(self.model, self.copy)
        applied = edit.set_upper_bounds(model, self.upper_bounds)
        log.info("Upper bounds set: %s", applied)
        return model


@dataclass(frozen=True)
class InferShapes(BaseLoader[onnx.ModelProto]):
    """Infers types and shapes of a model of any size, or of a model file."""

    model: OnnxModel | str | Path = field(repr=False)
    error_ok: bool = True  # whether contradicting types and shapes are accepted
    external_data_dir: str | Path | None = None
    save_to_disk_threshold_bytes: int | None = None  # no effect, since weights are never copied
    allow_onnxruntime: bool = True  # symbolic inference, where ONNX's own leaves ranks unknown

    def call_impl(self) -> onnx.ModelProto:
        source = value_of(self.model)
        if isinstance(source, (str, Path)):
            model = onnx_from_path(source, self.external_data_dir)
        else:
            model = _model_to_change(source, None if source is self.model else False)
        try:
            shapes.infer_shapes(model, symbolic=self.allow_onnxruntime, strict=not self.error_ok)
        except errors.InvalidModelError as exc:
            if not self.error_ok:
                raise
            log.warning("%s", exc)
        return model


@dataclass(frozen=True)
class ExtractSubgraph(BaseLoader[Any]):
    """Extracts the part of a model, or of an ONNX-GraphSurgeon graph, between some tensors; returns the same kind.

    Dtypes and shapes that the metadata leaves out are inferred. ``check_meta`` warns about unknown ones.

    >>> from trtops.metadata import TensorMetadata
    >>> head = extract_subgraph(OnnxFromPath("model.onnx"), TensorMetadata().add("r1", dtype=None, shape=None))
    >>> [node.op_type for node in head.graph.node]
    ['GlobalAveragePool', 'Flatten', 'Gemm', 'Softmax']
    """

    model: OnnxModel | gs.Graph = field(repr=False)
    input_metadata: Mapping[str, TensorSpec] | None = None
    output_metadata: Mapping[str, TensorSpec] | None = None
    check_meta: bool = True

    def call_impl(self) -> Any:
        source = value_of(self.model)
        if isinstance(source, (onnx.ModelProto, Model)):
            model = _model_to_change(source, None if source is self.model else False)
        else:
            import onnx_graphsurgeon as gs

            model = gs.export_onnx(source, do_type_check=False)
        edit.extract(model, self.input_metadata, self.output_metadata)
        if self.check_meta:
            for value in (*model.graph.input, *model.graph.output):
                if not value.type.tensor_type.elem_type:
                    log.warning("The dtype of %r is not known; give it in the metadata.", value.name)
            for value in model.graph.input:
                if not value.type.tensor_type.HasField("shape"):
                    log.warning("The shape of input %r is not known; give it in the metadata.", value.name)
        return model if isinstance(source, (onnx.ModelProto, Model)) else gs.import_onnx(model)


@dataclass(frozen=True)
class SaveOnnx(BaseLoader[onnx.ModelProto]):
    """Writes a model file, and returns the model; see :func:`trtops.backend.onnx.save.save_model`."""

    model: OnnxModel = field(repr=False)
    path: str | Path
    external_data_path: str | None = None
    size_threshold: int = 1024
    all_tensors_to_one_file: bool = True

    def call_impl(self) -> onnx.ModelProto:
        model = _model_to_read(self.model)
        log.info("Saving ONNX model to: %s", self.path)
        save.save_model(
            model,
            self.path,
            external_data_path=self.external_data_path,
            size_threshold=self.size_threshold,
            all_tensors_to_one_file=self.all_tensors_to_one_file,
        )
        return model


@dataclass(frozen=True)
class BytesFromOnnx(BaseLoader[bytes]):
    """Serializes a model without changing it."""

    model: OnnxModel = field(repr=False)

    def call_impl(self) -> bytes:
        return save.serialize(_model_to_read(self.model))


onnx_from_path = immediately(OnnxFromPath)
onnx_from_bytes = immediately(OnnxFromBytes)
gs_from_onnx = immediately(GsFromOnnx)
modify_outputs = immediately(ModifyOutputs)
convert_to_fp16 = immediately(ConvertToFp16)
fold_constants = immediately(FoldConstants)
set_upper_bound = immediately(SetUpperBound)
infer_shapes = immediately(InferShapes)
extract_subgraph = immediately(ExtractSubgraph)
save_onnx = immediately(SaveOnnx)
bytes_from_onnx = immediately(BytesFromOnnx)
