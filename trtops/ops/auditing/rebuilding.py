"""A logged build made again, in a child process, and graded by what came out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Build, Caches, Engine
from trtops.backend.engines import engine_backend, reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.comparator.table import RECORDED
from trtops.ops.auditing.config import Grade, WayName
from trtops.ops.auditing.gathering import Gathered
from trtops.ops.auditing.result import Difference, Rebuild
from trtops.ops.evaluation.check import CheckConfig, collect
from trtops.record import sha256
from trtops.spec import BuildConfig, Environment, Layer
from trtops.tactics.record import TacticRecord

_NOT_EQUAL = 0.01
"""Part by which two statistics may be apart and still count as the same, where outputs cannot be put side by side."""


@dataclass(frozen=True)
class Outputs:
    """What a new engine gave.

    Attributes:
        against_golden: Compared with the golden outputs.
        against_logged: Compared with those of the logged engine; None if that does not run here.
        why_not: Why it does not.
        noise: By output, how far the logged engine's own outputs were apart from run to run.
    """

    against_golden: ComparisonReport
    against_logged: ComparisonReport | None
    why_not: str
    noise: dict[str, float]


def rebuild(way: WayName, gathered: Gathered, backend: IsolatedBackend, repeats: int) -> Rebuild:
    """Build in one way, and grade what comes out. Whatever fails is a grade."""
    try:
        config, caches = _config_and_caches(way, gathered)
    except errors.ConfigError as exc:
        return Rebuild(way=way, grade="cannot be rebuilt", why=str(exc))
    return make_again(way, gathered, backend, config, caches, repeats)


def make_again(
    way: WayName, gathered: Gathered, backend: IsolatedBackend, config: BuildConfig, caches: Caches, repeats: int
) -> Rebuild:
    """Build from a config and caches, and grade what comes out against what was logged."""
    try:
        build = backend.build(gathered.model, config, caches=caches)
        return _graded_build(way, gathered, build, backend, repeats)
    except errors.TrtopsError as exc:
        return Rebuild(way=way, grade="cannot be rebuilt", why=f"{type(exc).__name__}: {exc}"[:2000])


def _config_and_caches(way: WayName, gathered: Gathered) -> tuple[BuildConfig, Caches]:
    """What a way asks of the builder.

    Raises:
        ConfigError: If what it needs was not logged.
    """
    build, given = gathered.build, gathered.caches
    config = build.spec.config
    if way == "plain":
        if build.spec.timing_cache_sha256 is not None and given.timing is None:
            raise errors.ConfigError("the timing cache that the build was given is missing")
        return config, given
    if way == "timing cache":
        if build.timing_cache is None:
            raise errors.ConfigError("no timing cache was kept")
        return config, replace(given, timing=build.timing_cache, replay=None)
    # A seed would draw again what is prescribed; deny-lists would refuse what was allowed then.
    options = replace(config.options, tactic_seed=None)
    return replace(config, options=options), Caches.replaying(
        build.tactics, build.timing_cache, calibration=given.calibration
    )


def _graded_build(way: WayName, gathered: Gathered, build: Build, backend: IsolatedBackend, repeats: int) -> Rebuild:
    logged = gathered.build
    digest = sha256(build.engine.plan)
    tactics = tuple(_tactic_differences(logged.tactics, build.tactics))
    precisions = tuple(_precision_differences(logged.layers, build.layers))
    made = Rebuild(
        way=way,
        grade="bytes equal",
        engine_sha256=digest,
        seconds=build.seconds,
        tactics=tactics,
        precisions=precisions,
    )
    if digest == gathered.engine_sha256:
        return made
    outputs = backend.worker.run(
        _outputs_in_child,
        build.engine,
        logged.engine if logged.engine.plan else None,
        gathered.model,
        gathered.check,
        gathered.tolerances,
        repeats,
        timeout=backend.timeout,
    )
    grade, why = _grade_outputs(gathered, outputs)
    if not tactics and not precisions and grade != "drifted":
        grade, why = "tactics equal", f"outputs: {why}"
    return replace(made, grade=grade, why=why, outputs=tuple(_output_differences(gathered, outputs)))


def _grade_outputs(gathered: Gathered, outputs: Outputs) -> tuple[Grade, str]:
    """The grade that the outputs alone deserve, and what it rests on."""
    report = outputs.against_logged
    if report is not None:
        widest = max(
            (
                _largest_error(o.statistics) / _noise_width(outputs.noise.get(o.name, 0.0) + gathered.noise)
                for o in report.outputs
            ),
            default=0.0,
        )
        if widest <= 1:
            width = max(outputs.noise.values(), default=0.0) + gathered.noise
            return "outputs equal", f"as the logged engine's, within its noise of {width:.3g}"
        if report.verdict == "good":
            return "within tolerance", "as the logged engine's, within the tolerances of then"
        return "drifted", "; ".join(report.reasons)[:1000]
    return _grade_statistics(gathered, outputs)


def _largest_error(statistics: Any) -> float:
    if statistics is None:
        return math.inf
    return 0.0 if statistics.max_abs == 0 and not statistics.nan_errors else float(statistics.max_abs) or math.inf


def _noise_width(noise: float) -> float:
    return noise or 5e-324  # without noise only equal outputs are equal


def _grade_statistics(gathered: Gathered, outputs: Outputs) -> tuple[Grade, str]:
    """Where the logged engine does not run: by the errors against the golden outputs, then and now."""
    found = outputs.against_golden
    recorded = gathered.recorded.report if gathered.recorded is not None and gathered.same_data else None
    if recorded is not None and not _changed_statistics(recorded, found, gathered.noise):
        return "outputs equal", f"by every statistic recorded ({outputs.why_not})"
    if found.verdict == "good":
        return "within tolerance", f"of the golden outputs ({outputs.why_not})"
    return "drifted", "; ".join(found.reasons)[:1000]


def _changed_statistics(then: ComparisonReport, now: ComparisonReport, noise: float) -> list[Difference]:
    changed = []
    others = {output.name: output for output in now.outputs}
    for output in then.outputs:
        other = others.get(output.name)
        mine, theirs = output.statistics, None if other is None else other.statistics
        if mine is None or theirs is None:
            if mine is not theirs:
                changed.append(Difference(what=output.name, then=_statistics_text(mine), now=_statistics_text(theirs)))
            continue
        for metric in RECORDED:
            one, two = getattr(mine, metric.name), getattr(theirs, metric.name)
            if one is None or two is None or _are_alike(float(one), float(two), noise):
                continue
            changed.append(Difference(what=f"{output.name} {metric.name}", then=f"{one:.6g}", now=f"{two:.6g}"))
    return changed


def _are_alike(one: float, two: float, noise: float) -> bool:
    return (
        one == two or (math.isnan(one) and math.isnan(two)) or math.isclose(one, two, rel_tol=_NOT_EQUAL, abs_tol=noise)
    )


def _statistics_text(statistics: object) -> str:
    return "no statistics" if statistics is None else "statistics"


def _output_differences(gathered: Gathered, outputs: Outputs) -> Iterable[Difference]:
    """Statistics against the golden outputs that changed, and how far outputs are from the logged engine's."""
    if gathered.recorded is not None and gathered.same_data:
        yield from _changed_statistics(gathered.recorded.report, outputs.against_golden, gathered.noise)
    for output in outputs.against_logged.outputs if outputs.against_logged is not None else ():
        if (far := _largest_error(output.statistics)) > 0:
            noise = outputs.noise.get(output.name, 0.0) + gathered.noise
            yield Difference(
                what=f"{output.name} max_abs from the logged engine", then=f"noise {noise:.3g}", now=f"{far:.3g}"
            )


