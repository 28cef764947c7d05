"""Candidates of a precision search as TensorRT engines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend import trt
from trtops.backend.base import BaseRunner
from trtops.backend.common import save_bytes
from trtops.backend.onnx.save import serialize
from trtops.backend.trt import library
from trtops.backend.trt.library import line
from trtops.backend.trt.lines import Feature
from trtops.ops.search.precision import Candidate, MakeRunner, emulated_runner
from trtops.processes import temporary_prefix

Side: TypeAlias = Literal["emulated", "tensorrt"]
"""What runs candidates: 16 bit emulated on the CPU, rounded as a GPU rounds it; or TensorRT engines."""


def candidate_runner(side: Side) -> MakeRunner:
    """What makes the runners of a side."""
    return TensorRTEngines() if side == "tensorrt" else emulated_runner


class TensorRTEngines:
    """Makes the runners of :func:`trtops.ops.search.precision.precision` from TensorRT engines.

    Up to 10.x the network is weakly typed: the builder may use the lower precision, and binding layer precisions hold
    the nodes to keep. On releases that take precisions from the model, the candidate's model with its Casts is built.
    Builds share a timing cache, so that each times only new tactics.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("precision"))

    def __call__(self, candidate: Candidate) -> BaseRunner:
        """The runner of one candidate, whose engine is built when it is activated; needs TensorRT."""
        options: dict[str, Any] = {}
        if line().supports(Feature.LAYER_PRECISION):
            low = candidate.config.to
            options = {"fp16": low == "fp16", "bf16": low == "bf16", "precision_constraints": "obey"}
            network = _restrict_layers(trt.NetworkFromOnnxBytes(serialize(candidate.original)), candidate)
        else:
            network = trt.NetworkFromOnnxBytes(serialize(candidate.rewritten.model), strongly_typed=True)
        cache = Path(self._folder.name, "timing.cache")
        config = trt.CreateConfig(load_timing_cache=cache, **options)
        return trt.TrtRunner(trt.EngineFromNetwork(network, config, save_timing_cache=cache))


@dataclass(frozen=True, kw_only=True)
class EngineWriter:
    """Writes a candidate as a TensorRT engine, with binding precisions for the layers to keep.

    Attributes:
        network: Makes the network: builder, network, parser.
        config: Makes the builder config.
        path: File for the engine.
        kept_in: Precision of the kept layers: ``float32`` or ``float16``.
        save_timing_cache: File in which timings are kept from one build to the next.
    """

    network: Callable[[], Any]
    config: Callable[..., Any]
    path: str
    kept_in: str = "float32"
    save_timing_cache: str | None = None

    def __call__(self, candidate: Candidate) -> None:
        """Build and write the engine.

        Raises:
            BackendError: If the candidate cannot be built.
        """
        network = self.network
        if candidate.is_control:
            network = trt.PostprocessNetwork(network, _multiply_outputs_by_zero, "outputs of 0")
        network = _restrict_layers(network, candidate, self.kept_in)
        plan = trt.engine_bytes_from_network(network, config=self.config, save_timing_cache=self.save_timing_cache)
        save_bytes(plan, self.path)

    def runner(self, candidate: Candidate) -> BaseRunner:
        """A runner of the candidate's engine, for :func:`trtops.ops.search.precision.precision`."""
        network = _restrict_layers(self.network, candidate, self.kept_in)
        return trt.TrtRunner(trt.EngineFromNetwork(network, self.config, save_timing_cache=self.save_timing_cache))


def _restrict_layers(network: Callable[[], Any], candidate: Candidate, kept_in: str = "float32") -> Callable[[], Any]:
    """A network in which the layers to keep compute in a given precision."""
    layers = {name: kept_in for name in sorted(candidate.keep)}
    return trt.SetLayerPrecisions(network, layers) if layers else network


def _multiply_outputs_by_zero(network: Any) -> None:
    """Multiply each floating-point output by 0; outputs keep their names and their order."""
    api = library.load()
    for output in [network.get_output(i) for i in range(network.num_outputs)]:
        name = output.name
        network.unmark_output(output)
        if output.dtype in (api.float32, api.float16) and not output.is_network_input:
            zero = np.zeros([1] * len(output.shape), api.nptype(output.dtype))
            constant = network.add_constant(zero.shape, zero)
            output.name = f"{name}/right"
            product = network.add_elementwise(output, constant.get_output(0), api.ElementWiseOperation.PROD)
            constant.name, product.name = f"{name}/zero", f"{name}/control"
            output = product.get_output(0)
            output.name = name
        network.mark_output(output)


def require_layer_precisions() -> None:
    """Raise an error on releases of TensorRT without precisions of layers.

    Raises:
        BackendUnavailableError: If TensorRT is missing.
        UnsupportedFeatureError: If this release takes precisions from the model alone.
    """
    if not line().supports(Feature.LAYER_PRECISION):
        raise errors.UnsupportedFeatureError(
            f"{line().name} takes precisions from the model, and not per layer. Search the model: without --trt, or by "
            "a check that reads {model}, such as `--check trtops run {model} --trt --load-outputs golden.json`."
        )
