"""What the convert flow costs outside building and inference, with the store and Prefect's embedded server up already.

Goals in CPU time: the flow takes 0.3 s more than its op, ``import trtops`` 0.1 s. The op's own share (reading the
model, digests, logging) is printed.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")

from tests.benchmarks.harness import Goals, full_size, run_quietly, timed

IMPORT = "import time; begin = time.process_time(); import trtops; print(time.process_time() - begin)"


class Stopwatch:
    """Adds up the CPU time spent inside functions."""

    seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed_function(*args: Any, **kwargs: Any) -> Any:
            seconds, result = timed(lambda: function(*args, **kwargs), time.process_time)
            self.seconds += seconds
            return result

        return timed_function


def main() -> None:
    runs = 15 if full_size(__doc__, "fifteen runs instead of five") else 5
    goals = Goals()
    beyond_op, beyond_work, imports = [], [], []
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        os.environ["TRTOPS_HOME"] = folder
        import trtops.ops.engines.convert as convert_ops
        from flows.digits import make_digits
        from trtops.backend.engines import engine_backend
        from trtops.flows.flow_of import flow_of
        from trtops.ops.evaluation.check import CheckConfig

        digits = make_digits(Path(folder) / "demo")
        check = CheckConfig(data=str(digits.images), labels=str(digits.labels))
        config = convert_ops.ConvertConfig(check=check, rebuild=True)
        flow_of(convert_ops.convert, by_steps=True)(digits.model, config)  # starts the servers
        backend = type(engine_backend("onnxruntime"))
        for _ in range(runs):
            op, work = Stopwatch(), Stopwatch()
            flow = flow_of(op.around(convert_ops.convert), by_steps=True)
            with (
                mock.patch.object(convert_ops, "_evaluate", work.around(convert_ops._evaluate)),
                mock.patch.object(backend, "build", work.around(backend.build)),
            ):
                whole, _ = timed(lambda: flow(digits.model, config), time.process_time)  # noqa: B023
            beyond_op.append(whole - op.seconds)
            beyond_work.append(op.seconds - work.seconds)
            imports.append(float(run_quietly([sys.executable, "-c", IMPORT], folder)))
    print(f"op beyond building and evaluating: {min(beyond_work):.3f} s")
    goals.at_most("flow beyond its op", min(beyond_op), 0.3)
    goals.at_most("import trtops", min(imports), 0.1)
    goals.exit()


if __name__ == "__main__":
    main()
