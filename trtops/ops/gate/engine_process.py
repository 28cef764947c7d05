"""Run and time the two engines of a gate, each in its own process with its own release."""

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Engine, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.ratio import UNDISTURBED, Metric, RatioEstimate, StartNoise, Starts, decide_ratio
from trtops.backend.runner import BaseRunner
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.results import IterationResult, RunResults
from trtops.json import save_json
from trtops.metadata import TensorMetadata
from trtops.ops.gate.policy import LatencyLimit
from trtops.record import Record
from trtops.system.counters import count_instructions
from trtops.system.processes import temporary_prefix
from trtops.system.worker import Worker

_VISIT_SECONDS = 0.02  # short, so that a clock that drifts hardly changes within a round of four visits
_MIN_INFERENCES, _MAX_INFERENCES = 3, 200  # of one visit
_START_SECONDS = 1.0  # of one start at most, but for slow engines
_SLOW_SECONDS = 0.1  # of an inference: slower ones are measured once in a visit
_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class Rounds(Record):
    """Both engines, measured alternately; medians of the latency in milliseconds."""

    starts: Mapping[Metric, Starts]  # of the metrics that may decide
    candidate_ms: float
    accepted_ms: float
    seconds: float
    ended: bool  # whether the budget did not allow another start
    earlier_noise: Mapping[Metric, StartNoise] = field(default_factory=dict)  # noise that other engines showed before

    def ratio(self, limit: LatencyLimit) -> RatioEstimate | None:
        """Return the deciding ratio of the candidate to the accepted engine; None if there is no start."""
        if not any(self.starts.values()):
            return None
        noise = self.earlier_noise
        return decide_ratio(self.starts, limit.ratio, limit.confidence, last=self.ended, start_noise=noise)


class EngineProcess:
    """One engine, open in a child process. ``seconds`` is the time of one inference."""

    def __init__(
        self, backend: IsolatedBackend, engine: Engine, feeds: Path, metrics: tuple[Metric, ...] = ("wall",)
    ) -> None:
        """Open the engine, with the inputs of a file from :func:`save_feeds`. The first metric is ``wall``."""
        self.metrics = metrics
        self._backend = backend
        self._engine = engine
        self._feeds = str(feeds)
        self._fresh: Worker | None = None
        self._start()  # in the process that may have built it: starting another takes most of an untimed gate

    def reopen(self) -> None:
        """Open the engine in a fresh process; the first one is left as it is, since it may build the next engine."""
        self.close()
        self._fresh = self._backend.worker.another()
        self._backend = replace(self._backend, worker=self._fresh)
        self._start()

    def close(self) -> None:
        """End the process, unless it is the first one."""
        if self._fresh is not None:
            self._fresh.close()

    def _start(self) -> None:
        begin = time.monotonic()
        run, timeout = self._backend.worker.run, self._backend.timeout
        self.seconds: float = run(_open_engine, self._engine, self._feeds, self.metrics, timeout=timeout)
        self.opening_seconds = time.monotonic() - begin

    def outputs(self) -> RunResults:
        """Run the engine on every feed."""
        return self._run()

    def infer(self, feed: Feed) -> dict[str, Any]:
        """Run the engine on another feed; reopen it after a fatal inference.

        TimeoutError if it ended because the time of all calls is over, which is no fault of the engine.
        """
        try:
            return dict(self._run(feed)[0][1][0])
        except errors.WorkerError as exc:
            if time.monotonic() >= self._backend.worker.until:
                raise TimeoutError("The time for this engine is over.") from exc
            self.reopen()
            raise

    def _run(self, *feeds: Feed) -> RunResults:
        # Through a file: arrays pickled by another release of numpy may be unreadable here.
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("inference")) as folder:
            path = Path(folder, "arrays.npz")
            save_feeds(feeds, path)
            self._backend.worker.run(_infer, str(path), timeout=self._backend.timeout)
            return RunResults.load(str(path))

    def inputs(self) -> TensorMetadata:
        """The engine's inputs."""
        return self._backend.worker.run(_inputs, timeout=self._backend.timeout)

    def visit(self, count: int, core: int | None) -> list[list[float]]:
        """Seconds, or instructions, of ``count`` inferences for each metric, after a warm-up; on one processor."""
        return self._backend.worker.run(_time_inferences, count, core, timeout=self._backend.timeout)


