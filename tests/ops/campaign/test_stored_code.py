"""Scripts and commands that a run names: they run only with permission, after being shown."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests import models
from tests.hostile import write_artifact
from trtops import errors
from trtops.cli.main import main
from trtops.ops.campaign.bisect import bisect
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, diff_tactics
from trtops.ops.campaign.prove import prove
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.promote import PromoteConfig, promote
from trtops.record import sha256
from trtops.system import allowed
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag

CONFIG = DebugBuildConfig(until=2, check=CheckConfig(plots="never", latency_runs=0))


@pytest.fixture(scope="module")
def tracker(folder: Path) -> MlflowTracker:
    return MlflowTracker(folder / "mlruns")


@pytest.fixture(scope="module")
def campaign(folder: Path, tracker: MlflowTracker) -> str:
    """The run of a finished campaign of two builds."""
    return debug_build(models.conv_net().fixed().write(folder), CONFIG, tracker=tracker).run_id


@pytest.fixture
def script(folder: Path, tmp_path: Path) -> Path:
    """A data script that leaves a note when it is run."""
    script = tmp_path / "feeds.py"
    note = f"open({str(folder / 'ran')!r}, 'w').close()"
    feed = "dict(image=np.ones((2, 3, 8, 8), np.float32))"
    script.write_text(f"import numpy as np\n{note}\ndef load_data():\n    return [{feed}]\n")
    return script


# Operations on the campaign read its config, and a promotion the materials.
PLANTED = (Artifact.CAMPAIGN, Artifact.MATERIALS)


def plant(tracker: MlflowTracker, run_id: str, member: str, value: object, *, manifest: bool) -> None:
    """Change a campaign's config and materials in its run, and the manifest with them or not."""
    root = tracker.store.root
    listed = json.loads(tracker.peek(run_id, Artifact.MANIFEST) or b'{"artifacts": []}')
    for path in PLANTED:
        stored = json.loads(tracker.peek(run_id, path))
        section = stored["check"] if member == "data" else stored
        section[member] = value
        data = json.dumps(stored).encode()
        if member == "data" or path == Artifact.CAMPAIGN:
            write_artifact(root, run_id, path, data)
        for entry in listed["artifacts"]:
            if entry["path"] == path:
                entry |= {"size": len(data), "sha256": sha256(data)}
    if manifest:
        write_artifact(root, run_id, Artifact.MANIFEST, json.dumps(listed).encode())


@pytest.fixture
def restored(tracker: MlflowTracker, campaign: str) -> None:
    before = {path: tracker.peek(campaign, path) for path in (*PLANTED, Artifact.MANIFEST)}
    yield
    for path, data in before.items():
        write_artifact(tracker.store.root, campaign, path, data)


@pytest.mark.usefixtures("restored")
def test_diff_needs_no_model_and_scripts(tracker, campaign, script, folder) -> None:
    plant(tracker, campaign, "data", str(script), manifest=True)
    model = Path(tracker.info(campaign).fact(Tag.MODEL_PATH))
    aside = model.rename(model.with_suffix(".aside"))

    result = diff_tactics(DiffTacticsConfig(runs=(campaign,)), tracker=tracker)

    aside.rename(model)
    assert result.run_id and not (folder / "ran").exists()


@pytest.fixture
def build(tracker: MlflowTracker, campaign: str) -> str:
    return tracker.find(parent=campaign, tags={Tag.KIND: "iteration"})[0].id


def check_refused(error: str, campaign: str, build: str, tracker: MlflowTracker) -> None:
    for op, run in ((prove, campaign), (bisect, campaign), (promote, build)):
        with pytest.raises(errors.TrtopsError, match=error):
            op(run, tracker=tracker)


@pytest.mark.usefixtures("restored")
def test_edited_config_is_refused(tracker, campaign, build, script, folder) -> None:
    plant(tracker, campaign, "data", str(script), manifest=False)

    check_refused("other content than its manifest says", campaign, build, tracker)
    assert not (folder / "ran").exists()


@pytest.mark.usefixtures("restored")
def test_scripts_of_a_run_need_permission(tracker, campaign, build, script, folder, caplog, monkeypatch) -> None:
    plant(tracker, campaign, "data", str(script), manifest=True)
    store = str(tracker.store.root)

    check_refused(rf"{script}.*--allow-scripts", campaign, build, tracker)
    assert main(["debug", "bisect", campaign, "--store", store]) == 3
    assert str(script) in caplog.text
    assert not (folder / "ran").exists()

    monkeypatch.setenv(allowed.VARIABLE, "/nowhere")
    with pytest.raises(errors.ConfigError, match="may not be run"):
        promote(build, PromoteConfig(allow_scripts=True), tracker=tracker)
    assert not (folder / "ran").exists()
    monkeypatch.setenv(allowed.VARIABLE, str(script.parent))  # this folder is trusted
    promote(build, tracker=tracker)
    (folder / "ran").unlink()
    monkeypatch.delenv(allowed.VARIABLE)
    assert main(["runs", "promote", build, "--store", store, "--allow-scripts"]) == 0
    (folder / "ran").unlink()


def test_commands_of_a_run_need_permission(tracker, folder, tmp_path) -> None:
    model = models.conv_net().write(tmp_path)
    with pytest.raises(KeyboardInterrupt):  # after one build
        progress = Mock(side_effect=[None, KeyboardInterrupt])
        debug_build(model, CONFIG, tracker=tracker, progress=progress, experiment="planted")
    [run] = tracker.find("planted", tags={"trtops.kind": "debug_build"})
    note = folder / "ran"
    command = {"command": [sys.executable, "-c", f"open({str(note)!r}, 'w')", "{engine}"]}
    plant(tracker, run.id, "command", command, manifest=False)

    with pytest.raises(errors.ConfigError, match=r"the command .*ran.*--allow-scripts"):
        debug_build(resume=run.id, tracker=tracker)
    assert not note.exists()

    result = debug_build(resume=run.id, tracker=tracker, allow_scripts=True)
    assert result.iterations == 2 and note.exists()
    note.unlink()
