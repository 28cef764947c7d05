"""Signatures: which key fits, and how invalid keys and bundles are reported."""

import base64
import json
import subprocess
from pathlib import Path

import pytest

from tests.keys import new_key
from trtops import errors
from trtops.system import signing
from trtops.tracking.memory import MemoryTracker

FILES = {"manifest.json": "a" * 64, "engine.ort": "b" * 64}


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a key pair; this process signs with the private key."""
    new_key(tmp_path / "key.pem", tmp_path / "key.pub")
    monkeypatch.setenv(signing.KEY_VARIABLE, str(tmp_path / "key.pem"))
    return tmp_path


def test_signed_statement_round_trip(keys: Path) -> None:
    bundle = signing.sign("run", FILES, x=1)

    key, statement = signing.verify(bundle, [keys / "key.pub"])

    assert key == signing.key_id(keys / "key.pub")
    assert statement == signing.open_bundle(bundle)
    assert signing.signed_files(statement) == FILES and statement["predicate"]["x"] == 1


def test_envelope_is_dsse_with_in_toto(keys: Path) -> None:
    """Checked by openssl, which knows nothing of this library."""
    envelope = json.loads(signing.sign("run", FILES))["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    (keys / "pae").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload))
    (keys / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))

    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(keys / "key.pub"), "-rawin", "-digest", "sha256"]
    done = subprocess.run([*words, "-in", str(keys / "pae"), "-sigfile", str(keys / "sig")], capture_output=True)

    assert done.returncode == 0, done.stderr
    assert kind == "application/vnd.in-toto+json"
    assert json.loads(payload)["_type"] == "https://in-toto.io/Statement/v1"


def test_signature_of_model_signing_is_accepted() -> None:
    """Made by ``model_signing sign key`` 1.1.1, whose ``verify`` accepts those of this module."""
    data = Path(__file__).parent / "data"
    _, statement = signing.verify((data / "model_signing.sig").read_bytes(), [data / "model_signing.pub"])
    assert sorted(signing.signed_files(statement)) == ["engine.ort", "facts.json"]


def test_wrong_key_or_payload_is_rejected(keys: Path) -> None:
    new_key(keys / "other.pem", keys / "other.pub")
    bundle = json.loads(signing.sign("run", FILES, x=1))

    with pytest.raises(errors.SignatureError, match="is not one of the given keys"):
        signing.verify(json.dumps(bundle).encode(), [keys / "other.pub"])
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"]).replace(b'"x":1', b'"x":2')
    envelope["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(errors.SignatureError, match="is not one of the given keys"):
        signing.verify(json.dumps(bundle).encode(), [keys / "key.pub"])
    with pytest.raises(errors.ConfigError, match="is a key of Ed25519PublicKey; expected an elliptic curve"):
        subprocess.run(f"openssl genpkey -algorithm ed25519 | openssl pkey -pubout > {keys}/ed", shell=True, check=True)
        signing.key_id(keys / "ed")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"dsseEnvelope": 5}', b'{"dsseEnvelope": {"payload": "e30=", "signatures": []}}']
)
def test_malformed_bundle_is_rejected(data: bytes, keys: Path) -> None:
    with pytest.raises(errors.SignatureError):
        signing.verify(data, [keys / "key.pub"])


def test_bundle_of_another_type_is_rejected(keys: Path) -> None:
    bundle = json.loads(signing.sign("run", FILES))
    bundle["dsseEnvelope"]["payloadType"] = "text/plain"
    with pytest.raises(errors.SignatureError, match="has 'text/plain'; expected 'application"):
        signing.open_bundle(json.dumps(bundle).encode())


def test_key_from_variable_may_be_encrypted(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signing.KEY_VARIABLE, (keys / "key.pem").read_text())
    assert signing.verify(signing.sign("run", FILES), [keys / "key.pub"])

    locked = ["openssl", "pkey", "-in", str(keys / "key.pem"), "-aes256", "-passout", "pass:once upon", "-out"]
    subprocess.run([*locked, str(keys / "locked.pem")], check=True, capture_output=True)
    monkeypatch.setenv(signing.KEY_VARIABLE, str(keys / "locked.pem"))
    with pytest.raises(errors.ConfigError, match="does not decrypt it"):
        signing.sign("run", FILES)
    monkeypatch.setenv(signing.PASSWORD_VARIABLE, "once upon")
    assert signing.verify(signing.sign("run", FILES), [keys / "key.pub"])


def test_unreadable_key_fails_early_without_quoting_it(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signing.KEY_VARIABLE, "-----BEGIN PRIVATE KEY-----\nsecretsecret\n-----END PRIVATE KEY-----")
    with pytest.raises(errors.ConfigError, match="cannot be read as a private key") as raised:
        MemoryTracker().start("e", "r", kind="build")
    assert "secretsecret" not in str(raised.value)
    monkeypatch.delenv(signing.KEY_VARIABLE)
    with pytest.raises(errors.ConfigError, match="is not set"):
        signing.private_key()

    monkeypatch.setenv(signing.KEY_VARIABLE, str(keys / "none.pem"))
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        MemoryTracker().start("e", "r", kind="build")
    with pytest.raises(errors.ConfigError, match="cannot be read as a public key"):
        signing.key_id(keys / "key.pem")
