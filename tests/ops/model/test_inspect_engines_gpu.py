"""A ResNet-50 in FP16 and in INT8 on real TensorRT, side by side; and a reformat that was planted.

Engines are built at ``TRTOPS_RESNET_LEVEL`` (1 unless given), where the builder times few tactics: names and formats
are what is tested. With ``OUT`` set, pages and the inspector's own words are left there.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.benchmarks.networks import write_resnet50
from trtops import ops
from trtops.backend.base import Build, BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.spec import BuildConfig, TensorRTOptions

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]

BATCH = 8
OPTIONS = TensorRTOptions(optimization_level=int(os.environ.get("TRTOPS_RESNET_LEVEL", "1")), record_tactics=False)
LEAST_ALIGNED = 0.95


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ["OUT"]) if "OUT" in os.environ else tmp_path_factory.mktemp("resnet")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of three engines: FP16, INT8, and FP16 with one convolution of the second block kept in FP32."""
    from trtops.backend.trt import TensorRTBackend

    folder = tmp_path_factory.mktemp("engines")
    proto = onnx.load(write_resnet50(folder / "resnet50.onnx"))
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    model = Model.from_proto(proto, "resnet50")
    feed = {"image": np.random.default_rng(0).standard_normal((BATCH, 3, 224, 224), np.float32)}
    pinned = replace(OPTIONS, layer_precisions=((pinned_convolution(proto), "float32"),), precision_constraints="obey")
    configs = {
        "fp16": BuildConfig(precision="fp16", options=OPTIONS),
        "int8": BuildConfig(precision="int8", calibration_samples=2, options=replace(OPTIONS, also=("fp16",))),
        "planted": BuildConfig(precision="fp16", options=pinned),
    }
    paths, backend, timing = {}, TensorRTBackend(), None
    for name, config in configs.items():
        data = [feed, feed] if name == "int8" else None
        started = time.perf_counter()
        build: Build = backend.build(BuildRequest(model, config, caches=Caches(timing=timing), calibration_data=data))
        print(f"{name}: built in {build.seconds:.1f} s, {time.perf_counter() - started:.1f} s in all", flush=True)
        timing = build.timing_cache
        path = folder / f"{name}.engine"
        path.write_bytes(build.engine.plan)
        paths[name] = str(path)
    return paths


def pinned_convolution(proto: onnx.ModelProto) -> str:
    """The first convolution of the second block: it reads what is largest in the network, 256 channels of 56 x 56."""
    adds = [node for node in proto.graph.node if node.op_type == "Add"]
    [relu] = [node for node in proto.graph.node if adds[0].output[0] in node.input]
    return next(node.name for node in proto.graph.node if node.op_type == "Conv" and node.input[0] == relu.output[0])


def compared(engines: dict[str, str], a: str, b: str, folder: Path) -> ops.InspectEnginesResult:
    result = ops.inspect_engines(ops.InspectEnginesConfig(a=engines[a], b=engines[b], profile=True, shown=60))
    (folder / f"engines_{a}_{b}.md").write_text(result.page(), encoding="utf-8")
    print(result.page()[:6000])
    return result


def test_the_layers_of_fp16_and_int8_are_aligned(engines: dict[str, str], folder: Path) -> None:
    result = compared(engines, "fp16", "int8", folder)

    print(f"aligned: {result.a.aligned:.2%} of {result.a.ms:.3f} ms, {result.b.aligned:.2%} of {result.b.ms:.3f} ms")
    assert result.a.ms and result.b.ms
    assert min(result.a.aligned, result.b.aligned) >= LEAST_ALIGNED
    assert dict(result.b.precisions)["int8"] >= 40 and dict(result.a.precisions)["fp16"] >= 40
    assert result.a.device_memory_bytes and result.b.weights_bytes
    assert any(row.a.precisions == ("fp16",) and row.b.precisions == ("int8",) for row in result.alignment.rows)


def test_a_planted_reformat_is_the_first_boundary(engines: dict[str, str], folder: Path) -> None:
    pinned = pinned_convolution(onnx.load(Path(engines["fp16"]).parent / "resnet50.onnx", load_external_data=False))

    result = compared(engines, "fp16", "planted", folder)

    # Boundaries that both engines have differ by noise, which is large when other processes use the GPU.
    first = next(boundary for boundary in result.alignment.boundaries if not boundary.a.bytes)
    assert pinned in (*first.before, *first.after), result.page()
    assert (first.b.ms or 0) > (first.a.ms or 0)
    row = next(row for row in result.alignment.rows if pinned in row.nodes)
    assert (row.a.precisions, row.b.precisions) == (("fp16",), ("fp32",))
