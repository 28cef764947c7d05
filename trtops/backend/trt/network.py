"""Loaders that make TensorRT networks, and loaders that change them.

Each makes ``(builder, network)`` or, from ONNX, ``(builder, network, parser)``; the parser holds weights and must live
until the engine is built. Each has an immediate twin in snake_case that does the same at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trtops import errors
from trtops.backend.base import ValueOrCallable
from trtops.backend.trt import dtypes, library, precision
from trtops.backend.trt.lines import Feature, ReleaseLine
from trtops.func import make_iterable, value_of

log = logging.getLogger(__name__)

NetworkParts: TypeAlias = "tuple[Any, ...]"
"""``(builder, network)`` or ``(builder, network, parser)``."""

MARK_ALL = "mark-all"
"""Given as ``outputs``: every tensor that can be an output becomes one. ``["mark", "all"]`` means the same."""


@dataclass(frozen=True)
class CreateNetwork:
    """Makes an empty network, to be filled by ``func.extend``.

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
            UnsupportedFeatureError: If this release cannot do what is asked.
        """
        line = library.line()
        builder = library.make_builder()
        network = builder.create_network(line.network_flags(self.strongly_typed))
        if network is None:
            raise errors.EngineBuildError(f"{line.name} could not make a network; its log says why.")
        if self.mark_unfused_tensors_as_debug_tensors:
            line.mark_unfused_debug(network)
        return builder, network


def create_network(
    explicit_batch: bool | None = None,
    strongly_typed: bool = False,
    mark_unfused_tensors_as_debug_tensors: bool = False,
) -> tuple[Any, Any]:
    """Do at once what :class:`CreateNetwork` does when called."""
    return CreateNetwork(explicit_batch, strongly_typed, mark_unfused_tensors_as_debug_tensors)()


@dataclass(frozen=True)
class _ParserOptions:
    """What both loaders from ONNX take beside the model.

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
        """What has to be written into the model; nothing on releases that have flags for it."""
        if line.supports(Feature.PRECISION_FLAGS) and not self.strongly_typed:
            return precision.ModelPrecision()
        return precision.ModelPrecision.of(precisions_of(self.config), self.layer_precisions)

    def _parse(self, read: Callable[[Any], bool], what: str) -> tuple[Any, Any, Any]:
        line = library.line()
        trt = library.load()
        builder, network = create_network(None, self.strongly_typed, self.mark_unfused_tensors_as_debug_tensors)
        parser = trt.OnnxParser(network, library.get_trt_logger())
        line.set_parser_flags(parser, self._flags(line))
        if self.enable_uint8_asymmetric_quantization_dla:
            config = self.config(builder, network) if callable(self.config) else self.config
            line.allow_uint8_on_dla(parser, builder.create_builder_config() if config is None else config)
        with library.collect_log() as lines:
            if not read(parser):
                raise errors.EngineBuildError(f"TensorRT cannot parse {what}. {_parser_errors(parser)} {lines.tail()}")
        return builder, network, parser

    def _flags(self, line: ReleaseLine) -> list[Any]:
        chosen = list(self.flags or ())
        # Up to 8.6 the plugin was the parser's default; from 10 on the flag is, and the plugin has to be asked for.
        if line.supports(Feature.PARSER_FLAGS) and not self.plugin_instancenorm:
            chosen.append(line.native_instancenorm_flag())
        return chosen


@dataclass(frozen=True)
class _OnnxPath:
    path: str | os.PathLike[str]


