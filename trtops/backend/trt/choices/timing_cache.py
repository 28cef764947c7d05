"""Timing caches: one per device and TensorRT release, safe with concurrent writers.

Files with only TensorRT's bytes (from trtexec or other tools) are read as well; TensorRT decides whether they fit.
"""

import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from trtops import errors
from trtops.backend.base import TimingCacheUse
from trtops.backend.trt import library
from trtops.backend.trt.choices import autotuning
from trtops.spec import Environment
from trtops.system.files import open_atomically, read_open_file
from trtops.system.locks import locked

# A cache file of trtops begins with this and a line of JSON: the device and release, the number of entries, the time
# they took, and, for editable caches, the ops and tactics of its keys. TensorRT's own bytes follow.
_MAGIC = b"trtops timing cache 1 "
# TensorRT returns a cache even if it refused the data, so its messages have to be read. A part of every message about
# the data of Myelin, TensorRT's compiler of fused layers:
_COMPILER = "myelinCache"
_NOT_USED = "The timing cache will not be used"
_REFUSALS = (
    _NOT_USED,
    "different TensorRT version",
    "different from current device",
    "Timing cache header mismatch",
    "Failed to deserialize timing cache",
)


@dataclass(frozen=True, kw_only=True)
class TimingCache:
    """A timing cache."""

    data: bytes = field(repr=False)  # TensorRT's own bytes
    # The device and release it is for (:attr:`trtops.spec.Environment.device_key`); None if not known.
    key: str | None = None
    entries: int | None = None  # timings in it; None if not known
    seconds: float = 0.0  # build time spent on these entries, as far as known
    # For an editable cache, the ops that were timed, with all their tactics.
    ops: tuple[autotuning.TimedOp, ...] = field(default=(), repr=False)

    def to_bytes(self) -> bytes:
        """The content of a cache file."""
        header: dict[str, Any] = {"key": self.key, "entries": self.entries, "seconds": round(self.seconds, 3)}
        if self.ops:
            header["ops"] = list(map(autotuning.TimedOp.to_dict, self.ops))
        return _MAGIC + json.dumps(header).encode() + b"\n" + self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> "TimingCache":
        """Read a cache file, or TensorRT's own bytes; TimingCacheError if the first line is damaged."""
        if not data.startswith(_MAGIC):
            return cls(data=data)
        line, separator, rest = data[len(_MAGIC) :].partition(b"\n")
        try:
            header = json.loads(line)
            ops = tuple(map(autotuning.TimedOp.from_dict, header.get("ops", ())))
            return cls(
                data=rest, key=header["key"], entries=header["entries"], seconds=float(header["seconds"]), ops=ops
            )
        except (ValueError, KeyError, TypeError, AttributeError, errors.FormatError) as exc:
            raise errors.TimingCacheError(
                f"A timing cache's first line is damaged ({exc}, {'no valid header' if separator else 'cut short'}). "
                "Delete the file; the next build makes a new one."
            ) from None

    def check(self, environment: Environment) -> None:
        """Raise TimingCacheError if the cache is for another device or release; one without a key passes."""
        if self.key is not None and self.key != environment.device_key:
            raise errors.TimingCacheError(
                f"The timing cache is for {self.key}; this is {environment.device_key}. Timings of another device or "
                "release choose the wrong tactics. Use a cache of this device, or build without one."
            )


def read(source: str | os.PathLike[str] | IO[bytes] | bytes) -> TimingCache:
    """Read a timing cache from a path, an open file, or bytes; a missing file counts as an empty cache."""
    if isinstance(source, bytes):
        return TimingCache.from_bytes(source)
    if not isinstance(source, (str, os.PathLike)):
        return TimingCache.from_bytes(read_open_file(source))
    path = Path(source)
    return TimingCache.from_bytes(path.read_bytes()) if path.exists() else TimingCache(data=b"", entries=0)


def apply(config: Any, cache: TimingCache, *, other_device: bool = False) -> None:
    """Give a builder config a timing cache; with ``other_device`` TensorRT accepts one of another GPU, too.

    Raises TimingCacheError if TensorRT refuses the cache, or would build without it.
    """
    line = library.line()
    with library.collect_log(this_thread=True) as log:
        taken = line.set_timing_cache(config, cache.data, other_device=other_device)
    if not taken or (cache.data and _is_refused(log)):
        raise _refusal_error(cache, log)
    # TensorRT 8.6 cannot read the compiler's data back from a cache. The build then uses the other entries.
    if cache.data and log.contains(_COMPILER):
        entries = held(config)
        # If nothing was read, an empty cache is set, which fills up during the build.
        if entries == 0:
            line.set_timing_cache(config, b"")
        library.log_warning(
            f"{line.name} did not read the data of its compiler (Myelin) in the timing cache: "
            f"{'an unknown number' if entries is None else entries} of {cache.entries or 'its'} entries are used, "
            "other layers are compiled and timed again."
        )


def held(config: Any) -> int | None:
    """Number of entries in a builder config's timing cache; None if unknown, or without a cache."""
    return _serialize_and_count(config)[1]


