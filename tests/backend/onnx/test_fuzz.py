"""Broken models: handled or refused by name, with no crash, no hang, and no error of another tree.

A few hundred in every run of the tests, and as many thousands as are asked for by ``TRTOPS_TEST_FUZZ=N``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import bombs
from tests.backend.onnx import fuzz
from trtops import errors
from trtops.backend.onnx.lint import lint
from trtops.system import limits
from trtops.system.worker import Worker

MUTATIONS = int(os.environ.get("TRTOPS_TEST_FUZZ", "100"))
CASES = max(3, MUTATIONS // 100)  # each is a model for two commands
BATCH = 50
SHARDS = 2
SECONDS_PER_BATCH = 600.0  # a limit for hangs, on however slow a machine


def wrong_in(worker: Worker, seeds: range) -> list[str]:
    """What went wrong in a batch; one that takes the child down is repeated seed by seed."""
    try:
        return worker.run(fuzz.try_batch, seeds, timeout=SECONDS_PER_BATCH)
    except errors.WorkerError as exc:
        if len(seeds) == 1:
            return [f"seed {seeds[0]}: {exc}"]
        return [line for seed in seeds for line in wrong_in(worker, range(seed, seed + 1))]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_broken_models_are_handled_or_refused_by_name(shard: int) -> None:
    size = MUTATIONS // SHARDS
    wrong: list[str] = []
    with Worker() as worker:
        for start in range(shard * size, (shard + 1) * size, BATCH):
            wrong += wrong_in(worker, range(start, min(start + BATCH, (shard + 1) * size)))
    assert not wrong, "\n".join(wrong)


def test_mutations_are_repeatable_and_differ() -> None:
    assert fuzz.mutated(7) == fuzz.mutated(7)
    assert len({fuzz.mutated(seed) for seed in range(200)}) > 190


def test_hostile_models_end_no_command(tmp_path: Path) -> None:
    words = ["-m", "tests.attacks.fuzz", "--kinds", "models", "--cases", str(CASES), "--commands", "2", "--first", "7"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("empty", [False, True])
def test_a_loop_without_end_is_stopped(empty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.TIME, "1")

    report = lint(bombs.endless_loop(empty=empty))

    assert report.failing == ("endless",)
    assert any("did not finish within" in e.message and e.nodes == ("endless",) for e in report.entries)


@pytest.mark.parametrize(("in_function", "reported"), [(False, "'q_num_heads' is 0"), (True, "died of signal 8")])
def test_lint_reports_nodes_that_crash(in_function: bool, reported: str) -> None:
    report = lint(bombs.no_heads(in_function=in_function))

    assert report.failing == ("call" if in_function else "heads",)
    assert reported in report.text()
