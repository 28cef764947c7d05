"""Twenty builds of real TensorRT logged to a server, and audited from its address alone by a fresh process.

Most builds share the timings of the first build of their precision, and are made again by their timing caches; the
others are watched by a selector, time every tactic themselves, and are made again by replay. With ``OUT`` set to a
folder the reports and the seconds of each step are kept there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
import pytest

from tests import models
from tests.servers import MlflowServer
from trtops.ops.auditing.config import AuditConfig, reaches
from trtops.ops.auditing.op import audit
from trtops.ops.auditing.result import AuditResult
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, Precision, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import ensure_store
from trtops.tracking.schema import Tag

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHECK = CheckConfig(iterations=4, latency_runs=2, warm_up=1, plots="never")
WATCHED = TensorRTOptions(optimization_level=1)
CACHED = replace(WATCHED, record_tactics=False)
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")


def convolutions(folder: Path, seed: int) -> Path:
    """Two convolutions: nothing of it is Myelin's, whose timings 8.6 does not read back from a cache."""
    weights = {f"w{i}": models.random(32, 32, 3, 3, seed=10 * seed + i, scale=0.08) for i in range(2)}
    proto = models.model(
        """(float[1,32,14,14] x) => (float[1,32,14,14] y) {
            [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
            [relu0] b = Relu(a)
            [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
        }""",
        weights,
        name=f"convolutions_{seed}",
    )
    path = folder / f"convolutions_{seed}.onnx"
    onnx.save(proto, path)
    return path


@dataclass(frozen=True)
class Asked:
    """A build, its experiment, and whether the timings of the precision's first build are given."""

    path: Path
    precision: Precision
    options: TensorRTOptions
    experiment: str
    given: bool = False


def twenty_builds(folder: Path) -> Iterator[Asked]:
    """14 that timing caches repeat, of five models and another one, and six of two models that are watched."""
    for seed in range(4):
        for precision in PRECISIONS:
            yield Asked(convolutions(folder, seed), precision, CACHED, "cached", given=seed > 0)
    yield Asked(models.conv_net().write(folder), "fp32", CACHED, "cached")
    yield Asked(convolutions(folder, 4), "fp16", CACHED, "cached", given=True)
    for seed in (5, 6):
        yield from (Asked(convolutions(folder, seed), precision, WATCHED, "watched") for precision in PRECISIONS)


WAYS = {"cached": "timing-cache", "watched": "replay"}
"""How the builds of each experiment are made again."""


@dataclass
class Log:
    """What took how long, written down at once: what a run that is cut off has seen is not lost."""

    folder: Path
    begun: float = field(default_factory=time.perf_counter)

    def say(self, text: str) -> None:
        line = f"{time.perf_counter() - self.begun:6.1f} s  {text}"
        print(line, flush=True)
        with open(self.folder / "audit-gpu.txt", "a") as file:
            file.write(f"{line}\n")


def test_twenty_builds_are_rebuilt_from_a_server(tmp_path: Path) -> None:
    out = Path(os.environ.get("OUT", tmp_path))
    log = Log(out)
    ensure_store(tmp_path / "mlruns")
    with MlflowServer(tmp_path / "mlruns") as server:
        tracker = MlflowTracker(server.address)
        (tmp_path / "models").mkdir()
        build_all(tracker, tmp_path / "models", log)
        shutil.rmtree(tmp_path / "models")
        with ThreadPoolExecutor() as both:  # neither times a tactic, so that they may share the GPU
            asked = {name: both.submit(audited, server.address, name, tmp_path, out, log) for name in WAYS}
        results = {name: each.result() for name, each in asked.items()}
        tamper_and_check(tracker, results["watched"][0])
    runs = [run for result, _ in results.values() for run in result.runs]
    for run in runs:
        log.say(f"{run.experiment} {run.name}: {run.grade}; {'; '.join(each.text() for each in run.differences)}")
    assert len(runs) == 20
    assert not [run.headline() for run in runs if run.contradictions or not run.whole]
    assert not [run.missing for run in runs if run.missing]
    reached = [run for run in runs if run.grade is not None and reaches(run.grade, "tactics")]
    log.say(f"{len(reached)} of 20 have equal tactics or equal bytes")
    assert len(reached) >= 19, [list(run.details()) for run in runs if run not in reached]
    assert sum(code for _, code in results.values()) == len({run.experiment for run in runs if run not in reached})
    assert all(each.what.startswith("device ") for run in runs for each in run.differences)


def build_all(tracker: MlflowTracker, folder: Path, log: Log) -> None:
    """All builds, logged."""
    first: dict[Precision, str] = {}
    for asked in twenty_builds(folder):
        config = ConvertConfig(
            build=BuildConfig(precision=asked.precision, options=asked.options, calibration_samples=4),
            check=CHECK,
            rebuild=True,
            timing_cache=f"run:{first[asked.precision]}" if asked.given else None,
        )
        made = convert(asked.path, config, tracker=tracker, experiment=asked.experiment)
        first.setdefault(asked.precision, made.run_id)
        log.say(f"{asked.experiment} {asked.path.stem} {asked.precision}: built in {made.build_seconds:.1f} s")


def audited(address: str, experiment: str, folder: Path, out: Path, log: Log) -> tuple[AuditResult, int]:
    """What a process that knows the address and nothing else says."""
    way = WAYS[experiment]
    elsewhere = folder / f"elsewhere-{experiment}"
    elsewhere.mkdir()
    words = ["runs", "audit", "--experiment", experiment, "--store", address, "--by", way, "--build-timeout", "200"]
    pages = [out / f"audit-{experiment}.html", out / f"audit-{experiment}.md"]
    report = ["--json", "--html", str(pages[0]), "--markdown", str(pages[1])]
    done = subprocess.run(
        [sys.executable, "-m", "trtops.cli", *words, *report],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRTOPS_HOME": str(elsewhere)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout[-3000:]
    result = AuditResult.from_dict(json.loads(done.stdout))
    log.say(f"audited {experiment} by {way}: {result.grades}")
    return result, done.returncode


def tamper_and_check(tracker: MlflowTracker, result: AuditResult) -> None:
    """A tag that is changed behind the runs' back is found, on this release too."""
    run = result.runs[0].id
    tracker._client.set_tag(run, Tag.ENGINE_SHA256, "0" * 64)
    [found] = audit(AuditConfig(runs=(run,), rebuild=False), tracker=tracker).runs
    assert [each.what for each in found.contradictions] == ["engine"]
