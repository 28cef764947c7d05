"""Run a logged engine again, rebuild it from the artifacts of its run, and grade the result.

A grade has two parts: the kernels, and the numbers. Equal kernels whose outputs differ by more than the logged engine's
own noise are not equal tactics, since something else differs, such as the ranges of a calibration.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Caches, Engine
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs, iterations_of
from trtops.comparator.results import RunResults
from trtops.ops.auditing.result import Difference, Grade, Rebuild, WayName
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.data import collect, golden_outputs
from trtops.ops.evaluation.self_check import check_engine
from trtops.ops.facts import Claim, Contradiction
from trtops.ops.stored_build import Logged
from trtops.record import sha256
from trtops.spec import BuildConfig, Environment
from trtops.tactics.record import TacticRecord
from trtops.tracking import schema

_NOISE_RUNS = 3  # of the logged engine
# Errors that were measured again may differ by this share, besides the noise: other releases sum in another order.
_SAME_ERROR = 0.01


def check_engine_again(logged: Logged, backend: IsolatedBackend) -> tuple[list[Contradiction], list[str]]:
    """Run the logged engine, and compare its errors with the recorded ones, and golden outputs with the model's.

    Returns contradictions, and what could not be verified.
    """
    engine, recorded, config = logged.build.engine, logged.recorded, logged.build.spec.config
    measure_arguments = engine, logged.model, logged.check, logged.tolerances, config, logged.golden
    if not engine.plan:
        return [], []  # damaged, which is a contradiction already, or deleted by `trtops runs prune`
    try:
        report, noise, golden_why = backend.worker.run(_measure_in_child, *measure_arguments, timeout=backend.timeout)
    except errors.TrtopsError as exc:
        current_environment, build_environment = backend.environment(config), engine.environment
        failure = f"it does not run: {type(exc).__name__}: {exc}"[:500]
        if (current_environment.backend_version, current_environment.device_sha256) != (
            build_environment.backend_version,
            build_environment.device_sha256,
        ):
            return [], [f"the logged engine: {failure}"]
        return [Contradiction(subject="engine", reason=failure)], []
    problems = [Contradiction(subject="golden outputs", reason=golden_why)] if golden_why else []
    recorded_errors = _errors(recorded)
    for output in report.outputs if recorded is not None else ():
        recorded_error, current_error = recorded_errors.get(output.name, math.nan), _max_abs(output.statistics)
        if not _same_error(recorded_error, current_error, noise.get(output.name, 0.0)):
            places = {schema.Artifact.ACCURACY: recorded_error, "the logged engine, run again": current_error}
            claims = tuple(Claim(source=source, value=f"{value:.6g}") for source, value in places.items())
            problems.append(Contradiction(subject=f"largest error of {output.name}", claims=claims))
    return problems, []


def _same_error(recorded: float, current: float, noise: float) -> bool:
    return recorded == current or abs(recorded - current) <= noise + _SAME_ERROR * max(recorded, current)


def _measure_in_child(
    engine: Engine,
    model: Model,
    check: CheckConfig,
    tolerances: Tolerances,
    config: BuildConfig,
    stored_golden: str | None,
) -> tuple[ComparisonReport, dict[str, float], str]:
    """An engine's errors against golden outputs, its noise, and why stored golden outputs are not the model's."""
    feeds = list(check.open_for(model, profiles=config.profiles))
    golden = golden_outputs(model, feeds, check.golden)
    with engine_backend(engine.backend).runner(engine) as runner:
        first, *others = (collect(runner, feeds) for _ in range(_NOISE_RUNS))
    golden_difference = ""
    if stored_golden is not None:
        golden_difference = "; ".join(compare_outputs(RunResults.load(stored_golden), golden, tolerances).reasons)[:500]
    return compare_outputs(first, golden, tolerances), _noise(first, others, tolerances), golden_difference


def _noise(first: RunResults, others: Iterable[RunResults], tolerances: Tolerances) -> dict[str, float]:
    """The largest differences between runs of an engine, by output."""
    noise: dict[str, float] = {}
    for other in others:
        for output in compare_outputs(other, first, tolerances).outputs:
            if math.isfinite(largest := _max_abs(output.statistics)):
                noise[output.name] = max(noise.get(output.name, 0.0), largest)
    return noise


def rebuild(way: WayName, logged: Logged, backend: IsolatedBackend) -> Rebuild:
    """Rebuild an engine in one way and grade the result. A failure is a grade."""
    try:
        config, caches = builder_inputs(way, logged)
    except errors.ConfigError as exc:
        return Rebuild(way=way, grade="cannot be rebuilt", reason=str(exc))
    try:
        feed = next(iter(logged.check.open_for(logged.model, profiles=config.profiles)))
        new = backend.build(BuildRequest(logged.model, config, caches=caches, timing_feed=feed))
        return _grade_build(way, logged, new, backend)
    except errors.TrtopsError as exc:
        return Rebuild(way=way, grade="cannot be rebuilt", reason=f"{type(exc).__name__}: {exc}"[:2000])


def builder_inputs(way: WayName, logged: Logged) -> tuple[BuildConfig, Caches]:
    """Config and caches for one way; ConfigError if something it needs was not logged."""
    build, caches = logged.build, logged.caches
    config = build.spec.config
    if way == "plain":
        if build.spec.timing_cache_sha256 is not None and caches.timing is None:
            raise errors.ConfigError("the timing cache of the build is missing")
        return config, caches
    if way == "timing cache":
        if build.timing_cache is None:
            raise errors.ConfigError("no timing cache was logged")
        # The cache that the build wrote, which has a timing for each of its choices.
        return config, replace(caches, timing=build.timing_cache, replay=None)
    # A seed would choose other tactics, and a deny-list might refuse recorded ones.
    replayed = Caches.replaying(build.tactics, build.timing_cache, calibration=caches.calibration)
    return replace(config, options=replace(config.options, tactic_seed=None)), replayed


def _grade_build(way: WayName, logged: Logged, new: Build, backend: IsolatedBackend) -> Rebuild:
    old = logged.build
    rebuilt = Rebuild(
        way=way,
        grade="bytes equal",
        engine_sha256=sha256(new.engine.plan),
        seconds=new.seconds,
        tactics=tuple(_tactic_differences(old.tactics, new.tactics)),
    )
    if rebuilt.engine_sha256 == logged.engine_sha256:
        return rebuilt
    # In the child, because an engine that another environment built may crash the process that loads it.
    outputs = backend.worker.run(
        _run_in_child,
        new.engine,
        old.engine if old.engine.plan else None,
        logged.model,
        logged.check,
        logged.tolerances,
        old.spec.config,
        timeout=backend.timeout,
    )
    grade, reason = _grade_outputs(outputs, logged.recorded)
    if not rebuilt.tactics and grade == "outputs equal":
        grade = "tactics equal"
    reason = f"{f'{len(rebuilt.tactics)} kernels differ' if rebuilt.tactics else 'kernels equal'}; outputs: {reason}"
    differing = []
    for output in outputs.report.outputs if not outputs.why_not else ():
        if (largest := _max_abs(output.statistics)) > 0:
            label = f"{output.name} max_abs from the logged engine"
            noise = outputs.noise.get(output.name, 0.0)
            differing.append(Difference(name=label, logged=f"noise {noise:.3g}", current=f"{largest:.3g}"))
    return replace(rebuilt, grade=grade, reason=reason, outputs=tuple(differing))


@dataclass(frozen=True)
class Outputs:
    """Outputs of a new engine compared with the logged engine's, or with golden outputs if it does not run."""

    report: ComparisonReport
    why_not: str = ""  # why the logged engine does not run here
    noise: Mapping[str, float] = field(default_factory=dict)  # largest differences between runs of the logged engine
    broken: tuple[str, ...] = ()  # relations between the new engine's results that do not hold


