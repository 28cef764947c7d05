"""Functions for networks, engines and builder configs, with Polygraphy's names, for scripts that import them from here.

The work is done in :mod:`trtops.backend.trt.describe` and :mod:`trtops.backend.trt.building`.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.building.calibrator import prepare_calibrator
from trtops.backend.trt.building.network_changes import ModifyNetworkOutputs
from trtops.backend.trt.building.profile import Profile
from trtops.backend.trt.describe.inspector import describe_engine, engine_io
from trtops.backend.trt.describe.layers import attribute_names, io_of, layer_lines, markable, tensors_of
from trtops.backend.trt.describe.network import describe_network
from trtops.backend.trt.library import dtypes
from trtops.backend.trt.library import get_trt_logger as get_trt_logger
from trtops.metadata import TensorMetadata, is_dynamic


def fail_unavailable(what: str) -> None:
    """Raise that this release does not have something."""
    raise errors.UnsupportedFeatureError(f"{what} is not available on {library.line().name}.")


def check_onnx_parser_errors(parser: Any, success: bool) -> None:
    """Raise the errors of a parser."""
    found = [str(parser.get_error(index)) for index in range(parser.num_errors)]
    if found or not success:
        raise errors.EngineBuildError("Could not parse ONNX correctly: " + ("\n".join(found) or "no reason was given"))


def get_layer_class_mapping() -> dict[Any, type]:
    """TensorRT's class of each layer type in this release: ``{trt.LayerType.SCALE: IScaleLayer}``."""
    trt = library.load()
    classes = {name.lower(): kind for name, kind in vars(trt).items() if isinstance(kind, type)}
    names = {member: f"i{name.replace('_', '')}layer".lower() for name, member in trt.LayerType.__members__.items()}
    renamed = {
        "iconditionalinputlayer": "iifconditionalinputlayer",
        "iconditionaloutputlayer": "iifconditionaloutputlayer",
    }
    wanted = {member: renamed.get(name, name) for member, name in names.items()}
    return {member: classes[name] for member, name in wanted.items() if name in classes}


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
    return _names_and_metadata(network.get_input(i) for i in range(network.num_inputs))


def get_network_output_names_meta(network: Any) -> tuple[list[str], TensorMetadata]:
    """Names and metadata of a network's outputs."""
    return _names_and_metadata(network.get_output(i) for i in range(network.num_outputs))


def get_layer_input_names_meta(layer: Any) -> tuple[list[str], TensorMetadata]:
    """Names and metadata of a layer's inputs."""
    return _names_and_metadata(layer.get_input(i) for i in range(layer.num_inputs))


def get_layer_output_names_meta(layer: Any) -> tuple[list[str], TensorMetadata]:
    """Names and metadata of a layer's outputs."""
    return _names_and_metadata(layer.get_output(i) for i in range(layer.num_outputs))


def get_layer_attribute_names(layer: Any) -> list[str]:
    """Names of a layer's own attributes."""
    return attribute_names(layer)


def str_from_layer(layer: Any, index: int) -> str:
    """Text of a layer and its tensors."""
    (_, inputs), (_, outputs) = get_layer_input_names_meta(layer), get_layer_output_names_meta(layer)
    title = f"Layer {index:<4} | {layer.name} [Op: {layer.type}]"
    return "\n".join(layer_lines(title, list(map(str, inputs.values())), list(map(str, outputs.values())))) + "\n"


def _names_to_show(show_layers: bool | None, show_attrs: bool | None, show_weights: bool | None) -> list[str]:
    asked = {"layers": show_layers, "attrs": show_attrs, "weights": show_weights}
    return [name for name, wanted in asked.items() if wanted]


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


def get_all_io_tensors(network: Any) -> dict[str, Any]:
    """A network's inputs and outputs, by name."""
    return io_of(network)


def mark_outputs(network: Any, outputs: Sequence[str]) -> None:
    """Replace the network's outputs by tensors, given by name or pattern."""
    ModifyNetworkOutputs((None, network), outputs).change(network)


