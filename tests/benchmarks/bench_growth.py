"""How the CPU time of each kind of work grows with its size: N, 2N and 4N, at most 2.3 times for a doubling."""

import contextlib
import functools
import gc
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import psutil

from tests.benchmarks.bench_reduce import cnn, reduce_here
from tests.benchmarks.bench_store import fill
from tests.benchmarks.harness import Goals, benchmark, cpu_clock, in_turns
from tests.benchmarks.networks import exported_transformer, shape_chain
from tests.tactics.synthetic import campaign
from trtops.cli.main import main as trtops
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.stored_runs import runs
from trtops.system.activity import Page
from trtops.tactics.diff import diff
from trtops.tracking.mlflow import MlflowTracker

LIMIT = 2.3
ROUNDS = 3
FOLD = "surgeon sanitize --fold-constants MODEL -o OUTPUT"
MARK_ALL = "run MODEL --onnxrt --onnx-outputs mark all"

Make = Callable[[int], Callable[[], Any]]
"""Makes the work of a size."""


def clock() -> float:
    """Processor seconds of this process and of all its children; lint runs nodes in one that lives on."""
    alive = [child.cpu_times()[:4] for child in psutil.Process().children(recursive=True)]
    return cpu_clock() + sum(map(sum, alive))


def measure(goals: Goals, title: str, size: int, make: Make) -> None:
    sizes = (size, 2 * size, 4 * size)
    seconds = in_turns({str(number): make(number) for number in sizes}, ROUNDS, clock=clock)
    times = list(seconds.values())
    growth = max(later / earlier for earlier, later in itertools.pairwise(times))
    note = ", ".join(f"{number}: {taken:.3f} s" for number, taken in seconds.items())
    goals.at_most(f"growth: {title}", growth, LIMIT, "times", note)


def command(folder: Path, line: str, network: Callable[[int], onnx.ModelProto], size: int) -> Callable[[], None]:
    """A command on a network of this size, in this process."""
    path = folder / f"{network.__name__}-{size}.onnx"
    onnx.save(network(size), path)
    words = line.replace("MODEL", str(path)).replace("OUTPUT", str(folder / "output.onnx")).split()

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert trtops([*words, "--silent"]) == 0, words

    return run


def reduction(folder: Path, size: int) -> Callable[[], None]:
    """A search for a node near the end of the model, which the output shows."""
    network, path = cnn(size), folder / f"reduced-{size}.onnx"
    onnx.save(network, path)
    culprit = network.graph.node[-8].name
    return functools.partial(reduce_here, str(path), culprit, "bisect", str(folder / "smallest.onnx"))


def difference(size: int) -> Callable[[], object]:
    table = campaign(5, size, layers=100, noise=0.05).table
    return lambda: diff(table)


def listing(folder: Path, size: int) -> Callable[[], object]:
    tracker = fill(folder / f"listed-{size}", size)
    return lambda: runs(tracker=tracker, limit=None)


def auditing(folder: Path, largest: int) -> Make:
    """An audit of N runs, without rebuilding."""
    tracker, path = MlflowTracker(folder / "audited"), folder / "audited.onnx"
    onnx.save(cnn(12), path)
    config = ConvertConfig(check=CheckConfig(latency_runs=0), rebuild=True)
    ids = [convert(path, config, tracker=tracker).run_id for _ in range(largest)]
    return lambda size: lambda: audit(AuditConfig(runs=tuple(ids[:size]), rebuild=False), tracker=tracker)


def main() -> None:
    with benchmark() as (goals, folder):
        # As in the command's own process, whose native code needs no child to run in first, and which collects garbage
        # seldom: searching the objects that MLflow makes of a thousand runs takes longer than making them.
        Page().publish_here()
        gc.set_threshold(1_000_000)
        commands = (
            ("fold a chain of shapes, nodes", 500, FOLD, shape_chain),
            ("fold a transformer, nodes", 500, FOLD, exported_transformer),
            ("lint a CNN, nodes", 100, "check lint MODEL", cnn),
            ("inspect a transformer, nodes", 1000, "inspect model MODEL --show layers", exported_transformer),
            ("run, mark all, CNN, nodes", 100, MARK_ALL, cnn),
        )
        for title, size, line, network in commands:
            measure(goals, title, size, functools.partial(command, folder, line, network))
        measure(goals, "reduce a CNN, nodes", 50, functools.partial(reduction, folder))
        measure(goals, "diff of records, builds", 1000, difference)
        measure(goals, "runs list, runs", 500, functools.partial(listing, folder))
        measure(goals, "audit, runs", 4, auditing(folder, 16))


if __name__ == "__main__":
    main()
