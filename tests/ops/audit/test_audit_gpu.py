"""Twenty builds of real TensorRT logged to a server, and audited from its address alone by a fresh process.

Takes some three minutes on an H200 with TensorRT 8.6. With ``OUT`` set to a folder the report is kept there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests import models
from tests.servers import MlflowServer
from trtops.ops.auditing.config import AuditConfig, reaches
from trtops.ops.auditing.op import audit
from trtops.ops.auditing.result import AuditResult
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.judging.judgement import CheckConfig
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
UNWATCHED = replace(WATCHED, record_tactics=False)
EXPERIMENT = "audited"


def convolutions(folder: Path, seed: int) -> Path:
    """Two convolutions: nothing of it is Myelin's, whose timings 8.6 does not read back from a cache."""
    weights = {f"w{i}": models.random(32, 32, 3, 3, seed=10 * seed + i, scale=0.08) for i in range(2)}
    proto = models.model(
        """(float[4,32,28,28] x) => (float[4,32,28,28] y) {
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


def twenty_builds(folder: Path) -> list[tuple[Path, Precision, TensorRTOptions]]:
    """Seven models, most in three precisions, watched by a selector; and one in two, left to its timing cache."""
    several = [convolutions(folder, seed) for seed in range(5)]
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "int8")
    watched = [(path, precision, WATCHED) for path in several for precision in precisions]
    small, transformer = models.conv_net().write(folder), models.transformer().write(folder)
    others: list[tuple[Path, Precision, TensorRTOptions]] = [
        (small, "fp32", WATCHED),
        (small, "fp16", WATCHED),
        (transformer, "fp32", WATCHED),
        (several[0], "fp32", UNWATCHED),
        (several[0], "fp16", UNWATCHED),
    ]
    return [*watched, *others]


def test_twenty_builds_come_out_again_from_the_server_s_address_alone(tmp_path: Path) -> None:
    ensure_store(tmp_path / "mlruns")
    with MlflowServer(tmp_path / "mlruns") as server:
        tracker = MlflowTracker(server.address)
        begun = time.perf_counter()
        (tmp_path / "models").mkdir()
        for path, precision, options in twenty_builds(tmp_path / "models"):
            config = ConvertConfig(
                build=BuildConfig(precision=precision, options=options, calibration_samples=4),
                check=CHECK,
                rebuild=True,
            )
            convert(path, config, tracker=tracker, experiment=EXPERIMENT)
        shutil.rmtree(tmp_path / "models")
        built = time.perf_counter()
        result, code = audited(server.address, tmp_path)
        ended = time.perf_counter()
        print(result.page())
        print(f"20 builds in {built - begun:.0f} s, audited in {ended - built:.0f} s")
        tamper_and_check(tracker, result)
    assert len(result.runs) == 20
    assert not [run.headline() for run in result.runs if run.contradictions or not run.whole]
    assert not [run.missing for run in result.runs if run.missing]
    reached = [run for run in result.runs if run.grade is not None and reaches(run.grade, "tactics")]
    assert len(reached) >= 19, [list(run.details()) for run in result.runs if run not in reached]
    assert code == int(len(reached) < 20)
    assert all(each.what.startswith("device ") for run in result.runs for each in run.differences)


def audited(address: str, folder: Path) -> tuple[AuditResult, int]:
    """What a process that knows the address and nothing else says."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    words = ["runs", "audit", "--experiment", EXPERIMENT, "--store", address, "--by", "replay", "timing-cache"]
    out = Path(os.environ.get("OUT", folder))
    report = ["--json", "--html", str(out / "audit.html"), "--markdown", str(out / "audit.md")]
    done = subprocess.run(
        [sys.executable, "-m", "trtops.cli", *words, *report],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRTOPS_HOME": str(elsewhere)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout[-3000:]
    return AuditResult.from_dict(json.loads(done.stdout)), done.returncode


def tamper_and_check(tracker: MlflowTracker, result: AuditResult) -> None:
    """A tag that is changed behind the runs' back is found, on this release too."""
    run = result.runs[0].id
    tracker._client.set_tag(run, Tag.ENGINE_SHA256, "0" * 64)
    [found] = audit(AuditConfig(runs=(run,), rebuild=False), tracker=tracker).runs
    assert [each.what for each in found.contradictions] == ["engine"]
