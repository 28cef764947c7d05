"""Calibration data on its way to a calibrator: hashed and cut into batches, one feed at a time in memory."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.spec import IN_MEMORY
from trtops.torch_tensors import in_host_memory

DataSource: TypeAlias = (
    str
    | os.PathLike[str]
    | Mapping[str, Any]
    | Iterable[Mapping[str, Any]]
    | Callable[[], Mapping[str, Any] | Iterable[Mapping[str, Any]]]
)
"""A path, the arrays of one inference by input name, an iterable of these, or a function that returns arrays."""


class FeedDigest:
    """SHA-256 over names, dtypes, shapes and contents of feeds, in order."""

    def __init__(self) -> None:
        """Start without feeds."""
        self._sha = hashlib.sha256()

    def add(self, feed: Mapping[str, Any]) -> None:
        """Add one feed; the order of its names is ignored."""
        for name in sorted(feed):
            array = np.ascontiguousarray(feed[name])
            self._sha.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            if array.dtype == object:  # strings
                self._sha.update(json.dumps([str(text) for text in array.reshape(-1)]).encode())
            else:
                self._sha.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        self._sha.update(b"\0\0")

    def hexdigest(self) -> str:
        """Return the digest of all feeds added so far, as 64 hexadecimal digits."""
        return self._sha.hexdigest()


class ArraysInMemory(str):
    """Data from memory in the place of a path: its text is for records."""

    feeds: Iterable[Mapping[str, Any]]

    @classmethod
    def of(cls, feeds: Iterable[Mapping[str, Any]], name: str) -> "ArraysInMemory":
        """Return the data source of feeds; ``name`` is their digest or kind."""
        source = cls(f"{IN_MEMORY} {name}")
        source.feeds = feeds
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        """Child processes open a path themselves."""
        return (_in_memory, (str(self), self.feeds)) if self.startswith(IN_MEMORY) else (str, (str(self),))


def _in_memory(text: str, feeds: Iterable[Mapping[str, Any]]) -> ArraysInMemory:
    source = ArraysInMemory(text)
    source.feeds = feeds
    return source


def data_source(value: DataSource) -> str:
    """Return a data source as a path, or as :class:`ArraysInMemory`; ConfigError for other objects.

    A function is called once. Iterators are read into memory, and named by their digest as lists are. Other iterables,
    such as a DataLoader of torch, are read where they are used, and again at each use; runs record the digest of the
    feeds that were read.
    """
    if isinstance(value, (str, os.PathLike)):
        return value if isinstance(value, str) else os.fspath(value)
    arrays = value() if callable(value) else value
    if isinstance(arrays, Mapping):
        feeds: Sequence[Mapping[str, Any]] = [arrays]
    elif isinstance(arrays, Iterable) and not isinstance(arrays, (str, bytes, np.ndarray)):
        if not isinstance(arrays, (Sequence, Iterator)):
            return ArraysInMemory.of(arrays, f"of a {type(arrays).__name__}")
        feeds = list(arrays) if isinstance(arrays, Iterator) else arrays
    else:
        raise errors.ConfigError(
            f"found {type(arrays).__name__}; expected a path, arrays by input name such as {{'x': array}}, an iterable "
            "of these with one for each inference, or a function that returns one of them"
        )
    digest, array_feeds = FeedDigest(), []
    for number, feed in enumerate(feeds, 1):
        if not isinstance(feed, Mapping):
            raise errors.ConfigError(
                f"item {number} is a {type(feed).__name__}; expected arrays by input name, such as {{'x': array}}"
            )
        # Child processes read arrays, as torch sends its tensors through files that only it opens.
        array_feeds.append(in_host_memory(feed))
        digest.add(array_feeds[-1])
    return ArraysInMemory.of(array_feeds, digest.hexdigest()[:12])


def is_same_source(first: str | None, second: str | None) -> bool:
    """Return True for one data source; two sources in memory may have equal texts."""
    return first is second or (first == second and type(first) is str)


def samples_in(feed: Mapping[str, Any]) -> int:
    """Return the number of samples in a feed: the size of its first array's first axis; 1 for a scalar."""
    shape = next((np.shape(array) for array in feed.values()), ())
    return int(shape[0]) if shape else 1


def batches(
    feeds: Iterable[Mapping[str, Any]], size: int | None = None, samples: int | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield feeds for a calibration, cut to ``size`` samples per batch, or as they are without a size.

    At most ``samples`` samples are used; without a size the last feed is used completely.
    """
    if samples is not None and samples < 1:
        raise errors.ConfigError(f"The calibration uses {samples} samples; expected 1 or more.")
    if size is not None and size < 1:
        raise errors.ConfigError(f"The calibration batch is {size}; expected 1 sample or more.")
    waiting: list[Mapping[str, Any]] = []  # parts of the next batch
    count = taken = 0
    for feed in feeds:
        if size is None:
            yield feed
            taken += samples_in(feed)
        else:
            total = _first_axis(feed) if samples is None else min(_first_axis(feed), samples - taken)
            taken += total
            start = 0
            while start < total:
                end = min(start + size - count, total)
                waiting.append({name: array[start:end] for name, array in feed.items()})
                count += end - start
                start = end
                if count == size:
                    yield _joined(waiting)
                    waiting, count = [], 0
        if samples is not None and taken >= samples:
            break
    if waiting:
        yield _joined(waiting)


def _first_axis(feed: Mapping[str, Any]) -> int:
    sizes = {np.shape(array)[:1] for array in feed.values()}
    if len(sizes) != 1 or () in sizes:
        shapes = ", ".join(f"{name!r} {np.shape(array)}" for name, array in feed.items())
        raise errors.InputError(
            f"A feed with the shapes {shapes or '(none)'} cannot be cut into batches; expected the same first axis "
            "everywhere. Omit the batch size to use feeds as they are."
        )
    return int(sizes.pop()[0])


def _joined(parts: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
