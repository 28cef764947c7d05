"""Sign runs and verify signatures: in-toto statements in DSSE envelopes, with the team's own keys.

``TRTOPS_SIGNING_KEY`` is the path of a PEM file with the private key, or the PEM text; ``TRTOPS_SIGNING_PASSWORD``
decrypts it. The key is read for each signature and not cached. No service is contacted.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.extras import require

KEY_VARIABLE = "TRTOPS_SIGNING_KEY"
PASSWORD_VARIABLE = "TRTOPS_SIGNING_PASSWORD"

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


def signs_here() -> bool:
    """True if this process signs its finished runs."""
    return bool(os.environ.get(KEY_VARIABLE))


def sign(subjects: Mapping[str, str], predicate: Mapping[str, Any]) -> bytes:
    """An in-toto statement about files (name to SHA-256), in a DSSE envelope; the predicate is in the form of SLSA.

    ConfigError if the key from the environment cannot be read.
    """
    require("securesystemslib", "cryptography")
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]

    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8")
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(private_key()))
    return json.dumps(envelope.to_dict(), indent=1).encode("ascii")


def verify(envelope: bytes, keys: Iterable[str | Path]) -> tuple[str, Mapping[str, Any]]:
    """Return the id of the key of an envelope's signature, and the statement in it; ``keys`` are PEM files.

    Raises SignatureError if none of the public keys matches, or this is not an envelope of a statement; ConfigError if
    a key cannot be read.
    """
    require("securesystemslib")
    from securesystemslib.exceptions import VerificationError

    public_keys = [_public_key(key) for key in keys]
    signed, content = open_envelope(envelope)
    try:
        return next(iter(signed.verify(public_keys, threshold=1))), content
    except (VerificationError, ValueError):
        raise errors.SignatureError(
            f"The signature is by {', '.join(signed.signatures) or 'no key'}, which is not one of the given keys "
            f"({', '.join(key.keyid for key in public_keys) or 'none'}). Pass the public key of its signer."
        ) from None


def open_envelope(envelope: bytes) -> tuple[Any, Mapping[str, Any]]:
    """The library's envelope and the statement in it, without checking the signature.

    SignatureError if it holds no statement.
    """
    require("securesystemslib")
    from securesystemslib.dsse import Envelope

    try:
        parsed = Envelope.from_dict(json.loads(envelope))
        content = json.loads(parsed.payload)
        if parsed.payload_type != PAYLOAD_TYPE or content["_type"] != STATEMENT_TYPE:
            raise errors.SignatureError(f"The envelope holds {parsed.payload_type!r}; expected {PAYLOAD_TYPE!r}.")
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise errors.SignatureError(f"This is not a signed statement ({type(exc).__name__}: {exc}).") from None
    return parsed, content


def key_id(public: str | Path) -> str:
    """The id of a public key, as it appears in signatures; ConfigError if it cannot be read."""
    return str(_public_key(public).keyid)


def private_key() -> Any:
    """The key from the environment; ConfigError if it cannot be read."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    value, password = os.environ.get(KEY_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE)
    try:
        text = value.encode() if value.startswith("-----BEGIN") else Path(value).read_bytes()
        return load_pem_private_key(text, password.encode() if password else None)
    # The message of the library could quote the key. Its class UnsupportedAlgorithm derives from Exception only.
    except Exception as exc:
        reason = exc.strerror if isinstance(exc, OSError) else f"not PEM, or {PASSWORD_VARIABLE} does not decrypt it"
        raise errors.ConfigError(f"{KEY_VARIABLE} cannot be read as a private key: {reason}.") from None


def _public_key(path: str | Path) -> Any:
    require("securesystemslib", "cryptography")
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

    try:
        return SSlibKey.from_crypto(load_pem_public_key(Path(path).read_bytes()))
    except Exception as exc:
        raise errors.ConfigError(f"{path} cannot be read as a public key in PEM form: {exc}.") from None
