"""Runs go to the spool while their store is away, can be read from there, and are uploaded exactly once."""

import json
import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.tracker import DEAD, ODD_NAMES, InMemoryContract
from trtops import errors
from trtops.tracking.base import RunStatus, Tracker, tracked
from trtops.tracking.check import reap
from trtops.tracking.location import Store
from trtops.tracking.memory import MemoryRun, MemoryTracker
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.records import is_local, new_local_id
from trtops.tracking.schema import Tag
from trtops.tracking.spool import Spool, SpooledRun, default_spool, upload

NEVER = 10**9


class Gate:
    """Lets calls through, except those with numbers in a range, which find the store away."""

    def __init__(self, away: range = range(0), *, too_late: bool = False) -> None:
        self.calls = 0
        self.away = away
        self.too_late = too_late  # the call is executed, and its answer lost
        self.error: type[errors.TrackingError] = errors.TrackingUnavailableError

    def pass_through(self, call: Callable[[], Any]) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if number not in self.away:
            return call()
        if self.too_late:
            call()
        raise self.error("gone")


READS = ("info", "load", "find", "peek")


def gated(name: str) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        plain = getattr(MemoryTracker if isinstance(self, MemoryTracker) else MemoryRun, name)
        if self.gate.error is errors.NoRoomError and name in READS:  # a full disk can be read
            return plain(self, *args, **named)
        return self.gate.pass_through(lambda: plain(self, *args, **named))

    return method


class GatedRun(MemoryRun):
    """A run in a store that is sometimes away."""

    gate: Gate
    _put, _put_artifact, _end = gated("_put"), gated("_put_artifact"), gated("_end")


class GatedTracker(MemoryTracker):
    """A store that is sometimes away."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self.gate = gate or Gate()

    info, load, find, close, peek = gated("info"), gated("load"), gated("find"), gated("close"), gated("peek")

    def create(self, *args: Any, **named: Any) -> MemoryRun:
        again = {**named, "may_exist": named.get("may_exist") or self.gate.too_late}
        return self.gate.pass_through(lambda: self._gated(MemoryTracker.create(self, *args, **again)))

    def _rewrite(self, run_id: str) -> MemoryRun:
        return self._gated(MemoryTracker._rewrite(self, run_id))

    def _gated(self, run: MemoryRun) -> MemoryRun:
        run.__class__ = GatedRun
        run.gate = self.gate
        return run


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def memory() -> GatedTracker:
    return GatedTracker()


@pytest.fixture
def offline(memory: GatedTracker, spool: Spool) -> OfflineTracker:
    return OfflineTracker(memory, spool)


def go_away(memory: GatedTracker, error: type[errors.TrackingError] = errors.TrackingUnavailableError) -> None:
    memory.gate.away, memory.gate.error = range(NEVER), error


def come_back(memory: GatedTracker) -> None:
    memory.gate.away = range(0)


class TestOfflineTracker(InMemoryContract):
    """While its store answers it is like any other tracker."""

    @pytest.fixture
    def tracker(self, offline):
        yield offline
        assert offline.spool.runs() == []


def work(tracker: Tracker, folder: Path) -> None:
    """A campaign with a good and a failed iteration, and one with odd names and numbers."""
    with tracked(tracker, "m", "campaign", kind="debug_build", tags={"who": "me"}) as parent:
        parent.log_json({"until": 3}, "debug_build.json")
        for number, verdict in enumerate(("good", None, "error")):
            tags = {Tag.ITERATION: str(number)}
            try:
                with tracked(tracker, "m", f"iteration {number}", kind="iteration", tags=tags, parent=parent.id) as run:
                    run.log_params({"number": number})
                    run.rename(f"renamed {number}")
                    run.log_metrics({("error", name, "max"): float(number) for name in ODD_NAMES[:3]})
                    run.log_bytes(b"plan" * number, "engine/engine.ort")
                    (folder / "file").write_bytes(b"file of %d" % number)
                    run.log_file(folder / "file", "caches/file")
                    if verdict is None:
                        raise errors.EngineBuildError("no kernel")
                    if verdict == "error":
                        run.log_metrics({(name,): float("inf") for name in ODD_NAMES})
                        run.log_params({"names": [name.encode("utf-8", "replace").decode() for name in ODD_NAMES]})
                    run.finish(verdict)
            except errors.EngineBuildError:
                parent.log_metrics({("iterations", "error"): 1.0})
            parent.log_text(f"{number} done", "tactics/campaign.table")
        parent.set_tags({"conclusion": "something"})
        parent.finish("bad")


def everything(tracker: MemoryTracker) -> dict[str, object]:
    """The content of a store by the names of its runs, without ids and times."""
    infos = tracker.find()
    names = {info.id: info.name for info in infos} | {info.tags[Tag.LOCAL_ID]: info.name for info in infos}
    volatile = {Tag.OWNER, Tag.LOCAL_ID}
    runs_by_name: dict[str, object] = {}
    for info in infos:
        assert info.name not in runs_by_name
        artifacts: dict[str, bytes] | None = None
        if info.status == "finished":
            stored = tracker.load(info.id)
            artifacts = {entry.path: stored.read_bytes(entry.path) for entry in stored.manifest.artifacts}
        runs_by_name[info.name] = (
            info.status,
            names[info.parent] if info.parent else None,
            {name: re.sub("[0-9a-f]{32}", "an id", value) for name, value in info.tags.items() if name not in volatile},
            info.params,
            info.metrics,
            artifacts,
            {path: tracker.peek(info.id, path) for path in ("engine/engine.ort", "caches/file")},
        )
    return runs_by_name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], int]:
    """The content of a store that is never away, and the number of calls for it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    memory = GatedTracker()
    work(OfflineTracker(memory, Spool(folder / "spool")), folder)
    calls = memory.gate.calls
    return everything(memory), calls


