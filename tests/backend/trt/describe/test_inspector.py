"""Reading what the engine inspector says, as releases really write it, and evaluating precisions by it."""

import json
from types import SimpleNamespace

import pytest

from tests.backend.trt import api
from tests.backend.trt.describe import inspected
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.describe.alignment import EngineLayers, align, losing_in_8_bits, nodes_of
from trtops.backend.trt.describe.inspector import (
    EngineDescription,
    LayerDescription,
    TensorDescription,
    parse_layers,
    read_layers,
)
from trtops.metadata import DataType, TensorSpec
from trtops.spec import ShapeRange

# 11 and RTX: other keys for the same things.
ELEVEN = """{"Layers": [{"Name": "node_of_m_myl0_1", "LayerType": "gemm",
  "Inputs": [{"Name": "x", "Dimensions": [-1,4], "Datatype": "Float", "Format": "(Linear) Row major linear format"}],
  "Outputs": [{"Name": "y", "Dimensions": [-1,4], "Datatype": "Half", "Format": "(Linear) Row major linear format"}],
  "TacticName": "__myelin_CASK_STUB", "StreamId": 0, "Metadata": "[ONNX Layer: node_of_m][ONNX Layer: node_of_y]"}]}"""


def test_layers_of_8_6_are_read():
    reformat, layer, *_ = parse_layers(inspected.eight_fp16())

    assert (layer.name, layer.op, layer.precision) == ("conv0 + relu0", "CaskConvolution", "fp16")
    assert (layer.tactic, layer.tactic_value) == ("sm80_xmma_fp16_a", "0x1c20c3fa4f0b2a14")
    assert layer.outputs[0].format == "Channel major FP16 format where channel % 8 == 0"
    assert layer.inputs[0].shape == (1, 64, 28, 28)
    assert layer.weights == (("fp16", 36864), ("fp16", 64))
    assert layer.onnx_nodes == ("conv0", "relu0")
    assert reformat.precision == "fp32"
    assert layer.to_layer().tactic == "sm80_xmma_fp16_a #0x1c20c3fa4f0b2a14"


@pytest.mark.parametrize(
    ("form", "weights", "expected"),
    [(inspected.LINEAR, "Int8", "int8"), (inspected.CHANNELS, "Float", "fp16"), (inspected.LINEAR, "Float", "fp32")],
)
def test_narrower_of_input_and_weights_decides(form: str, weights: str, expected: str) -> None:
    x = inspected.tensor("x", form)
    (layer,) = parse_layers(inspected.text(inspected.layer("conv0", x, x, "sm80_a", "conv0", weights=weights)))

    assert layer.precision == expected


def test_layers_of_11_are_read_as_well():
    (layer,) = parse_layers(ELEVEN)

    assert (layer.precision, layer.outputs[0].dtype) == ("fp32", "fp16")
    assert layer.to_layer().onnx_nodes == ("node_of_m", "node_of_y")
    bare = parse_layers('{"Layers": ["conv0", "conv1"], "Bindings": []}')  # an engine built without details
    assert [layer.name for layer in bare] == ["conv0", "conv1"]


def test_names_with_brackets_stay_whole():
    (layer,) = parse_layers(ELEVEN.replace("node_of_m][", "blocks[0].m]\x1e["))

    assert layer.onnx_nodes == ("blocks[0].m", "node_of_y")


def test_narrow_weights_alone_are_no_precision():
    (layer,) = parse_layers(ELEVEN.replace('"StreamId": 0', '"Weights": {"Type": "Int4", "Count": 64}'))

    assert layer.precision == "fp32"


def test_damaged_inspector_answers_are_handled(monkeypatch):
    damaged = inspected.eight_fp16()[:300]
    with pytest.raises(errors.FormatError):
        parse_layers(damaged)

    monkeypatch.setattr(library, "load", lambda: api.stand_in("8.6.0"))
    answers = ['{"Name": "conv0 + relu0", "LayerType": "Cask', ""]
    inspector = SimpleNamespace(
        get_engine_information=lambda kind: damaged, get_layer_information=lambda index, kind: answers[index]
    )
    engine = SimpleNamespace(create_engine_inspector=lambda: inspector, num_layers=2)
    assert [layer.name for layer in read_layers(engine)] == ["conv0 + relu0", "layer 1"]


