"""A warm child process for work that may take the process down: builds, and the first inference with a new engine.

The child is started once and kept. When it crashes, hangs or is killed, the call that it was working on fails with a
:class:`~trtops.errors.WorkerError` that has the signal and the child's last lines of output; the next call gets a new
child. The child runs this interpreter with this process' module search path, and needs no guard in the caller's script.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.backend.base import Build, Caches, Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.spec import BuildConfig, Environment

if TYPE_CHECKING:
    from typing_extensions import Self

    from trtops.backend.base import BaseRunner
    from trtops.backend.onnx.model import Model

T = TypeVar("T")

_CHILD = "from trtops.backend.worker import serve; serve({read}, {write})"
_LAST_LINES = 12
NO_CACHES = Caches()


class Worker:
    """Runs functions in a child process, one at a time.

    Functions, arguments and results cross by pickling between the two processes of one program, and must be importable
    by name: methods of frozen dataclasses and functions of modules are, lambdas are not.

    Attributes:
        starts: Children started so far.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Nothing is started before the first call.

        Args:
            environment: Environment variables that the child has otherwise than this process.
        """
        self.starts = 0
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: _Pipe | None = None
        self._output: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no living child."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def run(self, function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
        """Call a function in the child.

        Args:
            function: Importable by name.
            args: Its arguments.
            timeout: Seconds after which the child is killed; None waits for ever.
            kwargs: Its keyword arguments.

        Returns:
            What it returned.

        Raises:
            WorkerError: If the child crashed, was killed, or did not finish in time.
            Exception: Whatever the function raised.
        """
        with self._lock:
            pipe = self._start()
            pipe.send((function, args, kwargs))
            answer = self._answer(pipe, timeout)
        if isinstance(answer, _Raised):
            raise answer.error
        result: T = answer
        return result

    def close(self) -> None:
        """End the child, if there is one."""
        if self._pipe is not None:
            self._pipe.close()  # the child ends when there is nobody to hear
            self._pipe = None
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _start(self) -> _Pipe:
        if self._pipe is not None and self.pid is not None:
            return self._pipe
        self.close()
        to_child, from_parent = os.pipe(), os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        child_read, parent_write = to_child
        parent_read, child_write = from_parent
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(read=child_read, write=child_write)],
            pass_fds=(child_read, child_write),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                **self._environment,
            },
        )
        os.close(child_read)
        os.close(child_write)
        self._pipe = pipe = _Pipe(parent_read, parent_write)
        self.starts += 1
        return pipe

    def _answer(self, pipe: _Pipe, timeout: float | None) -> Any:
        process = self._process
        assert process is not None
        if not pipe.ready(timeout):
            process.kill()
            process.wait()
            raise errors.WorkerError(self._failure(f"did not finish within {timeout:g} s and was killed"))
        try:
            return pipe.recv()
        except (EOFError, ConnectionError):
            raise errors.WorkerError(self._failure(_how_it_ended(process.wait()))) from None

    def _failure(self, what: str) -> str:
        """A message with the child's last lines; also clears away what is left of it."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self.close()
        said = "".join(f"\n  {line}" for line in lines) or " nothing"
        return f"The child process {what}. The next call gets a new one. Its last words:{said}"


class _Pipe:
    """Two one-way pipes as one connection."""

    def __init__(self, read: int, write: int) -> None:
        self._in: Connection[Any, Any] = Connection(read, writable=False)
        self._out: Connection[Any, Any] = Connection(write, readable=False)

    def send(self, value: Any) -> None:
        self._out.send(value)

    def recv(self) -> Any:
        return self._in.recv()

    def ready(self, timeout: float | None) -> bool:
        return bool(wait([self._in], timeout))

    def close(self) -> None:
        self._in.close()
        self._out.close()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"was killed by {name}, as the kernel does when memory runs out"
    return f"crashed with {name}"


@dataclass(frozen=True)
class _Raised:
    error: BaseException


def serve(read: int, write: int) -> None:
    """What the child does: answer calls until the parent hangs up. Its output goes where the parent reads it."""
    import logging

    logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(name)s: %(message)s")
    pipe = _Pipe(read, write)
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            answer: Any = function(*args, **kwargs)
        except Exception as exc:  # to be raised in the parent
            answer = _Raised(exc)
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return
        except Exception as exc:  # a result that cannot be sent
            pipe.send(_Raised(errors.WorkerError(f"The child's result cannot be sent back: {exc!r} ({answer!r:.200})")))


@dataclass(frozen=True)
class IsolatedBackend:
    """An engine back end whose builds run in a child process.

    Attributes:
        backend: Name of the back end (:func:`trtops.backend.engines.engine_backend`).
        timeout: Seconds that a build or a first inference may take; None means no limit.
        worker: The child.
    """

    backend: str
    timeout: float | None = None
    worker: Worker = field(default_factory=Worker, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The back end's name."""
        return self.backend

    @property
    def engine_suffix(self) -> str:
        """Ending of engine files."""
        return engine_backend(self.backend).engine_suffix

    def environment(self) -> Environment:
        """Where builds made now are made."""
        return self.worker.run(_environment, self.backend, timeout=self.timeout)

    def device_state(self) -> Mapping[str, str]:
        """What the device is doing now, as the child sees it."""
        return self.worker.run(_device_state, self.backend, timeout=self.timeout)

    def build(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = NO_CACHES,
        calibration_data: Iterable[Feed] | None = None,
    ) -> Build:
        """Build one engine in the child; see :meth:`trtops.backend.base.EngineBackend.build`.

        Raises:
            WorkerError: If the child crashed, was killed, or did not finish in time.
        """
        feeds = None if calibration_data is None else list(calibration_data)
        return self.worker.run(_build, self.backend, model, config, caches, feeds, timeout=self.timeout)

    def runner(self, engine: Engine | Callable[[], Engine], name: str | None = None) -> BaseRunner:
        """A runner in this process; try the engine with :meth:`first_inference` before."""
        return engine_backend(self.backend).runner(engine, name)

    def first_inference(self, engine: Engine, feed: Feed) -> dict[str, Any]:
        """Load an engine and run it once in the child; returns the outputs.

        Raises:
            WorkerError: If the child crashed, was killed, or did not finish in time.
        """
        return self.worker.run(_infer, self.backend, engine, dict(feed), timeout=self.timeout)


def _environment(backend: str) -> Environment:
    return engine_backend(backend).environment()


def _device_state(backend: str) -> Mapping[str, str]:
    return engine_backend(backend).device_state()


def _build(backend: str, model: Model, config: BuildConfig, caches: Caches, feeds: list[Feed] | None) -> Build:
    return engine_backend(backend).build(model, config, caches=caches, calibration_data=feeds)


def _infer(backend: str, engine: Engine, feed: Feed) -> dict[str, Any]:
    import numpy as np

    with engine_backend(backend).runner(engine) as runner:
        return {name: np.array(array) for name, array in runner.infer(feed).items()}
