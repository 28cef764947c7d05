"""The calibration cache: the range of every tensor and its origin, in our JSON and in TensorRT's text."""

import json
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.record import JSONValue, Record

FitPolicy: TypeAlias = Literal["refuse", "partial"]

VERSION = 1
LEVELS = 127  # the largest INT8 value in symmetric quantization; -128 is not used
DEFAULT_HEADER = "TRT-8600-EntropyCalibration2"

# TensorRT's text has a header `TRT-<release>-<calibrator>`, then a line per tensor: its name, ": " and the scale as the
# eight hexadecimal digits of a big-endian float32. The scale is the largest magnitude that INT8 should represent,
# divided by 127. A release reads only texts with its own number in the header.
# The legacy calibrator writes another header, without a release: 0, its regression cutoff and its quantile, both as the
# sixteen hexadecimal digits of a big-endian float64, separated by blanks (as seen in TensorRT 8.6.0).
_HEADER = re.compile(r"TRT-\d+-\w+|\d+ [0-9a-f]{16} [0-9a-f]{16}")
_ENTRY = re.compile(r"(.+): ([0-9a-fA-F]{8})")
_LARGEST = struct.unpack(">f", bytes.fromhex("7f7fffff"))[0]
_SMALLEST = struct.unpack(">f", bytes.fromhex("00800000"))[0]


@dataclass(frozen=True, kw_only=True)
class TensorRange(Record):
    """The range of one tensor; unknown values are None."""

    name: str  # in the ONNX model, or in TensorRT's network for a cache that TensorRT wrote
    amax: float  # the largest magnitude that INT8 should represent; 0 for a tensor of zeros
    low: float | None = None  # the smallest value seen
    high: float | None = None  # the largest value seen
    clipped: float | None = None  # share of the values seen that exceed amax

    def __post_init__(self) -> None:
        if not 0 <= self.amax <= LEVELS * _LARGEST:
            raise errors.FormatError(
                f"Tensor {self.name!r} has amax {self.amax}; expected a finite number of 0 or more."
            )
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if len(bounds) == 1 or not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
            raise errors.FormatError(
                f"Tensor {self.name!r} ranges from {self.low} to {self.high}; expected two finite numbers in order, or "
                "none."
            )

    @property
    def largest(self) -> float:
        """The largest magnitude seen; without it, the one to represent."""
        return self.amax if self.low is None or self.high is None else max(abs(self.low), abs(self.high))

    @property
    def scale(self) -> float:
        """Value of one INT8 step in symmetric quantization; 1 for a tensor of zeros (any step is exact)."""
        return max(self.amax / LEVELS, _SMALLEST) if self.amax else 1.0

    def scaled(self, factor: float) -> "TensorRange":
        """The range of a tensor whose values are larger by a factor."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return replace(self, amax=min(self.amax * factor, LEVELS * _LARGEST), low=low, high=high)

    @property
    def interval(self) -> tuple[float, float]:
        """The values to represent: low to high with zero, clipped to ``amax``; symmetric if they are not known."""
        if self.low is None or self.high is None:
            return -self.amax, self.amax
        return min(max(self.low, -self.amax), 0.0), max(min(self.high, self.amax), 0.0)


@dataclass(frozen=True, kw_only=True)
class CalibrationCache(Record):
    """The result of a calibration. Caches with the same ranges have the same digest.

    >>> cache = CalibrationCache(algorithm="minmax", ranges=(TensorRange(name="image", amax=127.0),))
    >>> print(cache.to_tensorrt().decode())
    TRT-8600-EntropyCalibration2
    image: 3f800000
    >>> CalibrationCache.from_bytes(cache.to_bytes()) == cache
    True
    """

    version: int = VERSION
    algorithm: str  # of trtops.calibration.histogram.ALGORITHMS, or the calibrator in TensorRT's header
    percentile: float | None = None  # for the algorithm of that name
    ranges: tuple[TensorRange, ...]  # one per tensor, in the model's order
    excluded: tuple[str, ...] = ()  # floating-point tensors that contained NaN or infinity
    samples: int = 0  # along the first axis of the first input
    feeds: int = 0
    data_sha256: str | None = None  # of trtops.calibration.data.FeedDigest
    model_sha256: str | None = None
    tensorrt_header: str | None = None  # if the cache was read from TensorRT's text
    complete: bool = True  # False if the data ended with an error; the ranges are then of the data before it

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for entry in self.ranges:
            if entry.name in seen:
                raise errors.FormatError(f"The calibration cache has tensor {entry.name!r} twice.")
            seen.add(entry.name)

    def __len__(self) -> int:
        return len(self.ranges)

    def by_name(self) -> dict[str, TensorRange]:
        """Return the ranges by tensor name, in order."""
        return {entry.name: entry for entry in self.ranges}

    def deciding(self) -> JSONValue:
        """Return the ranges: nothing else influences an engine."""
        return [[e.name, e.amax, e.low, e.high] for e in sorted(self.ranges, key=lambda e: e.name)]

    def to_bytes(self) -> bytes:
        """Return the cache as our JSON, in UTF-8."""
        return self.to_json().encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> "CalibrationCache":
        """Read a cache of either format; FormatError if it is neither, damaged, cut short or too new."""
        if data.startswith(b"TRT-") or _HEADER.fullmatch(data[:80].partition(b"\n")[0].decode("latin-1").rstrip("\r")):
            return cls.from_tensorrt(data)
        try:
            content: Any = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise errors.FormatError(
                f"Not a calibration cache: {len(data)} bytes that are neither JSON ({exc}) nor begin with 'TRT-'."
            ) from None
        if not isinstance(content, dict) or "ranges" not in content:
            raise errors.FormatError("Not a calibration cache: expected a JSON object with 'ranges'.")
        if content.get("version", VERSION) != VERSION:
            raise errors.FormatError(
                f"The calibration cache has version {content['version']}; expected {VERSION}. Use a newer trtops, or "
                "calibrate again."
            )
        return cls.from_dict(content)

    @classmethod
    def from_tensorrt(cls, data: bytes | str) -> "CalibrationCache":
        """Read TensorRT's text; the FormatError of an invalid line names it."""
        try:
            text = data if isinstance(data, str) else data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise errors.FormatError(f"Not TensorRT's calibration text: {exc}.") from None
        header, *lines = [line.rstrip("\r") for line in text.rstrip("\r\n").split("\n")]
        if not _HEADER.fullmatch(header):
            raise errors.FormatError(
                f"Not TensorRT's calibration text: it begins with {header[:60]!r}; expected a header such as "
                f"{DEFAULT_HEADER!r}."
            )
        if not lines:
            raise errors.FormatError(
                f"The calibration cache has a header, {header!r}, and no tensors. Was it cut short?"
            )
        ranges = []
        for number, line in enumerate(lines, start=2):
            match = _ENTRY.fullmatch(line)
            if match is None:
                raise errors.FormatError(
                    f"Line {number} of the calibration cache is {line[:80]!r}; expected a tensor's name, ': ' and "
                    "eight hexadecimal digits. Was the file cut short?"
                )
            name, digits = match.groups()
            [scale] = struct.unpack(">f", bytes.fromhex(digits))
            if not (math.isfinite(scale) and scale >= 0):
                raise errors.FormatError(
                    f"Line {number}: tensor {name!r} has scale {scale} ({digits}); expected 0 or more."
                )
            ranges.append(TensorRange(name=name, amax=scale * LEVELS))
        algorithm = header.split("-", 2)[2] if header.startswith("TRT-") else "LegacyCalibration"
        return cls(algorithm=algorithm, ranges=tuple(ranges), tensorrt_header=header)

    def to_tensorrt(self, header: str | None = None) -> bytes:
        """Return the cache as TensorRT's text, with the header read (default: the header of TensorRT 8.6.0)."""
        header = header or self.tensorrt_header or DEFAULT_HEADER
        if not _HEADER.fullmatch(header):
            raise errors.FormatError(f"{header!r} is not a header of TensorRT's; expected such as {DEFAULT_HEADER!r}.")
        lines = [header]
        for entry in self.ranges:
            if not entry.name or "\n" in entry.name or "\r" in entry.name:
                raise errors.FormatError(
                    f"Tensor name {entry.name!r} cannot be written into TensorRT's calibration text."
                )
            # The scale of a tensor of zeros is 1, because TensorRT divides by it.
            lines.append(f"{entry.name}: {struct.pack('>f', entry.scale).hex()}")
        return ("\n".join(lines) + "\n").encode()


