"""The child process: warm, restarted when it dies, and clear about how it died."""

import importlib
import operator
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.waiting import FOR_EVER, is_gone, until
from trtops import errors
from trtops.system.worker import Worker, close_workers, kept_workers, warm_worker


def repr_of_module(name):
    return repr(importlib.import_module(name))


def raise_mismatch():
    raise errors.TacticMismatchError("conv1 got another tactic", layers=("conv1",))


def leave_a_child_behind(note):
    child = os.fork()
    if child == 0:
        time.sleep(FOR_EVER)
    note.write_text(str(child))
    os._exit(3)


def interrupt_and_hang(pid):
    os.kill(pid, signal.SIGINT)
    time.sleep(FOR_EVER)


for function in (repr_of_module, raise_mismatch, leave_a_child_behind, interrupt_and_hang):
    function.__module__ = "tests.test_worker"  # by which the child imports them


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


def test_functions_run_in_one_warm_child(worker):
    starts = worker.starts

    pids = {worker.run(os.getpid) for _ in range(3)}

    assert pids == {worker.pid}
    assert os.getpid() not in pids
    assert worker.starts <= starts + 1
    assert worker.run(operator.add, 2, 3) == 5
    assert worker.run(dict, a=1) == {"a": 1}


def test_child_ignores_modules_in_the_working_folder(tmp_path, monkeypatch):
    note = tmp_path / "ran"
    for module in ("trtops", "select", "colorsys"):
        (tmp_path / f"{module}.py").write_text(f"open({str(note)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as for the command `trtops`

    with Worker() as worker:
        assert worker.run(os.getcwd) == str(tmp_path)  # where relative paths count from
        assert "colorsys" in worker.run(repr_of_module, "colorsys")

    assert not note.exists()


def test_exception_is_raised_and_child_survives(worker):
    pid = worker.run(os.getpid)

    with pytest.raises(errors.TacticMismatchError, match="conv1 got another tactic"):
        worker.run(raise_mismatch)

    assert worker.run(os.getpid) == pid


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_crash_names_signal_and_restarts_child(worker, number):
    worker.run(os.getpid)
    starts = worker.starts

    with pytest.raises(
        errors.WorkerError, match="SIGKILL.*memory" if number == signal.SIGKILL else f"signal {number:d} "
    ):
        worker.run(os.kill, worker.pid, number)
        worker.run(os.getpid)

    assert worker.run(operator.neg, 1) == -1
    assert worker.starts == starts + 1


def test_hang_is_killed_after_timeout(worker):
    worker.run(os.getpid)

    with pytest.raises(errors.WorkerError, match=r"did not finish within 0\.3 s"):
        worker.run(time.sleep, FOR_EVER, timeout=0.3)

    os.kill(worker.run(os.getpid), signal.SIGSTOP)
    with pytest.raises(errors.WorkerError, match="did not finish"):
        worker.run(len, bytes(1 << 24), timeout=0.3)  # more than a pipe holds

    assert worker.run(operator.add, 1, 1) == 2


def test_unpicklable_result_is_an_error(worker):
    with pytest.raises(errors.WorkerError, match="cannot be sent back"):
        worker.run(sys._getframe)

    assert worker.run(operator.add, 1, 1) == 2


def test_close_ends_the_child():
    with Worker() as worker:
        pid = worker.run(os.getpid)
        worker.close()
        assert worker.pid is None and is_gone(pid)
        assert worker.run(os.getpid) != pid


def test_warm_children_are_kept_by_environment(monkeypatch):
    monkeypatch.setattr("trtops.system.worker._idle", {})
    with warm_worker() as first:
        pid = first.run(os.getpid)

    with warm_worker() as again, warm_worker(environment={"A_MARK": "of this child"}) as other:
        assert again.run(os.getpid) == pid
        assert other.run(os.getenv, "A_MARK") == "of this child" and other.pid != pid

    close_workers()
    assert is_gone(pid) and other.pid is None


def test_the_outermost_op_ends_its_children(monkeypatch):
    monkeypatch.setattr("trtops.system.worker._idle", {})
    with kept_workers():
        with pytest.raises(errors.ConfigError), kept_workers(), warm_worker() as first:
            pid = first.run(os.getpid)
            raise errors.ConfigError("of the inner op")
        with kept_workers(), warm_worker() as again:
            assert again.run(os.getpid) == pid

    assert is_gone(pid)


def test_child_follows_the_working_folder(worker, tmp_path, monkeypatch):
    before = worker.run(os.getcwd), worker.pid
    monkeypatch.chdir(tmp_path)

    assert before[0] != str(tmp_path)
    assert (worker.run(os.getcwd), worker.pid) == (str(tmp_path), before[1])


def test_unpicklable_call_starts_no_child():
    with Worker(name="my runner") as worker:
        with pytest.raises(errors.ConfigError, match="my runner cannot be sent to a child process"):
            worker.run(lambda: None)
        assert worker.starts == 0


def test_grandchild_does_not_hide_a_crash(worker, tmp_path):
    worker.run(print, "the last line of a log")

    with pytest.raises(errors.WorkerError, match=r"exit code 3.*\n.*the last line of a log"):
        worker.run(leave_a_child_behind, tmp_path / "pid")

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it had lived on


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also in a process that a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_call_is_not_answered_later(worker):
    worker.run(os.getpid)

    with pytest.raises(KeyboardInterrupt):
        worker.run(interrupt_and_hang, os.getpid())
    assert worker.pid is None
    assert worker.run(operator.add, 1, 1) == 2


def test_idle_child_ignores_ctrl_c(worker):
    pid = worker.run(os.getpid)

    os.kill(pid, signal.SIGINT)

    assert worker.run(os.getpid) == pid


SCRIPT = """
import os, signal, sys, time
from trtops.system.worker import Worker

def whoami():
    print("from the child")
    return __name__

def hang():
    print(os.getpid(), flush=True)
    time.sleep(3600)
"""


def script(path: Path, main: str) -> list[str]:
    path.write_text(SCRIPT + textwrap.dedent(main))
    return [sys.executable, str(path)]


def test_child_imports_the_calling_script(tmp_path):
    command = script(
        tmp_path / "mine.py",
        """
        if __name__ == "__main__":
            with Worker(script=True) as worker:
                print(worker.run(whoami), len(sys.argv), flush=True)
        """,
    )

    done = subprocess.run([*command, "argument"], capture_output=True, text=True)

    assert (done.stdout, done.returncode) == ("from the child\n__mp_main__ 2\n", 0), done.stderr


def test_script_without_guard_is_an_error(tmp_path):
    command = script(tmp_path / "unguarded.py", "Worker(script=True).run(whoami)")

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 1
    assert "has finished its bootstrapping phase" in done.stderr


def test_hanging_child_ends_with_its_parent(tmp_path):
    main = """
        if __name__ == "__main__":
            Worker(script=True).run(hang)
    """
    with subprocess.Popen(script(tmp_path / "parent.py", main), stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()

    until(lambda: is_gone(child))


def test_other_interpreter_gets_only_this_package(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)

    with Worker(python=str(tmp_path / "bare" / "bin" / "python")) as worker:
        where = worker.run(eval, "__import__('sys').executable")
        with pytest.raises(ModuleNotFoundError, match="numpy"):
            worker.run(importlib.import_module, "numpy")
        errors_path = worker.run(eval, "__import__('os').path.realpath(__import__('trtops.errors').errors.__file__)")

    assert where == str(tmp_path / "bare" / "bin" / "python")
    assert errors_path == os.path.realpath(errors.__file__)
