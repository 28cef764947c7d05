"""The model under triage, its data, its engine, and the time that is left."""

import contextlib
import math
import tempfile
import time
from collections.abc import Iterable, Mapping
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
from trtops.calibration.data import FeedDigest
from trtops.comparator.report import Tolerances
from trtops.comparator.results import IterationResult, RunResults
from trtops.next_step import NextStep, arguments_of
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.request import CommandData, read_cache_file
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.result import model_file, model_source
from trtops.ops.search.submodel import EngineRunner
from trtops.ops.triaging.result import TriageConfig
from trtops.record import sha256_file
from trtops.spec import BuildConfig, BuildSpec, Environment
from trtops.system.processes import temporary_prefix
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds
from trtops.tracking.base import Tracker
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag

# Options of a check that do not change its verdict.
_NOT_DECIDING = ("data", "golden", "metric", "labels", "loss", "warm_up", "latency_runs", "plots", "power")


@dataclass(frozen=True)
class EvaluatedEngine:
    """The engine under triage, with its evaluation and the run that has both."""

    run_id: str
    build: Build
    evaluation: Evaluation

    @property
    def evidence(self) -> str:
        """The evidence of its run, in a sentence."""
        evidence = self.evaluation.evidence
        return f"Run `{self.run_id}`" + ("." if evidence is None else f": {evidence.sentence()}.")


