"""Children of workers that start at once: forks of a process that has imported ONNX Runtime.

A worker's child spends 0.4 s of CPU time on imports, and tests start hundreds. These have the environment, folder and
files of any child, and none of the state of the process that started them.
"""

import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from trtops.system import worker
from trtops.system.processes import BRIEF_SPIN

# Tests of child processes, and of what these do before they serve; and of latencies, which forks measure alike.
_ORDINARY = (
    "tests/test_",
    "tests/backend/",
    "tests/comparator/",
    "tests/cli/",
    "tests/ops/gate/test_gate.py::test_slower",
)
_AT_START, _PATH = {**os.environ}, [*sys.path]
_TEMPLATE = "import sys; sys.path[:0] = {!r}; from tests.warm_children import serve; serve({})"


def install() -> None:
    """Let workers of this process start such children, except in tests of child processes."""
    worker.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=_start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )


def _start(command: list[str], *, env: dict[str, str], **options: Any) -> Any:
    is_ordinary = os.environ.get("PYTEST_CURRENT_TEST", "").startswith(_ORDINARY)
    # Tests plant modules for children on paths of their own.
    has_own_path = not {*env["PYTHONPATH"].split(os.pathsep)} <= {*_PATH, os.getcwd()}
    if (
        is_ordinary
        or has_own_path
        or _settings(env) != _settings(_AT_START)
        or command[0] != sys.executable
        or options["stdout"] is None
    ):
        return subprocess.Popen(command, env=env, **options)
    return Child(env, **options)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of trtops; modules read some of them when they are imported."""
    return {
        n: v for n, v in environment.items() if n.startswith("TRTOPS_") and n not in ("TRTOPS_HOME", "TRTOPS_SPOOL")
    }


class Child:
    """A child, with the methods of ``subprocess.Popen`` that workers use."""

    def __init__(self, env: dict[str, str], *, pass_fds: tuple[int, int], stdin: int, stdout: Any, stderr: Any) -> None:
        self._status, theirs = os.pipe()
        fds = [*pass_fds, stdout.fileno(), stderr.fileno(), theirs]
        socket.send_fds(_template(os.getpid()), [json.dumps([os.getcwd(), env]).encode()], fds)
        os.close(theirs)
        self.pid, self.returncode = self._read(), None

    def _read(self) -> int:
        return int(struct.unpack("i", os.read(self._status, 4))[0])

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._read()
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@functools.cache
def _template(pid: int) -> socket.socket:
    """The other end of a template's socket; one template for each process that starts children."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = _TEMPLATE.format([place or os.getcwd() for place in sys.path], theirs.fileno())
    null = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, "-u", "-c", program], pass_fds=[theirs.fileno()], cwd=pytest.__file__.rpartition("/")[0],
        stdin=null, stdout=null, stderr=null, env={**BRIEF_SPIN, **_AT_START},
    )  # fmt: skip
    theirs.close()
    return ours


def serve(fd: int) -> None:
    """Main loop of the template, which ends with the process that started it."""
    from trtops.backend.onnxrt import builder, inference  # noqa: F401
    from trtops.ops.campaign import iteration  # noqa: F401
    from trtops.ops.gate import engine_process  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=fd) as channel:
        while True:
            message, fds, *_ = socket.recv_fds(channel, 1 << 20, 5)
            if not message:
                return
            if os.fork() == 0:
                channel.close()
                _keep(json.loads(message), fds)
            for each in fds:
                os.close(each)


def _keep(where: tuple[str, dict[str, str]], fds: list[int]) -> None:
    """Fork the child, and report its id and its exit code. The template would have to wait for all at once."""
    pipe, page, stdout, stderr, status = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        os.close(status)
        os.chdir(where[0])
        os.environ.clear()
        os.environ.update(where[1])
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        sys.path[:] = filter(None, where[1]["PYTHONPATH"].split(os.pathsep))
        worker.serve(pipe, page)
        os._exit(0)
    for fd in fds[:-1]:
        os.close(fd)
    os.write(status, struct.pack("i", pid))
    os.write(status, struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)
