"""The timing cache: timings of earlier builds, reused for faster builds with the same choices.

A JSON file for one kind of processor and one release of ONNX Runtime. It also holds signatures of optimized graphs, so
that a build whose timings are all cached optimizes only the candidate that it picks, and the candidates skipped for
lack of time, so that the next build skips them too.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtops import errors
from trtops.record import Record, canonical_json

_FORMAT = "trtops onnxruntime timing cache"
_VERSION = 2


def timing_key(
    model_sha256: str,
    candidate_id: str,
    providers: Sequence[str],
    threads: int,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """Return the key of a timing, or, without shapes, of a candidate's graph.

    ``model_sha256`` is the digest of the model after its precision was rewritten.
    """
    parts = [model_sha256, candidate_id, ",".join(providers), f"threads={threads}"]
    return " | ".join(parts if shapes is None else [*parts, str(dict(shapes))])


@dataclass(frozen=True, kw_only=True)
class Timing(Record):
    """Median time of one inference, and the time of the measurement, including the loading of the session.

    ``log_ratios`` are logarithms of the ratio to the defaults' time, one for each round; empty for the defaults.
    """

    median_seconds: float
    cost_seconds: float
    log_ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        are_times = all(0 <= seconds < math.inf for seconds in (self.median_seconds, self.cost_seconds))
        if not (are_times and all(abs(ratio) < 100 for ratio in self.log_ratios)):
            raise errors.FormatError(
                f"{self} is no measurement; expected seconds, and logarithms between -100 and 100."
            )


@dataclass
class TimingCache(Record):
    """Timings, signatures of optimized graphs, and candidates skipped for lack of time, by :func:`timing_key`.

    ``device_key`` is the device and release (:attr:`trtops.spec.Environment.device_key`).
    """

    device_key: str
    timings: dict[str, Timing] = field(default_factory=dict, repr=False)
    graphs: dict[str, str] = field(default_factory=dict, repr=False)
    skipped: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def from_bytes(cls, data: bytes, device_key: str | None = None) -> "TimingCache":
        """Read a cache; TimingCacheError if it is not of the given device and release (default: any)."""
        content: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(data)
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise errors.TimingCacheError(f"Not a timing cache: expected a JSON object with format {_FORMAT!r}.")
        if (version := content.pop("version", None)) != _VERSION:
            raise errors.TimingCacheError(
                f"The timing cache has version {version!r}; expected {_VERSION}. Build without it."
            )
        try:
            cache = cls.from_dict(content)
        except errors.FormatError as exc:
            raise errors.TimingCacheError(f"The timing cache is damaged: {exc}") from None
        if device_key is not None and cache.device_key != device_key:
            raise errors.TimingCacheError(
                f"The timing cache is of {cache.device_key!r}; this build runs on {device_key!r}, where its timings "
                "are not valid. Build without it, or with a cache made here."
            )
        return cache

    def to_bytes(self) -> bytes:
        """Return the cache as JSON; equal caches give equal bytes."""
        return canonical_json({"format": _FORMAT, "version": _VERSION, **self.to_dict()}).encode() + b"\n"

    def __len__(self) -> int:
        return len(self.timings)
