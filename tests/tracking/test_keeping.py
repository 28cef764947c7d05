"""Runs that their store cannot take: kept whole, found as if nothing had been, and brought in once."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.tracker import ODD_NAMES, TrackerContract
from trtops import errors
from trtops.tracking import store
from trtops.tracking.base import RunStatus, Tracker, tracked
from trtops.tracking.ids import is_local
from trtops.tracking.keeping import KeepingTracker
from trtops.tracking.memory import MemoryRun, MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.outbox import KeptRun, Outbox
from trtops.tracking.schema import Tag
from trtops.tracking.upload import upload

NEVER = 10**9


class Gate:
    """Lets calls through, but for those from one number up to another, which find the store away."""

    def __init__(
        self, away: range = range(0), *, too_late: bool = False, error: type[errors.TrackingError] | None = None
    ):
        self.calls = 0
        self.away = away
        self.too_late = too_late  # what is asked is done, and the answer lost
        self.error = error or errors.TrackingUnavailableError

    def pass_through(self, call: Callable[[], Any]) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if number not in self.away:
            return call()
        if self.too_late:
            call()
        raise self.error("gone")


def gated(name: str) -> Any:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        plain = getattr(MemoryTracker if isinstance(self, MemoryTracker) else MemoryRun, name)
        return self.gate.pass_through(lambda: plain(self, *args, **named))

    return method


class GatedRun(MemoryRun):
    """A run in a store that is away at times."""

    gate: Gate
    _put_params, _put_tags, _put_metrics = gated("_put_params"), gated("_put_tags"), gated("_put_metrics")
    _put_artifact, _end = gated("_put_artifact"), gated("_end")


class GatedTracker(MemoryTracker):
    """A store that is away at times."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self.gate = gate or Gate()

    info, load, find, close, peek = gated("info"), gated("load"), gated("find"), gated("close"), gated("peek")

    def create(self, *args: Any, **named: Any) -> MemoryRun:
        again = {**named, "known": named.get("known") or self.gate.too_late}
        return self.gate.pass_through(lambda: self._gated(MemoryTracker.create(self, *args, **again)))

    def rewrite(self, run_id: str) -> MemoryRun:
        return self.gate.pass_through(lambda: self._gated(MemoryTracker.rewrite(self, run_id)))

    def _gated(self, run: MemoryRun) -> MemoryRun:
        run.__class__ = GatedRun
        run.gate = self.gate
        return run

    def _stored_id(self, run_id: str) -> str:
        return MemoryTracker._stored_id(self, run_id)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox([tmp_path / "outbox"])


@pytest.fixture
def memory() -> GatedTracker:
    return GatedTracker()


@pytest.fixture
def keeping(memory: GatedTracker, outbox: Outbox) -> KeepingTracker:
    return KeepingTracker(memory, outbox)


def go_away(memory: GatedTracker, error: type[errors.TrackingError] = errors.TrackingUnavailableError) -> None:
    memory.gate = Gate(range(NEVER), error=error)
    for run in list(memory_runs(memory)):
        run.gate = memory.gate


def come_back(memory: GatedTracker) -> None:
    memory.gate.away = range(0)


def memory_runs(memory: GatedTracker) -> Iterator[GatedRun]:
    import gc

    return (each for each in gc.get_objects() if isinstance(each, GatedRun) and each._store_lock is memory._lock)


class TestKeepingTracker(TrackerContract):
    """While its store is there it is like any other."""

    @pytest.fixture
    def tracker(self, keeping):
        yield keeping
        assert keeping.outbox.folders() == []

    @pytest.fixture
    def tamper(self, memory):
        def change(run_id: str, path: str, data: bytes | None) -> None:
            artifacts = memory._kept(run_id).artifacts
            if data is None:
                artifacts.pop(path, None)
            else:
                artifacts[path] = data

        return change

    @pytest.fixture
    def set_id(self, memory):
        def change(run_id: str, new_id: str) -> None:
            memory._runs[new_id] = memory._runs.pop(run_id)

        return change


