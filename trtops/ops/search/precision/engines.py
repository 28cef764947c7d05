"""Candidates of a precision search as TensorRT engines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtops.backend.base import BaseRunner
from trtops.ops.search.precision.op import Candidate


class TensorRTEngines:
    """Makes the runners of :func:`trtops.ops.search.precision.precision` from TensorRT engines.

    Up to 10.x the network is weakly typed: the builder may use the lower precision, and binding layer precisions hold the
    nodes to keep. Where precisions come from the model, the candidate's model with its Cast nodes is built as it is. Builds
    share a timing cache, so that a candidate times only what the ones before it did not.
    """

    def __init__(self, optimization_level: int | None = None) -> None:
        """Choose how long the builder may search.

        Args:
            optimization_level: The builder's, 0 to 5; its own default unless given.
        """
        self._level = optimization_level
        self._folder = tempfile.TemporaryDirectory(prefix="trtops-precision-")

    def __call__(self, candidate: Candidate) -> BaseRunner:
        """The runner of one candidate; its engine is built when the runner is activated.

        Raises:
            BackendUnavailableError: If there is no TensorRT.
        """
        from trtops.backend.onnx.save import serialize
        from trtops.backend.trt import CreateConfig, EngineFromNetwork, NetworkFromOnnxBytes, TrtRunner
        from trtops.backend.trt.library import line
        from trtops.backend.trt.lines import Feature

        cache = Path(self._folder.name, "timing.cache")
        if line().supports(Feature.LAYER_PRECISION):
            low = candidate.config.to
            config = CreateConfig(
                fp16=low == "fp16",
                bf16=low == "bf16",
                precision_constraints="obey",
                builder_optimization_level=self._level,
                load_timing_cache=cache,
            )
            network = restricted(NetworkFromOnnxBytes(serialize(candidate.original)), candidate)
        else:
            config = CreateConfig(builder_optimization_level=self._level, load_timing_cache=cache)
            network = NetworkFromOnnxBytes(serialize(candidate.rewritten.model), strongly_typed=True)
        return TrtRunner(EngineFromNetwork(network, config, save_timing_cache=cache))


def restricted(network: Callable[[], Any], candidate: Candidate, kept_in: str = "float32") -> Callable[[], Any]:
    """A network whose layers compute in a candidate's precisions, as far as layer precisions say so.

    Args:
        network: Makes the network: builder, network, parser.
        candidate: Names the nodes to keep.
        kept_in: What the kept nodes compute in: ``float32`` or ``float16``.
    """
    from trtops.backend.trt import SetLayerPrecisions

    layers = {name: kept_in for name in sorted(candidate.keep)}
    return SetLayerPrecisions(network, layers) if layers else network
