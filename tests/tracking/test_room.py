"""Room for what is to be written: asked before the work is done."""

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
from trtops.tracking import room
from trtops.tracking.keeping import KeepingTracker
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.outbox import Outbox
from trtops.tracking.room import check_room
from trtops.tracking.upload import upload

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


def test_what_fits_is_let_through_and_nothing_is_left(tmp_path: Path) -> None:
    check_room(tmp_path / "not" / "yet" / "there", 1 << 20)
    check_room(tmp_path, 0)

    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_refused_with_both_sizes(mount: Path) -> None:
    check_room(mount, 10 << 20)
    with pytest.raises(errors.NoRoomError, match=r"cannot take the 20\.0 MB .* need: 1\d\.\d MB are free"):
        check_room(mount / "store", 20_000_000)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_quota_a_read_only_disk_and_a_missing_permission_are_said(tmp_path: Path, monkeypatch, number: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(room.os if number == errno.EDQUOT else room.tempfile, "posix_fallocate" if number == errno.EDQUOT else "TemporaryFile", refuse)  # fmt: skip

    with pytest.raises(errors.NoRoomError, match=os.strerror(number)):
        check_room(tmp_path, 1)


def test_a_file_system_that_cannot_reserve_space_is_believed(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(room.os, "posix_fallocate", refuse)

    check_room(tmp_path, 1)


def test_a_read_only_folder_is_said_before_anything_is_built(mount: Path, new_store) -> None:
    model = models.conv_net().write(mount)
    tracker = MlflowTracker(new_store(mount / "mlruns"))
    tracker._client._tracking_client.store.engine.dispose()
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    keeping = KeepingTracker(tracker, Outbox([mount / "outbox"]))

    with pytest.raises(errors.NoRoomError, match="read-only"):
        convert(model, QUICK, tracker=keeping)
    assert MlflowTracker(mount / "mlruns").find() == []  # to look at it is still possible


def test_a_disk_that_cannot_take_the_build_is_said_before_it_is_made(mount: Path, new_store, tmp_path: Path) -> None:
    model = models.conv_net().write(tmp_path)
    tracker = MlflowTracker(new_store(mount / "mlruns"))
    keeping = KeepingTracker(tracker, Outbox([tmp_path / "outbox"]))
    free = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize
    (mount / "other").write_bytes(bytes(free - (900 << 10)))

    with pytest.raises(errors.NoRoomError, match=r"this run may need: 0\.\d MB are free"):
        convert(model, QUICK, tracker=keeping)

    [info] = tracker.find("conv_net")
    assert info.status == "failed" and "may need" in info.tags["trtops.error"]


def test_a_disk_that_fills_up_during_the_build_costs_nothing(mount: Path, new_store, tmp_path: Path) -> None:
    tracker = MlflowTracker(new_store(mount / "mlruns"))
    keeping = KeepingTracker(tracker, Outbox([mount / "outbox", tmp_path / "outbox"]))
    run = keeping.start("m", "r", kind="build")
    run.log_bytes(b"early", "early.bin")
    other = mount / "other"
    with open(other, "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(1 << 12))

    run.log_bytes(os.urandom(2 << 20), "engine/engine.ort")
    run.log_metrics({("build", "seconds"): 1.0})
    run.finish("good")

    [folder] = keeping.outbox.folders()
    assert folder.path.is_relative_to(tmp_path / "outbox")
    assert keeping.load(run.id).info.verdict == "good"
    other.unlink()
    assert [each.run_id for each in upload(tracker, keeping.outbox)] == [run.id]
    stored = tracker.load(run.id)
    assert (len(stored.read_bytes("engine/engine.ort")), stored.read_bytes("early.bin")) == (2 << 20, b"early")


def test_runs_that_are_kept_nowhere_need_no_room() -> None:
    MemoryTracker().start("m", "r", kind="build").reserve(1 << 60)