def work(tracker: Tracker, folder: Path) -> None:
    """A campaign with a good, a bad and a failed iteration, and one that has odd things in it."""
    with tracked(tracker, "m", "campaign", kind="debug_build", tags={"who": "me"}) as parent:
        parent.log_json({"until": 3}, "debug_build.json")
        for number, verdict in enumerate(("good", "bad", None, "error")):
            tags = {Tag.ITERATION: str(number)}
            try:
                with tracked(tracker, "m", f"iteration {number}", kind="iteration", tags=tags, parent=parent.id) as run:
                    run.log_params({"number": number})
                    run.log_metrics({("error", name, "max"): float(number) for name in ODD_NAMES[:3]})
                    run.log_bytes(b"plan" * number, "engine/engine.ort")
                    (folder / "file").write_bytes(b"file of %d" % number)
                    run.log_file(folder / "file", "caches/file")
                    if verdict is None:
                        raise errors.EngineBuildError("no kernel")
                    if verdict == "error":
                        run.log_metrics({(name,): float("inf") for name in ODD_NAMES})
                        run.log_params({name: name.encode("utf-8", "replace").decode() for name in ODD_NAMES})
                    run.finish(verdict)
            except errors.EngineBuildError:
                parent.log_metrics({("iterations", "error"): 1.0})
            parent.log_text(f"{number} done", "tactics/campaign.table")
        parent.set_tags({"conclusion": "something"})
        parent.finish("bad")