@dataclass(frozen=True)
class NetworkFromOnnxPath(_ParserOptions, _OnnxPath):
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
            UnsupportedFeatureError: If this release cannot do what is asked.
        """
        path = os.fspath(self.path)
        if not os.path.isfile(path):
            raise errors.InvalidModelError(f"{path} does not exist; expected an ONNX file.")
        wanted = self._model_precision(library.line())
        if wanted:
            from trtops.backend.onnx.model import Model

            data = precision.carry_out(Model.load(path).proto(), wanted).SerializeToString()
        elif library.line().reads_bare_constants:
            return self._parse(lambda parser: parser.parse_from_file(path), path)
        else:
            data = readable(Path(path).read_bytes())
        return self._parse(lambda parser: parser.parse(data, path), path)  # the path tells where external data lies


def network_from_onnx_path(
    path: str | os.PathLike[str],
    flags: Sequence[Any] | None = None,
    plugin_instancenorm: bool = False,
    strongly_typed: bool = False,
    mark_unfused_tensors_as_debug_tensors: bool = False,
    enable_uint8_asymmetric_quantization_dla: bool = False,
    config: Any = None,
) -> tuple[Any, Any, Any]:
    """Do at once what :class:`NetworkFromOnnxPath` does when called."""
    return NetworkFromOnnxPath(
        path,
        flags,
        plugin_instancenorm,
        strongly_typed,
        mark_unfused_tensors_as_debug_tensors,
        enable_uint8_asymmetric_quantization_dla,
        config,
    )()


@dataclass(frozen=True)
class _OnnxBytes:
    model_bytes: ValueOrCallable[bytes] = field(repr=False)


@dataclass(frozen=True)
class NetworkFromOnnxBytes(_ParserOptions, _OnnxBytes):
    """Parses a serialized ONNX model; weights outside it are not found this way.

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
        wanted = self._model_precision(library.line())
        if wanted:
            from trtops.backend.onnx.model import parse_proto

            data = precision.carry_out(parse_proto(bytes(data)), wanted).SerializeToString()
        data = readable(data)
        return self._parse(lambda parser: parser.parse(data), "the ONNX model")


def network_from_onnx_bytes(
    model_bytes: ValueOrCallable[bytes],
    flags: Sequence[Any] | None = None,
    plugin_instancenorm: bool = False,
    strongly_typed: bool = False,
    mark_unfused_tensors_as_debug_tensors: bool = False,
    enable_uint8_asymmetric_quantization_dla: bool = False,
    config: Any = None,
) -> tuple[Any, Any, Any]:
    """Do at once what :class:`NetworkFromOnnxBytes` does when called."""
    return NetworkFromOnnxBytes(
        model_bytes,
        flags,
        plugin_instancenorm,
        strongly_typed,
        mark_unfused_tensors_as_debug_tensors,
        enable_uint8_asymmetric_quantization_dla,
        config,
    )()


def readable(model_bytes: bytes) -> bytes:
    """A serialized model as this release's parser reads it rightly; the nodes keep their places.

    Raises:
        InvalidModelError: If it has to be changed for that, and is no model.
    """
    from trtops.backend.onnx import constants
    from trtops.backend.onnx.model import parse_proto

    if library.line().reads_bare_constants or not constants.may_be_bare(model_bytes):
        return model_bytes
    model = parse_proto(bytes(model_bytes))
    return model.SerializeToString() if constants.spell_out(model) else model_bytes


def _parser_errors(parser: Any) -> str:
    found = [parser.get_error(index) for index in range(parser.num_errors)]
    return "; ".join(f"node {error.node()}: {error.desc()}" for error in found)


def precisions_of(loader: Any) -> tuple[str, ...]:
    """The precisions below FP32 that a builder config's loader asks for; none if it does not say."""
    from trtops.backend.trt.config import CreateConfig, PostprocessConfig

    if isinstance(loader, PostprocessConfig):
        return precisions_of(loader.config)
    return loader.precisions if isinstance(loader, CreateConfig) else ()


@dataclass(frozen=True)
class _Postprocess:
    """A loader that changes what another one made. A network given as such is changed in place."""

    network: ValueOrCallable[NetworkParts]

    def __call__(self) -> NetworkParts:
        """Make the network and change it; returns everything that the inner loader made."""
        parts = make_iterable(value_of(self.network))
        self.change(parts[1])
        return parts

    def change(self, network: Any) -> None:
        """Change one network."""
        raise NotImplementedError


@dataclass(frozen=True)
class PostprocessNetwork(_Postprocess):
    """Calls a function on a network.

    Attributes:
        network: The network's parts, or a callable that makes them.
        func: Called as ``func(network=network)``; changes it in place.
        name: What to call the function in the log.
    """

    func: Callable[..., None]
    name: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.func):
            raise errors.ConfigError(f"PostprocessNetwork got {self.func!r} as func; expected a function.")

    def change(self, network: Any) -> None:
        """Call the function."""
        log.info("Applying %s to the network", self.name or getattr(self.func, "__name__", self.func))
        self.func(network=network)


