"""Device memory and streams: what is written before something reads it, and how long it lives."""

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import trtops.backend.trt as back
from tests import cuda_double, models
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.infer import slots
from trtops.backend.trt.library import memory
from trtops.cuda import DeviceArray, DeviceView, MemcpyKind, Stream, wrapper
from trtops.metadata import DataType

TO_HOST = cuda_double.MemcpyKind.cudaMemcpyDeviceToHost
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class External:
    """An array of another library in device memory."""

    def __init__(self, array, stream=None, strides=None):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.__cuda_array_interface__ = {
            **array.__cuda_array_interface__,
            "stream": stream,
            "strides": strides,
            "version": 3,
        }


def test_copies_without_stream_have_arrived(runtime):
    copied = np.zeros_like(X)
    _, other = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
    for _ in range(3):
        for copy in (
            lambda array, x: array.copy_from(x),
            lambda array, x: wrapper().memcpy(array.ptr, x.ctypes.data, x.nbytes, MemcpyKind.HostToDevice),
        ):
            with DeviceArray(X.shape) as array:
                copy(array, X)
                runtime.cudaMemcpyAsync(copied.ctypes.data, array.ptr, X.nbytes, TO_HOST, other)
                runtime.cudaStreamSynchronize(other)
                np.testing.assert_array_equal(copied, X)
                copied[:] = 0


def test_streams_and_default_stream_keep_their_order(runtime):
    with Stream() as stream, DeviceArray(X.shape) as first, DeviceArray(X.shape) as second:
        first.copy_from(X)
        within = cuda_double.MemcpyKind.cudaMemcpyDeviceToDevice
        runtime.cudaMemcpyAsync(second.ptr, first.ptr, X.nbytes, within, 0)
        copied = second.copy_to(np.zeros_like(X), stream)
        stream.synchronize()
        np.testing.assert_array_equal(copied, X)

        second.copy_from(X + 1, stream)
        np.testing.assert_array_equal(second.numpy(), X + 1)


def input_on(stream) -> slots.Input:
    """An input of the shape of ``X`` in an execution on a stream."""
    slot = object.__new__(slots.Input)
    slot.name, slot.shape, slot.dtype, slot.on_host, slot.address = "x", X.shape, DataType.FLOAT32, False, 0
    context = SimpleNamespace(set_tensor_address=lambda name, address: True)
    slot.execution = SimpleNamespace(context=context, stream=stream)
    return slot


@pytest.mark.parametrize("writer", ["default stream", "another stream", "non-blocking stream"])
def test_runner_waits_for_the_writer(runtime, writer):
    with Stream() as stream, Stream() as another, DeviceArray(X.shape) as array, DeviceArray(X.shape) as source:
        source.copy_from(X)
        _, foreign = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
        handle = {"default stream": 0, "another stream": another.ptr, "non-blocking stream": foreign}[writer]
        within = cuda_double.MemcpyKind.cudaMemcpyDeviceToDevice
        runtime.cudaMemcpyAsync(array.ptr, source.ptr, X.nbytes, within, handle)

        slot = input_on(stream)
        slot.feed(External(array, foreign) if handle == foreign else array)
        copied = np.zeros_like(X)
        runtime.cudaMemcpyAsync(copied.ctypes.data, slot.address, X.nbytes, TO_HOST, stream.ptr)
        stream.synchronize()
        np.testing.assert_array_equal(copied, X)


def test_torch_tensors_name_their_stream(monkeypatch, runtime):
    with Stream() as stream, Stream() as torch_stream, DeviceArray(X.shape) as array:

        class Tensor:
            is_cuda, device, shape = True, "cuda:0", X.shape

            def detach(self):
                return self

            def contiguous(self):
                array.copy_from(X, torch_stream)
                return self

            def data_ptr(self):
                return int(array.ptr)

        def current_stream(device):
            return SimpleNamespace(cuda_stream=torch_stream.ptr)

        torch = SimpleNamespace(Tensor=Tensor, cuda=SimpleNamespace(current_stream=current_stream))
        monkeypatch.setitem(sys.modules, "torch", torch)
        slot = input_on(stream)
        slot.feed(Tensor())
        assert isinstance(slot.address.owner, Tensor)
        copied = DeviceView(slot.address, X.shape, np.float32).copy_to(np.zeros_like(X), stream)
        stream.synchronize()
        np.testing.assert_array_equal(copied, X)


def test_arrays_with_gaps_are_refused(runtime):
    with Stream() as stream, DeviceArray(X.shape) as array:
        slot = input_on(stream)
        slot.feed(External(array, strides=(12, 4)))
        assert slot.address == array.ptr
        with pytest.raises(errors.InputError, match=r"strides \(4, 8\).*contiguous copy"):
            slot.feed(External(array, strides=(4, 8)))


def test_addresses_and_views_keep_the_array(runtime):
    address = DeviceArray(X.shape).copy_from(X).ptr
    view = DeviceArray(X.shape).copy_from(X + 1).view()
    named = DeviceView(address, X.shape, np.float32)
    gc.collect()

    np.testing.assert_array_equal(named.numpy(), X)
    np.testing.assert_array_equal(view.numpy(), X + 1)
    assert type(view.__cuda_array_interface__["data"][0]) is int and len(runtime.blocks) == 2
    del address, view, named
    assert not runtime.blocks


