"""Loaders for TensorRT networks: empty ones, and networks from ONNX models.

Each returns ``(builder, network)`` or, from ONNX, ``(builder, network, parser)``. Keep the parser until the engine is
built: it holds the weights. For each class there is a function in snake_case that creates the loader and calls it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.backend.base import ValueOrCallable
from trtops.backend.loader import BaseLoader, immediately
from trtops.backend.trt import library
from trtops.backend.trt.building import precision
from trtops.backend.trt.lines import Feature
from trtops.func import value_of
from trtops.system.processes import temporary_prefix

if TYPE_CHECKING:
    import onnx

# ``(builder, network)`` or ``(builder, network, parser)``.
NetworkParts: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class CreateNetwork(BaseLoader[NetworkParts]):
    """Makes an empty network, to be filled with ``func.extend``.

    Raises BackendUnavailableError if TensorRT or the GPU cannot be used here; UnsupportedFeatureError if this release
    lacks a requested option.
    """

    explicit_batch: bool | None = None  # every network has an explicit batch; False is an error
    # Take every precision from the tensors. On TensorRT 11 and RTX all networks do.
    strongly_typed: bool = False
    # Report every tensor that is not fused away to a debug listener.
    mark_unfused_tensors_as_debug_tensors: bool = False

    def call_impl(self) -> tuple[Any, Any]:
        if self.explicit_batch is False:
            raise errors.ConfigError("explicit_batch is False; networks with an implicit batch are not supported.")
        line = library.line()
        builder = library.make_builder()
        network = builder.create_network(line.network_flags(self.strongly_typed))
        if network is None:
            raise errors.EngineBuildError(f"{line.name} could not make a network; its log says why.")
        if self.mark_unfused_tensors_as_debug_tensors:
            line.require(Feature.UNFUSED_DEBUG_TENSORS)
            network.mark_unfused_tensors_as_debug_tensors()
        return builder, network


@dataclass(frozen=True)
class ParserOptions(BaseLoader[NetworkParts]):
    """Options of the loaders from ONNX.

    Raises InvalidModelError if the model cannot be read. Raises EngineBuildError if TensorRT cannot parse it; the
    message has the parser's errors. Raises BackendUnavailableError if TensorRT or the GPU cannot be used here. Raises
    UnsupportedFeatureError if this release lacks a requested option.
    """

    # Flags of the ONNX parser, or their names.
    flags: Sequence[Any] | None = field(default=None, metadata={"names": "trt.OnnxParserFlag"})
    plugin_instancenorm: bool = False  # use the InstanceNormalization plugin instead of TensorRT's own layer
    # Take every precision from the model. On TensorRT 11 and RTX all networks do.
    strongly_typed: bool = False
    # Report every tensor that is not fused away to a debug listener.
    mark_unfused_tensors_as_debug_tensors: bool = False
    enable_uint8_asymmetric_quantization_dla: bool = False  # allow UINT8 and asymmetric quantization on DLA
    # The builder config for this network. On releases without precision flags, its precisions are written into
    # the model before it is parsed. ``EngineFromNetwork`` sets it.
    config: Any = None
    # Precisions by node name, for the same purpose; :class:`SetLayerPrecisions` sets it.
    layer_precisions: Mapping[str, object] | None = field(default=None, kw_only=True)

    def _model_precision(self) -> precision.ModelPrecision:
        """The precisions to write into the model; none on releases with precision flags."""
        if library.line().supports(Feature.PRECISION_FLAGS) and not self.strongly_typed:
            return precision.ModelPrecision()
        return precision.ModelPrecision.of(precisions_of(self.config), self.layer_precisions)

    def _parse_model(self, model: onnx.ModelProto, model_name: str) -> tuple[Any, Any, Any]:
        """Parse a model in memory, after writing the requested precisions into it."""
        from trtops.backend.onnx.model import is_lean
        from trtops.backend.onnx.save import serialize, serialize_lean

        model_precision = self._model_precision()
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("precision")) as folder:
            if model_precision:
                model = precision.write_into_model(model, model_precision, Path(folder))
            lean = is_lean(model)
            data = readable(serialize_lean(model) if lean else serialize(model))
            # The parser reads the weights of a lean model from their files. Their paths are absolute, and the parser
            # appends them to the folder of the model's path, which therefore must be the root.
            path_args = ("/model.onnx",) if lean else ()
            return self._parse(lambda parser: parser.parse(data, *path_args), model_name)

    def _parse(self, read: Callable[[Any], bool], model_name: str) -> tuple[Any, Any, Any]:
        """Make a network and a parser, and call ``read`` with the parser; ``model_name`` is for errors."""
        line = library.line()
        trt = library.load()
        builder, network = create_network(None, self.strongly_typed, self.mark_unfused_tensors_as_debug_tensors)
        parser = trt.OnnxParser(network, library.get_trt_logger())
        # Up to 8.6 the plugin was the parser's default; since 10 the native layer is.
        if line.supports(Feature.PARSER_FLAGS) and not self.plugin_instancenorm:
            parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
        for flag in self.flags or ():
            line.require(Feature.PARSER_FLAGS)
            parser.set_flag(library.member("OnnxParserFlag", flag))
        if self.enable_uint8_asymmetric_quantization_dla:
            line.require(Feature.UINT8_DLA)
            config = self.config(builder, network) if callable(self.config) else self.config
            parser.set_flag(trt.OnnxParserFlag.ENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA)
            parser.set_builder_config(builder.create_builder_config() if config is None else config)
        with library.collect_log() as lines:
            if not read(parser):
                parser_errors = [parser.get_error(index) for index in range(parser.num_errors)]
                listed = "; ".join(f"node {error.node()}: {error.desc()}" for error in parser_errors)
                raise errors.EngineBuildError(f"TensorRT cannot parse {model_name}. {listed} {lines.tail()}")
        return builder, network, parser


# A base class of its own, so that the path is the first positional argument: fields of the last base come first.
@dataclass(frozen=True)
class _OnnxPath:
    path: str | os.PathLike[str]  # the file


@dataclass(frozen=True)
class NetworkFromOnnxPath(ParserOptions, _OnnxPath):
    """Parses an ONNX file, with its external data."""

    def call_impl(self) -> tuple[Any, Any, Any]:
        path = os.fspath(self.path)
        if not os.path.isfile(path):
            raise errors.InvalidModelError(f"{path} does not exist; expected an ONNX file.")
        if self._model_precision():
            from trtops.backend.onnx.model import Model

            return self._parse_model(Model.load(path).proto(lean=True), path)
        if library.line().reads_bare_constants:
            return self._parse(lambda parser: parser.parse_from_file(path), path)
        data = readable(Path(path).read_bytes())
        # With the path, relative to which the parser searches external data.
        return self._parse(lambda parser: parser.parse(data, path), path)


@dataclass(frozen=True)
class NetworkFromModel(ParserOptions):
    """Parses a model in memory; its weights may be in files (:meth:`trtops.backend.onnx.model.Model.proto`, lean)."""

    # The model; not changed.
    model: onnx.ModelProto = field(kw_only=True, repr=False)

    def call_impl(self) -> tuple[Any, Any, Any]:
        return self._parse_model(self.model, "the ONNX model")


@dataclass(frozen=True)
class _OnnxBytes:
    model_bytes: ValueOrCallable[bytes] = field(repr=False)  # the bytes, or a callable that makes them


@dataclass(frozen=True)
class NetworkFromOnnxBytes(ParserOptions, _OnnxBytes):
    """Parses a serialized ONNX model with its weights inside."""

    def call_impl(self) -> tuple[Any, Any, Any]:
        data = value_of(self.model_bytes)
        if self._model_precision():
            from trtops.backend.onnx.model import parse_proto

            return self._parse_model(parse_proto(bytes(data)), "the ONNX model")
        data = readable(data)
        return self._parse(lambda parser: parser.parse(data), "the ONNX model")


def readable(model_bytes: bytes) -> bytes:
    """A serialized model, changed if this release's parser would misread it; the nodes keep their positions."""
    from trtops.backend.onnx import walk
    from trtops.backend.onnx.model import parse_proto

    if library.line().reads_bare_constants or not walk.may_be_bare(model_bytes):
        return model_bytes
    model = parse_proto(bytes(model_bytes))
    return model.SerializeToString() if walk.spell_out(model) else model_bytes


