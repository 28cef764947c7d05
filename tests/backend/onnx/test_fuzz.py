"""Broken models: handled or refused by name, with no crash, no hang, and no error of another tree.

A few hundred in every run of the tests, and as many thousands as are asked for by ``TRTOPS_TEST_FUZZ=N``.
"""

from __future__ import annotations

import os

import pytest

from tests import models
from tests.backend.onnx import fuzz
from trtops import errors
from trtops.backend.onnx import with_onnxruntime
from trtops.backend.onnx.lint import lint
from trtops.backend.worker import Worker

MUTATIONS = int(os.environ.get("TRTOPS_TEST_FUZZ", "300"))
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


def test_a_loop_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = models.loop().proto
    next(node for node in proto.graph.node if node.output[0] == "trips").attribute[0].i = 2**62
    monkeypatch.setattr(with_onnxruntime, "MAX_SECONDS", 0.1)
    report = lint(proto)
    assert not report.ok
    assert any("did not finish" in entry.message for entry in report.entries)
