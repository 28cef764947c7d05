"""Two thousand broken models: handled or refused by name, with no crash, no hang, and no error of another tree."""

from __future__ import annotations

import pytest

from tests.backend.onnx import fuzz
from trtops import errors
from trtops.backend.worker import Worker

MUTATIONS = 2000
BATCH = 50
SHARDS = 4
SECONDS_PER_BATCH = 60.0


def culprit(worker: Worker, seeds: range) -> list[str]:
    """What went wrong in a batch that took the child down: its seeds one by one."""
    wrong = []
    for seed in seeds:
        try:
            wrong += worker.run(fuzz.try_tools, seed, timeout=10)
        except errors.WorkerError as exc:
            wrong.append(f"seed {seed}: {exc}")
    return wrong


@pytest.mark.parametrize("shard", range(SHARDS))
def test_broken_models_are_handled_or_refused_by_name(shard: int) -> None:
    size = MUTATIONS // SHARDS
    wrong: list[str] = []
    with Worker() as worker:
        for start in range(shard * size, (shard + 1) * size, BATCH):
            seeds = range(start, min(start + BATCH, (shard + 1) * size))
            try:
                wrong += worker.run(fuzz.try_batch, seeds, timeout=SECONDS_PER_BATCH)
            except errors.WorkerError:
                wrong += culprit(worker, seeds)
    assert not wrong, "\n".join(wrong)


def test_mutations_are_repeatable_and_differ() -> None:
    assert fuzz.mutated(7) == fuzz.mutated(7)
    assert len({fuzz.mutated(seed) for seed in range(200)}) > 190
