"""Logging that is cut off: by SIGKILL, by a full disk. What is left is whole, or is called incomplete."""

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dying import run_until_spent, seconds_of
from trtops import errors
from trtops.record import sha256
from trtops.tracking.base import tracked
from trtops.tracking.check import reap
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.schema import Tag
from trtops.tracking.spool import Spool, upload

PLAN = os.urandom(1 << 20) * 8


def log_a_build(tracker: MlflowTracker, source: Path, name: str = "r") -> None:
    with tracked(tracker, "m", name, kind="build") as run:
        run.log_params({f"p{i}": i for i in range(10)})
        run.log_metrics({("error", f"out{i}", "max_abs"): float(i) for i in range(100)})
        for i in range(4):
            run.log_file(source, f"engine/{i}.plan")
        run.log_text("log", "build.log")
        run.finish("good")


def test_killed_process_leaves_complete_or_incomplete_run(new_store, tmp_path: Path):
    tracker = MlflowTracker(new_store(tmp_path / "mlruns"))
    source = tmp_path / "model.plan"
    source.write_bytes(PLAN)
    log_a_build(tracker, source)  # imports what there is to be imported
    seconds = seconds_of(log_a_build, tracker, source)
    points = 12

    for i in range(points):
        run_until_spent(seconds * i / points, log_a_build, tracker, source)

    outcomes = []
    for info in tracker.find("m"):
        try:
            stored = tracker.load(info.id)
        except errors.IncompleteRunError:
            outcomes.append("incomplete")
            continue
        outcomes.append("whole")
        assert stored.info.verdict == "good"
        assert len(stored.info.params) == 10
        assert len(stored.info.metrics) == 100
        paths = ["build.log", *(f"engine/{i}.plan" for i in range(4))]
        assert [entry.path for entry in stored.manifest.artifacts] == paths
        assert all(sha256(stored.read_bytes(f"engine/{i}.plan")) == sha256(PLAN) for i in range(4))
    assert set(outcomes) == {"whole", "incomplete"}
    assert {file.stat().st_size for file in (tmp_path / "mlruns").rglob("*.plan")} == {len(PLAN)}

    reap(tracker)
    assert tracker.find(status="running") == []
    assert len(tracker.find(status="finished")) == outcomes.count("whole")
    assert len(tracker.find(status="killed")) == outcomes.count("incomplete")
    assert not list((tmp_path / "mlruns").rglob(".artifact.uploading.*"))


def test_interrupted_campaign_names_its_store(new_store, tmp_path: Path, monkeypatch, caplog) -> None:
    root = new_store(tmp_path / "mlruns")
    tracker = OfflineTracker(MlflowTracker(root), Spool(tmp_path / "spool"))
    # Releases of MLflow before 3.8 replace the handlers of the root logger when they open a database.
    monkeypatch.setattr(logging.getLogger("trtops"), "handlers", [caplog.handler])
    for home, option in (("elsewhere", f" --store {root}"), ("mlruns", "")):
        monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / home))
        with pytest.raises(KeyboardInterrupt), tracked(tracker, "m", "c", kind="debug_build") as run:
            run.rename("✓ c")  # just before its end
            raise KeyboardInterrupt
        resume = f"trtops debug build --resume {run.id}{option}"
        assert caplog.messages[-1] == f"Run {run.id} was interrupted. Next: {resume}"
        assert tracker.info(run.id).name == "c"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_fails_the_run(new_store, small_disk: Path, tmp_path: Path):
    tracker = MlflowTracker(new_store(small_disk / "mlruns"))
    (tmp_path / "big.plan").write_bytes(bytes(20 << 20))

    with (
        pytest.raises(errors.LogError, match=r"engine/big\.plan.*No space left"),
        tracked(tracker, "m", "r", kind="build") as run,
    ):
        run.log_bytes(b"small", "engine/small.plan")
        run.log_file(tmp_path / "big.plan", "engine/big.plan")

    info = tracker.info(run.id)
    assert (info.status, info.verdict) == ("failed", "error")
    assert "No space left" in info.tags[Tag.ERROR]
    with pytest.raises(errors.IncompleteRunError):
        tracker.load(run.id)
    assert [file.name for file in (small_disk / "mlruns" / "artifacts").rglob("*") if file.is_file()] == ["small.plan"]


def fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as out:
        for size in (1 << 20, 1 << 12, 1):
            with pytest.raises(OSError, match="No space left"):
                while True:
                    out.write(bytes(size))


def test_store_needs_disk_space(small_disk: Path):
    fill(small_disk / "other")

    with pytest.raises(errors.TrackingError, match=r"disk is full|No space left"):
        MlflowTracker(small_disk / "mlruns")


def test_run_is_spooled_if_the_disk_fills_up(small_disk: Path, new_store, tmp_path: Path) -> None:
    tracker = MlflowTracker(new_store(small_disk / "mlruns"))
    offline = OfflineTracker(tracker, Spool(tmp_path / "spool"))
    run = offline.start("m", "r", kind="build")
    run.log_bytes(b"early", "early.bin")
    other = small_disk / "other"
    fill(other)

    run.log_bytes(os.urandom(2 << 20), "engine/engine.ort")
    run.log_metrics({("build", "seconds"): 1.0})
    run.finish("good")

    assert len(offline.spool.runs()) == 1
    assert offline.info(run.id).verdict == "good"
    other.unlink()
    assert [uploaded.run_id for uploaded in upload(tracker, offline.spool)] == [run.id]
    stored = tracker.load(run.id)
    assert (len(stored.read_bytes("engine/engine.ort")), stored.read_bytes("early.bin")) == (2 << 20, b"early")
