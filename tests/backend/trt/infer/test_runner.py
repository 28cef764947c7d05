"""What the runner does before anything reaches the device."""

import ctypes
import math
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops import common, errors
from trtops.backend.trt.infer import slots, staging
from trtops.backend.trt.infer.formats import FormattedArray, Layout
from trtops.backend.trt.library import memory
from trtops.metadata import DataType


@pytest.mark.parametrize(
    ("value_range", "values", "refusal"),
    [
        ([(1,), (3,), (9,)], [9, 4], None),
        ([(1,), (3,), (9,)], [1, 999], None),
        ([(1,), (3,), (9,)], [10, 4], r"\[10, 4\].*min \(1,.*max \(9,.*for the first 1"),
        ([(1,), (3,), (9,)], [0, 4], r"\[0, 4\]"),
        ([(1, 4), (3, 4), (9, 4)], [9, 5], r"\[9, 5\].*max \(9, 4\)\.$"),
        ([], [10, 4], None),
        ([(), (), ()], 10, None),
    ],
)
def test_shape_values_are_checked_by_known_ranges(value_range, values, refusal):
    slot = object.__new__(slots.Input)
    slot.name, slot._value_range = "shape", value_range
    with nullcontext() if refusal is None else pytest.raises(errors.InputError, match=refusal):
        slot._check_values(np.array(values))


@pytest.fixture
def stager():
    stager = staging.Stager("test-copy")
    yield stager
    stager.close()


