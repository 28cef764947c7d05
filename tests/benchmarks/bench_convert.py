"""What the convert flow costs outside building and inference.

Measures, in one process, against an embedded store and Prefect's embedded server that are both up already:

* the flow's time beyond its op (Prefect's share; at most 0.3 s of the processor is promised),
* the op's time beyond building, evaluating and measuring (reading the model, digests, logging),
* ``import trtops`` in a fresh interpreter (under 0.1 s of the processor is promised).

Wall time, and processor time of this process, by which the exit code goes: the least of several runs.

Run: ``python tests/benchmarks/bench_convert.py [--full]``.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
_ROOT = tempfile.TemporaryDirectory(prefix="trtops-bench-")
os.environ["TRTOPS_HOME"] = _ROOT.name
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import trtops.ops.engines.convert as convert_ops
from flows.digits import make_digits
from trtops.backend.engines import engine_backend
from trtops.flows.flow_of import flow_of
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.evaluation.check import CheckConfig

Cost = tuple[float, float]
"""Seconds of the wall clock, and of this process' processor time."""


def now() -> Cost:
    return time.perf_counter(), time.process_time()


def since(start: Cost, *less: Cost) -> Cost:
    """What passed since then, without what others took."""
    passed = [end - begin for begin, end in zip(start, now(), strict=True)]
    wall, cpu = (value - sum(each[clock] for each in less) for clock, value in enumerate(passed))
    return wall, cpu


class Stopwatch:
    """Adds up the time spent inside functions."""

    def __init__(self) -> None:
        self.seconds: Cost = (0.0, 0.0)

    def around(self, function: Callable) -> Callable:  # type: ignore[type-arg]
        @functools.wraps(function)
        def timed(*args, **kwargs):  # type: ignore[no-untyped-def]
            start = now()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds = since(start, (-self.seconds[0], -self.seconds[1]))

        return timed


def import_cost() -> Cost:
    code = """
from time import perf_counter as wall, process_time as cpu
begin = wall(), cpu()
import trtops
print(wall() - begin[0], cpu() - begin[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    took, busy = map(float, done.stdout.split())
    return took, busy


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="fifteen runs and not five")
    runs = 15 if parser.parse_args().full else 5
    digits = make_digits(Path(_ROOT.name) / "demo")
    config = ConvertConfig(check=CheckConfig(data=str(digits.images), labels=str(digits.labels)), rebuild=True)
    flow_of(convert_ops.convert, by_steps=True)(digits.model, config)  # servers, store and imports are up after this

    flow_beyond_op: list[Cost] = []
    op_beyond_work: list[Cost] = []
    for _ in range(runs):
        op, build, evaluating = Stopwatch(), Stopwatch(), Stopwatch()
        convert = flow_of(op.around(convert_ops.convert), by_steps=True)
        backend = type(engine_backend("onnxruntime"))
        with (
            mock.patch.object(convert_ops, "_evaluate", evaluating.around(convert_ops._evaluate)),
            mock.patch.object(backend, "build", build.around(backend.build)),
        ):
            start = now()
            convert(digits.model, config)
            flow_beyond_op.append(since(start, op.seconds))
        op_beyond_work.append(tuple(a - b - c for a, b, c in zip(op.seconds, build.seconds, evaluating.seconds)))  # type: ignore[arg-type]
    imports = [import_cost() for _ in range(runs)]

    print(f"{'least of ' + str(runs):44}{'wall':>9}{'CPU':>9}   promised of the CPU")
    missed = False
    for name, costs, promise in (
        ("flow beyond its op", flow_beyond_op, 0.3),
        ("op beyond building, evaluating and measuring", op_beyond_work, None),
        ("import trtops", imports, 0.1),
    ):
        wall, cpu = (min(cost[clock] for cost in costs) for clock in (0, 1))
        kept = promise is None or cpu <= promise
        missed |= not kept
        told = "-" if promise is None else f"{promise:.3f} s {'kept' if kept else 'BROKEN'}"
        print(f"{name:44}{wall:8.3f}s{cpu:8.3f}s   {told}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