def read_cache(data: bytes) -> CalibrationCache:
    """Read a calibration cache of either format for a build; CalibrationError if it cannot be read."""
    try:
        return CalibrationCache.from_bytes(data)
    except errors.FormatError as exc:
        raise errors.CalibrationError(f"The calibration cache cannot be read: {exc}") from exc


def tensorrt_header(release: str, calibrator: str = "EntropyCalibration2") -> str:
    """Return the header for a TensorRT release such as ``8.6.0``; ConfigError if it is not three numbers.

    The calibrator is the one that will read the text; TensorRT does not check how the ranges were chosen.
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", release)
    if match is None:
        raise errors.ConfigError(f"TensorRT release {release!r}; expected three numbers such as '8.6.0'.")
    # NV_TENSORRT_VERSION of NvInferVersion.h: 8.6.0 is 8600, and 10.3.0 is 100300.
    major, minor, patch = map(int, match.groups())
    number = major * 10000 + minor * 100 + patch if major >= 10 else major * 1000 + minor * 100 + patch
    return f"TRT-{number}-{calibrator}"


def fit(cache: CalibrationCache, tensors: Iterable[str], policy: FitPolicy = "refuse") -> tuple[str, ...]:
    """Return the tensors to quantize missing in a cache, in the given order.

    CalibrationError if all are missing, or one is and the policy is ``refuse``; with ``partial``, layers without ranges
    stay in higher precision.
    """
    ranges = cache.by_name()
    requested = list(dict.fromkeys(tensors))
    missing = tuple(name for name in requested if name not in ranges)
    if missing and (policy == "refuse" or len(missing) == len(requested)):
        overflowed = ", ".join(repr(name) for name in missing if name in cache.excluded)
        reason = f"NaN or infinity occurred in {overflowed}." if overflowed else errors.near(missing[0], ranges)
        advice = (
            "It is of another model, or of another export of it: calibrate this one."
            if len(missing) == len(requested)
            else "Calibrate this model, or allow a partial fit, which keeps these layers in higher precision."
        )
        raise errors.CalibrationError(
            f"The calibration cache has {len(ranges)} tensors and lacks {len(missing)} of the {len(requested)} to be "
            f"quantized: {', '.join(map(repr, missing[:8]))}. {reason} {advice}"
        )
    return missing
