"""Print how triage and bundles do on planted faults: ``python -m tests.triage.evaluate_faults [triage|bundles ...]``.

The exit code is 1 if a goal was missed.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

from tests.triage.planted import FAULTS, Planted
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.triaging.op import triage
from trtops.ops.triaging.result import TriageResult
from trtops.tracking.memory import MemoryTracker


def named(fault: Planted, result: TriageResult) -> bool:
    """Whether kind and place were named."""
    return result.kind in fault.kinds and any(name in result.places[:6] for name in fault.places)


def show_triage(folder: Path) -> bool:
    """Twenty planted faults: kind and place are named for at least 18."""
    right = builds = 0
    began = time.perf_counter()
    for number, fault in enumerate(FAULTS):
        path, config = fault.write(folder / str(number))
        result = triage(path, config)
        right += named(fault, result)
        builds += result.builds
        outcome = "named" if named(fault, result) else "MISSED"
        row = f"{outcome:7} {result.kind:16} {', '.join(result.places[:3])[:40]:40}"
        print(f"{fault.name:32} {row} {len(result.steps):3} questions {result.builds:3} builds", flush=True)
    minutes = (time.perf_counter() - began) / 60
    print(f"triage: {right} of {len(FAULTS)} named (goal 18) with {builds} builds in {minutes:.1f} min")
    return right >= 18


def show_bundles(folder: Path) -> bool:
    """Bundles of planted faults, reproduced in an environment that only has numpy and ONNX Runtime."""
    tracker = MemoryTracker()
    python = folder / "bare" / "bin" / "python"
    reproduced = count = 0
    for number, fault in enumerate(FAULTS):
        fault_folder = folder / str(number)
        path, triage_config = fault.write(fault_folder)
        if triage_config.golden_model is not None or fault.kinds == ("not repeatable",):
            continue  # a verdict against another model or a random one cannot be reproduced
        config = ConvertConfig(
            build=triage_config.build, check=triage_config.check, calibration_cache=triage_config.calibration_cache
        )
        run = convert(path, config, tracker=tracker)
        count += 1
        bundled = bundle(run.run_id, BundleConfig(output=f"{fault_folder}.zip"), tracker=tracker)
        with zipfile.ZipFile(bundled.path) as archive:
            archive.extractall(fault_folder / "bundle")
        if not python.exists():
            venv.create(folder / "bare", with_pip=True)
            command = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "-r",
                str(fault_folder / "bundle" / "constraints.txt"),
            ]
            subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
            bare = subprocess.run([str(python), "-c", "import trtops"], capture_output=True, cwd=folder)
            assert bare.returncode != 0, "the bare environment has trtops"
        again = subprocess.run(
            [str(python), "reproduce.py"], cwd=fault_folder / "bundle", capture_output=True, text=True
        )
        good = again.returncode == 0 and f"verdict: {run.verdict}" in again.stdout
        reproduced += good
        print(f"{fault.name:32} {run.verdict:5} {'reproduced' if good else again.stdout + again.stderr}", flush=True)
    print(f"bundles: {reproduced} of {count} reproduced (goal all)")
    return reproduced == count


def main(parts: list[str]) -> int:
    """Run parts, and say whether every goal was met."""
    with tempfile.TemporaryDirectory() as folder:
        shown = {"triage": show_triage, "bundles": show_bundles}
        met = [shown[part](Path(folder, part)) for part in parts or shown]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
