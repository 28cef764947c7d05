"""Load a certified engine, and verify it before any of its code runs.

Copy this file as it is: it needs numpy, and ONNX Runtime or TensorRT (8.6 to 11, no outputs of data-dependent size).
The signature, the digest of every file, expiry, release and device are verified. Files are read once, and only verified
bytes are used. The engine must then repeat the outputs in ``inputs.npz``. Nothing of trtops may be imported here.
"""

import base64
import contextlib
import ctypes
import hashlib
import importlib
import io
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_STATEMENT = "https://in-toto.io/Statement/v1", "https://model_signing/signature/v1.0", "sha256"
_Facts = Mapping[str, Any]
_Arrays = Mapping[str, np.ndarray]
_Point = tuple[int, int, int]
_Hook = Callable[[_Facts], bytes]


class EngineRefusedError(RuntimeError):
    """An engine that is not loaded; the message has the reason."""


class LoadedEngine:
    """A verified engine, called with a dict of arrays. A rebuilt one has the ``changes`` of the stack."""

    def __init__(self, infer: Callable[..., _Arrays], facts: _Facts, folder: Path, changes: list[str]) -> None:
        self._infer, self.facts, self.folder, self.changes = infer, facts, folder, changes

    def __call__(self, feed: _Arrays) -> _Arrays:
        """Infer; ValueError if an input's name, dtype or shape is not certified."""
        feed = {name: np.asarray(array) for name, array in feed.items()}
        shapes = {name: array.shape for name, array in feed.items()}
        actual = {(n, "str" if a.dtype.kind in "OU" else a.dtype.name, a.ndim) for n, a in feed.items()}
        expected = {(entry["name"], entry["dtype"], len(entry["shape"])) for entry in self.facts["inputs"]}
        static = {entry["name"]: dict.fromkeys(("min", "max"), entry["shape"]) for entry in self.facts["inputs"]}
        for index, profile in enumerate(self.facts["profiles"] or [{}]):
            if actual == expected and all(_inside(shapes[n], r) for n, r in (*static.items(), *profile.items())):
                return self._infer(feed, index)
        raise ValueError(f"Inputs {actual} {shapes} do not fit {self.facts['inputs']} {self.facts['profiles']}.")


def _inside(shape: tuple[int, ...], ranges: Mapping[str, list[int]]) -> bool:
    return all(low <= size <= high or high < 0 for low, size, high in zip(ranges["min"], shape, ranges["max"]))


def load(
    folder: str | Path, trust: str | Path, *, model: str = "", others: str = "", rebuild: _Hook | None = None
) -> LoadedEngine:
    """Verify an engine's folder, and load the engine; EngineRefusedError if anything cannot be verified.

    Args:
        folder: The folder, with the files that ``trtops certificate write`` puts there.
        trust: The signer's public key: a PEM file with an elliptic curve key of P-256.
        model: SHA-256 of the model that the engine must be of (default: any model certified with this key).
        others: A folder of such folders. If release or device have changed, an engine of the same model is taken there.
        rebuild: Called with the facts if release or device have changed; returns the bytes of a new engine.
    """
    key, folder = _public_key(Path(trust)), Path(folder)
    facts, files = _verified(folder, key)
    if model not in ("", facts["model"]["sha256"]):
        raise EngineRefusedError(f"{folder} has an engine of the model {facts['model']['sha256']}; expected {model}.")
    if not (changes := _changes(facts)):
        return _checked(files[facts["engine"]["file"]], facts, files, folder, [])
    for other in sorted(Path(others).glob("*")) if others else ():
        with contextlib.suppress(EngineRefusedError):
            other_facts, other_files = _verified(other, key)
            if other_facts["model"]["sha256"] == facts["model"]["sha256"] and not _changes(other_facts):
                return _checked(other_files[other_facts["engine"]["file"]], other_facts, other_files, other, [])
    if rebuild is None:
        raise EngineRefusedError(f"{folder} is for another stack: {'; '.join(changes)}. Build the engine again here.")
    return _checked(rebuild(facts), facts, files, folder, changes)


