"""Sessions from ONNX models, under Polygraphy's names. ONNX Runtime is imported when a session is created."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.backend.loader import BaseLoader, ValueOrCallable, immediately
from trtops.func import value_of
from trtops.logger import ON_STDOUT

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import onnxruntime as ort

    from trtops.backend.onnxrt.session import ModelSource, Provider


@dataclass(frozen=True)
class SessionFromOnnx(BaseLoader["ort.InferenceSession"]):
    """Loads an ONNX Runtime session from an ONNX model."""

    # The serialized model, its path, the model itself, or a callable that returns one of them. External data is
    # found only from a path.
    model_bytes: ValueOrCallable[ModelSource]
    # Execution providers in order of preference; each a name, a part of one in any case (``cuda``), or a pair of
    # a name and options. None is the CPU.
    providers: Sequence[Provider] | None = None
    # How far ONNX Runtime optimizes, or its name (``ORT_ENABLE_BASIC``); None is all optimizations.
    graph_optimization_level: Any = field(default=None, metadata={"names": "onnxruntime.GraphOptimizationLevel"})
    interleaved: bool = False  # whether runs alternate with those of other sessions: threads sleep between runs

    def call_impl(self) -> ort.InferenceSession:
        """Create the session; it belongs to the caller.

        InvalidModelError if the model is missing, damaged or contradicts itself, UnsupportedFeatureError if an op has
        no kernel, BackendUnavailableError if this ONNX Runtime lacks an execution provider.
        """
        # Imports ONNX Runtime, which creating a loader does not need.
        from trtops.backend.onnxrt import session
        from trtops.backend.onnxrt.library import ort

        providers = session.find_providers(session.DEFAULT_PROVIDERS if self.providers is None else self.providers)
        options = session.session_options()
        if self.graph_optimization_level is not None:
            level = self.graph_optimization_level
            if isinstance(level, str):
                level = getattr(ort.GraphOptimizationLevel, level)
            options.graph_optimization_level = level
        if self.interleaved:
            session.sleep_between_runs(options)
        else:
            log.info("Creating ONNX-Runtime Inference Session with providers: %s", providers, extra=ON_STDOUT)
        return session.create_session(value_of(self.model_bytes), options, providers)


session_from_onnx = immediately(SessionFromOnnx)
