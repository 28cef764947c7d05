"""Commands of Polygraphy's documentation and examples that need TensorRT, and the files that they name.

Both tools run them (``test_tensorrt_commands_gpu.py``), each in a folder of its own.
"""

import re
from pathlib import Path

import numpy as np
import onnx

from tests import models
from tests.cli.polygraphy_commands import kept_lines
from trtops.json import save_json

RANGE = "--trt-min-shapes X:[1,2,1,1] --trt-opt-shapes X:[1,2,3,3] --trt-max-shapes X:[1,2,5,5]"
LARGER = "--trt-min-shapes X:[1,2,6,6] --trt-opt-shapes X:[1,2,7,7] --trt-max-shapes X:[1,2,8,8]"
QUICK = "--builder-optimization-level 1"
CONV = f"conv_net.onnx --load-timing-cache conv.cache {QUICK}"
CLOSE = "--atol 1e-3 --rtol 1e-3"

COMMANDS = (
    # run: frameworks, runs and data compared (examples/cli/run 01, 02, 05, 06)
    "run identity.onnx --trt",
    "run identity.onnx --trt --onnxrt",
    "run identity.onnx --trt --onnxrt --save-inputs inputs.json --save-outputs run_0_outputs.json",
    f"run identity.onnx --trt --fp16 --load-inputs inputs.json --load-outputs run_0_outputs.json {CLOSE}",
    "run identity.onnx --trt --load-inputs inputs.json --load-outputs run_0_outputs.json --save-engine identity.engine",
    "run identity.engine --trt --load-inputs inputs.json --load-outputs run_0_outputs.json",
    "run identity.engine --trt --model-type engine --seed 5 --load-outputs run_0_outputs.json",
    f"run dynamic.onnx --trt --onnxrt {RANGE} --input-shapes X:[1,2,4,4]",
    f"run dynamic.onnx --trt --onnxrt {RANGE}",
    "run dynamic.onnx --trt --onnxrt --input-shapes X:[1,2,4,4]",
    f"run dynamic.onnx --trt {RANGE} {LARGER} --optimization-profile 1 --input-shapes X:[1,2,8,8]",
    "run identity.onnx --trt --onnxrt --data-loader-script data_loader.py",
    "run identity.onnx --trt --data-loader-script data_loader.py:other --save-outputs custom_outputs.json",
    "run identity.onnx --trt --onnxrt --val-range [0,2] x:[1,3] --iterations 3 --warm-up 2 --sequential-runners",
    "run identity.onnx --trt --onnxrt --fail-fast --check-error-stat max --save-accuracy-results acc.json",
    "run identity.onnx --trt --onnxrt --compare l2 cosine_similarity psnr",
    "run identity.onnx --trt --onnxrt --validate",
    "run identity.onnx --trt --allocation-strategy static",
    "run --trt --precision-constraints obey identity.onnx",
    "run --trt --save-input-blob blobs identity.onnx",
    "run identity.onnx --trt --onnxrt --fp1 --memory-pool workspace:64M --val-ran [0,1] --atol 1e-2",
    # run: builder configs
    f"run conv_net.onnx --trt --onnxrt --save-timing-cache conv.cache {QUICK} {CLOSE}",
    f"run {CONV} --trt --onnxrt --trt-outputs r0 logits --onnx-outputs r0 logits {CLOSE}",
    f"run three_layers.onnx --trt --onnxrt --trt-outputs mark all --onnx-outputs mark all {CLOSE}",
    f"run {CONV} --trt --trt-outputs r0 scores --trt-exclude-outputs scores --save-outputs r0.json",
    f"run {CONV} --trt --trt-outputs-by-type CONVOLUTION --save-outputs convolutions.json",
    f"run {CONV} --trt --save-tactics replay.json --save-engine first.engine --save-outputs first.json "
    f"--save-inputs conv.json",
    f"run {CONV} --trt --load-tactics replay.json --load-inputs conv.json --load-outputs first.json {CLOSE}",
    "run identity.onnx --trt --onnxrt --tf32 --sparse-weights --refittable --direct-io",
    "run identity.onnx --trt --onnxrt --pool-limit workspace:64M --builder-optimization-level 2 --max-aux-streams 0",
    "run identity.onnx --trt --onnxrt --profiling-verbosity layer_names_only",
    "run identity.onnx --trt --onnxrt --tactic-sources --preview-features --quantization-flags",
    "run identity.onnx --trt --onnxrt --tactic-sources JIT_CONVOLUTIONS EDGE_MASK_CONVOLUTIONS",
    "run identity.onnx --trt --onnxrt --preview-features FASTER_DYNAMIC_SHAPES_0805 "
    "DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805",
    "run identity.onnx --trt --fp16 --tensor-dtypes x:float16 y:float16 --tensor-formats x:[linear] y:[linear]",
    "run needs_constraints.onnx --trt --fp16 --onnxrt --val-range x:[1,2] --layer-precisions Add:float16 Sub:float32 "
    "--precision-constraints=prefer --check-error-stat median --atol 1e-1 --rtol 1e-1",
    "run needs_constraints.onnx --trt --fp16 --onnxrt --val-range x:[1,2] --trt-network-postprocess-script "
    "add_constraints.py "
    "--precision-constraints=obey --check-error-stat median --atol 1e-1 --rtol 1e-1",
    # run: networks and configs of scripts, and scripts of runs (03, 04)
    "template trt-network identity.onnx -o network.py",
    "template trt-network -o empty_network.py",
    "template trt-config -o config.py",
    "template trt-config --fp16 --trt-min-shapes x:[1,1,2,2] --trt-opt-shapes x:[1,1,2,2] --trt-max-shapes "
    "x:[1,1,2,2] -o fp16.py",
    "run network.py --trt --trt-config-script config.py",
    "run --model-type=trt-network-script create_network.py --trt --trt-config-script=create_config.py",
    "run create_network.py:load_network --trt",
    "run identity.onnx --trt --onnxrt --trt-config-script create_config.py:load_config",
    "run identity.onnx --trt --onnxrt --trt-config-postprocess-script postprocess_config.py --fp16 --atol 1e-3 "
    "--rtol 1e-3",
    "run identity.onnx --trt --onnxrt --gen-script=compare.py",
    "run no_kernel.onnx --trt",
    "run identity.onnx --trt --strongly-typed",
    # convert (examples/cli/convert 01 to 04)
    "convert identity.onnx -o converted.engine",
    "convert identity.onnx --convert-to trt -o converted.bin",
    "convert identity.onnx --int8 --data-loader-script ./data_loader.py --calibration-cache identity_calib.cache "
    "-o int8.engine",
    "convert identity.onnx --int8 --calibration-cache identity_calib.cache -o int8_again.engine",
    "convert identity.onnx --int8 --calib-base-cls IInt8MinMaxCalibrator --calibration-cache min_max.cache -o "
    "min_max.engine",
    "run identity.onnx --trt --int8 --calib-base-cls IInt8LegacyCalibrator --quantile 0.9 --regression-cutoff 0.9 "
    "--validate",
    "convert identity.onnx --save-tactics identity_replay.json -o 0.engine",
    "convert identity.onnx --load-tactics identity_replay.json -o 1.engine",
    f"convert dynamic.onnx -o dynamic.engine {RANGE} {LARGER}",
    f"convert {CONV} --convert-to onnx-like-trt-network -o like.onnx",
    "convert network.py -o of_a_script.engine",
    # inspect (examples/cli/inspect 01, 02, 05 to 07)
    "inspect model identity.onnx --show layers --display-as=trt",
    "inspect model conv_net.onnx --convert-to trt --show layers attrs",
    "inspect model conv_net.onnx --convert-to trt --show layers attrs weights",
    "inspect model network.py --show layers",
    "inspect model identity.engine",
    "inspect model 0.engine --show layers",
    "inspect model 1.engine --show layers attrs",
    "inspect model dynamic.engine --show layers attrs weights",
    "inspect data run_0_outputs.json --show-values",
    "inspect data custom_outputs.json",
    "inspect tactics identity_replay.json",
    "inspect tactics replay.json",
    "inspect capability conv_net.onnx",
    # Not without --with-partitioning: there Polygraphy 0.53 reads an attribute of errors that 8.6 lacks.
    "inspect capability partly.onnx --with-partitioning",
    "check lint identity.onnx",
    "check accuracy acc.json",
    # debug (examples/cli/debug 01 and 02)
    "debug build identity.onnx --fp16 --save-tactics replay_n.json --artifacts-dir replays --artifacts "
    "replay_n.json --until 2 "
    "--check {tool} run {debug}.engine --trt --load-inputs inputs.json --load-outputs run_0_outputs.json --atol 1e-2",
    f"debug build {CONV} --save-tactics replay_n.json --artifacts-dir replays --artifacts replay_n.json --until "
    f"bad --check false",
    "inspect diff-tactics --dir replays",
    "inspect diff-tactics --good replays/good --bad replays/bad",
    "debug precision three_layers.onnx --fp16 --mode linear --check true",
    "debug precision three_layers.onnx --fp16 --mode bisect --dir reverse -p float32 --check false",
    "debug reduce three_layers.onnx -o reduced.onnx --mode bisect --fail-regex UNARY "
    "--check {tool} inspect model {debug}.onnx --convert-to trt --show layers",
)  # fmt: skip
"""In order: some read what others before them wrote."""

