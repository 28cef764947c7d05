"""Functions on networks, engines and builder configs, by Polygraphy's names (``polygraphy.backend.trt.util``)."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.building.network_changes import ModifyNetworkOutputs
from trtops.backend.trt.describe.inspector import describe_engine, engine_io
from trtops.backend.trt.describe.layers import inputs_of, layer_classes, outputs_of, tensors_of
from trtops.backend.trt.describe.network import describe_network
from trtops.backend.trt.library import dtypes
from trtops.backend.trt.library import get_trt_logger as get_trt_logger
from trtops.metadata import TensorMetadata


def get_layer_class_mapping() -> dict[Any, type]:
    """TensorRT's class of each layer type in this release: ``{trt.LayerType.SCALE: IScaleLayer}``."""
    return layer_classes(library.load())


def _names_and_metadata(tensors: Iterable[Any]) -> tuple[list[str], TensorMetadata]:
    metadata = TensorMetadata()
    names = []
    for tensor in tensors:
        if tensor is not None:  # an optional one that is left out
            names.append(tensor.name)
            metadata.add(tensor.name, dtypes.from_trt(tensor.dtype), tuple(tensor.shape))
    return names, metadata


def get_network_input_names_meta(network: Any) -> tuple[list[str], TensorMetadata]:
    """Names and metadata of a network's inputs."""
    return _names_and_metadata(inputs_of(network))


def get_network_output_names_meta(network: Any) -> tuple[list[str], TensorMetadata]:
    """Names and metadata of a network's outputs."""
    return _names_and_metadata(outputs_of(network))


def _names_to_show(show_layers: bool | None, show_attrs: bool | None, show_weights: bool | None) -> list[str]:
    requested = {"layers": show_layers, "attrs": show_attrs, "weights": show_weights}
    return [name for name, show in requested.items() if show]


def _below_heading(text: str) -> str:
    """A description without its heading, from the left margin on."""
    return textwrap.dedent(text.partition("\n")[2])


def str_from_network(
    network: Any, show_layers: bool | None = None, show_attrs: bool | None = None, show_weights: bool | None = None
) -> str:
    """A network's description as text; see :func:`~trtops.backend.trt.describe.network.describe_network`."""
    return _below_heading(describe_network(network).text(_names_to_show(show_layers, show_attrs, show_weights)))


def str_from_engine(
    engine: Any,
    context: Any = None,
    show_layers: bool | None = None,
    show_attrs: bool | None = None,
    combine_tensor_info: str | None = None,
) -> str:
    """An engine's description as text; see :func:`~trtops.backend.trt.describe.inspector.describe_engine`.

    ``context`` is ignored. Raises ConfigError if ``combine_tensor_info`` is given.
    """
    if combine_tensor_info is not None:
        raise errors.ConfigError(
            "combine_tensor_info is not supported here. Use: trtops inspect model --combine-tensor-info FILE"
        )
    return _below_heading(describe_engine(engine).text(_names_to_show(show_layers, show_attrs, None)))


def get_all_tensors(network: Any) -> dict[str, Any]:
    """All tensors of a network, by name."""
    return tensors_of(network)


def mark_outputs(network: Any, outputs: Sequence[str]) -> None:
    """Replace the network's outputs by tensors, given by name or pattern."""
    ModifyNetworkOutputs((None, network), outputs).change(network)


def str_from_config(config: Any, network: Any) -> str:
    """A builder config's settings, one line each: flags, memory pools, tactic sources and others."""
    trt = library.load()
    on_dla = config.DLA_core >= 0 or config.default_device_type == trt.DeviceType.DLA
    pools = [
        f"{name}: {config.get_memory_pool_limit(pool) / float(1 << 20):.2f} MiB"
        for name, pool in trt.MemoryPoolType.__members__.items()
        if on_dla or not name.startswith("DLA")
    ]
    flags = _enabled_names(trt.BuilderFlag, config.get_flag)
    if get_flag := getattr(network, "get_flag", None):
        flags += _enabled_names(trt.NetworkDefinitionCreationFlag, get_flag)
    sources = config.get_tactic_sources()
    lines = [
        ("Flags", _bracketed_text(flags)),
        ("Engine Capability", str(config.engine_capability)),
        ("Memory Pools", _bracketed_text(pools)),
        (
            "Tactic Sources",
            _bracketed_text(_enabled_names(trt.TacticSource, lambda source: (1 << int(source)) & sources)),
        ),
    ]
    if on_dla:
        lines.append(("DLA", f"Default Device Type: {config.default_device_type}, Core: {config.DLA_core}"))
    lines.append(("Profiling Verbosity", str(config.profiling_verbosity)))
    if config.num_optimization_profiles > 1:
        lines.append(("Optimization Profiles", f"{config.num_optimization_profiles} profile(s)"))
    if previews := _enabled_names(trt.PreviewFeature, config.get_preview_feature):
        lines.append(("Preview Features", _bracketed_text(previews)))
    if calibrator := getattr(config, "int8_calibrator", None):
        lines.append(("Calibrator", str(calibrator)))
    kinds, is_set = getattr(trt, "QuantizationFlag", None), getattr(config, "get_quantization_flag", None)
    if kinds is not None and is_set is not None and (quantization := _enabled_names(kinds, is_set)):
        lines.append(("Quantization Flags", _bracketed_text(quantization)))
    return "\n".join(f"{title:22} | {text}" for title, text in lines)


def _enabled_names(kind: Any, is_enabled: Callable[[Any], Any]) -> list[str]:
    return [name for name, member in kind.__members__.items() if is_enabled(member)]


def _bracketed_text(words: Iterable[str]) -> str:
    return f"[{', '.join(words)}]"


def get_metadata_from_engine(engine: Any, context: Any, mode: Any) -> TensorMetadata:
    """Metadata of an engine's inputs or outputs.

    Args:
        engine: The engine.
        context: Ignored.
        mode: ``trt.TensorIOMode.INPUT`` or ``OUTPUT``.
    """
    inputs, outputs = engine_io(engine)
    return inputs if mode == library.load().TensorIOMode.INPUT else outputs
