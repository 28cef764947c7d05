"""Reading what the engine inspector says, as releases really write it, and evaluating precisions by it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.backend.trt import api
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.describe.inspector import EngineDescription, parse_layers, read_layers
from trtops.metadata import DataType, TensorSpec
from trtops.spec import ShapeRange

# 8.6 with detailed verbosity; a raw control character stands in the metadata.
EIGHT = """{"Layers": [{
  "Name": "conv0 + relu0", "LayerType": "CaskConvolution",
  "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [8,64,28,28],
              "Format/Datatype": "Row major linear FP16 format"}],
  "Outputs": [{"Name": "b", "Location": "Device", "Dimensions": [8,64,28,28],
               "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "ParameterType": "Convolution", "Kernel": [3,3],
  "Weights": {"Type": "Half", "Count": 36864}, "Bias": {"Type": "Half", "Count": 64},
  "TacticName": "sm80_xmma_fprop_implicit_gemm ", "TacticValue": "0x1c20c3fa4f0b2a14",
  "StreamId": 0, "Metadata": "[ONNX Layer: conv0]\x1e[ONNX Layer: relu0]"
}, {
  "Name": "Reformatting CopyNode for Output Tensor 0 to conv0", "LayerType": "Reformat",
  "Inputs": [{"Name": "b", "Format/Datatype": "Row major linear FP32"}], "Outputs": [],
  "TacticValue": "0x0000000000000000"
}], "Bindings": ["x", "y"]}"""

# 11 and RTX: other keys for the same things.
ELEVEN = """{"Layers": [{"Name": "node_of_m_myl0_1", "LayerType": "gemm",
  "Inputs": [{"Name": "x", "Dimensions": [-1,4], "Datatype": "Float", "Format": "(Linear) Row major linear format"}],
  "Outputs": [{"Name": "y", "Dimensions": [-1,4], "Datatype": "Half", "Format": "(Linear) Row major linear format"}],
  "TacticName": "__myelin_CASK_STUB", "StreamId": 0, "Metadata": "[ONNX Layer: node_of_m][ONNX Layer: node_of_y]"}]}"""


def test_layers_of_8_6_are_read():
    layer, reformat = parse_layers(EIGHT)

    assert (layer.name, layer.op, layer.precision) == ("conv0 + relu0", "CaskConvolution", "fp16")
    assert (layer.tactic, layer.tactic_value) == ("sm80_xmma_fprop_implicit_gemm", "0x1c20c3fa4f0b2a14")
    assert layer.outputs[0].format == "Channel major FP16 format where channel % 8 == 0"
    assert layer.inputs[0].shape == (8, 64, 28, 28)
    assert layer.weights == (("fp16", 36864), ("fp16", 64))
    assert layer.onnx_nodes == ("conv0", "relu0")
    assert reformat.precision == "fp32"
    assert layer.to_layer().tactic == "sm80_xmma_fprop_implicit_gemm #0x1c20c3fa4f0b2a14"
    first = EIGHT.replace("linear FP16", "linear FP32").replace(
        '{"Type": "Half", "Count": 36864}', '{"Type": "Int8", "Count": 9}'
    )

    assert parse_layers(first)[0].precision == "int8"
    assert parse_layers(EIGHT.replace('"Type": "Half"', '"Type": "Float"'))[0].precision == "fp16"


def test_layers_of_11_are_read_as_well():
    (layer,) = parse_layers(ELEVEN)

    assert (layer.precision, layer.outputs[0].dtype) == ("fp32", "fp16")
    assert layer.to_layer().onnx_nodes == ("node_of_m", "node_of_y")
    bare = parse_layers('{"Layers": ["conv0", "conv1"], "Bindings": []}')  # an engine built without details
    assert [layer.name for layer in bare] == ["conv0", "conv1"]


def test_damaged_inspector_answers_are_handled(monkeypatch):
    with pytest.raises(errors.FormatError):
        parse_layers(EIGHT[:300])

    monkeypatch.setattr(library, "load", lambda: api.stand_in("8.6.0"))
    answers = [EIGHT[12:300], ""]
    inspector = SimpleNamespace(
        get_engine_information=lambda kind: EIGHT[:300], get_layer_information=lambda index, kind: answers[index]
    )
    engine = SimpleNamespace(create_engine_inspector=lambda: inspector, num_layers=2)
    assert [layer.name for layer in read_layers(engine)] == ["conv0 + relu0", "layer 1"]


def test_engine_text_lists_each_profile():
    layers = parse_layers(EIGHT)
    described = EngineDescription(
        name="net",
        inputs=(TensorSpec("x", DataType.FLOAT32, (-1, 64)),),
        outputs=(TensorSpec("scores", DataType.FLOAT32, (-1, 10)),),
        profiles=((ShapeRange(name="x", min=(1, 64), opt=(2, 64), max=(4, 64)),),) * 2,
        device_memory_bytes=7,
        weights_bytes=0,
        refittable=True,
        layers=layers * 2,
        listed_profiles=2,
    )

    lines = [line.strip() for line in described.text(("layers", "attrs")).splitlines() if line.strip()]

    assert lines[:2] == ["==== TensorRT Engine ====", "Name: net | Refittable Explicit Batch Engine"]
    assert "Tensor: x               (Input), Index: 0 | Shapes: min=(1, 64), opt=(2, 64), max=(4, 64)" in lines
    assert "Tensor: scores         (Output), Index: 1 | Shape: (-1, 10)" in lines
    assert lines.count("Layer 0    | conv0 + relu0 [Op: CaskConvolution]") == 2
    assert "{x [dtype=float16, shape=(8, 64, 28, 28), Format: Row major linear FP16 format]}" in lines
    assert "Tactic = 0x1c20c3fa4f0b2a14" in lines and "---- 2 Layer(s) Per Profile ----" in lines
    assert described.text().splitlines()[-1] == "    ---- 2 Layer(s) Per Profile ----"
