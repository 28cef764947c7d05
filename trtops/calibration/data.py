"""Calibration data on its way to a calibrator: hashed, cut into batches, and never all in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trtops import errors


class FeedDigest:
    """SHA-256 over names, dtypes, shapes and contents of feeds, in order."""

    def __init__(self) -> None:
        """Start with no feeds."""
        self._sha = hashlib.sha256()

    def add(self, feed: Mapping[str, Any]) -> None:
        """Add one feed; the order of its names does not matter."""
        for name in sorted(feed):
            array = np.ascontiguousarray(feed[name])
            self._sha.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            if array.dtype == object:  # strings
                self._sha.update(json.dumps([str(text) for text in array.reshape(-1)]).encode())
            else:
                self._sha.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        self._sha.update(b"\0\0")

    def hexdigest(self) -> str:
        """The digest of all feeds added so far, as 64 hexadecimal digits."""
        return self._sha.hexdigest()


def samples_in(feed: Mapping[str, Any]) -> int:
    """Samples in a feed: the size of its first array's first axis; 1 for a scalar."""
    shape = next((np.shape(array) for array in feed.values()), ())
    return int(shape[0]) if shape else 1


def batches(
    feeds: Iterable[Mapping[str, Any]], size: int | None = None, samples: int | None = None
) -> Iterator[Mapping[str, Any]]:
    """Feeds for a calibration: cut to a batch size if one is given, and no more of them than needed.

    Args:
        feeds: Arrays by input name.
        size: Samples per batch; None leaves feeds as they are.
        samples: How many samples to use; None uses all. Without ``size`` the last feed is used whole.

    Raises:
        ConfigError: If a number is below 1.
        InputError: If feeds cannot be cut (:func:`rebatch`).
    """
    if samples is not None and samples < 1:
        raise errors.ConfigError(f"Calibration is to take {samples} samples; expected 1 or more.")
    if size is not None:
        yield from rebatch(feeds, size, limit=samples)
        return
    taken = 0
    for feed in feeds:
        yield feed
        taken += samples_in(feed)
        if samples is not None and taken >= samples:
            return


def rebatch(feeds: Iterable[Mapping[str, Any]], size: int, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Cut and join feeds along the first axis, so that each has ``size`` samples; only the last may have fewer.

    Args:
        feeds: Arrays by input name; those of a feed have first axes of the same size.
        size: Samples per resulting feed.
        limit: Samples to use in all; None uses every one.

    Yields:
        Feeds; arrays that did not have to be joined are views of the given ones.

    Raises:
        ConfigError: If ``size`` is below 1.
        InputError: If a feed's arrays have no first axis, or differ in its size.
    """
    if size < 1:
        raise errors.ConfigError(f"The calibration batch is {size}; expected 1 sample or more.")
    waiting: list[dict[str, Any]] = []
    count = 0
    for feed in feeds:
        total = _first_axis(feed)
        if limit is not None:
            total = min(total, limit)
            limit -= total
        start = 0
        while start < total:
            end = min(start + size - count, total)
            waiting.append({name: array[start:end] for name, array in feed.items()})
            count += end - start
            start = end
            if count == size:
                yield _join_feeds(waiting)
                waiting, count = [], 0
        if limit == 0:
            break
    if waiting:
        yield _join_feeds(waiting)


def _first_axis(feed: Mapping[str, Any]) -> int:
    sizes = {name: np.shape(array)[:1] for name, array in feed.items()}
    if len(set(sizes.values())) != 1 or () in sizes.values():
        shapes = ", ".join(f"{name!r} {np.shape(array)}" for name, array in feed.items())
        raise errors.InputError(
            f"A feed with shapes {shapes or 'of nothing'} cannot be cut into batches; expected the same first axis "
            "everywhere. Leave the batch size out to use feeds as they are."
        )
    return int(next(iter(sizes.values()))[0])


def _join_feeds(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
