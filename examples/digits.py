"""The model and the data of the demo: real handwritten digits, and a small convolutional classifier fitted on them.

The images are the digits data set of scikit-learn: 1,797 of 8 by 8 pixels. Two convolution layers have fixed random
filters; the layer after them is fitted by logistic regression on two thirds of the images. The last third is held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser
from onnx.numpy_helper import from_array

CALIBRATION_IMAGES = 64
FILTERS = (24, 48)

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
digits (float[N,1,8,8] image) => (float[N,10] scores) {
    [conv_0] conv_0 = Conv <pads = [1, 1, 1, 1]> (image, filters_0)
    [relu_0] relu_0 = Relu (conv_0)
    [conv_1] conv_1 = Conv <pads = [1, 1, 1, 1]> (relu_0, filters_1)
    [relu_1] relu_1 = Relu (conv_1)
    [pool] pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (relu_1)
    [flatten] features = Flatten (pooled)
    [head] scores = Gemm <transB = 1> (features, head, bias)
}"""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The files of the demo."""

    model: Path  # image, (N, 1, 8, 8), float32 in [0, 1], to scores, (N, 10), float32
    images: Path  # the held-out images, one feed, as .npz
    labels: Path  # their digits, as .npy
    calibration: Path  # some of the fitted images, to calibrate INT8 with


def make_digits(folder: Path) -> Digits:
    """Fit the classifier and write model, images and labels to a folder: the same bytes every time on a machine."""
    from onnx.reference import ReferenceEvaluator
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    pixels, digits = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    fitted, held_out = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]

    rng, weights = np.random.default_rng(1), {}
    for layer, shape in enumerate(((FILTERS[0], 1, 3, 3), (FILTERS[1], FILTERS[0], 3, 3))):
        # Without mean and of length one, so that filters see edges, and all of them at the same scale.
        filters = rng.standard_normal(shape)
        filters -= filters.mean(axis=(1, 2, 3), keepdims=True)
        filters /= np.sqrt(np.square(filters).sum(axis=(1, 2, 3), keepdims=True))
        weights[f"filters_{layer}"] = filters.astype(np.float32)
    weights |= {"head": np.zeros((10, 16 * FILTERS[1]), np.float32), "bias": np.zeros(10, np.float32)}
    features: Any = ReferenceEvaluator(_make_model(weights)).run(["features"], {"image": images[fitted]})
    scale = float(np.std(features[0]))
    head = LogisticRegression(max_iter=300).fit(features[0] / scale, digits[fitted])
    weights |= {"head": (head.coef_ / scale).astype(np.float32), "bias": head.intercept_.astype(np.float32)}

    folder.mkdir(parents=True, exist_ok=True)
    files = Digits(
        model=folder / "digits.onnx",
        images=folder / "held_out_images.npz",
        labels=folder / "held_out_labels.npy",
        calibration=folder / "calibration_images.npz",
    )
    onnx.save(_make_model(weights), files.model)
    np.savez(files.images, image=images[held_out])
    np.save(files.labels, digits[held_out].astype(np.int64))
    np.savez(files.calibration, image=images[fitted[:CALIBRATION_IMAGES]])
    return files


def _make_model(weights: dict[str, Any]) -> onnx.ModelProto:
    model = parser.parse_model(_MODEL)
    model.graph.initializer.extend(from_array(values, name) for name, values in weights.items())
    onnx.checker.check_model(model, full_check=True)
    return model
