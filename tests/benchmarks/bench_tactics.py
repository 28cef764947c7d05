"""Reading and diffing large campaigns: from our table, and from replay files against Polygraphy.

CPU seconds (``time.process_time``), medians of five; Polygraphy's diff is run on the same files in the same process, with
an enum of data types where it wants TensorRT.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tactics.synthetic import campaign
from trtops.tactics.diff import diff
from trtops.tactics.plot import draw
from trtops.tactics.replays import load_replay_folder
from trtops.tactics.table import CampaignTable

LAYERS = 200


def median_cpu(call: Callable[[], object], repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def bench_table(builds: int) -> None:
    table = campaign(5, builds, culprit="together", layers=LAYERS, noise=0.05).table
    data = table.to_bytes()
    read = median_cpu(lambda: CampaignTable.from_bytes(data))
    both = median_cpu(lambda: diff(CampaignTable.from_bytes(data)))
    write = median_cpu(table.to_bytes)
    print(f"{builds:6} builds x {LAYERS} layers: {len(data) / 1024:7.0f} KiB")
    print(f"       write {write * 1e3:7.1f} ms   read {read * 1e3:7.1f} ms   read and diff {both * 1e3:7.1f} ms")


def write_replays(folder: Path, builds: int) -> None:
    table = campaign(5, builds, layers=LAYERS).table
    info = {"dtype": "DataType.FLOAT", "strides": [64, 8, 1], "vectorized_dim": -1, "components_per_element": 1}
    info["polygraphy_class"] = "TensorInfo"
    for name, verdict, codes in zip(table.names, table.verdicts, table.codes):
        replay = {
            layer: {
                "implementation": -2147483635,
                "tactic": int(code),
                "inputs": [info],
                "outputs": [info],
                "polygraphy_class": "Algorithm",
            }
            for layer, code in zip(table.layers, codes)
        }
        path = folder / ("bad" if verdict else "good") / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"replay": replay, "polygraphy_class": "TacticReplayData"}, indent=4))


def fields_diff(folder: Path) -> Callable[[], object]:
    module = types.ModuleType("tensorrt")
    module.__dict__.update(__version__="8.6.1", DataType=enum.Enum("DataType", ["FLOAT", "HALF"]))
    sys.modules["tensorrt"] = module
    from polygraphy.tools.inspect.subtool.diff_tactics import DiffTactics

    arguments = types.SimpleNamespace(dir=str(folder), good=None, bad=None)

    def call() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            DiffTactics().run_impl(arguments)

    return call


def bench_files(builds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_replays(Path(folder), builds)
        theirs = median_cpu(fields_diff(Path(folder)), repeats=3)
        ours = median_cpu(lambda: diff(load_replay_folder(folder).table), repeats=3)
    print(f"{builds:6} replay files: ours {ours:.2f} s   Polygraphy {theirs:.2f} s   ratio {theirs / ours:.2f}")


def bench_picture() -> None:
    table = campaign(5, 50, layers=LAYERS).table
    found = diff(table)
    print(f"    50 builds drawn: {median_cpu(lambda: draw(table, found), repeats=3):.2f} s")


if __name__ == "__main__":
    bench_table(1_000)
    bench_table(10_000)
    bench_files(200)
    bench_picture()
