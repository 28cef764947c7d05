"""Cuts feeds into batches and digests them."""

import numpy as np

from trtops.calibration.data import FeedDigest, batches, samples_in


def test_batches_keep_all_samples_in_order() -> None:
    rows = np.arange(23)
    feeds = [{"x": rows[start:end], "y": -rows[start:end]} for start, end in ((0, 10), (10, 11), (11, 23))]
    cut = list(batches(feeds, 4))
    assert [samples_in(batch) for batch in cut] == [4, 4, 4, 4, 4, 3]
    assert np.array_equal(np.concatenate([batch["x"] for batch in cut]), rows)
    assert all(np.array_equal(batch["x"], -batch["y"]) for batch in cut)


def test_only_needed_feeds_are_read() -> None:
    feeds = iter([{"x": np.zeros((5, 2))}] * 100)
    assert sum(samples_in(batch) for batch in batches(feeds, 8, samples=12)) == 12
    assert len(list(feeds)) == 97


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
