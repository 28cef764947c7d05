"""An engine back end with builds, and first inferences, in a child process."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.spec import BuildConfig, Environment
from trtops.system.activity import needs_child
from trtops.system.processes import temporary_prefix
from trtops.system.worker import Worker, warm_worker

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner
    from trtops.backend.onnx.model import Model


@dataclass(frozen=True)
class IsolatedBackend:
    """An engine back end with builds in a child process, limited to ``timeout`` seconds each."""

    backend: str
    timeout: float | None = None
    worker: Worker = field(default_factory=Worker, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The back end's name."""
        return self.backend

    @property
    def engine_suffix(self) -> str:
        """Suffix of engine files."""
        return engine_backend(self.backend).engine_suffix

    def environment(self, config: BuildConfig | None = None) -> Environment:
        """Return the child's build environment."""
        environment: Environment = self._call("environment", config)
        return environment

    def device_state(self, config: BuildConfig | None = None) -> Mapping[str, str]:
        """Return the device's state as the child reports it."""
        state: Mapping[str, str] = self._call("device_state", config)
        return state

    def _call(self, method: str, argument: object) -> Any:
        return self.worker.run(_call_in_child, self.backend, method, argument, timeout=self.timeout)

    def build(self, request: BuildRequest) -> Build:
        """Build one engine in the child; WorkerError if it crashed, was killed, or exceeded the timeout."""
        if request.calibration_data is not None:
            # Feeds are sent as a list. Their source may be endless, and no more than these are used.
            feeds = list(itertools.islice(request.calibration_data, request.config.calibration_samples))
            request = replace(request, calibration_data=feeds)
        build: Build = self._call("build", request)
        return build

    def adopt(self, plan: bytes, model: Model, config: BuildConfig) -> Build:
        """Read an engine built elsewhere in the child; WorkerError as in :meth:`build`."""
        return self.worker.run(_adopt_in_child, self.backend, plan, model, config, timeout=self.timeout)

    def build_surviving(
        self,
        request: BuildRequest,
        *,
        feed: Feed | None = None,
        crashed: Callable[[tuple[str, ...]], None] | None = None,
    ) -> Build:
        """Build one engine; after a crash of the child, build again without the setting tried last.

        The calibration data must be iterable several times. With a feed, the engine is run on it once in the child.
        ``crashed`` is called with the names of all settings to avoid after every crash. WorkerError if the child
        exceeded the timeout, or crashed without a known setting; EngineBuildError if no setting is left.
        """
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("attempt")) as folder:
            note = Path(folder, "attempt")
            caches = replace(request.caches, attempt_file=str(note))
            while True:
                note.unlink(missing_ok=True)
                try:
                    build = self.build(replace(request, caches=caches))
                    if feed is not None:
                        self.first_inference(build.engine, feed)
                    return build
                except errors.WorkerError as exc:
                    setting = note.read_text(encoding="utf-8") if note.exists() else ""
                    if exc.timed_out or not setting or setting in caches.avoid:
                        raise
                    log.warning("Model %s: continuing without the settings %r. %s", request.model.name, setting, exc)
                    caches = replace(caches, avoid=(*caches.avoid, setting))
                    if crashed is not None:
                        crashed(caches.avoid)

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> BaseRunner:
        """Return a runner in this process; try the engine with :meth:`first_inference` before."""
        return engine_backend(self.backend).runner(engine, name, interleaved=interleaved)

    def first_inference(self, engine: Engine, feed: Feed) -> dict[str, Any]:
        """Load an engine and run it once in the child; return the outputs. WorkerError as in :meth:`build`."""
        return self.worker.run(_infer_in_child, self.backend, engine, dict(feed), timeout=self.timeout)


def may_crash(config: BuildConfig) -> bool:
    """Return True if a build needs a child process."""
    # ONNX Runtime crashes on some models below FP32, and every builder on hostile ones.
    return needs_child() or (config.backend == "onnxruntime" and config.precision != "fp32")


def built_safely(request: BuildRequest) -> Build:
    """Build one engine, in a child process if the build may crash."""
    if not may_crash(request.config):
        return engine_backend(request.config.backend).build(request)
    with warm_worker() as worker:
        return IsolatedBackend(request.config.backend, worker=worker).build_surviving(request)


def _call_in_child(backend: str, method: str, argument: object) -> Any:
    """Call a method of a back end."""
    # A function of this module, because a pickled call can name no method of a back end.
    return getattr(engine_backend(backend), method)(argument)


def _adopt_in_child(backend: str, plan: bytes, model: Model, config: BuildConfig) -> Build:
    return engine_backend(backend).adopt(plan, model, config)


def _infer_in_child(backend: str, engine: Engine, feed: Feed) -> dict[str, Any]:
    import numpy as np

    with engine_backend(backend).runner(engine) as runner:
        return {name: np.array(array) for name, array in runner.infer(feed).items()}