class ProcessRunner(BaseRunner):
    """Runs the engine of a process."""

    def __init__(self, process: EngineProcess) -> None:
        """Wrap an open process, owned by the caller."""
        super().__init__("engine")
        self._process = process

    def infer(self, feed_dict: Feed, check_inputs: bool = True, *args: Any, **options: Any) -> dict[str, Any]:
        """Run one inference; the process checks the feed, and converts types missing from its release."""
        return super().infer(feed_dict, False)

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run one inference in the process."""
        return self._process.infer(feed_dict)

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the inputs as the process reports them."""
        return self._process.inputs()


def measure_rounds(
    candidate: EngineProcess,
    accepted: EngineProcess,
    limit: LatencyLimit,
    *,
    deciding: tuple[Metric, ...],
    cores: Sequence[int] = (),
    turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    earlier_noise: Mapping[Metric, StartNoise] | None = None,
    until: float,
) -> Rounds:
    """Time two open engines alternately until one of the ``deciding`` metrics decides, or until the budget ends.

    Each look uses fresh processes, which are measured for as long as it took to open them, but for a second at most:
    processes differ more than rounds do. In a round, both run on the same one of the ``cores``; on any if it is empty.
    The rounds of a start are measured in a ``turn``, which other gates take in between. ``earlier_noise`` is the
    noise of starts of other engines of the same network. The budget ends at ``until``, a time of ``time.monotonic()``.
    """
    starts: list[list[list[float]]] = []  # by start, round and metric
    totals: list[list[float]] = [[], []]  # milliseconds of candidate and accepted engine
    begin = started = time.monotonic()
    opening = 0.0
    while True:
        rounds: list[list[float]] = []
        try:
            # Memory, on the host and on a GPU, and the placement of threads stay the same while a process lives.
            with ThreadPoolExecutor(2) as pool:  # at the same time, which takes half as long
                list(pool.map(lambda engine: engine.reopen(), (candidate, accepted)))
            with turn():
                started = current = time.monotonic()
                opening, longest = max(candidate.opening_seconds, accepted.opening_seconds), 0.0
                count = math.ceil(_VISIT_SECONDS / max(accepted.seconds, 1e-7))
                count = min(_MAX_INFERENCES, max(_MIN_INFERENCES if accepted.seconds < _SLOW_SECONDS else 1, count))
                while (
                    len(rounds) < limit.rounds or current - started < min(opening, _START_SECONDS)
                ) and current + longest < until:
                    core = cores[len(rounds) % len(cores)] if cores else None
                    # A B B A, then B A A B: neither engine always comes first.
                    candidate_first = len(rounds) % 2
                    order = (candidate, accepted, accepted, candidate)
                    if not candidate_first:
                        order = (accepted, candidate, candidate, accepted)
                    visits = [engine.visit(count, core) for engine in order]
                    # A linear drift over a round adds the same to the mean logarithm of both.
                    with np.errstate(divide="ignore", invalid="ignore"):
                        logs = np.log([[np.quantile(values, UNDISTURBED) for values in visit] for visit in visits])
                        ratios = (logs[0] + logs[3] - logs[1] - logs[2]) / 2
                    rounds.append((ratios if candidate_first else -ratios).tolist())
                    for engine, visit in zip(order, visits):
                        totals[engine is accepted].append(float(np.median(visit[0])) * 1e3)
                    longest, current = max(longest, time.monotonic() - current), time.monotonic()
        except (errors.WorkerError, TimeoutError) as exc:  # ended with the budget: the rounds before it count
            if not getattr(exc, "timed_out", True) or time.monotonic() < until:
                raise
            current = time.monotonic()
        if len(rounds) > 1:  # one has no median
            starts.append(rounds)
        columns = {
            metric: tuple(tuple(values[index] for values in start) for start in starts)
            for index, metric in enumerate(candidate.metrics)
        }
        # In some sandboxes, the clock of CPU time advances in steps longer than an inference.
        usable = {metric: columns[metric] for metric in deciding if np.isfinite(sum(columns[metric], (0.0,))).all()}
        measured = Rounds(
            starts=usable,
            candidate_ms=statistics.median(totals[0] or [0.0]),
            accepted_ms=statistics.median(totals[1] or [0.0]),
            seconds=current - begin,
            ended=current + opening + (current - started) > until,
            earlier_noise=earlier_noise or {},
        )
        ratio = measured.ratio(limit)
        if measured.ended or (ratio is not None and ratio.decision != "open"):
            return measured


