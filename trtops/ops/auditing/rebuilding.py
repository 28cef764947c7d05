"""Run a logged engine again, rebuild it from the artifacts of its run, and grade the result.

A grade has two parts: the kernels, and the numbers. Equal kernels whose outputs differ by more than the logged engine's
own noise are not equal tactics, since something else differs, such as the ranges of a calibration.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Caches, Engine
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs, iterations_of
from trtops.comparator.results import RunResults
from trtops.ops.auditing.result import Difference, Grade, Rebuild, WayName
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.data import collect, golden_outputs
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.self_check import check_engine
from trtops.ops.facts import Claim, Contradiction
from trtops.record import sha256
from trtops.spec import BuildConfig, Environment
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import StoredRun, Tracker, incomplete
from trtops.tracking.builds import Materials, read_materials

_NOISE_RUNS = 3  # of the logged engine
# Errors that were measured again may differ by this share, besides the noise: other releases sum in another order.
_SAME_ERROR = 0.01


@dataclass(frozen=True)
class Logged:
    """A logged build, and everything needed to rebuild it."""

    build: Build  # without the engine's bytes if these are damaged or dropped
    engine_sha256: str
    model: Model
    caches: Caches
    check: CheckConfig
    tolerances: Tolerances
    recorded: Evaluation | None  # None if it was made on data or golden outputs that are missing now, too
    golden: str | None  # file with the golden outputs of its campaign
    state: Mapping[str, str]  # of the device, as logged
    missing: tuple[str, ...]  # files that were not logged, and what is used instead


class MaterialFolder:
    """A folder with models missing from runs, indexed by the digest of their content. Each is read once."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    @functools.cached_property
    def models(self) -> dict[str, Path]:
        """The ONNX files by digest."""
        files = {}
        for file in sorted(Path(self._path).rglob("*.onnx")) if self._path is not None else ():
            with contextlib.suppress(errors.InvalidModelError):
                files[Model.load(file).info.sha256] = file
        return files


def gather(run: StoredRun, tracker: Tracker, folder: MaterialFolder) -> Logged:
    """Everything needed to rebuild the engine of a run; TrtopsError if something essential is missing or damaged."""
    missing: list[str] = []
    engine_run = run.holder
    engine = next(
        (e for e in engine_run.manifest.original().artifacts if e.path.startswith(f"{builds.ENGINE_STEM}.")), None
    )
    if engine is None:
        raise incomplete(engine_run.info.id, "it holds no engine")
    try:
        build = builds.load_build(engine_run)
    except errors.IncompleteRunError:  # the engine is damaged or was dropped, but its digest is known
        build = builds.load_build(engine_run, engine=False)
    if not build.engine.plan:
        missing.append(f"the engine with SHA-256 {engine.sha256}: outputs are compared with the golden ones")
    parent = _campaign_of(run, tracker)
    # The nearest first: an iteration may have data of its own, and its campaign has it for all of them.
    sources = list(dict.fromkeys(filter(None, (run, engine_run, parent))))
    materials = _materials_of(engine_run) or Materials(check={})

    def read_cache(name: str) -> bytes | None:
        """A cache logged with the build."""
        material = materials.of(name)
        return (
            engine_run.read_bytes(material.path)
            if material is not None and material.path in engine_run.manifest
            else None
        )

    def cache(label: str, name: str, digest: str | None) -> bytes | None:
        """The cache with this digest."""
        data = None if digest is None else read_cache(name)
        if digest is not None and (data is None or sha256(data) != digest):
            missing.append(f"{label} with SHA-256 {digest}")
            return None
        return data

    spec = build.spec
    calibration = build.calibration_cache
    if spec.config.calibrates and calibration is None:
        calibration = cache("calibration cache or data", "calibration_cache", spec.calibration_sha256)
    # Usually the replayed record is the build's own; another one was logged as a material.
    replay = None if spec.replay_sha256 is None else build.tactics
    if replay is not None and replay.digest != spec.replay_sha256:
        if (data := read_cache("replay")) is not None:
            replay = TacticRecord.from_json(data)
        else:
            missing.append(f"the replayed tactic record {spec.replay_sha256}: the record of the build is used")
    denied = DenyList()
    if spec.denied_sha256 is not None:
        if (data := read_cache("denied")) is not None:
            denied = DenyList.from_json(data)
        else:
            missing.append(f"the deny-list with digest {spec.denied_sha256}: no tactic is denied")
    missing_before = len(missing)
    check = _check_config(run, parent, sources, missing, dict(spec.timed_shapes))
    recorded, tolerances = None, tolerances_for(spec.config.precision, check.tolerances)
    if schema.Artifact.ACCURACY in run.manifest:
        recorded = Evaluation.from_json(run.read_bytes(schema.Artifact.ACCURACY))
        tolerances = recorded.report.tolerances
    golden = None if parent is None else campaigns.golden_file(parent)
    state, params = schema.DEVICE_STATE, engine_run.info.params
    return Logged(
        build=build,
        engine_sha256=engine.sha256,
        model=_find_model(spec.model_sha256, [engine_run, run, parent], folder, missing),
        caches=Caches(
            timing=cache("timing cache", "timing_cache", spec.timing_cache_sha256),
            calibration=calibration,
            replay=replay,
            denied=denied,
        ),
        check=check,
        tolerances=tolerances,
        recorded=recorded if len(missing) == missing_before else None,
        golden=None if golden is None else str(golden),
        state={name[len(state) :]: value for name, value in params.items() if name.startswith(state)},
        missing=tuple(missing),
    )


