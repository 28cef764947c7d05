"""The model under triage, its data, and the engine that is built of it."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.request import read_cache_file
from trtops.ops.evaluation.data import collect
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.search.submodel import EngineRunner
from trtops.ops.triaging.result import TriageConfig
from trtops.spec import BuildConfig
from trtops.system.processes import temporary_prefix
from trtops.tracking import builds
from trtops.tracking.base import Tracker


@dataclass
class Subject:
    """A model under triage, the answers so far by question, and a folder for the smallest failing case."""

    path: Path
    config: TriageConfig
    tracker: Tracker
    experiment: str
    tags: Mapping[str, str]
    answers: dict[str, str] = field(default_factory=dict)
    files: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix=temporary_prefix("triage"))))
    build_run: str = ""  # id of the run with the engine, once it is built

    def below(self, parent: str) -> dict[str, Any]:
        """Options of an op for a run below another."""
        return {"tracker": self.tracker, "experiment": self.experiment, "tags": self.tags, "parent": parent}

    @cached_property
    def model(self) -> Model:
        """The model."""
        return Model.load(self.path)

    @cached_property
    def feeds(self) -> list[dict[str, Any]]:
        """Its inputs."""
        opened = self.config.check.open_for(self.model, profiles=self.config.build.profiles)
        return [{name: np.asarray(array) for name, array in feed.items()} for feed in opened]

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs of the model itself for each feed, in its own precision and not optimized."""
        return [dict(outputs) for outputs in reference_outputs(self.model.proto(), self.feeds)]

    @cached_property
    def tolerances(self) -> Tolerances:
        """The fixed tolerances of the precision for parts of the model, which have other outputs."""
        tolerances = tolerances_for(self.config.build.precision, self.config.check.tolerances, self.model)
        return replace(tolerances, per_output={})

    @cached_property
    def calibration(self) -> bytes | None:
        """The calibration cache for the builder."""
        return read_cache_file(self.config.calibration_cache, "calibration_cache")

    @cached_property
    def build(self) -> Build:
        """The engine under triage, as it was built first."""
        return builds.load_build(self.tracker.load(self.build_run))

    def right_model(self, build: BuildConfig, calibration: bytes | None = None) -> RightModel:
        """The model on its inputs, and the effect of rounding as in a build."""
        golden = RunResults([("golden", [IterationResult(dict(outputs)) for outputs in self.outputs])])
        return RightModel(model=self.model, build=build, feeds=self.feeds, golden=golden, calibration=calibration)

    def convert(self, parent: str, *, path: Path | None = None, **changes: Any) -> ConvertResult:
        """Build and evaluate an engine of the model, or of another file, with changes of the config."""
        config = self.config
        convert_config = ConvertConfig(
            build=config.build,
            check=config.check,
            calibration_data=config.calibration_data,
            calibration_cache=config.calibration_cache if config.build.calibrates else None,
            replay=config.replay,
            measure_ranges=False,  # an overflow is to be found, not avoided
        )
        return convert(path or self.path, replace(convert_config, **changes), **self.below(parent))

    def pinned_side(self) -> EngineRunner:
        """Builds as the engine was built, also of parts of the model."""
        record = self.build.tactics
        # Settings alone fit any model, while choices name layers of this one.
        replay = replace(record, choices=()) if record.settings else None
        # A seed would choose other tactics for each part.
        config = replace(self.config.build, options=replace(self.config.build.options, tactic_seed=None))
        return EngineRunner(config, Caches(replay=replay, calibration=self.calibration), self.feeds[0])

    def is_right(self, side: EngineRunner) -> bool:
        """Whether an engine of the whole model gives the outputs of the model itself."""
        try:
            build = side.build(self.model.proto())
            with engine_backend(side.config.backend).runner(build.engine) as runner:
                outputs = collect(runner, self.feeds)
        except errors.BackendError:
            return False
        right = self.right_model(side.config, build.calibration_cache)
        tolerances = self.config.check.tolerances
        aligned = outputs if tolerances else right.aligned(outputs)
        return bool(compare_outputs(aligned, self.outputs, right.tolerances(tolerances)))


def first_lines(texts: Sequence[str]) -> Iterator[str]:
    """The first three texts, shortened, each in one line."""
    yield from (" ".join(text.split())[:300] for text in texts[:3])