def test_engine_text_lists_each_profile():
    layers = parse_layers(inspected.eight_fp16())[1:]
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
    assert f"{{x half [dtype=float16, shape=(1, 64, 28, 28), Format: {inspected.CHANNELS}]}}" in lines
    assert "Tactic = 0x1c20c3fa4f0b2a14" in lines and "---- 4 Layer(s) Per Profile ----" in lines
    assert described.text().splitlines()[-1] == "    ---- 4 Layer(s) Per Profile ----"


FP16_TIMES = {
    "conv0 + relu0": 0.02, "conv1 + relu1": 0.03, "conv2": 0.01, "Reformatting CopyNode for Input Tensor 0 to y": 0.004,
}  # fmt: skip
INT8_TIMES = {
    "conv0 + relu0": 0.01, "conv1": 0.02, "PWN(relu1)": 0.005, "conv2": 0.005,
    "Reformatting CopyNode for Input Tensor 0 to conv0 + relu0": 0.001,
    "Reformatting CopyNode for Input Tensor 0 to conv1": 0.002,
    "Reformatting CopyNode for Input Tensor 0 to conv2": 0.05,
}  # fmt: skip


def engine(text: str, times: dict[str, float] | None = None) -> EngineLayers:
    return EngineLayers(parse_layers(text), times or {})


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("conv0 + relu0", ("conv0", "relu0")),
        ("q || k || v", ("q", "k", "v")),
        ("PWN(sigmoid, mul)", ("sigmoid", "mul")),
        ("conv0 + PWN(PWN(a), b)", ("conv0", "a", "b")),
        ("{ForeignNode[first...last]}", ("first", "last")),
        ("conv1_myl0_12", ("conv1",)),
        ("__myl_MoveCast_myl0_3", ()),
        ("(Unnamed Layer* 3) [Shuffle]", ()),
        ("Reformatting CopyNode for Output Tensor 0 to conv0", ()),
    ],
)
def test_layer_without_metadata_uses_its_name(name: str, nodes: tuple[str, ...]) -> None:
    assert nodes_of(LayerDescription(name=name)) == nodes


def test_metadata_takes_precedence_over_names() -> None:
    assert nodes_of(LayerDescription(name="whatever_myl0_1", onnx_nodes=("a", "b", "a"))) == ("a", "b")
    assert nodes_of(LayerDescription(name="x", op="Reformat", onnx_nodes=("a",))) == ()


def test_fused_and_separate_layers_share_a_row() -> None:
    alignment = align(engine(inspected.eight_fp16()), engine(inspected.eight_int8()))

    assert [row.nodes for row in alignment.rows] == [("conv0", "relu0"), ("conv1", "relu1"), ("conv2",)]
    assert all(row.aligned for row in alignment.rows)
    middle = alignment.rows[1]
    assert (middle.a.layers, middle.b.layers) == (("conv1 + relu1",), ("conv1", "PWN(relu1)"))
    assert (alignment.rows[0].a.precisions, alignment.rows[0].b.precisions) == (("fp16",), ("int8",))
    assert alignment.rows[0].a.reads == "fp16 Channel major where channel % 8 == 0"
    assert alignment.rows[2].b.writes == "fp32 Row major linear"
    assert alignment.rows[0].b.tactics == ("sm80_i8_a #0x1c20c3fa4f0b2a14",)
    assert alignment.share("a") == alignment.share("b") == 1
    assert all(row.change_ms is None for row in alignment.rows)
    # Boundaries without times are sorted by bytes; the last is the input that both engines read.
    assert [abs(b.a.bytes - b.b.bytes) for b in alignment.boundaries] == [64 * 28 * 28 * n for n in (6, 3, 3, 1)]
    assert alignment.boundaries[-1].before == ()


