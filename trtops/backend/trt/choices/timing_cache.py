"""Timing caches: one per device and TensorRT release, merged only with their like, and safe from concurrent writers.

A cache file of trtops begins with a line of JSON that says which device and release it is for, how many entries it
holds, what they cost, and of editable caches which ops and tactics its keys stand for; TensorRT's own bytes follow.
Files with TensorRT's bytes alone (from trtexec, or saved for other tools) are read as well; whether those fit is for
TensorRT to say.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from trtops import errors
from trtops.backend.base import TimingCacheUse
from trtops.backend.trt import library
from trtops.backend.trt.choices import autotuning
from trtops.files import open_atomically
from trtops.locks import locked
from trtops.spec import Environment

SUFFIX = ".timing.cache"
_MAGIC = b"trtops timing cache 1 "
_NOT_USED = "The timing cache will not be used"
_COMPILER = "myelinCache"
"""What stands in every message about the part of a cache that Myelin, TensorRT's compiler of fused layers, wrote."""
_REFUSALS = (
    _NOT_USED,
    "different TensorRT version",
    "different from current device",
    "Timing cache header mismatch",
    "Failed to deserialize timing cache",
)


@dataclass(frozen=True, kw_only=True)
class TimingCache:
    """A timing cache, and what is known of it.

    Attributes:
        data: TensorRT's own bytes.
        key: The device and release it is for (:attr:`trtops.spec.Environment.device_key`); None if not known.
        entries: Timings in it; None if not known.
        seconds: Build time spent on timing those entries, as far as trtops saw it.
        ops: Of an editable cache, the ops that trtops saw being timed, with all their tactics.
    """

    data: bytes = field(repr=False)
    key: str | None = None
    entries: int | None = None
    seconds: float = 0.0
    ops: tuple[autotuning.TimedOp, ...] = field(default=(), repr=False)

    def to_bytes(self) -> bytes:
        """The content of a cache file."""
        header: dict[str, Any] = {"key": self.key, "entries": self.entries, "seconds": round(self.seconds, 3)}
        if self.ops:
            header["ops"] = [op.to_dict() for op in self.ops]
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
            ops = tuple(autotuning.TimedOp.from_dict(op) for op in header.get("ops", ()))
            return cls(
                data=rest, key=header["key"], entries=header["entries"], seconds=float(header["seconds"]), ops=ops
            )
        except (ValueError, KeyError, TypeError, AttributeError, errors.FormatError) as exc:
            raise errors.TimingCacheError(
                f"A timing cache's first line is damaged ({exc}, {'cut short' if not found else 'no valid header'}). "
                "Delete the file; the next build makes a new one."
            ) from None

    def check(self, environment: Environment) -> None:
        """Refuse a cache that says it is for another device or release.

        Raises:
            TimingCacheError: If it does; a cache that does not say passes.
        """
        if self.key is not None and self.key != environment.device_key:
            raise errors.TimingCacheError(
                f"The timing cache is for {self.key}; this is {environment.device_key}. Timings of another device or "
                "release choose the wrong tactics. Use a cache of this device, or build without one."
            )


def path_for(folder: str | Path, environment: Environment) -> Path:
    """The file of this device and release in a folder of timing caches."""
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

    TensorRT 8.6 cannot read back what Myelin, its compiler of fused layers, wrote into a cache. The build then uses
    what was read, and a warning in the log says how much that is.

    Raises:
        TimingCacheError: If TensorRT refuses the cache, or would silently build without it for another reason.
    """
    line = library.line()
    with library.collect_log(here=True) as log:
        taken = line.set_timing_cache(config, cache.data)
    if not taken or (cache.data and _is_refused(log)):
        raise _refusal_error(cache, log)
    if cache.data and log.said(_COMPILER):
        entries = held(config)
        if entries == 0:
            line.set_timing_cache(config, b"")  # an empty one fills up during the build
        library.log_warning(
            f"{line.name} did not read back what its compiler (Myelin) had left in the timing cache: "
            f"{_entry_count_text(entries, cache)} are used, other layers are compiled and timed again."
        )


def held(config: Any) -> int | None:
    """How many entries are in a builder config's timing cache now; None if TensorRT does not say, or there is none."""
    return _serialize_and_count(config)[1]


