"""Signatures of runs are compared with everything that they cover."""

import json
from pathlib import Path

import pytest

from tests.keys import new_key
from trtops import errors
from trtops.system import signing
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.signatures import check_signature, require_signed


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    new_key(tmp_path / "key.pem", tmp_path / "key.pub")
    monkeypatch.setenv(signing.KEY_VARIABLE, str(tmp_path / "key.pem"))
    return tmp_path / "key.pub"


def log_run(tracker: MemoryTracker, verdict: str = "bad") -> str:
    with tracked(tracker, "m", "r", kind="build") as run:
        run.log_json({"model_sha256": "1" * 64}, Artifact.SPEC)
        run.log_bytes(b"plan", "engine/x.plan")
        run.finish(verdict)  # type: ignore[arg-type]
    return run.id


def test_unchanged_run_is_signed(key: Path) -> None:
    tracker = MemoryTracker()

    assert require_signed(tracker.load(log_run(tracker)), [key]) == signing.key_id(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("verdict", "has bad; tag trtops.verdict has good"),
        ("verdict removed", "has bad; tag trtops.verdict has nothing"),
        ("spec.json", r"spec\.json: it is not what was signed"),
        ("another run", "it was made for run"),
        ("no signature", "not signed"),
    ],
)
def test_changed_runs_do_not_match_their_signature(key: Path, change: str, message: str) -> None:
    tracker = MemoryTracker()
    run_id = log_run(tracker)
    data = tracker._data(run_id)
    if change == "verdict":
        data.tags[Tag.VERDICT] = "good"
    elif change == "verdict removed":
        del data.tags[Tag.VERDICT]
    elif change == "spec.json":  # with a manifest that fits
        data.artifacts[Artifact.SPEC] = b"{}"
        manifest = json.loads(data.artifacts[Artifact.MANIFEST])
        entry = next(artifact for artifact in manifest["artifacts"] if artifact["path"] == Artifact.SPEC)
        entry |= {"size": 2, "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}
        data.artifacts[Artifact.MANIFEST] = json.dumps(manifest).encode()
    elif change == "another run":
        data.artifacts |= {Artifact.SIGNATURE: tracker._data(log_run(tracker)).artifacts[Artifact.SIGNATURE]}
    else:
        del data.artifacts[Artifact.SIGNATURE]

    with pytest.raises(errors.SignatureError, match=message):
        require_signed(tracker.load(run_id), [key])
    problems: list[str] = []
    assert check_signature(tracker.load(run_id), (), lambda subject, message: problems.append(subject)) == ""
    assert bool(problems) == (change != "no signature")
