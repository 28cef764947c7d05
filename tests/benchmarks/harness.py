"""Clocks, turns, child processes and goals that all benchmarks share.

Goals go by processor time: wall time doubles on a machine that others use. The least of several runs counts, because
whatever else the machine does only adds.
"""

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Goals:
    """Prints each measurement with its limit, and remembers the missed ones."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def at_most(self, name: str, value: float, limit: float, unit: str = "s", note: str = "") -> None:
        is_met = value <= limit
        if not is_met:
            self.missed.append(name)
        verdict = "kept" if is_met else "MISSED"
        print(f"{name:46}{value:10.3f} {unit:5} at most {limit:8.4g}  {verdict:6}  {note}", flush=True)


@contextlib.contextmanager
def benchmark() -> Iterator[tuple[Goals, Path]]:
    """The goals and a temporary folder of a benchmark. Exits with an error if a goal is missed."""
    goals = Goals()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as name:
        yield goals, Path(name)
    sys.exit("Missed: " + ", ".join(goals.missed) if goals.missed else 0)


def cpu_clock() -> float:
    """Processor seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def timed(call: Callable[[], Any], clock: Callable[[], float] = cpu_clock) -> tuple[float, Any]:
    """Seconds of a call, and what it returns."""
    begin = clock()
    result = call()
    return clock() - begin, result


def in_turns(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = cpu_clock,
    pick: Callable[[Iterable[float]], float] = min,
    between: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Seconds of each call. They take turns, so that a busy machine is busy for all; the first round is dropped.

    The order is random: a call is slower after one that fills the processor's caches, and faster after itself.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for _ in range(rounds + 1):
        for name in shuffled.sample(list(calls), len(calls)):
            seconds[name].append(timed(calls[name], clock)[0])
        between()
    return {name: pick(values[1:]) for name, values in seconds.items()}


def run_quietly(command: list[str], folder: str | Path, **changes: str) -> str:
    """Run a command, and return what it wrote to stdout. Modules are compiled once, as after an installation.

    Temporary folders of other processes, which commands inspect when they start, are out of sight.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "PYTHONPYCACHEPREFIX": f"{folder}/pycache",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
    } | changes
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} failed: {done.stderr[-2000:]}")
    return done.stdout


def measured_child(folder: str | Path, code: str, *arguments: str) -> dict[str, Any]:
    """Run code in a process: ``seconds`` of CPU with its children, ``peak`` in MiB, and the ``value`` it assigned."""
    whole = f"import sys\nvalue = None\n{code}\n{_TAIL}"
    output = run_quietly([sys.executable, "-W", "ignore", "-c", whole, *arguments], folder)
    return dict(json.loads(output.splitlines()[-1]))


# The peak of getrusage includes what the parent held when it started this process.
_TAIL = """
import json, resource
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
import psutil
alive = [child.cpu_times()[:4] for child in psutil.Process().children(recursive=True)]
seconds = sum(each.ru_utime + each.ru_stime for each in used) + sum(map(sum, alive))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print()
print(json.dumps({"seconds": seconds, "peak": int(peak) / 1024, "value": value}))
"""
