"""Sessions from ONNX models, under the names that the field's tool gave the loaders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnxruntime as ort

from trtops import errors
from trtops.backend.onnxrt.session import (
    DEFAULT_PROVIDERS,
    ORT_ERRORS,
    Provider,
    find_providers,
    session_options,
    unsupported_op,
    why,
)
from trtops.backend.runner import ValueOrCallable

if TYPE_CHECKING:
    import onnx

ModelSource: TypeAlias = "bytes | str | os.PathLike[str] | onnx.ModelProto"


@dataclass(frozen=True)
class SessionFromOnnx:
    """Loads an ONNX Runtime session from an ONNX model.

    Attributes:
        model_bytes: The serialized model, its path, the model itself, or a callable that returns one of them. External
            data is found only from a path.
        providers: Execution providers in order of preference; each a name, a part of one in any case (``cuda``), or a
            pair of a name and options. None is the CPU.
        graph_optimization_level: An ``onnxruntime.GraphOptimizationLevel``; None is all optimizations.
    """

    model_bytes: ValueOrCallable[ModelSource]
    providers: Sequence[Provider] | None = None
    graph_optimization_level: Any = None

    def __call__(self) -> ort.InferenceSession:
        """Create the session, which belongs to the caller.

        Raises:
            InvalidModelError: If the model is missing, damaged or contradicts itself.
            UnsupportedFeatureError: If an op has no kernel here.
            BackendUnavailableError: If this ONNX Runtime does not have an execution provider.
        """
        source = self.model_bytes() if callable(self.model_bytes) else self.model_bytes
        providers = find_providers(DEFAULT_PROVIDERS if self.providers is None else self.providers)
        options = session_options()
        if self.graph_optimization_level is not None:
            options.graph_optimization_level = self.graph_optimization_level
        return create_session(source, options, providers)


def session_from_onnx(
    model_bytes: ValueOrCallable[ModelSource],
    providers: Sequence[Provider] | None = None,
    graph_optimization_level: Any = None,
) -> ort.InferenceSession:
    """Load a session at once; see :class:`SessionFromOnnx`."""
    return SessionFromOnnx(model_bytes, providers, graph_optimization_level)()


def create_session(source: ModelSource, options: ort.SessionOptions, providers: Sequence[Any]) -> ort.InferenceSession:
    """Create a session, with errors of ours.

    Raises:
        InvalidModelError: If the model is missing, damaged or contradicts itself.
        UnsupportedFeatureError: If an op has no kernel here.
    """
    if not isinstance(source, (bytes, str, os.PathLike)):
        source = source.SerializeToString()
    name = "The model" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise errors.InvalidModelError(f"{name} is not a file; expected an ONNX model.")
    try:
        return ort.InferenceSession(
            source if isinstance(source, bytes) else os.fspath(source), options, providers=list(providers)
        )
    except ORT_ERRORS as exc:
        if missing := unsupported_op(exc):
            raise errors.UnsupportedFeatureError(
                f"{name}: onnxruntime {ort.__version__} has no kernel for op {missing[0]!r} (node {missing[1]!r}) with "
                f"these types on {providers[0]}. It said: {why(exc)}"
            ) from exc
        raise errors.InvalidModelError(f"{name} does not load in onnxruntime {ort.__version__}: {why(exc)}") from exc
