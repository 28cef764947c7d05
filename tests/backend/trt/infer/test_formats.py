"""Memory formats: what is packed comes out again, and lies where TensorRT looks for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.backend.trt.infer.formats import FormattedArray, Layout


def chw(shape, components, dtype=np.float16):
    """The layout of formats such as CHW32: vectors of channels, rows of them as in NCHW."""
    _, c, h, w = shape
    vectors = math.ceil(c / components)
    return Layout(shape, np.dtype(dtype), (vectors * h * w, h * w, w, 1), 1, components)


def hwc(shape, components, dtype=np.float16):
    """The layout of formats such as HWC8: channels last, padded to whole vectors."""
    _, c, h, w = shape
    vectors = math.ceil(c / components)
    return Layout(shape, np.dtype(dtype), (vectors * h * w, 1, w * vectors, vectors), 1, components)


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 4),
    components=st.sampled_from([1, 2, 4, 8, 32]),
    make=st.sampled_from([chw, hwc]),
    dtype=st.sampled_from([np.float16, np.float32, np.int8]),
)
def test_packing_round_trips_in_any_format(shape, components, make, dtype):
    layout = make(shape, components, dtype)
    array = np.arange(math.prod(shape), dtype=np.int64).reshape(shape).astype(dtype)
    raw = np.full(layout.nbytes, 255, np.uint8)

    layout.pack(array, raw)

    np.testing.assert_array_equal(layout.unpack(raw), array)
    np.testing.assert_array_equal(FormattedArray(raw, shape, layout).linear(), array)


@pytest.mark.parametrize(
    ("make", "components", "expected"), [(chw, 4, [1, 3, 5, 0, 2, 4, 6, 0]), (hwc, 1, [1, 3, 5, 2, 4, 6])]
)
def test_channels_lie_where_tensorrt_reads_them(make, components, expected):
    layout = make((1, 3, 1, 2), components, np.int8)
    raw = np.full(layout.nbytes, 99, np.uint8)

    layout.pack(np.array([[[[1, 2]], [[3, 4]], [[5, 6]]]], np.int8), raw)

    assert raw.tolist() == expected
    assert Layout((2, 0), np.dtype("f4"), (0, 1)).nbytes == 0


def test_unknown_layout_is_not_linear():
    with pytest.raises(ValueError, match="layout"):
        FormattedArray(np.zeros(8, np.uint8), (2, 2)).linear()


def test_scripts_for_polygraphy_feed_the_runners_own_class():
    from trtops import common

    assert common.FormattedArray is FormattedArray