@dataclass
class Subject:
    """A model under triage, the answers so far by question, and a folder for the smallest failing case."""

    source: str | Path | Model
    config: TriageConfig
    tracker: Tracker
    experiment: str
    tags: Mapping[str, str]
    parent: str = ""  # run of the question that is asked
    answers: dict[str, str] = field(default_factory=dict)
    files: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix=temporary_prefix("triage"))))
    began: float = field(default_factory=time.monotonic)
    run_seconds: float = 0.0  # what running the model once took; 0 before it ran

    @property
    def seconds_left(self) -> float:
        """The time until the limit; infinite without one."""
        minutes = self.config.minutes
        return math.inf if minutes is None else self.began + 60 * minutes - time.monotonic()

    @property
    def rounding_explains(self) -> bool:
        """Whether the evaluation of the engine says that rounding alone makes its outputs bad."""
        evaluation = None if self.engine is None else self.engine.evaluation
        if evaluation is None or evaluation.noise is None:
            return False
        emulated = evaluation.emulated is not None and evaluation.emulated.verdict == "bad"
        return emulated or bool(evaluation.noise.reasons(evaluation.report))

    def below(self) -> dict[str, Any]:
        """Options of an op for a run below the one of the question."""
        return {"tracker": self.tracker, "experiment": self.experiment, "tags": self.tags, "parent": self.parent}

    @property
    def path(self) -> Path:
        """The ONNX file."""
        return model_file(self.source)

    @cached_property
    def model(self) -> Model:
        """The model."""
        return Model.load(self.source)

    @cached_property
    def data(self) -> CommandData:
        """Its data, opened once."""
        return CommandData(self.model, self.config.check, self.config.calibration_data)

    @cached_property
    def feeds(self) -> list[dict[str, Any]]:
        """Its inputs."""
        feeds = self.data.feeds(self.config.build.profiles)
        return [{name: np.asarray(array) for name, array in feed.items()} for feed in feeds]

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs of the model itself for each feed, in its own precision and not optimized."""
        start = time.monotonic()
        outputs = [dict(outputs) for outputs in reference_outputs(self.model.proto(), self.feeds)]
        self.run_seconds = time.monotonic() - start
        return outputs

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
    def engine(self) -> EvaluatedEngine | None:
        """The engine, as a run of the experiment has it, evaluated on this data within these limits; None without."""
        config, digest = self.config, FeedDigest()
        for feed in self.feeds:
            digest.add(feed)
        replay = read_cache_file(config.replay, "replay")
        caches = Caches(calibration=self.calibration, replay=None if replay is None else TacticRecord.from_json(replay))
        try:
            environment = engine_backend(config.build.backend).environment(config.build)
            _, spec = self.data.request(self.data.profiled(config.build), environment, caches)
        except errors.BackendError:  # reported when something is built
            return None
        data_sha256 = digest.hexdigest()
        golden_sha256 = None if config.check.golden is None else sha256_file(config.check.golden)
        tags = {Tag.KIND: "build", Tag.MODEL_SHA256: spec.model_sha256}
        for info in self.tracker.find(self.experiment, tags=tags, status="finished"):
            with contextlib.suppress(errors.TrtopsError):  # a damaged run, or one without an engine
                stored = self.tracker.load(info.id)
                built = BuildSpec.from_json(stored.read_bytes(Artifact.SPEC))
                built_in = Environment.from_json(stored.read_bytes(Artifact.ENVIRONMENT))
                materials = builds.read_materials(stored.get(Artifact.MATERIALS))
                # Layers that builds keep in FP32, since they overflow, and denied tactics are not requested.
                built = replace(built, config=replace(built.config, keep=spec.config.keep), denied_sha256=None)
                if materials is None or built != spec or built_in.build_digest() != environment.build_digest():
                    continue
                recorded = CheckConfig.from_dict(materials.check)
                check = replace(config.check, **{name: getattr(recorded, name) for name in _NOT_DECIDING})
                digests = {material.name: material.sha256 for material in materials.inputs}
                if check == recorded and (digests["data"], digests.get("golden")) == (data_sha256, golden_sha256):
                    return self.read_engine(info.id)
        return None

    def read_engine(self, run_id: str) -> EvaluatedEngine:
        """Read the engine and the evaluation of a run."""
        stored = self.tracker.load(run_id)
        evaluation = Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY))
        return EvaluatedEngine(run_id, builds.load_build(stored.holder), evaluation)

    def right_model(self, build: BuildConfig, calibration: bytes | None = None) -> RightModel:
        """The model on its inputs, and the effect of rounding as in a build."""
        golden = RunResults([("golden", [IterationResult(dict(outputs)) for outputs in self.outputs])])
        return RightModel(model=self.model, build=build, feeds=self.feeds, golden=golden, calibration=calibration)

    def convert(self, *, path: Path | None = None, **changes: Any) -> ConvertResult:
        """Build and evaluate an engine of the model, or of another file, with changes of the config."""
        config = self.config
        convert_config = ConvertConfig(
            build=config.build,
            check=replace(config.check, latency_runs=1),  # the second inference shows if results repeat
            calibration_data=config.calibration_data,
            calibration_cache=config.calibration_cache if config.build.calibrates else None,
            replay=config.replay,
            measure_ranges=False,  # an overflow is to be found, not avoided
            isolated=None if config.minutes is None else True,
            timeout_seconds=None if config.minutes is None else max(self.seconds_left, 1.0),
        )
        opened = self.data if path is None else None
        return convert(path or self.source, replace(convert_config, **changes), opened=opened, **self.below())

    def command(self, verb: str, **changes: Any) -> NextStep:
        """Return the command that builds or calibrates the engine on this data, with changes of its options."""
        options = arguments_of(self.config)
        # Convert has the options of triage.
        step = NextStep.after(
            options, "triage" if verb == "convert" else verb, {"model": model_source(self.source), **changes}
        )
        experiment = None if isinstance(self.tracker, MemoryTracker) else self.experiment
        return NextStep(verb, {**step.arguments, "experiment": experiment})

    def side(self) -> EngineRunner:
        """Builds as the engine was built, also of parts of the model."""
        caches = Caches(calibration=self.calibration)
        if self.engine is not None:
            record = self.engine.build.tactics
            # Settings alone fit any model, while choices name layers of this one.
            replay = replace(record, choices=()) if record.settings else None
            caches = Caches(replay=replay, calibration=self.engine.build.calibration_cache)
        # A seed would choose other tactics for each part.
        config = replace(self.config.build, options=replace(self.config.build.options, tactic_seed=None))
        return EngineRunner(config, caches, self.feeds[0])

    def affordable(self, most: int, *, builds: int = 0) -> int:
        """The number of checks that there is time for, each with an inference and some builds; 2 or more."""
        seconds = self.run_seconds + (builds * self.engine.build.seconds if self.engine is not None else 0.0)
        return most if math.isinf(self.seconds_left) else max(2, min(most, int(self.seconds_left / max(seconds, 1e-3))))


def first_lines(texts: Iterable[str]) -> tuple[str, ...]:
    """The first three texts, shortened, each in one line."""
    return tuple(" ".join(text.split())[:300] for text, _ in zip(texts, range(3)))
