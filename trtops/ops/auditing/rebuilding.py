"""Rebuild a logged engine from the artifacts of its run, and grade the result."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.base import Build, Caches, Engine
from trtops.backend.engines import engine_backend, reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.comparator.table import RECORDED
from trtops.ops.auditing.config import Grade, WayName
from trtops.ops.auditing.result import Difference, Rebuild
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.engines.deny import deny_list
from trtops.ops.evaluation.check import CheckConfig, Evaluation, collect, tolerances_for
from trtops.record import sha256, sha256_file
from trtops.spec import BuildConfig, Environment
from trtops.tactics.denied import DenyList
from trtops.tactics.noise import NoiseSplit
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import StoredRun, Tracker, incomplete
from trtops.tracking.materials import Material, Materials, read_materials

_MAX_CACHE_BYTES = 1 << 30
_RELATIVE_TOLERANCE = 0.01  # of statistics, where the outputs themselves cannot be compared


@dataclass(frozen=True)
class Logged:
    """A logged build, and everything needed to rebuild it.

    Attributes:
        build: The build; without the engine's bytes if these were dropped or are damaged.
        caches: Caches that the builder was given.
        check: The data it runs on, and how it is evaluated.
        recorded: The logged evaluation; None without one.
        same_data: False if the original data is not available.
        noise: Noise between builds of the campaign, as far as measured; in the unit of the outputs.
        missing: What was not logged, and what is used instead.
    """

    build: Build
    engine_sha256: str
    model: Model
    caches: Caches
    check: CheckConfig
    tolerances: Tolerances
    recorded: Evaluation | None
    same_data: bool
    noise: float
    state: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]


class MaterialFolder:
    """A folder with files that runs did not log, found by digest. Each file is read once."""

    def __init__(self, path: str | None) -> None:
        """Nothing is read before the first search."""
        self._path = None if path is None else Path(path)
        self._files: dict[str, Path] | None = None
        self._models: dict[str, Path] | None = None

    def file(self, digest: str) -> Path | None:
        """The file with this digest."""
        if self._files is None:
            small = (file for file in self._all() if file.stat().st_size <= _MAX_CACHE_BYTES)
            self._files = {sha256_file(file): file for file in small}
        return self._files.get(digest)

    def model(self, digest: str) -> Path | None:
        """The ONNX file whose content has this digest."""
        if self._models is None:
            self._models = {}
            for file in self._all():
                if file.suffix == ".onnx":
                    with contextlib.suppress(errors.ModelError):
                        self._models[Model.load(file).info.sha256] = file
        return self._models.get(digest)

    def _all(self) -> list[Path]:
        return [] if self._path is None else sorted(file for file in self._path.rglob("*") if file.is_file())


def gather(run: StoredRun, tracker: Tracker, folder: MaterialFolder) -> Logged:
    """Collect everything needed to rebuild the engine of a run.

    Raises:
        TrtopsError: If something essential is missing or damaged; the message names it.
    """
    missing: list[str] = []
    held = builds.holder_of_engine(tracker, run.info)
    engine = next((e for e in held.manifest.original().artifacts if e.path.startswith(f"{builds.ENGINE_STEM}.")), None)
    if engine is None:
        raise incomplete(held.info.id, "it holds no engine")
    try:
        build = builds.load_build(held, engine=engine.path in held.manifest)
    except errors.IncompleteRunError:  # the engine is damaged, but its digest is known
        build = builds.load_build(held, engine=False)
    if not build.engine.plan:
        missing.append(f"the engine with SHA-256 {engine.sha256}: outputs are compared by their statistics")
    parent = _campaign_of(run, tracker)
    sources = list(dict.fromkeys(filter(None, (run, held, parent))))  # the nearest first
    kept = _materials_of(held) or Materials(check={})

    def given(name: str) -> bytes | None:
        """A cache that was logged with the build."""
        material = kept.of(name)
        return held.read_bytes(material.path) if material is not None and material.path in held.manifest else None

    def cache(what: str, name: str, digest: str | None) -> bytes | None:
        """A cache with this digest, from the run or from the folder."""
        if digest is None:
            return None
        data = given(name)
        if data is None or sha256(data) != digest:
            file = folder.file(digest)
            data = None if file is None else file.read_bytes()
        if data is None:
            missing.append(f"{what} with SHA-256 {digest}")
        return data

    spec, environment = build.spec, build.engine.environment
    calibration = build.calibration_cache
    if spec.config.precision == "int8" and calibration is None:
        calibration = cache("calibration cache or data", "calibration_cache", spec.calibration_sha256)
    replay = None if spec.replay_sha256 is None else build.tactics
    if replay is not None and replay.digest != spec.replay_sha256:
        if (data := given("replay")) is not None:
            replay = TacticRecord.from_json(data)
        else:
            missing.append(f"the replayed tactic record {spec.replay_sha256}: the record of the build is used")
    denied = DenyList()
    if spec.denied_sha256 is not None:
        data = given("denied")
        lists = [*([DenyList.from_json(data)] if data is not None else []), deny_list(tracker, environment)]
        matching = [each for each in lists if each.here(environment).digest == spec.denied_sha256]
        denied = matching[0] if matching else denied
        if not matching:
            missing.append(f"the deny-list with digest {spec.denied_sha256}: no tactic is denied")
    check, same_data = _check_config(run, parent, sources, folder, missing)
    recorded = None
    if schema.Artifact.ACCURACY in run.manifest:
        recorded = Evaluation.from_json(run.read_bytes(schema.Artifact.ACCURACY))
    state, tags = schema.Tag.DEVICE_STATE, held.info.tags
    return Logged(
        build=build,
        engine_sha256=engine.sha256,
        model=_find_model(spec.model_sha256, [held, run, parent], folder, missing),
        caches=Caches(
            timing=cache("timing cache", "timing_cache", spec.timing_cache_sha256),
            calibration=calibration,
            replay=replay,
            denied=denied,
        ),
        check=check,
        tolerances=recorded.report.tolerances if recorded else tolerances_for(spec.config.precision, check.tolerances),
        recorded=recorded,
        same_data=same_data,
        noise=_campaign_noise(run, tracker),
        # The tag of the device's digest begins like those of its state.
        state=tuple(
            sorted(
                (t[len(state) :], v) for t, v in tags.items() if t.startswith(state) and t != schema.Tag.DEVICE_SHA256
            )
        ),
        missing=tuple(missing),
    )


def _materials_of(run: StoredRun) -> Materials | None:
    path = schema.Artifact.MATERIALS
    return read_materials(run.read_bytes(path)) if path in run.manifest else None


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
    folder: MaterialFolder,
    missing: list[str],
) -> tuple[CheckConfig, bool]:
    """How the engine was evaluated, with data and golden outputs as local files; and if the data is the original."""
    same_data = True
    if (own := _materials_of(run)) is not None:
        check = CheckConfig.from_dict(own.check)
    elif parent is not None and schema.Artifact.CAMPAIGN in parent.manifest:
        check = DebugBuildConfig.from_json(parent.read_bytes(schema.Artifact.CAMPAIGN)).check
    else:
        missing.append("how the engine was evaluated, and on what data: random data is used")
        check, same_data = CheckConfig(), False
    given: dict[str, tuple[StoredRun, Material]] = {}
    for source in reversed(sources):
        for material in (_materials_of(source) or Materials(check={})).given:
            given[material.name] = (source, material)
    kept_data, kept_golden = given.get("data"), given.get("golden")
    data, golden = check.data, check.golden
    if data is not None and kept_data is not None and kept_data[1].path:
        data = str(kept_data[0].local_path(kept_data[1].path))
    elif data is not None:
        digest = "" if kept_data is None else f" (SHA-256 {kept_data[1].sha256})"
        missing.append(f"data {data!r}{digest}: random data with seed {check.seed} is used")
        data, same_data = None, False
    if golden is not None and not same_data:
        golden = None  # golden outputs of other data do not fit
    elif golden is not None:
        found = None
        if kept_golden is not None:
            source, material = kept_golden
            kept_here = material.path in source.manifest
            found = source.local_path(material.path) if kept_here else folder.file(material.sha256)
        if found is None:
            missing.append(f"golden outputs {golden!r}: those of the model are used")
        golden = None if found is None else str(found)
    return replace(check, labels=None, plots="never", latency_runs=0, data=data, golden=golden), same_data


def _find_model(wanted: str, sources: Iterable[StoredRun | None], folder: MaterialFolder, missing: list[str]) -> Model:
    why = "no run logged it"
    for run in dict.fromkeys(filter(None, sources)):
        kept = [e.path for e in run.manifest.artifacts if e.path.startswith(schema.Artifact.MODEL)]
        files = sorted((run.local_path(path) for path in kept), key=lambda file: file.suffix != ".onnx")
        if files:
            model = Model.load(files[0])
            if model.info.sha256 == wanted:
                return model
            why = f"run {run.info.id} logged another one with digest {model.info.sha256}"
    if (found := folder.model(wanted)) is not None:
        missing.append(f"the model with digest {wanted}: {found.name} is used")
        return Model.load(found)
    raise errors.ConfigError(f"The model with digest {wanted} is missing: {why}. Give it in a folder of materials.")


def _campaign_noise(run: StoredRun, tracker: Tracker) -> float:
    """Three standard deviations of the measured noise of the campaign's engines; 0 if not measured."""
    if run.info.parent is None:
        return 0.0
    wanted = {schema.Tag.KIND: "noise"}
    for info in tracker.find(parent=run.info.parent, tags=wanted, status="finished", limit=1):
        found = json.loads(tracker.load(info.id).read_bytes(schema.Artifact.NOISE))
        if found.get("statistic") == "max_abs":
            split = NoiseSplit.from_dict(found["noise"])
            return float(split.limit() - split.mean)
    return 0.0


