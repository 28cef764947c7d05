"""Metrics of detection: COCO's mAP by pycocotools, the model's boxes in the engine, and the drift of their scores."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array
from trtops.comparator.tasks.interval import Sampled, from_sums, ratio
from trtops.comparator.tasks.outputs import TaskOutputs, check_count
from trtops.extras import require

Detections: TypeAlias = "tuple[Array, Array, Array]"
"""Boxes ``(boxes, 4)`` as x1, y1, x2, y2, their scores and their classes, of one image."""

_MATCH_IOU = 0.5
_RECALLS = np.linspace(0, 1, 101)
_AP_DRAWS = 200


def _detections(outputs: TaskOutputs) -> Iterator[Detections]:
    """Yield the detections of each image, from outputs named like boxes, scores, classes and their number."""
    names = [outputs.named(*words) for words in (("box",), ("score", "conf"), ("class", "label"))]
    if None in names:
        raise errors.ComparisonError(
            f"The outputs are {', '.join(outputs.iterations[0])}; detection expects one named like boxes (x1, y1, x2, "
            "y2), one like scores and one like classes or labels. Others need a metric of your own "
            "(script.py:function)."
        )
    number = outputs.named("num", "count")
    for iteration in outputs.iterations:
        boxes, scores, classes = (np.asarray(iteration[str(name)]) for name in names)
        if boxes.ndim == 2:
            boxes, scores, classes = boxes[None], scores[None], classes[None]
        counts = np.asarray(iteration[number]).ravel() if number else [boxes.shape[1]] * len(boxes)
        for row, count in enumerate(counts):
            corners = boxes[row].reshape(-1, 4)[: int(count)]
            confidence, category = scores[row].reshape(-1)[: int(count)], classes[row].reshape(-1)[: int(count)]
            # Rows of zeros are padding, and pycocotools matches boxes of NaN with any.
            kept = (confidence > 0) & np.isfinite(corners).all(axis=1)
            yield corners[kept], confidence[kept], category[kept].astype(int)


def _matches(outputs: TaskOutputs, golden: TaskOutputs) -> Iterator[tuple[Array, Array, Array]]:
    """Yield for each image the model's scores, the IoU of each box's match in the engine (0: none), and its score."""
    pairs = zip(_detections(outputs), _detections(golden))
    for (boxes, scores, classes), (their_boxes, their_scores, their_classes) in pairs:
        low = np.maximum(their_boxes[:, None, :2], boxes[None, :, :2])
        high = np.minimum(their_boxes[:, None, 2:], boxes[None, :, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=2, dtype=np.float64)
        sizes = [np.prod(sides[:, 2:] - sides[:, :2], axis=1, dtype=np.float64) for sides in (their_boxes, boxes)]
        union = sizes[0][:, None] + sizes[1][None] - common
        iou = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
        iou[their_classes[:, None] != classes[None]] = 0
        overlap, matched = np.zeros(len(their_boxes)), np.zeros(len(their_boxes))
        for number in np.argsort(-their_scores, kind="stable") if len(boxes) else ():
            best = int(iou[number].argmax())
            overlap[number], matched[number] = iou[number, best], scores[best]
            iou[:, best] = 0  # a box matches once
        yield their_scores.astype(np.float64), overlap, matched


def matched_boxes(outputs: TaskOutputs, golden: TaskOutputs) -> Sampled:
    """Return the mean IoU of the model's boxes with the engine's of the same class, weighted by squared scores."""
    parts = [(score**2 @ overlap, (score**2).sum()) for score, overlap, _ in _matches(outputs, golden)]
    return from_sums(np.array(parts), ratio)


def score_drift(outputs: TaskOutputs, golden: TaskOutputs) -> Sampled:
    """Return the mean change of scores of boxes with an IoU of 0.5 or more, weighted by squared scores."""
    parts = list[tuple[float, float]]()
    for score, overlap, matched in _matches(outputs, golden):
        weight = np.where(overlap >= _MATCH_IOU, score**2, 0)
        parts.append((float(weight @ np.abs(score - matched)), float(weight.sum())))
    return from_sums(np.array(parts), ratio)


def mean_ap(outputs: TaskOutputs, labels: Any) -> Sampled:
    """Return COCO's mAP at IoU 0.5 to 0.95.

    The labels are COCO's annotations. The images of the file are in the order of the data, boxes are in their pixels,
    and classes are ids of its categories.
    """
    require("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not isinstance(labels, dict) or not {"images", "annotations", "categories"} <= labels.keys():
        raise errors.ComparisonError("The labels are not COCO's: expected images, annotations and categories in JSON.")
    images = [image["id"] for image in labels["images"]]
    detections = list(_detections(outputs))
    check_count(len(detections), len(images))
    detected = list[dict[str, Any]]()
    for image, (boxes, scores, classes) in zip(images, detections):
        corners, sides = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64) - boxes[:, :2]
        for box, score, category in zip(np.hstack((corners, sides)).tolist(), scores.tolist(), classes.tolist()):
            detected.append({"image_id": image, "category_id": category, "score": score, "bbox": box})
    categories = {category["id"] for category in labels["categories"]}
    if detected and not categories & {entry["category_id"] for entry in detected}:
        raise errors.ComparisonError("No class of the outputs is the id of a category of the labels.")
    truth = [{"iscrowd": 0, "area": box["bbox"][2] * box["bbox"][3], **box} for box in labels["annotations"]]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        coco = COCO()
        coco.dataset = {**labels, "annotations": truth}
        coco.createIndex()
        # A class of pycocotools, which evaluates boxes and no code.
        evaluation = COCOeval(coco, coco.loadRes(detected) if detected else COCO(), "bbox")
        evaluation.params.imgIds = images
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.evaluate()
    place = {image: number for number, image in enumerate(images)}
    curves = list[tuple[Array, Array, Array, Array]]()
    for category in evaluation.params.catIds:
        entries = [entry for entry in evaluation.evalImgs if entry is not None and entry["category_id"] == category]
        curves += [_ranked(entries, place)] if entries else []
    return Sampled(len(images), lambda weights: _average_precision(weights, curves), draws=_AP_DRAWS)


def _ranked(entries: list[dict[str, Any]], place: dict[Any, int]) -> tuple[Array, Array, Array, Array]:
    """Return a category's detections by falling score: image, hit and miss per IoU; and boxes to find per image."""
    scores = np.concatenate([entry["dtScores"] for entry in entries])
    order = np.argsort(-scores, kind="mergesort")
    image = np.concatenate([np.full(len(entry["dtScores"]), place[entry["image_id"]]) for entry in entries])[order]
    hit = np.concatenate([entry["dtMatches"] for entry in entries], axis=1)[:, order] > 0
    ignored = np.concatenate([entry["dtIgnore"] for entry in entries], axis=1)[:, order] > 0
    to_find = np.zeros(len(place))
    for entry in entries:
        to_find[place[entry["image_id"]]] += np.count_nonzero(np.asarray(entry["gtIgnore"]) == 0)
    return image.astype(int), hit & ~ignored, ~hit & ~ignored, to_find


def _average_precision(weights: Array, curves: list[tuple[Array, Array, Array, Array]]) -> Array:
    """Return the mean AP over categories and IoUs of each draw, as COCOeval accumulates it; 0 without boxes to find."""
    total, count = np.zeros(len(weights)), np.zeros(len(weights))
    for image, hits, misses, to_find in curves:
        wanted = weights @ to_find
        counted = wanted > 0
        drawn = weights[:, image]
        for hit, miss in zip(hits, misses):
            right, wrong = np.cumsum(drawn * hit, axis=1), np.cumsum(drawn * miss, axis=1)
            precision = right / np.maximum(right + wrong, np.spacing(1))
            precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
            for draw in np.flatnonzero(counted):
                at = np.searchsorted(right[draw] / wanted[draw], _RECALLS, side="left")
                total[draw] += precision[draw][at[at < len(image)]].sum() / len(_RECALLS)
        count += counted * len(hits)
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)
