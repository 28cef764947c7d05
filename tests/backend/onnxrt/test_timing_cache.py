import pytest

from trtops import errors
from trtops.backend.onnxrt.timing_cache import Timing, TimingCache, timing_key


def key(candidate: str = "default", **changes) -> str:
    given = {"model_sha256": "m", "providers": ("CPUExecutionProvider",), "threads": 0, "shapes": {"x": (1, 2)}}
    return timing_key(candidate_id=candidate, **(given | changes))


def make_cache(device: str = "here", **medians: float) -> TimingCache:
    cache = TimingCache(device)
    for candidate, median in medians.items():
        cache.timings[key(candidate)] = Timing(median_seconds=median, cost_seconds=1.0)
        cache.graphs[key(candidate, shapes=None)] = f"graph of {candidate}"
        cache.skipped.add(key(f"-{candidate}", shapes=None))
    return cache


def test_cache_survives_serialization() -> None:
    cache = make_cache(a=1.5, b=2.5)

    assert TimingCache.from_bytes(cache.to_bytes(), "here") == cache
    assert cache.to_bytes() == make_cache(b=2.5, a=1.5).to_bytes()


def test_each_condition_changes_the_key() -> None:
    changes = [
        {"model_sha256": "n"},
        {"candidate": "other"},
        {"threads": 4},
        {"shapes": {"x": (2, 2)}},
        {"shapes": None},
        {"providers": ("Other",)},
    ]
    assert len({key(), *(key(**change) for change in changes)}) == 7


def test_damaged_or_foreign_caches_are_refused() -> None:
    good = make_cache(a=1.0).to_bytes()
    for data in (
        *(b"", b"\x80\x04junk", b"[]", b"{}", b"[" * 100_000, good[:-20]),
        good.replace(b'"version":1', b'"version":2'),
        good.replace(b'"median_seconds":1.0', b'"median_seconds":"fast"'),
        good.replace(b'"graphs"', b'"graph"'),
    ):
        with pytest.raises(errors.TimingCacheError):
            TimingCache.from_bytes(data)
    with pytest.raises(errors.TimingCacheError, match=r"'there'.*'here'"):
        TimingCache.from_bytes(make_cache("there").to_bytes(), "here")