def rebuild(way: WayName, logged: Logged, backend: IsolatedBackend, repeats: int) -> Rebuild:
    """Rebuild an engine in one way and grade the result. A failure is a grade."""
    try:
        config, caches = builder_inputs(way, logged)
    except errors.ConfigError as exc:
        return Rebuild(way=way, grade="cannot be rebuilt", why=str(exc))
    try:
        new = backend.build(logged.model, config, caches=caches)
        return _grade_build(way, logged, new, backend, repeats)
    except errors.TrtopsError as exc:
        return Rebuild(way=way, grade="cannot be rebuilt", why=f"{type(exc).__name__}: {exc}"[:2000])


def builder_inputs(way: WayName, logged: Logged) -> tuple[BuildConfig, Caches]:
    """Config and caches for one way.

    Raises:
        ConfigError: If something it needs was not logged.
    """
    build, caches = logged.build, logged.caches
    config = build.spec.config
    if way == "plain":
        if build.spec.timing_cache_sha256 is not None and caches.timing is None:
            raise errors.ConfigError("the timing cache of the build is missing")
        return config, caches
    if way == "timing cache":
        if build.timing_cache is None:
            raise errors.ConfigError("no timing cache was logged")
        return config, replace(caches, timing=build.timing_cache, replay=None)
    # A seed would choose other tactics, and a deny-list might refuse recorded ones.
    replayed = Caches.replaying(build.tactics, build.timing_cache, calibration=caches.calibration)
    return replace(config, options=replace(config.options, tactic_seed=None)), replayed


