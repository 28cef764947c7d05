"""Loaders for changed networks: other outputs, precisions, data types and formats."""

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtops import errors
from trtops.backend.base import ValueOrCallable
from trtops.backend.loader import BaseLoader, immediately
from trtops.backend.trt import library
from trtops.backend.trt.building.network import NetworkParts, ParserOptions
from trtops.backend.trt.describe.layers import io_of, layer_outputs, layers_of, markable, outputs_of, tensors_of
from trtops.backend.trt.library import dtypes
from trtops.backend.trt.lines import Feature
from trtops.func import make_iterable, value_of
from trtops.patterns import expand, is_mark_all

log = logging.getLogger(__name__)


def network_parts(loaded: Any) -> NetworkParts:
    """A network loader's result: a builder, a network, perhaps a parser; ConfigError if it is something else."""
    parts: NetworkParts = make_iterable(loaded)
    if len(parts) < 2 or parts[0] is None or parts[1] is None:
        raise errors.ConfigError(f"A network comes as a builder, the network, and perhaps a parser; got {parts}.")
    return parts


@dataclass(frozen=True)
class _NetworkChange(BaseLoader[NetworkParts]):
    """Changes the network of another loader. A network passed directly is changed in place."""

    network: ValueOrCallable[NetworkParts]  # the network's parts, or a callable that makes them

    def call_impl(self) -> NetworkParts:
        parts = network_parts(value_of(self.network))
        self.change(parts[1])
        return parts

    def change(self, network: Any) -> None:
        """Change one network."""
        raise NotImplementedError


@dataclass(frozen=True)
class PostprocessNetwork(_NetworkChange):
    """Calls a function on a network."""

    func: Callable[..., None]  # called as ``func(network=network)``; changes it in place
    name: str | None = None  # the function's name in the log

    def __post_init__(self) -> None:
        if not callable(self.func):
            raise errors.ConfigError(f"PostprocessNetwork got {self.func!r} as func; expected a function.")

    def change(self, network: Any) -> None:
        log.info("Applying %s to the network", self.name or getattr(self.func, "__name__", self.func))
        self.func(network=network)


@dataclass(frozen=True)
class ModifyNetworkOutputs(_NetworkChange):
    """Replaces a network's outputs; ConfigError for an unknown name, or if no output is left."""

    # Names or patterns (``conv*``) of the tensors that replace the outputs, or
    # :data:`trtops.patterns.MARK_ALL` for every tensor that can be one. None keeps the outputs.
    outputs: Sequence[str] | str | None = None
    exclude_outputs: Sequence[str] | None = None  # names or patterns of outputs to remove
    # Types of layers (``CONVOLUTION``) whose outputs become the network's.
    mark_layer_types: Sequence[str] | None = None

    def change(self, network: Any) -> None:
        tensors = tensors_of(network)
        output_names = self._output_names(network, tensors)
        if output_names is not None:
            for tensor in tensors.values():
                if tensor.is_network_output:
                    network.unmark_output(tensor)
            for name in output_names:
                network.mark_output(tensors[name])
        for name in expand(self.exclude_outputs or (), tensors, of="The network", kind="tensor"):
            if tensors[name].is_network_output:
                network.unmark_output(tensors[name])
        if network.num_outputs == 0:
            raise errors.ConfigError(f"{self.outputs or self.exclude_outputs} leaves the network without outputs.")

    def _output_names(self, network: Any, tensors: Mapping[str, Any]) -> list[str] | None:
        if self.mark_layer_types is not None:
            types = library.load().LayerType.__members__
            names = [name.upper() for name in self.mark_layer_types]
            for name in names:
                errors.check_known(name, types, "TensorRT has no layer type")
            return [name for name, kind in layer_outputs(network) if kind in names]
        if self.outputs is None:
            return None
        if is_mark_all(self.outputs):
            return markable(network)
        return expand(
            [self.outputs] if isinstance(self.outputs, str) else self.outputs, tensors, of="The network", kind="tensor"
        )


@dataclass(frozen=True)
class SetLayerPrecisions(_NetworkChange):
    """Sets the precision of layers; ``precision_constraints`` of the builder config make it binding.

    Raises ConfigError if the network has no layer of a name.
    """

    # Data types (``trt.DataType``, numpy dtypes or names) by layer name or pattern, or by an output of the layer, since
    # nodes of a model may have no name.
    layer_precisions: Mapping[str, object] = field(default_factory=dict, metadata={"names": "trt"})
    optional: frozenset[str] = frozenset()  # names that the network may lack: the parser folds constant nodes

    def call_impl(self) -> NetworkParts:
        strongly_typed = getattr(self.network, "strongly_typed", False)
        if library.line().supports(Feature.LAYER_PRECISION) and not strongly_typed:
            return super().call_impl()
        # Without per-layer precisions the ONNX model is changed before it is parsed.
        loader = with_layer_precisions(self.network, self.layer_precisions)
        if loader is None:
            library.line().require(Feature.LAYER_PRECISION)
        parts: NetworkParts = make_iterable(value_of(loader))
        return parts

    def change(self, network: Any) -> None:
        library.line().require(Feature.LAYER_PRECISION)
        layers = {layer.name: layer for layer in layers_of(network)}
        by_output: dict[str, Any] = {}
        for layer in layers_of(network):
            by_output.update((output.name, layer) for output in outputs_of(layer) if output)
        for pattern, dtype in self.layer_precisions.items():
            if pattern in by_output and pattern not in layers:
                chosen = [by_output[pattern]]
            elif pattern in self.optional and pattern not in layers:
                log.debug("The network has no layer %r, which has no precision then.", pattern)
                continue
            else:
                chosen = [layers[name] for name in expand([pattern], layers, of="The network", kind="layer")]
            for layer in chosen:
                layer.precision = dtypes.to_trt(dtype)


