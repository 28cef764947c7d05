"""Signals interrupt a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import is_gone, until

PROGRAM = """
import sys, time
from trtops.cli import command_line, main
def work(*_):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
command_line._run_parsed = work
sys.exit(main.main(["doctor"]))
"""
# As the command `trtops`, which runs in a child process.
SUPERVISED = PROGRAM.replace('main.main(["doctor"])', "main.main()").replace("import sys", "import os, sys", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("target", ["unsupervised", "parent", "group"])
def test_signal_runs_every_finally(number: signal.Signals, target: str) -> None:
    words = [sys.executable, "-c", PROGRAM if target == "unsupervised" else SUPERVISED, "doctor"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        # A group gets the signal twice: directly, and forwarded by the parent.
        os.killpg(process.pid, number) if target == "group" else process.send_signal(number)
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == 130


def test_forwarded_signal_does_not_interrupt_twice() -> None:
    twice = 'os.kill(os.getpid(), main.FORWARDED); print("cleaned up"'
    code = SUPERVISED.replace("time.sleep(60)", "os.kill(os.getpid(), 15)").replace('print("cleaned up"', twice)
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "ready\ncleaned up\n")
    assert done.stderr == "interrupted\n"


def test_unnoticed_signal_is_repeated() -> None:
    # Blocked as if it arrived just before a system call: the handler is not called.
    unnoticed = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2, main.FORWARDED])"
    later = "threading.Timer(0.5, os.kill, (os.getppid(), 2)).start(); time.sleep(1.2)"
    seen = "signal.sigtimedwait([2, main.FORWARDED], 0); signal.pthread_sigmask(signal.SIG_SETMASK, [])"
    work = f"import threading; {unnoticed}; {later}; {seen}; time.sleep(60)"
    code = SUPERVISED.replace("time.sleep(60)", work)
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "ready\ncleaned up\n", "interrupted\n")


def test_command_that_does_not_end_is_killed() -> None:
    # As native code that runs on: an interruption is not seen.
    deaf = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15, main.FORWARDED]); os.kill(os.getppid(), 15)"
    code = SUPERVISED.replace("time.sleep(60)", f"{deaf}; time.sleep(60)")
    code = code.replace("sys.exit", "import trtops.cli.supervised as s; s._PATIENCE = 2.0\nsys.exit")
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "ready\n")
    assert done.stderr == "[E] Interrupted: killed, since the command did not end within 2 s.\n"


def test_child_ends_with_its_supervisor() -> None:
    words = [sys.executable, "-c", SUPERVISED.replace('"ready"', "os.getpid()"), "doctor"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        until(lambda: is_gone(child))
        assert process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGKILL])
def test_native_death_is_an_error(number: signal.Signals, tmp_path: Path) -> None:
    begin = "from trtops.system.activity import Activity; Activity('loading m', 9).__enter__()"
    begin += "; import tempfile, trtops.system.processes as p; tempfile.mkdtemp(prefix=p.temporary_prefix('left'))"
    crash = f"{begin}; os.kill(os.getpid(), {number:d})"
    code = SUPERVISED.replace("time.sleep(60)", crash).replace('print("ready", flush=True)', "pass")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, env=environment)
    assert done.returncode == 3 and not list(tmp_path.iterdir())
    died = "was killed by SIGKILL" if number == signal.SIGKILL else f"died of signal {number:d} "
    assert f"The command {died}" in done.stderr and "while loading m." in done.stderr
    quiet = subprocess.run([sys.executable, "-c", code, "doctor", "--silent"], capture_output=True, text=True)
    assert (quiet.returncode, quiet.stderr) == (3, "")


def test_nohup_keeps_hangup_ignored() -> None:
    code = "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PROGRAM.replace(
        "time.sleep(60)", "os.kill(os.getpid(), signal.SIGHUP)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