def _run_in_child(
    engine: Engine,
    logged: Engine | None,
    model: Model,
    check: CheckConfig,
    tolerances: Tolerances,
    config: BuildConfig,
) -> Outputs:
    """Run the new engine and the logged one on the same data; the model itself if the logged one does not run."""
    feeds = list(check.open_for(model, profiles=config.profiles))
    backend = engine_backend(engine.backend)
    with backend.runner(engine) as runner:
        ours = collect(runner, feeds)
        broken: tuple[str, ...] = ()
        if check.self_check is not False:
            broken = check_engine(runner, model, feeds, iterations_of(ours, "actual"), config).reasons
    why_not = "the logged engine is missing"
    if logged is not None:
        try:
            with backend.runner(logged) as runner:
                first, *others = (collect(runner, feeds) for _ in range(_NOISE_RUNS))
        except errors.BackendError as exc:
            why_not = f"the logged engine does not run here: {exc}"[:500]
        else:
            noise = _noise(first, others, tolerances)
            # Kernels that sum in changing order differ from run to run; a new engine may differ by as much.
            return Outputs(compare_outputs(ours, first, tolerances), noise=noise, broken=broken)
    golden = golden_outputs(model, feeds, check.golden)
    return Outputs(compare_outputs(ours, golden, tolerances), why_not, broken=broken)


