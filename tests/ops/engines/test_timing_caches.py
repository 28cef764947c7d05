"""Timing caches from the tracking store: of a run, of the accepted engine, and the one that a device's builds share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnxrt.timing_cache import TimingCache
from trtops.ops import promote
from trtops.ops.engines import timing_caches
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.result import op_run
from trtops.tracking import builds, schema
from trtops.tracking.base import StoredRun
from trtops.tracking.memory import MemoryTracker

CONFIG = ConvertConfig(check=CheckConfig(latency_runs=3, warm_up=1))


@pytest.fixture
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture
def conv_net(tmp_path: Path) -> Path:
    return models.conv_net().write(tmp_path, "conv")


def build_with(cache: str, model: Path, tracker: MemoryTracker) -> StoredRun:
    return tracker.load(convert(model, replace(CONFIG, timing_cache=cache, rebuild=True), tracker=tracker).run_id)


def timings_in(run: StoredRun) -> int:
    return len(TimingCache.from_bytes(run.read_bytes(schema.Artifact.TIMING_CACHE)))


def test_run_cache_avoids_timing(tracker: MemoryTracker, conv_net: Path) -> None:
    first = convert(conv_net, CONFIG, tracker=tracker).run_id

    again = build_with(f"run:{first[:8]}", conv_net, tracker)

    assert again.info.metrics[schema.Metric.TIMING_CACHE_HITS] > 0
    assert again.info.metrics[schema.Metric.TIMING_CACHE_MISSES] == 0


def test_unsuitable_timing_caches_are_refused(tracker: MemoryTracker, conv_net: Path) -> None:
    run = tracker.start("notes", "no build", kind="compare")
    environment = engine_backend("onnxruntime").environment()
    run.log_json(environment, schema.Artifact.ENVIRONMENT)
    run.finish("good")
    with pytest.raises(errors.ConfigError, match="left no timing cache"):
        build_with(f"run:{run.id}", conv_net, tracker)

    built = convert(conv_net, CONFIG, tracker=tracker).run_id
    elsewhere = replace(environment, device="Another CPU")
    source = timing_caches.TimingCacheSource(f"run:{built}", tracker, elsewhere)
    with pytest.raises(errors.TimingCacheError) as caught:
        source.read("0" * 64)
    assert environment.device_key in str(caught.value)
    assert elsewhere.device_key in str(caught.value)


def test_accepted_timing_cache_is_used(tracker: MemoryTracker, conv_net: Path) -> None:
    first = build_with("accepted", conv_net, tracker)
    assert first.info.metrics[schema.Metric.TIMING_CACHE_HITS] == 0

    promote(first.info.id, tracker=tracker)

    assert build_with("accepted", conv_net, tracker).info.metrics[schema.Metric.TIMING_CACHE_MISSES] == 0


def test_shared_cache_grows_with_builds(tracker: MemoryTracker, conv_net: Path, tmp_path: Path) -> None:
    other = models.transformer().write(tmp_path, "two")

    first = build_with("shared", conv_net, tracker)
    second = build_with("shared", other, tracker)
    third = build_with("shared", conv_net, tracker)

    assert first.info.metrics[schema.Metric.TIMING_CACHE_MISSES] > 0
    assert second.info.metrics[schema.Metric.TIMING_CACHE_MISSES] > 0
    assert third.info.metrics[schema.Metric.TIMING_CACHE_MISSES] == 0
    chain = tracker.find(timing_caches.EXPERIMENT)
    assert [info.tags[schema.Tag.FOLLOWS] for info in chain] == [chain[1].id, ""]
    assert [info.tags[schema.Tag.EVIDENCE] for info in chain] == [second.info.id, first.info.id]
    assert timings_in(tracker.load(chain[0].id)) == timings_in(tracker.load(chain[1].id)) + int(
        second.info.metrics[schema.Metric.TIMING_CACHE_MISSES]
    )


def test_concurrent_shared_caches_are_merged(tracker: MemoryTracker, conv_net: Path, tmp_path: Path) -> None:
    paths = [conv_net, models.transformer().write(tmp_path, "two"), models.overflowing().write(tmp_path, "three")]
    runs = [tracker.load(convert(path, CONFIG, tracker=tracker).run_id) for path in paths]
    environment = engine_backend("onnxruntime").environment()
    shared = timing_caches.TimingCacheSource("shared", tracker, environment)
    for run in runs[:2]:  # as two processes do that both found no shared cache yet
        with op_run(
            tracker, timing_caches.EXPERIMENT, "first", kind="timing_cache", tags=builds.environment_tags(environment)
        ) as kept:
            kept.log_json(environment, schema.Artifact.ENVIRONMENT)
            kept.log_bytes(run.read_bytes(schema.Artifact.TIMING_CACHE), schema.Artifact.TIMING_CACHE)

    shared.share(builds.load_build(runs[2]), engine_backend("onnxruntime"), runs[2].info.id)

    newest = tracker.find(timing_caches.EXPERIMENT)[0]
    assert len(newest.tags[schema.Tag.FOLLOWS].split(",")) == 2
    assert timings_in(tracker.load(newest.id)) == sum(timings_in(run) for run in runs)
