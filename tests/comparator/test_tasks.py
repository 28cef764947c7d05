"""Task metrics: planted regressions are found with their interval, and rounding alone is never refused."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import bundle, compare, convert, errors
from trtops.comparator.results import RunResults
from trtops.comparator.tasks.outputs import TaskOutputs
from trtops.comparator.tasks.scores import METRICS, TaskMetric, parse_loss, score_tasks, task_metrics
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking.memory import MemoryTracker

LIMIT = 0.02


def classification(random):
    labels = random.integers(0, 10, 300)
    logits = random.normal(0, 1, (300, 10))
    logits[np.arange(300), labels] += 3
    return [{"logits": part.astype(np.float32)} for part in np.split(logits, 3)], labels


def detection(random):
    iterations, annotations = [], []
    for image in range(24):
        count = random.integers(2, 7)
        corner, sides = random.uniform(0, 400, (count, 2)), random.uniform(12, 60, (count, 2))
        classes = random.integers(1, 6, count)
        for box, category in zip(np.hstack((corner, sides)).tolist(), classes.tolist()):
            annotations.append({"image_id": image, "category_id": category, "bbox": box, "id": len(annotations) + 1})
        boxes, scores = np.zeros((1, 8, 4), np.float32), np.zeros((1, 8), np.float32)
        boxes[0, :count] = np.hstack((corner, corner + sides)) + random.normal(0, 0.5, (count, 4))
        scores[0, :count] = random.uniform(0.8, 0.9, count)
        iterations.append({"boxes": boxes, "scores": scores, "labels": np.resize(classes, (1, 8))})
    categories = [{"id": number} for number in range(1, 6)]
    return iterations, {
        "images": [{"id": number} for number in range(24)], "annotations": annotations, "categories": categories,
    }  # fmt: skip


def segmentation(random):
    labels = random.integers(0, 4, (12, 16, 16))
    scores = random.normal(0, 1, (12, 4, 16, 16)) + 4 * (np.arange(4)[:, None, None] == labels[:, None])
    return [{"scores": part.astype(np.float32)} for part in np.split(scores, 12)], labels


def text(random):
    tokens = random.integers(0, 50, (100, 40))
    return [{"ids": np.where(random.uniform(size=tokens.shape) < 0.02, 7, tokens)}], tokens


def embeddings(random):
    labels = random.integers(0, 20, 200)
    return [
        {"e": (random.normal(0, 1, (20, 32))[labels] + random.normal(0, 1.5, (200, 32))).astype(np.float32)}
    ], labels


def loses_class(outputs):
    outputs["logits"][:, 3] -= 4


def underconfident(outputs):  # the same classes
    outputs["logits"] /= 4


def collapse(outputs):  # from 0.85 to 0.45
    outputs["scores"] *= np.float32(0.45 / 0.85)


def shift(outputs):
    outputs["boxes"] += 2


def loses_boxes(outputs):
    outputs["boxes"][outputs["labels"] == 3] = np.nan


def loses_region(outputs):
    outputs["scores"][:, 2] -= 3


def late_token(outputs):
    outputs["ids"][::2, 36] += 1


def forgets(outputs):
    outputs["e"][:, ::2] = outputs["e"][:, :1]


PLANTED = [
    (classification, loses_class, "top1", ()),
    (classification, underconfident, "ece", ("top1",)),
    (detection, collapse, "score_drift", ("map", "matched_boxes")),
    (detection, shift, "map", ("score_drift",)),
    (detection, loses_boxes, "map", ("score_drift",)),
    (segmentation, loses_region, "miou", ()),
    (text, late_token, "token_prefix", ()),
    (embeddings, forgets, "retrieval1", ()),
]


def labels_file(folder: Path, labels) -> str:
    if isinstance(labels, dict):
        (folder / "labels.json").write_text(json.dumps(labels))
        return str(folder / "labels.json")
    if isinstance(labels, list):
        (folder / "labels.txt").write_text("\n".join(labels))
        return str(folder / "labels.txt")
    np.save(folder / "labels.npy", labels)
    return str(folder / "labels.npy")


def metrics_of(*names: str) -> list[TaskMetric]:
    for name, package in (("map", "pycocotools"), ("cer", "jiwer")):
        if name in names:
            pytest.importorskip(package)
    return task_metrics(names)


@pytest.mark.parametrize(("task", "plant", "metric", "unchanged"), PLANTED)
def test_planted_regression_is_found(tmp_path: Path, task, plant, metric, unchanged) -> None:
    golden, labels = task(np.random.default_rng(1))
    planted = [{name: array.copy() for name, array in outputs.items()} for outputs in golden]
    for outputs in planted:
        plant(outputs)

    scores = {
        score.metric: score
        for score in score_tasks(
            TaskOutputs(planted), TaskOutputs(golden), metrics_of(metric, *unchanged), labels_file(tmp_path, labels)
        )
    }

    found = scores[metric]
    assert found.decision(LIMIT) == "beyond" and found.low <= found.loss <= found.high and found.low > 0
    assert [scores[name].decision(LIMIT) for name in unchanged] == ["within"] * len(unchanged)


LETTERS = np.array(list("abcdefgh "))


def transcription(random):
    """Letters, which a decoder outside of the engine chooses by their scores."""
    right = random.integers(0, 9, (40, 50))
    scores = random.normal(0, 1, (40, 50, 9)) + 3 * (np.arange(9) == right[..., None])
    return [{"scores": scores.astype(np.float32)}], list(map("".join, LETTERS[right]))


def decoded(outputs):
    return {"text": np.array(list(map("".join, LETTERS[outputs["scores"].argmax(-1)])), object)}


ROUNDED = [
    (classification, ("classification",), 40), (detection, ("matched_boxes", "score_drift"), 40),
    (detection, ("map",), 4), (segmentation, ("segmentation",), 40), (transcription, ("token_prefix",), 40),
    (transcription, ("cer", "wer"), 40), (embeddings, ("embeddings",), 40),
]  # fmt: skip


@pytest.mark.parametrize(("task", "names", "trials"), ROUNDED, ids=lambda part: getattr(part, "__name__", None))
def test_rounding_alone_is_never_refused(tmp_path: Path, task, names, trials) -> None:
    metrics = metrics_of(*names)
    for seed in range(trials):
        random = np.random.default_rng(seed)
        golden, labels = task(random)
        rounded = []
        for outputs in golden:
            noise = {name: 1 + random.uniform(-1, 1, array.shape) * 2**-11 for name, array in outputs.items()}
            floating = {name: array for name, array in outputs.items() if array.dtype.kind == "f"}
            rounded.append({**outputs, **{name: array * noise[name] for name, array in floating.items()}})
        if task is transcription:
            golden, rounded = list(map(decoded, golden)), list(map(decoded, rounded))
        file = labels_file(tmp_path, labels)
        scores = score_tasks(TaskOutputs(rounded), TaskOutputs(golden), metrics, file)
        assert "beyond" not in [score.decision(LIMIT) for score in scores]


def test_map_is_that_of_pycocotools() -> None:
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    iterations, labels = detection(np.random.default_rng(2))
    for outputs in iterations:
        outputs["boxes"] += np.random.default_rng(3).normal(0, 3, outputs["boxes"].shape).astype(np.float32)
    detections = []
    for image, outputs in enumerate(iterations):
        for (x, y, right, bottom), score, category in zip(
            *(outputs[name][0] for name in ("boxes", "scores", "labels"))
        ):
            box = [float(x), float(y), float(right - x), float(bottom - y)]
            entry = {"image_id": image, "category_id": int(category), "bbox": box, "score": float(score)}
            detections += [entry] if score > 0 else []
    coco = COCO()
    boxes = [{**box, "area": box["bbox"][2] * box["bbox"][3], "iscrowd": 0} for box in labels["annotations"]]
    coco.dataset = {**labels, "annotations": boxes}
    coco.createIndex()
    theirs = COCOeval(coco, coco.loadRes(detections), "bbox")
    theirs.evaluate()
    theirs.accumulate()
    theirs.summarize()

    assert METRICS["map"].measure(TaskOutputs(iterations), labels).value == pytest.approx(theirs.stats[0], abs=1e-6)


def test_error_rates_of_text_are_those_of_jiwer() -> None:
    jiwer = pytest.importorskip("jiwer")
    texts, references = ["the cat sat", "a dig ran", ""], ["the cat sat down", "a dog ran", "no"]
    outputs = TaskOutputs([{"text": np.array(texts, object)}])
    for name, theirs in (("wer", jiwer.wer), ("cer", jiwer.cer)):
        assert METRICS[name].measure(outputs, references).value == pytest.approx(theirs(references, texts))


@pytest.mark.parametrize(("metric", "shape"), [("miou", (3, 4, 2, 2)), ("top1", (3, 4)), ("retrieval1", (3, 4))])
def test_nan_is_never_right(metric: str, shape: tuple[int, ...]) -> None:
    outputs = TaskOutputs([{"scores": np.full(shape, np.nan, np.float32)}])
    assert METRICS[metric].measure(outputs, np.zeros(shape[:1] + shape[2:], int)).value == 0


def test_exact_interval_is_that_of_clopper_and_pearson(tmp_path: Path) -> None:
    right, wrong = np.eye(2, dtype=np.float32)
    golden = TaskOutputs([{"s": np.tile(right, (100, 1))}])
    actual = TaskOutputs([{"s": np.vstack([np.tile(wrong, (5, 1)), np.tile(right, (95, 1))])}])
    (score,) = score_tasks(actual, golden, task_metrics(["top1"]), labels_file(tmp_path, np.zeros(100, int)))
    # All of 5 changes are losses: the share of losses is at least 0.025 ** (1 / 5).
    assert score.exact and (score.low, score.high) == pytest.approx(((2 * 0.025**0.2 - 1) * 0.05, 0.05))


OWN = """
def error(outputs, labels):
    return abs(outputs["y"].sum(axis=1) - labels)