def mark_layerwise(network: Any) -> None:
    """Mark all tensors as outputs that can be."""
    mark_outputs(network, markable(network))


def mark_by_layer_type(network: Any, layer_types: Sequence[str]) -> None:
    """Replace the network's outputs by the outputs of layers of these types; case does not matter."""
    ModifyNetworkOutputs((None, network), mark_layer_types=layer_types).change(network)


def unmark_outputs(network: Any, outputs: Sequence[str]) -> None:
    """Remove tensors, given by name or pattern, from the outputs."""
    ModifyNetworkOutputs((None, network), exclude_outputs=outputs).change(network)


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


def check_profile(profile: Any) -> Any:
    """Return a TensorRT profile if it is complete."""
    if not profile:
        raise errors.ConfigError(f"Profile is not valid, please provide profile data: {profile}")
    return profile


def str_from_tensor(tensor: Any, is_shape_tensor: bool) -> str:
    """One line of text for an input."""
    kind = "shape-tensor" if is_shape_tensor else "tensor"
    return f"Input {kind}: {tensor.name} (dtype={tensor.dtype}, shape={tensor.shape})"


def get_input_metadata_from_network(network: Any, profile: Any, force_opt_shapes: bool | None = None) -> TensorMetadata:
    """Metadata of a network's inputs, with the ranges of TensorRT's profile for dynamic shapes.

    Args:
        network: The network.
        profile: A TensorRT optimization profile; used for dynamic shapes.
        force_opt_shapes: Whether to return ``opt`` shapes without ranges, for calibration.
    """
    metadata = TensorMetadata()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        low: Any = None
        high: Any = None
        usual = shape = tuple(tensor.shape)
        if tensor.is_shape_tensor or any(map(is_dynamic, shape)):
            ask = profile.get_shape_input if tensor.is_shape_tensor else profile.get_shape
            low, usual, high = map(tuple, ask(tensor.name))
        if force_opt_shapes:
            metadata.add(tensor.name, dtypes.from_trt(tensor.dtype), usual)
        else:
            metadata.add(tensor.name, dtypes.from_trt(tensor.dtype), shape, low, high)
    return metadata


def try_setup_polygraphy_calibrator(config: Any, network: Any, calib_profile: Any = None) -> None:
    """Give a config's calibrator the network's input metadata, if it is one of ours.

    Args:
        config: The builder config.
        network: The network to calibrate.
        calib_profile: TensorRT's calibration profile; the config's by default.
    """
    calibrator = getattr(config, "int8_calibrator", None)
    if calibrator is None:  # not set, or not available in this release
        return
    profile = calib_profile or getattr(config, "get_calibration_profile", lambda: None)()
    if profile is None:
        return
    shapes = Profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if any(map(is_dynamic, tensor.shape)):
            shapes.add(tensor.name, *map(tuple, profile.get_shape(tensor.name)))
    prepare_calibrator(calibrator, network, shapes.fill_defaults(network))


def get_tensor_format(engine: Any, context: Any, name: str) -> Any:
    """The format of an engine's input or output, in the context's profile."""
    return engine.get_tensor_format(name, context.active_optimization_profile)


def get_hwc_shape_from_chw(shape: Sequence[int]) -> tuple[int, ...]:
    """The NHWC shape of an NCHW shape."""
    *batch, channels, height, width = shape
    return (*batch, height, width, channels)


def get_chw_shape_from_hwc(shape: Sequence[int]) -> tuple[int, ...]:
    """The NCHW shape of an NHWC shape."""
    *batch, height, width, channels = shape
    return (*batch, channels, height, width)


def get_metadata_from_engine(engine: Any, context: Any, mode: Any) -> TensorMetadata:
    """Metadata of an engine's inputs or outputs.

    Args:
        engine: The engine.
        context: Ignored.
        mode: ``trt.TensorIOMode.INPUT`` or ``OUTPUT``.
    """
    inputs, outputs = engine_io(engine)
    return inputs if mode == library.load().TensorIOMode.INPUT else outputs