VARYING = re.compile(r"conv_net|needs_constraints|three_layers|--fp16|--int8|first\.json|\.engine --show")
"""Commands whose numbers follow from what the builder happened to time, which is another one for each tool."""

ON_ONE_FILE = ("inspect tactics", "inspect diff-tactics")
"""Commands that we carry out in Polygraphy's folder, on the files that Polygraphy wrote."""

NETWORKS = (
    r"Layer |- Profile: |Tensor: |Device Memory: |\S+\.\S+ = |-> \{|Origin = |Tactic = "
    r"|===== Summary =====|Graph is fully supported"
    r"|Layer: |Algorithms?: |Loaded \d+ |Found potentially |Could not determine "
)
"""Further lines of inspections of networks, engines and tactics."""


def output_lines(command: str, printed: str) -> list[str]:
    """The lines that are compared."""
    lines = kept_lines(command, printed, extra_pattern=NETWORKS if command.startswith("inspect") else "")
    # Neither attributes that TensorRT does not tell, nor what its parser says by itself.
    lines = [line for line in lines if "<Error: " not in line and not line.startswith("Node name: ")]
    return [_without_numbers(line) for line in lines] if VARYING.search(command) else lines


def _without_numbers(line: str) -> str:
    """A line without what follows from tactics: numbers with a fraction, and places of extremes."""
    line = re.sub(r"at \([\d, ]*\)", "at (#)", line)
    line = re.sub(r"0x[0-9a-f]+", "#", line)
    if "Stats: " in line:  # where all are equal, or 0, a number has no fraction
        line = re.sub(r"=-?\d+(?=[ ,]|$)", "=#", line)
    line = re.sub(r"-?\d+\.?\d*e[+-]?\d+|-?\d+\.\d+|\b(inf|nan)\b", "#", line)
    line = re.sub(r"^(Layer \d+ +\| .*) \[Op: \w+\]$", r"\1", line)
    line = re.sub(r"^Origin = \w+$", "Origin = #", line)  # a reformat is TensorRT's own or Myelin's
    return re.sub(r"\(-?\d+, -?\d+\)", "#", line)