@pytest.mark.parametrize("too_late", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("length", [1, 9, NEVER], ids=["one call", "a while", "for good"])
def test_outage_at_any_call_loses_nothing(undisturbed, tmp_path: Path, too_late: bool, length: int) -> None:
    expected, calls = undisturbed

    for moment in range(calls):
        memory = GatedTracker(Gate(range(moment, moment + length), too_late=too_late))
        tracker = OfflineTracker(memory, Spool(tmp_path / str(moment)))
        work(tracker, tmp_path)
        if length == NEVER:
            assert tracker.spool.runs()
        come_back(memory)
        upload(memory, Spool(tmp_path / str(moment)))

        assert everything(memory) == expected, moment
        assert tracker.spool.runs() == [] and upload(memory, tracker.spool) == []


def test_interrupted_upload_can_be_repeated(undisturbed, tmp_path: Path) -> None:
    expected, calls = undisturbed
    moment, cut = calls // 3, 0
    while True:
        memory = GatedTracker(Gate(range(moment, NEVER)))
        tracker = OfflineTracker(memory, Spool(tmp_path / str(cut)))
        work(tracker, tmp_path)
        memory.gate.calls, memory.gate.away, memory.gate.too_late = 0, range(cut, NEVER), cut % 2 == 0
        try:
            upload(memory, tracker.spool)
            break
        except errors.TrackingUnavailableError:
            come_back(memory)
        upload(memory, tracker.spool)
        assert everything(memory) == expected, cut
        cut += 1
    assert cut > 10


def test_local_id_stays_valid_after_upload(memory, offline, spool) -> None:
    go_away(memory)
    run = offline.start("m", "r", kind="build")
    run.log_bytes(b"plan", "engine/x.plan")
    assert is_local(run.id) and offline.info(run.id).status == "running"
    assert offline.peek(run.id, "engine/x.plan") == b"plan"
    run.finish("good")
    assert offline.info(run.id).verdict == "good"
    come_back(memory)
    [uploaded] = upload(memory, spool)

    assert memory.load(run.id).info.id == uploaded.run_id != run.id
    child = offline.start("m", "child", kind="iteration", parent=run.id)
    assert [info.id for info in memory.find(parent=run.id)] == [child.id]
    assert memory.info(child.id).parent == uploaded.run_id


def test_children_of_spooled_runs_are_spooled_too(memory, offline, spool) -> None:
    go_away(memory)
    parent = offline.start("m", "parent", kind="debug_build")
    come_back(memory)
    child = offline.start("m", "child", kind="iteration", parent=parent.id)
    child.finish("good")

    assert memory.find() == []
    parent.finish("good")

    [info] = memory.find(parent=memory.info(parent.id).id)
    assert info.name == "child" and spool.runs() == []


def test_only_the_store_is_searched(memory, offline) -> None:
    stored = offline.start("m", "stored", kind="build")
    stored.finish("good")
    go_away(memory)
    spooled = offline.start("m", "spooled", kind="build")
    spooled.finish("good")

    for ask in (lambda: offline.find("m"), lambda: offline.load(stored.id), lambda: offline.info(stored.id)):
        with pytest.raises(errors.TrackingUnavailableError):
            ask()
    assert offline.info(spooled.id).verdict == "good"
    come_back(memory)
    assert [info.id for info in offline.find("m")] == [stored.id]


def test_resumed_run_is_spooled_whole(memory, offline, spool) -> None:
    run = memory.start("m", "r", kind="debug_build")
    run.log_params({"a": 1})
    run.log_bytes(b"early", "early.bin")
    run.fail("killed")
    again = offline.reopen(run.id)
    go_away(memory)
    again.log_bytes(b"late", "late.bin")
    with pytest.raises(errors.LogError, match="cannot become"):
        again.log_params({"a": 2})
    again.finish("good")
    [spooled] = spool.runs()
    assert spooled.run_id == run.id and spooled.only_in_store == ("early.bin",)
    come_back(memory)

    assert [uploaded.run_id for uploaded in upload(memory, spool)] == [run.id]
    stored = memory.load(run.id)
    assert (stored.info.status, stored.info.verdict, stored.info.params) == ("finished", "good", {"a": "1"})
    assert (stored.read_bytes("early.bin"), stored.read_bytes("late.bin")) == (b"early", b"late")


def test_spooled_campaign_is_uploaded_before_it_is_resumed(memory, offline, spool) -> None:
    go_away(memory)
    run = offline.start("m", "r", kind="debug_build")
    run.fail("interrupted")
    with pytest.raises(errors.LogError, match="trtops store upload"):
        offline.reopen(run.id)
    come_back(memory)

    again = offline.reopen(run.id)
    again.finish("good")

    assert spool.runs() == [] and memory.load(run.id).info.verdict == "good"


def test_lost_runs_are_made_again_if_complete(memory, offline, spool, tmp_path: Path) -> None:
    whole, lacking = offline.start("m", "whole", kind="build"), offline.start("m", "lacking", kind="build")
    whole.log_bytes(b"x" * 100, "x.bin")
    file = tmp_path / "file"
    file.write_bytes(b"as logged")
    lacking.log_file(file, "x.bin")
    file.write_bytes(b"another since")
    go_away(memory)
    for run in (whole, lacking):
        run.finish("good")
    memory._runs.clear()  # the store was restored from an old backup
    come_back(memory)

    uploads = {uploaded.name: uploaded for uploaded in upload(memory, spool)}

    assert not uploads["whole"].reason and "x.bin" in uploads["lacking"].reason
    assert memory.load(whole.record.local_id).read_bytes("x.bin") == b"x" * 100
    assert len(spool.runs()) == 1


def test_damaged_and_foreign_runs_are_left(memory, offline, spool) -> None:
    go_away(memory)
    names = ("artifact", "json", "gone", "foreign")
    for name in names:
        run = offline.start("m", name, kind="build")
        run.log_bytes(b"plan", "engine/x.plan")
        run.finish()
    by_name = {run.name: run.folder for run in spool.runs()}
    (by_name["artifact"] / "artifacts" / "engine" / "x.plan").write_bytes(b"PLAN")
    text = (by_name["json"] / "run.json").read_text()
    (by_name["json"] / "run.json").write_text(text[:-100])
    (by_name["gone"] / "artifacts" / "engine" / "x.plan").unlink()
    memory.shown = "elsewhere"
    come_back(memory)

    uploads = upload(memory, spool)

    reasons = {uploaded.folder: uploaded.reason for uploaded in uploads}
    assert all(reasons.values()) and reasons.keys() == set(by_name.values())
    assert "other content" in reasons[by_name["artifact"]] and "damaged" in reasons[by_name["json"]]
    assert "is missing" in reasons[by_name["gone"]] and "meant for This process" in reasons[by_name["foreign"]]
    assert {uploaded.name for uploaded in upload(memory, spool, moved=True) if not uploaded.reason} == {"foreign"}
    assert [info.name for info in memory.find()] == ["foreign"]


def test_malformed_spooled_run_is_refused(tmp_path: Path) -> None:
    tags = {Tag.LOCAL_ID: new_local_id()}
    folder = tmp_path / tags[Tag.LOCAL_ID]
    folder.mkdir()
    fields = {"store": "s", "experiment": "m", "name": "r", "parent": None, "start_time": 1.0}
    run = SpooledRun(**fields, tags=tags, metrics={("a",): math.inf}, folder=folder)
    (folder / "run.json").write_bytes(run.to_json())
    assert SpooledRun.from_folder(folder) == run

    malformed: list[dict[str, object]] = [
        {"run_id": "' or 1=1"}, {"parent": "../../etc"}, {"tags": {}}, {"tags": {Tag.LOCAL_ID: "../../etc"}},
        {"artifacts": [{"path": "../x", "size": 1, "sha256": "0"}]},
        {"artifacts": [{"path": "/etc/passwd", "size": 1, "sha256": "0"}]},
        {"metrics": {"a": 1}}, {"more": 1},
    ]  # fmt: skip
    for changes in malformed:
        (folder / "run.json").write_text(json.dumps(json.loads(run.to_json()) | changes))
        with pytest.raises(errors.FormatError):
            SpooledRun.from_folder(folder)


@pytest.mark.parametrize("unsafe", ["a link", "another user's", "writable by a group", "writable by all", "a file"])
def test_unsafe_spool_is_not_used(memory, offline, spool, monkeypatch: pytest.MonkeyPatch, unsafe: str) -> None:
    go_away(memory)
    offline.start("m", "planted", kind="build").finish("good")
    [run] = spool.runs()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (run.folder, spool.folder)] == [0o700, 0o700]
    uid = os.getuid()
    if unsafe == "a link":
        target = spool.folder.rename(spool.folder.with_name("theirs"))
        spool.folder.symlink_to(target)
    elif unsafe == "another user's":
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    elif unsafe == "a file":
        spool.folder.rename(spool.folder.with_name("moved"))
        spool.folder.write_text("x")
    else:
        spool.folder.chmod(0o770 if unsafe == "writable by a group" else 0o707)

    with pytest.raises(errors.NoRoomError, match="TRTOPS_SPOOL"):
        offline.start("m", "r", kind="build")
    come_back(memory)

    assert spool.runs() == [] == upload(memory, spool) and memory.find() == []


