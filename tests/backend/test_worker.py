"""The child process: warm, restarted when it dies, and clear about how it died."""

from __future__ import annotations

import operator
import os
import signal
import sys
import time

import pytest

from trtops import errors
from trtops.backend.worker import Worker


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


raise_mismatch.__module__ = "tests.backend.test_worker"


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
    started = time.monotonic()

    with pytest.raises(errors.WorkerError, match=r"did not finish within 0\.3 s"):
        worker.run(time.sleep, 60, timeout=0.3)

    assert time.monotonic() - started < 10
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