def everything(tracker: MemoryTracker | KeepingTracker) -> dict[str, object]:
    """All that a store has, with runs by their names; what is other each time is left out."""
    infos = tracker.find()
    names = {info.id: info.name for info in infos} | {info.tags[Tag.LOCAL_ID]: info.name for info in infos}
    volatile = {Tag.OWNER, Tag.HEARTBEAT, Tag.LOCAL_ID}
    found: dict[str, object] = {}
    for info in infos:
        assert info.name not in found
        artifacts: dict[str, bytes] | None = None
        if info.status == "finished":
            stored = tracker.load(info.id)
            artifacts = {entry.path: stored.read_bytes(entry.path) for entry in stored.manifest.artifacts}
        found[info.name] = (
            info.status,
            names[info.parent] if info.parent else None,
            {name: re.sub("[0-9a-f]{32}", "an id", value) for name, value in info.tags.items() if name not in volatile},
            info.params,
            info.metrics,
            artifacts,
            {path: tracker.peek(info.id, path) for path in ("engine/engine.ort", "caches/file")},
        )
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], int]:
    """What the campaign leaves in a store that is always there, and how many calls that takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    memory = GatedTracker()
    work(KeepingTracker(memory, Outbox([folder / "outbox"])), folder)
    calls = memory.gate.calls
    return everything(memory), calls


@pytest.mark.parametrize("too_late", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("length", [1, 9, NEVER], ids=["one call", "a while", "for good"])
def test_whenever_the_store_goes_away_the_same_is_in_it_in_the_end(
    undisturbed, tmp_path: Path, too_late: bool, length: int
) -> None:
    expected, calls = undisturbed

    for moment in range(calls):
        memory = GatedTracker(Gate(range(moment, moment + length), too_late=too_late))
        tracker = KeepingTracker(memory, Outbox([tmp_path / str(moment)]))
        work(tracker, tmp_path)
        if length == NEVER:
            assert tracker.outbox.folders()
            tracker.outbox.get("")  # folders are read again in another process
        come_back(memory)
        seen_through = everything(tracker)
        upload(memory, Outbox([tmp_path / str(moment)]))

        assert seen_through == expected, moment
        assert everything(memory) == expected, moment
        assert tracker.outbox.folders() == [] and upload(memory, tracker.outbox) == []


def test_an_upload_that_is_cut_off_anywhere_is_done_by_the_next(undisturbed, tmp_path: Path) -> None:
    expected, calls = undisturbed
    moment, cut = calls // 3, 0
    while True:
        memory = GatedTracker(Gate(range(moment, NEVER)))
        tracker = KeepingTracker(memory, Outbox([tmp_path / str(cut)]))
        work(tracker, tmp_path)
        memory.gate.calls, memory.gate.away, memory.gate.too_late = 0, range(cut, NEVER), cut % 2 == 0
        try:
            upload(memory, tracker.outbox)
            break
        except errors.TrackingUnavailableError:
            come_back(memory)
        upload(memory, tracker.outbox)
        assert everything(memory) == expected, cut
        cut += 1
    assert cut > 20


def test_a_run_that_could_not_be_made_has_a_local_id_that_stays_good(memory, keeping, outbox) -> None:
    go_away(memory)
    run = keeping.start("m", "r", kind="build")
    run.log_bytes(b"plan", "engine/x.plan")
    assert is_local(run.id) and keeping.info(run.id).status == "running"
    assert [info.id for info in keeping._kept_infos()] == [run.id]
    with pytest.raises(errors.IncompleteRunError, match="still being written"):
        keeping.load(run.id)
    run.finish("good")
    kept = keeping.load(run.id)
    came = keeping.whole_id(run.id[:8])
    come_back(memory)
    [brought] = upload(memory, outbox)

    assert kept.read_bytes("engine/x.plan") == b"plan" and came == run.id
    assert memory.load(run.id).info.id == brought.run_id != run.id
    assert memory.whole_id(run.id[:9]) == brought.run_id
    child = keeping.start("m", "child", kind="iteration", parent=run.id)
    assert [info.id for info in memory.find(parent=run.id)] == [child.id]
    assert memory.info(child.id).parent == brought.run_id


def test_children_of_a_run_that_is_kept_are_kept_though_the_store_is_back(memory, keeping, outbox) -> None:
    go_away(memory)
    parent = keeping.start("m", "parent", kind="debug_build")
    come_back(memory)
    child = keeping.start("m", "child", kind="iteration", parent=parent.id)
    child.finish("good")

    assert memory.find() == []
    parent.finish("good")

    [info] = memory.find(parent=memory.info(parent.id).id)
    assert info.name == "child" and outbox.folders() == []


def test_what_was_asked_before_is_answered_while_the_store_is_away_and_nothing_else(memory, keeping) -> None:
    denied = keeping.start("m", "denied", kind="deny")
    denied.log_text("conv: gemm", "tactics/denied.json")
    denied.finish()
    before = keeping.find(tags={Tag.KIND: "deny"})
    entry = keeping.load(denied.id)
    go_away(memory)

    assert keeping.find(tags={Tag.KIND: "deny"}) == before
    assert keeping.load(denied.id) is entry
    for ask in (lambda: keeping.find("m"), lambda: keeping.load("0" * 32), lambda: keeping.info("0" * 32)):
        with pytest.raises(errors.TrackingUnavailableError):
            ask()


def test_a_run_that_was_interrupted_and_gone_on_with_is_kept_whole(memory, keeping, outbox) -> None:
    run = memory.start("m", "r", kind="debug_build")
    run.log_params({"a": 1})
    run.log_bytes(b"early", "early.bin")
    run.fail("killed")
    again = keeping.reopen(run.id)
    go_away(memory)
    again.log_bytes(b"late", "late.bin")
    with pytest.raises(errors.LogError, match="cannot become"):
        again.log_params({"a": 2})
    again.finish("good")
    [folder] = outbox.folders()
    assert folder.run.run_id == run.id and folder.run.only_there == ("early.bin",)
    come_back(memory)

    assert keeping.load(run.id).read_bytes("early.bin") == b"early"
    assert [each.run_id for each in upload(memory, outbox)] == [run.id]
    stored = memory.load(run.id)
    assert (stored.info.status, stored.info.verdict, stored.info.params) == ("finished", "good", {"a": "1"})
    assert (stored.read_bytes("early.bin"), stored.read_bytes("late.bin")) == (b"early", b"late")


def test_a_kept_campaign_is_brought_in_before_it_is_gone_on_with(memory, keeping, outbox) -> None:
    go_away(memory)
    run = keeping.start("m", "r", kind="debug_build")
    run.fail("interrupted")
    with pytest.raises(errors.LogError, match="trtops store upload"):
        keeping.reopen(run.id)
    come_back(memory)

    again = keeping.reopen(run.id)
    again.finish("good")

    assert outbox.folders() == [] and memory.load(run.id).info.verdict == "good"


def test_a_run_that_the_store_has_lost_is_made_again_unless_it_alone_had_something(memory, keeping, outbox) -> None:
    whole, lacking = keeping.start("m", "whole", kind="build"), keeping.start("m", "lacking", kind="build")
    whole.log_bytes(b"x" * 100, "x.bin")
    file = outbox.places[0].parent / "file"
    file.write_bytes(b"as logged")
    lacking.log_file(file, "x.bin")
    file.write_bytes(b"another since")
    go_away(memory)
    for run in (whole, lacking):
        run.finish("good")
    memory._runs.clear()  # it comes back from an old backup
    come_back(memory)

    found = {each.name: each for each in upload(memory, outbox)}

    assert found["whole"].outcome == "brought in" and found["lacking"].outcome == "left"
    assert "x.bin" in found["lacking"].why
    assert memory.load(whole.logged_so_far.local_id).read_bytes("x.bin") == b"x" * 100
    assert len(outbox.folders()) == 1


def test_what_is_damaged_or_meant_for_another_store_is_left_where_it_is(memory, keeping, outbox) -> None:
    go_away(memory)
    names = ("artifact", "json", "sha256", "gone", "foreign")
    for name in names:
        run = keeping.start("m", name, kind="build")
        run.log_bytes(b"plan", "engine/x.plan")
        run.finish()
    by_name = {folder.run.name: folder.path for folder in outbox.folders()}
    (by_name["artifact"] / "artifacts" / "engine" / "x.plan").write_bytes(b"PLAN")
    text = (by_name["json"] / "run.json").read_text()
    (by_name["json"] / "run.json").write_text(text.replace('"finished"', '"failed"'))
    (by_name["sha256"] / "run.json.sha256").unlink()
    (by_name["gone"] / "artifacts" / "engine" / "x.plan").unlink()
    memory.shown = "elsewhere"
    come_back(memory)
    fresh = Outbox(outbox.places)

    found = upload(memory, fresh)

    why = {Path(each.folder): each.why for each in found}
    assert {each.outcome for each in found} == {"left"} and why.keys() == set(by_name.values())
    assert "other content" in why[by_name["artifact"]] and "other content" in why[by_name["json"]]
    assert "is gone" in why[by_name["gone"]] and "meant for The memory" in why[by_name["foreign"]]
    assert {each.name for each in upload(memory, fresh, moved=True) if each.outcome != "left"} == {"foreign"}
    assert [info.name for info in memory.find()] == ["foreign"]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"local_id": "../../etc"},
        {"run_id": "' or 1=1"},
        {"artifacts": [{"path": "../x", "size": 1, "sha256": "0"}]},
        {"artifacts": [{"path": "/etc/passwd", "size": 1, "sha256": "0"}]},
        {"metrics": {"a": 1}},
        {"more": 1},
    ],
)
def test_a_kept_run_that_is_none_or_leaves_its_folder_is_refused(changes: dict[str, object]) -> None:
    from trtops.tracking.ids import new_local_id

    plain = {
        "store": "s", "run_id": None, "local_id": new_local_id(), "experiment": "m", "name": "r", "parent": None,
        "status": "finished", "start_time": 1.0, "end_time": 2.0, "tags": {}, "params": {}, "metrics": {}, "artifacts": (),
    }  # fmt: skip
    good = KeptRun(**plain).to_json()  # type: ignore[arg-type]
    assert KeptRun.from_json(good) == KeptRun(**plain)  # type: ignore[arg-type]

    with pytest.raises(errors.FormatError):
        KeptRun.from_json(json.dumps(json.loads(good) | changes).encode())


def test_what_is_kept_is_its_owner_s_alone(memory, keeping, outbox) -> None:
    go_away(memory)
    keeping.start("m", "r", kind="build").finish()

    [folder] = outbox.folders()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.path, outbox.places[0])] == [0o700, 0o700]


def test_an_outbox_that_is_somebody_else_s_is_not_used(memory, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    (tmp_path / "file").write_text("x")
    keeping = KeepingTracker(memory, Outbox([tmp_path / "link", tmp_path / "file" / "outbox"]))
    go_away(memory)

    with pytest.raises(errors.NoRoomError, match=r"own.*TRTOPS_OUTBOX"):
        keeping.start("m", "r", kind="build")

    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_store_without_room_has_its_runs_kept_and_starts_none(memory, keeping, outbox) -> None:
    run = keeping.start("m", "r", kind="build")
    go_away(memory, errors.NoRoomError)
    run.log_bytes(b"plan", "engine/x.plan")
    run.finish("good")

    with pytest.raises(errors.NoRoomError):
        keeping.start("m", "another", kind="build")
    assert keeping.load(run.id).read_bytes("engine/x.plan") == b"plan"
    come_back(memory)
    assert [each.run_id for each in upload(memory, outbox)] == [run.id]


def test_where_nothing_can_be_kept_either_the_run_fails_with_both_reasons(memory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    keeping = KeepingTracker(memory, Outbox([tmp_path / "file" / "outbox"]))

    with (
        pytest.raises(errors.NoRoomError, match=r"gone Nothing can be kept"),
        tracked(keeping, "m", "r", kind="build") as run,
    ):
        go_away(memory, errors.NoRoomError)
        try:
            run.log_bytes(b"plan", "engine/x.plan")
        finally:
            come_back(memory)

    assert memory.info(run.id).status == "failed"


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_run_that_waits_to_be_brought_in_is_not_reaped(memory, keeping, outbox, status: RunStatus) -> None:
    run = keeping.start("m", "r", kind="build", tags={Tag.OWNER: dead_owner()})
    go_away(memory)
    run.finish("good") if status == "finished" else run.fail("broken")
    come_back(memory)

    assert store.reap(keeping) == []
    assert [info.id for info in store.reap(memory)] == [run.id]  # on another machine's view it was left running
    upload(memory, outbox)

    info = memory.info(run.id)
    assert (info.status, info.tags.get(Tag.ERROR)) == (status, None if status == "finished" else "broken")


def test_a_run_that_another_process_has_taken_over_is_not_written_by_an_upload(memory, keeping, outbox) -> None:
    run = keeping.start("m", "r", kind="debug_build")
    go_away(memory)
    run.finish("good")
    come_back(memory)
    memory._runs[run.id].tags[Tag.OWNER] = dead_owner()

    (left,) = upload(memory, outbox)

    assert left.outcome == "left" and "taken over by another process" in left.why
    assert memory.info(run.id).status == "running" and outbox.folders()


def test_a_campaign_that_was_resumed_and_then_kept_is_brought_in(memory, keeping, outbox) -> None:
    run = keeping.start("m", "r", kind="debug_build", tags={Tag.OWNER: dead_owner()})
    again = keeping.reopen(run.id)
    go_away(memory)
    again.finish("good")
    come_back(memory)

    assert [each.outcome for each in upload(memory, outbox)] == ["brought in"]
    assert memory.info(run.id).verdict == "good"


def dead_owner() -> str:
    import dataclasses

    from trtops.tracking import owner

    return dataclasses.replace(owner.current(), pid=2**22 + 1, started=1).to_json()


def test_a_tracker_may_be_sent_to_another_process(new_store: Callable[[Path], Path], tmp_path: Path) -> None:
    import pickle

    tracker = store.open_tracker(new_store(tmp_path / "mlruns"))
    run = tracker.start("m", "r", kind="build")

    again = pickle.loads(pickle.dumps(tracker))

    assert again.info(run.id) == tracker.info(run.id) and again.outbox.places == tracker.outbox.places
    assert isinstance(again.inner, MlflowTracker)
    assert os.fspath(again.outbox.places[0]) == f"{tmp_path}/mlruns/outbox"