def _serialize_and_count(config: Any) -> tuple[bytes | None, int | None]:
    """A builder config's timing cache as TensorRT's bytes, and its number of entries; None if unknown."""
    # Only TensorRT's log has the number, in a verbose message of the serializing thread.
    with library.collect_log(verbose=True, this_thread=True) as log:
        data = library.line().get_timing_cache(config)
    for _, message in reversed(log.lines):
        if match := re.search(r"Serialized (\d+) timing cache entries", message):
            return data, int(match[1])
    return data, None


def _is_refused(log: library.LogLines) -> bool:
    """Return True if TensorRT refused a cache, and not only the compiler's part of it."""
    complaints: list[str] = []
    for severity, message in log.lines:
        if severity in ("INTERNAL_ERROR", "ERROR") or any(map(message.__contains__, _REFUSALS)):
            complaints.append(message)
    # A message about the compiler's part comes with a general one that the cache will not be used. Without the former,
    # the general one is about the whole cache.
    if any(_COMPILER in message for message in complaints):
        complaints = [message for message in complaints if _COMPILER not in message and _NOT_USED not in message]
    return bool(complaints)


def _refusal_error(cache: TimingCache, log: library.LogLines) -> errors.TimingCacheError:
    return errors.TimingCacheError(
        f"{library.line().name} refuses the timing cache ({len(cache.data)} bytes): it is damaged, or was made by "
        f"another device or release. Build without it. {log.tail()}"
    )


def collect(
    config: Any,
    environment: Environment | None,
    before: TimingCache | None,
    seconds: float,
    ops: tuple[autotuning.TimedOp, ...] = (),
) -> TimingCache | None:
    """The timing cache after a build of ``seconds``; without an environment it has no key.

    ``before`` is the cache before the build, None if TensorRT read nothing of it.
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


def use(
    before: TimingCache | None, after: TimingCache | None, seconds: float, read: int | None = None
) -> TimingCacheUse:
    """The use of a cache in one build; the saved time is the time of its entries, minus this build's.

    ``read`` is the number of entries that TensorRT read (:func:`held` before the build), by default all.
    """
    if before is None or not before.data or after is None:
        return TimingCacheUse(misses=(after.entries or 0) if after is not None else 0)
    # TensorRT does not report which entries it used, so all that it read count as hits. This is exact if the build
    # added none and the cache was made with the same model; otherwise it is an upper bound.
    hits = (before.entries or 0) if read is None else read
    misses = max((after.entries or 0) - hits, 0)
    return TimingCacheUse(hits=hits, misses=misses, saved_seconds=max(before.seconds - seconds, 0.0) if hits else 0.0)


def merge(config: Any, cache: TimingCache, earlier: TimingCache) -> TimingCache:
    """Add the entries of an earlier cache to those of a builder config.

    ``cache`` is the config's own; if both have an entry, its entry is kept. If TensorRT cannot add the earlier cache,
    the larger one is returned, and a warning in the log says that the other one is lost.

    Raises TimingCacheError if their keys differ, or TensorRT refuses the earlier one for another reason.
    """
    keys = {cache.key, earlier.key} - {None}
    if len(keys) > 1:
        raise errors.TimingCacheError(
            f"Timing caches of different devices or releases cannot be merged: {', '.join(sorted(map(str, keys)))}."
        )
    with library.collect_log(this_thread=True) as log:
        created = config.create_timing_cache(earlier.data)
        if _is_refused(log):
            raise _refusal_error(earlier, log)
        # Into the config's own cache: serializing it first would lose the compiler's data on 8.6.
        merged = created is not None and config.get_timing_cache().combine(created, False)
    if _is_refused(log) or not (merged or log.contains(_COMPILER)):
        raise _refusal_error(earlier, log)
    data, entries = _serialize_and_count(config)
    assert data is not None
    # TensorRT 8.6 may be unable to add a cache with compiled code.
    if not merged:
        library.log_warning(
            f"{library.line().name} could not merge two timing caches: it does not read the data of its compiler "
            f"(Myelin) in the earlier one. Of the earlier one, {len(earlier.data)} bytes, and the new one, {len(data)} "
            "bytes, the larger one is kept. To keep all timings, use one file per model."
        )
        larger = earlier if len(earlier.data) > len(data) else replace(cache, data=data, entries=entries)
        return replace(larger, key=cache.key)
    if log.contains(_COMPILER):
        library.log_warning(
            f"{library.line().name} did not read the data of its compiler (Myelin) in the timing cache to merge; "
            f"both together have {'an unknown number of' if entries is None else entries} entries."
        )
    ops = tuple({op.key: op for op in (*earlier.ops, *cache.ops)}.values())
    # The larger of the times, since both may have the same entries.
    return replace(cache, data=data, entries=entries, seconds=max(cache.seconds, earlier.seconds), ops=ops)


def save(config: Any, cache: TimingCache, path: str | os.PathLike[str], *, raw: bool) -> TimingCache:
    """Write the timing cache of a build, merged with the file's content, under a lock; return the written cache.

    ``raw`` leaves out trtops' first line, for other tools. :func:`merge` says which entries may be missing.

    Raises TimingCacheError if the file's cache is damaged, or of another device or release; the file is not changed.
    Raises OSError if the file cannot be written.
    """
    path = Path(path)
    with locked(path.with_name(path.name + ".lock")):
        if path.exists() and path.stat().st_size:
            cache = merge(config, cache, read(path))
        with open_atomically(path) as file:
            file.write(cache.data if raw else cache.to_bytes())
    return cache
