"""The model that triage asks about, with its data and golden outputs, each opened once."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtops.backend.onnx.edit import set_outputs
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.comparator.report import Tolerances
from trtops.ops.engines.job import read_cache_file
from trtops.ops.evaluation.check import tolerances_for
from trtops.ops.triaging.result import TriageConfig
from trtops.system.processes import temporary_prefix
from trtops.tracking.base import Tracker


@dataclass(frozen=True)
class Subject:
    """A model under triage, the answers so far by question, and a folder for the smallest failing case."""

    path: Path
    config: TriageConfig
    tracker: Tracker
    experiment: str
    tags: Mapping[str, str]
    answers: dict[str, str] = field(default_factory=dict)
    files: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix=temporary_prefix("triage"))))

    def below(self, parent: str) -> dict[str, Any]:
        """Options of an op whose run belongs below another."""
        return {"tracker": self.tracker, "experiment": self.experiment, "tags": self.tags, "parent": parent}

    @cached_property
    def model(self) -> Model:
        """The model."""
        return Model.load(self.path)

    @cached_property
    def feeds(self) -> list[dict[str, Any]]:
        """Its inputs."""
        opened = self.config.check.open_for(self.model)
        return [{name: np.asarray(array) for name, array in feed.items()} for feed in opened]

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs of the model itself for each feed, in its own precision and not optimized."""
        return [dict(outputs) for outputs in reference_outputs(self.model.proto(), self.feeds)]

    @cached_property
    def tolerances(self) -> Tolerances:
        """The tolerances that the engine has to meet."""
        return tolerances_for(self.config.build.precision, self.config.check.tolerances, self.model)

    @cached_property
    def calibration(self) -> bytes | None:
        """The calibration cache that the builder gets."""
        return read_cache_file(self.config.calibration_cache, "calibration_cache")


def with_outputs(proto: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """A copy of a model with other outputs."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    set_outputs(changed, names)
    return changed
