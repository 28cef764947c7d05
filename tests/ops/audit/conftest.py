"""One signed store for all tests of audits: builds in three precisions, a campaign and an accepted engine."""

import functools
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests import campaigns, models
from tests.gates import with_wrong_weight, write
from tests.keys import new_key
from tests.stores import copy_store, delete_log, execute, opened
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.calibrate import CalibrateConfig, calibrate
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig, Limits, Policy
from trtops.ops.registry.promote import promote
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.reduce import ReduceConfig, reduce
from trtops.record import sha256
from trtops.reports.present import render_report
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.system import signing
from trtops.system.locks import locked
from trtops.system.worker import close_workers
from trtops.tracking import schema
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.records import LISTING, Manifest, Statement
from trtops.tracking.schema import Artifact, Tag

QUICK = CheckConfig(iterations=2, latency_runs=2, warm_up=0, plots="never")
ONE_THREAD = OnnxRuntimeOptions(timing_iterations=2, intra_op_threads=1)
TABLES = {
    "metric": ("metrics", "latest_metrics"),
    "history": ("metrics",),
    "param": ("params",),
    "tag": ("tags",),
    "version": ("model_version_tags",),
}


@dataclass(frozen=True)
class Logged:
    """A store in a folder, and the runs in it."""

    root: Path
    runs: dict[str, str]  # ids by what they are: precisions, ``campaign``, ``iteration``, ``accepted``
    key: Path  # the public key that all are signed with
    private: Path

    @functools.cached_property
    def tracker(self) -> MlflowTracker:
        return MlflowTracker(self.root)

    def folder(self, run: str) -> Path:
        """Where the artifacts of a run are."""
        return next(self.root.glob(f"artifacts/*/{self.runs[run]}/artifacts"))

    def edit(self, run: str, path: str, change: Callable[[bytes], bytes]) -> None:
        """Change a file."""
        file = self.folder(run) / path
        before = file.read_bytes()
        file.write_bytes(change(before))
        assert file.read_bytes() != before

    def rewrite_manifest(self, run: str) -> None:
        """Make the manifest match the files."""
        file = self.folder(run) / Artifact.MANIFEST
        manifest = json.loads(file.read_bytes())
        for entry in manifest["artifacts"]:
            data = (self.folder(run) / entry["path"]).read_bytes()
            entry["size"], entry["sha256"] = len(data), sha256(data)
        file.write_text(json.dumps(manifest, indent=2, ensure_ascii=False))

    def forget(self, run: str, path: str) -> None:
        """Remove a file from the manifest."""
        file = self.folder(run) / Artifact.MANIFEST
        manifest = json.loads(file.read_bytes())
        manifest["artifacts"] = [entry for entry in manifest["artifacts"] if entry["path"] != path]
        file.write_text(json.dumps(manifest, indent=2, ensure_ascii=False))

    def list_file(self, run: str, path: str) -> None:
        """Add a file to the manifest."""
        file = self.folder(run) / Artifact.MANIFEST
        manifest = json.loads(file.read_bytes())
        manifest["artifacts"] = sorted([*manifest["artifacts"], {"path": path, "size": 0, "sha256": ""}], key=str)
        file.write_text(json.dumps(manifest, indent=2, ensure_ascii=False))

    def restate(self, run: str) -> None:
        """Make the manifest's statement match the database."""
        self.list_in_note(run)
        info, file = self.tracker.info(self.runs[run]), self.folder(run) / Artifact.MANIFEST
        manifest = json.loads(file.read_bytes())
        stated = manifest["run"]
        stated["tags"] = {n: Statement.short(v) for n, v in info.tags.items() if n != Tag.MANIFEST_SHA256}
        stated["params"] = {name: Statement.short(value) for name, value in info.params.items()}
        stated["metrics"] |= {
            schema.metric_key(n): [*stated["metrics"].get(schema.metric_key(n), ()), v] for n, v in info.metrics.items()
        }
        stated |= {"experiment": info.experiment, "name": info.name, "parent": info.parent}
        stated |= {"start_time": info.start_time, "end_time": info.end_time}
        # As the product writes it: infinite numbers are texts.
        file.write_text(Manifest.from_json(json.dumps(manifest).encode()).to_json(), encoding="utf-8")
        self.rewrite_tags(run)

    def adjust(self, run: str) -> None:
        """Make everything match the files: manifest, tags, numbers of the engine, report, description and statement."""
        self.rewrite_manifest(run)
        self.rewrite_tags(run)
        self.set(run, "metric", "build/engine_bytes", (self.folder(run) / "engine/engine.ort").stat().st_size)
        self.restate(run)
        [(page, note)] = render_report(self.tracker, self.tracker.load(self.runs[run]))
        (self.folder(run) / Artifact.REPORT).write_text(page, encoding="utf-8")
        self.rewrite_manifest(run)
        self.set(run, "tag", Tag.NOTE, note)
        self.rewrite_tags(run)
        self.restate(run)

    def unsign(self, run: str) -> None:
        """Remove the signature, and the statement that there was one."""
        (self.folder(run) / Artifact.SIGNATURE).unlink()
        changed = json.loads((self.folder(run) / Artifact.MANIFEST).read_bytes()) | {"log": ""}
        changed["run"]["signed"] = False
        self.edit(run, Artifact.MANIFEST, lambda data: json.dumps(changed).encode())
        self.restate(run)

    def list_in_note(self, run: str) -> None:
        """Make the digests in the description match the manifest."""
        note = self.tracker.info(self.runs[run]).tags[Tag.NOTE].rpartition(f"\n\n{LISTING}\n")
        manifest = Manifest.from_json((self.folder(run) / Artifact.MANIFEST).read_bytes())
        self.set(run, "tag", Tag.NOTE, manifest.noted(note[0] or note[2]))

    def rewrite_tags(self, run: str) -> None:
        """Make the digests in tags match the manifest."""
        data = (self.folder(run) / Artifact.MANIFEST).read_bytes()
        digests = {entry["path"]: entry["sha256"] for entry in json.loads(data)["artifacts"]}
        self.set(run, "tag", Tag.MANIFEST_SHA256, sha256(data))
        self.list_in_note(run)
        if (engine := digests.get("engine/engine.ort")) is not None:
            self.set(run, "tag", Tag.ENGINE_SHA256, engine)
        self.copy_to_model(run)

    def copy_to_model(self, run: str) -> None:
        """Make the files of the run's logged model those of the run."""
        query = "SELECT artifact_location FROM logged_models WHERE source_run_id = ?"
        for location in [Path(row[0]) for row in execute(self.root, query, self.runs[run])]:
            for folder in self.root.glob(f"artifacts/*/models/{location.parent.name}/artifacts"):
                for file in filter(Path.is_file, folder.rglob("*")):
                    source = self.folder(run) / file.relative_to(folder)
                    if source.exists():
                        file.write_bytes(source.read_bytes())
                    elif file.name == Artifact.SIGNATURE:
                        file.unlink()

    def set(self, run: str, kind: str, name: str, value: object) -> None:
        """Change a tag, param, metric or column of a run in the database, or a tag of the version in the registry."""
        if kind in ("run", "experiment"):
            row = (
                "run_uuid = ?"
                if kind == "run"
                else "experiment_id = (SELECT experiment_id FROM runs WHERE run_uuid = ?)"
            )
            self.execute(f"UPDATE {kind}s SET {name} = ? WHERE {row}", value, self.runs[run])
            return
        of_run = "TRUE" if kind == "version" else f"run_uuid = '{self.runs[run]}'"
        for table in TABLES[kind]:
            self.execute(f"UPDATE {table} SET value = ? WHERE key = ? AND {of_run}", value, name)

    def execute(self, query: str, *values: object) -> None:
        with closing(opened(self.root)) as database, database:
            assert database.execute(query, values).rowcount >= 1, (query, values)


