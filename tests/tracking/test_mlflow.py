"""Trackers over MLflow keep the contract, over an embedded store and over a server, and what is MLflow's own."""

import gc
import http.server
import itertools
import json
import os
import pickle
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contracts.tracker import TrackerContract
from tests.forking import ForkedProcess, run_in_children
from tests.long_runs import amount
from tests.servers import MlflowServer
from tests.stores import copy_store
from trtops import errors
from trtops.record import sha256
from trtops.tracking import location
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker, installed
from trtops.tracking.records import EngineQuery
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.store_log import Entry, grown
from trtops.verdict import VERDICTS


@pytest.fixture
def embedded(new_store, tmp_path: Path) -> MlflowTracker:
    return MlflowTracker(new_store(tmp_path / "mlruns"))


@pytest.fixture(scope="module")
def server_root(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps its database and artifacts."""
    root = copy_store(template, tmp_path_factory.mktemp("server") / "mlruns")
    for module in ("fastapi", "mlflow", "sqlalchemy"):  # modules in a store are never imported
        (root / f"{module}.py").write_text("raise SystemExit('a module of the store was imported')\n")
    return root


@pytest.fixture(scope="module")
def server(server_root: Path) -> Iterator[str]:
    """The address of an MLflow server that ends with the tests."""
    with MlflowServer(server_root, by_command=True) as server:
        yield server.address


def overwrite(file: Path, data: bytes | None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    if data is not None:
        file.write_bytes(data)


class TestMlflowTrackerOverAnEmbeddedStore(TrackerContract):
    @pytest.fixture
    def tracker(self, embedded):
        return embedded

    @pytest.fixture
    def tamper(self, embedded):
        def change(run_id: str, path: str, data: bytes | None) -> None:
            overwrite(Path(embedded._entity(run_id).info.artifact_uri) / path, data)

        return change


class TestMlflowTrackerOverAServer(TrackerContract):
    @pytest.fixture
    def tracker(self, server: str):
        tracker = MlflowTracker(server)
        yield tracker
        for experiment in tracker._client.search_experiments():
            if experiment.name != "Default":  # gone from sight, and its name free again
                tracker._client.rename_experiment(experiment.experiment_id, f"old {experiment.experiment_id}")
                tracker._client.delete_experiment(experiment.experiment_id)

    @pytest.fixture
    def tamper(self, server_root: Path, tracker: MlflowTracker):
        def change(run_id: str, path: str, data: bytes | None) -> None:
            experiment = tracker._entity(run_id).info.experiment_id
            overwrite(server_root / "artifacts" / experiment / run_id / "artifacts" / path, data)

        return change

    def test_server_without_artifact_proxy_is_refused(self, tracker: MlflowTracker, tmp_path: Path):
        tracker._client.create_experiment("direct", artifact_location=str(tmp_path / "there"))

        with pytest.raises(errors.StoreError, match="--artifacts-destination"):
            tracker.start("direct", "r", kind="build")

        assert not (tmp_path / "there").exists()
        [run] = tracker._client.search_runs(tracker._known_experiment("direct"))
        assert run.info.status == "FAILED"


def test_server_shows_directly_logged_runs(server: str, server_root: Path):
    with tracked(MlflowTracker(server_root), "direct", "r", kind="build") as run:
        run.log_text("plan", "engine/x.plan")

    with urllib.request.urlopen(f"{server}/get-artifact?path=engine/x.plan&run_uuid={run.id}") as answer:
        assert answer.read() == b"plan"
    info = MlflowTracker(server).info(run.id)
    assert info.name == "r" and info.url.startswith(f"{server}/#/experiments/") and f"/runs/{run.id}?" in info.url


def test_downloads_are_shared_by_threads(server: str):
    tracker = MlflowTracker(server)
    with tracked(tracker, "fetched", "r", kind="build") as run:
        run.log_bytes(bytes(3 << 20), "engine/x.plan")
    stored = tracker.load(run.id)

    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(stored.local_path, ["engine/x.plan"] * 16))
    child = ForkedProcess(target=tracker.load, args=(run.id,))
    child.start()
    child.join()

    (path,) = paths
    assert (child.exitcode, path.stat().st_size) == (0, 3 << 20)
    folder = tracker._connection.downloads.folder()
    del tracker, stored, run, child
    gc.collect()
    assert not folder.exists()


def _without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SQLite wait 20 ms for a lock where MLflow makes it wait 20 s."""
    import sqlalchemy

    def hurry(connection, cursor, statement, parameters, context, executemany):
        return statement.replace("busy_timeout = 20000", "busy_timeout = 20"), parameters

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "before_cursor_execute", hurry, retval=True)


