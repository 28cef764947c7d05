"""The script of a bundle: repeats a verdict with plain TensorRT. ``trtops runs bundle`` copies this file as it is.

Runs the reported plan; with ``--build`` builds a new one from model.onnx, with the timing cache of the reported build.
Needs tensorrt, cuda-python and numpy in the releases of constraints.txt, and the GPU of environment.json. The exit
code is 0 if the verdict is the reported one, else 1.
"""

from __future__ import annotations

# Nothing of trtops may be imported here: a bundle is for people who do not have it.
import importlib
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any


def build(trt: Any, logger: Any, folder: Path, case: dict[str, Any]) -> bytes:
    """Build a new plan as the reported one was built."""
    builder = trt.Builder(logger)
    # 8.6 has to be asked for explicit batches, 10 for strong typing; from 11 on there is nothing else.
    names = ("EXPLICIT_BATCH", "STRONGLY_TYPED") if case["strongly_typed"] else ("EXPLICIT_BATCH",)
    members = trt.NetworkDefinitionCreationFlag.__members__
    network = builder.create_network(sum(1 << int(members[name]) for name in names if name in members))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(folder / "model.onnx")):
        raise RuntimeError("; ".join(str(parser.get_error(i)) for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    for flag in case["flags"]:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    for flag in case["cleared_flags"]:
        config.clear_flag(getattr(trt.BuilderFlag, flag))
    for name, value in case["properties"].items():
        setattr(config, name, value)
    if case["use_dla"]:
        config.default_device_type = trt.DeviceType.DLA
        config.DLA_core = 0
    if case["workspace_bytes"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, case["workspace_bytes"])
    if case["tactic_sources"] is not None:
        config.set_tactic_sources(sum(1 << int(getattr(trt.TacticSource, name)) for name in case["tactic_sources"]))
    for ranges in case["profiles"] or [dynamic_inputs(network)]:
        profile = builder.create_optimization_profile()
        rename_dimensions(network, ranges)
        for name, (low, opt, high) in ranges.items():
            profile.set_shape(name, low, opt, high)
        if ranges:
            config.add_optimization_profile(profile)
    if case["layers"]:
        set_precisions(trt, network, case["layers"])
    tensors: dict[str, Any] = {}
    for layer in map(network.get_layer, range(network.num_layers)):
        outputs = map(layer.get_output, range(layer.num_outputs))
        tensors.update((tensor.name, tensor) for tensor in outputs)
    for name in case["mark"]:  # which prevents fusion across them
        network.mark_output(tensors[name])
    # Calibrated ranges: a calibrator that only has a cache asks for no data.
    ranges_file = folder / "caches" / "calibration.cache"
    if case["calibrates"] and ranges_file.exists():
        calibrate(trt, config, ranges_file)
    cache = folder / "caches" / "timing.cache"
    if cache.exists():
        timings = config.create_timing_cache(cache.read_bytes())
        # TensorRT takes a second GPU of the same kind for another device; the second call ignores that.
        if not config.set_timing_cache(timings, False) and not config.set_timing_cache(timings, True):
            print("TensorRT refuses the timing cache, and may choose other tactics.")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("TensorRT built no engine; its messages are above.")
    return bytes(plan)


def dynamic_inputs(network: Any) -> dict[str, list[list[int]]]:
    """Shapes of the inputs with dynamic dimensions, with 1 for each of these, as min, opt and max."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    shapes = {tensor.name: [max(dim, 1) for dim in tensor.shape] for tensor in inputs if -1 in tuple(tensor.shape)}
    return {name: [shape, shape, shape] for name, shape in shapes.items()}


def rename_dimensions(network: Any, ranges: dict[str, list[list[int]]]) -> None:
    """Rename dimensions of one name with different sizes in a profile: TensorRT builds no engine otherwise."""
    first: dict[str, tuple[int, int]] = {}
    for tensor in map(network.get_input, range(network.num_inputs)):
        if tensor.name in ranges and not tensor.is_shape_tensor:
            low, _, high = ranges[tensor.name]
            for axis, sizes in enumerate(zip(low, high)):
                name = tensor.get_dimension_name(axis)
                if name and first.setdefault(name, sizes) != sizes:
                    tensor.set_dimension_name(axis, f"{tensor.name} {axis}")


def set_precisions(trt: Any, network: Any, layer_precisions: list[list[str]]) -> None:
    """Set the precisions of layers, by pattern; the last matching one counts."""
    types = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int8": "INT8", "int32": "INT32"}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for pattern, dtype in layer_precisions:
            if fnmatchcase(layer.name, pattern):
                layer.precision = getattr(trt.DataType, types[dtype])


def calibrate(trt: Any, config: Any, file: Path) -> None:
    """Give the builder the calibrated ranges, without data."""

    class Ranges(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]  # a class of bindings that have no types
        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return file.read_bytes()

        def write_calibration_cache(self, data: bytes) -> None:
            pass

    config.int8_calibrator = Ranges()


def infer(trt: Any, cuda: Any, np: Any, engine: Any, feed: dict[str, Any]) -> dict[str, Any]:
    """One inference; outputs as numpy arrays."""

    def call(function: Any, *args: Any) -> Any:
        status, *values = function(*args)
        if int(status) != 0:
            raise RuntimeError(f"CUDA: {status}")
        return values[0] if values else None

    # Memory is kept until the engine has run: device memory as (pointer, host array), host memory as an array.
    context, held, outputs = engine.create_execution_context(), [], {}
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    # Inputs first: the shapes of outputs depend on them.
    names.sort(key=lambda name: engine.get_tensor_mode(name) != trt.TensorIOMode.INPUT)
    for name in names:
        dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(name)))
        if name in feed:
            array = np.ascontiguousarray(feed[name].astype(dtype))
            if engine.get_tensor_location(name) == trt.TensorLocation.HOST:
                context.set_input_shape(name, array.shape)
                context.set_tensor_address(name, array.ctypes.data)
                held.append(array)
                continue
            context.set_input_shape(name, array.shape)
        else:
            array = outputs[name] = np.empty(tuple(context.get_tensor_shape(name)), dtype)
        pointer = call(cuda.cudaMalloc, max(array.nbytes, 1))
        call(cuda.cudaMemcpy, pointer, array.ctypes.data, array.nbytes, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)
        context.set_tensor_address(name, int(pointer))
        held.append((pointer, array))
    if not context.execute_async_v3(0):
        raise RuntimeError("TensorRT could not run the engine; its messages are above.")
    call(cuda.cudaDeviceSynchronize)
    for item in held:
        if isinstance(item, tuple):
            pointer, array = item
            if any(array is output for output in outputs.values()):
                kind = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
                call(cuda.cudaMemcpy, array.ctypes.data, pointer, array.nbytes, kind)
            call(cuda.cudaFree, pointer)
    return outputs


def main(folder: Path, *, rebuild: bool) -> int:
    """Repeat the verdict of a folder; returns the exit code."""
    import numpy as np
    from evaluate import repeat  # type: ignore[import-not-found]  # another file of the bundle

    try:
        from cuda.bindings import runtime as cuda
    except ImportError:
        from cuda import cudart as cuda  # before 12.6
    trt = importlib.import_module(json.loads((folder / "case.json").read_text(encoding="utf-8"))["module"])

    def run(case: dict[str, Any], inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        logger = trt.Logger(trt.Logger.WARNING)
        trt.init_libnvinfer_plugins(logger, "")
        reported = folder / "engine" / "engine.engine"
        plan = build(trt, logger, folder, case) if rebuild or not reported.exists() else reported.read_bytes()
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        return [infer(trt, cuda, np, engine, feed) for feed in inputs]

    return int(repeat(folder, f"TensorRT {trt.__version__}", run))


if __name__ == "__main__":
    from evaluate import survived  # another file of the bundle

    if "--inside" not in sys.argv:
        sys.exit(survived(__file__))
    sys.exit(main(Path(__file__).resolve().parent, rebuild="--build" in sys.argv))
