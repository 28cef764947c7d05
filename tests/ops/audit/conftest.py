"""One signed store for all tests of audits: builds in three precisions, a campaign and an accepted engine."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import campaigns, models
from tests.keys import new_key
from tests.stores import copy_store
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.campaign.promote import promote
from trtops.ops.campaign.workers import close_workers
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.record import canonical_json, sha256
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.system import signing
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag

QUICK = CheckConfig(iterations=2, latency_runs=2, warm_up=0, plots="never")
ONE_THREAD = OnnxRuntimeOptions(timing_iterations=2, intra_op_threads=1)
TABLES = {
    "metric": ("metrics", "latest_metrics"),
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

    @property
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

    def rewrite_tags(self, run: str) -> None:
        """Make the digests in tags match the manifest."""
        data = (self.folder(run) / Artifact.MANIFEST).read_bytes()
        digests = {entry["path"]: entry["sha256"] for entry in json.loads(data)["artifacts"]}
        self.set(run, "tag", Tag.MANIFEST_SHA256, sha256(data))
        self.set(run, "tag", Tag.DIGESTS, canonical_json(digests))
        if (engine := digests.get("engine/engine.ort")) is not None:
            self.set(run, "tag", Tag.ENGINE_SHA256, engine)

    def set(self, run: str, kind: str, name: str, value: object) -> None:
        """Change a tag, param or metric of a run in the database, or a tag of the version in the registry."""
        of_run = "TRUE" if kind == "version" else f"run_uuid = '{self.runs[run]}'"
        for table in TABLES[kind]:
            self.execute(f"UPDATE {table} SET value = ? WHERE key = ? AND {of_run}", value, name)

    def execute(self, query: str, *values: object) -> None:
        with closing(sqlite3.connect(self.root / "mlflow.db")) as database, database:
            assert database.execute(query, values).rowcount >= 1, (query, values)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """The store as it was logged: for reading. What writes a run takes ``logged``, or tests see each other's runs."""
    folder = tmp_path_factory.mktemp("audited")
    private, public = folder / "key.pem", folder / "key.pub"
    new_key(private, public)
    tracker = MlflowTracker(folder / "mlruns")
    model = models.conv_net().fixed().write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(signing.KEY_VARIABLE, str(private))
        runs = {}
        for name, precision in (("fp32", "fp32"), ("fp16", "fp16"), ("int8", "int8"), ("reused", "fp32")):
            build = BuildConfig(precision=precision, options=ONE_THREAD)  # type: ignore[arg-type]
            runs[name] = convert(model, ConvertConfig(build=build, check=QUICK), tracker=tracker).run_id
        blocks, feed = campaigns.two_blocks(folder)
        runs["campaign"] = debug_build(blocks, campaigns.config(feed, until=4), tracker=tracker).run_id
        runs["iteration"] = tracker.find(parent=runs["campaign"], tags={Tag.KIND: "iteration"})[0].id
        runs["accepted"] = promote(runs["fp32"], tracker=tracker).run_id
    # An audit needs the store only.
    for path in (model, blocks, feed):
        path.rename(path.with_name(f"moved-{path.name}"))
    yield Logged(tracker.store.root, runs, public, private)  # type: ignore[union-attr]
    close_workers()


@pytest.fixture
def logged(pristine: Logged, tmp_path: Path) -> Logged:
    """A copy of the store, to be changed."""
    root = tmp_path / "mlruns"
    copy_store(pristine.root, root)
    return Logged(root.resolve(), pristine.runs, pristine.key, pristine.private)
