"""What Windows and macOS lack: commands without TensorRT work there too."""

import os
import subprocess
import sys
from pathlib import Path

from tests import models

# Nothing here is the real system: attributes are removed before trtops is imported.
LACKING = """
import builtins, os, signal, sys
flags = os.O_CLOEXEC, os.O_NONBLOCK
for name in ("fork", "getuid", "memfd_create", "sched_getaffinity", "killpg", "setsid", "O_CLOEXEC", "O_NONBLOCK"):
    delattr(os, name)
del signal.SIGHUP
real = builtins.open
def open_without_proc(file, *args, **kwargs):
    if str(file).startswith("/proc") and sys._getframe(1).f_globals.get("__name__", "").startswith("trtops"):
        raise FileNotFoundError(2, "there is no /proc", file)
    return real(file, *args, **kwargs)
builtins.open = open_without_proc
from trtops.cli.main import main
for line in sys.stdin.read().splitlines():
    print(">", main(line.split()), flush=True)
import trtops.team.servers, trtops.system.locks, trtops.system.trial, trtops.tracking.spool
print("tried in children:", len(trtops.system.trial._survived))
from trtops import errors
from pathlib import Path
os.O_CLOEXEC, os.O_NONBLOCK = flags  # filelock chose its module for this system
with trtops.system.locks.held("x") as is_held: print("lock", is_held)
print("spool", trtops.tracking.spool.Spool(Path("spool")).runs())
try:
    trtops.team.servers.up(Path("team"))
except errors.ConfigError as exc:
    print(exc)
"""


def test_commands_work_without_fork_and_proc(tmp_path: Path) -> None:
    models.conv_net().fixed().write(tmp_path)
    lines = {
        "inspect model conv_net.onnx": 0,
        "check lint conv_net.onnx": 0,
        "run conv_net.onnx --onnxrt --onnx --save-outputs outputs.json": 0,
        "convert conv_net.onnx --onnxrt --int8 -o conv_net.ort": 0,
        "debug reduce conv_net.onnx -o reduced.onnx --check true": 0,
    }
    done = subprocess.run(
        [sys.executable, "-c", LACKING], input="\n".join(lines), capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "TRTOPS_HOME": str(tmp_path / "mlruns"), "USERNAME": "tester"},
    )  # fmt: skip

    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    codes = [int(line[2:]) for line in done.stdout.splitlines() if line.startswith("> ")]
    assert dict(zip(lines, codes)) == lines, done.stderr[-2000:]
    assert "tried in children: 0" in done.stdout  # such a call would try the calls in it, and those the calls in them
    assert "lock True" in done.stdout and "trtops team needs Linux or macOS" in done.stdout
