"""Metrics of classes: top-k accuracy, expected calibration error, mean IoU of segmentation, retrieval at k."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array
from trtops.comparator.tasks.interval import Sampled, from_sums, mean_of
from trtops.comparator.tasks.outputs import TaskOutputs, check_count, integers

_BINS = 15  # of the calibration error (Guo et al., On Calibration of Modern Neural Networks, 2017)


def _class_scores(outputs: TaskOutputs, labels: Any) -> tuple[Array, Array, int]:
    """Return scores ``(positions, classes)``, the class of each position, and the number of samples.

    The output is one whose axis of classes is known, or else a floating-point output with as many positions as there
    are labels, along its last axis or its second.
    """
    classes = integers(labels).reshape(-1)
    floating = dict[str, Array]()
    for name, first in outputs.iterations[0].items():
        if first.ndim > 1 and first.dtype.kind == "f":
            floating[name] = outputs.array(name)
    axes = [(name, outputs.class_axes[name]) for name in floating if name in outputs.class_axes]
    axes += [(name, axis) for name in floating for axis in (-1, 1) if outputs.iterations[0][name].shape[axis] > 1]
    for name, axis in axes:
        scores = floating[name]
        if scores.dtype == object or classes.max(initial=0) >= scores.shape[axis]:
            continue
        if scores.size == classes.size * scores.shape[axis] > 0:
            return np.moveaxis(scores, axis, -1).reshape(classes.size, -1), classes, len(scores)
    shapes = ", ".join(f"{name} {scores.shape}" for name, scores in floating.items())
    raise errors.ComparisonError(
        f"There are {classes.size} labels, up to {classes.max(initial=0)}, and no output holds scores of as many "
        "samples and classes; expected a floating-point output of shape (..., classes). Outputs with scores: "
        f"{shapes or 'none'}."
    )


def top_k(outputs: TaskOutputs, labels: Any, *, k: int) -> Sampled:
    """Return the share of samples whose class is among the k best; NaN is never right."""
    scores, classes, samples = _class_scores(outputs, labels)
    labelled = scores[np.arange(len(scores)), classes]
    # Of equal scores the first counts, as for argmax.
    before = np.arange(scores.shape[1]) < classes[:, None]
    better = (scores > labelled[:, None]) | ((scores == labelled[:, None]) & before)
    right = (better.sum(axis=1) < k) & ~np.isnan(scores).any(axis=1)
    return mean_of(right.reshape(samples, -1).mean(axis=1))


@np.errstate(invalid="ignore")  # NaN and infinite scores make the metric NaN
def calibration_error(outputs: TaskOutputs, labels: Any) -> Sampled:
    """Return the expected calibration error of the best class, in 15 bins; logits become probabilities."""
    scores, classes, samples = _class_scores(outputs, labels)
    scores = scores.astype(np.float64)
    sums = scores.sum(axis=1, keepdims=True)
    if (scores < 0).any() or (np.abs(sums - 1) > 0.01).any():
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        sums = scores.sum(axis=1, keepdims=True)
    confidence = (scores / sums).max(axis=1)
    gap = confidence - (scores.argmax(axis=1) == classes)
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    parts = np.zeros((samples, _BINS + 1))
    np.add.at(parts, (np.arange(len(gap)) * samples // len(gap), bins), gap)
    parts[:, _BINS] = len(gap) / samples
    return from_sums(parts, lambda sums: np.abs(sums[:, :_BINS]).sum(axis=1) / sums[:, _BINS])


def mean_iou(outputs: TaskOutputs, labels: Any) -> Sampled:
    """Return the mean over classes of intersection over union, of all samples together; label 255 is ignored."""
    classes = integers(labels)

    def fits(array: Array) -> bool:
        is_map = array.shape == classes.shape and array.dtype.kind in "iu"
        return is_map or (array.dtype.kind == "f" and array.shape[:1] + array.shape[2:] == classes.shape)

    scores = outputs.first(
        fits, f"a map of classes, or their scores (samples, classes, ...), for labels {classes.shape}"
    )
    if scores.dtype.kind in "iu":
        best = scores
    else:  # NaN is a class of its own
        best = np.where(np.isnan(scores).any(axis=1), scores.shape[1], scores.argmax(axis=1))
    count = int(max(best.max(), classes[classes != 255].max(initial=0))) + 1
    parts = np.zeros((len(classes), 2, count))
    for number, (ours, theirs) in enumerate(zip(best, classes)):
        counted = theirs != 255
        ours, theirs = ours[counted].astype(int), theirs[counted].astype(int)
        common = np.bincount(theirs[ours == theirs], minlength=count)
        parts[number] = common, np.bincount(ours, minlength=count) + np.bincount(theirs, minlength=count) - common

    def value(sums: Array) -> Array:
        common, union = np.split(sums, 2, axis=1)
        occurs = union > 0
        shares = np.divide(common, union, out=np.zeros_like(common), where=occurs)
        means: Array = shares.sum(axis=1) / np.maximum(occurs.sum(axis=1), 1)
        return means

    return from_sums(parts.reshape(len(classes), -1), value)


def retrieval(outputs: TaskOutputs, labels: Any, *, k: int) -> Sampled:
    """Return the share of samples with one of their class among the k nearest other samples, by cosine."""
    classes = integers(labels).reshape(-1)
    vectors = outputs.first(lambda array: array.ndim == 2 and array.dtype.kind == "f", "embeddings (samples, size)")
    check_count(len(vectors), len(classes))
    vectors = vectors.astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    retrieved = np.zeros(len(classes), bool)
    for start in range(0, len(classes), 1024):  # not all pairs are in memory
        rows = np.arange(start, min(start + 1024, len(classes)))
        similarity = vectors[rows] @ vectors.T
        similarity[np.arange(len(rows)), rows] = -np.inf
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        retrieved[rows] = (classes[nearest] == classes[rows, None]).any(axis=1)
    return mean_of(retrieved & ~np.isnan(vectors).any(axis=1))


top1, top5 = partial(top_k, k=1), partial(top_k, k=5)
retrieval1, retrieval5 = partial(retrieval, k=1), partial(retrieval, k=5)
