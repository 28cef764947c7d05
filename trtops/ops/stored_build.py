"""A logged build with everything that is needed to rebuild it, read from its run and the folder of materials."""

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.onnx.model import Model
from trtops.comparator.report import Tolerances
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.facts import model_path
from trtops.record import sha256
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import StoredRun, Tracker, incomplete
from trtops.tracking.builds import Materials, read_materials


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
    engine = builds.engine_entry(engine_run.manifest.original())
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
        if material is None or material.path not in engine_run.manifest:
            return None
        return engine_run.read_bytes(material.path)

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
    unchecked = list[str]()
    recorded, tolerances = None, tolerances_for(spec.config.precision, check.tolerances)
    if schema.Artifact.ACCURACY in run.manifest:
        recorded = Evaluation.from_json(run.read_bytes(schema.Artifact.ACCURACY))
        tolerances = recorded.report.tolerances
        if recorded.export is not None:
            unchecked.append(f"the module {recorded.export.source}: its export is the model, and is not checked again")
    golden = None if parent is None else campaigns.golden_file(parent)
    state, params = schema.DEVICE_STATE, engine_run.info.params
    return Logged(
        build=build,
        engine_sha256=engine.sha256,
        model=_find_model(spec.model_sha256, [engine_run, run, parent], tracker, folder, missing),
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
        missing=(*missing, *unchecked),
    )


def _materials_of(run: StoredRun) -> Materials | None:
    return read_materials(run.get(schema.Artifact.MATERIALS))


def _campaign_of(run: StoredRun, tracker: Tracker) -> StoredRun | None:
    """The campaign above an iteration or a proof, or the choice above a candidate, if it is complete."""
    info = run.info
    while info.parent is not None:
        info = tracker.info(info.parent)
        if info.kind in ("debug_build", "choose"):
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
    # Outputs are compared and nothing else, so metrics, plots and latency only take time.
    return replace(
        check,
        metric=(),
        labels=None,
        loss=None,
        plots="never",
        latency_runs=0,
        **local_files,  # type: ignore[arg-type]
    )


def _find_model(
    model_sha256: str,
    sources: Iterable[StoredRun | None],
    tracker: Tracker,
    folder: MaterialFolder,
    missing: list[str],
) -> Model:
    cause = "no run logged it"
    for run in dict.fromkeys(filter(None, sources)):
        if any(run.paths(schema.Artifact.MODEL)):
            model = Model.load(model_path(run))
            if model.info.sha256 == model_sha256:
                return model
            cause = f"run {run.info.id} logged another one with digest {model.info.sha256}"
    # A choice keeps the model for its candidates, whose engines other builds may reuse.
    choices = {schema.Tag.KIND: "choose", schema.Tag.MODEL_SHA256: model_sha256}
    for info in tracker.find(tags=choices, status="finished"):
        with contextlib.suppress(errors.TrtopsError):  # a damaged run
            other = tracker.load(info.id)
            if any(other.paths(schema.Artifact.MODEL)):
                model = Model.load(model_path(other))
                if model.info.sha256 == model_sha256:
                    return model
    if (local_file := folder.models.get(model_sha256)) is not None:
        missing.append(f"the model with digest {model_sha256}: {local_file.name} is used")
        return Model.load(local_file)
    raise errors.ConfigError(
        f"The model with digest {model_sha256} is missing: {cause}. Give it in a folder of materials."
    )
