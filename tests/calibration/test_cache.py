"""The calibration cache and data: both formats of caches, and fitting to a model."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops import errors
from trtops.calibration import CalibrationCache, TensorRange, fit
from trtops.calibration.cache import tensorrt_header
from trtops.calibration.data import FeedDigest, batches, samples_in

# Written by TensorRT 8.5 for a small classifier.
FROM_TENSORRT = b"""TRT-8510-EntropyCalibration2
x: 4000890a
/conv1/Conv_output_0: 3f9db09c
/relu1/Relu_output_0: 3fb6163c
/bn1/BatchNormalization_output_0: 3fb61601
/mp1/MaxPool_output_0: 3fb61601
/conv2/Conv_output_0: 3f6fc9d8
/Reshape_output_0: 3f6fc9d8
(Unnamed Layer* 8) [Constant]_output: 39137939
(Unnamed Layer* 9) [Matrix Multiply]_output: 3e74c2e0
/fc1/Gemm_output_0: 3e5312f6
"""

# Written by the legacy calibrator of TensorRT 8.6.0, with quantile 0.9999 and regression cutoff 1.
FROM_LEGACY = b"""0 3ff0000000000000 3fefff2e48e8a71e
x: 3cfb213d
b: 3d2c2ff7
d: 3d22cc0c
y: 3d251821
"""


def cache(**amax: float) -> CalibrationCache:
    return CalibrationCache(
        algorithm="minmax", ranges=tuple(TensorRange(name=name, amax=value) for name, value in amax.items())
    )


@pytest.mark.parametrize(
    ("text", "algorithm", "count", "scale"),
    [(FROM_TENSORRT, "EntropyCalibration2", 10, "4000890a"), (FROM_LEGACY, "LegacyCalibration", 4, "3cfb213d")],
)
def test_tensorrt_text_survives_byte_for_byte(text: bytes, algorithm: str, count: int, scale: str) -> None:
    read = CalibrationCache.from_bytes(text)
    assert (read.algorithm, len(read)) == (algorithm, count)
    assert read.by_name()["x"].scale == struct.unpack(">f", bytes.fromhex(scale))[0]
    assert read.to_tensorrt() == CalibrationCache.from_bytes(read.to_bytes()).to_tensorrt() == text
    assert read.to_tensorrt(tensorrt_header("8.6.0")).startswith(f"TRT-8600-EntropyCalibration2\nx: {scale}\n".encode())


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda s: not set("\r\n") & set(s) and s.isprintable()),
        st.floats(2.0**-126, 2.0**127, width=32),
        min_size=1,
        max_size=8,
    )
)
def test_scales_survive_both_formats(scales: dict[str, float]) -> None:
    lines = [f"{name}: {struct.pack('>f', scale).hex()}\n" for name, scale in scales.items()]
    text = ("TRT-8600-MinMaxCalibration\n" + "".join(lines)).encode()
    assert CalibrationCache.from_bytes(CalibrationCache.from_tensorrt(text).to_bytes()).to_tensorrt() == text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 100_000,
        b"TRT-8600",
        *(
            b"TRT-8600-EntropyCalibration2\n" + lines
            for lines in (
                *(b"", b"x: 3c01", b"x: 3c010a14\ny", b"x 3c010a14\n", b"x: 3c010a14\n\ny: 3c010a14\n"),
                *(b"x: 0x3c010a\n", b": 3c010a14\n", b"x: 3c010a14\nx: 3c010a14\n", b"x: 7fc00000\n"),
                *(b"x: bc010a14\n", b"\xff\xfe: 3c010a14\n"),
            )
        ),
        b"0 3ff0000000000000 3fefff2e48e8a71e\n",
        b"0 3ff0000000000000 3fefff2e48e8\nx: 3c010a14\n",
        b'{"version": 1, "algorithm": "minmax", "rnages": []}',
        *(
            b'{"version": 1, "algorithm": "minmax", "ranges": [{"name": "x", "amax": %s}]}' % rest
            for rest in (b"-1", b"NaN", b'1, "low": 2, "high": 1', b'1, "low": 2', b'1}, {"name": "x", "amax": 1')
        ),
    ],
)
def test_damaged_caches_are_refused(text: bytes) -> None:
    with pytest.raises(errors.FormatError):
        CalibrationCache.from_bytes(text)


def test_newer_versions_and_forged_lines_are_refused() -> None:
    with pytest.raises(errors.FormatError, match="version 7"):
        CalibrationCache.from_bytes(cache(x=1.0).to_bytes().replace(b'"version": 1', b'"version": 7, "novelty": true'))
    with pytest.raises(errors.FormatError, match="forged"):
        cache(**{"x: 3c010a14\nforged": 1.0}).to_tensorrt()


def test_zero_tensor_has_scale_one() -> None:
    read = CalibrationCache.from_tensorrt(b"TRT-8600-EntropyCalibration2\ndead: 00000000\n")
    assert read.ranges[0].amax == 0 and read.ranges[0].scale == 1
    header = tensorrt_header("10.3.0", "MinMaxCalibration")
    assert read.to_tensorrt(header) == b"TRT-100300-MinMaxCalibration\ndead: 3f800000\n"


def test_interval_contains_zero_and_is_clipped() -> None:
    assert TensorRange(name="relu", amax=4.0, low=0.0, high=9.0).interval == (0.0, 4.0)
    assert TensorRange(name="shifted", amax=4.0, low=1.0, high=3.0).interval == (0.0, 3.0)
    assert TensorRange(name="known by scale", amax=4.0).interval == (-4.0, 4.0)


def test_missing_tensors_are_refused_or_left_out() -> None:
    ranges = cache(image=1.0, relu_0=2.0)
    assert fit(ranges, ["image", "relu_0"]) == ()
    assert fit(ranges, ["image", "relu_1"], "partial") == ("relu_1",)
    with pytest.raises(errors.CalibrationError, match=r"'relu_1'.*Did you mean 'relu_0'"):
        fit(ranges, ["image", "relu_1"])


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
    digests = []
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
        digests.append(digest.hexdigest())
    assert digests[0] == digests[1] and len(set(digests)) == 4
