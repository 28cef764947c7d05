"""Timing caches: kept per device and TensorRT release, merged only with their like, never lost to a second writer.

A cache file of trtops begins with a line of JSON that says which device and release it is for, how many entries it
holds and what they cost; TensorRT's own bytes follow. TensorRT's bytes alone (from trtexec, or saved for other tools)
are read as well; whether those fit is left to TensorRT to find out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from trtops import errors
from trtops.backend.base import TimingCacheUse
from trtops.backend.common import open_atomically
from trtops.backend.trt import library
from trtops.spec import Environment

SUFFIX = ".timing.cache"
_MAGIC = b"trtops timing cache 1 "
_REFUSALS = (
    "The timing cache will not be used",
    "different TensorRT version",
    "different from current device",
    "Timing cache header mismatch",
    "Failed to deserialize timing cache",
)


@dataclass(frozen=True, kw_only=True)
class TimingCache:
    """A timing cache with what is known of it.

    Attributes:
        data: TensorRT's own bytes.
        key: The device and release it is for (:attr:`trtops.spec.Environment.device_key`); None if not known.
        entries: Timings in it; None if not known.
        seconds: Build time spent on timing those entries, as far as trtops saw it.
    """

    data: bytes = field(repr=False)
    key: str | None = None
    entries: int | None = None
    seconds: float = 0.0

    def to_bytes(self) -> bytes:
        """The cache as a file holds it."""
        header = {"key": self.key, "entries": self.entries, "seconds": round(self.seconds, 3)}
        return _MAGIC + json.dumps(header).encode() + b"\n" + self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> TimingCache:
        """Read what :meth:`to_bytes` wrote, or TensorRT's own bytes.

        Raises:
            TimingCacheError: If the first line is damaged.
        """
        if not data.startswith(_MAGIC):
            return cls(data=data)
        line, found, rest = data[len(_MAGIC) :].partition(b"\n")
        try:
            header = json.loads(line)
            return cls(data=rest, key=header["key"], entries=header["entries"], seconds=float(header["seconds"]))
        except (ValueError, KeyError, TypeError) as exc:
            raise errors.TimingCacheError(
                f"A timing cache's first line is damaged ({exc}, {'cut short' if not found else 'no valid header'}). "
                "Delete the file; the next build makes a new one."
            ) from None

    def check(self, environment: Environment) -> None:
        """Go on only if the cache is for this device and release, or does not say.

        Raises:
            TimingCacheError: If it is for another.
        """
        if self.key is not None and self.key != environment.device_key:
            raise errors.TimingCacheError(
                f"The timing cache is for {self.key}; this is {environment.device_key}. Timings of another device or "
                "release choose the wrong tactics. Use a cache of this device, or build without one."
            )


def path_for(folder: str | Path, environment: Environment) -> Path:
    """Where a folder of timing caches keeps the one of this device and release."""
    return Path(folder) / f"{environment.device_key}{SUFFIX}"


def read(source: str | os.PathLike[str] | IO[bytes] | bytes) -> TimingCache:
    """Read a timing cache from a path, an open file, or bytes; a file that does not exist is an empty one.

    A key in the file's name, as :func:`path_for` writes it, counts where the content has none.

    Raises:
        TimingCacheError: If it is damaged, or name and content disagree.
    """
    if isinstance(source, bytes):
        return TimingCache.from_bytes(source)
    if not isinstance(source, (str, os.PathLike)):
        return TimingCache.from_bytes(source.read())
    path = Path(source)
    if not path.exists():
        return TimingCache(data=b"", entries=0)
    cache = TimingCache.from_bytes(path.read_bytes())
    named = path.name.removesuffix(SUFFIX) if path.name.endswith(SUFFIX) and "_tensorrt" in path.name else None
    if named is not None and cache.key not in (None, named):
        raise errors.TimingCacheError(
            f"{path} is named for {named}, but holds timings of {cache.key}. Give the file its own name back."
        )
    return cache if named is None else replace(cache, key=named)


def apply(config: Any, cache: TimingCache) -> None:
    """Give a builder config a timing cache.

    Raises:
        TimingCacheError: If TensorRT refuses it, or would quietly build without it.
    """
    with library.collect_log() as log:
        taken = library.line().set_timing_cache(config, cache.data)
    if not taken or (cache.data and any(log.said(refusal) for refusal in _REFUSALS)):
        raise errors.TimingCacheError(
            f"{library.line().name} refuses the timing cache ({len(cache.data)} bytes): it is damaged, or was made by "
            f"another device or release. Build without it. {log.tail()}"
        )


def collect(
    config: Any, environment: Environment | None, before: TimingCache | None, seconds: float
) -> TimingCache | None:
    """The timing cache after a build, with what the build added.

    Args:
        config: The builder config that was built with.
        environment: Where; None leaves the key out.
        before: The cache that the build began with, if any.
        seconds: Wall time of the build.
    """
    with library.collect_log(verbose=True) as log:
        data = library.line().get_timing_cache(config)
    if data is None:
        return None
    return TimingCache(
        data=data,
        key=None if environment is None else environment.device_key,
        entries=_count(log),
        seconds=seconds + (before.seconds if before is not None else 0.0),
    )


def _count(log: library.LogLines) -> int | None:
    """Entries of the cache that was serialized last, as TensorRT says it in its log."""
    for _, message in reversed(log.lines):
        if match := re.search(r"Serialized (\d+) timing cache entries", message):
            return int(match[1])
    return None


def use(before: TimingCache | None, after: TimingCache | None, seconds: float) -> TimingCacheUse:
    """What a cache was good for in one build.

    Hits are its entries, if the build added none, since a build asks for each of its timings; else they are at most
    those, and counted as such. Seconds saved are what the cache's timings cost when they were made, less this build.
    """
    if before is None or not before.data or after is None:
        return TimingCacheUse(misses=(after.entries or 0) if after is not None else 0)
    hits = before.entries or 0
    misses = max((after.entries or 0) - hits, 0)
    return TimingCacheUse(hits=hits, misses=misses, saved_seconds=max(before.seconds - seconds, 0.0) if hits else 0.0)


def merge(config: Any, caches: list[TimingCache]) -> bytes:
    """Merge caches of one key through TensorRT.

    Args:
        config: A builder config of that device and release; its own timing cache is replaced.
        caches: The caches; on an entry in several the first one counts.

    Returns:
        TensorRT's bytes of the merged cache.

    Raises:
        TimingCacheError: If their keys differ, or TensorRT refuses one of them.
    """
    keys = {cache.key for cache in caches if cache.key is not None}
    if len(keys) > 1:
        raise errors.TimingCacheError(
            f"Timing caches of different devices or releases cannot be merged: {', '.join(sorted(keys))}."
        )
    apply(config, caches[0])
    merged = config.get_timing_cache()
    for cache in caches[1:]:
        timing_cache = config.create_timing_cache(cache.data)
        if not merged.combine(timing_cache, False):
            raise errors.TimingCacheError(
                "TensorRT refuses to merge two timing caches; they differ in device or release."
            )
    return bytes(merged.serialize())


def save(config: Any, cache: TimingCache, path: str | os.PathLike[str], *, raw: bool) -> TimingCache:
    """Write a timing cache, merged with what the file holds already, under a lock against other writers.

    Args:
        config: The builder config that was built with; merging uses it.
        cache: The cache.
        path: The file.
        raw: Whether to write TensorRT's bytes alone, for other tools, or trtops' first line before them.

    Returns:
        What was written.

    Raises:
        TimingCacheError: If the file's cache is of another device or release; nothing is written then.
    """
    path = Path(path)
    with _lock(path):
        if path.exists() and path.stat().st_size:
            old = read(path)
            data = merge(config, [cache, old])
            cache = replace(cache, data=data, entries=None, seconds=max(cache.seconds, old.seconds))
        with open_atomically(path) as file:
            file.write(cache.data if raw else cache.to_bytes())
    return cache


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Keep other writers of a file out; the lock is the kernel's and ends with the process."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