def ask_parser(model: bytes) -> tuple[bool, list[tuple[frozenset[int], bool]], dict[int, str]]:
    """Ask the parser for the supported nodes of a serialized ONNX model with its weights inside. Needs no GPU.

    Returns whether it supports the whole model; connected groups of nodes that it can parse, by their positions in the
    graph, each with whether this is certain; and messages about single nodes, by position. It is rarely certain if the
    whole model is not supported: then ask about the group as a model of its own. Nodes in no group are not supported.

    Raises BackendUnavailableError if TensorRT is not installed.
    """
    trt = library.load()
    _, network = create_network()
    parser = trt.OnnxParser(network, library.get_trt_logger())
    with library.collect_log():
        supported, subgraphs = library.line().supported_subgraphs(parser, readable(model))
        parser_errors = [parser.get_error(index) for index in range(parser.num_errors)]
    groups = [(frozenset(map(int, nodes)), bool(certain)) for nodes, certain in subgraphs]
    return supported, groups, {int(error.node()): str(error.desc()).strip() for error in parser_errors}


def precisions_of(loader: Any) -> tuple[str, ...]:
    """The precisions below FP32 of a builder config's loader; none if the loader is not ours."""
    from trtops.backend.trt.building.config import CreateConfig, PostprocessConfig

    if isinstance(loader, PostprocessConfig):
        return precisions_of(loader.config)
    return loader.precisions if isinstance(loader, CreateConfig) else ()


create_network = immediately(CreateNetwork)
network_from_onnx_path = immediately(NetworkFromOnnxPath)
network_from_onnx_bytes = immediately(NetworkFromOnnxBytes)