def _serialize_and_count(config: Any) -> tuple[bytes | None, int | None]:
    """A builder config's timing cache as TensorRT's bytes, and how many entries are in it; None where TensorRT does not say."""
    # Only TensorRT's log has the number, in a verbose message of the thread that serializes.
    with library.collect_log(verbose=True, here=True) as log:
        data = library.line().get_timing_cache(config)
    return data, None if data is None else _count_entries(log)


def _is_refused(log: library.LogLines) -> bool:
    """Whether TensorRT said that it cannot use a cache, other than for the compiler's part of it.

    A compiler's message comes with a general one that the cache will not be used; that one alone, or any other complaint, is
    about the whole cache.
    """
    complaints = [
        message
        for severity, message in log.lines
        if severity in ("INTERNAL_ERROR", "ERROR") or any(refusal in message for refusal in _REFUSALS)
    ]
    if not any(_COMPILER in message for message in complaints):
        return bool(complaints)
    return any(_COMPILER not in message and _NOT_USED not in message for message in complaints)


def _refusal_error(cache: TimingCache, log: library.LogLines) -> errors.TimingCacheError:
    return errors.TimingCacheError(
        f"{library.line().name} refuses the timing cache ({len(cache.data)} bytes): it is damaged, or was made by "
        f"another device or release. Build without it. {log.tail()}"
    )


def _entry_count_text(entries: int | None, cache: TimingCache) -> str:
    found = "an unknown number" if entries is None else str(entries)
    return f"{found} of {cache.entries} entries" if cache.entries is not None else f"{found} entries"


def collect(
    config: Any,
    environment: Environment | None,
    before: TimingCache | None,
    seconds: float,
    ops: tuple[autotuning.TimedOp, ...] = (),
) -> TimingCache | None:
    """The timing cache after a build, with what the build added.

    Args:
        config: The builder config that was built with.
        environment: Where; None leaves the key out.
        before: The cache that the build began with; None if TensorRT read nothing of it.
        seconds: Wall time of the build.
        ops: The ops that are known of the cache's keys.
    """
    data, entries = _serialize_and_count(config)
    if data is None:
        return None
    return TimingCache(
        data=data,
        key=None if environment is None else environment.device_key,
        entries=entries,
        seconds=seconds + (before.seconds if before is not None else 0.0),
        ops=ops,
    )


def _count_entries(log: library.LogLines) -> int | None:
    """Entries of the cache that was serialized last, according to TensorRT's log; None if it says nothing of them."""
    for _, message in reversed(log.lines):
        if match := re.search(r"Serialized (\d+) timing cache entries", message):
            return int(match[1])
    return None


def use(
    before: TimingCache | None, after: TimingCache | None, seconds: float, read: int | None = None
) -> TimingCacheUse:
    """How much a cache helped one build.

    TensorRT does not say which entries it used. All that it read are counted as hits: that is exact if the build added none
    and is of the model that the cache was made with, and an upper bound otherwise. Seconds saved are what the cache's
    timings cost when they were made, less this build.

    Args:
        before: The cache that the build was given.
        after: The cache after the build.
        seconds: Wall time of the build.
        read: How many entries of ``before`` TensorRT read (:func:`held` before the build); all of them, unless given.
    """
    if before is None or not before.data or after is None:
        return TimingCacheUse(misses=(after.entries or 0) if after is not None else 0)
    hits = (before.entries or 0) if read is None else read
    misses = max((after.entries or 0) - hits, 0)
    return TimingCacheUse(hits=hits, misses=misses, saved_seconds=max(before.seconds - seconds, 0.0) if hits else 0.0)


