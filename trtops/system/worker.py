"""Run crash-prone work in a child process: builds, the first inference with an engine, foreign runners.

A :class:`Worker` keeps its child from call to call. If the child crashes, hangs or is killed, the call raises
:class:`~trtops.errors.WorkerError` with the reason and the last lines of output; the next call starts a new child.
Calls and results are pickled over a pipe that only these two processes hold; no pickle is read from a file.
"""

import contextlib
import functools
import gc
import logging
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar, cast

from trtops import errors
from trtops.system.activity import Page
from trtops.system.limits import MEMORY, TIME
from trtops.system.processes import BRIEF_SPIN, temporary_prefix

T = TypeVar("T")

_idle: dict[tuple[object, ...], list["Worker"]] = {}  # warm children, by purpose and environment
_keeping = 0  # blocks of `kept_workers` that have not ended
_guard = threading.Lock()

# Python searches the working folder for modules first. A downloaded model may lie next to an `onnxruntime.py`, so the
# child uses the parent's search path only. (Option -P does not exist in Python 3.10.)
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from trtops.system.worker import serve; serve({}, {})"


class Worker(contextlib.AbstractContextManager["Worker"]):
    """Runs functions in a child process, one at a time; functions, arguments and results must be picklable."""

    _process: subprocess.Popen[bytes] | None = None

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        script: bool = False,
        name: str | None = None,
        python: str | None = None,
        until: float = math.inf,
    ) -> None:
        """Create the worker; the child starts with the first call.

        Args:
            environment: Variables to change in the child.
            script: Whether the child imports the calling script, whose main part must be guarded by
                ``if __name__ == "__main__":``. Its output goes to the parent's output.
            name: Owner of the work, for messages.
            python: Interpreter of another environment, which gets only this package of this one.
            until: Time of ``time.monotonic()`` at which a call is ended, as if its timeout had passed. An attribute,
                which may be changed between calls.
        """
        self.starts = 0  # number of children started
        self._environment = environment or {}
        self._script = script
        self._name = name
        self._python = python
        self.until = until
        self._lock = threading.Lock()

    def another(self) -> "Worker":
        """A worker with the same settings, and a child of its own."""
        return Worker(self._environment, script=self._script, name=self._name, python=self._python, until=self.until)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if none is running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def run(self, function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
        """Call a function in the child; kill it after ``timeout`` seconds.

        Raises what the function raises; WorkerError if the child crashed, was killed, or did not finish in time;
        ConfigError if the call cannot be pickled.
        """
        if not hasattr(os, "fork"):
            # Windows hands no descriptors to a child: the call runs here, where a crash is not survived.
            return function(*args, **kwargs)
        # They may have changed since the child was started.
        limits, folder = {name: os.environ.get(name, "") for name in (MEMORY, TIME)}, None
        with contextlib.suppress(OSError):  # it was deleted
            folder = os.getcwd()
        try:
            # Bytes, since a traceback that holds the view makes Python 3.12 free the buffer too early.
            call = bytes(ForkingPickler.dumps((function, args, kwargs, limits, folder)))
        except Exception as exc:  # `__reduce__` may raise anything
            raise errors.ConfigError(
                f"{self._name or 'The call'} cannot be sent to a child process: {exc}. Functions and classes must be "
                "importable by name, and runners made from loaders rather than from loaded objects."
            ) from None
        with self._lock:
            left = min(math.inf if timeout is None else timeout, self.until - time.monotonic())
            if left <= 0:
                raise errors.WorkerError(f"{self._name or 'The child process'} has no time left.", timed_out=True)
            try:
                returned, answer = self._answer_to(call, left)
            except BaseException:  # after Ctrl-C, the child would answer the next call with this result
                self.close(0)
                raise
        if not returned:
            raise answer
        return cast("T", answer)

    def close(self, seconds: float = 5.0) -> None:
        """Close the pipe to end the child; kill it if it has not ended after some seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()  # no effect if it has ended
        process.wait()
        self._output.close()
        self._page.close()

    def _answer_to(self, call: bytes, timeout: float) -> tuple[bool, Any]:
        """Send a call to the child; return True and its result, or False and its exception."""
        if self.pid is None:
            self.close()
            self._start_child()
        process = self._process
        assert process is not None
        end, late = time.monotonic() + timeout, None

        def send() -> None:
            with contextlib.suppress(ConnectionError):  # the child died, as the loop finds
                self._pipe.send_bytes(call)

        # In a thread, since sending to a child that hangs blocks until the child is killed.
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            # A grandchild may hold the pipe open after the child has died, so that there is no end of file.
            while not self._pipe.poll(min(1.0, timeout)):
                if process.poll() is not None and not self._pipe.poll():
                    raise EOFError
                is_over = time.monotonic() >= end
                if late is None:
                    late = timeout if is_over else self._page.exceeded()
                    if late is not None:
                        process.kill()
            answer: tuple[bool, Any] = self._pipe.recv()
            return answer
        except (EOFError, ConnectionError):
            pass
        finally:
            sender.join(1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)  # after a crash, the kernel may spend a long time writing a core dump
        process.kill()
        code = process.wait()
        size = os.fstat(self._output.fileno()).st_size
        lines = os.pread(self._output.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace").splitlines()
        output = "".join(f"\n  {line}" for line in lines[-20:]) or " nothing"
        who = f"{self._name}'s child process" if self._name else "The child process"
        death = self._page.describe_death(code, late)
        doing = self._page.read()
        raise errors.WorkerError(f"{who} {death}. Its last output:{output}", timed_out=late is not None, doing=doing)

    def _start_child(self) -> None:
        preparation = None
        if self._script:
            from multiprocessing import spawn

            preparation = spawn.get_preparation_data("trtops")
            preparation.pop("authkey")  # it refuses to be pickled
        self._pipe, theirs = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._page = Page()
        path = [entry or os.getcwd() for entry in sys.path] if self._python is None else [_own_code().name]
        variables = {"PYTHONPATH": os.pathsep.join(path), **self._environment}
        with theirs:
            self._process = subprocess.Popen(
                # Unbuffered, so that a crash loses no output.
                [self._python or sys.executable, "-u", "-c", _PROGRAM.format(theirs.fileno(), self._page.fd)],
                pass_fds=(theirs.fileno(), self._page.fd),
                stdin=subprocess.DEVNULL,
                stdout=None if self._script else self._output,
                stderr=self._output,
                env={**BRIEF_SPIN, **os.environ, **variables},
            )
        self.starts += 1
        with contextlib.suppress(ConnectionError):  # it died, as sending the call finds
            self._pipe.send(preparation)


@contextlib.contextmanager
def warm_worker(purpose: str = "", environment: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """Yield a child process for exclusive use in the block; it stays alive for the next use in this process.

    Children of different purposes or environment variables are kept apart.
    """
    key = purpose, *sorted((environment or {}).items())
    with _guard:
        idle = _idle.setdefault(key, [])
        worker = idle.pop() if idle else Worker(environment)
    try:
        yield worker
    finally:
        with _guard:
            _idle.setdefault(key, []).append(worker)


@contextlib.contextmanager
def kept_workers() -> Iterator[None]:
    """Keep warm children while the block lasts; the outermost block of this process ends them.

    An op within another one leaves them to it: on TensorRT 8.6, a new child loads kernels for ten seconds.
    """
    global _keeping
    with _guard:
        _keeping += 1
    try:
        yield
    finally:
        with _guard:
            _keeping -= 1
            is_outermost = _keeping == 0
        if is_outermost:
            close_workers()


def close_workers() -> None:
    """End the idle warm children."""
    # Ending a child takes a moment, for which the lock is not held.
    with _guard:
        workers = list(chain.from_iterable(_idle.values()))
        _idle.clear()
    for worker in workers:
        worker.close()


@functools.cache
def _own_code() -> tempfile.TemporaryDirectory[str]:
    """A folder with only this package, without the other packages of this environment."""
    folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("code"))
    Path(folder.name, "trtops").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
    return folder


def serve(fd: int, page: int) -> None:
    """Main loop of the child: answer calls until the parent closes the pipe."""
    Page(page).publish_here()
    # On Ctrl-C, which the terminal sends to both, the parent ends a child that is working.
    signal.signal(signal.SIGINT, lambda *_: None)

    def end_with_parent() -> None:
        """End this process when its parent is gone, even during a call."""
        poller = select.poll()
        poller.register(fd, 0)  # POLLHUP is always reported
        poller.poll()
        time.sleep(1.0)  # an idle child exits normally within this time
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    pipe: Connection[Any, Any] = Connection(fd)
    preparation = pipe.recv()
    if preparation is None:
        logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(name)s: %(message)s")
    else:
        from multiprocessing import process, spawn

        # With this mark, multiprocessing refuses to prepare a child of a process that still imports its script.
        process.current_process()._inheriting = True  # type: ignore[attr-defined]
        spawn.prepare(preparation)
        process.current_process()._inheriting = False  # type: ignore[attr-defined]
    while True:
        try:
            function, args, kwargs, limits, folder = pipe.recv()
            os.environ.update(limits)
            if folder is not None:  # arguments may have paths relative to it
                with contextlib.suppress(OSError):
                    os.chdir(folder)
        except (EOFError, ConnectionError):
            # The last garbage collection of all modules and arrays would only delay the end.
            gc.freeze()
            return
        try:
            answer: tuple[bool, Any] = True, function(*args, **kwargs)
        except Exception as exc:  # raised again in the parent
            answer = False, exc
        try:
            pipe.send(answer)
        except Exception as exc:  # the result cannot be pickled
            text = f"The child's result cannot be sent back: {exc!r} ({answer[1]!r:.200})"
            pipe.send((False, errors.WorkerError(text)))