def _outputs_in_child(
    engine: Engine, logged: Engine | None, model: Model, check: CheckConfig, tolerances: Tolerances, repeats: int
) -> Outputs:
    """Run the new engine, the logged one, and the model itself where there are no golden outputs, on the same data."""
    feeds = list(check.open_for(model))
    backend = engine_backend(engine.backend)
    with backend.runner(engine) as runner:
        ours = collect(runner, feeds)
    if check.golden is not None:
        golden = RunResults.load(check.golden)
    else:
        with reference_runner(model) as runner:
            golden = collect(runner, feeds)
    against_golden = compare_outputs(ours, golden, tolerances)
    if logged is None:
        return Outputs(against_golden, None, "the logged engine is not there", {})
    try:
        with backend.runner(logged) as runner:
            runs = [collect(runner, feeds) for _ in range(repeats)]
    except errors.BackendError as exc:
        return Outputs(against_golden, None, f"the logged engine does not run here: {exc}"[:500], {})
    return Outputs(against_golden, compare_outputs(ours, runs[0], tolerances), "", _noise_by_output(runs))


def _noise_by_output(runs: Sequence[RunResults]) -> dict[str, float]:
    """By output, the largest difference between any run of an engine and its first."""
    [first, *others] = [next(iter(run.values())) for run in runs]
    noise: dict[str, float] = {}
    for other in others:
        for mine, theirs in zip(first, other):
            for name, array in mine.items():
                if np.issubdtype(array.dtype, np.number) and array.shape == theirs[name].shape and array.size:
                    apart = np.abs(array.astype(np.float64) - theirs[name].astype(np.float64))
                    noise[name] = max(noise.get(name, 0.0), float(np.nanmax(apart, initial=0.0)))
    return noise


