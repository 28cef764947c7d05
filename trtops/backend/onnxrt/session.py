"""Sessions created, execution providers found by short name, and ONNX Runtime's errors told by what they mean."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from trtops import errors
from trtops.backend.onnx import external, walk
from trtops.backend.onnx.model import is_lean
from trtops.backend.onnx.save import save_model, serialize_lean
from trtops.backend.onnx.with_onnxruntime import check_loads, limit_run_memory, out_of_memory
from trtops.limits import bytes_of_files, limited_memory, too_much
from trtops.processes import temporary_prefix

if TYPE_CHECKING:
    import onnx

ModelSource: TypeAlias = "bytes | str | os.PathLike[str] | onnx.ModelProto"

Provider: TypeAlias = "str | tuple[str, Mapping[str, Any]]"
"""An execution provider's name, or its name with its options."""

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(_state).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    ValueError,
)
"""What ONNX Runtime raises; its classes have no base of their own."""

DEFAULT_PROVIDERS: tuple[str, ...] = ("CPUExecutionProvider",)

SMALL = 1 << 20
"""Bytes of a model's file below which what its nodes make is limited: it has no weights that would explain much."""

MOST_THREADS = 1 << 12
"""Threads within one operator that may be asked for: ONNX Runtime starts as many as it is told, whatever the machine."""

_NO_KERNEL = re.compile(r"Could not find an implementation for (\S+?)\((-?\d+)\) node with name '(.*?)'")
_NO_OP = re.compile(r"(\S+?)\((-?\d+)\) is not a registered function/op|No Op registered for (\S+)")


def find_providers(providers: Sequence[Provider]) -> list[str | tuple[str, dict[str, Any]]]:
    """Full names of execution providers, for names or case-insensitive parts of names such as ``cuda``.

    Raises:
        ConfigError: If none is asked for.
        BackendUnavailableError: If this ONNX Runtime does not have one of them.
    """
    if not providers:
        raise errors.ConfigError(
            f"No execution provider is given; expected at least one, such as {DEFAULT_PROVIDERS[0]!r}."
        )
    found: list[str | tuple[str, dict[str, Any]]] = []
    for provider in providers:
        if isinstance(provider, str):
            found.append(_find_provider(provider))
        else:
            found.append((_find_provider(provider[0]), dict(provider[1])))
    return found


def _find_provider(name: str) -> str:
    available: list[str] = ort.get_available_providers()
    if name in available:
        return name
    for full in available:
        if name.lower() in full.lower():
            return full
    raise errors.BackendUnavailableError(
        f"Execution provider {name!r} is not in this onnxruntime {ort.__version__}, which has {', '.join(available)}. "
        "Install the onnxruntime package that has it (onnxruntime-gpu for CUDA and TensorRT), or ask for another."
    )


def usable_threads(asked: int = 0) -> int:
    """Threads within one operator: as many as asked, or 0 for ONNX Runtime's own choice.

    That choice is one thread per core of the machine, each bound to its core, which fails where the process may use
    some cores only: there it is one thread per usable core instead.
    """
    if asked or not hasattr(os, "sched_getaffinity"):
        return asked
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else 0


