"""Loaders that make TensorRT networks: empty ones, and those that an ONNX model describes.

Each makes ``(builder, network)`` or, from ONNX, ``(builder, network, parser)``. Keep the parser until the engine is built: it
holds the weights. Each has a twin in snake_case, which does the same at once.
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
from trtops.backend.immediate import immediately
from trtops.backend.trt import library
from trtops.backend.trt.building import precision
from trtops.backend.trt.lines import Feature, ReleaseLine
from trtops.func import value_of
from trtops.processes import temporary_prefix

if TYPE_CHECKING:
    import onnx

NetworkParts: TypeAlias = "tuple[Any, ...]"
"""``(builder, network)`` or ``(builder, network, parser)``."""

_IN_THE_ROOT = "/model.onnx"
"""The place of a model whose weights are named from the root folder."""


@dataclass(frozen=True)
class CreateNetwork:
    """Makes an empty network, to fill with ``func.extend``.

    Attributes:
        explicit_batch: Accepted for scripts that pass it; every network has an explicit batch.
        strongly_typed: Take every precision from the tensors. On TensorRT 11 and RTX all networks do.
        mark_unfused_tensors_as_debug_tensors: Report every tensor that survives fusion to a debug listener.
    """

    explicit_batch: bool | None = None
    strongly_typed: bool = False
    mark_unfused_tensors_as_debug_tensors: bool = False

    def __call__(self) -> tuple[Any, Any]:
        """Make the builder and the network.

        Raises:
            BackendUnavailableError: If TensorRT or the GPU cannot be used here.
            UnsupportedFeatureError: If this release lacks an option that is asked for.
        """
        line = library.line()
        builder = library.make_builder()
        network = builder.create_network(line.network_flags(self.strongly_typed))
        if network is None:
            raise errors.EngineBuildError(f"{line.name} could not make a network; its log says why.")
        if self.mark_unfused_tensors_as_debug_tensors:
            line.mark_unfused_debug(network)
        return builder, network


create_network = immediately(CreateNetwork)


@dataclass(frozen=True)
class ParserOptions:
    """What both loaders from ONNX take in addition to the model.

    Attributes:
        flags: Flags of the ONNX parser (``trt.OnnxParserFlag``).
        plugin_instancenorm: Use the InstanceNormalization plugin rather than TensorRT's own layer.
        strongly_typed: Take every precision from the model. On TensorRT 11 and RTX all networks do.
        mark_unfused_tensors_as_debug_tensors: Report every tensor that survives fusion to a debug listener.
        enable_uint8_asymmetric_quantization_dla: Let the parser take UINT8 and asymmetric quantization for DLA.
        config: The builder config that the network will be built with. Where precision flags are gone, the precisions
            it asks for are written into the model before it is parsed. ``EngineFromNetwork`` fills it in.
        layer_precisions: Precisions by node name for the same purpose; :class:`SetLayerPrecisions` fills it in.
    """

    flags: Sequence[Any] | None = None
    plugin_instancenorm: bool = False
    strongly_typed: bool = False
    mark_unfused_tensors_as_debug_tensors: bool = False
    enable_uint8_asymmetric_quantization_dla: bool = False
    config: Any = None
    layer_precisions: Mapping[str, object] | None = field(default=None, kw_only=True)

    def _model_precision(self, line: ReleaseLine) -> precision.ModelPrecision:
        """The precisions to write into the model; none on releases that have flags for them."""
        if line.supports(Feature.PRECISION_FLAGS) and not self.strongly_typed:
            return precision.ModelPrecision()
        return precision.ModelPrecision.of(precisions_of(self.config), self.layer_precisions)

    def _parse_model(self, model: onnx.ModelProto, what: str) -> tuple[Any, Any, Any]:
        """Parse a model in memory, with the precisions that are to be written into it.

        Weights that a lean model (:meth:`trtops.backend.onnx.model.Model.proto`) has in files, the parser reads there.
        """
        from trtops.backend.onnx.model import is_lean
        from trtops.backend.onnx.save import serialize, serialize_lean

        wanted = self._model_precision(library.line())
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("precision")) as folder:
            if wanted:
                model = precision.write_into_model(model, wanted, Path(folder))
            if not is_lean(model):
                data = readable(serialize(model))
                return self._parse(lambda parser: parser.parse(data), what)
            lean = readable(serialize_lean(model))
            return self._parse(lambda parser: parser.parse(lean, _IN_THE_ROOT), what)

    def _parse(self, read: Callable[[Any], bool], what: str) -> tuple[Any, Any, Any]:
        line = library.line()
        trt = library.load()
        builder, network = create_network(None, self.strongly_typed, self.mark_unfused_tensors_as_debug_tensors)
        parser = trt.OnnxParser(network, library.get_trt_logger())
        line.set_parser_flags(parser, self._parser_flags(line))
        if self.enable_uint8_asymmetric_quantization_dla:
            config = self.config(builder, network) if callable(self.config) else self.config
            line.allow_uint8_on_dla(parser, builder.create_builder_config() if config is None else config)
        with library.collect_log() as lines:
            if not read(parser):
                raise errors.EngineBuildError(f"TensorRT cannot parse {what}. {_parser_errors(parser)} {lines.tail()}")
        return builder, network, parser

    def _parser_flags(self, line: ReleaseLine) -> list[Any]:
        chosen = list(self.flags or ())
        # Up to 8.6 the plugin was the parser's default; from 10 on the flag is, and the plugin has to be asked for.
        if line.supports(Feature.PARSER_FLAGS) and not self.plugin_instancenorm:
            chosen.append(line.native_instancenorm_flag())
        return chosen


@dataclass(frozen=True)
class _OnnxPath:
    path: str | os.PathLike[str]


@dataclass(frozen=True)
class NetworkFromOnnxPath(ParserOptions, _OnnxPath):
    """Parses an ONNX file, with external data beside it if it has any.

    Attributes:
        path: The file. The other attributes are those of :class:`NetworkFromOnnxBytes`.
    """

    def __call__(self) -> tuple[Any, Any, Any]:
        """Parse the file.

        Raises:
            InvalidModelError: If there is no such file.
            EngineBuildError: If TensorRT cannot parse it; the message has the parser's errors.
            BackendUnavailableError: If TensorRT or the GPU cannot be used here.
            UnsupportedFeatureError: If this release lacks an option that is asked for.
        """
        path = os.fspath(self.path)
        if not os.path.isfile(path):
            raise errors.InvalidModelError(f"{path} does not exist; expected an ONNX file.")
        if self._model_precision(library.line()):
            from trtops.backend.onnx.model import Model

            return self._parse_model(Model.load(path).proto(lean=True), path)
        if library.line().reads_bare_constants:
            return self._parse(lambda parser: parser.parse_from_file(path), path)
        data = readable(Path(path).read_bytes())
        return self._parse(lambda parser: parser.parse(data, path), path)  # the path says where external data is


network_from_onnx_path = immediately(NetworkFromOnnxPath)


@dataclass(frozen=True)
class NetworkFromModel(ParserOptions):
    """Parses a model in memory, whose weights may lie in files (:meth:`trtops.backend.onnx.model.Model.proto`, lean).

    Attributes:
        model: The model; not changed. The other attributes are those of :class:`NetworkFromOnnxBytes`.
    """

    model: onnx.ModelProto = field(kw_only=True, repr=False)

    def __call__(self) -> tuple[Any, Any, Any]:
        """Parse the model; raises what :class:`NetworkFromOnnxPath` raises, and InvalidModelError beyond 2 GiB inside."""
        return self._parse_model(self.model, "the ONNX model")


@dataclass(frozen=True)
class _OnnxBytes:
    model_bytes: ValueOrCallable[bytes] = field(repr=False)


@dataclass(frozen=True)
class NetworkFromOnnxBytes(ParserOptions, _OnnxBytes):
    """Parses a serialized ONNX model, which must have its weights inside.

    Attributes:
        model_bytes: The bytes, or a callable that makes them.
        flags: Flags of the ONNX parser (``trt.OnnxParserFlag``).
        plugin_instancenorm: Use the InstanceNormalization plugin rather than TensorRT's own layer.
        strongly_typed: Take every precision from the model. On TensorRT 11 and RTX all networks do.
        mark_unfused_tensors_as_debug_tensors: Report every tensor that survives fusion to a debug listener.
        enable_uint8_asymmetric_quantization_dla: Let the parser take UINT8 and asymmetric quantization for DLA.
        config: The builder config that the network will be built with. Where precision flags are gone, the precisions
            it asks for are written into the model before it is parsed. ``EngineFromNetwork`` fills it in.
        layer_precisions: Precisions by node name for the same purpose; :class:`SetLayerPrecisions` fills it in.
    """

    def __call__(self) -> tuple[Any, Any, Any]:
        """Parse the bytes; raises what :class:`NetworkFromOnnxPath` raises."""
        data = value_of(self.model_bytes)
        if self._model_precision(library.line()):
            from trtops.backend.onnx.parsing import parse_proto

            return self._parse_model(parse_proto(bytes(data)), "the ONNX model")
        data = readable(data)
        return self._parse(lambda parser: parser.parse(data), "the ONNX model")


network_from_onnx_bytes = immediately(NetworkFromOnnxBytes)


def readable(model_bytes: bytes) -> bytes:
    """A serialized model that this release's parser reads correctly; the nodes keep their positions.

    Raises:
        InvalidModelError: If it has to be changed for that, and is no ONNX model.
    """
    from trtops.backend.onnx import constants
    from trtops.backend.onnx.parsing import parse_proto

    if library.line().reads_bare_constants or not constants.may_be_bare(model_bytes):
        return model_bytes
    model = parse_proto(bytes(model_bytes))
    return model.SerializeToString() if constants.spell_out(model) else model_bytes


def _parser_errors(parser: Any) -> str:
    found = [parser.get_error(index) for index in range(parser.num_errors)]
    return "; ".join(f"node {error.node()}: {error.desc()}" for error in found)


def precisions_of(loader: Any) -> tuple[str, ...]:
    """The precisions below FP32 that a builder config's loader asks for; none if the loader is not ours."""
    from trtops.backend.trt.building.config import CreateConfig, PostprocessConfig

    if isinstance(loader, PostprocessConfig):
        return precisions_of(loader.config)
    return loader.precisions if isinstance(loader, CreateConfig) else ()