@pytest.mark.usefixtures("rtx", "runtime")
def test_output_allocator_keeps_no_context(monkeypatch):
    """TensorRT's context references the allocator, which Python's garbage collector does not know."""
    in_context = []

    class Context:
        def get_tensor_shape(self, name):
            return (2, -1)

        def set_output_allocator(self, name, allocator):
            in_context.append(allocator)
            return True

        def infer_shapes(self):
            return []

        def get_max_output_size(self, name):
            return 128

    output = object.__new__(slots.Output)
    output.name, output.on_host, output.allocator = "y", False, None
    output.device, output.pinned = slots.memory.DeviceArray.raw((0,)), slots.memory.PinnedArray()
    output.execution = SimpleNamespace(context=Context(), engine=SimpleNamespace(get_aliased_input_tensor=lambda n: ""))
    output.prepare([])
    output.prepare([])
    [allocator] = in_context
    # 8.6 may write more than it requests, up to the largest size.
    for size, allocated in ((0, 128), (64, 128), (256, 256), (16, 256)):
        assert allocator.reallocate_output("y", None, size, 256) == output._address() != 0
        assert allocator.buffer.allocated_nbytes == allocated
    context = weakref.ref(output.execution.context)
    output.free()
    del output
    gc.collect()

    assert context() is None
    in_context.clear()


# --- on a GPU -----------------------------------------------------------------------------------------------------

COUNT = 10_000
SIZE = 1 << 18


@pytest.fixture(scope="module")
def doubling_engine():
    proto = models.model(f"(float[{SIZE}] x) => (float[{SIZE}] y) {{ y = Add(x, x) }}")
    return back.engine_from_network(back.NetworkFromOnnxBytes(proto.SerializeToString()), back.CreateConfig())


@pytest.mark.gpu
def test_ten_thousand_inferences_read_what_was_written(doubling_engine):
    numbers = np.empty(SIZE, np.float32)
    with back.TrtRunner(doubling_engine) as runner, DeviceArray((SIZE,)) as array:
        for number in range(COUNT):
            numbers.fill(number)
            array.copy_from(numbers)
            assert (runner.infer({"x": array}, check_inputs=False)["y"] == 2 * number).all()


@pytest.mark.gpu
@pytest.mark.parametrize("writer", ["default stream", "another stream", "non-blocking stream"])
def test_inferences_wait_for_slow_writers(doubling_engine, writer):
    within = memory.cudart().cudaMemcpyKind.cudaMemcpyDeviceToDevice
    foreign = memory.call("cudaStreamCreateWithFlags", memory.cudart().cudaStreamNonBlocking)
    slow = 1 << 29
    with (
        Stream() as stream,
        back.TrtRunner(doubling_engine) as runner,
        DeviceArray((SIZE,)) as array,
        DeviceArray((SIZE,)) as source,
        DeviceArray.raw((slow,)) as scratch,
        DeviceArray.raw((slow,)) as target,
    ):
        handle = {"default stream": 0, "another stream": stream.ptr, "non-blocking stream": int(foreign)}[writer]
        fed = External(array, handle) if handle == int(foreign) else array
        for number in range(1, 101):
            source.copy_from(np.full(SIZE, number, np.float32))
            # Takes about a millisecond, so that the input is written after the runner has queued its work.
            for _ in range(3):
                memory.call("cudaMemcpyAsync", target.ptr, scratch.ptr, slow, within, handle)
            memory.call("cudaMemcpyAsync", array.ptr, source.ptr, array.nbytes, within, handle)
            assert (runner.infer({"x": fed}, check_inputs=False)["y"] == 2 * number).all()
    memory.call("cudaStreamDestroy", foreign)


@pytest.fixture(scope="module")
def nonzero_engine():
    """Its input is INT32 in TensorRT 8.6, and its output's size depends on the data."""
    proto = models.model("(int64[4] x) => (int64[1,n] y) { y = NonZero(x) }")
    return back.engine_from_network(back.NetworkFromOnnxBytes(proto.SerializeToString()))


@pytest.mark.gpu
def test_runners_of_a_data_dependent_engine_follow_each_other(nonzero_engine):
    def check(source):
        with back.TrtRunner(source) as runner:
            dtype = runner.get_input_metadata()["x"].dtype
            for values in ([1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]):
                indices = runner.infer({"x": np.array(values, dtype)})["y"]
                np.testing.assert_array_equal(indices, np.array(np.nonzero(values)))
            assert runner.infer({"x": np.array([0, 1, 0, 0])}, copy_outputs_to_host=False)["y"].numpy().item() == 1

    context = nonzero_engine.create_execution_context()
    for _ in range(3):
        check(context)
    del context  # its profile becomes free
    for _ in range(20):
        check(nonzero_engine)


@pytest.mark.gpu
def test_contexts_without_a_profile_are_refused(nonzero_engine):
    """TensorRT 8.6 has one profile for each context."""
    x = {"x": np.array([0, 1, 0, 1])}
    with back.TrtRunner(nonzero_engine) as first, back.TrtRunner(nonzero_engine) as second:
        np.testing.assert_array_equal(first.infer(x)["y"], [[1, 3]])
        if second.context.active_optimization_profile < 0:
            assert library.line().version.startswith("8.") and first.second_context() is None
            with pytest.raises(errors.InferenceError, match="no optimization profile"):
                second.infer(x)
        else:
            np.testing.assert_array_equal(second.infer(x)["y"], [[1, 3]])
        np.testing.assert_array_equal(first.infer(x)["y"], [[1, 3]])


def test_freed_arrays_are_empty(runtime):
    array = DeviceArray(X.shape)
    assert (array.shape, array.allocated_nbytes) == (X.shape, X.nbytes)
    for _ in range(2):
        array.free()
        assert (array.shape, array.allocated_nbytes, array.ptr) == ((), 0, 0)
    array.copy_from(X)
    np.testing.assert_array_equal(array.numpy(), X)
    array.free()
