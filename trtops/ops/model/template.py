"""Templates: initial scripts for networks, builder configs, data and models, with a model's own names filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.metadata import TensorMetadata, TensorSpec, is_dynamic

Kind: TypeAlias = Literal["trt-network", "trt-config", "onnx-gs", "data-loader"]

KINDS: tuple[Kind, ...] = ("trt-network", "trt-config", "onnx-gs", "data-loader")


def template(kind: Kind, output: str | Path | None = None, *, model: str | Path | None = None) -> str:
    """Write an initial script, and return it.

    Args:
        kind: ``trt-network`` creates or changes a TensorRT network, ``trt-config`` creates a builder config,
            ``onnx-gs`` changes a model with ONNX-GraphSurgeon, ``data-loader`` generates feeds.
        output: The file to write; None writes none.
        model: An ONNX file that the script loads, with its inputs filled in.

    Raises:
        ConfigError: If there is no such kind, the file exists with other content, or ``onnx-gs`` gets no model.
        InvalidModelError: If the model cannot be read.
    """
    if kind not in KINDS:
        raise errors.ConfigError(f"There is no template {kind!r}. {errors.near(kind, KINDS)}")
    inputs = TensorMetadata().add("x", "float32", ("batch", 3, 224, 224))
    if model is not None:
        # Slow to import, and not needed for scripts without a model.
        from trtops.backend.onnx.model import input_specs
        from trtops.backend.onnx.parsing import read_proto

        inputs = TensorMetadata.of(input_specs(read_proto(model).graph))
    if kind == "trt-network":
        text = NETWORK if model is None else NETWORK_FROM_MODEL.format(model=str(model))
    elif kind == "trt-config":
        text = CONFIG if model is None else CONFIG_OF_MODEL.format(profiles=_profile_lines(inputs))
    elif kind == "data-loader":
        lines = []
        for spec in inputs.values():
            dtype = "float32" if spec.dtype is None else spec.dtype.value
            shape = _fixed_shape(spec)
            floating = spec.dtype is None or spec.dtype.is_floating
            draw = f"random.random({shape})" if floating else f"random.integers(0, 2, {shape})"
            lines.append(f"            {spec.name!r}: {draw}.astype({dtype!r}),")
        text = DATA_LOADER.format(arrays="\n".join(lines))
    elif model is None:
        raise errors.ConfigError("The onnx-gs template changes a model; give one.")
    else:
        text = ONNX_GS.format(model=str(model), changed=str(updated_path(model)))
    if output is not None:
        path, data = Path(output), text.encode()
        if path.exists() and path.read_bytes() != data:
            raise errors.ConfigError(f"{str(output)!r} exists with other content. Give another path.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return text


def updated_path(model: str | Path) -> Path:
    """Where a script saves the model that it changed: ``model_updated.onnx`` next to ``model.onnx``."""
    return Path(model).with_stem(f"{Path(model).stem}_updated")


def _fixed_shape(spec: TensorSpec, size: int = 1) -> tuple[int, ...]:
    return tuple(size if is_dynamic(dim) else int(dim) for dim in spec.shape or ())  # type: ignore[arg-type]


def _profile_lines(inputs: TensorMetadata) -> str:
    dynamic = [spec for spec in inputs.values() if any(is_dynamic(dim) for dim in spec.shape or ())]
    if not dynamic:
        return "Profile()  # every input has a fixed shape"
    calls = (
        f".add({s.name!r}, min={_fixed_shape(s, 1)}, opt={_fixed_shape(s, 1)}, max={_fixed_shape(s, 8)})"
        for s in dynamic
    )
    return "Profile()" + "".join(calls)


NETWORK = '''"""Defines a TensorRT network."""

import numpy as np

from trtops import func
from trtops.backend.trt import CreateNetwork
from trtops.backend.trt import library


@func.extend(CreateNetwork())
def load_network(builder, network):
    """Called with an empty network; engines compute the outputs marked here."""
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
    """Called with the parsed network; change it here."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        print(index, layer.type, layer.name)
'''

CONFIG = '''"""Creates a TensorRT builder config."""

from trtops import func
from trtops.backend.trt import CreateConfig


@func.extend(CreateConfig())
def load_config(builder, network, config):
    """Called with the created config; set here what CreateConfig has no option for.

    Dynamic inputs need a profile: ``CreateConfig(profiles=[Profile().add("x", min=..., opt=..., max=...)])``.
    """
'''

CONFIG_OF_MODEL = '''"""Creates a TensorRT builder config."""

from trtops import func
from trtops.backend.trt import CreateConfig, Profile

profiles = [
    {profiles},
]


@func.extend(CreateConfig(profiles=profiles))
def load_config(builder, network, config):
    """Called with the created config; set here what CreateConfig has no option for."""
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

DATA_LOADER = '''"""Generates input data; give it as "script.py" or "script.py:load_data" where a command takes data."""

import numpy as np


def load_data():
    """Yield feeds: arrays by input name. Called again whenever the data is read from the start."""
    random = np.random.default_rng(0)
    for _ in range(8):
        yield {{
{arrays}
        }}
'''
