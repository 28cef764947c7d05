"""Logging one build to an open embedded store: ten params, 200 metrics, six artifacts of 1 to 50 MB.

Goal: 1.3 times the copying of the files, and 150 ms.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.benchmarks.harness import Goals, in_turns
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker

MEGABYTES = (1, 2, 5, 10, 20, 50)


def main() -> None:
    goals = Goals()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as name:
        folder = Path(name)
        tracker = MlflowTracker(folder / "store")
        sources = [folder / f"{size}.plan" for size in MEGABYTES]
        for size, source in zip(MEGABYTES, sources):
            source.write_bytes(os.urandom(size << 20))

        def copy() -> None:
            (folder / "copy").mkdir()
            for source in sources:
                shutil.copyfile(source, folder / "copy" / source.name)

        def log() -> None:
            with tracked(tracker, "bench", "build", kind="build") as run:
                run.log_params({f"option_{i}": i for i in range(10)})
                run.log_metrics({("error", f"output_{i // 10}", f"stat_{i % 10}"): i * 0.5 for i in range(200)})
                for source in sources:
                    run.log_file(source, f"engine/{source.name}")
                run.finish("good")

        def remove() -> None:  # memory that a virtual machine has never touched costs more than all the rest
            shutil.rmtree(folder / "copy")
            shutil.rmtree(folder / "store" / "artifacts")

        found = in_turns({"copy": copy, "log": log}, 9, between=remove)
    note = f"{sum(MEGABYTES)} MB in {len(MEGABYTES)} files; copying takes {found['copy']:.3f} s"
    goals.at_most("log a build", found["log"], 1.3 * found["copy"] + 0.150, note=note)
    goals.exit()


if __name__ == "__main__":
    main()