def _verified(folder: Path, key: _Point) -> tuple[_Facts, _Facts]:
    """Return the facts and the files of a folder, whose signature, digests, verdict and expiry are verified."""
    try:
        files = {f.name: Path(f).read_bytes() for f in os.scandir(folder) if f.is_file(follow_symlinks=False)}
        signed = _signed_digests(files.pop("certificate.sig"), key)
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        if differences := sorted({name for name, _ in digests.items() ^ signed.items()}):
            raise EngineRefusedError(f"{folder}: {', '.join(differences)} is not what was signed.")
        facts = json.loads(files["facts.json"])
        engine, expires, verdict = facts["engine"], facts["expires"], facts["verdict"]["verdict"]
        texts = [facts["environment"][name] for name in ("backend", "backend_version", "device", "device_sha256")]
        texts += facts["model"]["sha256"], engine["backend"], facts["outputs"][0]["name"]
        if facts["format"] != 1 or digests[engine["file"]] != engine["sha256"] or {type(t) for t in texts} != {str}:
            raise EngineRefusedError(f"{folder}: the certificate is of another engine, or of another format.")
        if verdict != "good" or (expires is not None and not time.time() < expires):
            reason = "the certificate has expired" if verdict == "good" else f"the engine's verdict is {verdict!r}"
            raise EngineRefusedError(f"{folder}: {reason}. Build the engine again, or certify it again.")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise EngineRefusedError(f"{folder} has no valid certificate ({type(exc).__name__}: {exc}).") from None
    return facts, files


def _signed_digests(bundle: bytes, key: _Point) -> Mapping[str, str]:
    """Return the SHA-256 by file that a bundle signs."""
    envelope = json.loads(bundle)["dsseEnvelope"]
    (signature,), payload = envelope["signatures"], base64.b64decode(envelope["payload"], validate=True)
    signed_bytes = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    if not _signs(key, base64.b64decode(signature["sig"], validate=True), signed_bytes):
        raise EngineRefusedError("The signature is not by the trusted key, or its content was changed.")
    statement = json.loads(payload)
    resources = statement["predicate"]["resources"]
    root = hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()
    kinds = statement["_type"], statement["predicateType"], *{resource["algorithm"] for resource in resources}
    if kinds != _STATEMENT or [subject["digest"]["sha256"] for subject in statement["subject"]] != [root]:
        raise ValueError("the signed statement is not about files")
    return {resource["name"]: resource["digest"] for resource in resources}


# ECDSA on P-256 (FIPS 186-5), of public values only. Points have Jacobian coordinates: (x / z^2, y / z^3).
_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_GX = 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296
_GY = 0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5
_DER_OF_KEY = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")  # what precedes its point


def _double(point: _Point) -> _Point:
    x, y, z = point
    delta, gamma = z * z % _P, y * y % _P
    beta, alpha = x * gamma % _P, 3 * (x - delta) * (x + delta) % _P
    new_x = (alpha * alpha - 8 * beta) % _P
    return new_x, (alpha * (4 * beta - new_x) - 8 * gamma * gamma) % _P, 2 * y * z % _P


def _add(first: _Point, second: _Point) -> _Point:
    (x1, y1, z1), (x2, y2, z2) = first, second
    if not z1 or not z2:
        return first if z1 else second
    u1, s1 = x1 * z2 * z2 % _P, y1 * z2**3 % _P
    h, r = (x2 * z1 * z1 - u1) % _P, (y2 * z1**3 - s1) % _P
    if not h:
        return (1, 1, 0) if r else _double(first)
    square, cube = h * h % _P, h**3 % _P
    x = (r * r - cube - 2 * u1 * square) % _P
    return x, (r * (u1 * square - x) - s1 * cube) % _P, z1 * z2 * h % _P