def _grade_build(way: WayName, logged: Logged, new: Build, backend: IsolatedBackend, repeats: int) -> Rebuild:
    old = logged.build
    precisions = {layer.name: layer.precision for layer in new.layers}
    common = {layer.name: layer.precision for layer in old.layers if layer.name in precisions}
    made = Rebuild(
        way=way,
        grade="bytes equal",
        engine_sha256=sha256(new.engine.plan),
        seconds=new.seconds,
        tactics=tuple(_tactic_differences(old.tactics, new.tactics)),
        precisions=tuple(_differing(common, {name: precisions[name] for name in common})),
    )
    if made.engine_sha256 == logged.engine_sha256:
        return made
    engine = old.engine if old.engine.plan else None
    outputs = backend.worker.run(
        _run_in_child,
        new.engine,
        engine,
        logged.model,
        logged.check,
        logged.tolerances,
        repeats,
        timeout=backend.timeout,
    )
    grade, why = _grade_outputs(logged, outputs)
    if not made.tactics and not made.precisions and grade != "drifted":
        grade, why = "tactics equal", f"outputs: {why}"
    return replace(made, grade=grade, why=why, outputs=tuple(_output_differences(logged, outputs)))


@dataclass(frozen=True)
class Outputs:
    """Outputs of a new engine.

    Attributes:
        against_golden: Compared with the golden outputs.
        against_logged: Compared with those of the logged engine; None if that does not run here.
        why_not: Why it does not run.
        noise: Largest difference between runs of the logged engine, by output.
    """

    against_golden: ComparisonReport
    against_logged: ComparisonReport | None
    why_not: str
    noise: dict[str, float]


def _run_in_child(
    engine: Engine, logged: Engine | None, model: Model, check: CheckConfig, tolerances: Tolerances, repeats: int
) -> Outputs:
    """Run the new engine, the logged one, and the model itself if there are no golden outputs, on the same data."""
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
        return Outputs(against_golden, None, "the logged engine is missing", {})
    try:
        with backend.runner(logged) as runner:
            runs = [collect(runner, feeds) for _ in range(repeats)]
    except errors.BackendError as exc:
        return Outputs(against_golden, None, f"the logged engine does not run here: {exc}"[:500], {})
    noise: dict[str, float] = {}
    for other in runs[1:]:
        for output in compare_outputs(other, runs[0], tolerances).outputs:
            if math.isfinite(largest := _max_abs(output.statistics)):
                noise[output.name] = max(noise.get(output.name, 0.0), largest)
    return Outputs(against_golden, compare_outputs(ours, runs[0], tolerances), "", noise)