def postprocess_network(
    network: ValueOrCallable[NetworkParts], func: Callable[..., None], name: str | None = None
) -> NetworkParts:
    """Do at once what :class:`PostprocessNetwork` does when called."""
    return PostprocessNetwork(network, func, name)()


@dataclass(frozen=True)
class ModifyNetworkOutputs(_Postprocess):
    """Chooses a network's outputs anew.

    Attributes:
        network: The network's parts, or a callable that makes them.
        outputs: Names or patterns (``conv*``) of the tensors to be outputs, instead of those that are; or
            :data:`MARK_ALL`. None keeps the outputs.
        exclude_outputs: Names or patterns of outputs that are to be none.
        mark_layer_types: Types of layers (``CONVOLUTION``) whose outputs are to be the network's.
    """

    outputs: Sequence[str] | str | None = None
    exclude_outputs: Sequence[str] | None = None
    mark_layer_types: Sequence[str] | None = None

    def change(self, network: Any) -> None:
        """Mark and unmark.

        Raises:
            ConfigError: If a tensor or layer type is named that the network does not have, or no output is left.
        """
        tensors = tensors_of(network)
        wanted = self._wanted(network, tensors)
        if wanted is not None:
            for tensor in tensors.values():
                if tensor.is_network_output:
                    network.unmark_output(tensor)
            for name in wanted:
                network.mark_output(tensors[name])
        for name in expand(self.exclude_outputs or (), tensors, "tensor"):
            if tensors[name].is_network_output:
                network.unmark_output(tensors[name])
        if network.num_outputs == 0:
            raise errors.ConfigError(f"{self.outputs or self.exclude_outputs} leaves the network without outputs.")

    def _wanted(self, network: Any, tensors: Mapping[str, Any]) -> list[str] | None:
        if self.mark_layer_types is not None:
            types = library.load().LayerType.__members__
            names = [name.upper() for name in self.mark_layer_types]
            for name in names:
                if name not in types:
                    raise errors.ConfigError(f"TensorRT has no layer type {name}. {errors.near(name, types)}")
            return [name for name, kind in _layer_outputs(network) if kind in names]
        if self.outputs is None:
            return None
        if self.outputs == MARK_ALL or list(self.outputs) in ([MARK_ALL], ["mark", "all"]):
            return _markable(network)
        return expand([self.outputs] if isinstance(self.outputs, str) else self.outputs, tensors, "tensor")


def modify_network_outputs(
    network: ValueOrCallable[NetworkParts],
    outputs: Sequence[str] | str | None = None,
    exclude_outputs: Sequence[str] | None = None,
    mark_layer_types: Sequence[str] | None = None,
) -> NetworkParts:
    """Do at once what :class:`ModifyNetworkOutputs` does when called."""
    return ModifyNetworkOutputs(network, outputs, exclude_outputs, mark_layer_types)()


@dataclass(frozen=True)
class SetLayerPrecisions(_Postprocess):
    """Sets the precision that layers compute in; bind it with ``precision_constraints`` of the builder config.

    On releases without per-layer precisions the ONNX model is changed instead, before it is parsed.

    Attributes:
        network: The network's parts, or a callable that makes them.
        layer_precisions: Data types by layer name or pattern: ``trt.DataType``, numpy dtypes or names.
    """

    layer_precisions: Mapping[str, object] = field(default_factory=dict)

    def __call__(self) -> NetworkParts:
        """Make the network with these precisions."""
        if library.line().supports(Feature.LAYER_PRECISION):
            return super().__call__()
        loader = with_layer_precisions(self.network, self.layer_precisions)
        if loader is None:
            library.line().require(Feature.LAYER_PRECISION)
        parts: NetworkParts = make_iterable(value_of(loader))
        return parts

    def change(self, network: Any) -> None:
        """Set the precisions.

        Raises:
            ConfigError: If a layer is named that the network does not have.
        """
        layers = {layer.name: layer for layer in layers_of(network)}
        for pattern, dtype in self.layer_precisions.items():
            for name in expand([pattern], layers, "layer"):
                library.line().set_layer_precision(layers[name], dtypes.to_trt(dtype))