def _signs(key: _Point, signature: bytes, message: bytes) -> bool:
    """True if a signature in DER form is that of a message."""
    first, second = signature[4 : 4 + signature[3]], signature[6 + signature[3] :]
    r, s = int.from_bytes(first, "big"), int.from_bytes(second, "big")
    encoded = b"\x30%c\x02%c%s\x02%c%s" % (len(signature) - 2, len(first), first, len(second), second)
    if encoded != signature or not (0 < r < _N and 0 < s < _N):
        return False
    digest, inverse = int.from_bytes(hashlib.sha256(message).digest(), "big"), pow(s, -1, _N)
    u, v, total = digest * inverse % _N, r * inverse % _N, (1, 1, 0)
    summands = (None, (_GX, _GY, 1), key, _add((_GX, _GY, 1), key))
    for bit in range(255, -1, -1):  # both products share their doublings (Shamir's trick)
        total = _double(total)
        if summand := summands[(u >> bit & 1) + 2 * (v >> bit & 1)]:
            total = _add(total, summand)
    return total[2] != 0 and total[0] * pow(total[2], -2, _P) % _P % _N == r


def _public_key(path: Path) -> _Point:
    lines = path.read_text("ascii").split("-----")
    encoded = base64.b64decode(lines[2]) if len(lines) == 5 else b""
    x, y = int.from_bytes(encoded[27:59], "big"), int.from_bytes(encoded[59:], "big")
    if encoded[:27] != _DER_OF_KEY or max(x, y) >= _P:
        raise ValueError(f"{path} has no elliptic curve key of P-256 in PEM form.")
    return x, y, 1


def _changes(facts: _Facts) -> list[str]:
    """Return the changes of release and device since the engine was built."""
    built = facts["environment"]
    try:
        version = importlib.import_module(built["backend"].replace("-", "_")).__version__
        device, identity = _processor() if built["compute_capability"] is None else _gpu()
    except (ImportError, OSError, RuntimeError, LookupError, AttributeError) as exc:
        raise EngineRefusedError(f"The engine needs {built['backend']} and {built['device']}: {exc}.") from exc
    sha256 = hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()
    former = [f"{built['backend']} {built['backend_version']}", f"{built['device']} ({built['device_sha256']:.16})"]
    current = [f"{built['backend']} {version}", f"{device} ({sha256:.16})"]
    return [f"{now}, was {before}" for now, before in zip(current, former) if now != before]


def _processor() -> tuple[str, list[Any]]:
    """Return the processor's name, and what trtops identifies it by."""
    cpuinfo, machine = Path("/proc/cpuinfo"), platform.machine()
    lines = cpuinfo.read_text(errors="replace").partition("\n\n")[0].splitlines() if cpuinfo.exists() else []
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = values.get("model name") or platform.processor() or machine
    sets = r"(?<!\S)(?:s?sse|avx|fma|f16c|amx|bmi|popcnt|gfni|vnni|fp|asimd|neon|sve|sme|bf16|i8mm)\S*"
    flags = set(re.findall(sets, values.get("flags") or values.get("Features") or ""))
    model = [values.get(key, "") for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")]
    return name, [machine, name, model, sorted(flags)]


def _cuda(function: str, *arguments: Any) -> None:
    """Call the driver, whose library is where the GPU is; RuntimeError if it reports an error."""
    if status := getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments):
        raise RuntimeError(f"{function} returned {status}")


def _gpu() -> tuple[str, list[Any]]:
    """Use the first GPU in this thread, and return its name, and what trtops identifies it by."""
    name, numbers, context = ctypes.create_string_buffer(256), (ctypes.c_int * 3)(), ctypes.c_void_p()
    _cuda("cuInit", 0)
    _cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    _cuda("cuCtxSetCurrent", context)
    _cuda("cuDeviceGetName", name, 256, 0)
    for i, attribute in enumerate((75, 76, 16)):  # compute capability, its minor part, multiprocessors
        _cuda("cuDeviceGetAttribute", ctypes.byref(numbers, 4 * i), attribute, 0)
    return name.value.decode(), [name.value.decode(), f"{numbers[0]}.{numbers[1]}", numbers[2]]


def _onnxruntime(engine: bytes, facts: _Facts) -> Callable[[_Arrays, int], _Arrays]:
    ort, options = importlib.import_module("onnxruntime"), facts["engine"]["options"]
    settings = ort.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads = 4, options.get("intra_op_threads", 0)
    if engine[4:8] == b"ORTM":  # its own format: it is optimized
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Weights in further files would not be verified.
    settings.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    first, *further = options.get("providers", ["CPUExecutionProvider"])
    providers = [(first, dict(options.get("provider_settings", {}))), *further]
    session = ort.InferenceSession(engine, settings, providers=providers, enable_fallback=0)
    if session.get_providers()[0] != first:
        raise RuntimeError(f"{first} does not start")
    return lambda feed, profile: dict(zip([entry["name"] for entry in facts["outputs"]], session.run(None, dict(feed))))


