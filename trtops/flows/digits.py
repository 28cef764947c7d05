"""The demo's model and data: real handwritten digits, and a small convolutional classifier fitted on them.

The images are the digits data set that comes with scikit-learn: 1,797 of 8 by 8 pixels. Two convolution layers have
fixed filters, drawn once from a seed; the head on top of them is fitted by logistic regression on two thirds of the
images. The last third is held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CALIBRATION_IMAGES = 64
FILTERS = (24, 48)


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Files of the demo.

    Attributes:
        model: ``image`` of shape (N, 1, 8, 8), float32 in [0, 1], to ``scores`` of shape (N, 10), float32.
        images: The held-out images, one feed, as ``.npz``.
        labels: Their digits, as ``.npy``.
        calibration: A few of the fitted images, to calibrate INT8 with, as ``.npz``.
    """

    model: Path
    images: Path
    labels: Path
    calibration: Path


def make_digits(folder: Path) -> Digits:
    """Fit the classifier and write model, images and labels into ``folder``. The same bytes every time on a machine."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    fitted, held_out = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]

    folder.mkdir(parents=True, exist_ok=True)
    files = Digits(
        model=folder / "digits.onnx",
        images=folder / "held_out_images.npz",
        labels=folder / "held_out_labels.npy",
        calibration=folder / "calibration_images.npz",
    )
    onnx.save(_fit_classifier(images[fitted], digits[fitted]), str(files.model))
    np.savez(files.images, image=images[held_out])
    np.save(files.labels, digits[held_out].astype(np.int64))
    np.savez(files.calibration, image=images[fitted[:CALIBRATION_IMAGES]])
    return files


def _fit_classifier(images: NDArray[np.float32], digits: NDArray[Any]) -> onnx.ModelProto:
    from onnx.reference import ReferenceEvaluator
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    filters = [_random_filters(rng, 1, FILTERS[0]), _random_filters(rng, FILTERS[0], FILTERS[1])]
    outputs: Any = ReferenceEvaluator(_make_network(filters)).run(None, {"image": images})
    features: NDArray[np.float32] = outputs[0]
    scale = float(np.std(features))
    head = LogisticRegression(max_iter=300).fit(features / scale, digits)
    return _make_network(filters, (head.coef_ / scale).astype(np.float32), head.intercept_.astype(np.float32))


def _random_filters(rng: np.random.Generator, channels: int, count: int) -> NDArray[np.float32]:
    """3 by 3 filters of zero mean and unit norm."""
    weights: NDArray[np.float64] = rng.standard_normal((count, channels, 3, 3))
    weights -= weights.mean(axis=(1, 2, 3), keepdims=True)
    weights /= np.sqrt(np.square(weights).sum(axis=(1, 2, 3), keepdims=True))
    return weights.astype(np.float32)


def _make_network(
    filters: list[NDArray[np.float32]],
    weight: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
) -> onnx.ModelProto:
    """The layers up to the features, and up to the scores if there is a head."""
    size = 4 * 4 * FILTERS[1]
    nodes = [
        helper.make_node("Conv", ["image", "filters_0"], ["conv_0"], "conv_0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv_0"], ["relu_0"], "relu_0"),
        helper.make_node("Conv", ["relu_0", "filters_1"], ["conv_1"], "conv_1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv_1"], ["relu_1"], "relu_1"),
        helper.make_node("MaxPool", ["relu_1"], ["pooled"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["features"], "flatten"),
    ]
    weights = [numpy_helper.from_array(f, f"filters_{i}") for i, f in enumerate(filters)]
    output = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", size])
    if weight is not None and bias is not None:
        nodes.append(helper.make_node("Gemm", ["features", "head", "bias"], ["scores"], "head", transB=1))
        weights += [numpy_helper.from_array(weight, "head"), numpy_helper.from_array(bias, "bias")]
        output = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 10])
    graph = helper.make_graph(
        nodes, "digits", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])], [output], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model
