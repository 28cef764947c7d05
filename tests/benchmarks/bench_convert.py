"""What the convert flow costs outside building and inference.

Measures, in one process, against an embedded store and Prefect's embedded server that are both up already:

* the flow's time beyond its op (Prefect's share; at most 0.3 s is promised),
* the op's time beyond building, judging and measuring (reading the model, digests, logging),
* ``import trtops`` in a fresh interpreter (under 0.1 s is promised).

Run: ``python tests/benchmarks/bench_convert.py [--runs 7]``.
"""

from __future__ import annotations

import argparse
import os
import statistics
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

import trtops.ops.engines.convert as convert_ops
from flows.convert import convert
from flows.digits import make_digits
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.judging.judgement import CheckConfig


class Stopwatch:
    """Adds up the wall time spent inside functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable) -> Callable:  # type: ignore[type-arg]
        def timed(*args, **kwargs):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    digits = make_digits(Path(_ROOT.name) / "demo")
    config = ConvertConfig(check=CheckConfig(data=str(digits.images), labels=str(digits.labels)), rebuild=True)
    convert(digits.model, config)  # servers, store and imports are up after this

    flow_beyond_op, op_beyond_work = [], []
    for _ in range(runs):
        op, work = Stopwatch(), Stopwatch()
        with (
            mock.patch("flows.convert.convert_op", op.around(convert_ops.convert)),
            mock.patch.object(convert_ops, "_judge_build", work.around(convert_ops._judge_build)),
        ):
            start = time.perf_counter()
            result = convert(digits.model, config)
            total = time.perf_counter() - start
        flow_beyond_op.append(total - op.seconds)
        op_beyond_work.append(op.seconds - work.seconds - result.build_seconds)
    imports = []
    for _ in range(runs):
        code = "import time; t = time.perf_counter(); import trtops; print(time.perf_counter() - t)"
        imports.append(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))

    print(f"{'':44}{'min':>9}{'median':>9}{'max':>9}   promised")
    for name, seconds, promise in (
        ("flow beyond its op", flow_beyond_op, "0.300 s"),
        ("op beyond building, judging and measuring", op_beyond_work, "-"),
        ("import trtops", imports, "0.100 s"),
    ):
        row = (min(seconds), statistics.median(seconds), max(seconds))
        print(f"{name:44}" + "".join(f"{value:8.3f}s" for value in row) + f"   {promise}")


if __name__ == "__main__":
    main()