def test_run_of_a_full_store_is_spooled(memory, offline, spool) -> None:
    run = offline.start("m", "r", kind="build")
    go_away(memory, errors.NoRoomError)
    run.log_bytes(b"plan", "engine/x.plan")
    run.finish("good")

    offline.start("m", "another", kind="build").finish("bad")
    assert offline.load(run.id).read_bytes("engine/x.plan") == b"plan"  # the run's own process reads it
    with pytest.raises(errors.LogError, match="trtops store upload"):
        OfflineTracker(memory, spool).load(run.id)
    come_back(memory)
    assert [spooled.name for spooled in spool.runs()] == ["r", "another"]
    OfflineTracker(memory, spool).start("m", "of another process", kind="build").finish("good")
    assert spool.runs() == [] and memory.load(run.id).read_bytes("engine/x.plan") == b"plan"


def test_large_bytes_wait_in_files(memory, offline, spool) -> None:
    run, data = offline.start("m", "r", kind="build"), os.urandom(3 << 20)
    run.log_bytes(data, "engine/engine.ort")
    assert data not in run._sources.values()

    go_away(memory)
    assert offline.peek(run.id, "engine/engine.ort") == data
    run.finish("good")

    [spooled] = spool.runs()
    assert spooled.files.peek("engine/engine.ort") == data


