"""Run work that may crash the process in a child process: builds, the first inference with an engine, foreign runners.

A :class:`Worker` starts its child on first use and keeps it. If the child crashes, hangs or is killed, the current call
raises :class:`~trtops.errors.WorkerError` with the reason and the child's last lines of output; the next call starts a
new child. A child ends with its parent, because its pipe is closed then. On Ctrl-C the parent ends a child that is
working; an idle child ignores the signal.

The child runs this interpreter with the same module search path, or the interpreter of another environment, which gets
only this package. Calls and results are pickled over a pipe that only these two processes hold; no pickle is read from
a file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.system.blas import BRIEF_SPIN
from trtops.system.processes import STARTED_BY, mark, shared_secret, temporary_prefix

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

# Python searches the working folder for modules first. A downloaded model may lie next to an `onnxruntime.py`, so the
# child uses the parent's search path only. (Option -P does not exist in Python 3.10.)
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from trtops.system.worker import serve; serve({fd})"

# True in a child while it imports the calling script, which must not start another child.
_importing_script = False


class Worker:
    """Runs functions in a child process, one at a time.

    Functions, arguments and results must be picklable: module functions and methods of frozen dataclasses are, lambdas
    are not.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        script: bool = False,
        name: str | None = None,
        python: str | None = None,
    ) -> None:
        """Create the worker; the child starts with the first call."""
        self.starts = 0  # number of children started
        self._environment = dict(environment or {})  # variables to change in the child
        # Whether the child imports the calling script, whose main part must be guarded by `if __name__ == "__main__":`.
        # Its output goes to the parent's output.
        self._script = script
        self._name = name  # owner of the work, for messages
        self._python = python  # interpreter of another environment, which gets no other package of this one
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None if none is running."""
        return self._child.process.pid if self._child is not None and self._child.alive else None

    def run(self, function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
        """Call a function in the child, which is killed after ``timeout`` seconds.

        Raises:
            WorkerError: If the child crashed, was killed, or did not finish in time.
            ConfigError: If the call cannot be pickled, or the main part of the calling script is not guarded.
            Exception: Any exception of the function.
        """
        try:
            pickled = ForkingPickler.dumps((function, args, kwargs))
        except errors.TrtopsError:
            raise
        except Exception as exc:  # `__reduce__` may raise anything
            raise errors.ConfigError(
                f"{self._name or 'The call'} cannot be sent to a child process: {exc}. Functions and classes must be "
                "importable by name, and runners made from loaders rather than from loaded objects."
            ) from None
        # Release the view: a traceback that holds it makes Python 3.12 free the buffer too early.
        with pickled as call, self._lock:
            try:
                returned, answer = self._answer_to(call, timeout)
            except BaseException:  # after Ctrl-C, the child would answer the next call with this result
                self.kill()
                raise
        if not returned:
            raise answer
        result: T = answer
        return result

    def close(self, seconds: float = 5.0) -> None:
        """End the child, and kill it if it has not ended after some seconds."""
        child, self._child = self._child, None
        if child is not None:
            child.close(seconds)

    def kill(self) -> None:
        """Kill the child."""
        self.close(0)

    def _answer_to(self, call: memoryview, timeout: float | None) -> tuple[bool, Any]:
        """Send a call to the child, which is started if necessary; returns what :meth:`_Child.ask` does."""
        begun = self._child is not None and self._child.alive
        if not begun:
            self.close()
            if self._script and _importing_script:
                raise errors.ConfigError(
                    "A child process that imports this script would start another one, and so on: "
                    'guard the script\'s main part with `if __name__ == "__main__":`.'
                )
            self._child = _Child(self._environment, own_output=not self._script, python=self._python)
            self.starts += 1
        child = self._child
        assert child is not None
        expired = threading.Event()

        def end() -> None:
            expired.set()
            child.process.kill()

        timer = threading.Timer(threading.TIMEOUT_MAX if timeout is None else timeout, end)
        timer.daemon = True
        timer.start()
        try:
            if not begun:
                self._prepare(child)
            return child.ask(call)
        except (EOFError, ConnectionError):
            how = f"did not finish within {timeout:g} s and was killed" if expired.is_set() else child.how_it_ended()
        finally:
            timer.cancel()
            timer.join()
            if expired.is_set():
                child.process.wait()
        who = f"{self._name}'s child process" if self._name else "The child process"
        error = errors.WorkerError(f"{who} {how}. Its last output:{child.last_output()}")
        error.timed_out = expired.is_set()
        raise error

    def _prepare(self, child: _Child) -> None:
        """Set up logging in the child, or let it import the calling script."""
        preparation = None
        if self._script:
            from multiprocessing import spawn

            about = spawn.get_preparation_data("trtops")
            preparation = {**about, "authkey": bytes(about["authkey"])}  # an AuthenticationString cannot be pickled
        with ForkingPickler.dumps((_prepare_child, (preparation,), {})) as call:
            returned, answer = child.ask(call)
        if isinstance(answer, errors.TrtopsError):
            raise answer
        if not returned:
            raise errors.WorkerError(
                f"A child process cannot import the calling script: {type(answer).__name__}: {answer}"
            ) from answer


class _Child:
    """A child process, the pipe to it and the file with its output."""

    def __init__(self, environment: Mapping[str, str], own_output: bool, python: str | None) -> None:
        self.pipe, theirs = Pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        shared_secret()  # sets the variable that the child inherits
        path = os.pathsep.join(place or os.getcwd() for place in sys.path) if python is None else _own_code().name
        with theirs:
            self.process = subprocess.Popen(
                [python or sys.executable, "-c", _PROGRAM.format(fd=theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self.output if own_output else None,
                stderr=self.output,
                env={**BRIEF_SPIN, **os.environ, "PYTHONPATH": path, STARTED_BY: mark(), **environment},
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, call: memoryview) -> tuple[bool, Any]:
        """Send a call, and return True and its result, or False and its exception.

        Raises:
            EOFError, ConnectionError: If the child died.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the child died; poll() notices below
            self.pipe.send_bytes(call)
        while not self.pipe.poll(1.0):
            if not self.alive and not self.pipe.poll():  # a grandchild may still hold the pipe open
                raise EOFError
        answer: tuple[bool, Any] = self.pipe.recv()
        return answer

    def how_it_ended(self) -> str:
        """Describe the exit of a child that closed its pipe."""
        try:
            code = self.process.wait(60)  # after a crash, the kernel may spend a long time writing a core dump
        except subprocess.TimeoutExpired:
            return "closed its pipe without a result"
        if code >= 0:
            return f"ended with exit code {code}"
        if -code == signal.SIGKILL:
            return "was killed by SIGKILL, as the kernel does when memory runs out"
        known = {int(number): number.name for number in signal.Signals}
        return f"died of {known.get(-code, f'signal {-code}')}"

    def last_output(self) -> str:
        size = os.fstat(self.output.fileno()).st_size
        text = os.pread(self.output.fileno(), 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
        return "".join(f"\n  {line}" for line in text.splitlines()[-20:]) or " nothing"

    def close(self, seconds: float) -> None:
        """Close the pipe, which ends the child; kill it if it has not ended after ``seconds``."""
        self.pipe.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()


@functools.cache
def _own_code() -> tempfile.TemporaryDirectory[str]:
    """A folder that contains only this package, without the other packages of this environment."""
    folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("code"))
    Path(folder.name, "trtops").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
    return folder


def _prepare_child(script: Mapping[str, Any] | None) -> None:
    """First call in a child."""
    if script is None:
        import logging

        logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(name)s: %(message)s")
        return
    from multiprocessing import spawn

    global _importing_script
    _importing_script = True
    try:
        spawn.prepare(script)
    finally:
        _importing_script = False


def serve(fd: int) -> None:
    """Main loop of the child: answer calls until the parent closes the pipe."""
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, lambda *_: None)

    def end_with_parent() -> None:
        """End this process when its parent is gone, even during a call."""
        import select

        poller = select.poll()
        poller.register(fd, 0)  # POLLHUP is always reported
        poller.poll()
        time.sleep(1.0)  # an idle child exits normally within this time
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    pipe: Connection[Any, Any] = Connection(fd)
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer: tuple[bool, Any] = True, function(*args, **kwargs)
        except Exception as exc:  # raised again in the parent
            answer = False, exc
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        try:
            pipe.send(answer)
        except ConnectionError:
            return
        except Exception as exc:  # the result cannot be pickled
            text = f"The child's result cannot be sent back: {exc!r} ({answer[1]!r:.200})"
            pipe.send((False, errors.WorkerError(text)))