def test_locked_store_is_retried_until_the_wait_ends(embedded: MlflowTracker, monkeypatch: pytest.MonkeyPatch):
    run = embedded.start("m", "r", kind="build")
    _without_patience(monkeypatch)
    other = sqlite3.connect(embedded.store.database)
    other.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []
    sleep = time.sleep

    def wait(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # one that an earlier test left behind
            return sleep(seconds)
        pauses.append(seconds)
        if len(pauses) == 7:
            other.rollback()
        assert len(pauses) < 10

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "0")
    with pytest.raises(errors.TrackingUnavailableError, match="locked"):
        run.log_params({"a": 1})
    embedded._connection._refusal = None
    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "3600")

    run.log_params({"a": 1})

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert embedded.info(run.id).params == {"a": "1"}


def test_silent_server_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    requests: list[float] = []

    class Silent(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            requests.append(time.monotonic())
            time.sleep(30)  # longer than the test

    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracker = MlflowTracker(f"http://127.0.0.1:{server.server_port}")
        for _ in range(20):
            with pytest.raises(errors.TrackingUnavailableError, match="did not answer"):
                tracker.find()
        server.shutdown()
    assert len(requests) < 4


def test_tracking_wait_must_be_a_number(embedded: MlflowTracker, monkeypatch: pytest.MonkeyPatch):
    assert location.wait_seconds() == 25.0
    for wrong in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv("TRTOPS_TRACKING_WAIT", wrong)
        with pytest.raises(errors.ConfigError, match="TRTOPS_TRACKING_WAIT"):
            location.wait_seconds()


def test_run_without_status_keeps_its_verdict(embedded: MlflowTracker, monkeypatch):
    run = embedded.start("m", "r", kind="build")
    end, lost = embedded._connection.end, []

    def lose_the_first(run_id: str, status: str, at: float | None) -> None:
        if not lost:
            lost.append(status)
            raise errors.TrackingUnavailableError("gone for a moment")
        end(run_id, status, at)

    monkeypatch.setattr(embedded._connection, "end", lose_the_first)
    with pytest.raises(errors.TrackingUnavailableError):
        run.finish("good")
    run.fail("the store was lost")

    info = embedded.load(run.id).info
    assert (info.status, info.verdict) == ("finished", "good")


def test_deleted_experiment_can_be_restored(embedded: MlflowTracker):
    embedded.start("m", "r", kind="build")
    embedded._client.delete_experiment(embedded._known_experiment("m")[0])

    with pytest.raises(errors.StoreError, match="mlflow experiments restore"):
        MlflowTracker(embedded._connection.location).start("m", "r", kind="build")


def test_runs_of_other_programs_are_read(embedded: MlflowTracker):
    client = embedded._client
    run = client.create_run("0", run_name="theirs")
    client.log_metric(run.info.run_id, "system/cpu-usage", 0.5)
    client.log_param(run.info.run_id, "-odd", "x")
    client.set_tag(run.info.run_id, "-empty", "x")

    info = embedded.info(run.info.run_id)

    assert info.metrics == {("system", "cpu-usage"): 0.5}
    assert info.params == {"-odd": "x"}
    assert embedded.find(status="running") == [info]


def test_pickled_tracker_reads_the_same_store(embedded: MlflowTracker):
    import mlflow

    run = embedded.start("m", "r", kind="build")

    assert mlflow.active_run() is None
    assert pickle.loads(pickle.dumps(embedded)).info(run.id) == embedded.info(run.id)


def test_forked_children_use_connections_of_their_own(embedded: MlflowTracker):
    import sqlalchemy

    connected: list[int] = []
    sqlalchemy.event.listen(sqlalchemy.pool.Pool, "connect", lambda *_: connected.append(os.getpid()))
    embedded.start("m", "before", kind="build")

    def work(i: int) -> None:
        for k in range(3):
            with tracked(embedded, "m", f"{i} {k}", kind="iteration") as run:
                run.log_metrics({("i",): float(i)})
        assert i == 4 or os.getpid() in connected  # SQLite's connections must not be used by a child

    run_in_children(work, range(4))
    work(4)

    metrics_by_name = {info.name: info.metrics["i",] for info in embedded.find("m", status="finished")}
    assert metrics_by_name == {f"{i} {k}": float(i) for i in range(5) for k in range(3)}


def test_close_removes_half_written_files(embedded: MlflowTracker):
    run = embedded.start("m", "r", kind="build")
    folder = Path(embedded._entity(run.id).info.artifact_uri)
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / ".artifact.uploading.1.2.abc").write_bytes(b"half")

    embedded.close(run.id, "gone")

    assert list((folder / "engine").iterdir()) == []


