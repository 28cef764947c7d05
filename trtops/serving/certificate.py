"""The certificate of an engine: signed facts in the folder that holds it.

A folder holds exactly these files::

    engine.ort | engine.onnx | engine.plan   the engine, named in facts.json
    facts.json                               what is known of it, as below
    inputs.npz                               inputs and golden outputs for a fingerprint
    certificate.sig                          the signature of all other files

``certificate.sig`` has the OpenSSF Model Signing format (:mod:`trtops.system.signing`): a Sigstore bundle
(``application/vnd.dev.sigstore.bundle.v0.3+json``) with ``verificationMaterial.publicKey.hint`` (the SHA-256 of the
public key as PEM text, in hexadecimal) and a ``dsseEnvelope`` around an in-toto statement v1 with the predicate type
``https://model_signing/signature/v1.0``. Its ``predicate.resources`` list the name, ``sha256`` and digest of each file
but the signature; the digest of its only subject is the SHA-256 of these digests as bytes, in their order. The
signature is ECDSA on P-256 with SHA-256, in DER form, over ``DSSEv1 LEN TYPE LEN PAYLOAD``. ``model_signing verify key
FOLDER --signature FOLDER/certificate.sig --public_key key.pub`` accepts it.

``facts.json`` is an object. Digests are SHA-256 in hexadecimal; an absent value is null::

    format        1
    run           id of the run, and "experiment"
    made          seconds since 1970, UTC, as "expires", which may be null
    model         {"name", "sha256"}: the content of the ONNX model (not of its file)
    engine        {"file", "sha256", "bytes", "backend", "options"}: "onnxruntime" or "tensorrt"; options of the loader
    environment   {"backend", "backend_version", "device", "device_sha256", "compute_capability", "driver", "cuda",
                  "cudnn", "os", ...}: where it was built (:class:`trtops.spec.Environment`). An engine is
                  loaded on the same release (backend_version) and kind of device only
    spec_sha256   digest of everything that determines the engine; null if it was built elsewhere
    unknown       what is not known of the engine, in phrases; empty for one that trtops built
    precision     "fp32", "fp16" ...: the requested one
    profiles      [{INPUT: {"min": [..], "opt": [..], "max": [..]}}], empty for static shapes
    inputs        [{"name", "dtype", "shape"}]: numpy's name of the dtype; -1 for a dynamic dimension
    outputs       as inputs
    verdict       {"verdict", "reasons", "evidence", "limits", "margin", "data_sha256", "self_check"}: "good" or
                  "unproven"; "margin" is {"output", "metric", "value", "limit"} of what came closest to its limit;
                  "self_check" is {"verdict", "held", "broken", "skipped"} with names of relations, or null; "limits"
                  is the tolerances
    fingerprint   {OUTPUT: {"atol", "rtol", "agreement"}}

``inputs.npz`` has the arrays ``input_0``, ``input_1`` ... in the order of ``inputs``, and the golden outputs
``output_0`` ... in the order of ``outputs``. NumPy has no bfloat16 and no FP8: those are unsigned integers of the same
width, and ``load.py`` does not take such engines. The engine's outputs match the fingerprint if each has the dtype and
shape of the stored one, and

- floating-point elements differ by at most ``atol``, or by at most ``rtol`` of the golden element. Elements that are
  NaN or infinite are the same in both;
- of other elements at least the share ``agreement`` is equal.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.record import sha256, sha256_file
from trtops.system import signing
from trtops.system.files import read_regular

FORMAT = 1
FACTS, INPUTS, SIGNATURE = "facts.json", "inputs.npz", "certificate.sig"


def write_folder(folder: Path, facts: Mapping[str, Any], engine: bytes, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an engine with its certificate into a new folder, whole or not at all.

    Raises ConfigError if the folder exists and is not empty, or nothing can be signed.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.ConfigError(f"{str(folder)!r} exists; expected a new or empty folder. Certificates never change.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as parent:
        new = Path(parent, folder.name)
        new.mkdir()
        (new / facts["engine"]["file"]).write_bytes(engine)
        (new / FACTS).write_text(json.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        np.savez_compressed(new / INPUTS, allow_pickle=False, **arrays)
        digests = {file.name: sha256_file(file) for file in new.iterdir()}
        (new / SIGNATURE).write_bytes(signing.sign(folder.name, digests, ignored=[SIGNATURE]))
        os.replace(new, folder)


def read_facts(folder: Path, keys: Iterable[str | Path], *, expired: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the id of the key that signed a folder, and its facts.

    Raises SignatureError if none of the public keys did, a file is missing, changed or further, or the certificate has
    expired and ``expired`` ones are not accepted.
    """
    if not folder.is_dir() or not (folder / SIGNATURE).is_file():
        raise errors.SignatureError(f"{str(folder)!r} has no {SIGNATURE}; expected a folder of `certificate write`.")
    key, statement = signing.verify(read_regular(folder / SIGNATURE), keys)
    signed, digests = signing.signed_files(statement), {}
    contents = {}
    for file in folder.iterdir():
        if file.name != SIGNATURE:
            contents[file.name] = b"" if file.is_symlink() or not file.is_file() else read_regular(file)
            digests[file.name] = sha256(contents[file.name])
    for name in sorted({*signed, *digests}):
        if signed.get(name) != digests.get(name):
            state = (
                "is missing" if name not in digests else "is not what was signed" if name in signed else "is not signed"
            )
            raise errors.SignatureError(f"{str(folder)!r}: {name} {state}.")
    try:
        facts = json.loads(contents[FACTS])
        engine, expires = facts["engine"], facts["expires"]
        if facts["format"] != FORMAT or digests[engine["file"]] != engine["sha256"]:
            raise errors.SignatureError(f"{str(folder)!r}: {FACTS} is of another engine, or of another format.")
        is_over = expires is not None and time.time() >= float(expires)
    except (ValueError, LookupError, TypeError) as exc:
        raise errors.SignatureError(f"{str(folder)!r}: {FACTS} cannot be read ({type(exc).__name__}: {exc}).") from None
    if is_over and not expired:
        raise errors.SignatureError(f"{str(folder)!r}: the certificate has expired. Certify the engine again.")
    return key, facts


