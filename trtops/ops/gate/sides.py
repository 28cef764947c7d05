"""The two engines that are compared, each in a process of its own with its own release, and how they are timed in turn."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trtops.backend.base import Engine
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.results import RunResults
from trtops.locks import held
from trtops.ops.gate import child
from trtops.ops.gate.child import Opened
from trtops.ops.gate.measured import Rounds
from trtops.ops.gate.policy import LatencyLimit
from trtops.ops.gate.ratio import estimate
from trtops.processes import temporary_prefix

_VISIT_SECONDS = 0.02
_FEWEST, _MOST = 3, 200  # inferences of one visit
_WARM_UP = 2
_POLL_SECONDS = 0.05


class Side:
    """One engine, open in a child process.

    Attributes:
        opened: What loading it took, in the process that is running now.
    """

    def __init__(self, backend: IsolatedBackend, engine: Engine, feeds: Path) -> None:
        """Nothing is started before :meth:`start`.

        Args:
            backend: The back end in a child of the release that is to run the engine.
            engine: The engine.
            feeds: The file of inputs.
        """
        self._backend = backend
        self._engine = engine
        self._feeds = str(feeds)
        self.opened: Opened | None = None

    def start(self) -> Opened:
        """Open the engine in a fresh process."""
        self._backend.worker.close()
        return self.open()

    def open(self) -> Opened:
        """Open the engine in the process that is there, of which memory that a build left may be used again."""
        run = self._backend.worker.run
        self.opened = run(child.open_engine, self._engine, self._feeds, timeout=self._backend.timeout)
        return self.opened

    def outputs(self) -> RunResults:
        """What the engine says to every feed."""
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("outputs")) as folder:
            path = str(Path(folder, "outputs.npz"))
            self._backend.worker.run(child.save_outputs, path, timeout=self._backend.timeout)
            return RunResults.load(path)

    def visit(self, count: int) -> list[float]:
        """Seconds of so many inferences, after a few that do not count."""
        return self._backend.worker.run(child.visit, count, _WARM_UP, timeout=self._backend.timeout)


def measure_rounds(candidate: Side, accepted: Side, limit: LatencyLimit, *, on_processor: bool) -> Rounds:
    """Time two sides in turn until the ratio is known well enough, or the policy's rounds are used up.

    Both must have been started; the first look is taken in these processes, each further one in fresh ones. On a processor
    no other gate of this machine measures at the same time.

    Args:
        candidate: Whose latency is in question.
        accepted: What it is compared with.
        limit: When to stop.
        on_processor: Whether the engines run on the processor, which nothing else locks.
    """
    begun = time.perf_counter()
    starts: list[tuple[float, ...]] = []
    mine: list[float] = []
    theirs: list[float] = []
    with _alone_on_processor() if on_processor else contextlib.nullcontext():
        while True:
            if starts:
                candidate.start()
                accepted.start()
            rounds = [_one_round(candidate, accepted, number) for number in range(limit.rounds)]
            starts.append(tuple(_log_median(own) - _log_median(other) for own, other in rounds))
            mine += [seconds for own, _ in rounds for visit in own for seconds in visit]
            theirs += [seconds for _, other in rounds for visit in other for seconds in visit]
            found = estimate(tuple(starts), limit.ratio, limit.confidence)
            if found.decision != "open" or found.rounds + limit.rounds > limit.max_rounds:
                break
    return Rounds(
        starts=tuple(starts),
        candidate_ms=statistics.median(mine) * 1e3,
        accepted_ms=statistics.median(theirs) * 1e3,
        on_device=not on_processor,
        seconds=time.perf_counter() - begun,
    )


Visits = tuple[list[float], list[float]]


def _one_round(candidate: Side, accepted: Side, number: int) -> tuple[Visits, Visits]:
    """Both visits of the candidate, and both of the accepted engine, who come first and last in turn."""
    outer, inner = (candidate, accepted) if number % 2 else (accepted, candidate)
    count = _visit_length(accepted)
    first, second, third, fourth = (side.visit(count) for side in (outer, inner, inner, outer))
    outside, inside = (first, fourth), (second, third)
    return (outside, inside) if number % 2 else (inside, outside)


def _log_median(visits: Visits) -> float:
    """Mean logarithm of the visits' medians, which a linear drift over a round adds the same to for both sides."""
    return statistics.fmean(math.log(statistics.median(visit)) for visit in visits)


def _visit_length(side: Side) -> int:
    seconds = side.opened.seconds if side.opened is not None else _VISIT_SECONDS
    return min(_MOST, max(_FEWEST, math.ceil(_VISIT_SECONDS / max(seconds, 1e-7))))


@contextlib.contextmanager
def _alone_on_processor() -> Iterator[None]:
    """Wait until no other gate measures on this machine's processor, and keep others from it."""
    while True:
        with held("gate on the processor") as mine:
            if mine:
                yield
                return
        time.sleep(_POLL_SECONDS)