@dataclass(frozen=True)
class SetTensorDatatypes(_NetworkChange):
    """Sets the data types of a network's inputs and outputs; ConfigError if a name is no input or output."""

    # Data types by tensor name or pattern, or one for all floating-point inputs and outputs.
    tensor_datatypes: Mapping[str, object] | object = field(default_factory=dict, metadata={"names": "trt"})

    def change(self, network: Any) -> None:
        tensors = io_of(network)
        dtypes_by_pattern = self.tensor_datatypes
        if not isinstance(dtypes_by_pattern, Mapping):
            dtypes_by_pattern = {
                name: dtypes_by_pattern for name, t in tensors.items() if dtypes.from_trt(t.dtype).is_floating
            }
        for pattern, dtype in dtypes_by_pattern.items():
            for name in expand([pattern], tensors, of="The network", kind="input or output"):
                tensors[name].dtype = dtypes.to_trt(dtype)


@dataclass(frozen=True)
class SetTensorFormats(_NetworkChange):
    """Sets the allowed memory formats of a network's inputs and outputs.

    Raises ConfigError if a name is no input or output, or a format does not exist.
    """

    # Formats (``trt.TensorFormat`` or their names) by tensor name or pattern, or one list for all.
    tensor_formats: Mapping[str, Sequence[Any]] | Sequence[Any] = field(
        default_factory=dict, metadata={"names": "trt.TensorFormat"}
    )

    def change(self, network: Any) -> None:
        tensors = io_of(network)
        formats_by_pattern = self.tensor_formats
        if not isinstance(formats_by_pattern, Mapping):
            formats_by_pattern = dict.fromkeys(tensors, formats_by_pattern)
        for pattern, formats in formats_by_pattern.items():
            mask = sum(1 << int(tensor_format) for tensor_format in set(library.member("TensorFormat", list(formats))))
            for name in expand([pattern], tensors, of="The network", kind="input or output"):
                tensors[name].allowed_formats = mask


@dataclass(frozen=True)
class SetDecomposableAttentions(_NetworkChange):
    """Lets the builder split attention layers without a fused kernel."""

    def change(self, network: Any) -> None:
        library.line().require(Feature.DECOMPOSABLE_ATTENTION)
        trt = library.load()
        for layer in layers_of(network):
            if layer.type == trt.LayerType.ATTENTION_INPUT:
                # ``get_layer`` returns a plain ILayer, which has no ``attention``.
                layer.__class__ = trt.IAttentionInputLayer
                layer.attention.decomposable = True


@dataclass(frozen=True)
class MarkDebug(_NetworkChange):
    """Marks tensors of the network for a debug listener; unlike outputs, they hardly prevent fusion."""

    mark_debug: Sequence[str] = ()  # names or patterns of tensors

    def change(self, network: Any) -> None:
        library.line().require(Feature.DEBUG_TENSORS)
        tensors = tensors_of(network)
        for name in expand(self.mark_debug, tensors, of="The network", kind="tensor"):
            network.mark_debug(tensors[name])


def _changed(loader: Any, **fields: Any) -> Any:
    """Return a copy with other fields; ``dataclasses.replace`` would call a subclass's own ``__init__``."""
    changed = copy.copy(loader)
    vars(changed).update(fields)
    return changed


def with_config(loader: Any, config: Any) -> Any:
    """A network loader with its builder config; other callables and networks unchanged."""
    if isinstance(loader, ParserOptions):
        return loader if loader.config is not None else _changed(loader, config=config)
    if isinstance(loader, _NetworkChange):
        return _changed(loader, network=with_config(loader.network, config))
    return loader


def with_layer_precisions(loader: Any, layer_precisions: Mapping[str, object]) -> Any:
    """A network loader with precisions to write into its ONNX model; None if it loads no ONNX model."""
    if isinstance(loader, ParserOptions):
        merged = {**(loader.layer_precisions or {}), **layer_precisions}
        return _changed(loader, layer_precisions=merged)
    if isinstance(loader, _NetworkChange):
        inner = with_layer_precisions(loader.network, layer_precisions)
        return None if inner is None else _changed(loader, network=inner)
    return None


postprocess_network = immediately(PostprocessNetwork)
modify_network_outputs = immediately(ModifyNetworkOutputs)
set_layer_precisions = immediately(SetLayerPrecisions)
set_tensor_datatypes = immediately(SetTensorDatatypes)
set_tensor_formats = immediately(SetTensorFormats)
set_decomposable_attentions = immediately(SetDecomposableAttentions)
mark_debug = immediately(MarkDebug)
