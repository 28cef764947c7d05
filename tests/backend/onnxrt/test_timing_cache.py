from __future__ import annotations

from pathlib import Path

import pytest

from trtops import errors
from trtops.backend.onnxrt.timing_cache import Timing, TimingCache, TimingKey, merge


def key(candidate: str = "default", **changes) -> TimingKey:
    fields = {"model_sha256": "m", "providers": ("CPUExecutionProvider",), "threads": 0, "shapes": (("x", (1, 2)),)}
    return TimingKey(candidate=candidate, **(fields | changes))


def make_cache(device: str = "here", **medians: float) -> TimingCache:
    cache = TimingCache(device)
    for candidate, median in medians.items():
        cache.add_timing(key(candidate), Timing(median_seconds=median, cost_seconds=1.0))
        cache.add_signature(key(candidate, shapes=None), f"graph of {candidate}")
    return cache


def test_a_cache_comes_back_from_its_bytes():
    cache = TimingCache.from_bytes(make_cache(a=1.5, b=2.5).to_bytes(), "here")

    assert cache.timing(key("a")) == Timing(median_seconds=1.5, cost_seconds=1.0)
    assert cache.signature(key("b", shapes=None)) == "graph of b"
    assert cache.timing(key("c")) is None


def test_bytes_do_not_depend_on_the_order_in_which_timings_came():
    assert make_cache(a=1.0, b=2.0).to_bytes() == make_cache(b=2.0, a=1.0).to_bytes()


@pytest.mark.parametrize(
    "change", [{"model_sha256": "n"}, {"threads": 4}, {"shapes": (("x", (2, 2)),)}, {"providers": ("Other",)}]
)
def test_a_timing_counts_for_its_own_model_shapes_threads_and_providers_only(change):
    assert make_cache(default=1.0).timing(key(**change)) is None


def test_a_timing_that_is_known_stays():
    cache = make_cache(a=1.0)
    cache.add_timing(key("a"), Timing(median_seconds=9.0, cost_seconds=9.0))

    assert cache.timing(key("a")).median_seconds == 1.0


def test_a_timing_that_was_disturbed_gives_way_to_one_that_was_not():
    cache = make_cache(a=1.0)
    for median in (0.5, 0.4):
        cache.add_timing(key("a"), Timing(median_seconds=median, cost_seconds=1.0, undisturbed=True))

    assert cache.timing(key("a")).median_seconds == 0.5


def test_a_cache_of_another_device_is_refused_with_both_named():
    with pytest.raises(errors.TimingCacheError, match=r"'there'.*'here'"):
        TimingCache.from_bytes(make_cache("there").to_bytes(), "here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04junk",
        b"[]",
        b"{}",
        make_cache(a=1.0).to_bytes()[:-20],
        make_cache(a=1.0).to_bytes().replace(b'"version":1', b'"version":2'),
        make_cache(a=1.0).to_bytes().replace(b'"median_seconds":1.0', b'"median_seconds":"fast"'),
        make_cache(a=1.0).to_bytes().replace(b'"threads"', b'"thread"'),
        b"[" * 100_000,
    ],
)
def test_what_is_no_whole_timing_cache_is_refused(data):
    with pytest.raises(errors.TimingCacheError):
        TimingCache.from_bytes(data)


def test_merging_keeps_the_earlier_timing_and_adds_the_others():
    merged = TimingCache.from_bytes(merge([make_cache(a=1.0).to_bytes(), make_cache(a=2.0, b=3.0).to_bytes()]))

    assert (merged.timing(key("a")).median_seconds, merged.timing(key("b")).median_seconds) == (1.0, 3.0)


def test_caches_of_different_devices_are_not_merged():
    with pytest.raises(errors.TimingCacheError, match="'there'"):
        merge([make_cache("here").to_bytes(), make_cache("there").to_bytes()])
    with pytest.raises(errors.TimingCacheError, match="at least one"):
        merge([])


def test_a_cache_of_format_1_is_still_read():
    data = (Path(__file__).parents[2] / "data" / "onnxrt_timing_cache_1.json").read_bytes()
    cache = TimingCache.from_bytes(data, "some-processor_0123abcd_onnxruntime_1.31.1")

    timing = cache.timing(
        key("-MatMulAddFusion+GeluApproximation", model_sha256="ab" * 32, shapes=(("x", (2, 5, 16)),))
    )

    assert timing == Timing(median_seconds=0.000125, cost_seconds=0.25)
    assert cache.signature(key(model_sha256="ab" * 32, shapes=None)) == "cd" * 32