def set_layer_precisions(
    network: ValueOrCallable[NetworkParts], layer_precisions: Mapping[str, object]
) -> NetworkParts:
    """Do at once what :class:`SetLayerPrecisions` does when called."""
    return SetLayerPrecisions(network, layer_precisions)()


@dataclass(frozen=True)
class SetTensorDatatypes(_Postprocess):
    """Sets the data types of a network's inputs and outputs.

    Attributes:
        network: The network's parts, or a callable that makes them.
        tensor_datatypes: Data types by tensor name or pattern, or one for all floating-point inputs and outputs.
    """

    tensor_datatypes: Mapping[str, object] | object = field(default_factory=dict)

    def change(self, network: Any) -> None:
        """Set the data types.

        Raises:
            ConfigError: If a tensor is named that is no input or output.
        """
        tensors = io_of(network)
        wanted = self.tensor_datatypes
        if not isinstance(wanted, Mapping):
            wanted = {name: wanted for name, t in tensors.items() if dtypes.from_trt(t.dtype).is_floating}
        for pattern, dtype in wanted.items():
            for name in expand([pattern], tensors, "input or output"):
                tensor = tensors[name]
                tensor.dtype = dtypes.to_trt(dtype)


def set_tensor_datatypes(
    network: ValueOrCallable[NetworkParts], tensor_datatypes: Mapping[str, object] | object
) -> NetworkParts:
    """Do at once what :class:`SetTensorDatatypes` does when called."""
    return SetTensorDatatypes(network, tensor_datatypes)()


@dataclass(frozen=True)
class SetTensorFormats(_Postprocess):
    """Sets which memory formats a network's inputs and outputs may have.

    Attributes:
        network: The network's parts, or a callable that makes them.
        tensor_formats: Formats (``trt.TensorFormat`` or their names) by tensor name or pattern, or one list for all.
    """

    tensor_formats: Mapping[str, Sequence[Any]] | Sequence[Any] = field(default_factory=dict)

    def change(self, network: Any) -> None:
        """Set the formats.

        Raises:
            ConfigError: If a tensor is named that is no input or output, or a format that does not exist.
        """
        tensors = io_of(network)
        wanted = self.tensor_formats
        if not isinstance(wanted, Mapping):
            wanted = dict.fromkeys(tensors, wanted)
        for pattern, formats in wanted.items():
            mask = 0
            for item in formats:
                mask |= 1 << int(_format(item))
            for name in expand([pattern], tensors, "input or output"):
                tensor = tensors[name]
                tensor.allowed_formats = mask


def set_tensor_formats(
    network: ValueOrCallable[NetworkParts], tensor_formats: Mapping[str, Sequence[Any]] | Sequence[Any]
) -> NetworkParts:
    """Do at once what :class:`SetTensorFormats` does when called."""
    return SetTensorFormats(network, tensor_formats)()


def _format(item: Any) -> Any:
    members = library.load().TensorFormat.__members__
    if isinstance(item, str):
        if item.upper() not in members:
            raise errors.ConfigError(f"TensorRT has no tensor format {item!r}. {errors.near(item.upper(), members)}")
        return members[item.upper()]
    return item


@dataclass(frozen=True)
class SetDecomposableAttentions(_Postprocess):
    """Lets the builder split attention layers that it has no fused kernel for."""

    def change(self, network: Any) -> None:
        """Mark the attention layers."""
        library.line().decompose_attention(network)


def set_decomposable_attentions(network: ValueOrCallable[NetworkParts]) -> NetworkParts:
    """Do at once what :class:`SetDecomposableAttentions` does when called."""
    return SetDecomposableAttentions(network)()


