"""The timing cache: what timing cost once, it need not cost again.

A JSON file of medians per (model, candidate, shapes, threads, execution providers), valid for one kind of processor
and one release of ONNX Runtime. It also remembers what each candidate's optimized graph looked like, so that a build
that finds everything in it optimizes only the candidate that it picks. What a build had no time for is in it as well, so
that the next one, which has the same time for less work, does not choose otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trtops import errors
from trtops.record import Record, canonical_json

_FORMAT = "trtops onnxruntime timing cache"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TimingKey(Record):
    """What a timing, or the graph of a candidate, is valid for on one device and release.

    Attributes:
        model_sha256: Digest of the model after its precision was rewritten.
        candidate: The candidate's id.
        providers: Execution providers in order of preference.
        threads: Threads within one operator.
        shapes: Shapes of the inputs, by name; None for an entry about the graph, which has no shapes.
    """

    model_sha256: str
    candidate: str
    providers: tuple[str, ...]
    threads: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Timing(Record):
    """One measurement.

    Attributes:
        median_seconds: Median time of one inference.
        cost_seconds: Time that measuring it took, loading the session included.
        undisturbed: Whether no other session's threads were spinning meanwhile. They were until trtops let them sleep; such
            timings are as much as twice too long, and can be compared with one another alone.
    """

    median_seconds: float
    cost_seconds: float
    undisturbed: bool = False


@dataclass(frozen=True, kw_only=True)
class _TimingEntry(Record):
    key: TimingKey
    timing: Timing


@dataclass(frozen=True, kw_only=True)
class _GraphEntry(Record):
    key: TimingKey
    signature: str


@dataclass(frozen=True, kw_only=True)
class _File(Record):
    format: str
    version: int
    device_key: str
    graphs: tuple[_GraphEntry, ...] = ()
    timings: tuple[_TimingEntry, ...] = ()
    skipped: tuple[TimingKey, ...] = ()


@dataclass
class TimingCache:
    """Timings and graphs of one device and release.

    Attributes:
        device_key: That device and release (:attr:`trtops.spec.Environment.device_key`).
    """

    device_key: str
    _timings: dict[str, _TimingEntry] = field(default_factory=dict, repr=False)
    _graphs: dict[str, _GraphEntry] = field(default_factory=dict, repr=False)
    _skipped: dict[str, TimingKey] = field(default_factory=dict, repr=False)

    @classmethod
    def from_bytes(cls, data: bytes, device_key: str | None = None) -> TimingCache:
        """Read a cache.

        Args:
            data: What :meth:`to_bytes` wrote.
            device_key: The device and release that it must be of; None takes any.

        Raises:
            TimingCacheError: If the bytes are no timing cache, damaged, too new, or of another device or release.
        """
        file = _parse_file(data)
        if device_key is not None and file.device_key != device_key:
            raise errors.TimingCacheError(
                f"The timing cache is of {file.device_key!r}; this build runs on {device_key!r}, where its timings say "
                "nothing. Build without it, or with one made here."
            )
        cache = cls(file.device_key)
        # By the keys' digests, since sorting by these makes equal caches equal bytes, whatever order they grew in.
        cache._timings = {entry.key.digest: entry for entry in file.timings}
        cache._graphs = {entry.key.digest: entry for entry in file.graphs}
        cache._skipped = {key.digest: key for key in file.skipped}
        return cache

    def to_bytes(self) -> bytes:
        """The cache as JSON; caches with equal content give equal bytes."""
        file = _File(
            format=_FORMAT,
            version=_VERSION,
            device_key=self.device_key,
            graphs=tuple(self._graphs[key] for key in sorted(self._graphs)),
            timings=tuple(self._timings[key] for key in sorted(self._timings)),
            skipped=tuple(self._skipped[key] for key in sorted(self._skipped)),
        )
        return canonical_json(file).encode() + b"\n"

    def timing(self, key: TimingKey) -> Timing | None:
        """The timing of a key, if it is known."""
        entry = self._timings.get(key.digest)
        return None if entry is None else entry.timing

    def add_timing(self, key: TimingKey, timing: Timing) -> None:
        """Remember a timing; one that is known stays, so that builds with the cache repeat, unless it was disturbed."""
        known = self.timing(key)
        if known is None or (timing.undisturbed and not known.undisturbed):
            self._timings[key.digest] = _TimingEntry(key=key, timing=timing)

    def signature(self, key: TimingKey) -> str | None:
        """The signature of a candidate's graph, if it is known; the key has no shapes."""
        entry = self._graphs.get(key.digest)
        return None if entry is None else entry.signature

    def add_signature(self, key: TimingKey, signature: str) -> None:
        """Remember the signature of a candidate's graph."""
        self._graphs.setdefault(key.digest, _GraphEntry(key=key, signature=signature))

    def was_skipped(self, key: TimingKey) -> bool:
        """Whether a build had no time for a candidate; the key has no shapes."""
        return key.digest in self._skipped

    def add_skipped(self, key: TimingKey) -> None:
        """Remember that there was no time for a candidate."""
        self._skipped[key.digest] = key

    def __len__(self) -> int:
        return len(self._timings)


def merge(caches: Iterable[bytes]) -> bytes:
    """Put timing caches of one device and release together; where two know a timing, the earlier one's stays.

    Raises:
        TimingCacheError: If there is none, one is damaged, or they are of different devices or releases.
    """
    merged: TimingCache | None = None
    for data in caches:
        cache = TimingCache.from_bytes(data, None if merged is None else merged.device_key)
        if merged is None:
            merged = cache
        for timing in cache._timings.values():
            merged.add_timing(timing.key, timing.timing)
        for graph in cache._graphs.values():
            merged.add_signature(graph.key, graph.signature)
        for skipped in cache._skipped.values():
            merged.add_skipped(skipped)
    if merged is None:
        raise errors.TimingCacheError("There is no timing cache to merge; expected at least one.")
    return merged.to_bytes()


def _parse_file(data: bytes) -> _File:
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise errors.TimingCacheError(f"Not a timing cache: {len(data)} bytes that are no JSON ({exc}).") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise errors.TimingCacheError(f"Not a timing cache: expected a JSON object with format {_FORMAT!r}.")
    if content.get("version") != _VERSION:
        raise errors.TimingCacheError(
            f"The timing cache has version {content.get('version')!r}; this trtops reads {_VERSION}. Build without it."
        )
    try:
        return _File.from_dict(content)
    except errors.FormatError as exc:
        raise errors.TimingCacheError(f"The timing cache is damaged: {exc}") from None
