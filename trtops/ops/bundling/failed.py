"""The case of a build that came to no engine: the builder refuses the model, dies of it, or what it built does not run.

Such a run ended early and has no manifest. What it was asked for is read as it lies there; the model counts by its digest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model
from trtops.json import from_json
from trtops.ops.auditing.rebuilding import MaterialFolder
from trtops.ops.bundling.case import Case, failing_case, golden_outputs
from trtops.ops.evaluation.check import CheckConfig, tolerances_for
from trtops.processes import temporary_prefix
from trtops.spec import BuildSpec, Environment
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.materials import Materials, read_materials


def is_failed_build(info: RunInfo) -> bool:
    """Whether a run is of a build that failed."""
    return info.status == "failed" and info.kind in ("build", "iteration")


def failed_case(
    info: RunInfo, tracker: Tracker, folder: MaterialFolder, name: str
) -> tuple[Case, Environment, dict[str, bytes], tuple[str, ...]]:
    """The case of a failed build, where it was made, further files, and what stands in for what was not kept.

    Args:
        info: The run.
        tracker: Its memory.
        folder: Where a model that no run kept may be found.
        name: What to call the case.

    Raises:
        ReproductionError: If the run ended before it said what it was to build.
        ConfigError: If the model is not there any more.
        TrtopsError: If the data cannot be read.
    """
    spec_bytes = tracker.peek(info.id, schema.Artifact.SPEC)
    environment_bytes = tracker.peek(info.id, schema.Artifact.ENVIRONMENT)
    materials = _materials(info, tracker)
    if spec_bytes is None or environment_bytes is None or materials is None:
        why = info.tags.get(schema.Tag.ERROR, "it says no more")
        raise errors.ReproductionError(
            f"Run {info.id} failed before it began to build, and has nothing to repeat: {why}"
        )
    spec, environment = BuildSpec.from_json(spec_bytes), Environment.from_json(environment_bytes)
    model = _model(info, tracker, folder, spec.model_sha256)
    check = CheckConfig.from_dict(materials.check)
    feeds, missing = _feeds(info, tracker, materials, check, model)
    case = Case(
        name=name,
        backend=spec.config.backend,
        model=model.proto(),
        feeds=feeds,
        golden=_golden(model, feeds),
        tolerances=tolerances_for(spec.config.precision, check.tolerances, model),
        verdict="error",
        settings={},
        original=model.proto(),
        reasons=tuple(filter(None, (info.tags.get(schema.Tag.ERROR),))),
    )
    calibration = materials.of("calibration_cache")
    ranges = tracker.peek(info.id, calibration.path) if calibration is not None and calibration.path else None
    extra = {"spec.json": spec_bytes, **({"caches/calibration.cache": ranges} if ranges is not None else {})}
    return failing_case(case, spec.config, ranges), environment, extra, missing


def _materials(info: RunInfo, tracker: Tracker) -> Materials | None:
    """What the build was given; of a run without a manifest nothing says whether that is whole."""
    try:
        return read_materials(tracker.peek(info.id, schema.Artifact.MATERIALS))
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"Run {info.id}: {schema.Artifact.MATERIALS} is not JSON ({exc}).") from None


def _model(info: RunInfo, tracker: Tracker, folder: MaterialFolder, digest: str) -> Model:
    """The model of a digest: as the run kept it, from where it was built from, or from a folder."""
    path = Path(info.tags.get(schema.Tag.MODEL_PATH, ""))
    kept = tracker.peek(info.id, f"{schema.Artifact.MODEL}{path.name}") if path.name else None
    if kept is not None:
        with tempfile.TemporaryDirectory(prefix=temporary_prefix("bundle")) as place:
            file = Path(place, "model.onnx")
            file.write_bytes(kept)
            try:
                model = Model.load(file)
                if model.info.sha256 == digest:
                    return Model.from_proto(model.proto())
            except errors.ModelError:
                pass  # its weights lie in further files
    for candidate in filter(None, (path if path.is_file() else None, folder.model(digest))):
        model = Model.load(candidate)
        if model.info.sha256 == digest:
            return model
    raise errors.ConfigError(
        f"The model of run {info.id}, of digest {digest}, is not there: the run did not keep it whole, and {path} is gone or "
        "has changed. Give it in a folder (--materials)."
    )


def _feeds(
    info: RunInfo, tracker: Tracker, materials: Materials, check: CheckConfig, model: Model
) -> tuple[Sequence[Feed], tuple[str, ...]]:
    """The inputs; where the run did not keep its own, random ones, and a word about that."""
    if check.data is None:
        return _arrays(check.open_for(model)), ()
    data = materials.of("data")
    kept = tracker.peek(info.id, data.path) if data is not None and data.path else None
    if kept is not None:
        return _arrays(from_json(kept)), ()
    return _arrays(replace(check, data=None).open_for(model)), (f"data {check.data!r}: random data is used",)


def _arrays(feeds: Any) -> list[dict[str, Any]]:
    return [{name: np.asarray(array) for name, array in feed.items()} for feed in feeds]


def _golden(model: Model, feeds: Sequence[Feed]) -> list[Mapping[str, Any]]:
    """What the model itself gives; nothing where it does not run either."""
    try:
        return list(golden_outputs(model, feeds, None))
    except errors.TrtopsError:
        return [{} for _ in feeds]