def make_store(folder: Path, *, signed: bool = True) -> Logged:
    """A store with runs of every kind that is audited."""
    private, public = folder / "key.pem", folder / "key.pub"
    new_key(private, public)
    tracker = MlflowTracker(folder / "mlruns")
    model, data = models.conv_net().fixed().write(folder), folder / "data.npz"
    np.savez(data, **models.conv_net().fixed().feed)
    (folder / "scaled").mkdir()
    scaled = write(with_wrong_weight(models.conv_net().fixed().proto), folder / "scaled", "retrained")
    real = replace(GateConfig().check, data=str(data))
    with pytest.MonkeyPatch.context() as patch:
        if signed:
            patch.setenv(signing.KEY_VARIABLE, str(private))
        runs = {}
        for name, precision in (("fp32", "fp32"), ("fp16", "fp16"), ("int8", "int8"), ("reused", "fp32")):
            build = BuildConfig(precision=precision, options=ONE_THREAD)  # type: ignore[arg-type]
            runs[name] = convert(model, ConvertConfig(build=build, check=QUICK), tracker=tracker).run_id
        plain = BuildConfig(options=ONE_THREAD)
        runs["retrained"] = convert(scaled, ConvertConfig(build=plain, check=QUICK), tracker=tracker).run_id
        config = GateConfig(build=plain, check=real, policy=Policy(limits=Limits(latency=None)), register=False)
        runs["gate"] = gate(scaled, config, tracker=tracker, experiment="gated").run_id
        calibration = CalibrateConfig(
            calibration_data=str(data),
            build=replace(plain, precision="int8"),
            check=QUICK,
            min_samples=1,
        )
        runs["calibrate"] = calibrate(model, calibration, tracker=tracker, experiment="calibrated").run_id
        [child] = tracker.find(parent=runs["calibrate"])
        runs["calibrated"] = child.id
        failing = CommandCheck(command=("false", "{model}"))
        runs["reduce"] = reduce(
            model, failing, ReduceConfig(max_checks=2), tracker=tracker, experiment="reduced"
        ).run_id
        blocks, feed = campaigns.two_blocks(folder)
        runs["campaign"] = debug_build(blocks, campaigns.config(feed, until=4), tracker=tracker).run_id
        runs["iteration"] = tracker.find(parent=runs["campaign"], tags={Tag.KIND: "iteration"})[0].id
        runs["accepted"] = promote(runs["fp32"], tracker=tracker).run_id
    # An audit needs the store only.
    for path in (model, blocks, feed, data, scaled):
        path.rename(path.with_name(f"moved-{path.name}"))
    return Logged(tracker.store.root, runs, public, private)  # type: ignore[union-attr]


