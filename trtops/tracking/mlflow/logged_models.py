"""What MLflow's logged model of an engine states: all of it follows from the row and the files of the engine's run."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.spec import short_device
from trtops.tracking import schema
from trtops.tracking.records import ArtifactEntry, Manifest
from trtops.tracking.schema import Artifact, Tag
from trtops.verdict import unmarked

if TYPE_CHECKING:
    from trtops.tracking.mlflow.artifacts import Files

VERSIONS = "mlflow.modelVersions"  # the tag by which MLflow's pages show where a logged model is registered
MAX_COPIED_BYTES = 64 << 20  # of a file that a server stores twice; a larger one is only in the run
CONTEXT = "mlflow.data.context"  # tag of a dataset: what a run used it for


@dataclass(frozen=True)
class EngineModel:
    """What the logged model of a run's own engine states."""

    name: str
    status: str  # as MLflow shows it: READY is green
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]


def engine_model(run: Any, files: Files) -> EngineModel:
    """Return what the logged model of a run's own engine states; ``run`` is MLflow's."""
    data = run.data
    linked_tags = (Tag.ENGINE_SHA256, Tag.MODEL_SHA256, Tag.BACKEND, Tag.VERDICT, Tag.KIND)
    tags = {tag: data.tags[tag] for tag in linked_tags if tag in data.tags}
    if note := _beginning(data.tags.get(Tag.NOTE, "")):
        tags[Tag.NOTE] = note
    layers = json.loads(files.peek(Artifact.LAYERS) or b"[]")
    choices = json.loads(files.peek(Artifact.TACTICS) or b"{}").get("choices", ())
    # TensorRT's inspector and its selector of tactics may name kernels differently; deny-lists have the second.
    for kernels in (Counter(str(layer.get("tactic")) for layer in records) for records in (choices, layers)):
        tags |= {kernel_tag(kernel): str(count) for kernel, count in kernels.items() if kernel != "None"}
    words = [unmarked(run.info.run_name or "engine")]
    model = Path(data.params.get("model_path", "")).stem
    if model or tags.get(Tag.KIND) == "iteration":  # whose name has its model, and what tells it from others
        precision = data.params.get("computes_in") or data.params.get("precision", "").upper()
        words = [*([model] if model else words), precision, short_device(data.params.get("env.device", ""))]
    return EngineModel(
        # MLflow refuses these characters.
        name=re.sub("[/:.%\"']", "-", " ".join(filter(None, words)))[:500],
        status="READY" if tags.get(Tag.VERDICT) == "good" else "FAILED",
        tags=tags,
        params={name: value for name, value in data.params.items() if not name.startswith("evidence.")},
        # MLflow stores NaN as 0 here.
        metrics={name: value for name, value in data.metrics.items() if not math.isnan(value)},
    )


def _beginning(note: str) -> str:
    """The first line of a run's description, which has the verdict, and the reasons that follow it."""
    return re.match("[^\n]*(\n\n(- [^\n]*\n?)+)?", note)[0].rstrip()  # type: ignore[index]


def model_entries(manifest: Manifest) -> list[ArtifactEntry]:
    """Return the artifacts of an engine's run that its logged model has as well."""
    return [entry for entry in manifest.artifacts if entry.path.startswith(schema.LOGGED_MODEL_FILES)]


def output_of(run: Any) -> str | None:
    """Return the id of the logged model of a run's own engine, or None."""
    outputs = run.outputs.model_outputs if run.outputs else []
    return next((str(output.model_id) for output in outputs), None)


def kernel_tag(kernel: str) -> str:
    """The tag of a logged model for a kernel; its value is the number of layers with it."""
    return schema.metric_key(schema.fitting(("kernel", kernel)))


def versions_of(model: Any) -> set[tuple[str, str]]:
    """Name and version of each registered version of a logged model; none if its tag is damaged."""
    with contextlib.suppress(ValueError, TypeError, LookupError):
        return {
            (str(version["name"]), str(version["version"])) for version in json.loads(model.tags.get(VERSIONS, "[]"))
        }
    return set()


def data_of(params: Mapping[str, str]) -> dict[str, str]:
    """The data of a run's evaluation, under its name in MLflow, from the run's params."""
    name, digest = (params.get(f"evidence.{param}") for param in ("source", "data"))
    return {"dataset_name": dataset_name(name), "dataset_digest": digest} if name and digest else {}


def datasets_of(run: Any) -> dict[tuple[str, str], str]:
    """Name and digest of a run's data, and the context that MLflow shows: ``evaluation`` or ``calibration``."""
    params, calibrated_on = run.data.params, run.data.tags.get(Tag.DATA_SHA256)  # the tag: of a calibration alone
    calibration = params.get("calibration_data") or params.get("calibration_cache") or params.get("evidence.source")
    uses = {
        "evaluation": (params.get("evidence.source"), params.get("evidence.data")),
        "calibration": (calibration, params.get(schema.CALIBRATED_ON)),
    }
    if calibrated_on:
        uses["calibration"] = (params.get("data"), calibrated_on)
    contexts: dict[tuple[str, str], str] = {}
    for use, (name, digest) in uses.items():
        if name and digest:
            contexts.setdefault((dataset_name(name), digest[: schema.DATA_DIGITS]), use)
    return contexts


def dataset_name(source: str) -> str:
    """The name of a data source in MLflow: of an absolute path, the file's name."""
    return (source.rpartition("/")[2] if source.startswith("/") else source)[:500] or source[:500]


def dataset_source(name: str) -> str:
    """The source of a dataset in MLflow's form."""
    return json.dumps({"uri": name})