def prepare(folder: Path, tool: str) -> None:
    """Write the models and scripts that the commands name; scripts import the tool."""
    for case in (models.identity(), models.conv_net(), models.no_kernel()):
        case.write(folder)
    models.dynamic_identity().write(folder, "dynamic")
    for make in (needs_constraints, three_layers, partly):
        onnx.save(make(), folder / f"{make.__name__}.onnx")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text.replace("TOOL", tool))
    save_json([{"x": models.random(1, 1, 2, 2)}], str(folder / "custom_inputs.json"))


def three_layers() -> onnx.ModelProto:
    """An activation, a unary layer and another."""
    return models.model(
        "(float[1,8,4,4] x) => (float[1,8,4,4] y) { [relu] a = Relu(x)\n [neg] b = Neg(a)\n [exp] y = Exp(b) }"
    )


def partly() -> onnx.ModelProto:
    """An unknown node between two known ones."""
    text = (
        "(float[1,4] x) => (float[1,4] y) { [relu] a = Relu(x)\n [frob] b = custom.Frobnicate(a)\n [neg] y = Neg(b) }"
    )
    proto = models.model(text)
    for name in ("a", "b"):
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]))
    return proto


def needs_constraints() -> onnx.ModelProto:
    """A sum beyond FP16's range that a difference brings back, as in the example on precision constraints."""
    big = np.full((1, 8), 60000, np.float32)
    weights = {"w": np.eye(8, dtype=np.float32), "big": big}
    return models.model(
        "(float[1,8] x) => (float[1,8] y) { [MatMul] m = MatMul(x, w)\n [Add] a = Add(m, big)\n [Sub] y = Sub(a, "
        "big) }",
        weights,
    )


SCRIPTS = {
    "data_loader.py": """
import numpy as np

def load_data():
    for index in range(2):
        yield {"x": np.full((1, 1, 2, 2), index + 1, dtype=np.float32)}

other = load_data
""",
    "create_network.py": """
import numpy as np
import tensorrt as trt
from TOOL import func
from TOOL.backend.trt import CreateNetwork


@func.extend(CreateNetwork())
def load_network(builder, network):
    x = network.add_input("x", trt.float32, (1, 1, 2, 2))
    made = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    made.name = "y"
    network.mark_output(made)
""",
    "create_config.py": """
import tensorrt as trt
from TOOL import func
from TOOL.backend.trt import CreateConfig


@func.extend(CreateConfig())
def load_config(builder, network, config):
    config.set_flag(trt.BuilderFlag.DISABLE_TIMING_CACHE)
""",
    "postprocess_config.py": """
import tensorrt as trt


def postprocess_config(builder, network, config):
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 24)
""",
    "add_constraints.py": """
import tensorrt as trt


def postprocess(network):
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.name == "Add":
            layer.precision = trt.float32
            layer.set_output_type(0, trt.float32)
        if layer.name == "Sub":
            layer.precision = trt.float32
""",
}
"""The scripts of the examples, shortened: ``TOOL`` is the package they import."""
