"""Locks between processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtops import errors
from trtops.system import locks


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with locks.held("x / y", tmp_path) as first, locks.held("x / y", tmp_path) as second:
        assert first and not second
    with locks.held("x / y", tmp_path) as third:
        assert third


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    hold = f"with locks.held('x', pathlib.Path({str(tmp_path)!r})): os.abort()"
    code = f"import os, pathlib; from trtops.system import locks\n{hold}"
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False)

    with locks.held("x", tmp_path) as mine:
        assert mine


def test_machine_locks_ignore_tmpdir(tmp_path: Path) -> None:
    name = f"test {tmp_path}"
    code = f"from trtops.system import locks\nwith locks.held({name!r}) as mine: print(mine)"
    with locks.held(name) as mine:
        other = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=other, capture_output=True, text=True, check=True)

    assert mine and done.stdout == "False\n"


def test_links_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    (tmp_path / "x").symlink_to(precious)

    with pytest.raises(errors.ConfigError, match=r"The lock .*x cannot be used"), locks.held("x", tmp_path):
        pass
    with pytest.raises(OSError, match="x"), locks.locked(tmp_path / "x"):
        pass

    assert precious.read_text() == "content"


@pytest.mark.parametrize("found", ["writable by a group", "writable by all", "a link", "another user's"])
def test_unsafe_lock_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(locks, "_PLACE", tmp_path)
    folder = locks.machine_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    if found == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif found == "another user's":
        uid = os.getuid()
        folder.rename(tmp_path / f"trtops-locks-{uid + 1}")
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    else:
        folder.chmod(0o720 if found == "writable by a group" else 0o702)

    with pytest.raises(errors.ConfigError, match="only this user can write to"), locks.held("x"):
        pass
