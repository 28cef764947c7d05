"""Stores that this user may only read: another's, or on a disk that is mounted for reading."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trtops import errors
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker, embedded


@pytest.mark.parametrize("what", ["mounted", "database"])
def test_read_only_store_is_read(
    new_store: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    root = new_store(tmp_path / "mlruns")
    before = MlflowTracker(root)
    with tracked(before, "e", "r", kind="build") as run:
        run.log_text("plan", "engine/x.plan")
    if os.getuid() != 0:  # the superuser may write anything
        (root / "mlflow.db").chmod(0o444)
        root.chmod(0o555 if what == "mounted" else 0o755)
    denied = {root, root / "mlflow.db"} if what == "mounted" else {root / "mlflow.db"}
    monkeypatch.setattr(embedded.os, "access", lambda path, mode: mode != os.W_OK or Path(path) not in denied)
    kept = {path: path.stat().st_mtime_ns for path in (root, *root.glob("mlflow.db*"))}

    tracker = MlflowTracker(root)

    assert [info.id for info in tracker.find("e")] == [run.id]
    assert tracker.load(run.id).read_bytes("engine/x.plan") == b"plan"
    for writing in (
        lambda: tracker.start("e", "r", kind="build"),
        lambda: tracker.close(run.id, "why"),
        lambda: tracker.reopen(run.id),
        lambda: tracker.register("m", run.id, "engine/x.plan", alias="a"),
    ):
        with pytest.raises(errors.NoRoomError, match=r"read-only here.*several people.*store ui"):
            writing()
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert [info.id for info in before.find("e")] == [run.id]
    root.chmod(0o755)
