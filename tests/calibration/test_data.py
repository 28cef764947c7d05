"""Cuts feeds into batches and digests them."""

from __future__ import annotations

import numpy as np

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


def test_digest_covers_content_but_not_name_order() -> None:
    a, b = np.arange(4.0), np.arange(4.0) + 1
    found = []
    for feeds in (
        [{"a": a, "b": b}],
        [{"b": b, "a": a}],
        [{"a": b, "b": a}],
        [{"a": a.astype("f4"), "b": b}],
        [{"a": a}, {"b": b}],
    ):
        digest = FeedDigest()
        for feed in feeds:
            digest.add(feed)
        found.append(digest.hexdigest())

    assert found[0] == found[1] and len(set(found)) == 4