def save_feeds(feeds: Sequence[Feed], path: Path | str) -> None:
    """Save arrays by name for other processes."""
    save_json(RunResults([("feeds", [IterationResult(dict(feed)) for feed in feeds])]), path)


# The state of a child process: the open engine, and its inputs. The functions below are called in it, so they and their
# imports must need few packages: the environment of a release has little else than its back end.
_open: list[tuple[BaseRunner, list[Feed]]] = []
_clocks: list[Callable[[], float]] = []


def close_engine() -> None:
    """Close the open engine of this process, if any."""
    while _open:
        _open.pop()[0].deactivate()


def _open_engine(engine: Engine, feeds: str, metrics: tuple[Metric, ...]) -> float:
    close_engine()
    # Before the engine is open, since the counter includes only threads that start later.
    clocks: dict[Metric, Callable[[], float]] = {"wall": time.perf_counter, "cpu-time": time.process_time}
    _clocks[:] = [clocks.get(metric) or count_instructions() for metric in metrics]
    inputs = _load_feeds(feeds)
    runner = engine_backend(engine.backend).runner(engine, interleaved=True)
    runner.activate()
    _open.append((runner, inputs))
    runner.infer(inputs[0])  # the first inference allocates, and says nothing about the others
    runner.infer(inputs[0])
    return _last_seconds(runner)


def _load_feeds(path: str) -> list[Feed]:
    return [_arrays(feed) for feed in RunResults.load(path)[0][1]]


def _arrays(arrays: Mapping[str, Any]) -> Feed:
    """Copies in memory of this process."""
    return {name: np.array(array) for name, array in arrays.items()}


def _infer(path: str) -> None:
    """Run the feeds of a file, or those of the process if it has none, and write the outputs into it."""
    runner, feeds = _opened()
    save_feeds([_arrays(runner.infer(feed)) for feed in _load_feeds(path) or feeds], path)


def _inputs() -> TensorMetadata:
    return _opened()[0].get_input_metadata(use_numpy_dtypes=False)


def _time_inferences(count: int, core: int | None) -> list[list[float]]:
    runner, feeds = _opened()
    if core is not None:
        os.sched_setaffinity(0, {core})
    for _ in range(min(_WARM_UP, count)):  # again, since the other engine was running
        runner.infer(feeds[0], check_inputs=False)
    if not isinstance(runner, OnnxrtRunner):
        return [[_measure(runner, feeds[0]) for _ in range(count)]]
    measured: list[list[float]] = [[] for _ in _clocks]
    # Reading a clock takes up to a microsecond, which counts as much as a tenth of a short inference.
    reading = [min(-(clock() - clock()) for _ in range(20)) for clock in _clocks]
    for _ in range(count):
        for clock, seconds_of_reading, seconds in zip(_clocks, reading, measured):  # one reads while none measures
            runner.time_with(clock)
            seconds.append(_measure(runner, feeds[0]) - seconds_of_reading)
    runner.time_with(time.perf_counter)
    return measured


def _measure(runner: BaseRunner, feed: Feed) -> float:
    runner.infer(feed, check_inputs=False)
    return _last_seconds(runner)


def _opened() -> tuple[BaseRunner, list[Feed]]:
    if not _open:  # a crash between two calls, after which the worker started another process
        raise errors.InferenceError("No engine is open in this process, because it was restarted. Open it again.")
    return _open[0]


def _last_seconds(runner: BaseRunner) -> float:
    # A GPU's own time has no noise of Python and the driver's queue.
    on_device = runner.last_device_time()
    return runner.inference_time if on_device is None else on_device
