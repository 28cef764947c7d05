"""Compare two engines, models, runs or saved results, output by output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.base import BaseRunner, Engine
from trtops.backend.engines import backend_of_suffix, engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_runner
from trtops.comparator.report import iterations_of
from trtops.comparator.results import RunResults
from trtops.ops.arguments import checked_with_export
from trtops.ops.evaluation.check import (
    CheckConfig,
    Evaluation,
    assess,
    describe,
    describe_measurements,
    log_evaluation,
    measure_latency,
    with_power,
)
from trtops.ops.evaluation.data import collect
from trtops.ops.evaluation.evidence import SeenFeeds
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.evaluation.self_check import check_engine
from trtops.ops.result import OpResult, model_source, op_run, run_step, tracker_or_default
from trtops.record import refuse_unused
from trtops.reports.document import Section
from trtops.spec import BuildConfig, Precision
from trtops.system.files import read_regular
from trtops.tracking import builds
from trtops.tracking.base import Tracker, Verdict, run_id_of
from trtops.tracking.records import RUN_PREFIX

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class CompareConfig(
    CheckConfig,
    uses={
        "": "data input_shapes input_dtypes iterations seed val_range metric labels loss tolerances warm_up "
        "latency_runs power self_check"
    },
):
    """The comparison of two sides, and its data."""


_OF_SAVED_OUTPUTS = {"": "metric labels loss tolerances"}
_LOWEST_FIRST: tuple[Precision, ...] = ("int8", "fp8", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class CompareResult(OpResult):
    """The result of a comparison."""

    title: str = "compare"
    verdict: Verdict
    reasons: tuple[str, ...]
    evaluation: Evaluation

    @property
    def figures(self) -> str:
        """The latency of the side under test, if it was run, and its task metrics."""
        return ", ".join(self.evaluation.figures)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per output, as :meth:`~trtops.comparator.report.ComparisonReport.to_frame`."""
        return self.evaluation.report.to_frame()

    def body(self) -> Iterable[str]:
        """The numbers."""
        return describe(self.evaluation)

    def sections(self) -> Iterable[Section]:
        """The numbers missing from the report's table of outputs."""
        return (Section(text="\n".join(describe_measurements(self.evaluation))),)


