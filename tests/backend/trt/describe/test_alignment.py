"""Layers of two engines, aligned through the nodes that they carry; what was inserted, by the place where it is."""

from __future__ import annotations

import json

import pytest

from tests.backend.trt.describe import inspected
from trtops.backend.trt.describe.alignment import EngineLayers, align, nodes_of
from trtops.backend.trt.describe.inspector import LayerDescription, parse_layers

FP16_TIMES = {
    "conv0 + relu0": 0.02,
    "conv1 + relu1": 0.03,
    "conv2": 0.01,
    "Reformatting CopyNode for Input Tensor 0 to y": 0.004,
}
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
    found = align(engine(inspected.eight_fp16()), engine(inspected.eight_int8()))

    assert [row.nodes for row in found.rows] == [("conv0", "relu0"), ("conv1", "relu1"), ("conv2",)]
    assert all(row.aligned for row in found.rows)
    middle = found.rows[1]
    assert (middle.a.layers, middle.b.layers) == (("conv1 + relu1",), ("conv1", "PWN(relu1)"))
    assert (found.rows[0].a.precisions, found.rows[0].b.precisions) == (("fp16",), ("int8",))
    assert found.rows[0].a.reads == "fp16 Channel major where channel % 8 == 0"
    assert found.rows[2].b.writes == "fp32 Row major linear"
    assert found.rows[0].b.tactics == ("sm80_i8_a #0x1c20c3fa4f0b2a14",)
    assert found.share("a") == found.share("b") == 1


def test_most_expensive_boundary_is_first() -> None:
    found = align(engine(inspected.eight_fp16(), FP16_TIMES), engine(inspected.eight_int8(), INT8_TIMES))

    slowest = found.boundaries[0]
    assert (slowest.before, slowest.after) == (("conv1", "relu1"), ("conv2",))
    assert (slowest.a.layers, slowest.b.ms) == ((), 0.05)
    assert slowest.b.conversions == (
        "fp16 Channel major where channel % 8 == 0 -> int8 Thirty-two wide channel vectorized row major",
    )
    assert slowest.b.bytes == 64 * 28 * 28 * 3
    assert [(b.before[:1], b.after[:1]) for b in found.boundaries[1:]] == [
        (("conv2",), ()), (("conv0",), ("conv1",)), ((), ("conv0",)),
    ]  # fmt: skip
    assert [round(row.change_ms or 0, 4) for row in found.rows] == [-0.01, -0.005, -0.005]


def test_untimed_boundaries_are_sorted_by_bytes() -> None:
    found = align(engine(inspected.eight_fp16()), engine(inspected.eight_int8()))

    assert [abs(b.a.bytes - b.b.bytes) for b in found.boundaries] == [64 * 28 * 28 * n for n in (6, 3, 3, 1)]
    assert found.boundaries[-1].before == ()  # which both engines read
    assert all(row.change_ms is None for row in found.rows)


def test_myelin_regions_are_aligned_by_nodes() -> None:
    found = align(engine(inspected.eight_fp16()), engine(inspected.ten()))

    assert [row.nodes for row in found.rows] == [("conv0", "relu0", "conv1", "relu1"), ("conv2",)]
    assert found.rows[0].a.layers == ("conv0 + relu0", "conv1 + relu1")
    assert found.rows[0].b.tactics == ("__myl_ConvReluConvRelu_0x5678",)
    cast = next(b for b in found.boundaries if b.b.layers)
    assert (cast.before, cast.after[:1], cast.b.layers) == ((), ("conv0",), ("__myl_Cast_myl0_0",))


def test_what_one_engine_alone_has_is_not_aligned() -> None:
    fewer = inspected.text(*json.loads(inspected.eight_fp16(), strict=False)["Layers"][:3])
    found = align(engine(inspected.eight_fp16(), FP16_TIMES), engine(fewer))

    assert [row.nodes for row in found.rows if not row.aligned] == [("conv2",)]
    assert found.share("a") == pytest.approx(0.05 / 0.064)  # without the last layer and the copy behind it
    assert found.share("b") == 1