@dataclass(frozen=True)
class MarkDebug(_Postprocess):
    """Marks tensors whose values go to a debug listener; unlike outputs they leave fusion mostly alone.

    Attributes:
        network: The network's parts, or a callable that makes them.
        mark_debug: Names or patterns of tensors.
    """

    mark_debug: Sequence[str] = ()

    def change(self, network: Any) -> None:
        """Mark the tensors.

        Raises:
            ConfigError: If a tensor is named that the network does not have.
        """
        tensors = tensors_of(network)
        for name in expand(self.mark_debug, tensors, "tensor"):
            library.line().mark_debug(network, tensors[name])


def mark_debug(network: ValueOrCallable[NetworkParts], mark_debug: Sequence[str]) -> NetworkParts:
    """Do at once what :class:`MarkDebug` does when called."""
    return MarkDebug(network, mark_debug)()


def with_config(loader: Any, config: Any) -> Any:
    """The same network loader, told which builder config it is for; other callables and networks as they are."""
    if isinstance(loader, _ParserOptions):
        return loader if loader.config is not None else dataclasses.replace(loader, config=config)
    if isinstance(loader, _Postprocess):
        return dataclasses.replace(loader, network=with_config(loader.network, config))
    return loader


def with_layer_precisions(loader: Any, layer_precisions: Mapping[str, object]) -> Any:
    """The same network loader with these precisions to be written into its ONNX model; None if it has none."""
    if isinstance(loader, _ParserOptions):
        merged = {**(loader.layer_precisions or {}), **layer_precisions}
        return dataclasses.replace(loader, layer_precisions=merged)
    if isinstance(loader, _Postprocess):
        inner = with_layer_precisions(loader.network, layer_precisions)
        return None if inner is None else dataclasses.replace(loader, network=inner)
    return None


def layers_of(network: Any) -> list[Any]:
    """A network's layers, in order."""
    return [network.get_layer(index) for index in range(network.num_layers)]


def specialize(layer: Any) -> Any:
    """Give a layer its own class (``IConvolutionLayer``), which ``get_layer`` does not; returns the layer.

    The class of a layer type is found by name, ignoring case: ``MATRIX_MULTIPLY`` is ``IMatrixMultiplyLayer``.
    """
    trt = library.load()
    wanted = f"i{layer.type.name.replace('_', '')}layer".lower()
    own = next((cls for name, cls in vars(trt).items() if name.lower() == wanted), None)
    if own is not None:
        layer.__class__ = own
    return layer


def io_of(network: Any) -> dict[str, Any]:
    """A network's inputs and outputs, by name."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return {tensor.name: tensor for tensor in (*inputs, *outputs)}


def tensors_of(network: Any) -> dict[str, Any]:
    """All tensors of a network, by name."""
    tensors = io_of(network)
    for layer in layers_of(network):
        for index in range(layer.num_inputs):
            tensor = layer.get_input(index)
            if tensor is not None:
                tensors.setdefault(tensor.name, tensor)
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            if tensor is not None:
                tensors.setdefault(tensor.name, tensor)
    return tensors


def _layer_outputs(network: Any) -> list[tuple[str, str]]:
    """Names of all tensors that layers make, with the type of the layer."""
    made = []
    for layer in layers_of(network):
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            if tensor is not None:
                made.append((tensor.name, layer.type.name))
    return made


_LOOP_STARTS = frozenset({"TRIP_LIMIT", "ITERATOR", "RECURRENCE", "CONDITION", "CONDITIONAL_INPUT"})
_LOOP_ENDS = frozenset({"LOOP_OUTPUT", "CONDITIONAL_OUTPUT"})


def _markable(network: Any) -> list[str]:
    """Names of the tensors that may be outputs: not those inside loops and branches, nor constants and shapes."""
    names = []
    inside = False
    for name, kind in _layer_outputs(network):
        if kind in _LOOP_STARTS:
            inside = True
        elif kind in _LOOP_ENDS:
            inside = False
        if not inside and kind not in ("SHAPE", "CONSTANT"):
            names.append(name)
    return names


def expand(patterns: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """Names that patterns stand for, each once, in order.

    Raises:
        ConfigError: If one matches nothing.
    """
    names = list(known)
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not matches:
            raise errors.ConfigError(f"The network has no {what} {pattern!r}. {errors.near(pattern, names)}")
        found.update(dict.fromkeys(matches))
    return list(found)