@checked_with_export
def compare(
    actual: str | Path | Model,
    golden: str | Path | Model,
    config: CompareConfig | CheckConfig = CompareConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> CompareResult:
    """Compare one side with another, and log the comparison to a run.

    A side is ``run:ID`` (the engine of a run), an ONNX file (run by ONNX Runtime without optimization), an engine
    file (``.ort``, ``.plan``, ``.engine``), or saved outputs (``.json``, ``.npz``). Default tolerances are those of the
    lowest precision that one of the sides was built for, if they are runs, and else those of FP32. The experiment is
    named after the side under test by default.

    Raises TrtopsError if a side is something else, or cannot be loaded or run; ConfigError if the config has an option
    that these sides do not use. Outputs that differ are a result.

    >>> result = trtops.compare("model.onnx", "model.onnx", CompareConfig(data="feed.npz", latency_runs=0))
    >>> result.verdict, result.evaluation.report.decided_by
    ('good', '`...`: max abs 0 of ...')
    """
    refuse_unused(config, CompareConfig.uses, op="compare")
    check = CheckConfig(**{option.name: getattr(config, option.name) for option in fields(CheckConfig)})
    tracker = tracker_or_default(tracker)
    sides = model_source(actual), model_source(golden)
    is_run = sides[0].startswith(RUN_PREFIX)
    if experiment is None:
        experiment = tracker.info(run_id_of(sides[0], tracker)).experiment if is_run else Path(sides[0]).stem
    name = " vs ".join(side if side.startswith(RUN_PREFIX) else Path(side).name for side in sides)
    with op_run(tracker, experiment, name, kind="compare", tags=tags, parent=parent) as op:
        op.run.log_params({"actual": sides[0], "golden": sides[1], "check": check})
        evaluation = _evaluate_sides(actual, golden, check, tracker)
        engine = run_id_of(sides[0], tracker) if is_run else ""
        log_evaluation(op.run, evaluation, engine=engine)
        result = CompareResult(verdict=evaluation.verdict, reasons=evaluation.reasons, evaluation=evaluation)
        return op.finish(result, title=f"compare {name}")


def _evaluate_sides(
    actual_side: str | Path | Model, golden_side: str | Path | Model, check: CheckConfig, tracker: Tracker
) -> Evaluation:
    under_test, right = _open_side(actual_side, tracker), _open_side(golden_side, tracker)
    actual, golden = model_source(actual_side), model_source(golden_side)
    model = next((side for side in (right, under_test) if isinstance(side, Model)), None)
    runs = [tracker.info(run_id_of(side, tracker)) for side in (actual, golden) if side.startswith(RUN_PREFIX)]
    precisions = {info.params.get("precision") for info in runs}
    # Both sides may differ from the truth; the lowest precision bounds what can be expected of the comparison.
    precision: Precision = next((candidate for candidate in _LOWEST_FIRST if candidate in precisions), "fp32")
    if isinstance(under_test, RunResults):
        if not isinstance(right, RunResults):
            raise errors.ConfigError(
                f"{actual!r} holds saved outputs, whose inputs are not known, so {golden!r} cannot be run on them. "
                "Compare saved outputs with saved outputs, or put the saved ones second."
            )
        refuse_unused(check, _OF_SAVED_OUTPUTS, op="compare of saved outputs")
        return assess(under_test, right, None, check, tolerances_for(precision, check.tolerances, model))
    lowest = [tracker.load(info.id) for info in runs if info.params.get("precision") == precision][:1]
    built = builds.load_build(lowest[0], engine=False) if lowest else None
    build = BuildConfig(precision=precision) if built is None else built.spec.config
    reference = _model_of(actual, golden, model, tracker) if check.self_check else None
    check = replace(check, golden=golden if isinstance(right, RunResults) else None)
    # One side after the other: each takes as much memory as it has weights.
    with _runner_of(under_test) as runner:
        inputs = runner.get_input_metadata(use_numpy_dtypes=False)
        feeds = check.open_for(model, inputs=inputs)
        seen = SeenFeeds(feeds)
        outputs = collect(runner, seen)
        latency = measure_latency(runner, feeds, check)
        checked = None
        if reference is not None:
            results = iterations_of(outputs, "actual")
            checked = run_step("self-check", check_engine, runner, reference, feeds, results, build, thorough=True)
    expected = right
    if not isinstance(expected, RunResults):
        with _runner_of(expected) as runner:
            expected = collect(runner, feeds)
    check = replace(check, golden=golden)
    if model is None:
        tolerances = tolerances_for(precision, check.tolerances)
        evaluation = assess(outputs, expected, latency, check, tolerances, feeds, seen)
    else:
        rounded = RightModel(
            model=model,
            build=build,
            feeds=feeds,
            golden=outputs if model is under_test else expected,
            calibration=None if built is None else built.calibration_cache,
        )
        tolerances = rounded.tolerances(check.tolerances)
        evaluation = assess(outputs, expected, latency, check, tolerances, feeds, seen, rounded)
    evaluation = replace(evaluation, self_check=checked)
    return with_power(evaluation, expected, check, tolerances)


def _model_of(actual: str, golden: str, model: Model | None, tracker: Tracker) -> Model:
    """The model for the relations of an engine: a side, or that of a run; ConfigError without one."""
    for side in (actual, golden) if model is None else ():
        if side.startswith(RUN_PREFIX):
            return Model.load(builds.find_model(tracker, tracker.info(run_id_of(side, tracker))))
    if model is None:
        raise errors.ConfigError(
            f"self_check needs the model, which may break a relation itself, and neither {actual!r} nor {golden!r} is "
            "an ONNX file or a run. Compare with the ONNX file, or leave the self-check out."
        )
    return model


def _runner_of(side: Engine | Model) -> BaseRunner:
    return reference_runner(side) if isinstance(side, Model) else engine_backend(side.backend).runner(side)


def _open_side(side: str | Path | Model, tracker: Tracker) -> Engine | Model | RunResults:
    if isinstance(side, Model):
        return side
    side = str(side)
    if side.startswith(RUN_PREFIX):
        return builds.load_engine(tracker.load(run_id_of(side, tracker)))
    path = Path(side)
    if not path.exists():
        raise errors.ConfigError(
            f"{side!r} does not exist. Give run:ID, an ONNX file, an engine file or saved outputs (.json, .npz)."
        )
    if path.suffix in (".json", ".npz") or path.is_dir():
        return RunResults.load(str(path))
    backend_name = backend_of_suffix(path.suffix)
    if backend_name is None:
        return Model.load(path)
    environment = engine_backend(backend_name).environment()
    return Engine(backend=backend_name, plan=read_regular(path), environment=environment)
