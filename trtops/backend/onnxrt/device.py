"""The device of sessions: this processor, or the GPU with the CUDA and cuDNN releases in use."""

import contextlib
import ctypes
import functools
import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trtops import errors
from trtops.backend import environment as surroundings
from trtops.backend.onnxrt.library import ort
from trtops.spec import GPU_PROVIDERS, Environment

log = logging.getLogger(__name__)


def environment(providers: Sequence[str]) -> Environment:
    """Return the environment of sessions with these execution providers; the first one decides the device.

    Raises BackendUnavailableError if that provider or a GPU is not available here.
    """
    facts: dict[str, Any] = {"backend": "onnxruntime", "backend_version": ort.__version__}
    packages = ("numpy", "onnx", "onnxruntime")
    if GPU_PROVIDERS.intersection(providers[:1]):
        return surroundings.environment(**facts, **_gpu(), packages=(*packages, "onnxruntime-gpu"))
    processor = surroundings.processor()
    return surroundings.environment(**facts, device=processor.name, device_sha256=processor.sha256, packages=packages)


def new_session(
    source: bytes | str, options: ort.SessionOptions, providers: Sequence[Any], disabled_optimizers: Sequence[str] = ()
) -> ort.InferenceSession:
    """Create a session on the first of the providers; BackendUnavailableError if it does not start."""
    # By default ONNX Runtime replaces a provider that fails by the CPU, with no more than a warning.
    left_out = list(disabled_optimizers)
    session = ort.InferenceSession(
        source, options, providers=list(providers), disabled_optimizers=left_out, enable_fallback=0
    )
    first = providers[0] if isinstance(providers[0], str) else providers[0][0]
    if first not in session.get_providers():
        raise errors.BackendUnavailableError(
            f"{first} does not start in onnxruntime {ort.__version__}: CUDA, cuDNN or a GPU is missing. "
            "Install the libraries (pip install 'onnxruntime-gpu[cuda,cudnn]'), or choose another provider."
        )
    return session


@functools.cache
def load_cuda() -> None:
    """Load the CUDA and cuDNN libraries of installed Python packages; ONNX Runtime does not find them itself."""
    # It prints what it cannot load. A session reports the failure where it matters.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        ort.preload_dlls()
    for line in printed.getvalue().splitlines():
        log.info("ONNX Runtime: %s", line)


@functools.cache
def _gpu() -> Mapping[str, Any]:
    """Return the environment's fields identifying the GPU and its libraries; read once per process."""
    from trtops.backend.trt.library import device, memory  # most sessions use no GPU

    load_cuda()
    if not memory.device_count():
        raise errors.BackendUnavailableError(
            "No GPU answers: a driver, a device or the package cuda-python (pip install cuda-python) is missing. "
            "Use --providers cpu, or a machine with a GPU."
        )
    version, release = ctypes.c_int(), str(getattr(ort, "cuda_version", ""))  # of the library, and that it was made for
    with contextlib.suppress(OSError):
        ctypes.CDLL(f"libcudart.so.{release.partition('.')[0]}").cudaRuntimeGetVersion(ctypes.byref(version))
    cudnn = 0
    with contextlib.suppress(OSError):
        library = ctypes.CDLL("libcudnn.so.9")
        library.cudnnGetVersion.restype = ctypes.c_size_t
        cudnn = library.cudnnGetVersion()  # such as 91301
    return {
        **device.identity(device.cuda_gpu()),
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else release,
        "cudnn": f"{cudnn // 10000}.{cudnn % 10000 // 100}.{cudnn % 100}" if cudnn else None,
    }
