"""Cuts feeds into batches and digests them."""

from __future__ import annotations

import numpy as np
import pytest

from trtops import errors
from trtops.calibration.data import FeedDigest, batches, samples_in


def test_batches_keep_all_samples_in_order() -> None:
    rows = np.arange(23)
    feeds = [
        {"x": rows[:10], "y": -rows[:10]},
        {"x": rows[10:11], "y": -rows[10:11]},
        {"x": rows[11:], "y": -rows[11:]},
    ]

    cut = list(batches(feeds, 4))

    assert [samples_in(batch) for batch in cut] == [4, 4, 4, 4, 4, 3]
    assert np.array_equal(np.concatenate([batch["x"] for batch in cut]), rows)
    assert all(np.array_equal(batch["x"], -batch["y"]) for batch in cut)


def test_only_needed_feeds_are_read() -> None:
    read = []

    def load():
        for number in range(100):
            read.append(number)
            yield {"x": np.zeros((5, 2))}

    assert sum(samples_in(batch) for batch in batches(load(), 8, samples=12)) == 12
    assert len(read) == 3


def test_feeds_without_common_axis_are_refused() -> None:
    with pytest.raises(errors.InputError, match=r"'y' \(3,\)"):
        list(batches([{"x": np.zeros(2), "y": np.zeros(3)}], 1))
    with pytest.raises(errors.InputError, match="first axis"):
        list(batches([{"x": np.zeros(())}], 1))


def test_digest_covers_content_but_not_name_order() -> None:
    def digest(*feeds):
        result = FeedDigest()
        for feed in feeds:
            result.add(feed)
        return result.hexdigest()

    a, b = np.arange(4.0), np.arange(4.0) + 1
    assert digest({"a": a, "b": b}) == digest({"b": b, "a": a})
    others = [
        digest({"a": b, "b": a}),
        digest({"a": a.reshape(2, 2), "b": b}),
        digest({"a": a.astype("f4"), "b": b}),
        digest({"a": a}, {"b": b}),
    ]
    assert len({*others, digest({"a": a, "b": b})}) == 5


def test_without_batch_size_feeds_stay_whole() -> None:
    feeds = [{"x": np.zeros((5, 2))}] * 9

    assert [samples_in(feed) for feed in batches(feeds, samples=11)] == [5, 5, 5]
    assert [samples_in(feed) for feed in batches(feeds, 4, samples=11)] == [4, 4, 3]
    assert sum(1 for _ in batches(feeds)) == 9
    with pytest.raises(errors.ConfigError, match="0 samples"):
        list(batches(feeds, samples=0))
    with pytest.raises(errors.ConfigError, match="batch is 0"):
        list(batches(feeds, 0))