def _tactic_differences(then: TacticRecord, now: TacticRecord) -> Iterable[Difference]:
    mine, theirs = ({c.layer: c for c in record.choices} for record in (then, now))
    for layer in then.differing_layers(now):
        one, two = mine.get(layer), theirs.get(layer)
        yield Difference(
            what=layer,
            then="no such layer" if one is None else one.tactic,
            now="no such layer" if two is None else two.tactic,
        )
    settings, others = dict(then.settings), dict(now.settings)
    for name in sorted({*settings, *others}):
        if settings.get(name) != others.get(name):
            yield Difference(what=f"setting {name}", then=settings.get(name, ""), now=others.get(name, ""))


def _precision_differences(then: Sequence[Layer], now: Sequence[Layer]) -> Iterable[Difference]:
    theirs = {layer.name: layer.precision for layer in now}
    for layer in then:
        if layer.name in theirs and theirs[layer.name] != layer.precision:
            yield Difference(what=layer.name, then=layer.precision, now=theirs[layer.name])


_COMPARED = (
    "backend",
    "backend_version",
    "device",
    "device_sha256",
    "compute_capability",
    "driver",
    "cuda",
    "os",
    "python",
)


def environment_differences(
    then: Environment, now: Environment, state_then: Iterable[tuple[str, str]], state_now: Iterable[tuple[str, str]]
) -> tuple[Difference, ...]:
    """What of the environment differs, field by field and package by package, and what the device was doing."""
    found = [
        Difference(what=name, then=str(getattr(then, name) or ""), now=str(getattr(now, name) or ""))
        for name in _COMPARED
        if getattr(then, name) != getattr(now, name)
    ]
    tables = (("package", dict(then.packages), dict(now.packages)), ("device", dict(state_then), dict(state_now)))
    for kind, mine, theirs in tables:
        # Of a run that was logged before a state was told nothing can be said.
        for name in sorted({*mine, *(theirs if kind == "package" else ())}):
            if mine.get(name) != theirs.get(name):
                found.append(Difference(what=f"{kind} {name}", then=mine.get(name, ""), now=theirs.get(name, "")))
    return tuple(found)