class _TensorRT:
    """A TensorRT engine with one context, used by one thread at a time, in memory of GPU and processor."""

    def __init__(self, engine: bytes, facts: _Facts) -> None:
        trt = self._trt = importlib.import_module(facts["environment"]["backend"].replace("-", "_"))
        self._logger, self._lock = trt.Logger(trt.Logger.ERROR), threading.Lock()
        trt.init_libnvinfer_plugins(self._logger, "")
        self._runtime, self._memory = trt.Runtime(self._logger), dict[str, Any]()
        self._engine = self._runtime.deserialize_cuda_engine(engine)
        self._context = self._engine.create_execution_context()

    def _array(self, name: str) -> Any:
        shape, dtype = self._context.get_tensor_shape(name), self._trt.nptype(self._engine.get_tensor_dtype(name))
        size, pointer = int(np.prod(shape)) * np.dtype(dtype).itemsize, ctypes.c_void_p()
        if len(self._memory.get(name, "")) <= size:  # once for the largest shape, at least one byte
            _cuda("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size + 1), 1)
            self._memory[name] = (ctypes.c_byte * (size + 1)).from_address(pointer.value or 0)
        self._context.set_tensor_address(name, ctypes.addressof(self._memory[name]))
        return np.frombuffer(self._memory[name], np.uint8)[:size].view(dtype).reshape(tuple(shape))

    def __call__(self, feed: _Arrays, profile: int) -> _Arrays:
        names = map(self._engine.get_tensor_name, range(self._engine.num_io_tensors))
        with self._lock:
            _gpu()
            self._context.set_optimization_profile_async(profile, 0)
            for name, array in feed.items():
                self._context.set_input_shape(name, array.shape)
                self._array(name)[...] = array
            outputs = {name: self._array(name) for name in names if name not in feed}
            if not self._context.execute_async_v3(0):
                raise RuntimeError("TensorRT could not run the engine; its messages are above.")
            _cuda("cuCtxSynchronize")
            return {name: array.copy() for name, array in outputs.items()}


def _checked(engine: bytes, facts: _Facts, files: _Facts, folder: Path, changes: list[str]) -> LoadedEngine:
    kind = _TensorRT if facts["engine"]["backend"] == "tensorrt" else _onnxruntime
    try:
        stored = np.load(io.BytesIO(files["inputs.npz"]), allow_pickle=False)
        loaded = LoadedEngine(kind(engine, facts), facts, folder, changes)
        outputs = loaded({entry["name"]: stored[f"input_{i}"] for i, entry in enumerate(facts["inputs"])})
        names = [entry["name"] for entry in facts["outputs"]]
        same = [_same(outputs[n], stored[f"output_{i}"], **facts["fingerprint"][n]) for i, n in enumerate(names)]
    except Exception as exc:  # those of ONNX Runtime have no common base
        raise EngineRefusedError(f"{folder}: the engine does not run ({type(exc).__name__}: {exc}).") from exc
    if not all(same):
        raise EngineRefusedError(f"{folder}: the engine does not repeat its output {names[same.index(False)]!r}.")
    return loaded


def _same(output: np.ndarray, golden: np.ndarray, atol: float, rtol: float, agreement: float) -> bool:
    golden = golden.astype(object) if golden.dtype.kind == "U" else golden  # texts
    if (output.dtype, output.shape) != (golden.dtype, golden.shape):
        return False
    equal = (output == golden) | (output != output) & (golden != golden)  # NaN is the same as NaN
    if np.issubdtype(golden.dtype, np.floating):
        finite, agreement = np.isfinite(golden), 1.0
        wide = np.where(finite, golden, 0).astype(np.float64)
        equal |= finite & (np.abs(output - wide) <= np.maximum(atol, rtol * np.abs(wide)))
    return bool(np.count_nonzero(equal) >= agreement * equal.size)
