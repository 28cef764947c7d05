"""Commands without what a process usually has: a clear error, or success."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.stores import copy_store
from trtops.cli.main import main
from trtops.tracking.store import open_tracker

COMMANDS = {
    "run": "run m.onnx --onnxrt",
    "lint": "check lint m.onnx",
    "convert": "convert m.onnx --convert-to ort -o {out}/m.ort --experiment e --latency-runs 0",
    "list": "runs list",
    "save": "run m.onnx --onnxrt --save-outputs here.json",
}
# By name: a line of bash, its environment, the commands, their exit code, and the error.
FAULTS: dict[str, tuple[str, dict[str, str], str, int, str]] = {
    "full output": ("{} > /dev/full", {}, "run list", 3, "the output: No space left on device"),
    "full log, optimized Python": ("{} 2> /dev/full", {"PYTHONOPTIMIZE": "1"}, "run", 0, ""),
    "both full": ("{} > /dev/full 2>&1", {}, "run", 3, ""),
    "closed input, C locale": ("{} <&-", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "run", 0, ""),
    "closed output, missing home": ("{} >&-", {"HOME": "/nonexistent/home"}, "lint", 0, ""),
    "closed log": ("{} 2>&-", {}, "lint", 0, ""),
    "no home": ("unset HOME; {}", {}, "list", 0, ""),
    "all closed, 64 descriptors, 700 MB of addresses": (
        "ulimit -n 64 -v 700000; {} <&- >&- 2>&-",
        {},
        "convert",
        0,
        "",
    ),
}


@pytest.fixture(scope="module")
def small_disk(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with a model and a store that has a build; a small file system where mounting is allowed."""
    folder = tmp_path_factory.mktemp("place")
    options = "size=60m,nr_inodes=300"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode
    models.conv_net().fixed().write(folder).rename(folder / "m.onnx")
    copy_store(template, folder / "mlruns")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TRTOPS_HOME", str(folder / "mlruns"))
        patch.setenv("TRTOPS_SPOOL", str(tmp_path_factory.mktemp("outside") / "spool"))
        assert command("convert", "{}", folder).returncode == 0  # no open file prevents a remount
        yield folder
    if not mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def command(name: str, line: str, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = COMMANDS[name].format(out=out)
    text = line.format(f"{shlex.quote(sys.executable)} -m trtops.cli {words}")
    source = str(Path(__file__).parents[2])
    # Buffered, whatever the environment says: Python writes what is left at exit, and may replace the exit code then.
    changed = {**os.environ, "PYTHONPATH": source, "PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(["bash", "-c", text], env=changed, capture_output=True, text=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_an_error_or_no_matter(fault: str, small_disk: Path, tmp_path: Path) -> None:
    line, environment, names, code, error = FAULTS[fault]
    for name in names.split():
        done = command(name, line, tmp_path, **environment)

        assert done.returncode == code, (name, done.stdout, done.stderr)
        assert error in done.stderr and "Traceback" not in done.stdout + done.stderr, name
        assert name != "convert" or (tmp_path / "m.ort").stat().st_size > 1000


@pytest.mark.parametrize("fault", ["read-only", "no inodes"])
def test_work_survives_a_disk_that_refuses_writes(fault: str, small_disk: Path, tmp_path: Path) -> None:
    if not os.path.ismount(small_disk):
        pytest.skip("mounting a file system is not allowed here")
    reason = "Read-only file system" if fault == "read-only" else "No space left on device"
    spool = tmp_path / "spool"
    variables = {"TRTOPS_SPOOL": str(spool)}
    files = []
    if fault == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    else:
        with pytest.raises(OSError, match=reason):
            for number in range(1000):
                files.append(small_disk / f"file{number}")
                files[-1].touch()
    try:
        built = command("convert", "{}", tmp_path, **variables)
        others = [command(name, "{}", tmp_path, **variables) for name in ("save", "list")]
    finally:
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        for file in files:
            file.unlink(missing_ok=True)

    assert built.returncode == 0 and "goes to the spool" in built.stderr and len(list(spool.iterdir())) >= 1
    # What cannot be written is found before anything runs, if the system says so.
    refused, shown = (2, "is read-only") if fault == "read-only" else (3, f"here.json: {reason}")
    assert [done.returncode for done in others] == [refused, 0] and shown in others[0].stderr
    assert "Traceback" not in built.stderr + others[0].stderr + others[1].stderr


def test_clock_that_jumps_loses_nothing(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, jumps = time.time, itertools.cycle((0, -86_400, 3600, -40, 400 * 86_400))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    before = len(open_tracker().find(status="finished"))

    assert main(COMMANDS["convert"].format(out=tmp_path).split()) == 0
    assert main(["runs", "list"]) == 0
    assert len(open_tracker().find(status="finished")) == before + 1
