"""Creates sessions, finds execution providers by short names, and translates ONNX Runtime's errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import is_lean
from trtops.backend.onnx.with_onnxruntime import check_loads, limit_run_memory, out_of_memory
from trtops.backend.onnxrt.device import environment, load_cuda, new_session
from trtops.backend.onnxrt.library import ort
from trtops.extras import hidden_onnxruntime
from trtops.spec import GPU_PROVIDERS, Environment
from trtops.system.activity import Activity
from trtops.system.limits import bytes_of_files, limited_memory, too_much

if TYPE_CHECKING:
    import onnx

ModelSource: TypeAlias = "bytes | str | os.PathLike[str] | onnx.ModelProto"

# An execution provider's name, or its name with its options.
Provider: TypeAlias = str | tuple[str, Mapping[str, Any]]

_state = ort.capi.onnxruntime_pybind11_state

# The exceptions of ONNX Runtime, which have no common base class.
ORT_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(_state).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    ValueError,
)

DEFAULT_PROVIDERS: tuple[str, ...] = ("CPUExecutionProvider",)
CUDA = "CUDAExecutionProvider"
# Model files smaller than this have no weights that would justify large tensors; their run memory is limited.
SMALL = 1 << 20
# Maximum number of threads within one operator: ONNX Runtime starts any number, whatever the machine.
MAX_THREADS = 1 << 12

_NO_KERNEL = re.compile(r"Could not find an implementation for (\S+?)\((-?\d+)\) node with name '(.*?)'")
_NO_OP = re.compile(r"(\S+?)\((-?\d+)\) is not a registered function/op|No Op registered for (\S+)")


def environment_on(providers: Sequence[str]) -> Environment:
    """Return the environment of builds for these execution providers; BackendUnavailableError if one is missing."""
    find_providers(providers)
    return environment(providers)


def find_providers(
    providers: Sequence[Provider], settings: Mapping[str, str] | None = None
) -> list[str | tuple[str, dict[str, Any]]]:
    """Return full names of execution providers, given names or case-insensitive parts of names such as ``cuda``.

    ``settings`` are options of the CUDA provider. CUDA's libraries are loaded if a provider needs them.
    """
    if not providers:
        raise errors.ConfigError(
            f"No execution provider is given; expected at least one, such as {DEFAULT_PROVIDERS[0]!r}."
        )
    available: list[str] = ort.get_available_providers()
    resolved: list[str | tuple[str, dict[str, Any]]] = []
    for provider in providers:
        name, options = (provider, None) if isinstance(provider, str) else (provider[0], dict(provider[1]))
        matches = [name] if name in available else [full for full in available if name.lower() in full.lower()]
        if not matches:
            hidden, remedy = hidden_onnxruntime()
            if hidden:
                raise errors.BackendUnavailableError(f"{name} is missing: {hidden}. Do: {remedy}")
            raise errors.BackendUnavailableError(
                f"Could not find specified ONNX-Runtime execution provider {name!r}. onnxruntime {ort.__version__} has "
                f"{', '.join(available)}. Install the onnxruntime package that has it (onnxruntime-gpu for CUDA and "
                "TensorRT), or choose another."
            )
        if matches[0] in GPU_PROVIDERS:
            load_cuda()
        if matches[0] == CUDA and settings:
            options = {**settings, **(options or {})}
        resolved.append(matches[0] if options is None else (matches[0], options))
    return resolved


def usable_threads(requested: int = 0) -> int:
    """Return the number of threads within one operator: the requested one, or 0 for ONNX Runtime's choice."""
    # ONNX Runtime binds one thread to each core of the machine, which fails where the process may use only some cores.
    if requested or not hasattr(os, "sched_getaffinity"):
        return requested
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else 0


def session_options(threads: int = 0, *, log_id: str | None = None) -> ort.SessionOptions:
    """Return session options with warnings logged under ``log_id``, or only errors without one."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_threads(threads)
    if log_id is None:
        options.log_severity_level = 3
    else:
        options.logid = log_id
    return options


def sleep_between_runs(options: ort.SessionOptions) -> None:
    """Let a session's threads sleep after a run."""
    # By default they spin for up to a second, waiting for the next run, and take cores from other sessions: on two
    # cores, a session timed in turns with another one appeared twice as slow.
    options.add_session_config_entry("session.force_spinning_stop", "1")


def create_session(source: ModelSource, options: ort.SessionOptions, providers: Sequence[Any]) -> ort.InferenceSession:
    """Create a session from a model; raises as :class:`trtops.backend.onnxrt.loader.SessionFromOnnx`."""
    if not isinstance(source, (bytes, str, os.PathLike)):
        if is_lean(source):
            # Its weights are read from their files, one at a time. `check_loads` is left out: its child process would
            # not find them.
            # Imports onnx, which takes as long as ONNX Runtime, and which a model file does not need.
            from trtops.backend.onnx.save import serialize_lean

            options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
            return _new_session(serialize_lean(source), "The model", walk.weight_bytes(source), options, providers)
        try:
            source = source.SerializeToString()
        # EncodeError or ValueError, depending on protobuf's release.
        except Exception as exc:
            raise errors.InvalidModelError(
                f"The model cannot be serialized ({exc}); a message holds at most 2 GiB. Save it with external data "
                "and give its path."
            ) from exc
    if isinstance(source, bytes):
        name, size = "The model", len(source)
        small = size < SMALL
    else:
        name = str(source)
        if not Path(source).is_file():
            raise errors.InvalidModelError(f"{name} is not a file; expected an ONNX model.")
        size = bytes_of_files(source)
        small = Path(source).stat().st_size < SMALL and size < 64 * SMALL
        source = os.fspath(source)
    if small:
        limit_run_memory(options)
    try:
        check_loads(source)
    except errors.InferenceError as exc:
        raise errors.InvalidModelError(f"{name}: {exc}") from exc
    return _new_session(source, name, size, options, providers)


def _new_session(
    source: bytes | str, name: str, size: int, options: ort.SessionOptions, providers: Sequence[Any]
) -> ort.InferenceSession:
    """Create a session of a model with ``size`` bytes of weights."""
    try:
        # Constant folding may produce tensors of any size.
        with limited_memory(4 * size), Activity(f"loading {name} in ONNX Runtime"):
            return new_session(source, options, providers)
    except (MemoryError, *ORT_ERRORS) as exc:  # type: ignore[misc]
        if isinstance(exc, MemoryError) or out_of_memory(exc):
            raise errors.InvalidModelError(too_much(f"{name}, loaded in onnxruntime,")) from exc
        if missing := unsupported_op(exc):
            raise errors.UnsupportedFeatureError(
                f"{name}: onnxruntime {ort.__version__} has no kernel for op {missing[0]!r} (node {missing[1]!r}) with "
                f"these types on {providers[0]}. It reported: {why(exc)}"
            ) from exc
        raise errors.InvalidModelError(f"{name} does not load in onnxruntime {ort.__version__}: {why(exc)}") from exc


def why(exc: Exception) -> str:
    """Return ONNX Runtime's message on one line, without its prefix of names and numbers."""
    text = re.sub(r"^\[ONNXRuntimeError\] : -?\d+ : \w+ : ", "", str(exc).strip())
    return " ".join(text.split())


def unsupported_op(exc: Exception) -> tuple[str, str] | None:
    """Return op type and node name (may be empty) if an error reports an unknown op or a missing kernel."""
    text = str(exc)
    if match := _NO_KERNEL.search(text):
        return match[1], match[3]
    if match := _NO_OP.search(text):
        return match[1] or match[3], ""
    return None
