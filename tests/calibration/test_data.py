"""Feeds cut into batches and digested on the way."""

from __future__ import annotations

import numpy as np
import pytest

from trtops import errors
from trtops.calibration.data import FeedDigest, batches, rebatch, samples_in


def test_feeds_are_cut_and_joined_without_losing_or_reordering_samples() -> None:
    rows = np.arange(23)
    feeds = [
        {"x": rows[:10], "y": -rows[:10]},
        {"x": rows[10:11], "y": -rows[10:11]},
        {"x": rows[11:], "y": -rows[11:]},
    ]

    batches = list(rebatch(feeds, 4))

    assert [samples_in(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]
    assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), rows)
    assert all(np.array_equal(batch["x"], -batch["y"]) for batch in batches)


def test_no_more_is_read_than_the_limit_asks_for() -> None:
    read = []

    def load():
        for number in range(100):
            read.append(number)
            yield {"x": np.zeros((5, 2))}

    assert sum(samples_in(batch) for batch in rebatch(load(), 8, limit=12)) == 12
    assert len(read) == 3


def test_feeds_whose_arrays_disagree_cannot_be_cut() -> None:
    with pytest.raises(errors.InputError, match=r"'y' \(3,\)"):
        list(rebatch([{"x": np.zeros(2), "y": np.zeros(3)}], 1))
    with pytest.raises(errors.InputError, match="first axis"):
        list(rebatch([{"x": np.zeros(())}], 1))


def test_the_digest_sees_values_order_dtype_and_shape_but_not_the_order_of_names() -> None:
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


def test_without_a_batch_size_feeds_stay_whole_until_there_are_enough_samples() -> None:
    feeds = [{"x": np.zeros((5, 2))}] * 9

    assert [samples_in(feed) for feed in batches(feeds, samples=11)] == [5, 5, 5]
    assert [samples_in(feed) for feed in batches(feeds, 4, samples=11)] == [4, 4, 3]
    assert sum(1 for _ in batches(feeds)) == 9
    with pytest.raises(errors.ConfigError, match="0 samples"):
        list(batches(feeds, samples=0))
