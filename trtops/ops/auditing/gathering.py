"""What it takes to build a run again, gathered from its artifacts alone; what was not logged is named, and looked for by digest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.onnx.model import Model
from trtops.comparator.report import Tolerances
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.engines.deny import deny_list
from trtops.ops.evaluation.check import CheckConfig, Evaluation, tolerances_for
from trtops.record import sha256, sha256_file
from trtops.tactics.denied import DenyList
from trtops.tactics.noise import NoiseSplit
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import StoredRun, Tracker, incomplete
from trtops.tracking.materials import Material, Materials, read_materials

_LARGEST_CACHE = 1 << 30


@dataclass(frozen=True)
class Gathered:
    """A logged build, and all that it takes to make it again.

    Attributes:
        build: The build as it was logged; of one whose engine was dropped or is damaged, without the engine's bytes.
        engine_sha256: Digest of its engine.
        model: Its model.
        caches: What the builder was given then.
        check: On what data it is run, and how it is evaluated.
        tolerances: What it was evaluated by.
        recorded: The comparison that was logged; None if there was none.
        same_data: Whether the data of then is there.
        noise: How far outputs of one build may be apart, by what was measured of its campaign; 0 if nothing was.
        state: What the device was doing then, by the tags.
        missing: What was not logged, and what stands in for it.
    """

    build: Build
    engine_sha256: str
    model: Model
    caches: Caches
    check: CheckConfig
    tolerances: Tolerances
    recorded: Evaluation | None = None
    same_data: bool = True
    noise: float = 0.0
    state: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()


class Folder:
    """A folder with what runs did not log, found by digest. Each file is read once."""

    def __init__(self, path: str | None) -> None:
        """Nothing is read before something is looked for."""
        self.path = None if path is None else Path(path)
        self._files: dict[str, Path] | None = None
        self._models: dict[str, Path] | None = None

    def file(self, digest: str) -> Path | None:
        """The file whose bytes have a digest."""
        if self._files is None:
            small = (file for file in self._all() if file.stat().st_size <= _LARGEST_CACHE)
            self._files = {sha256_file(file): file for file in small}
        return self._files.get(digest)

    def model(self, digest: str) -> Path | None:
        """The ONNX file whose content has a digest."""
        if self._models is None:
            self._models = dict(self._models_there())
        return self._models.get(digest)

    def _all(self) -> list[Path]:
        if self.path is None:
            return []
        if not self.path.is_dir():
            raise errors.ConfigError(f"materials={str(self.path)!r} is no folder.")
        return sorted(file for file in self.path.rglob("*") if file.is_file())

    def _models_there(self) -> Iterator[tuple[str, Path]]:
        for file in self._all():
            if file.suffix == ".onnx":
                try:
                    yield Model.load(file).info.sha256, file
                except errors.ModelError:
                    continue


@dataclass
class _Gatherer:
    """Gathers one run."""

    run: StoredRun
    tracker: Tracker
    folder: Folder
    missing: list[str] = field(default_factory=list)
    same_data: bool = True

    def gather(self) -> Gathered:
        run = self.run
        held = builds.holder_of_engine(self.tracker, run.info)
        original = held.manifest.original().artifacts
        engine = next((e for e in original if e.path.startswith(f"{builds.ENGINE_STEM}.")), None)
        if engine is None:
            raise incomplete(held.info.id, "it holds no engine")
        build = _load_build(held, engine.path)
        if not build.engine.plan:
            self.missing.append(f"the engine, of SHA-256 {engine.sha256}: outputs are compared by their statistics")
        parent = self._parent()
        materials = self._materials(held, parent)
        check = self._check_config(run, parent, materials)
        path = schema.Artifact.ACCURACY
        recorded = Evaluation.from_json(run.read_bytes(path)) if path in run.manifest else None
        tolerances = tolerances_for(build.spec.config.precision, check.tolerances)
        state = schema.Tag.DEVICE_STATE
        tags = held.info.tags.items()
        return Gathered(
            build=build,
            engine_sha256=engine.sha256,
            model=self._model(build, held, parent),
            caches=self._caches(build, held),
            check=check,
            tolerances=recorded.report.tolerances if recorded else tolerances,
            recorded=recorded,
            same_data=self.same_data,
            noise=self._noise(),
            state=tuple(
                sorted(
                    (tag[len(state) :], value) for tag, value in tags if tag.startswith(state) and tag != _DEVICE_DIGEST
                )
            ),
            missing=tuple(self.missing),
        )

    def _parent(self) -> StoredRun | None:
        """The campaign above an iteration, or above a proof of it, if it is whole."""
        info = self.run.info
        while info.parent is not None:
            info = self.tracker.info(info.parent)
            if info.kind == "debug_build":
                try:
                    return self.tracker.load(info.id)
                except errors.IncompleteRunError:
                    return None
        return None

    def _materials(self, held: StoredRun, parent: StoredRun | None) -> dict[str, tuple[StoredRun, Material]]:
        """Data and golden outputs that this run, the run of its engine or its campaign kept, the nearest first."""
        found: dict[str, tuple[StoredRun, Material]] = {}
        for run in dict.fromkeys(filter(None, (parent, held, self.run))):
            for material in (_materials_of(run) or Materials(check={})).given:
                found[material.name] = (run, material)
        return found

    def _check_config(
        self, run: StoredRun, parent: StoredRun | None, materials: dict[str, tuple[StoredRun, Material]]
    ) -> CheckConfig:
        own = _materials_of(run)
        if own is not None:
            check = CheckConfig.from_dict(own.check)
        elif parent is not None and schema.Artifact.CAMPAIGN in parent.manifest:
            check = DebugBuildConfig.from_json(parent.read_bytes(schema.Artifact.CAMPAIGN)).check
        else:
            self.missing.append("how the engine was evaluated, and on what data: random data is used")
            self.same_data = False
            check = CheckConfig()
        check = replace(check, labels=None, plots="never", latency_runs=0)
        check = replace(check, data=self._data(check, materials))
        return replace(check, golden=self._golden(check, materials))

    def _data(self, check: CheckConfig, materials: dict[str, tuple[StoredRun, Material]]) -> str | None:
        if check.data is None:
            return None
        run, material = materials.get("data", (None, None))
        if material is not None and run is not None and material.path:
            return str(run.local_path(material.path))
        digest = "" if material is None else f" (SHA-256 {material.sha256})"
        self.same_data = False
        self.missing.append(f"data {check.data!r}{digest}: random data of seed {check.seed} is used")
        return None

    def _golden(self, check: CheckConfig, materials: dict[str, tuple[StoredRun, Material]]) -> str | None:
        """Golden outputs that were given; where data is another they fit no more, and the model itself is asked."""
        if check.golden is None or not self.same_data:
            return None
        run, material = materials.get("golden", (None, None))
        if material is not None and run is not None:
            if material.path in run.manifest:
                return str(run.local_path(material.path))
            if (file := self.folder.file(material.sha256)) is not None:
                return str(file)
        self.missing.append(f"golden outputs {check.golden!r}: those of the model itself are used")
        return None

    def _model(self, build: Build, held: StoredRun, parent: StoredRun | None) -> Model:
        wanted = build.spec.model_sha256
        why = "no run kept it"
        for run in dict.fromkeys(filter(None, (held, self.run, parent))):
            kept = [e.path for e in run.manifest.artifacts if e.path.startswith(schema.Artifact.MODEL)]
            files = [run.local_path(path) for path in kept]
            named = sorted(files, key=lambda file: file.suffix != ".onnx")
            if named and (model := Model.load(named[0])).info.sha256 == wanted:
                return model
            if named:
                why = f"run {run.info.id} kept another one, of digest {model.info.sha256}"
        if (found := self.folder.model(wanted)) is not None:
            self.missing.append(f"the model, of digest {wanted}: {found.name} is taken")
            return Model.load(found)
        raise errors.ConfigError(
            f"The model, of digest {wanted}, is not there: {why}. Give it in a folder of materials."
        )

    def _caches(self, build: Build, held: StoredRun) -> Caches:
        spec = build.spec
        timing = self._given("timing cache", spec.timing_cache_sha256, held, "timing_cache")
        calibration = build.calibration_cache
        if spec.config.precision == "int8" and calibration is None and spec.calibration_sha256 is not None:
            calibration = self._given("calibration cache or data", spec.calibration_sha256, held, "calibration_cache")
        return Caches(
            timing=timing,
            calibration=calibration,
            replay=self._replay(build, held),
            denied=self._denied(build, held),
        )

    def _given(self, what: str, digest: str | None, held: StoredRun, name: str) -> bytes | None:
        if digest is None:
            return None
        for data in self._candidates(held, name, digest):
            if sha256(data) == digest:
                return data
        self.missing.append(f"{what} of SHA-256 {digest} that the build was given")
        return None

    def _candidates(self, held: StoredRun, name: str, digest: str) -> Iterable[bytes]:
        material = (_materials_of(held) or Materials(check={})).of(name)
        if material is not None and material.path in held.manifest:
            yield held.read_bytes(material.path)
        if (file := self.folder.file(digest)) is not None:
            yield file.read_bytes()

    def _replay(self, build: Build, held: StoredRun) -> TacticRecord | None:
        digest = build.spec.replay_sha256
        if digest is None or build.tactics.digest == digest:
            return None if digest is None else build.tactics
        material = (_materials_of(held) or Materials(check={})).of("replay")
        if material is not None and material.path in held.manifest:
            return TacticRecord.from_json(held.read_bytes(material.path))
        self.missing.append(f"the tactic record of digest {digest} that was replayed: the build's own record is taken")
        return build.tactics

    def _denied(self, build: Build, held: StoredRun) -> DenyList:
        digest, environment = build.spec.denied_sha256, build.engine.environment
        if digest is None:
            return DenyList()
        material = (_materials_of(held) or Materials(check={})).of("denied")
        lists = []
        if material is not None and material.path in held.manifest:
            lists.append(DenyList.from_json(held.read_bytes(material.path)))
        lists.append(deny_list(self.tracker, environment))
        for found in lists:
            if found.here(environment).digest == digest:
                return found
        self.missing.append(f"the deny-list of digest {digest} that the build minded: nothing is denied")
        return DenyList()

    def _noise(self) -> float:
        """Three standard deviations of what was measured of the campaign's engines, in the unit of the outputs."""
        if self.run.info.parent is None:
            return 0.0
        for info in self.tracker.find(
            parent=self.run.info.parent, tags={schema.Tag.KIND: "noise"}, status="finished", limit=1
        ):
            found = json.loads(self.tracker.load(info.id).read_bytes(schema.Artifact.NOISE))
            if found.get("statistic") == "max_abs":
                split = NoiseSplit.from_dict(found["noise"])
                return float(split.limit() - split.mean)
        return 0.0


_DEVICE_DIGEST = schema.Tag.DEVICE_SHA256  # "trtops.device.sha256" is no state, though it begins like one


def _materials_of(run: StoredRun) -> Materials | None:
    path = schema.Artifact.MATERIALS
    return read_materials(run.read_bytes(path)) if path in run.manifest else None


def _load_build(held: StoredRun, engine: str) -> Build:
    """The build, without its engine's bytes if these were dropped, are gone or were changed: its digest is known all the same."""
    there = engine in held.manifest
    with contextlib.suppress(errors.IncompleteRunError):
        return builds.load_build(held, engine=there)
    return builds.load_build(held, engine=False)


def gather(run: StoredRun, tracker: Tracker, folder: Folder) -> Gathered:
    """Gather what it takes to build a run again.

    Raises:
        TrtopsError: If something without which nothing can be built is missing or damaged; the message names it.
    """
    return _Gatherer(run, tracker, folder).gather()
