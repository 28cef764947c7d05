"""Certified folders, written by their format and not by the product's writer."""

import base64
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.models import Case
from trtops.backend.base import BuildRequest, Engine
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.record import digest as digest
from trtops.record import sha256 as sha256
from trtops.spec import BuildConfig
from trtops.system import signing

Facts = dict[str, Any]


def built(case: Case, config: BuildConfig | None = None) -> tuple[Engine, Facts, bytes]:
    """An engine of ONNX Runtime, its facts, and the bytes of ``inputs.npz``."""
    model, backend = Model.from_proto(case.proto), engine_backend("onnxruntime")
    engine = backend.build(BuildRequest(model, config or BuildConfig())).engine
    with backend.runner(engine) as runner:
        outputs = runner.infer(dict(case.feed))
    arrays = {f"input_{i}": case.feed[tensor.name] for i, tensor in enumerate(model.info.inputs)}
    arrays |= {f"output_{i}": outputs[tensor.name] for i, tensor in enumerate(model.info.outputs)}
    return engine, facts_of(engine, model, outputs), npz(arrays)


def facts_of(engine: Engine, model: Model, outputs: Any, **fields: Any) -> Facts:
    def described(tensors: Any) -> list[Facts]:
        return [
            {
                "name": tensor.name,
                "dtype": "str" if tensor.dtype == "str" else np.dtype(tensor.dtype).name,
                "shape": [size if isinstance(size, int) else -1 for size in tensor.shape],
            }
            for tensor in tensors
        ]

    return {
        "format": 1, "run": "0" * 32, "experiment": "tests", "made": time.time(), "expires": None,
        "model": {"name": model.name, "sha256": model.info.sha256},
        "engine": {"file": "engine.ort", "sha256": engine.sha256, "bytes": len(engine.plan), "backend": engine.backend,
                   "options": json.loads(json.dumps(engine.options))},
        "environment": engine.environment.to_dict(), "spec_sha256": None, "unknown": [], "precision": "fp32",
        "profiles": [], "inputs": described(model.info.inputs), "outputs": described(model.info.outputs),
        "verdict": {"verdict": "good", "reasons": [], "evidence": {}, "limits": {}, "margin": None,
                    "data_sha256": None, "self_check": None},
        "fingerprint": {name: {"atol": 1e-6, "rtol": 1e-5, "agreement": 1.0} for name in outputs},
        **fields,
    }  # fmt: skip


def npz(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{n: a.astype(str) if a.dtype == object else a for n, a in arrays.items()})  # type: ignore[arg-type]
    return file.getvalue()


def write(
    folder: Path, engine: bytes, facts: Facts, inputs: bytes, change: Callable[[Facts], object] | None = None
) -> Path:
    """Write a folder, signed with the key of the environment, with ``change`` applied to its facts."""
    facts = json.loads(json.dumps(facts))
    if change is not None:
        change(facts)
    folder.mkdir(parents=True)
    files = {facts["engine"]["file"]: engine, "facts.json": json.dumps(facts).encode(), "inputs.npz": inputs}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    digests = {name: sha256(content) for name, content in files.items()}
    (folder / "certificate.sig").write_bytes(signing.sign(folder.name, digests, ignored=["certificate.sig"]))
    return folder


def signature(content: bytes) -> bytes:
    """The signature of bytes with the key of the environment."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return bytes(signing.private_key().sign(content, ec.ECDSA(hashes.SHA256())))


def sign_again(folder: Path, change: Callable[[Facts], object]) -> None:
    """Change the statement of a folder's signature, and sign it again."""
    bundle = json.loads((folder / "certificate.sig").read_bytes())
    envelope = bundle["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"][0]["sig"] = base64.b64encode(signature(signing._signed_bytes(payload))).decode()
    (folder / "certificate.sig").write_text(json.dumps(bundle))
