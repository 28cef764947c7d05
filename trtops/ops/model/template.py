"""Templates: scripts to start from, for networks, builder configs, data and models, with a model's own names filled in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.metadata import TensorMetadata, TensorSpec, is_dynamic
from trtops.record import sha256

Kind: TypeAlias = Literal["trt-network", "trt-config", "onnx-gs", "data-loader"]

KINDS: tuple[Kind, ...] = ("trt-network", "trt-config", "onnx-gs", "data-loader")
"""What there are templates for."""


def template(kind: Kind, output: str | Path | None = None, *, model: str | Path | None = None) -> str:
    """Write a script to start from.

    Args:
        kind: What for: ``trt-network`` makes or changes a TensorRT network, ``trt-config`` makes a builder config,
            ``onnx-gs`` changes a model with ONNX-GraphSurgeon, ``data-loader`` makes feeds.
        output: Where to write it; None does not.
        model: An ONNX file whose inputs are to be filled in, and which the script is to load.

    Returns:
        The script.

    Raises:
        ConfigError: If there is no such kind, the file exists already with other content, or ``onnx-gs`` gets no model.
        InvalidModelError: If the model cannot be read.
    """
    if kind not in KINDS:
        raise errors.ConfigError(f"There is no template {kind!r}. {errors.near(kind, KINDS)}")
    inputs = _model_inputs(model)
    if kind == "trt-network":
        text = NETWORK if model is None else NETWORK_FROM_MODEL.format(model=str(model))
    elif kind == "trt-config":
        text = CONFIG if model is None else CONFIG_OF_MODEL.format(profiles=_profile_lines(inputs))
    elif kind == "data-loader":
        text = DATA_LOADER.format(arrays=_array_lines(inputs))
    elif model is None:
        raise errors.ConfigError("The onnx-gs template changes a model; give one.")
    else:
        text = ONNX_GS.format(model=str(model), changed=str(updated_path(model)))
    if output is not None:
        _write_script(Path(output), text)
    return text


def updated_path(model: str | Path) -> Path:
    """Where a script saves the model that it changed: ``model_updated.onnx`` beside ``model.onnx``."""
    return Path(model).with_stem(f"{Path(model).stem}_updated")


def _write_script(path: Path, text: str) -> None:
    """Write a script, but never over what somebody may have written."""
    data = text.encode()
    if path.exists() and sha256(path.read_bytes()) != sha256(data):
        raise errors.ConfigError(f"{str(path)!r} exists already, and may be somebody's work. Give another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _model_inputs(model: str | Path | None) -> TensorMetadata:
    """The inputs of a model; without one, an example."""
    if model is None:
        return TensorMetadata().add("x", "float32", ("batch", 3, 224, 224))
    # Scripts that are not about a model are written faster than what reads one is imported.
    from trtops.backend.onnx import walk
    from trtops.backend.onnx.model import tensor_spec
    from trtops.backend.onnx.parsing import read_proto

    proto = read_proto(model)
    constants = walk.initializer_names(proto.graph)
    return TensorMetadata.of(tensor_spec(v) for v in proto.graph.input if v.name not in constants)


def _fixed_shape(spec: TensorSpec, size: int = 1) -> tuple[int, ...]:
    return tuple(size if is_dynamic(dim) else int(dim) for dim in spec.shape or ())  # type: ignore[arg-type]


def _profile_lines(inputs: Iterable[TensorSpec] | TensorMetadata) -> str:
    specs = list(inputs.values()) if isinstance(inputs, TensorMetadata) else list(inputs)
    dynamic = [spec for spec in specs if any(is_dynamic(dim) for dim in spec.shape or ())]
    if not dynamic:
        return "Profile()  # every input has a fixed shape"
    calls = (
        f".add({s.name!r}, min={_fixed_shape(s, 1)}, opt={_fixed_shape(s, 1)}, max={_fixed_shape(s, 8)})"
        for s in dynamic
    )
    return "Profile()" + "".join(calls)


def _array_lines(inputs: TensorMetadata) -> str:
    lines = []
    for spec in inputs.values():
        dtype = "float32" if spec.dtype is None else spec.dtype.value
        floating = spec.dtype is None or spec.dtype.is_floating
        draw = f"random.random({_fixed_shape(spec)})" if floating else f"random.integers(0, 2, {_fixed_shape(spec)})"
        lines.append(f"            {spec.name!r}: {draw}.astype({dtype!r}),")
    return "\n".join(lines)


NETWORK = '''"""Defines a TensorRT network."""

import numpy as np

from trtops import func
from trtops.backend.trt import CreateNetwork
from trtops.backend.trt import library


@func.extend(CreateNetwork())
def load_network(builder, network):
    """Called with an empty network; what is marked as an output here is what an engine will compute."""
    trt = library.load()
    x = network.add_input("x", trt.float32, (1, 3, 224, 224))
    one = network.add_constant((1, 1, 1, 1), np.ones((1, 1, 1, 1), np.float32)).get_output(0)
    added = network.add_elementwise(x, one, trt.ElementWiseOperation.SUM)
    added.name = "add_one"
    y = added.get_output(0)
    y.name = "y"
    network.mark_output(y)
'''

NETWORK_FROM_MODEL = '''"""Changes the TensorRT network of an ONNX model."""

from trtops import func
from trtops.backend.trt import NetworkFromOnnxPath


@func.extend(NetworkFromOnnxPath({model!r}))
def load_network(builder, network, parser):
    """Called with the network as parsed; change it here. The engine is built from what is left."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        print(index, layer.type, layer.name)
'''

CONFIG = '''"""Makes a TensorRT builder config."""

from trtops import func
from trtops.backend.trt import CreateConfig


@func.extend(CreateConfig())
def load_config(builder, network, config):
    """Called with the config as made; change here what CreateConfig has no word for.

    A model with dynamic inputs wants their shapes: ``CreateConfig(profiles=[Profile().add("x", min=..., opt=..., max=...)])``.
    """
'''

CONFIG_OF_MODEL = '''"""Makes a TensorRT builder config."""

from trtops import func
from trtops.backend.trt import CreateConfig, Profile

profiles = [
    {profiles},
]


@func.extend(CreateConfig(profiles=profiles))
def load_config(builder, network, config):
    """Called with the config as made; change here what CreateConfig has no word for."""
'''

ONNX_GS = '''"""Changes an ONNX model with ONNX-GraphSurgeon."""

import onnx_graphsurgeon as gs

from trtops.backend.onnx import gs_from_onnx, onnx_from_path, save_onnx

graph = gs_from_onnx(onnx_from_path({model!r}))

# Change the graph here.
for node in graph.nodes:
    print(node.op, node.name)

graph.cleanup().toposort()
save_onnx(gs.export_onnx(graph), {changed!r})
'''

DATA_LOADER = '''"""Makes input data; give it as "script.py" or "script.py:load_data" where data is asked for."""

import numpy as np


def load_data():
    """Yield one feed after the other: arrays by input name. Called anew whenever the data is read from the start."""
    random = np.random.default_rng(0)
    for _ in range(8):
        yield {{
{arrays}
        }}
'''
