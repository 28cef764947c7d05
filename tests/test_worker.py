"""The child process: warm, restarted when it dies, and clear about how it died."""

from __future__ import annotations

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
from trtops.worker import Worker


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


def test_what_lies_in_the_working_folder_is_not_imported_by_a_child(tmp_path, monkeypatch):
    note = tmp_path / "ran"
    for module in ("trtops", "select", "colorsys"):
        (tmp_path / f"{module}.py").write_text(f"open({str(note)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])  # as for the command `trtops`

    with Worker() as worker:
        assert worker.run(os.getcwd) == str(tmp_path)  # where relative paths count from
        assert "colorsys" in worker.run(repr_of_module, "colorsys")

    assert not note.exists()


def repr_of_module(name):
    return repr(importlib.import_module(name))


repr_of_module.__module__ = "tests.test_worker"


def test_what_a_function_raises_is_raised_here_and_the_child_lives_on(worker):
    pid = worker.run(os.getpid)

    with pytest.raises(ZeroDivisionError):
        worker.run(operator.truediv, 1, 0)
    assert worker.run(os.getpid) == pid


def test_errors_with_attributes_keep_them(worker):
    with pytest.raises(errors.TacticMismatchError) as caught:
        worker.run(raise_mismatch)

    assert caught.value.layers == ("conv1",)


def raise_mismatch():
    raise errors.TacticMismatchError("conv1 got another tactic", ["conv1"])


raise_mismatch.__module__ = "tests.test_worker"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_names_the_signal_and_the_next_call_gets_a_new_child(worker, number):
    worker.run(os.getpid)
    starts = worker.starts

    with pytest.raises(errors.WorkerError, match=number.name):
        worker.run(os.kill, worker.pid, number)
        worker.run(os.getpid)

    assert worker.run(operator.neg, 1) == -1
    assert worker.starts == starts + 1


def test_the_childs_last_words_are_in_the_error(worker):
    worker.run(print, "the last line of a log", flush=True)

    with pytest.raises(errors.WorkerError, match="the last line of a log"):
        worker.run(os._exit, 7)


def test_a_hang_is_killed_after_the_time_given(worker):
    worker.run(os.getpid)

    with pytest.raises(errors.WorkerError, match=r"did not finish within 0\.3 s"):
        worker.run(time.sleep, FOR_EVER, timeout=0.3)

    assert worker.run(operator.add, 1, 1) == 2


def test_a_killed_child_was_perhaps_short_of_memory(worker):
    pid = worker.run(os.getpid)

    with pytest.raises(errors.WorkerError, match="memory"):
        worker.run(os.kill, pid, signal.SIGKILL)


def test_a_result_that_cannot_be_sent_is_an_error_and_not_the_end(worker):
    with pytest.raises(errors.WorkerError, match="cannot be sent back"):
        worker.run(sys._getframe)

    assert worker.run(operator.add, 1, 1) == 2


def test_closing_ends_the_child():
    worker = Worker()
    pid = worker.run(os.getpid)

    worker.close()

    assert worker.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert worker.run(os.getpid) != pid
    worker.close()


def test_what_cannot_be_sent_is_told_and_starts_no_child():
    with Worker(name="my runner") as worker:
        with pytest.raises(errors.ConfigError, match="my runner cannot be sent to a child process"):
            worker.run(lambda: None)
        assert worker.starts == 0


def test_a_deadline_holds_while_work_is_sent_to_a_child_that_does_not_listen(worker):
    pid = worker.run(os.getpid)
    os.kill(pid, signal.SIGSTOP)

    with pytest.raises(errors.WorkerError, match=r"did not finish within 0\.3 s"):
        worker.run(len, bytes(32 << 20), timeout=0.3)


def test_a_child_of_the_child_that_outlives_it_does_not_hide_its_death(worker, tmp_path):
    with pytest.raises(errors.WorkerError, match="exit code 3"):
        worker.run(leave_a_child_behind, tmp_path / "pid")

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it had lived on


def leave_a_child_behind(note):
    child = os.fork()
    if child == 0:
        time.sleep(FOR_EVER)
    note.write_text(str(child))
    os._exit(3)


leave_a_child_behind.__module__ = "tests.test_worker"


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also in a process that a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_call_does_not_answer_the_next_one(worker):
    worker.run(os.getpid)

    with pytest.raises(KeyboardInterrupt):
        worker.run(interrupt_and_hang, os.getpid())
    assert worker.pid is None
    assert worker.run(operator.add, 1, 1) == 2


def interrupt_and_hang(pid):
    os.kill(pid, signal.SIGINT)
    time.sleep(FOR_EVER)


interrupt_and_hang.__module__ = "tests.test_worker"


def test_ctrl_c_is_the_parents_and_a_child_that_is_idle_stays_warm(worker):
    pid = worker.run(os.getpid)

    os.kill(pid, signal.SIGINT)

    assert worker.run(os.getpid) == pid


SCRIPT = """
import os, signal, sys, time
from trtops.worker import Worker

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


def test_a_script_s_own_functions_run_in_a_child_that_imports_it(tmp_path):
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


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    command = script(tmp_path / "unguarded.py", "Worker(script=True).run(whoami)")

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 1
    assert "ConfigError: A child process that imports this script" in done.stderr


def test_a_child_that_hangs_ends_when_its_parent_is_killed(tmp_path):
    main = """
        if __name__ == "__main__":
            Worker(script=True).run(hang)
    """
    with subprocess.Popen(script(tmp_path / "parent.py", main), stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()

    until(lambda: is_gone(child))


def test_the_interpreter_of_another_environment_has_this_package_and_none_of_these_packages(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)

    with Worker(python=str(tmp_path / "bare" / "bin" / "python")) as worker:
        where = worker.run(eval, "__import__('sys').executable")
        with pytest.raises(ModuleNotFoundError, match="numpy"):
            worker.run(importlib.import_module, "numpy")
        own = worker.run(eval, "__import__('os').path.realpath(__import__('trtops.errors').errors.__file__)")

    assert where == str(tmp_path / "bare" / "bin" / "python")
    assert own == os.path.realpath(errors.__file__)
