"""Comparing, saving, loading and running, as shares of Polygraphy's CPU time on the same arrays.

Each figure comes from a process of its own.
"""

import importlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import benchmark, measured_child, timed

CHILD = "from tests.benchmarks.bench_comparator import measure; value = measure(*sys.argv[1:])"


def arrays(elements: int, outputs: int = 1) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    golden = {f"out{i}": random.standard_normal(elements, dtype=np.float32) for i in range(outputs)}
    noise = np.float32(1e-4)
    noisy = {n: a + noise * random.standard_normal(elements, dtype=np.float32) for n, a in golden.items()}
    return noisy, golden


def package(tool: str) -> Any:
    """The comparator of one side, with its statistics at the severity at which it logs them."""
    if tool == "trtops":
        logging.getLogger("trtops").setLevel(logging.CRITICAL)
    else:
        from polygraphy.logger import G_LOGGER

        G_LOGGER.module_severity = G_LOGGER.INFO
    return importlib.import_module(f"{tool}.comparator")


def compare(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """All statistics of all outputs, through each tool's own compare function."""
    comparator = package(tool)
    first, second = (comparator.IterationResult(side) for side in arrays(elements, outputs))
    function = comparator.CompareFunc.simple(check_error_stat="quantile")
    return lambda: function(first, second)


def plain(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """The numbers of a result alone, by numpy."""
    first, second = arrays(elements, outputs)

    def numbers() -> None:
        for name, a in first.items():
            b = second[name]
            distance = np.abs(a - b)
            for errors in (distance, distance / np.abs(b)):
                errors.max(), errors.mean(), np.quantile(errors, [0.5, 0.99])

    return numbers


def results(tool: str, elements: int, ending: int, folder: str) -> tuple[Any, str]:
    """Results with one output of this size, and where to save them: as JSON, or as npz on our side."""
    run_results = package(tool).RunResults()
    run_results.add([arrays(elements)[0]], runtime=1e-3, runner_name="runner")
    return run_results, os.path.join(folder, tool + (".npz" if ending and tool == "trtops" else ".json"))


def save(*case: Any) -> Callable[[], object]:
    run_results, path = results(*case)
    return lambda: run_results.save(path)


def load(*case: Any) -> Callable[[], object]:
    run_results, path = results(*case)
    run_results.save(path)
    kind = type(run_results)
    del run_results  # its memory is not to be measured
    return lambda: kind.load(path)["runner"][0]["out0"]


def load_many(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """Results with many small outputs."""
    run_results, path = package(tool).RunResults(), os.path.join(folder, f"{tool}.json")
    run_results.add([arrays(elements, outputs)[0]], runtime=1e-3, runner_name="runner")
    run_results.save(path)
    return lambda: type(run_results).load(path)


def run(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """``Comparator.run`` over 1000 iterations of a runner that does nothing, with ``outputs`` inputs and outputs."""
    comparator = package(tool)
    base = importlib.import_module(f"{tool}.backend.base").BaseRunner
    metadata = importlib.import_module({"trtops": "trtops.metadata", "polygraphy": "polygraphy.common"}[tool])
    feed = {f"in{i}": np.zeros(elements, np.float32) for i in range(outputs)}

    class Idle(base):
        def infer_impl(self, feed_dict):
            self.inference_time = 0.0
            return dict(feed_dict)

        def get_input_metadata_impl(self):
            input_metadata = metadata.TensorMetadata()
            for name, array in feed.items():
                input_metadata.add(name, array.dtype, array.shape)
            return input_metadata

    runner, feeds = Idle("idle"), [feed] * 1000
    return lambda: comparator.Comparator.run([runner], data_loader=feeds)


def measure(case: str, tool: str, *numbers: str) -> tuple[float, float]:
    """The least CPU seconds of one case, and the growth of the peak memory in MiB."""
    elements, second, repeats = map(int, numbers)
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        work = {"compare": compare, "plain": plain, "save": save, "load": load, "load_many": load_many, "run": run}[
            case
        ](tool, elements, second, folder)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status("VmRSS")
        seconds = min(timed(work, time.process_time)[0] for _ in range(repeats))
        return seconds, (status("VmHWM") - before) / 1024


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def main() -> None:
    table = [
        ("compare 500 outputs of 1e4", "compare", 10_000, 500, 5, 0.08),
        ("load 2000 arrays of 100 from JSON", "load_many", 100, 2000, 3, 0.35),
        ("run 1000 iterations, 1 input", "run", 16, 1, 3, 0.1),
        ("run 1000 iterations, 20 inputs", "run", 16, 20, 3, 0.1),
    ]
    for size, repeats in ((1_000_000, 3), (10_000_000, 1)):
        megabytes, elements = f"{size * 10 // 1_000_000} MB", size * 5 // 2
        table.append((f"compare {size:.0e} float32", "compare", size, 1, 3, 0.25))
        table.append((f"save {megabytes} of JSON", "save", elements, 0, repeats, 0.4))
        table.append((f"load {megabytes} of JSON", "load", elements, 0, repeats, 0.35))
    table.append((f"save npz, theirs {megabytes} of JSON", "save", elements, 1, 3, 0.1))
    table.append((f"load npz, theirs {megabytes} of JSON", "load", elements, 1, 3, 0.1))
    with benchmark() as (goals, folder):
        for title, case, elements, second, repeats, limit in table:
            words = [str(number) for number in (elements, second, repeats)]
            ours, theirs = (
                measured_child(folder, CHILD, case, tool, *words)["value"] for tool in ("trtops", "polygraphy")
            )
            note = f"{ours[0]:.3f} s and {ours[1]:.0f} MiB, Polygraphy {theirs[0]:.3f} s and {theirs[1]:.0f} MiB"
            if second > 1 and case == "compare":  # in FP32 and without what evaluates a result by other tolerances
                bare = measured_child(folder, CHILD, "plain", "numpy", *words)["value"][0]
                note = f"{note}, numpy alone {bare:.3f} s"
            goals.at_most(title, ours[0] / theirs[0], limit, "times", note)


if __name__ == "__main__":
    main()