def test_mlflow_never_retries_by_itself(monkeypatch) -> None:
    """MLflow would try again by itself for four minutes at every call."""
    installed.library()
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")

    installed.library()

    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


def test_only_good_runs_are_shown_as_finished(embedded: MlflowTracker) -> None:
    for verdict in VERDICTS:
        with tracked(embedded, "m", verdict, kind="build") as run:
            run.finish(verdict)
    with pytest.raises(ValueError), tracked(embedded, "m", "failed", kind="build"):
        raise ValueError("no")

    experiment = embedded._client.get_experiment_by_name("m").experiment_id  # type: ignore[union-attr]
    shown = {run.info.run_name: run.info.status for run in embedded._client.search_runs([experiment])}
    assert shown == {"good": "FINISHED"} | dict.fromkeys(("bad", "error", "unproven", "! failed"), "FAILED")
    assert {info.name for info in embedded.find("m", status="finished")} == set(VERDICTS)
    assert [info.name for info in embedded.find("m", status="failed")] == ["! failed"]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["server", "embedded"])
def test_many_processes_log_builds_at_once(storage: str, request, server_root: Path, new_store, tmp_path: Path):
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - the children have it ready and so really meet

    processes, builds = amount(8, in_every_run=4), amount(50, in_every_run=4)
    root = server_root if storage == "server" else new_store(tmp_path / "mlruns")
    address = request.getfixturevalue("server") if storage == "server" else root

    def work(process: int) -> None:
        tracker = MlflowTracker(address)
        for build in range(builds):
            with tracked(tracker, "crowd", f"{process} {build}", kind="build") as run:
                run.log_params({"process": process, "build": build})
                run.log_metrics({("build", "seconds"): float(build), ("error", "y", "max_abs"): process / 8})
                run.log_bytes(b"%d of %d" % (build, process), "engine/engine.ort")
                run.finish("good" if build % 2 else "bad")

    run_in_children(work, range(processes))

    tracker = MlflowTracker(root)  # each file through a server would take a request
    runs = tracker.find("crowd", status="finished")
    assert sorted(info.name for info in runs) == sorted(f"{p} {b}" for p in range(processes) for b in range(builds))
    for info in runs:
        process, build = map(int, info.name.split())
        assert info.params == {"process": str(process), "build": str(build)}
        assert info.metrics == {("build", "seconds"): float(build), ("error", "y", "max_abs"): process / 8}
        assert info.verdict == ("good" if build % 2 else "bad")
        stored = tracker.load(info.id)
        assert [entry.sha256 for entry in stored.manifest.artifacts] == [sha256(b"%d of %d" % (build, process))]
        assert stored.read_bytes("engine/engine.ort") == b"%d of %d" % (build, process)
    # No entry of the log is lost.
    texts = tracker.log_entries()[0]
    entries = [Entry.read(number, text) for number, text in sorted(texts.items())]
    assert sorted(texts) == list(range(len(texts))) and {info.id for info in runs} <= {entry.run for entry in entries}
    for size, (before, entry) in enumerate(itertools.pairwise(entries)):
        assert entry.tree == grown(before.tree, size, texts[size])


