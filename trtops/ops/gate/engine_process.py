"""Run and time the two engines of a gate, each in its own process with its own release."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.runner import BaseRunner
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.results import IterationResult, RunResults
from trtops.metadata import TensorMetadata
from trtops.ops.gate.policy import LatencyLimit
from trtops.ops.gate.ratio import Starts, estimate
from trtops.record import Record
from trtops.system.locks import locked, machine_folder
from trtops.system.processes import temporary_prefix

_VISIT_SECONDS = 0.02  # short, so that a clock that drifts hardly changes within a round of four visits
_MIN_INFERENCES, _MAX_INFERENCES = 3, 200  # of one visit
_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class Rounds(Record):
    """Latencies of both engines, measured alternately; medians in milliseconds."""

    starts: Starts
    candidate_ms: float
    accepted_ms: float


class EngineProcess:
    """One engine, open in a child process. ``seconds`` is the time of one inference."""

    def __init__(self, backend: IsolatedBackend, engine: Engine, feeds: Path) -> None:
        """Open the engine, with the inputs of a file from :func:`save_feeds`."""
        self._backend = backend
        self._engine = engine
        self._feeds = str(feeds)
        self.reopen()

    def reopen(self) -> None:
        """Open the engine in a fresh process."""
        self._backend.worker.close()
        run = self._backend.worker.run
        self.seconds: float = run(_open_engine, self._engine, self._feeds, timeout=self._backend.timeout)

    def outputs(self) -> RunResults:
        """Run the engine on every feed."""
        # Through a file: arrays pickled by another release of numpy may be unreadable here.
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("outputs")) as folder:
            path = str(Path(folder, "outputs.npz"))
            self._backend.worker.run(_save_outputs, path, timeout=self._backend.timeout)
            return RunResults.load(path)

    def infer(self, feed: Feed) -> dict[str, Any]:
        """Run the engine on another feed; after an inference that ends the process, the engine is open again."""
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("inference")) as folder:
            path = Path(folder, "arrays.npz")
            save_feeds([feed], path)
            try:
                self._backend.worker.run(_infer, str(path), timeout=self._backend.timeout)
            except errors.WorkerError:
                self.reopen()
                raise
            return dict(RunResults.load(str(path))[0][1][0])

    def inputs(self) -> TensorMetadata:
        """The engine's inputs."""
        return self._backend.worker.run(_inputs, timeout=self._backend.timeout)

    def visit(self, count: int) -> list[float]:
        """Seconds of ``count`` inferences after a warm-up."""
        return self._backend.worker.run(_time_inferences, count, timeout=self._backend.timeout)


class ProcessRunner(BaseRunner):
    """Runs the engine of a process."""

    def __init__(self, process: EngineProcess) -> None:
        """Wrap an open process, which stays the caller's."""
        super().__init__("engine")
        self._process = process

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run one inference in the process."""
        return self._process.infer(feed_dict)

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the inputs as the process reports them."""
        return self._process.inputs()


def measure_rounds(candidate: EngineProcess, accepted: EngineProcess, limit: LatencyLimit, *, on_cpu: bool) -> Rounds:
    """Time two open engines alternately until the ratio is decided, or the maximum number of rounds is reached.

    The first look uses the current processes, each further look fresh ones.
    """
    starts: list[tuple[float, ...]] = []
    mine: list[float] = []
    theirs: list[float] = []
    # On a CPU, two gates at a time would measure each other. GPUs are held by the caller.
    with locked(machine_folder() / "gate_on_cpu") if on_cpu else contextlib.nullcontext():
        while True:
            count = math.ceil(_VISIT_SECONDS / max(accepted.seconds, 1e-7))
            count = min(_MAX_INFERENCES, max(_MIN_INFERENCES, count))
            ratios = []
            # A B B A, then B A A B: neither engine always comes first.
            for number in range(limit.rounds):
                outer, inner = (candidate, accepted) if number % 2 else (accepted, candidate)
                first, second, third, fourth = (each.visit(count) for each in (outer, inner, inner, outer))
                own, other = ((first, fourth), (second, third)) if number % 2 else ((second, third), (first, fourth))
                # A linear drift over a round adds the same to the mean logarithm of both.
                ratios.append(
                    statistics.fmean(math.log(statistics.median(visit)) for visit in own)
                    - statistics.fmean(math.log(statistics.median(visit)) for visit in other)
                )
                mine += [*own[0], *own[1]]
                theirs += [*other[0], *other[1]]
            starts.append(tuple(ratios))
            found = estimate(tuple(starts), limit.ratio, limit.confidence)
            if found.decision != "open" or found.rounds + limit.rounds > limit.max_rounds:
                break
            # Memory layout and thread placement stay the same while a process lives.
            candidate.reopen()
            accepted.reopen()
    return Rounds(
        starts=tuple(starts),
        candidate_ms=statistics.median(mine) * 1e3,
        accepted_ms=statistics.median(theirs) * 1e3,
    )


def save_feeds(feeds: Sequence[Feed], path: Path) -> None:
    """Save inputs for the child processes."""
    RunResults([("feeds", [IterationResult(dict(feed)) for feed in feeds])]).save(str(path))


# The state of a child process: the open engine, and its inputs. The functions below are called in it, so they and their
# imports must need few packages: the environment of a release has little else than its back end.
_open: list[tuple[BaseRunner, list[Feed]]] = []


def _open_engine(engine: Engine, feeds: str) -> float:
    inputs: list[Feed] = [
        {name: np.asarray(array) for name, array in feed.items()} for feed in RunResults.load(feeds)[0][1]
    ]
    runner = engine_backend(engine.backend).runner(engine, interleaved=True)
    runner.activate()
    _open.append((runner, inputs))
    runner.infer(inputs[0])  # the first inference allocates, and says nothing about the others
    runner.infer(inputs[0])
    return _last_seconds(runner)


def _save_outputs(path: str) -> None:
    runner, feeds = _opened()
    outputs = [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in feeds]
    RunResults([("engine", [IterationResult(each) for each in outputs])]).save(path)


def _infer(path: str) -> None:
    """Run the feed of a file, and write the outputs into it."""
    runner, _ = _opened()
    feed = {name: np.asarray(array) for name, array in RunResults.load(path)[0][1][0].items()}
    outputs = {name: np.array(array) for name, array in runner.infer(feed).items()}
    RunResults([("engine", [IterationResult(outputs)])]).save(path)


def _inputs() -> TensorMetadata:
    return _opened()[0].get_input_metadata()


def _time_inferences(count: int) -> list[float]:
    runner, feeds = _opened()
    seconds = []
    for number in range(_WARM_UP + count):  # warm up again, since the other engine was running
        runner.infer(feeds[0], check_inputs=False)
        if number >= _WARM_UP:
            seconds.append(_last_seconds(runner))
    return seconds


def _opened() -> tuple[BaseRunner, list[Feed]]:
    if not _open:  # a crash between two calls, after which the worker started another process
        raise errors.InferenceError("No engine is open in this process, because it was restarted. Open it again.")
    return _open[0]


def _last_seconds(runner: BaseRunner) -> float:
    # A GPU's own time has no noise of Python and the driver's queue.
    on_device = runner.last_device_time()
    return runner.last_inference_time() if on_device is None else on_device
