"""What the engine inspector of 8.6 and of 10.x prints of a chain of convolutions.

- ``EIGHT_FP16`` and ``EIGHT_INT8``: 8.6.0 with detailed verbosity, from GPU runs of this project: fused layers are
  named by their nodes with `` + `` between them and list these in ``Metadata`` after a raw control character; copies
  between formats are layers of type ``Reformat``, named after their layer, with a tactic value and no name.
- ``TEN``: 10.x as in NVIDIA's samples for its engine explorer: layers that Myelin compiled are named ``_myl0_`` and a
  number, have a kernel's name and no value, and list many nodes; a whole region is a ``ForeignNode`` of two nodes.
"""

import json
from typing import Any

LINEAR, CHANNELS, VECTORS = (
    "Row major linear FP32",
    "Channel major FP16 format where channel % 8 == 0",
    "Thirty-two wide channel vectorized row major Int8 format",
)


def tensor(name: str, form: str, *shape: int) -> dict[str, Any]:
    return {"Name": name, "Location": "Device", "Dimensions": list(shape or (1, 64, 28, 28)), "Format/Datatype": form}


def layer(
    name: str, read: dict[str, Any], write: dict[str, Any], tactic: str, *nodes: str, weights: str = "Half"
) -> dict[str, Any]:
    return {
        "Name": name, "LayerType": "CaskConvolution", "Inputs": [read], "Outputs": [write],
        "ParameterType": "Convolution",
        "Weights": {"Type": weights, "Count": 36864}, "Bias": {"Type": weights, "Count": 64},
        "TacticName": f"{tactic} ", "TacticValue": "0x1c20c3fa4f0b2a14", "StreamId": 0,
        "Metadata": "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes),
    }  # fmt: skip


def copy(target: str, read: dict[str, Any], write: dict[str, Any]) -> dict[str, Any]:
    return {
        "Name": f"Reformatting CopyNode for Input Tensor 0 to {target}", "LayerType": "Reformat", "Inputs": [read],
        "Outputs": [write], "ParameterType": "Reformat", "Origin": "REFORMAT", "TacticValue": "0x00000000000003e8",
        "StreamId": 0, "Metadata": "",
    }  # fmt: skip


def text(*layers: dict[str, Any]) -> str:
    """The JSON as the inspector prints it: control characters stay as they are."""
    return json.dumps({"Layers": layers, "Bindings": ["x", "y"]}, indent=1).replace("\\u001e", "\x1e")


def eight_fp16() -> str:
    return text(
        copy("conv0 + relu0", tensor("x", LINEAR), tensor("x half", CHANNELS)),
        layer("conv0 + relu0", tensor("x half", CHANNELS), tensor("a", CHANNELS), "sm80_xmma_fp16_a", "conv0", "relu0"),
        layer("conv1 + relu1", tensor("a", CHANNELS), tensor("b", CHANNELS), "sm80_xmma_fp16_b", "conv1", "relu1"),
        layer("conv2", tensor("b", CHANNELS), tensor("y half", CHANNELS), "sm80_xmma_fp16_b", "conv2"),
        copy("y", tensor("y half", CHANNELS), tensor("y", LINEAR)),
    )


def eight_int8() -> str:
    """The middle convolution stays in FP16, between two copies; the last has no relu of its own."""
    return text(
        copy("conv0 + relu0", tensor("x", LINEAR), tensor("x int8", VECTORS)),
        layer(
            "conv0 + relu0", tensor("x int8", VECTORS), tensor("a", VECTORS), "sm80_i8_a", "conv0", "relu0",
            weights="Int8",
        ),
        copy("conv1", tensor("a", VECTORS), tensor("a half", CHANNELS)),
        layer("conv1", tensor("a half", CHANNELS), tensor("c", CHANNELS), "sm80_xmma_fp16_b", "conv1"),
        {
            **layer("PWN(relu1)", tensor("c", CHANNELS), tensor("b", CHANNELS), "generatedNativePointwise"),
            "LayerType": "PointWiseV2",
         "ParameterType": "PointWise", "Weights": {"Type": "Float", "Count": 0}},
        copy("conv2", tensor("b", CHANNELS), tensor("b int8", VECTORS)),
        layer("conv2", tensor("b int8", VECTORS), tensor("y", LINEAR), "sm80_i8_b", "conv2", weights="Int8"),
    )  # fmt: skip


def ten() -> str:
    """One kernel for two convolutions, another for the rest."""

    def myelin(number: int, read: str, write: str, kernel: str, *nodes: str) -> dict[str, Any]:
        return {
            "Name": f"{nodes[0] if nodes else '__myl_Cast'}_myl0_{number}", "LayerType": "kgen",
            "Inputs": [{"Name": read, "Dimensions": [1, 64, 28, 28], "Format/Datatype": "Half"}],
            "Outputs": [{"Name": write, "Dimensions": [1, 64, 28, 28], "Format/Datatype": "Half"}],
            "TacticName": kernel, "StreamId": 0, "Metadata": "".join(f"[ONNX Layer: {node}]" for node in nodes),
        }  # fmt: skip

    return text(
        myelin(0, "x", "x'", "__myl_Cast_0x1234"),
        myelin(1, "x'", "b", "__myl_ConvReluConvRelu_0x5678", "conv0", "relu0", "conv1", "relu1"),
        myelin(2, "b", "y", "sm80_xmma_fprop", "conv2"),
    )