def test_most_expensive_boundary_is_first() -> None:
    alignment = align(engine(inspected.eight_fp16(), FP16_TIMES), engine(inspected.eight_int8(), INT8_TIMES))

    slowest = alignment.boundaries[0]
    assert (slowest.before, slowest.after) == (("conv1", "relu1"), ("conv2",))
    assert (slowest.a.layers, slowest.b.ms) == ((), 0.05)
    assert slowest.b.conversions == (
        "fp16 Channel major where channel % 8 == 0 -> int8 Thirty-two wide channel vectorized row major",
    )
    assert slowest.b.bytes == 64 * 28 * 28 * 3
    assert [(b.before[:1], b.after[:1]) for b in alignment.boundaries[1:]] == [
        (("conv2",), ()), (("conv0",), ("conv1",)), ((), ("conv0",)),
    ]  # fmt: skip
    assert [round(row.change_ms or 0, 4) for row in alignment.rows] == [-0.01, -0.005, -0.005]


def test_myelin_regions_are_aligned_by_nodes() -> None:
    alignment = align(engine(inspected.eight_fp16()), engine(inspected.ten()))

    assert [row.nodes for row in alignment.rows] == [("conv0", "relu0", "conv1", "relu1"), ("conv2",)]
    assert alignment.rows[0].a.layers == ("conv0 + relu0", "conv1 + relu1")
    assert alignment.rows[0].b.tactics == ("__myl_ConvReluConvRelu_0x5678",)
    cast = next(b for b in alignment.boundaries if b.b.layers)
    assert (cast.before, cast.after[:1], cast.b.layers) == ((), ("conv0",), ("__myl_Cast_myl0_0",))


@pytest.mark.parametrize(
    ("quantized", "times", "losing"),
    [
        (("conv0", "conv2"), {}, ("conv2",)),  # its conversion takes longer than it saves
        (("conv0", "conv1", "conv2"), {}, ("conv0", "conv1", "conv2")),  # the engine is slower, and no part of it alone
        (("conv0", "conv1", "conv2"), {"conv1": 0.0, "conv0 + relu0": 0.0, "PWN(relu1)": 0.0}, ()),
        (("conv0",), {"conv0 + relu0": 0.018}, ()),
        (("conv0",), {"conv0 + relu0": 0.019}, ("conv0",)),  # equal
        (("elsewhere",), {}, ()),  # in no layer of either engine
    ],
)
def test_nodes_that_8_bits_slow_down(
    quantized: tuple[str, ...], times: dict[str, float], losing: tuple[str, ...]
) -> None:
    low, eight = engine(inspected.eight_fp16(), FP16_TIMES), engine(inspected.eight_int8(), INT8_TIMES | times)

    assert losing_in_8_bits(low, eight, quantized) == losing


def test_compiled_regions_lose_as_a_whole() -> None:
    """A ViT on an H100 with TensorRT 8.6: the compiler gains nothing, and the first convolution loses."""

    def layers(region: str, conversion: str, *times: float) -> EngineLayers:
        named = [(conversion, "x", "a"), ("conv", "a", "b"), (f"{{ForeignNode[{region}...end]}}", "b", "y")]
        engine_layers = tuple(
            LayerDescription(name=n, op="", inputs=(TensorDescription(name=i),), outputs=(TensorDescription(name=o),))
            for n, i, o in named
        )
        return EngineLayers(engine_layers, dict(zip((n for n, *_ in named), times)))

    low = layers("reshape", "Reformatting CopyNode for conv", 0.018, 0.045, 0.302)
    for region, losing in ((0.318, ("conv", "mm")), (0.290, ("conv",))):
        eight = layers("w0", "Reformatting CopyNode for x", 0.052, 0.107, region)
        assert losing_in_8_bits(low, eight, ("conv", "mm")) == losing


def test_what_one_engine_alone_has_is_not_aligned() -> None:
    fewer = inspected.text(*json.loads(inspected.eight_fp16(), strict=False)["Layers"][:3])
    alignment = align(engine(inspected.eight_fp16(), FP16_TIMES), engine(fewer))

    assert [row.nodes for row in alignment.rows if not row.aligned] == [("conv2",)]
    assert alignment.share("a") == pytest.approx(0.05 / 0.064)  # without the last layer and the copy behind it
    assert alignment.share("b") == 1
