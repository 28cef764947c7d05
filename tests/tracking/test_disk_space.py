"""Disk space is checked before the work that needs it."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking import disk_space
from trtops.tracking.disk_space import check_space
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import Spool, upload

QUICK = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_available_space_is_accepted_and_nothing_left(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet" / "there", 1 << 20)
    check_space(tmp_path, 0)
    MemoryTracker().start("m", "r", kind="build").reserve(1 << 60)  # it needs no disk

    assert list(tmp_path.iterdir()) == []


def test_missing_space_is_reported_with_both_sizes(mount: Path) -> None:
    check_space(mount, 10 << 20)
    with pytest.raises(errors.NoRoomError, match=r"no space for the 20\.0 MB .* need: 1\d\.\d MB are free"):
        check_space(mount / "store", 20_000_000)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EOPNOTSUPP])
def test_errors_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    place, name = (
        (disk_space.tempfile, "TemporaryFile") if number == errno.EROFS else (disk_space.os, "posix_fallocate")
    )
    monkeypatch.setattr(place, name, refuse)

    if number == errno.EOPNOTSUPP:  # the file system cannot reserve space, and may have it
        check_space(tmp_path, 1)
    else:
        with pytest.raises(errors.NoRoomError, match=os.strerror(number)):
            check_space(tmp_path, 1)


def test_read_only_store_is_reported_before_a_build(mount: Path, new_store) -> None:
    model = models.conv_net().write(mount)
    root = new_store(mount / "mlruns")
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    tracker = MlflowTracker(root)

    with pytest.raises(errors.NoRoomError, match="read-only"):
        convert(model, QUICK, tracker=OfflineTracker(tracker, Spool(mount / "spool")))
    assert tracker.find() == []  # reading is still possible


def test_full_disk_is_reported_before_a_build(mount: Path, new_store, tmp_path: Path) -> None:
    model = models.conv_net().write(tmp_path)
    tracker = MlflowTracker(new_store(mount / "mlruns"))
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    (mount / "other").write_bytes(bytes(free - (900 << 10)))

    with pytest.raises(errors.NoRoomError, match=r"this run may need: \d+\.\d kB are free"):
        convert(model, QUICK, tracker=OfflineTracker(tracker, Spool(tmp_path / "spool")))

    [info] = tracker.find("conv_net")
    assert info.status == "failed" and "may need" in info.tags["trtops.error"]


def test_run_is_spooled_if_the_disk_fills_up(mount: Path, new_store, tmp_path: Path) -> None:
    tracker = MlflowTracker(new_store(mount / "mlruns"))
    offline = OfflineTracker(tracker, Spool(tmp_path / "spool"))
    run = offline.start("m", "r", kind="build")
    run.log_bytes(b"early", "early.bin")
    other = mount / "other"
    with open(other, "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(1 << 12))

    run.log_bytes(os.urandom(2 << 20), "engine/engine.ort")
    run.log_metrics({("build", "seconds"): 1.0})
    run.finish("good")

    assert len(offline.spool.runs()) == 1
    assert offline.load(run.id).info.verdict == "good"
    other.unlink()
    assert [each.run_id for each in upload(tracker, offline.spool)] == [run.id]
    stored = tracker.load(run.id)
    assert (len(stored.read_bytes("engine/engine.ort")), stored.read_bytes("early.bin")) == (2 << 20, b"early")
