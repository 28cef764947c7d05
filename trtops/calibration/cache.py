"""The calibration cache: the range of every tensor, where it came from, and TensorRT's own text both ways.

TensorRT's text, as its calibrators write it: a header ``TRT-<release>-<calibrator>``, then a line per tensor with its name, a
colon, a blank and the scale as the eight hexadecimal digits of a big-endian float32. The scale is the largest magnitude that
INT8 should represent, divided by 127. A release reads only texts with its own number in the header.

The legacy calibrator writes another header, without a release: ``0``, its regression cutoff and its quantile, both as the
sixteen hexadecimal digits of a big-endian float64, separated by blanks (as seen in TensorRT 8.6.0).
"""

from __future__ import annotations

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
LEVELS = 127
"""The largest INT8 value in symmetric quantization; -128 is not used."""

DEFAULT_HEADER = "TRT-8600-EntropyCalibration2"

_HEADER = re.compile(r"TRT-\d+-\w+|\d+ [0-9a-f]{16} [0-9a-f]{16}")
_LEGACY = "LegacyCalibration"
_ENTRY = re.compile(r"(.+): ([0-9a-fA-F]{8})")
_LARGEST = struct.unpack(">f", bytes.fromhex("7f7fffff"))[0]
_SMALLEST = struct.unpack(">f", bytes.fromhex("00800000"))[0]


@dataclass(frozen=True, kw_only=True)
class TensorRange(Record):
    """The range of one tensor.

    Attributes:
        name: The tensor's name in the ONNX model (or in TensorRT's network, for a cache that TensorRT wrote).
        amax: The largest magnitude that INT8 should represent, in the tensor's own unit; what is beyond is clipped. 0 for
            a tensor that was always zero.
        low: The smallest value seen; None where only the scale is known.
        high: The largest value seen; None likewise.
        clipped: Share of the values seen that are beyond ``amax``; None where it is not known.
    """

    name: str
    amax: float
    low: float | None = None
    high: float | None = None
    clipped: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.amax <= LEVELS * _LARGEST:
            raise errors.FormatError(
                f"Tensor {self.name!r} has amax {self.amax}; expected a finite number of 0 or more."
            )
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if len(bounds) == 1 or not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
            raise errors.FormatError(
                f"Tensor {self.name!r} ranges from {self.low} to {self.high}; expected two finite numbers in order, or none."
            )

    @property
    def scale(self) -> float:
        """Value of one INT8 step in symmetric quantization; 1 for a tensor of zeros, for which any step is exact."""
        return max(self.amax / LEVELS, _SMALLEST) if self.amax else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """The values to represent, zero among them: from low to high, clipped to ``amax``; symmetric where these are unknown."""
        if self.low is None or self.high is None:
            return -self.amax, self.amax
        return min(max(self.low, -self.amax), 0.0), max(min(self.high, self.amax), 0.0)