def test_failing_spool_fails_the_run_with_both_reasons(memory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    offline = OfflineTracker(memory, Spool(tmp_path / "file" / "spool"))

    with (
        pytest.raises(errors.NoRoomError, match=r"gone Runs cannot be spooled"),
        tracked(offline, "m", "r", kind="build") as run,
    ):
        go_away(memory, errors.NoRoomError)
        try:
            run.log_bytes(b"plan", "engine/x.plan")
        finally:
            come_back(memory)

    assert memory.info(run.id).status == "failed"


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_upload_restores_a_reaped_run(memory, offline, spool, status: RunStatus) -> None:
    run = offline.start("m", "r", kind="build", tags={Tag.OWNER: DEAD.text()})
    go_away(memory)
    run.finish("good") if status == "finished" else run.fail("broken")
    come_back(memory)

    assert [info.id for info in reap(offline)] == [run.id]
    upload(memory, spool)

    info = memory.info(run.id)
    assert (info.status, info.tags.get(Tag.ERROR)) == (status, None if status == "finished" else "broken")


def test_upload_leaves_runs_resumed_by_others(memory, offline, spool) -> None:
    run = offline.start("m", "r", kind="debug_build")
    go_away(memory)
    run.finish("good")
    come_back(memory)
    memory._runs[run.id].tags[Tag.OWNER] = DEAD.text()

    (left,) = upload(memory, spool)

    assert "resumed by another process" in left.reason
    assert memory.info(run.id).status == "running" and spool.runs()


def test_default_spool_depends_on_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path))
    places = {Store(database=tmp_path / name / "mlflow.db") for name in "ab"}

    assert default_spool(None).folder == tmp_path / "spool"
    assert len({default_spool(address).folder for address in places}) == 2
    monkeypatch.setenv("TRTOPS_SPOOL", str(tmp_path / "mine"))
    assert {default_spool(address).folder for address in (None, *places)} == {tmp_path / "mine"}


def test_engine_of_a_spooled_run_is_not_accepted(offline: OfflineTracker, memory: GatedTracker) -> None:
    go_away(memory, errors.NoRoomError)
    run = offline.start("m", "promote", kind="promote")
    run.log_bytes(b"engine", "engine/engine.ort")
    run.finish("good")
    assert offline.load(run.id).read_bytes("engine/engine.ort") == b"engine"
    with pytest.raises(errors.LogError, match=rf"^{memory.shown} could not take run {run.id} \(gone\)"):
        offline.register("m", run.id, "engine/engine.ort", alias="accepted")
    assert not memory.accepted()