def _grade_outputs(outputs: Outputs, recorded: Evaluation | None) -> tuple[Grade, str]:
    """The grade of the outputs alone, and its reason."""
    report, noise = outputs.report, outputs.noise
    if outputs.broken:
        return "drifted", "; ".join(outputs.broken)[:1000]
    errors_now = {output.name: _max_abs(output.statistics) for output in report.outputs}
    if not outputs.why_not and all(error <= noise.get(name, 0.0) for name, error in errors_now.items()):
        largest = max(noise.values(), default=0.0)
        return "outputs equal", f"equal to the logged engine's within its noise of {largest:.3g}"
    if report.verdict != "good":
        return "drifted", "; ".join(report.reasons)[:1000]
    if not outputs.why_not:
        return "within tolerance", "within the logged tolerances of the logged engine's"
    before = _errors(recorded)
    if all(_same_error(before.get(name, math.nan), error, 0.0) for name, error in errors_now.items()):
        return "outputs equal", f"the errors against the golden outputs are the recorded ones ({outputs.why_not})"
    return "within tolerance", f"compared with the golden outputs ({outputs.why_not})"


def _errors(recorded: Evaluation | None) -> dict[str, float]:
    """The largest error of each output of an evaluation."""
    outputs = () if recorded is None else recorded.report.outputs
    return {output.name: _max_abs(output.statistics) for output in outputs}


def _max_abs(statistics: Any) -> float:
    """The largest absolute difference; infinite if it cannot be computed."""
    if statistics is None or statistics.nan_errors or math.isnan(statistics.max_abs):
        return math.inf
    return float(statistics.max_abs)


def _tactic_differences(logged: TacticRecord, rebuilt: TacticRecord) -> Iterable[Difference]:
    mine, theirs = ({c.layer: c.tactic for c in record.choices} for record in (logged, rebuilt))
    for layer in logged.differing_layers(rebuilt):
        none = "no such layer"
        yield Difference(name=layer, logged=mine.get(layer, none), current=theirs.get(layer, none))
    yield from _differing(dict(logged.settings), dict(rebuilt.settings), "setting ")


def _differing(logged: Mapping[str, str], current: Mapping[str, str], prefix: str = "") -> Iterator[Difference]:
    for name in sorted({*logged, *current}):
        if logged.get(name) != current.get(name):
            yield Difference(name=f"{prefix}{name}", logged=logged.get(name, ""), current=current.get(name, ""))


_COMPARED = (
    "backend", "backend_version", "device", "device_sha256", "compute_capability", "driver", "cuda", "cudnn", "os",
    "python",
)  # fmt: skip


def environment_differences(
    logged: Environment, current: Environment, state_then: Mapping[str, str], state_now: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Differences between two environments, in fields, packages and the state of the device."""
    mine, theirs = (
        {name: str(getattr(environment, name) or "") for name in _COMPARED} for environment in (logged, current)
    )
    # A state that was not logged is unknown, not different.
    compared_state = {name: value for name, value in state_now.items() if name in state_then}
    return (
        *_differing(mine, theirs),
        *_differing(dict(logged.packages), dict(current.packages), "package "),
        *_differing(state_then, compared_state, "device "),
    )