def _materials_of(run: StoredRun) -> Materials | None:
    return read_materials(run.get(schema.Artifact.MATERIALS))


def _campaign_of(run: StoredRun, tracker: Tracker) -> StoredRun | None:
    """The campaign above an iteration or a proof, if it is complete."""
    info = run.info
    while info.parent is not None:
        info = tracker.info(info.parent)
        if info.kind == "debug_build":
            try:
                return tracker.load(info.id)
            except errors.IncompleteRunError:
                return None
    return None


def _check_config(
    run: StoredRun,
    parent: StoredRun | None,
    sources: Sequence[StoredRun],
    missing: list[str],
    timed_shapes: Mapping[str, tuple[int, ...]],
) -> CheckConfig:
    """How the engine was evaluated, with data and golden outputs as local files.

    Random data in place of missing data has the shapes that tactics were timed at.
    """
    if (run_materials := _materials_of(run)) is not None:
        check = CheckConfig.from_dict(run_materials.check)
    elif parent is not None and schema.Artifact.CAMPAIGN in parent.manifest:
        check = DebugBuildConfig.from_json(parent.read_bytes(schema.Artifact.CAMPAIGN)).check
    else:
        missing.append("how the engine was evaluated, and on what data: random data is used")
        check = CheckConfig()
    local_files: dict[str, str | None] = {"data": None, "golden": None}
    for name, instead in (("data", f"random data with seed {check.seed} is"), ("golden", "those of the model are")):
        if (original_path := getattr(check, name)) is None:
            continue
        digest = ""
        for source in sources:
            material = (_materials_of(source) or Materials(check={})).of(name)
            if material is not None:
                digest = f" (SHA-256 {material.sha256})"
                if material.path in source.manifest:
                    local_files[name] = str(source.local_path(material.path))
                break
        if local_files[name] is None:
            missing.append(f"{name} {original_path!r}{digest}: {instead} used")
    if check.data is not None and local_files["data"] is None:
        local_files["golden"] = None  # golden outputs of other data do not fit
        check = replace(check, input_shapes=timed_shapes or check.input_shapes)
    # Outputs are compared and nothing else, so labels, plots and latency only take time.
    return replace(check, labels=None, plots="never", latency_runs=0, **local_files)  # type: ignore[arg-type]


def _find_model(
    model_sha256: str, sources: Iterable[StoredRun | None], folder: MaterialFolder, missing: list[str]
) -> Model:
    cause = "no run logged it"
    for run in dict.fromkeys(filter(None, sources)):
        model_paths = [e.path for e in run.manifest.artifacts if e.path.startswith(schema.Artifact.MODEL)]
        files = sorted((run.local_path(path) for path in model_paths), key=lambda file: file.suffix != ".onnx")
        if files:
            model = Model.load(files[0])
            if model.info.sha256 == model_sha256:
                return model
            cause = f"run {run.info.id} logged another one with digest {model.info.sha256}"
    if (local_file := folder.models.get(model_sha256)) is not None:
        missing.append(f"the model with digest {model_sha256}: {local_file.name} is used")
        return Model.load(local_file)
    raise errors.ConfigError(
        f"The model with digest {model_sha256} is missing: {cause}. Give it in a folder of materials."
    )


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
    recorded_outputs = (
        {} if recorded is None else {output_report.name: output_report for output_report in recorded.report.outputs}
    )
    for output in report.outputs if recorded is not None else ():
        recorded_error = (
            _max_abs(recorded_outputs[output.name].statistics) if output.name in recorded_outputs else math.nan
        )
        current_error = _max_abs(output.statistics)
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
    before = (
        {} if recorded is None else {output_report.name: output_report for output_report in recorded.report.outputs}
    )
    if outputs.broken:
        return "drifted", "; ".join(outputs.broken)[:1000]
    if not outputs.why_not and all(_max_abs(o.statistics) <= noise.get(o.name, 0.0) for o in report.outputs):
        return (
            "outputs equal",
            f"equal to the logged engine's within its noise of {max(noise.values(), default=0.0):.3g}",
        )
    if report.verdict != "good":
        return "drifted", "; ".join(report.reasons)[:1000]
    if outputs.why_not and all(
        o.name in before and _same_error(_max_abs(before[o.name].statistics), _max_abs(o.statistics), 0.0)
        for o in report.outputs
    ):
        return "outputs equal", f"the errors against the golden outputs are the recorded ones ({outputs.why_not})"
    if outputs.why_not:
        return "within tolerance", f"compared with the golden outputs ({outputs.why_not})"
    return "within tolerance", "within the logged tolerances of the logged engine's"


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