@dataclass(frozen=True, kw_only=True)
class CalibrationCache(Record):
    """What a calibration found.

    Two caches with the same ranges have the same digest, wherever they came from.

    Attributes:
        version: Version of this format.
        algorithm: How the ranges were chosen: one of :data:`trtops.calibration.histogram.ALGORITHMS`, or the calibrator in
            TensorRT's header.
        percentile: The percentile, for the algorithm of that name.
        ranges: One per tensor, in the model's order.
        excluded: Floating-point tensors without a range, since NaN or infinity occurred in them.
        samples: Samples seen, counted along the first axis of the first input.
        feeds: Feeds seen.
        data_sha256: Digest of the data that was used (:class:`trtops.calibration.data.FeedDigest`).
        model_sha256: Digest of the calibrated model.
        tensorrt_header: Header of the text it was read from, if it was TensorRT's.
        complete: False if the data ended with an error; the ranges are then those of the data before it.
    """

    version: int = VERSION
    algorithm: str
    percentile: float | None = None
    ranges: tuple[TensorRange, ...]
    excluded: tuple[str, ...] = ()
    samples: int = 0
    feeds: int = 0
    data_sha256: str | None = None
    model_sha256: str | None = None
    tensorrt_header: str | None = None
    complete: bool = True

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise errors.FormatError(
                f"The calibration cache has version {self.version}; this trtops reads {VERSION}. Use a newer trtops, or "
                "calibrate again."
            )
        seen: set[str] = set()
        for entry in self.ranges:
            if entry.name in seen:
                raise errors.FormatError(f"The calibration cache has tensor {entry.name!r} twice.")
            seen.add(entry.name)

    def __len__(self) -> int:
        return len(self.ranges)

    def __contains__(self, name: object) -> bool:
        return any(entry.name == name for entry in self.ranges)

    def by_name(self) -> dict[str, TensorRange]:
        """The ranges by tensor name, in order."""
        return {entry.name: entry for entry in self.ranges}

    def without(self, names: Iterable[str]) -> CalibrationCache:
        """The cache without some tensors, which a calibrating build then leaves in higher precision."""
        dropped = set(names)
        return replace(self, ranges=tuple(entry for entry in self.ranges if entry.name not in dropped))

    def deciding(self) -> JSONValue:
        """The ranges: nothing else decides an engine."""
        return [[e.name, e.amax, e.low, e.high] for e in sorted(self.ranges, key=lambda e: e.name)]

    def to_bytes(self) -> bytes:
        """The cache as our JSON, in UTF-8."""
        return self.to_json().encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> CalibrationCache:
        """Read a cache of either format.

        Raises:
            FormatError: If it is neither our JSON nor TensorRT's text, or is damaged, cut short or too new.
        """
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
        if isinstance(content.get("version"), int) and content["version"] > VERSION:
            cls(version=content["version"], algorithm="", ranges=())  # raises, saying that it is too new
        return cls.from_dict(content)

    @classmethod
    def from_tensorrt(cls, data: bytes | str) -> CalibrationCache:
        """Read TensorRT's text.

        Raises:
            FormatError: If the header is missing, or a line is not a name and eight hexadecimal digits of a scale that is
                finite and not negative; the message names the line.
        """
        try:
            text = data if isinstance(data, str) else data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise errors.FormatError(f"Not TensorRT's calibration text: {exc}.") from None
        header, *lines = text.rstrip("\r\n").split("\n")
        header = header.rstrip("\r")
        if not _HEADER.fullmatch(header):
            raise errors.FormatError(
                f"Not TensorRT's calibration text: it begins with {header[:60]!r}; expected a header such as "
                f"{DEFAULT_HEADER!r}."
            )
        if not lines:
            raise errors.FormatError(
                f"The calibration cache has a header, {header!r}, and no tensors. Was it cut short?"
            )
        ranges = tuple(_parse_entry(number, line.rstrip("\r")) for number, line in enumerate(lines, start=2))
        algorithm = header.split("-", 2)[2] if header.startswith("TRT-") else _LEGACY
        return cls(algorithm=algorithm, ranges=ranges, tensorrt_header=header)

    def to_tensorrt(self, header: str | None = None) -> bytes:
        """The cache as TensorRT's text.

        A cache that was read from TensorRT's text gives the same bytes again, except that a scale of zero is written as 1:
        TensorRT divides by it.

        Args:
            header: First line, from :func:`tensorrt_header` or :func:`legacy_header`; by default the one it was read
                with, or that of TensorRT 8.6.0's default calibrator.

        Raises:
            FormatError: If such a text cannot hold a name, or the header is none.
        """
        header = header or self.tensorrt_header or DEFAULT_HEADER
        if not _HEADER.fullmatch(header):
            raise errors.FormatError(f"{header!r} is no header of TensorRT's; expected such as {DEFAULT_HEADER!r}.")
        lines = [header]
        for entry in self.ranges:
            if not entry.name or "\n" in entry.name or "\r" in entry.name:
                raise errors.FormatError(
                    f"Tensor name {entry.name!r} cannot be written into TensorRT's calibration text."
                )
            lines.append(f"{entry.name}: {struct.pack('>f', entry.scale).hex()}")
        return ("\n".join(lines) + "\n").encode()


