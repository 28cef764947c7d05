"""Certified engines: what is in the folder, and that every change of it is named."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

import trtops
from tests import models
from tests.keys import new_key
from tests.serving import folders
from trtops import errors
from trtops.serving import certificate, load
from trtops.system import signing
from trtops.tracking.memory import MemoryTracker


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryTracker]:
    """Keys, and the certified engine of a good run in ``net``, with the store of the run."""
    folder, tracker, case = tmp_path_factory.mktemp("certificates"), MemoryTracker(), models.conv_net()
    for name in ("key", "other"):
        new_key(folder / f"{name}.pem", folder / f"{name}.pub")
    np.savez(folder / "feed.npz", **case.feed)  # type: ignore[arg-type]
    run = trtops.convert(case.write(folder, "net"), data=str(folder / "feed.npz"), tracker=tracker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(signing.KEY_VARIABLE, str(folder / "key.pem"))
        trtops.write_certificate(run.run_id, folder / "net", tracker=tracker)
    return folder, tracker


def test_certificate_has_facts_of_the_run(place: tuple[Path, MemoryTracker]) -> None:
    folder, tracker = place
    result = trtops.verify_certificate(folder / "net", [folder / "key.pub"], tracker=tracker)
    run, facts = tracker.load(result.facts["run"]).info, result.facts

    assert result.verdict == "good" and result.key == signing.key_id(folder / "key.pub")
    assert facts["engine"]["sha256"] == run.tags["trtops.engine.sha256"] and facts["verdict"]["verdict"] == "good"
    assert facts["spec_sha256"] == run.params["spec_sha256"] and not facts["unknown"]
    assert facts["verdict"]["margin"]["value"] <= facts["verdict"]["margin"]["limit"]
    with np.load(folder / "net" / certificate.INPUTS) as arrays:
        assert np.array_equal(arrays["input_0"], models.conv_net().feed["image"])
        np.testing.assert_allclose(arrays["output_0"].sum(axis=1), 1.0, rtol=1e-4)  # the scores are a softmax
    # The loader, which shares no code with the writer, accepts it.
    assert load.load(folder / "net", folder / "key.pub").facts["run"] == run.id


def _replace_facts(folder: Path) -> None:
    facts = json.loads((folder / "facts.json").read_bytes())
    (folder / "facts.json").write_text(json.dumps(facts | {"expires": 1.0}))


TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "facts.json is not what was signed": _replace_facts,
    "engine.ort is not what was signed": lambda folder: (folder / "engine.ort").write_bytes(b"ORTM"),
    "inputs.npz is missing": lambda folder: (folder / "inputs.npz").unlink(),
    "more.txt is not signed": lambda folder: (folder / "more.txt").touch(),
    "has no certificate.sig": lambda folder: (folder / "certificate.sig").unlink(),
    "not a signature of files": lambda folder: (folder / "certificate.sig").write_text("{}"),
    "link is not signed": lambda folder: os.symlink("engine.ort", folder / "link"),
}


@pytest.mark.parametrize("reason", TAMPERINGS)
def test_tampered_folder_is_named(reason: str, place: tuple[Path, MemoryTracker], tmp_path: Path) -> None:
    folder = Path(copytree(place[0] / "net", tmp_path / "net"))
    TAMPERINGS[reason](folder)
    result = trtops.verify_certificate(folder, [place[0] / "key.pub"])
    assert result.verdict == "bad" and result.exit_code == 1 and reason in result.reasons[0]


def test_foreign_expired_and_contradicting_ones(
    place: tuple[Path, MemoryTracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tracker = place
    foreign = trtops.verify_certificate(folder / "net", [folder / "other.pub"])
    assert "is not one of the given keys" in foreign.reasons[0]
    other_store = trtops.verify_certificate(folder / "net", [folder / "key.pub"], tracker=MemoryTracker())
    assert other_store.verdict == "bad" and other_store.reasons[0].startswith("run ")

    monkeypatch.setenv(signing.KEY_VARIABLE, str(folder / "key.pem"))
    run = json.loads((folder / "net" / "facts.json").read_bytes())["run"]
    trtops.write_certificate(run, tmp_path / "short", tracker=tracker, days=1)
    tomorrow = time.time() + 86401
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    assert "has expired" in trtops.verify_certificate(tmp_path / "short", [folder / "key.pub"]).reasons[0]


def test_signed_facts_of_another_structure(
    place: tuple[Path, MemoryTracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tracker = place
    monkeypatch.setenv(signing.KEY_VARIABLE, str(folder / "key.pem"))
    facts = json.loads((folder / "net" / "facts.json").read_bytes())
    for name in ("run", "model", "environment", "verdict"):
        folders.write(tmp_path / name, (folder / "net" / "engine.ort").read_bytes(), facts | {name: 5}, b"")
        result = trtops.verify_certificate(tmp_path / name, [folder / "key.pub"], tracker=tracker)
        assert result.verdict == "bad" and name in result.reasons[0]


def test_refused_runs_and_folders(
    place: tuple[Path, MemoryTracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left behind."""
    folder, tracker = place
    run = json.loads((folder / "net" / "facts.json").read_bytes())["run"]
    with pytest.raises(errors.ConfigError, match=signing.KEY_VARIABLE):
        trtops.write_certificate(run, tmp_path / "a", tracker=tracker)
    monkeypatch.setenv(signing.KEY_VARIABLE, str(folder / "key.pem"))
    with pytest.raises(errors.ConfigError, match="expected a new or empty folder"):
        trtops.write_certificate(run, folder, tracker=tracker)
    bad = trtops.convert(folder / "net.onnx", tolerances=trtops.Tolerances(atol=0, rtol=0), tracker=tracker)
    with pytest.raises(errors.ConfigError, match="only good engines are certified"):
        trtops.write_certificate(bad.run_id, tmp_path / "a", tracker=tracker)
    assert not list(tmp_path.iterdir())


def test_unproven_engine_is_certified_as_such(
    place: tuple[Path, MemoryTracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tracker = place
    monkeypatch.setenv(signing.KEY_VARIABLE, str(folder / "key.pem"))
    unproven = trtops.convert(folder / "net.onnx", tracker=tracker)  # at assumed shapes
    with pytest.raises(errors.ConfigError, match="with --allow-unproven, this one"):
        trtops.write_certificate(unproven.run_id, tmp_path / "a", tracker=tracker)

    written = trtops.write_certificate(unproven.run_id, tmp_path / "a", tracker=tracker, allow_unproven=True)

    verified = trtops.verify_certificate(tmp_path / "a", [folder / "key.pub"], tracker=tracker)
    assert (written.verdict, verified.verdict, verified.reasons) == ("good", "unproven", ())
    assert written.because == verified.because == ("the engine's verdict is unproven, so the loader refuses it",)


def test_fingerprint_has_the_limits_or_twice_the_error() -> None:
    golden = np.array([1.0, 2.0, np.nan], np.float32)
    assert certificate.fingerprint(golden, golden + 1e-6, 1e-5, 0.0) == {"atol": 1e-5, "rtol": 0.0, "agreement": 1.0}
    measured = certificate.fingerprint(golden, golden + 0.5, np.inf, np.inf)
    assert measured["atol"] == pytest.approx(1.0, rel=1e-5) and measured["rtol"] == 0.0
    labels = np.array([1, 2, 3, 4])
    assert certificate.fingerprint(labels, np.array([1, 2, 3, 5]), np.inf, np.inf)["agreement"] == 0.75