class TestEngines:
    """Engines are MLflow's logged models, with the numbers of all runs that measured them."""

    @pytest.fixture
    def run_of(self, embedded: MlflowTracker):
        def make(error: float, *, device: str = "L4", data: str = "7f", kernel: str = "gemm", **tags: str) -> str:
            with tracked(
                embedded, "e", f"✓ FP16 ort x{error}", kind="build", tags={Tag.ENGINE_SHA256: "e", **tags}
            ) as run:
                run.log_params(
                    {"precision": "fp16", "env.device": device, "evidence": {"source": "d.json", "data": data}}
                )
                run.log_metrics({("error", "max_abs"): error, ("latency", "p50_ms"): 1 / error})
                run.log_json([{"tactic": kernel}, {"tactic": kernel}, {"tactic": None}], Artifact.LAYERS)
                run.log_text("plan", "engine/engine.ort")
                run.finish("good" if error < 3 else "bad")
            return run.id

        return make

    def test_an_engine_is_one_logged_model(self, embedded: MlflowTracker, run_of):
        built = run_of(2.0)
        reuse = run_of(1.0, **{Tag.REUSED_FROM: built})
        with tracked(embedded, "e", "compare", kind="compare") as run:
            run.log_params({"evidence": {"source": "other.json", "data": "8a"}})
            run.log_metrics({("error", "max_abs"): 4.0}, engine=reuse)
            run.log_metrics({("error", "max_abs"): 5.0}, engine="0" * 32)

        [model] = embedded._client.search_logged_models(embedded._all_experiments())
        assert (model.name, model.status, model.source_run_id) == ("FP16 ort x2-0", "READY", built)
        assert model.params == {"precision": "fp16", "env.device": "L4"}
        assert model.tags["kernel/gemm"] == "2" and model.tags[Tag.VERDICT] == "good"
        logged_metrics = {(m.key, m.value, m.run_id, m.dataset_name, m.dataset_digest) for m in model.metrics}
        assert logged_metrics == {
            ("error/max_abs", 2.0, built, "d.json", "7f"),
            ("latency/p50_ms", 0.5, built, "d.json", "7f"),
            ("error/max_abs", 4.0, run.id, "other.json", "8a"),
        }
        assert embedded.load(built).details().history["error/max_abs"] == (2.0,)

    def test_engines_are_found_and_sorted(self, embedded: MlflowTracker, run_of):
        slow, fast, bad = run_of(2.0), run_of(1.0), run_of(4.0, kernel="b 'q")
        models = embedded._client.search_logged_models(embedded._all_experiments())
        assert {model.source_run_id: model.status for model in models} == {slow: "READY", fast: "READY", bad: "FAILED"}
        elsewhere, other = run_of(0.5, device="CPU"), run_of(0.25, data="8a")
        embedded.register("m", slow, "engine/engine.ort", alias="a")

        def search(verdict: str | None = None, **query: object) -> list[str]:
            return [info.id for info, _ in embedded.engines(EngineQuery(**query, verdict=verdict))]

        best = {"best": "error/max_abs", "device": "L4"}
        assert search(**best, data="d.json@7f") == [fast, slow, bad]
        assert search("good", **best, data="d.json") == [other, fast, slow]
        assert search("good", best="latency/p50_ms", data="d.json@8a") == [other]
        assert search(best="absent") == search(data="absent") == []
        assert {*search(kernel="gemm")} == {slow, fast, elsewhere, other} and search(kernel="b 'q") == [bad]
        assert search(kernel="gemm", above=(("error/max_abs", 0.75),), accepted=True) == [slow]
        assert search(accepted=True, above=(("error/max_abs", 3.0),)) == []
        embedded.register("m", fast, "engine/engine.ort", alias="a")
        embedded.register("n", fast, "engine/engine.ort", alias="b")
        embedded._client.set_registered_model_alias("n", "c", "1")
        assert search(accepted=True) == [fast]
        [tags] = [
            m.tags
            for m in embedded._client.search_logged_models(embedded._all_experiments())
            if m.source_run_id == fast
        ]
        assert json.loads(tags["mlflow.modelVersions"]) == [
            {"name": "m", "version": "2"},
            {"name": "n", "version": "1"},
        ]
        with pytest.raises(errors.ConfigError, match="quote"):
            search(device="'")

    def test_end_of_a_run_survives_refused_models(self, embedded: MlflowTracker, run_of, caplog, monkeypatch):
        def refuse(*args: object) -> None:
            raise errors.StoreError("no such endpoint")

        monkeypatch.setattr(embedded._client, "create_logged_model", refuse)

        assert embedded.info(run_of(1.0)).status == "finished" and "no such endpoint" in caplog.text


class TestEnginesOverAServer(TestEngines):
    embedded = TestMlflowTrackerOverAServer.tracker