def read_cache(data: bytes) -> CalibrationCache:
    """Read a calibration cache of either format for a build.

    Raises:
        CalibrationError: If it cannot be read.
    """
    try:
        return CalibrationCache.from_bytes(data)
    except errors.FormatError as exc:
        raise errors.CalibrationError(f"The calibration cache cannot be read: {exc}") from exc


def _parse_entry(number: int, line: str) -> TensorRange:
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise errors.FormatError(
            f"Line {number} of the calibration cache is {line[:80]!r}; expected a tensor's name, ': ' and eight "
            "hexadecimal digits. Was the file cut short?"
        )
    name, digits = match.groups()
    [scale] = struct.unpack(">f", bytes.fromhex(digits))
    if not (math.isfinite(scale) and scale >= 0):
        raise errors.FormatError(f"Line {number}: tensor {name!r} has scale {scale} ({digits}); expected 0 or more.")
    return TensorRange(name=name, amax=scale * LEVELS)


def tensorrt_header(release: str, calibrator: str = "EntropyCalibration2") -> str:
    """The header that a TensorRT release expects.

    The number is ``NV_TENSORRT_VERSION`` of ``NvInferVersion.h``: 8.6.0 is 8600, and 10.3.0 is 100300.

    Args:
        release: Such as ``8.6.0``; what follows the third number is ignored.
        calibrator: Kind of calibrator that will read it; TensorRT does not care how the ranges were chosen.

    Raises:
        ConfigError: If the release is not three numbers.
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", release)
    if match is None:
        raise errors.ConfigError(f"TensorRT release {release!r}; expected three numbers such as '8.6.0'.")
    major, minor, patch = map(int, match.groups())
    number = major * 10000 + minor * 100 + patch if major >= 10 else major * 1000 + minor * 100 + patch
    return f"TRT-{number}-{calibrator}"


def legacy_header(quantile: float, regression_cutoff: float) -> str:
    """The header that TensorRT's legacy calibrator writes; it names no release.

    Args:
        quantile: What the calibrator that will read it answers to ``get_quantile``.
        regression_cutoff: What it answers to ``get_regression_cutoff``.
    """
    return f"0 {struct.pack('>d', regression_cutoff).hex()} {struct.pack('>d', quantile).hex()}"


def fit(cache: CalibrationCache, tensors: Iterable[str], policy: FitPolicy = "refuse") -> tuple[str, ...]:
    """Which of a model's tensors a cache lacks.

    Args:
        cache: The cache; it may have other tensors as well.
        tensors: The tensors to quantize.
        policy: ``refuse`` raises if one is missing; ``partial`` keeps layers without ranges in higher precision.

    Returns:
        The missing tensors, in the given order; always empty under ``refuse``.

    Raises:
        CalibrationError: If tensors are missing and the policy refuses that, or if the cache has none at all; names them.
    """
    known = cache.by_name()
    wanted = list(dict.fromkeys(tensors))
    missing = tuple(name for name in wanted if name not in known)
    if missing and (policy == "refuse" or len(missing) == len(wanted)):
        shown = ", ".join(map(repr, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        advice = (
            "It is of another model, or of another export of it: calibrate this one."
            if len(missing) == len(wanted)
            else "Calibrate this model, or allow a partial fit, which keeps these layers in higher precision."
        )
        raise errors.CalibrationError(
            f"The calibration cache has {len(known)} tensors and lacks {len(missing)} of the {len(wanted)} to be "
            f"quantized: {shown}. {_overflow_text(missing, cache) or errors.near(missing[0], known)} {advice}",
            missing=missing,
        )
    return missing


def _overflow_text(missing: Iterable[str], cache: CalibrationCache) -> str:
    """The tensors whose values overflowed during calibration, as the reason for missing ranges; empty if none did."""
    spoilt = [name for name in missing if name in cache.excluded]
    if not spoilt:
        return ""
    return (
        f"On the calibration data NaN or infinity occurred in {', '.join(map(repr, spoilt[:8]))}: the model overflows."
    )