def merge(config: Any, cache: TimingCache, other: TimingCache) -> TimingCache:
    """Add the entries of another cache to those that a builder config has.

    TensorRT 8.6 may be unable to add a cache that holds compiled code (:func:`apply`). Then the one with more entries is
    returned alone, the config's own if they have as many, and a warning in the log says what was left out.

    Args:
        config: A builder config of that device and release.
        cache: What is in the config's timing cache.
        other: What to add; of an entry in both, that of ``cache`` is kept.

    Returns:
        Both together; ``seconds`` is the larger of the two, not their sum, since their entries may be the same.

    Raises:
        TimingCacheError: If their keys differ, or TensorRT refuses the other one for another reason.
    """
    keys = {key for key in (cache.key, other.key) if key is not None}
    if len(keys) > 1:
        raise errors.TimingCacheError(
            f"Timing caches of different devices or releases cannot be merged: {', '.join(sorted(keys))}."
        )
    with library.collect_log(here=True) as log:
        created = config.create_timing_cache(other.data)
        if _is_refused(log):
            raise _refusal_error(other, log)
        # Into the config's own cache: going through bytes would lose, on 8.6, what the compiler left there.
        merged = created is not None and config.get_timing_cache().combine(created, False)
    if _is_refused(log) or not (merged or log.said(_COMPILER)):
        raise _refusal_error(other, log)
    data, entries = _serialize_and_count(config)
    assert data is not None
    if not merged:
        return _keep_larger(replace(cache, data=data, entries=entries), other, created)
    if log.said(_COMPILER):
        library.log_warning(
            f"{library.line().name} did not read back what its compiler (Myelin) had left in the timing cache to merge "
            f"with; the two have {'an unknown number of' if entries is None else entries} entries now."
        )
    ops = autotuning.merged(other.ops, cache.ops)
    return replace(cache, data=data, entries=entries, seconds=max(cache.seconds, other.seconds), ops=ops)


def merge_all(caches: Sequence[bytes]) -> bytes:
    """The content of a cache file with the entries of several; see :func:`merge`.

    Raises:
        BackendUnavailableError: If there is no usable GPU.
        TimingCacheError: If one is damaged, or they are of different devices or releases.
    """
    builder = library.make_builder()
    config = builder.create_builder_config()
    whole = TimingCache.from_bytes(caches[0])
    apply(config, whole)
    for data in caches[1:]:
        whole = merge(config, whole, TimingCache.from_bytes(data))
    return whole.to_bytes()


def _keep_larger(cache: TimingCache, other: TimingCache, created: Any) -> TimingCache:
    """Of two caches that TensorRT does not merge, the one with more entries; a warning says what is lost of the other.

    Args:
        cache: The one in the config, with the entries that TensorRT had added before it gave up.
        other: The one to be added.
        created: What TensorRT made of ``other``; None if it could read none of its entries.
    """
    readable: int | None = 0
    if created is not None:
        with library.collect_log(verbose=True, here=True) as log:
            created.serialize()
        readable = _count_entries(log)
    earlier_stays = (readable or 0) > (cache.entries or 0)
    kept, lost = ("earlier", "new") if earlier_stays else ("new", "earlier")
    count = cache.entries if earlier_stays else readable
    library.log_warning(
        f"{library.line().name} could not merge two timing caches: it does not read back what its compiler (Myelin) "
        f"left in the earlier one. The {kept} one has more entries, or as many, and is kept; of the {lost} one's "
        f"{'unknown number of' if count is None else count} entries only those are kept that it has too. To lose "
        "none, give each model a file of its own."
    )
    if not earlier_stays:
        return cache
    return replace(cache, data=other.data, entries=readable, seconds=other.seconds, ops=other.ops)


def save(config: Any, cache: TimingCache, path: str | os.PathLike[str], *, raw: bool) -> TimingCache:
    """Write a timing cache, merged with what the file holds already, under a lock against other writers.

    Args:
        config: The builder config that was built with.
        cache: Its timing cache (:func:`collect`).
        path: The file.
        raw: Whether to write TensorRT's bytes alone, for other tools, rather than trtops' first line before them.

    Returns:
        What was written; :func:`merge` says what may be left out.

    Raises:
        TimingCacheError: If the file's cache is damaged, or of another device or release; nothing is written then.
        OSError: If the file cannot be written.
    """
    path = Path(path)
    with locked(path.with_name(path.name + ".lock")):
        if path.exists() and path.stat().st_size:
            cache = merge(config, cache, read(path))
        with open_atomically(path) as file:
            file.write(cache.data if raw else cache.to_bytes())
    return cache
