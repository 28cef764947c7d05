"""Comparing, saving and loading results, and running: against Polygraphy 0.53.6, in one run, on the same arrays.

Each figure is measured in a process of its own, which reports its CPU time (the least of several runs, all threads) and
how far its peak memory rose above what it held before. Run by ``make bench``; ``--full`` takes arrays ten times as large,
minutes and gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def _arrays(elements: int, outputs: int = 1) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    golden = {f"out{i}": random.standard_normal(elements, dtype=np.float32) for i in range(outputs)}
    noisy = {}
    for name, array in golden.items():
        noisy[name] = random.standard_normal(elements, dtype=np.float32)
        noisy[name] *= np.float32(1e-4)
        noisy[name] += array
    return noisy, golden


def _library(tool: str):
    if tool == "theirs":
        import polygraphy.comparator as comparator
        import polygraphy.json as files
        from polygraphy.logger import G_LOGGER

        # What its statistics cost shows at its default severity only, at which it logs them.
        G_LOGGER.module_severity = G_LOGGER.INFO
    else:
        import logging

        import trtops.comparator as comparator
        import trtops.json as files

        logging.getLogger("trtops").setLevel(logging.CRITICAL)
    return comparator, files


def compare(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """All statistics of all outputs, through each tool's own compare function."""
    comparator, _ = _library(tool)
    noisy, golden = _arrays(elements, outputs)
    first, second = comparator.IterationResult(noisy), comparator.IterationResult(golden)
    function = comparator.CompareFunc.simple(check_error_stat="quantile")
    return lambda: function(first, second)


def _saved(tool: str, elements: int, folder: str, ending: str):
    comparator, _ = _library(tool)
    results = comparator.RunResults()
    results.add([_arrays(elements)[0]], runtime=1e-3, runner_name="runner")
    return comparator.RunResults, results, os.path.join(folder, f"{tool}{ending}")


def save_json(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """Results with one output of this size, as JSON."""
    _, results, path = _saved(tool, elements, folder, ".json")
    return lambda: results.save(path)


def load_json(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """The same, loaded; both read the file that Polygraphy wrote."""
    kind, results, path = _saved(tool, elements, folder, ".json")
    results.save(path)
    del results
    return lambda: kind.load(path)["runner"][0]["out0"]


def save_npz(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """Results in trtops's fast format; `theirs` is Polygraphy's JSON."""
    _, results, path = _saved(tool, elements, folder, ".npz" if tool == "ours" else ".json")
    return lambda: results.save(path)


def load_npz(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """The same, loaded."""
    kind, results, path = _saved(tool, elements, folder, ".npz" if tool == "ours" else ".json")
    results.save(path)
    del results
    return lambda: kind.load(path)["runner"][0]["out0"]


def run(tool: str, elements: int, outputs: int, folder: str) -> Callable[[], object]:
    """``Comparator.run`` over 1000 iterations of a runner that does nothing, with ``outputs`` inputs and outputs."""
    comparator, _ = _library(tool)
    feed = {f"in{i}": np.zeros(elements, np.float32) for i in range(outputs)}
    runner = _idle_runner(tool, feed)
    feeds = [feed] * 1000
    return lambda: comparator.Comparator.run([runner], data_loader=feeds)


def _idle_runner(tool: str, feed: dict[str, np.ndarray]):
    if tool == "theirs":
        from polygraphy.backend.base import BaseRunner
        from polygraphy.common import TensorMetadata
    else:
        from trtops.backend.base import BaseRunner
        from trtops.metadata import TensorMetadata

    class Idle(BaseRunner):
        def infer_impl(self, feed_dict):
            self.inference_time = 0.0
            return dict(feed_dict)

        def get_input_metadata_impl(self):
            metadata = TensorMetadata()
            for name, array in feed.items():
                metadata.add(name, array.dtype, array.shape)
            return metadata

    return Idle("idle")


def _measure(case: str, tool: str, elements: int, outputs: int, repeat: int) -> None:
    """In the child process: print CPU seconds and the rise of peak memory in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        answer = os.fdopen(os.dup(1), "w")
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        work = globals()[case](tool, elements, outputs, folder)
        before = _reset_peak()
        seconds, peak = [], 0
        for _ in range(repeat):
            start = time.process_time()
            kept = work()
            seconds.append(time.process_time() - start)
            peak = max(peak, _peak() - before)
            del kept
        print(json.dumps({"seconds": min(seconds), "bytes": peak}), file=answer, flush=True)


def _reset_peak() -> int:
    """Forget the peak so far (Linux), and return what is held now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def _case(case: str, tool: str, elements: int, outputs: int, repeat: int) -> dict[str, float]:
    arguments = [sys.executable, __file__, "--case", case, tool, str(elements), str(outputs), str(repeat)]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="large arrays: minutes, and gigabytes of memory")
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, tool, *numbers = options.case
        _measure(case, tool, *map(int, numbers))
        return 0
    small, large = (10_000_000, 100_000_000) if options.full else (1_000_000, 10_000_000)
    table = [
        (f"compare, {small:.0e} float32", "compare", small, 1, 3, 0.25),
        (f"compare, {large:.0e} float32", "compare", large, 1, 3, 0.25),
        ("compare, 500 outputs of 1e4", "compare", 10_000, 500, 5, 0.1),
        (f"save JSON, {small * 10 // 1_000_000} MB", "save_json", small * 5 // 2, 1, 3, 0.4),
        (f"save JSON, {large * 10 // 1_000_000} MB", "save_json", large * 5 // 2, 1, 1, 0.4),
        (f"load JSON, {small * 10 // 1_000_000} MB", "load_json", small * 5 // 2, 1, 3, 1.0),
        (f"load JSON, {large * 10 // 1_000_000} MB", "load_json", large * 5 // 2, 1, 1, 1.0),
        (f"save npz vs JSON, {large * 10 // 1_000_000} MB", "save_npz", large * 5 // 2, 1, 1, 0.1),
        (f"load npz vs JSON, {large * 10 // 1_000_000} MB", "load_npz", large * 5 // 2, 1, 1, 0.1),
        ("run, 1000 iterations, 1 input", "run", 16, 1, 3, 0.1),
        ("run, 1000 iterations, 20 inputs", "run", 16, 20, 3, 0.1),
    ]
    missed = False
    print(f"{'':40} {'trtops':>10} {'Polygraphy':>10} {'ratio':>7} {'target':>7} {'trtops MB':>10} {'theirs MB':>10}")
    for title, case, elements, outputs, repeat, target in table:
        ours, theirs = (_case(case, tool, elements, outputs, repeat) for tool in ("ours", "theirs"))
        ratio = ours["seconds"] / theirs["seconds"]
        missed |= ratio > target
        print(
            f"{title:40} {ours['seconds']:9.3f}s {theirs['seconds']:9.3f}s {ratio:7.3f} {target:7.2f} "
            f"{ours['bytes'] / 1e6:10.0f} {theirs['bytes'] / 1e6:10.0f}{'  MISSED' if ratio > target else ''}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