def _grade_outputs(logged: Logged, outputs: Outputs) -> tuple[Grade, str]:
    """The grade of the outputs alone, and its reason."""
    report = outputs.against_logged
    if report is not None:
        if all(_max_abs(o.statistics) <= outputs.noise.get(o.name, 0.0) + logged.noise for o in report.outputs):
            noise = max(outputs.noise.values(), default=0.0) + logged.noise
            return "outputs equal", f"equal to the logged engine's within its noise of {noise:.3g}"
        if report.verdict == "good":
            return "within tolerance", "within the logged tolerances of the logged engine's"
        return "drifted", "; ".join(report.reasons)[:1000]
    recorded = logged.recorded.report if logged.recorded is not None and logged.same_data else None
    if recorded is not None and not _changed_statistics(recorded, outputs.against_golden, logged.noise):
        return "outputs equal", f"by every recorded statistic ({outputs.why_not})"
    if outputs.against_golden.verdict == "good":
        return "within tolerance", f"compared with the golden outputs ({outputs.why_not})"
    return "drifted", "; ".join(outputs.against_golden.reasons)[:1000]


def _max_abs(statistics: Any) -> float:
    """The largest absolute difference; infinite if it cannot be computed."""
    if statistics is None or statistics.nan_errors or math.isnan(statistics.max_abs):
        return math.inf
    return float(statistics.max_abs)


def _changed_statistics(then: ComparisonReport, now: ComparisonReport, noise: float) -> list[Difference]:
    changed: list[Difference] = []
    others = {output.name: output for output in now.outputs}
    for output in then.outputs:
        other = others.get(output.name)
        mine, theirs = output.statistics, None if other is None else other.statistics
        if mine is None or theirs is None:
            if mine is not theirs:
                texts = ("no statistics" if each is None else "statistics" for each in (mine, theirs))
                changed.append(Difference(what=output.name, then=next(texts), now=next(texts)))
            continue
        for metric in RECORDED:
            one, two = getattr(mine, metric.name), getattr(theirs, metric.name)
            if one is None or two is None or (math.isnan(one) and math.isnan(two)):
                continue
            if one != two and not math.isclose(one, two, rel_tol=_RELATIVE_TOLERANCE, abs_tol=noise):
                changed.append(Difference(what=f"{output.name} {metric.name}", then=f"{one:.6g}", now=f"{two:.6g}"))
    return changed


def _output_differences(logged: Logged, outputs: Outputs) -> Iterable[Difference]:
    """Changed statistics against the golden outputs, and differences from the logged engine."""
    if logged.recorded is not None and logged.same_data:
        yield from _changed_statistics(logged.recorded.report, outputs.against_golden, logged.noise)
    for output in outputs.against_logged.outputs if outputs.against_logged is not None else ():
        if (largest := _max_abs(output.statistics)) > 0:
            noise = outputs.noise.get(output.name, 0.0) + logged.noise
            what = f"{output.name} max_abs from the logged engine"
            yield Difference(what=what, then=f"noise {noise:.3g}", now=f"{largest:.3g}")


def _tactic_differences(then: TacticRecord, now: TacticRecord) -> Iterable[Difference]:
    mine, theirs = ({c.layer: c.tactic for c in record.choices} for record in (then, now))
    for layer in then.differing_layers(now):
        none = "no such layer"
        yield Difference(what=layer, then=mine.get(layer, none), now=theirs.get(layer, none))
    yield from _differing(dict(then.settings), dict(now.settings), "setting ")


def _differing(then: Mapping[str, str], now: Mapping[str, str], prefix: str = "") -> Iterator[Difference]:
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            yield Difference(what=f"{prefix}{name}", then=then.get(name, ""), now=now.get(name, ""))


_COMPARED = (
    "backend", "backend_version", "device", "device_sha256", "compute_capability", "driver", "cuda", "os", "python",
)  # fmt: skip


def environment_differences(
    then: Environment, now: Environment, state_then: Iterable[tuple[str, str]], state_now: Iterable[tuple[str, str]]
) -> tuple[Difference, ...]:
    """Differences between two environments, in fields, packages and the state of the device."""
    mine, theirs = ({name: str(getattr(each, name) or "") for name in _COMPARED} for each in (then, now))
    logged = dict(state_then)  # a state that was not logged is unknown, not different
    here = {name: value for name, value in state_now if name in logged}
    return (
        *_differing(mine, theirs),
        *_differing(dict(then.packages), dict(now.packages), "package "),
        *_differing(logged, here, "device "),
    )
