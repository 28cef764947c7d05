"""An engine back end whose builds, and first inferences, run in a child process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.backend.base import NO_CACHES, Build, Caches, Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.spec import BuildConfig, Environment
from trtops.worker import Worker as Worker

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner
    from trtops.backend.onnx.model import Model


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
        return self.worker.run(_environment_in_child, self.backend, timeout=self.timeout)

    def device_state(self) -> Mapping[str, str]:
        """What the device is doing now, as the child sees it."""
        return self.worker.run(_device_state_in_child, self.backend, timeout=self.timeout)

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
        # What is sent must be whole; a source of feeds may have no end, and more than these are not taken anyway.
        feeds = (
            None if calibration_data is None else list(itertools.islice(calibration_data, config.calibration_samples))
        )
        return self.worker.run(_build_in_child, self.backend, model, config, caches, feeds, timeout=self.timeout)

    def runner(self, engine: Engine | Callable[[], Engine], name: str | None = None) -> BaseRunner:
        """A runner in this process; try the engine with :meth:`first_inference` before."""
        return engine_backend(self.backend).runner(engine, name)

    def first_inference(self, engine: Engine, feed: Feed) -> dict[str, Any]:
        """Load an engine and run it once in the child; returns the outputs.

        Raises:
            WorkerError: If the child crashed, was killed, or did not finish in time.
        """
        return self.worker.run(_infer_in_child, self.backend, engine, dict(feed), timeout=self.timeout)


def _environment_in_child(backend: str) -> Environment:
    return engine_backend(backend).environment()


def _device_state_in_child(backend: str) -> Mapping[str, str]:
    return engine_backend(backend).device_state()


def _build_in_child(backend: str, model: Model, config: BuildConfig, caches: Caches, feeds: list[Feed] | None) -> Build:
    return engine_backend(backend).build(model, config, caches=caches, calibration_data=feeds)


def _infer_in_child(backend: str, engine: Engine, feed: Feed) -> dict[str, Any]:
    import numpy as np

    with engine_backend(backend).runner(engine) as runner:
        return {name: np.array(array) for name, array in runner.infer(feed).items()}
