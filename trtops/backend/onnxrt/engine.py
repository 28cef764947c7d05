"""Engines as bytes with their load options; each loads only on its own release and processor."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from trtops import errors
from trtops.backend.base import Engine, ValueOrCallable
from trtops.backend.onnx import walk
from trtops.backend.onnx.external import is_external
from trtops.backend.onnx.with_onnxruntime import limit_run_memory
from trtops.backend.onnxrt.device import environment as environment_of
from trtops.backend.onnxrt.device import new_session
from trtops.backend.onnxrt.library import ort
from trtops.backend.onnxrt.session import (
    CUDA,
    DEFAULT_PROVIDERS,
    MAX_THREADS,
    ORT_ERRORS,
    SMALL,
    find_providers,
    session_options,
    sleep_between_runs,
    why,
)
from trtops.backend.onnxrt.tactics import Candidate
from trtops.func import value_of
from trtops.record import JSONValue
from trtops.spec import Environment, OnnxRuntimeOptions
from trtops.system.activity import Activity

BACKEND = "onnxruntime"
_VERSION = 1
_DEFAULTS = OnnxRuntimeOptions()


def pack(
    plan: bytes,
    candidate: Candidate,
    options: OnnxRuntimeOptions,
    environment: Environment,
    further_options: Mapping[str, JSONValue],
) -> Engine:
    """Return an engine with its session options for loading, and further ones."""
    settings: dict[str, JSONValue] = dict(provider_settings(options, candidate))
    engine_options: dict[str, JSONValue] = {
        "version": _VERSION,
        "providers": list(options.providers),
        **({"provider_settings": settings} if settings else {}),
        "intra_op_threads": options.intra_op_threads,
        **further_options,
    }
    return Engine.packed(BACKEND, plan, engine_options, environment)


@dataclass(frozen=True)
class SessionFromEngine:
    """Loads a session from an engine, or from a callable returning one, without optimizing it again.

    An engine without options is a bare file: it is loaded on the CPU, and only ONNX Runtime checks its bytes.
    """

    engine: ValueOrCallable[Engine]
    interleaved: bool = False

    def __call__(self) -> ort.InferenceSession:
        """Check the engine and create the session; it belongs to the caller."""
        engine = value_of(self.engine)
        if engine.backend != BACKEND:
            raise errors.EngineLoadError(f"The engine belongs to back end {engine.backend!r}; expected {BACKEND!r}.")
        options: Mapping[str, Any] = engine.options
        if not options:
            engine.check_place(environment_of(DEFAULT_PROVIDERS))
            return open_plan(engine.plan, interleaved=self.interleaved)
        if options.get("version") != _VERSION:
            raise errors.EngineLoadError(
                f"The engine's options have version {options.get('version')!r}; expected {_VERSION}. Build the engine "
                "again, or load it with the trtops that built it."
            )
        engine.check_bytes()
        providers, threads = options.get("providers"), options.get("intra_op_threads")
        settings = options.get("provider_settings", {})
        if (
            not isinstance(providers, (list, tuple))
            or not all(isinstance(p, str) for p in providers)
            or not isinstance(settings, Mapping)
            or type(threads) is not int
            or not 0 <= threads <= MAX_THREADS
        ):
            raise errors.EngineLoadError(
                f"The engine's options name providers {providers!r:.200} and intra_op_threads {threads!r:.80}; "
                f"expected a list of names and a number from 0 to {MAX_THREADS}."
            )
        engine.check_place(environment_of(tuple(providers)))
        usual = OnnxRuntimeOptions(providers=tuple(providers), intra_op_threads=threads)
        if is_onnx := options.get("format") == "ONNX":
            onnx_engine(engine.plan)
        return open_plan(engine.plan, usual, settings, interleaved=self.interleaved, is_onnx=is_onnx)


def onnx_engine(plan: bytes) -> onnx.ModelProto:
    """Return an ONNX file that serves as an engine; EngineLoadError for another file, or if it needs further files."""
    proto = onnx.ModelProto()
    with contextlib.suppress(Exception):  # protobuf's errors have no common base
        proto.ParseFromString(plan)
    if not proto.HasField("graph"):
        raise errors.EngineLoadError(
            "The engine is neither in ONNX Runtime's format nor an ONNX file, or it is damaged."
        )
    if any(map(is_external, walk.tensors(proto))):
        raise errors.EngineLoadError(
            "The engine's weights are in other files; expected one file. Save the ONNX file with its weights inside."
        )
    return proto


def open_plan(
    plan: bytes | Path,
    options: OnnxRuntimeOptions = _DEFAULTS,
    settings: Mapping[str, str] | None = None,
    *,
    interleaved: bool = False,
    quiet: bool = False,
    profile: str = "",
    is_onnx: bool = False,
) -> ort.InferenceSession:
    """Create a session from an optimized model, or its file, without optimizing it further.

    A ``quiet`` one prints no errors.

    An ONNX file (``is_onnx``) is optimized as ONNX Runtime does by default.
    ``settings`` are those of :func:`provider_settings`; ``profile`` is the prefix of the file for a profile, if any.
    """
    session = session_options(options.intra_op_threads)
    if quiet:
        session.log_severity_level = 4  # fatal; an error is raised as an exception as well
    if not is_onnx:
        session.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session.add_session_config_entry("session.load_model_format", "ORT")
    if profile:
        session.enable_profiling, session.profile_file_prefix = True, profile
    if interleaved:
        sleep_between_runs(session)
    if (len(plan) if isinstance(plan, bytes) else plan.stat().st_size) < SMALL:
        limit_run_memory(session)
    try:
        with Activity("loading an engine in ONNX Runtime"):
            source = plan if isinstance(plan, bytes) else str(plan)
            return new_session(source, session, find_providers(options.providers, settings))
    except ORT_ERRORS as exc:
        raise errors.EngineLoadError(f"ONNX Runtime {ort.__version__} does not load the engine: {why(exc)}") from exc


def provider_settings(options: OnnxRuntimeOptions, candidate: Candidate) -> dict[str, str]:
    """Return the CUDA provider's options for loading a build's engines."""
    if CUDA not in options.providers:
        return {}
    return {"use_tf32": str(int(options.tf32)), **candidate.provider_settings}
