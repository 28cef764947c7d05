"""Run and time the two engines of a gate, each in its own process with its own release.

The functions called in the child need few packages: an environment of a release contains little else.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtops import errors
from trtops.backend.base import Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.runner import BaseRunner
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.results import IterationResult, RunResults
from trtops.ops.gate.policy import LatencyLimit
from trtops.ops.gate.ratio import Starts, estimate
from trtops.record import Record
from trtops.system.locks import locked, machine_folder
from trtops.system.processes import temporary_prefix

_VISIT_SECONDS = 0.02
_MIN_INFERENCES, _MAX_INFERENCES = 3, 200  # of one visit
_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class LoadCost(Record):
    """Cost of loading an engine and running it once.

    Attributes:
        memory_bytes: Peak of additional host memory; None if the system does not report it.
        device_bytes: Additional device memory; None for engines on the CPU.
        seconds: Time of the second inference.
    """

    memory_bytes: int | None
    device_bytes: int | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Rounds(Record):
    """Latencies of both engines, measured alternately.

    Attributes:
        starts: Logarithms of the ratio of the candidate's latency to the accepted engine's, by start and round.
        candidate_ms: Median latency.
        on_device: True if this is time on the GPU without copies.
        seconds: Wall time of the measurement.
    """

    starts: Starts
    candidate_ms: float
    accepted_ms: float
    on_device: bool = False
    seconds: float = 0.0


class EngineProcess:
    """One engine, open in a child process.

    Attributes:
        cost: Cost of loading it in the current process; None before :meth:`open`.
    """

    def __init__(self, backend: IsolatedBackend, engine: Engine, feeds: Path) -> None:
        """Nothing is started before :meth:`open`. ``feeds`` is a file from :func:`save_feeds`."""
        self._backend = backend
        self._engine = engine
        self._feeds = str(feeds)
        self.cost: LoadCost | None = None

    def open(self, *, fresh: bool) -> LoadCost:
        """Open the engine, in a fresh process or in the one that built it, whose freed memory is reused."""
        if fresh:
            self._backend.worker.close()
        run = self._backend.worker.run
        self.cost = run(_open_engine, self._engine, self._feeds, timeout=self._backend.timeout)
        return self.cost

    def outputs(self) -> RunResults:
        """Run the engine on every feed."""
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("outputs")) as folder:
            path = str(Path(folder, "outputs.npz"))
            self._backend.worker.run(_save_outputs, path, timeout=self._backend.timeout)
            return RunResults.load(path)

    def visit(self, count: int) -> list[float]:
        """Seconds of ``count`` inferences after a warm-up."""
        return self._backend.worker.run(_time_inferences, count, timeout=self._backend.timeout)


def measure_rounds(candidate: EngineProcess, accepted: EngineProcess, limit: LatencyLimit, *, on_cpu: bool) -> Rounds:
    """Time two open engines alternately until the ratio is decided, or the maximum number of rounds is reached.

    The first look uses the current processes, each further look fresh ones. On a CPU, only one gate measures at a time.
    """
    begin = time.perf_counter()
    starts: list[tuple[float, ...]] = []
    mine: list[float] = []
    theirs: list[float] = []
    with locked(machine_folder() / "gate_on_cpu") if on_cpu else contextlib.nullcontext():
        while True:
            if starts:
                candidate.open(fresh=True)
                accepted.open(fresh=True)
            seconds = accepted.cost.seconds if accepted.cost is not None else _VISIT_SECONDS
            count = min(_MAX_INFERENCES, max(_MIN_INFERENCES, math.ceil(_VISIT_SECONDS / max(seconds, 1e-7))))
            ratios = []
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
    return Rounds(
        starts=tuple(starts),
        candidate_ms=statistics.median(mine) * 1e3,
        accepted_ms=statistics.median(theirs) * 1e3,
        on_device=not on_cpu,
        seconds=time.perf_counter() - begin,
    )


def save_feeds(feeds: Sequence[Feed], path: Path) -> None:
    """Save inputs for the child processes."""
    RunResults([("feeds", [IterationResult(dict(feed)) for feed in feeds])]).save(str(path))


# The state of a child process: the open engine, and its inputs.
_open: list[tuple[BaseRunner, list[Feed]]] = []


def _open_engine(engine: Engine, feeds: str) -> LoadCost:
    while _open:
        _open.pop()[0].deactivate()
    inputs: list[Feed] = [
        {name: np.asarray(array) for name, array in feed.items()} for feed in RunResults.load(feeds)[0][1]
    ]
    runner = engine_backend(engine.backend).runner(engine, interleaved=True)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, device = _resident_bytes("VmRSS"), _device_bytes(engine)
    runner.activate()
    _open.append((runner, inputs))
    runner.infer(inputs[0])
    peak, after = _resident_bytes("VmHWM"), _device_bytes(engine)
    runner.infer(inputs[0])
    return LoadCost(
        memory_bytes=None if before is None or peak is None else max(0, peak - before),
        device_bytes=None if device is None or after is None else max(0, after - device),
        seconds=_last_seconds(runner),
    )


def _save_outputs(path: str) -> None:
    runner, feeds = _opened()
    results = []
    for feed in feeds:
        outputs = {name: np.array(array) for name, array in runner.infer(feed).items()}
        results.append(IterationResult(outputs, runtime=runner.last_inference_time(), runner_name="engine"))
    RunResults([("engine", results)]).save(path)


def _time_inferences(count: int) -> list[float]:
    runner, feeds = _opened()
    seconds = []
    for number in range(_WARM_UP + count):  # warm up again, since the other engine was running
        runner.infer(feeds[0], check_inputs=False)
        if number >= _WARM_UP:
            seconds.append(_last_seconds(runner))
    return seconds


def _opened() -> tuple[BaseRunner, list[Feed]]:
    if not _open:
        raise errors.InferenceError("No engine is open in this process, because it was restarted. Open it again.")
    return _open[0]


def _last_seconds(runner: BaseRunner) -> float:
    on_device = runner.last_device_time()
    return runner.last_inference_time() if on_device is None else on_device


def _resident_bytes(field: str) -> int | None:
    """A field of this process' memory status; None if the system does not report it."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024
    return None


def _device_bytes(engine: Engine) -> int | None:
    """Used memory of the GPU, by all processes; None for engines on the CPU."""
    if engine.backend != "tensorrt":
        return None
    from trtops.backend.trt.library import memory

    free, total = memory.call("cudaMemGetInfo")
    return int(total) - int(free)
