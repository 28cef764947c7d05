"""An engine back end with builds, and first inferences, in a child process."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.base import NO_CACHES, Build, Caches, Engine, Feed
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
        environment: Environment = self.worker.run(
            _call_in_child, self.backend, "environment", config, timeout=self.timeout
        )
        return environment

    def device_state(self, config: BuildConfig | None = None) -> Mapping[str, str]:
        """Return the device's state as the child reports it."""
        return self.worker.run(_call_in_child, self.backend, "device_state", config, timeout=self.timeout)

    def build(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = NO_CACHES,
        calibration_data: Iterable[Feed] | None = None,
        timing_feed: Feed | None = None,
    ) -> Build:
        """Build one engine in the child; WorkerError if it crashed, was killed, or exceeded the timeout."""
        # Feeds are sent as a list. Their source may be endless, and no more than these are used.
        feeds = (
            None if calibration_data is None else list(itertools.islice(calibration_data, config.calibration_samples))
        )
        data: dict[str, Any] = {"caches": caches, "calibration_data": feeds, "timing_feed": timing_feed}
        build: Build = self.worker.run(
            _call_in_child, self.backend, "build", model, config, timeout=self.timeout, **data
        )
        return build

    def build_surviving(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = NO_CACHES,
        calibration_data: Iterable[Feed] | None = None,
        timing_feed: Feed | None = None,
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
            caches = replace(caches, attempt_file=str(note))
            while True:
                note.unlink(missing_ok=True)
                try:
                    build = self.build(
                        model, config, caches=caches, calibration_data=calibration_data, timing_feed=timing_feed
                    )
                    if feed is not None:
                        self.first_inference(build.engine, feed)
                    return build
                except errors.WorkerError as exc:
                    setting = note.read_text(encoding="utf-8") if note.exists() else ""
                    if exc.timed_out or not setting or setting in caches.avoid:
                        raise
                    log.warning("Model %s: continuing without the settings %r. %s", model.name, setting, exc)
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


def built_safely(
    model: Model, config: BuildConfig, caches: Caches = NO_CACHES, timing_feed: Feed | None = None
) -> Build:
    """Build one engine, in a child process if the build may crash."""
    if not may_crash(config):
        return engine_backend(config.backend).build(model, config, caches=caches, timing_feed=timing_feed)
    with warm_worker() as worker:
        backend = IsolatedBackend(config.backend, worker=worker)
        return backend.build_surviving(model, config, caches=caches, timing_feed=timing_feed)


def _call_in_child(backend: str, method: str, *args: Any, **named: Any) -> Any:
    """Call a method of a back end."""
    # A function of this module, because a pickled call can name no method of a back end.
    return getattr(engine_backend(backend), method)(*args, **named)


def _infer_in_child(backend: str, engine: Engine, feed: Feed) -> dict[str, Any]:
    import numpy as np

    with engine_backend(backend).runner(engine) as runner:
        return {name: np.array(array) for name, array in runner.infer(feed).items()}
