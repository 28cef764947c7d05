"""Candidates of a precision search as TensorRT engines."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from trtops import errors
from trtops.backend import trt
from trtops.backend.base import BaseRunner
from trtops.backend.common import save_bytes
from trtops.backend.onnx.save import serialize
from trtops.backend.trt.describe.layers import layer_outputs, layers_of
from trtops.backend.trt.library import line
from trtops.backend.trt.lines import Feature
from trtops.ops.search.precision import Candidate
from trtops.system.processes import temporary_prefix


@dataclass(frozen=True, kw_only=True)
class EngineWriter:
    """Makes TensorRT engines of candidates."""

    network: Callable[[], Any] | None = None  # builder, network, parser; by default that of the candidate's model
    config: Callable[..., Any] | None = None  # the builder config; by default that of the search's precision
    path: str = ""
    kept_in: str = "float32"  # precision of the kept layers, or float16
    save_timing_cache: str | None = None  # file with timings from one build to the next; a temporary one by default
    _folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix=temporary_prefix("precision")))

    def __call__(self, candidate: Candidate) -> None:
        """Build and write the engine; a failing build raises BackendError."""
        network, config = self._network_and_config(candidate)
        plan = trt.engine_bytes_from_network(network, config=config, save_timing_cache=self.save_timing_cache)
        save_bytes(plan, self.path)

    def runner(self, candidate: Candidate) -> BaseRunner:
        """A runner of the candidate; its engine is built on activation."""
        network, config = self._network_and_config(candidate)
        cache = self.save_timing_cache or (self._own_cache if self.config is None else None)
        return trt.TrtRunner(trt.EngineFromNetwork(network, config, save_timing_cache=cache))

    @property
    def _own_cache(self) -> Path:
        return Path(self._folder.name, "timing.cache")

    def _network_and_config(self, candidate: Candidate) -> tuple[Callable[[], Any], Callable[..., Any]]:
        # Up to 10.x the network is weakly typed: the builder may use the lower precision, and binding layer precisions
        # hold the nodes to keep. Later releases take precisions from the model, so its Casts are built.
        by_layer = line().supports(Feature.LAYER_PRECISION)
        if self.network is not None:
            network = self.network
        elif by_layer:
            network = trt.NetworkFromOnnxBytes(serialize(candidate.original))
        else:
            network = trt.NetworkFromOnnxBytes(serialize(candidate.rewritten.model), strongly_typed=True)
        layers = {name: self.kept_in for name in sorted(candidate.keep)}
        if layers and (by_layer or self.network is not None):
            # The parser folds constant nodes, which have no layer then.
            network = trt.SetLayerPrecisions(network, layers, optional=frozenset(layers))
        if self.network is not None and by_layer:
            network = trt.PostprocessNetwork(network, partial(_require_nodes, candidate.original))
        if self.config is not None:
            return network, self.config
        low = candidate.config.to
        options: dict[str, Any] = {}
        if by_layer:
            options = {"fp16": low == "fp16", "bf16": low == "bf16", "precision_constraints": "obey"}
        return network, trt.CreateConfig(load_timing_cache=self._own_cache, **options)


def _require_nodes(model: onnx.ModelProto, network: Any) -> None:
    """Raise ConfigError if none of a network's layers are nodes of the model: nothing would stay in FP32 then."""
    nodes: set[str] = set()
    for node in model.graph.node:
        nodes.update((node.name, *node.output))
    layers = {layer.name for layer in layers_of(network)} | {name for name, _ in layer_outputs(network)}
    if nodes.isdisjoint(layers):
        raise errors.ConfigError(
            f"The network has {len(layers)} layers, none with the name of one of the model's {len(model.graph.node)} "
            "nodes, so none can stay in FP32. Make the network from the same model."
        )


def require_layer_precisions() -> None:
    """Raise an error if TensorRT is missing, or takes precisions from the model alone."""
    if not line().supports(Feature.LAYER_PRECISION):
        raise errors.UnsupportedFeatureError(
            f"{line().name} takes precisions from the model, and not per layer. Search the model: without --trt, or by "
            "a check that reads {model}, such as `--check trtops run {model} --trt --load-outputs golden.json`."
        )