def session_options(threads: int = 0, *, log_id: str | None = None) -> ort.SessionOptions:
    """Session options with threads set, which warn under ``log_id``, or are silent below errors without one."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_threads(threads)
    if log_id is None:
        options.log_severity_level = 3
    else:
        options.logid = log_id
    return options


def sleep_between_runs(options: ort.SessionOptions) -> None:
    """Let a session's threads sleep once a run has ended.

    They would spin for up to a second, waiting for the next one (``session.force_spinning_stop`` in ONNX Runtime's session
    config keys): each on a core that whatever runs next, or is being timed, does not get. On two cores a session that takes
    turns with another one took twice as long for it, and not in the proportion of both.
    """
    options.add_session_config_entry("session.force_spinning_stop", "1")


def create_session(source: ModelSource, options: ort.SessionOptions, providers: Sequence[Any]) -> ort.InferenceSession:
    """Create a session, with errors of ours.

    Raises:
        InvalidModelError: If the model is missing, damaged or contradicts itself.
        UnsupportedFeatureError: If an op has no kernel here.
    """
    if not isinstance(source, (bytes, str, os.PathLike)):
        if is_lean(source):
            own = sum(external.expected_bytes(tensor) or 0 for tensor in walk.tensors(source))
            with lean_source(source, options) as place:  # a child would not find its weights, which `check_loads` uses
                return _new_session(place, "The model", own, options, providers)
        try:
            source = source.SerializeToString()
        except Exception as exc:  # EncodeError or ValueError, as protobuf's release has it
            raise errors.InvalidModelError(
                f"The model cannot be serialized ({exc}); a message holds at most 2 GiB. Save it with external data and "
                "give its path."
            ) from exc
    name = "The model" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise errors.InvalidModelError(f"{name} is not a file; expected an ONNX model.")
    own = len(source) if isinstance(source, bytes) else bytes_of_files(source)
    if (len(source) if isinstance(source, bytes) else Path(source).stat().st_size) < SMALL and own < 64 * SMALL:
        limit_run_memory(options)
    source = source if isinstance(source, bytes) else os.fspath(source)
    try:
        check_loads(source)
    except errors.InferenceError as exc:
        raise errors.InvalidModelError(f"{name}: {exc}") from exc
    return _new_session(source, name, own, options, providers)


def _new_session(
    source: bytes | str, name: str, own: int, options: ort.SessionOptions, providers: Sequence[Any]
) -> ort.InferenceSession:
    """A session of a model of so many bytes; raises as :func:`create_session`."""
    try:
        with limited_memory(4 * own):  # it computes what is constant, which may be of any size
            return ort.InferenceSession(source, options, providers=list(providers))
    except MemoryError:
        raise errors.InvalidModelError(too_much(f"{name}, loaded in onnxruntime,")) from None
    except ORT_ERRORS as exc:
        if out_of_memory(exc):
            raise errors.InvalidModelError(too_much(f"{name}, loaded in onnxruntime,")) from exc
        if missing := unsupported_op(exc):
            raise errors.UnsupportedFeatureError(
                f"{name}: onnxruntime {ort.__version__} has no kernel for op {missing[0]!r} (node {missing[1]!r}) with "
                f"these types on {providers[0]}. It said: {why(exc)}"
            ) from exc
        raise errors.InvalidModelError(f"{name} does not load in onnxruntime {ort.__version__}: {why(exc)}") from exc


READS_LEAN = tuple(int(part) for part in re.findall(r"\d+", ort.__version__)[:2]) >= (1, 21)
"""Whether this ONNX Runtime finds the weights of a model in memory in files; it has since 1.21.1 (tried: 1.20.1 does not)."""


@contextlib.contextmanager
def lean_source(model: onnx.ModelProto, options: ort.SessionOptions) -> Iterator[bytes | str]:
    """What a session of a lean model is made of, while it is made: its weights are read from their files, one at a time.

    Args:
        model: The model (:meth:`trtops.backend.onnx.model.Model.proto`); not changed.
        options: The session's, which are told where the files are.

    Raises:
        InvalidModelError: If what is inside it is more than a message holds.
        ExternalDataError: If a file of weights is gone.
    """
    if READS_LEAN:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        yield serialize_lean(model)
        return
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("model")) as folder:
        path = Path(folder, "model.onnx")
        save_model(model, path, external_data_path="")
        yield str(path)


def why(exc: Exception) -> str:
    """ONNX Runtime's message without its prefix of names and numbers, on one line."""
    text = re.sub(r"^\[ONNXRuntimeError\] : -?\d+ : \w+ : ", "", str(exc).strip())
    return " ".join(text.split())


def unsupported_op(exc: Exception) -> tuple[str, str] | None:
    """Op type and node name, if an error says that an op or its kernel does not exist; the node's name may be empty."""
    text = str(exc)
    if found := _NO_KERNEL.search(text):
        return found[1], found[3]
    if found := _NO_OP.search(text):
        return found[1] or found[3], ""
    return None
