"""The demo: a real classifier becomes an engine in FP32, FP16 and INT8, each checked on held-out images.

``make demo`` runs it. All numbers are measured in this run.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")  # read when Prefect is imported

from examples.digits import make_digits
from trtops.flows import convert
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.convert_result import builds_table
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.stored_runs import report
from trtops.spec import Precision
from trtops.tracking.location import default_root
from trtops.tracking.store import default_tracker

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")


def main(rebuild: bool = True) -> int:
    """Make model and data, convert in every precision, print the table; 0 if all engines are good, else 1."""
    root = default_root()
    digits = make_digits(root / "demo")
    check = CheckConfig(data=str(digits.images), labels=str(digits.labels))
    config = ConvertConfig(check=check, calibration_data=str(digits.calibration), rebuild=rebuild)
    results = []
    for precision in PRECISIONS:
        print(f"Converting {digits.model.name} to {precision.upper()} ...", flush=True)
        results.append(convert(digits.model, config, precision=precision))
    print(f"\n{builds_table(results)}\n")
    for score in results[0].evaluation.tasks:
        print(f"Accuracy of the model itself on the {score.samples} held-out images: {score.golden:.2%}")
    written = report(results[-1].run_id, tracker=default_tracker(), output=root / "demo" / "report.html")
    print(f"The {results[-1].called} engine as a page, which needs no server: {written.path}")
    print("Look at the runs in MLflow:  make ui")
    print("and open  http://127.0.0.1:5000/#/experiments?workflowType=machine_learning")
    return 0 if all(result.verdict == "good" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
