"""Compare two engines, models, runs or saved results, output by output."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import BaseRunner, Engine
from trtops.backend.engines import backend_of_suffix, engine_backend, reference_runner
from trtops.backend.onnx.model import Model
from trtops.comparator.results import RunResults
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
from trtops.ops.evaluation.limits import RightModel, tolerances_for
from trtops.ops.result import OpResult, finish_with, op_run, tracker_or_default
from trtops.reports.document import Section
from trtops.spec import BuildConfig, Precision
from trtops.system.files import read_regular
from trtops.tracking import builds
from trtops.tracking.base import Tracker, Verdict
from trtops.tracking.records import RUN_PREFIX, run_id_of

_LOWEST_FIRST: tuple[Precision, ...] = ("int8", "fp8", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class CompareResult(OpResult):
    """The result of a comparison."""

    title: str = "compare"
    verdict: Verdict
    reasons: tuple[str, ...]
    evaluation: Evaluation

    def body(self) -> Iterable[str]:
        """The numbers."""
        return describe(self.evaluation)

    def sections(self) -> Iterable[Section]:
        """The numbers that the report's table of outputs does not have."""
        return (Section(text="\n".join(describe_measurements(self.evaluation))),)


def compare(
    actual: str | Path,
    golden: str | Path,
    config: CheckConfig = CheckConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> CompareResult:
    """Compare one side with another, and log the comparison to a run.

    A side is ``run:ID`` (the engine of a run), an ONNX file (run by ONNX Runtime without optimization), an engine
    file (``.ort``, ``.plan``, ``.engine``), or saved outputs (``.json``, ``.npz``). ``golden`` of the config is not
    used; default tolerances are those of the lowest precision that one of the sides was built for, if they are runs,
    and else those of FP32. The experiment is named after the side under test by default.

    Raises TrtopsError if a side is something else, or cannot be loaded or run. Outputs that differ are a result.
    """
    tracker = tracker_or_default(tracker)
    actual, golden = str(actual), str(golden)
    if experiment is None:
        is_run = actual.startswith(RUN_PREFIX)
        experiment = tracker.info(run_id_of(actual, tracker)).experiment if is_run else Path(actual).stem
    name = " vs ".join(side if side.startswith(RUN_PREFIX) else Path(side).name for side in (actual, golden))
    with op_run(tracker, experiment, name, kind="compare", tags=tags, parent=parent) as run:
        run.log_params({"actual": actual, "golden": golden, "check": config})
        evaluation = _evaluate_sides(actual, golden, config, tracker)
        engine = run_id_of(actual, tracker) if actual.startswith(RUN_PREFIX) else ""
        log_evaluation(run, evaluation, engine=engine)
        found = CompareResult(verdict=evaluation.verdict, reasons=evaluation.reasons, evaluation=evaluation)
        result = found.kept_in(run, experiment)
        finish_with(run, result, tracker, title=f"compare {name}")
        return result


def _evaluate_sides(actual: str, golden: str, check: CheckConfig, tracker: Tracker) -> Evaluation:
    under_test, right = _open_side(actual, tracker), _open_side(golden, tracker)
    model = next((side for side in (right, under_test) if isinstance(side, Model)), None)
    runs = [tracker.info(run_id_of(side, tracker)) for side in (actual, golden) if side.startswith(RUN_PREFIX)]
    precisions = {info.params.get("precision") for info in runs}
    # Both sides may differ from the truth; the lowest precision bounds what can be expected of the comparison.
    precision: Precision = next((each for each in _LOWEST_FIRST if each in precisions), "fp32")
    if isinstance(under_test, RunResults):
        if not isinstance(right, RunResults):
            raise errors.ConfigError(
                f"{actual!r} holds saved outputs, whose inputs are not known, so {golden!r} cannot be run on them. "
                "Compare saved outputs with saved outputs, or put the saved ones second."
            )
        return assess(under_test, right, None, check, tolerances_for(precision, check.tolerances, model))
    check = replace(check, golden=golden if isinstance(right, RunResults) else None)
    # One side after the other: each takes as much memory as it has weights.
    with _runner_of(under_test) as runner:
        inputs = runner.get_input_metadata()
        feeds = check.open_for(model, inputs=inputs)
        seen = SeenFeeds(feeds)
        outputs = collect(runner, seen)
        latency = measure_latency(runner, feeds, check)
    expected = right
    if not isinstance(expected, RunResults):
        with _runner_of(expected) as runner:
            expected = collect(runner, feeds)
    check = replace(check, golden=golden)
    if model is None:
        tolerances = tolerances_for(precision, check.tolerances)
        evaluation = assess(outputs, expected, latency, check, tolerances, feeds, seen)
    else:
        held = next((tracker.load(info.id) for info in runs if precision in ("int8", "fp8")), None)
        rounded = RightModel(
            model=model,
            build=BuildConfig(precision=precision),
            feeds=feeds,
            golden=outputs if model is under_test else expected,
            calibration=None if held is None else builds.load_build(held).calibration_cache,
        )
        tolerances = rounded.tolerances(check.tolerances)
        evaluation = assess(outputs, expected, latency, check, tolerances, feeds, seen, rounded)
    return with_power(evaluation, right if isinstance(right, Model) else None, feeds, expected, check, tolerances)


def _runner_of(side: Engine | Model) -> BaseRunner:
    return reference_runner(side) if isinstance(side, Model) else engine_backend(side.backend).runner(side)


def _open_side(side: str, tracker: Tracker) -> Engine | Model | RunResults:
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