error.better = "lower"

def spread(outputs, labels):
    return float(outputs["y"].std())

def broken(outputs, labels):
    return outputs["z"]

def nothing(outputs, labels):
    pass

def undefined(outputs, labels):
    return float("nan")
"""


def test_own_metric_decides_the_verdict(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    model = tmp_path / "relu.onnx"
    onnx.save(models.model("(float[n,4] x) => (float[n,4] y) { y = Relu(x) }"), model)
    x = models.random(40, 4)
    np.savez(tmp_path / "x.npz", x=x)
    golden = RunResults()
    golden.add([{"y": np.maximum(x, 0) + np.float32(0.1)}], runner_name="exact")
    golden.save(tmp_path / "golden.json")
    np.save(tmp_path / "labels.npy", np.maximum(x, 0).sum(axis=1) + 0.4)
    (tmp_path / "own.py").write_text(OWN)
    check = CheckConfig(
        data=str(tmp_path / "x.npz"), metric=(f"{tmp_path}/own.py:error", f"{tmp_path}/own.py:spread"),
        labels=str(tmp_path / "labels.npy"), latency_runs=0,
    )  # fmt: skip
    good = convert(model, ConvertConfig(check=check), loss="1%", tracker=tracker)
    assert good.verdict == "good" and [score.loss for score in good.evaluation.tasks] == [0, 0]

    limits = {"golden": str(tmp_path / "golden.json"), "tolerances": {"atol": 1.0}}
    bad = convert(model, ConvertConfig(check=check), loss="1%", tracker=tracker, **limits)
    assert bad.verdict == "bad" and "a loss of 40 points" in bad.reasons[0] and "error 0.4" in bad.figures
    assert tracker.info(bad.run_id).metrics["loss", "error", "loss"] == pytest.approx(0.4, rel=1e-5)

    compared = compare(model, model, check, tracker=tracker)
    assert compared.verdict == "good" and "error 0.4 (model 0.4)" in compared.figures

    # A bundle has no labels: it names the metrics that it does not repeat, and is refused if they alone are bad.
    bundled = bundle(good.run_id, output=str(tmp_path / "good.zip"), tracker=tracker)
    assert bundled.repeats == "good" and "does not repeat error, spread" in bundled.because[-1]
    with pytest.raises(errors.ConfigError, match=r"bad because error .* does not repeat error, spread"):
        bundle(bad.run_id, output=str(tmp_path / "bad.zip"), tracker=tracker)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_calibration_error_of_undefined_scores_is_no_number(tmp_path: Path) -> None:
    golden, labels = classification(np.random.default_rng(1))
    undefined = [{name: np.full_like(array, np.nan) for name, array in outputs.items()} for outputs in golden]

    [score] = score_tasks(
        TaskOutputs(undefined), TaskOutputs(golden), task_metrics(["ece"]), labels_file(tmp_path, labels)
    )

    assert np.isnan(score.actual) and score.decision(0.5) == "beyond"


@pytest.mark.parametrize(
    ("metric", "labels", "message"),
    [
        ("top2", "labels.npy", "There is no such metric"),
        ("map", "labels.npy", "not COCO's"),
        ("top1", None, "needs labels"),
        ("top1", "missing.npy", "do not exist"),
        ("token_prefix", None, "No output holds text"),
        ("top1", "short.npy", r"2 labels, up to 0, and no output .* y \(3, 4\)"),
        ("top1", "large.npy", r"3 labels, up to 4, and no output .* y \(3, 4\)"),
        ("top1", "least.npy", "A label is -1; expected classes from 0 on"),
        ("own.py:error", "short.npy", "3 samples, and there are 2 labels"),
        ("own.py:nothing", "labels.npy", "returned None; expected a number, or 3 of them"),
        ("own.py:undefined", "labels.npy", "is NaN for the outputs"),
        ("own.py:broken", "labels.npy", r"own.py.*line \d+, in broken(?s:.*)KeyError: 'z'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, monkeypatch, metric, labels, message) -> None:
    if metric == "map":
        pytest.importorskip("pycocotools")
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    for name, values in {"labels": [0, 0, 0], "short": [0, 0], "large": [0, 0, 4], "least": [0, -1, 0]}.items():
        np.save(f"{name}.npy", values)
    outputs = TaskOutputs([{"y": np.zeros((3, 4), np.float32)}])
    with pytest.raises(errors.TrtopsError, match=message):
        score_tasks(outputs, outputs, task_metrics([metric]), labels)


def test_loss_needs_a_unit() -> None:
    assert parse_loss("0.5%") == parse_loss("0.5 points") == 0.005
    with pytest.raises(errors.ConfigError, match=r"such as 0\.5%"):
        parse_loss("0.5")
    with pytest.raises(errors.ConfigError, match="give metric or labels"):
        CheckConfig(loss="1%")