@pytest.mark.parametrize("nbytes", [4, staging.CHUNK + 4, 5 * staging.CHUNK])
def test_large_inputs_are_staged_before_sending(monkeypatch, stager, nbytes):
    monkeypatch.setattr(memory, "copy", lambda to, source, count, kind, stream: ctypes.memmove(to, source, count))
    for seed in range(20):
        sent = np.zeros(nbytes, np.uint8)
        array = np.random.default_rng(seed).integers(0, 2**31, nbytes // 4, np.int32)
        staged = np.zeros_like(array)

        stager.upload(array, staged, sent.ctypes.data, None)

        np.testing.assert_array_equal(staged, array)
        np.testing.assert_array_equal(sent.view(np.int32), array)


def test_failed_copy_is_raised_after_all_writes(monkeypatch, stager):
    def fail(*args):
        raise errors.InferenceError("CUDA: cudaMemcpyAsync failed")

    monkeypatch.setattr(memory, "copy", fail)
    array = np.ones(40 * staging.CHUNK, np.uint8)
    staged = np.zeros_like(array)

    with pytest.raises(errors.InferenceError, match="cudaMemcpyAsync"):
        stager.upload(array, staged, 0, None)

    staged[:] = 0
    stager.close()
    assert not staged.any()


def test_running_imports_no_build_modules():
    code = """
import sys
from trtops.backend.trt import EngineFromBytes, TrtRunner
print([name for name in sys.modules if name == "onnx" or name in {
       f"trtops.backend.trt.{part}" for part in ("building.config", "building.calibrator", "describe.inspector")}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


class HostMemory:
    """Stands in for pinned and for device memory, of one size."""

    bytes = np.empty(0, np.uint8)

    @classmethod
    def raw(cls, shape):
        return cls().resize(shape)

    def reserve(self, nbytes):
        self.bytes = self.bytes if self.bytes.size else np.zeros(nbytes, np.uint8)
        assert nbytes == self.bytes.size
        self.ptr = self.bytes.ctypes.data

    def resize(self, shape):
        self.reserve(*shape)
        return self

    def view(self, shape, dtype):
        return self.bytes.view(dtype).reshape(shape)


@pytest.fixture
def host_memory(monkeypatch):
    monkeypatch.setattr(memory, "PinnedArray", HostMemory)
    monkeypatch.setattr(memory, "DeviceArray", HostMemory)
    monkeypatch.setattr(memory, "copy", lambda to, source, count, kind, stream: ctypes.memmove(to, source, count))


def plain_slot(kind, shape):
    slot = object.__new__(kind)
    slot.name, slot.shape, slot.dtype, slot.numpy_dtype = "x", shape, DataType.FLOAT32, np.dtype(np.float32)
    slot.is_linear = slot.is_plain = True
    slot.vectorized_dim, slot.components, slot.address = -1, 1, 0
    slot.on_host = slot.host_as_bytes = False
    slot.device, slot.pinned, slot.host, slot.allocator = HostMemory(), HostMemory(), None, None
    context = SimpleNamespace(
        get_tensor_strides=lambda name: np.cumprod((1, *shape[:0:-1]))[::-1],
        set_tensor_address=lambda name, address: True,
    )
    slot.execution = SimpleNamespace(context=context, stream=None)
    return slot


def test_outputs_switch_between_raw_and_array(host_memory):
    output = plain_slot(slots.Output, (2, 3))
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    output.address = source.ctypes.data

    for raw in (True, False, True):
        fetched = output.fetch(copy_out=True, raw=raw)
        np.testing.assert_array_equal(fetched.linear() if raw else fetched, source)


def test_inputs_switch_between_raw_and_array(host_memory):
    source = plain_slot(slots.Input, (2, 3))
    plain_array = np.arange(6, dtype=np.float32).reshape(2, 3)

    for value in (FormattedArray(plain_array.reshape(-1).view(np.uint8), (2, 3)), plain_array + 1, plain_array):
        source._upload(value)
        expected = plain_array if isinstance(value, FormattedArray) else value
        np.testing.assert_array_equal(source.device.bytes.view(np.float32).reshape(2, 3), expected)
    with pytest.raises(errors.InputError, match=r"24 bytes.*FormattedArray has 20"):
        source._upload(FormattedArray(np.zeros(20, np.uint8), (2, 3)))


def layout_of(order, components, shape, dtype):
    """Formats such as CHW32, vectors of channels in rows as in NCHW, and HWC8, channels last in whole vectors."""
    _, c, h, w = shape
    vectors = math.ceil(c / components)
    strides = {"CHW": (h * w, w, 1), "HWC": (1, w * vectors, vectors)}[order]
    return Layout(shape, np.dtype(dtype), (vectors * h * w, *strides), 1, components)


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 4),
    components=st.sampled_from([1, 2, 4, 8, 32]),
    order=st.sampled_from(["CHW", "HWC"]),
    dtype=st.sampled_from([np.float16, np.float32, np.int8]),
)
def test_packing_round_trips_in_any_format(shape, components, order, dtype):
    layout = layout_of(order, components, shape, dtype)
    array = np.arange(math.prod(shape), dtype=np.int64).reshape(shape).astype(dtype)
    raw = np.full(layout.nbytes, 255, np.uint8)

    layout.pack(array, raw)

    np.testing.assert_array_equal(layout.unpack(raw), array)
    np.testing.assert_array_equal(FormattedArray(raw, shape, layout).linear(), array)


@pytest.mark.parametrize(
    ("order", "components", "expected"), [("CHW", 4, [1, 3, 5, 0, 2, 4, 6, 0]), ("HWC", 1, [1, 3, 5, 2, 4, 6])]
)
def test_channels_lie_where_tensorrt_reads_them(order, components, expected):
    layout = layout_of(order, components, (1, 3, 1, 2), np.int8)
    raw = np.full(layout.nbytes, 99, np.uint8)

    layout.pack(np.array([[[[1, 2]], [[3, 4]], [[5, 6]]]], np.int8), raw)

    assert raw.tolist() == expected
    assert Layout((2, 0), np.dtype("f4"), (0, 1)).nbytes == 0


def test_unknown_layout_is_not_linear():
    # By the class that scripts for Polygraphy import, which is the runner's own.
    with pytest.raises(ValueError, match="layout"):
        common.FormattedArray(np.zeros(8, np.uint8), (2, 2)).linear()
    assert common.FormattedArray is FormattedArray
