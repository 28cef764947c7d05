"""Inference with TensorRT."""

import time
from collections.abc import Sequence
from typing import Any

from trtops import errors
from trtops.backend.loader import ValueOrCallable
from trtops.backend.runner import BaseRunner, Feed
from trtops.backend.trt import library
from trtops.backend.trt.infer import callbacks
from trtops.backend.trt.infer.formats import FormattedArray
from trtops.backend.trt.infer.slots import Execution, Input, Output
from trtops.backend.trt.infer.staging import Stager
from trtops.backend.trt.library import dtypes, memory
from trtops.backend.trt.lines import ALLOCATION_STRATEGIES, AllocationStrategy, Feature
from trtops.func import value_of
from trtops.metadata import DataType, TensorMetadata, check_feed


class TrtRunner(BaseRunner):
    """Runs a TensorRT engine or execution context.

    Buffers live as long as the activation and grow as needed. Inputs in host memory go through pinned memory; inputs on
    the device (:class:`~trtops.cuda.DeviceView`, CUDA tensors) are used where they are. Outputs come in pinned memory
    that the next inference overwrites. Copies and the engine are queued on one CUDA stream, and :meth:`infer` returns
    when the stream has finished. The stream first waits for what is being written to inputs on the device: by the
    default stream and every :class:`~trtops.cuda.Stream`, by torch's current stream, and by the stream that
    ``__cuda_array_interface__`` names.

    ``engine``, ``context`` and ``stream`` exist while the runner is active.

    >>> with TrtRunner(EngineFromPath("model.engine")) as runner:  # doctest: +SKIP
    ...     outputs = runner.infer(dict(np.load("feed.npz")))
    """

    def __init__(
        self,
        engine: ValueOrCallable[Any],
        name: str | None = None,
        optimization_profile: int | None = None,
        allocation_strategy: AllocationStrategy | None = None,
        weight_streaming_budget: int | None = None,
        weight_streaming_percent: float | None = None,
        debug_listener: Any = None,
        output_order: Sequence[str] = (),
    ) -> None:
        """Set the engine; nothing is loaded before activation.

        Args:
            engine: An engine or an execution context, which stays the caller's, or a callable that makes one. A
                context keeps its profile from one activation to the next.
            name: The runner's name in results.
            optimization_profile: Profile to select at each activation; None keeps the context's own.
            allocation_strategy: Device memory of the context: ``static``, enough for every profile; ``profile``, for
                the current one; ``runtime``, for the current shapes. For engines, not for contexts.
            weight_streaming_budget: Bytes of device memory for streamable weights; -1 lets TensorRT choose, -2 switches
                streaming off.
            weight_streaming_percent: Share of those weights to stream, 0 to 100, instead of a budget.
            debug_listener: A ``trt.IDebugListener`` (default: one adding debug tensors to the outputs).
            output_order: Names of outputs in the order to return them, such as the model's. Outputs that it does not
                name follow in the engine's order; names that the engine does not have are ignored.

        Raises ConfigError if ``allocation_strategy`` or ``weight_streaming_percent`` has an invalid value.
        """
        super().__init__(name, prefix="trt-runner")
        if allocation_strategy is not None:
            errors.check_known(allocation_strategy, ALLOCATION_STRATEGIES, "allocation_strategy is")
        if weight_streaming_percent is not None and not 0 <= weight_streaming_percent <= 100:
            raise errors.ConfigError(f"weight_streaming_percent is {weight_streaming_percent}; expected 0 to 100.")
        self._source = engine
        self.optimization_profile = optimization_profile
        self.allocation_strategy = allocation_strategy
        self.weight_streaming_budget = weight_streaming_budget
        self.weight_streaming_percent = weight_streaming_percent
        self.debug_listener = debug_listener
        self.output_order = tuple(output_order)
        self.stager = Stager(f"{self.name}-copy")
        self._reset()

    def _reset(self) -> None:
        self.engine: Any = None
        self.context: Any = None
        self.stream: memory.Stream | None = None
        self._inputs: list[Input] = []
        self._outputs: list[Output] = []
        self._events: list[memory.Event] = []
        self._memory = memory.DeviceArray.raw((0,))
        self._listener: Any = None
        self._is_timed = False
        self._manages_memory = False
        self._outputs_prepared = False
        # Whether an output's size is only known during the inference.
        self._has_late_sizes = False
        self._int32_inputs: frozenset[str] = frozenset()
        self._needs_profile = False

    # --- activation ---------------------------------------------------------------------------------------------

    def activate_impl(self) -> None:
        """Load the engine, make the context, the stream and the buffers."""
        trt = library.load_for_device()
        loaded = value_of(self._source)
        if isinstance(loaded, trt.IExecutionContext):
            self.context, self.engine = loaded, loaded.engine
        elif isinstance(loaded, trt.ICudaEngine):
            self.engine = loaded
            self._set_weight_streaming()
            with library.collect_log() as log:
                self.context = library.line().create_context(loaded, self.allocation_strategy or "static")
            self._manages_memory = self.allocation_strategy in ("profile", "runtime")
            if self.context is None:
                raise errors.InferenceError(f"TensorRT could not make an execution context. {log.tail()}")
        else:
            raise errors.ConfigError(
                f"{self.name} got {type(loaded).__name__}; expected a TensorRT engine or execution context. Load bytes "
                "with EngineFromBytes."
            )
        self.stream = memory.Stream()
        self._events = [memory.Event(), memory.Event()]
        if self.optimization_profile is not None:
            self._select_profile(self.optimization_profile)
        self._make_slots()
        if library.line().supports(Feature.DEBUG_TENSORS):
            self.set_debug_listener(
                callbacks.make_debug_listener() if self.debug_listener is None else self.debug_listener
            )

    def deactivate_impl(self) -> None:
        """Free buffers, stream and events; engine and context are freed with their last reference."""
        # A failed inference may have left queued copies, which still use the buffers.
        if self.stream is not None:
            self.stream.synchronize()
        for slot in (*self._inputs, *self._outputs):
            slot.free()
        self._memory.free()
        for event in self._events:
            event.free()
        if self.stream is not None:
            self.stream.free()
        self.stager.close()
        self._reset()

    def _make_slots(self) -> None:
        trt = library.load()
        assert self.stream is not None
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self._needs_profile = any(-1 in tuple(self.engine.get_tensor_shape(name)) for name in names)
        execution = Execution(self.name, self.engine, self.context, self.stream, self.stager, self._needs_profile)
        profile = max(int(self.context.active_optimization_profile), 0)
        for name in names:
            if self.engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                self._inputs.append(Input(execution, name, profile))
            else:
                self._outputs.append(Output(execution, name, profile))
        # An engine does not keep its model's order of outputs (TensorRT 8.6 sorts them).
        positions = {name: position for position, name in enumerate(self.output_order)}
        self._outputs.sort(key=lambda slot: positions.get(slot.name, len(positions)))
        # Releases without INT64 (8.6) convert a model's INT64 inputs to INT32; feeds of the model must still work.
        if "INT64" not in trt.DataType.__members__:
            self._int32_inputs = frozenset(slot.name for slot in self._inputs if slot.dtype is DataType.INT32)

    def _set_weight_streaming(self) -> None:
        budget, percent = self.weight_streaming_budget, self.weight_streaming_percent
        if budget is None and percent is None:
            return
        line = library.line()
        line.require(Feature.WEIGHT_STREAMING)
        streamable = int(self.engine.streamable_weights_size)
        if budget is None:
            assert percent is not None
            budget = int((1 - percent / 100) * streamable)
        elif budget == -2:
            budget = streamable
        line.set_weight_streaming_budget(self.engine, budget)

    # --- profiles and listeners ---------------------------------------------------------------------------------

    def set_profile(self, index: int) -> None:
        """Change the optimization profile for the following inferences.

        Raises InferenceError if the runner is not active, or another context uses the profile; ConfigError if the
        engine does not have the profile.
        """
        self._require_active()
        self._select_profile(index)
        for slot in (*self._inputs, *self._outputs):
            slot.free()
        self._inputs, self._outputs = [], []
        self._make_slots()
        self._input_metadata = None
        self._expected_inputs = None

    def _select_profile(self, index: int) -> None:
        count = self.engine.num_optimization_profiles
        if not 0 <= index < count:
            raise errors.ConfigError(f"optimization profile {index} does not exist; the engine has 0 to {count - 1}.")
        assert self.stream is not None
        with library.collect_log() as log:
            selected = self.context.set_optimization_profile_async(index, self.stream.ptr)
        if not selected:
            raise errors.InferenceError(f"TensorRT could not change to optimization profile {index}. {log.tail()}")
        self.stream.synchronize()

    def set_debug_listener(self, listener: Any) -> None:
        """Send marked tensors to a listener, until deactivation.

        Raises UnsupportedFeatureError if this release has no debug tensors; InferenceError if TensorRT refuses the
        listener.
        """
        library.line().require(Feature.DEBUG_TENSORS)
        self._listener = listener
        if not (self.context.set_all_tensors_debug_state(True) and self.context.set_debug_listener(listener)):
            raise errors.InferenceError("TensorRT refuses the debug listener.")

    def get_input_metadata_impl(self) -> TensorMetadata:
        """The inputs; dynamic ones have the sizes of the current profile as bounds."""
        metadata = TensorMetadata()
        for slot in self._inputs:
            shape = tuple(self.engine.get_tensor_shape(slot.name))
            fits = len(slot.smallest) == len(shape) and not slot.on_host
            bounds = (slot.smallest, slot.largest) if fits else (None, None)
            metadata.add(slot.name, slot.dtype, shape, *bounds)
        return metadata

    def second_context(self) -> BaseRunner | None:
        """Return a runner of the same engine, with a context of its own; None if all profiles are in use."""
        context = library.line().create_context(self.engine, "static")
        # Before TensorRT 10 each context needs a profile of its own, and 8.6 crashes where two select the same one.
        own_profile = self.context.active_optimization_profile
        if context is None or (self._needs_profile and context.active_optimization_profile != own_profile):
            return None
        again = type(self)(context, f"{self.name} again")
        again.output_order = self.output_order
        return again

    # --- inference ----------------------------------------------------------------------------------------------

    def infer(self, feed_dict: Feed, check_inputs: bool = True, *args: Any, **options: Any) -> dict[str, Any]:
        """Run one inference.

        Args:
            feed_dict: By input name: numpy arrays, :class:`~trtops.cuda.DeviceView` or anything with
                ``__cuda_array_interface__``, or :class:`~trtops.backend.trt.FormattedArray` for raw memory. Inputs
                in a vectorized format may be given as plain arrays, and are packed. Shape tensors must be on the host.
            check_inputs: Whether names, dtypes and shapes are checked first.
            args: Further arguments of :meth:`infer_impl`: ``copy_outputs_to_host``, ``return_raw_buffers``.
            options: The same by name.

        Returns:
            The outputs by name, in ``output_order`` if that is given, else in the engine's order; owned by the runner,
            and valid until the next call.

        Raises InputError if the feed does not fit the engine or the current profile; InferenceError if TensorRT or CUDA
        fails, or the runner is not active.
        """
        if self._int32_inputs and feed_dict.keys() >= self._int32_inputs:
            feed_dict = {**feed_dict, **{name: dtypes.as_int32(name, feed_dict[name]) for name in self._int32_inputs}}
        if check_inputs and FormattedArray in map(type, feed_dict.values()):
            self._check_formatted(feed_dict)
            check_inputs = False
        return super().infer(feed_dict, check_inputs, *args, **options)

    def _check_formatted(self, feed_dict: Feed) -> None:
        """Check a feed with raw memory, of known shape but no dtype."""
        if self.is_active:
            inputs = self.get_input_metadata(use_numpy_dtypes=False)
            stand_ins = {
                name: memory.DeviceView(0, value.shape, inputs[name].dtype)
                if isinstance(value, FormattedArray) and name in inputs
                else value
                for name, value in feed_dict.items()
            }
            check_feed(inputs, stand_ins)

    def infer_impl(
        self, feed_dict: Feed, copy_outputs_to_host: bool = True, return_raw_buffers: bool = False
    ) -> dict[str, Any]:
        """Copy inputs, run, copy outputs, and wait.

        Without ``copy_outputs_to_host`` outputs are returned as ``DeviceView``. With ``return_raw_buffers`` all are
        :class:`~trtops.backend.trt.FormattedArray`, otherwise only those in formats that numpy does not have.
        """
        started = time.perf_counter()
        stream = self.stream
        assert stream is not None
        # An event is reached when the stream has finished everything before it.
        fed, computed = self._events
        # Events of a failed inference must not be read.
        self._is_timed = False
        # False until all inputs are set: if one is refused, the ones before it already have new shapes.
        changed = not self._outputs_prepared
        self._outputs_prepared = False
        for slot in self._inputs:
            changed = slot.feed(feed_dict[slot.name]) or changed
        if changed:
            self._prepare_outputs()
        self._outputs_prepared = True
        if self._manages_memory:
            self._provide_context_memory()
        debug = getattr(self._listener, "tensors", None)
        if debug:
            debug.clear()
        fed.record(stream)
        if not self.context.execute_async_v3(stream.ptr):
            # Collecting the log would slow down every inference, so the failed one is repeated to collect its messages.
            with library.collect_log() as log:
                self.context.execute_async_v3(stream.ptr)
            raise errors.InferenceError(f"TensorRT could not run the engine. {log.tail()}")
        computed.record(stream)
        # TensorRT reports these sizes while the engine runs.
        if self._has_late_sizes:
            stream.synchronize()
        results = {slot.name: slot.fetch(copy_outputs_to_host, return_raw_buffers) for slot in self._outputs}
        # Before this, outputs are incomplete and pinned inputs may still be read.
        stream.synchronize()
        self._is_timed = True
        if debug:
            results.update(debug)
        self.inference_time = time.perf_counter() - started
        return results

    def last_device_time(self) -> float:
        """Time of the engine in the last inference, in seconds, without copies, from CUDA events.

        Raises InferenceError if there was no inference since activation, or the last one failed.
        """
        if not self._is_timed:
            raise errors.InferenceError(
                f"{self.name} has not run an inference since it was activated, or the last one failed."
            )
        fed, computed = self._events
        return computed.seconds_since(fed)

    def _prepare_outputs(self) -> None:
        """Let TensorRT infer output shapes after input shapes changed, and reserve memory for them."""
        with library.collect_log() as log:
            missing = self.context.infer_shapes()
        if missing:
            raise errors.InferenceError(f"TensorRT lacks shapes or values of {', '.join(missing)}. {log.tail()}")
        for slot in self._outputs:
            slot.prepare(self._inputs)
        self._has_late_sizes = any(slot.allocator is not None for slot in self._outputs)

    def _provide_context_memory(self) -> None:
        """Give the context the device memory for the current shapes."""
        line = library.line()
        strategy = self.allocation_strategy
        assert strategy is not None
        self._memory.resize((line.context_memory_bytes(self.context, strategy),))
        line.set_context_memory(self.context, self._memory.ptr, self._memory.allocated_nbytes)
