"""Builds of real TensorRT logged to a server, and audited from its address alone by a fresh process.

Most builds share the timings of the first build of their precision, and are made again by their timing caches; the
others are watched by a selector, time every tactic themselves, and are made again by replay.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from tests.servers import MlflowServer
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.auditing.result import AuditResult, reaches
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, Precision, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import ensure_store
from trtops.tracking.schema import Tag

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1500)]

CHECK = CheckConfig(iterations=4, latency_runs=2, warm_up=1, plots="never")
WATCHED = TensorRTOptions(optimization_level=1)
CACHED = replace(WATCHED, record_tactics=False)
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")


WAYS = {"cached": "timing-cache", "watched": "replay"}
"""How the builds of each experiment are made again."""


def test_builds_are_rebuilt_from_a_server(tmp_path: Path) -> None:
    ensure_store(tmp_path / "mlruns")
    with MlflowServer(tmp_path / "mlruns") as server:
        tracker = MlflowTracker(server.address)
        build_all(tracker, tmp_path)
        results = [audited(server.address, name, tmp_path) for name in WAYS]
        run = results[1].runs[0].id
        tracker._client.set_tag(run, Tag.ENGINE_SHA256, "0" * 64)
        [tampered] = audit(AuditConfig(runs=(run,), rebuild=False), tracker=tracker).runs
    assert "engine" in [finding.subject for finding in tampered.contradictions]  # pages that state the digest as well
    runs = [run for result in results for run in result.runs]
    assert len(runs) == 20
    assert not [run.headline() for run in runs if run.contradictions or not run.whole or run.missing]
    reached = [run for run in runs if run.grade is not None and reaches(run.grade, "tactics")]
    assert len(reached) >= 19, [list(run.details()) for run in runs if run not in reached]
    assert all(finding.name.startswith("device ") for run in runs for finding in run.differences)


def build_all(tracker: MlflowTracker, folder: Path) -> None:
    """14 builds that timing caches repeat, of five models and another one, and six of two models that are watched."""
    first: dict[Precision, str] = {}

    def build(
        path: Path, precision: Precision, options: TensorRTOptions, experiment: str, with_cache: bool = False
    ) -> None:
        config = ConvertConfig(
            build=BuildConfig(precision=precision, options=options, calibration_samples=4),
            check=CHECK,
            rebuild=True,
            timing_cache=f"run:{first[precision]}" if with_cache else None,
        )
        first.setdefault(precision, convert(path, config, tracker=tracker, experiment=experiment).run_id)
        path.unlink()  # an audit needs the store only

    for seed in range(4):
        for precision in PRECISIONS:
            build(models.two_convolutions(seed).write(folder), precision, CACHED, "cached", seed > 0)
    build(models.conv_net().fixed().write(folder), "fp32", CACHED, "cached")
    build(models.two_convolutions(4).write(folder), "fp16", CACHED, "cached", True)
    for seed in (5, 6):
        for precision in PRECISIONS:
            build(models.two_convolutions(seed).write(folder), precision, WATCHED, "watched")


def audited(address: str, experiment: str, folder: Path) -> AuditResult:
    """The result of a process that knows the address and nothing else."""
    words = ["runs", "audit", "--experiment", experiment, "--store", address, "--by", WAYS[experiment], "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "trtops.cli", *words, "--build-timeout", "200"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRTOPS_HOME": str(folder / "none")},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert done.returncode in (0, 1), done.stdout[-3000:]
    result = AuditResult.from_dict(json.loads(done.stdout))
    print(f"audited {experiment}: {result.grades}")
    return result