@pytest.fixture(scope="session")
def pristine(shared_folder: Path) -> Logged:
    """The store as it was logged: for reading. What writes a run, as each audit does, takes ``logged``.

    Otherwise a copy may have an audit that never ends.
    """
    folder, runs_file = shared_folder / "audited", shared_folder / "audited.json"
    with locked(f"{folder}.lock"):
        if not runs_file.exists():
            folder.mkdir()
            runs_file.write_text(json.dumps(make_store(folder).runs))
            close_workers()
    return Logged(
        (folder / "mlruns").resolve(), json.loads(runs_file.read_text()), folder / "key.pub", folder / "key.pem"
    )


@pytest.fixture(scope="session")
def unsigned(pristine: Logged, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """The store as if nothing had been signed or added to a log: for reading."""
    root = copy_store(pristine.root, tmp_path_factory.mktemp("unsigned") / "mlruns")
    store = Logged(root.resolve(), pristine.runs, pristine.key, pristine.private)
    for run in store.runs:
        store.unsign(run)
    delete_log(store.root)
    return store


@pytest.fixture
def victim(unsigned: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logged:
    """A copy of the store without signatures, to be forged."""
    monkeypatch.setattr("trtops.tracking.mlflow.store_log._TRIES", 1)  # no process makes the log that was emptied
    root = copy_store(unsigned.root, tmp_path / "mlruns")
    return Logged(root.resolve(), unsigned.runs, unsigned.key, unsigned.private)


@pytest.fixture
def logged(pristine: Logged, tmp_path: Path) -> Logged:
    """A copy of the store, to be changed."""
    root = tmp_path / "mlruns"
    copy_store(pristine.root, root)
    return Logged(root.resolve(), pristine.runs, pristine.key, pristine.private)