def storable(array: np.ndarray) -> np.ndarray:
    """An array as ``inputs.npz`` holds it: types that NumPy lacks as unsigned integers, objects as text."""
    if array.dtype.kind == "V" or array.dtype.isbuiltin == 2:  # of ml_dtypes
        return array.view(f"uint{8 * array.dtype.itemsize}")
    return array.astype(str) if array.dtype == object else array


def fingerprint(golden: np.ndarray, output: np.ndarray, atol: float, rtol: float) -> dict[str, float]:
    """The limits that an engine's output has to meet again, for its outputs now; the given ones if it meets them.

    For an output that is limited by other statistics than those of each element, twice the error measured now.
    """
    if golden.shape != output.shape:
        raise errors.ComparisonError(f"The output has shape {output.shape}; the golden one has {golden.shape}.")
    if not np.issubdtype(golden.dtype, np.floating):
        return {"atol": 0.0, "rtol": 0.0, "agreement": float(np.mean(golden == output)) if golden.size else 1.0}
    finite = np.isfinite(golden)
    wide, ours = golden[finite].astype(np.float64), output[finite].astype(np.float64)
    error, scale = np.abs(ours - wide), float(np.max(np.abs(wide), initial=0.0))
    if not (np.isfinite([atol, rtol]).all() and np.all(error <= np.maximum(atol, rtol * np.abs(wide)))):
        unit = float(np.finfo(golden.dtype).eps)
        atol, rtol = 2 * float(np.max(error, initial=0.0)) + 4 * unit * scale, 0.0
    return {"atol": float(atol), "rtol": float(rtol), "agreement": 1.0}
