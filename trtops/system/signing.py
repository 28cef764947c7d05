"""Sign files and verify signatures in the OpenSSF Model Signing format, version 1.0, with the team's own keys.

A signature is a Sigstore bundle with a DSSE envelope around an in-toto statement. The statement lists the signed files
with their SHA-256 as ``resources``, so that the ``model_signing`` package verifies it as well. Keys are elliptic curve
keys of P-256. ``TRTOPS_SIGNING_KEY`` is the path of a PEM file with the private key, or the PEM text;
``TRTOPS_SIGNING_PASSWORD`` decrypts it. The key is read for each signature and not cached. No service is contacted.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.extras import require

KEY_VARIABLE = "TRTOPS_SIGNING_KEY"
PASSWORD_VARIABLE = "TRTOPS_SIGNING_PASSWORD"

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_EXPECTED_KEY = (
    "an elliptic curve key of P-256 (openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem)"
)


def signs_here() -> bool:
    """True if this process signs its finished runs."""
    return bool(os.environ.get(KEY_VARIABLE))


def sign(name: str, files: Mapping[str, str], *, ignored: Iterable[str] = (), **facts: Any) -> bytes:
    """Sign files, and return the bundle.

    Args:
        name: The name of the folder that holds the files.
        files: SHA-256 in hexadecimal by path in the folder.
        ignored: Paths in the folder that are not signed, such as the signature itself.
        facts: Further fields of the predicate, which other verifiers of the format ignore.

    Raises:
        ConfigError: If the key from the environment cannot be read, or is of another kind.
    """
    key = private_key()
    resources = [{"name": path, "algorithm": "sha256", "digest": files[path]} for path in sorted(files)]
    serialization = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [*ignored]}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": _root_digest(resources)}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"serialization": serialization, "resources": resources, **facts},
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    signature = key.sign(_signed_bytes(payload), ec.ECDSA(hashes.SHA256()))
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": _hint(key.public_key())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode("ascii"),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode("ascii"), "keyid": ""}],
        },
    }
    return json.dumps(bundle, indent=1).encode("ascii")


def verify(bundle: bytes, keys: Iterable[str | Path]) -> tuple[str, Mapping[str, Any]]:
    """Return the id of the key of a bundle's signature, and the statement in it; ``keys`` are PEM files.

    Raises SignatureError if none of the public keys matches, or this is not a bundle of a statement; ConfigError if a
    key cannot be read.
    """
    require("cryptography")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    public_keys = {key_id(key): _public_key(key) for key in keys}
    statement, payload, signature, signer = _parsed(bundle)
    for name, public_key in public_keys.items():
        try:
            public_key.verify(signature, _signed_bytes(payload), ec.ECDSA(hashes.SHA256()))
            return name, statement
        except InvalidSignature:
            continue
    raise errors.SignatureError(
        f"The signature is by {signer or 'an unnamed key'}, which is not one of the given keys "
        f"({', '.join(public_keys) or 'none'}), or its content was changed. Pass the public key of its signer."
    )


def open_bundle(bundle: bytes) -> Mapping[str, Any]:
    """The statement in a bundle, without checking the signature; SignatureError if it holds none."""
    return _parsed(bundle)[0]


def signed_files(statement: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the files of a statement by path."""
    return {resource["name"]: resource["digest"] for resource in statement["predicate"]["resources"]}


def _parsed(bundle: bytes) -> tuple[Mapping[str, Any], bytes, bytes, str]:
    """The statement, its bytes, the signature, and the id of the key that the bundle names."""
    try:
        document = json.loads(bundle)
        envelope = document["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        signer = str(document["verificationMaterial"].get("publicKey", {}).get("hint") or "")
        statement = json.loads(payload)
        kinds = document["mediaType"], envelope["payloadType"], statement["_type"], statement["predicateType"]
        expected = BUNDLE_TYPE, PAYLOAD_TYPE, STATEMENT_TYPE, PREDICATE_TYPE
        for kind, expected_kind in zip(kinds, expected):
            if kind != expected_kind:
                raise errors.SignatureError(f"The signature has {str(kind)[:80]!r}; expected {expected_kind!r}.")
        resources = statement["predicate"]["resources"]
        if any(resource["algorithm"] != "sha256" for resource in resources):
            raise errors.SignatureError("The signature has digests of another kind; expected SHA-256.")
        (subject,) = statement["subject"]
        if subject["digest"]["sha256"] != _root_digest(resources):
            raise errors.SignatureError("The signature's list of files does not match the digest of its subject.")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise errors.SignatureError(f"This is not a signature of files ({type(exc).__name__}: {exc}).") from None
    return statement, payload, signature, signer


def _root_digest(resources: Iterable[Mapping[str, str]]) -> str:
    return hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()


def _signed_bytes(payload: bytes) -> bytes:
    """The bytes that are signed: the pre-authentication encoding of DSSE."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def key_id(public: str | Path) -> str:
    """The id of a public key, as it appears in signatures; ConfigError if it cannot be read."""
    return _hint(_public_key(public))


def own_key_id() -> str:
    """The id of the key that signs here; ConfigError as :func:`private_key`."""
    return _hint(private_key().public_key())


def _hint(public_key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def private_key() -> Any:
    """The key from the environment; ConfigError if it cannot be read, or is not an elliptic curve key of P-256."""
    require("cryptography")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    value, password = os.environ.get(KEY_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE)
    if not value:
        raise errors.ConfigError(f"{KEY_VARIABLE} is not set; expected the file of {_EXPECTED_KEY}.")
    try:
        text = value.encode() if value.startswith("-----BEGIN") else Path(value).read_bytes()
        key = load_pem_private_key(text, password.encode() if password else None)
    # The message of the library could quote the key. Its class UnsupportedAlgorithm derives from Exception only.
    except Exception as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not PEM, or {PASSWORD_VARIABLE} does not decrypt it"
        raise errors.ConfigError(f"{KEY_VARIABLE} cannot be read as a private key: {reason}.") from None
    return _on_curve(key, KEY_VARIABLE)


def _public_key(path: str | Path) -> Any:
    require("cryptography")
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(Path(path).read_bytes())
    except Exception as exc:
        raise errors.ConfigError(f"{path} cannot be read as a public key in PEM form: {exc}") from None
    return _on_curve(key, path)


def _on_curve(key: Any, source: str | Path) -> Any:
    name = getattr(getattr(key, "curve", None), "name", type(key).__name__.strip("_"))
    if name != "secp256r1":
        raise errors.ConfigError(f"{source} is a key of {name}; expected {_EXPECTED_KEY}.")
    return key
