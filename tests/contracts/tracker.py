"""The behaviour of every tracker. Subclass :class:`TrackerContract` and supply its fixtures."""

import dataclasses
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from trtops import errors
from trtops.record import sha256
from trtops.spec import BuildConfig
from trtops.tracking import owner
from trtops.tracking.base import Run, Tracker, tracked
from trtops.tracking.check import reap
from trtops.tracking.schema import Kind, Tag

ODD_NAMES = [
    "gpu_0/softmax:1", "日本", "", ".", "..", "..hidden", "/", "//", "a//b/", " spaced out ", "tab\tnewline\n",
    "out[0](1){2}", "100%", "-", "--", "-2d-", "-empty-", "🚀", "e\u0301 combining", "nul\0", "quote'\"`\\",
    "\ud800 lone surrogate", "n" * 200,
]  # fmt: skip
ODD_VALUES = ["it's", 'say "x"', "'\"", "`tick`", "back\\slash", "100%", "%", "_", "", "日本 🚀", "a\nb", "A", "a"]

HERE = owner.current()
DEAD = dataclasses.replace(HERE, pid=2**22 + 1, started=1)


def start(tracker: Tracker, name: str = "r", **fields: object) -> Run:
    return tracker.start("m", name, **{"kind": "build", **fields})  # type: ignore[arg-type]


class TrackerContract:
    """Subclass it, and supply the fixtures ``tracker``, over an empty store, and ``tamper``.

    ``tamper(run_id, path, data)`` overwrites an artifact without the tracker; None removes it.
    """

    # Complete runs

    def test_finished_run_returns_what_was_logged(self, tracker: Tracker, tmp_path: Path):
        (tmp_path / "model.plan").write_bytes(b"plan" * 1000)
        before = time.time()

        parent = tracker.start("resnet", "campaign", kind="debug_build")
        run = tracker.start("resnet", "fp16", kind="build", tags={"team": "vision"}, parent=parent.id)
        run.log_params({"precision": "fp16"})
        run.log_metrics({("build", "seconds"): 1.5, ("error", "gpu_0/softmax:1", "max_abs"): 1e-3})
        run.log_file(tmp_path / "model.plan", "engine/model.plan")
        run.log_bytes(b"", "caches/timing.cache")
        run.log_text("größe", "build.log")
        run.log_json({"b": [1, math.inf]}, "accuracy/results.json")
        run.log_json(BuildConfig(precision="fp16"), "config.json")
        run.finish("good")
        stored = tracker.load(run.id)

        info = stored.info
        assert info == tracker.info(run.id) == tracker.find("resnet", status="finished")[0]
        assert (info.id, info.experiment, info.name, info.parent) == (run.id, "resnet", "fp16", parent.id)
        assert (info.status, info.verdict, info.kind, info.url) == ("finished", "good", "build", run.url)
        assert before - 1 < info.start_time <= (info.end_time or 0) < time.time() + 1
        assert info.tags["team"] == "vision" and info.params == {"precision": "fp16"}
        assert info.metrics == {("build", "seconds"): 1.5, ("error", "gpu_0/softmax:1", "max_abs"): 1e-3}
        assert stored.local_path("engine/model.plan").read_bytes() == b"plan" * 1000
        files = [stored.local_path(path) for path in ("engine/model.plan", "build.log")]
        assert files[0].name == "model.plan" and files[0].parents[1] == files[1].parent
        assert stored.read_bytes("build.log").decode() == "größe"
        assert json.loads(stored.read_bytes("accuracy/results.json")) == {"b": [1, "inf"]}
        assert BuildConfig.from_json(stored.read_bytes("config.json")) == BuildConfig(precision="fp16")
        entries = {entry.path: (entry.size, entry.sha256) for entry in stored.manifest.artifacts}
        assert list(entries) == sorted(entries) and len(entries) == 5
        assert entries["caches/timing.cache"] == (0, sha256(b"")) and entries["engine/model.plan"][0] == 4000

    def test_params_are_fixed_and_the_rest_can_change(self, tracker: Tracker):
        run = start(tracker)
        run.log_params({"text": "x", "i": 3, "b": True, "n": None, "l": (1, 0.5), "d": {"b": 1, "a": 2}, "e": ""})
        with pytest.raises(errors.LogError, match="text"):
            run.log_params({"text": "y", "other": 1})
        expected_params = {
            "text": "x",
            "i": "3",
            "b": "true",
            "l": "[1,0.5]",
            "d.b": "1",
            "d.a": "2",
        }  # unset ones are left out
        assert tracker.info(run.id).params == expected_params

        assert tracker.peek(run.id, "a.bin") is None
        for value in (0.0, 5e-324, 1e-9, -1.5, 1e308, -1e308, math.nan, math.inf, -math.inf, 0.5):
            run.set_tags({"t": str(value)})
            run.log_metrics({("x",): value})
            run.log_bytes(str(value).encode(), "a.bin")
            assert tracker.peek(run.id, "a.bin") == str(value).encode()
            info = tracker.info(run.id)
            assert info.tags["t"] == str(value) and repr(info.metrics[("x",)]) == repr(value)
        for wrong in ("x", None, 10**400):
            with pytest.raises(errors.LogError, match="expected a number"):
                run.log_metrics({("good",): 1.0, ("bad",): wrong})  # type: ignore[dict-item]
        assert list(tracker.info(run.id).metrics) == [("x",)]
        run.finish()
        assert tracker.load(run.id).read_bytes("a.bin") == b"0.5"
        assert len(tracker.load(run.id).manifest.artifacts) == 1

    def test_last_name_counts(self, tracker: Tracker):
        run = start(tracker, "first")
        for name in ("", "n" * 251):
            with pytest.raises(errors.LogError, match="name has"):
                run.rename(name)
        assert tracker.info(run.id).name == "first"
        for name in ("second 日本 🚀/'", "FP32 (not FP16)"):
            run.rename(name)
            assert tracker.info(run.id).name == name
        run.set_tags({"t": "1"})
        run.finish("good")
        assert tracker.load(run.id).info.name == tracker.find("m")[0].name == "FP32 (not FP16)"
        with pytest.raises(errors.LogError, match="has ended"):
            run.rename("third")

    # Odd names and sizes

    def test_any_text_is_a_name(self, tracker: Tracker):
        run = start(tracker)
        metrics = {("error", name, "max_abs"): float(i) for i, name in enumerate(ODD_NAMES)}
        metrics |= {(name,): float(i) for i, name in enumerate(ODD_NAMES)}
        run.log_metrics(metrics)
        long = tracker.start("日" * 500, "r 🚀/'", kind="build")
        long.log_metrics({("error", text, "x"): 1.0 for text in ("n" * 250 + "end", "n" * 250 + "other", "日" * 9000)})
        values = {v: tracker.start("tags", "r", kind="build", tags={"key": v}).id for v in ODD_VALUES}

        assert tracker.info(run.id).metrics == metrics
        assert len(tracker.find("日" * 500)[0].metrics) == 3
        for value, run_id in values.items():
            assert [info.id for info in tracker.find("tags", tags={"key": value})] == [run_id]

    def test_limits_of_mlflow_are_respected(self, tracker: Tracker):
        run = start(tracker)
        for name in ("", "..", "a//b", "/a", "a[0]", "n" * 251, "nul\0"):
            for log in (run.log_params, run.set_tags):
                with pytest.raises(errors.LogError, match="name that MLflow refuses"):
                    log({name: "x"})
        with pytest.raises(errors.LogError, match="Log it as an artifact"):
            run.set_tags({"t": "x" * 8001})
        with pytest.raises(errors.LogError, match="not Unicode text"):
            run.set_tags({"t": "\ud800"})
        run.set_tags({"full": "x" * 8000, **{f"t{i}": "x" * 2000 for i in range(150)}})
        run.log_params({"long": "日" * 6001, **{f"p{i}": "x" * 500 for i in range(250)}})
        run.log_metrics({("m", str(i)): float(i) for i in range(2500)})

        info = tracker.info(run.id)

        assert len(info.params) == 251 and len(info.metrics) == 2500
        assert sum(tag[1:].isdecimal() for tag in info.tags) == 150
        assert info.tags["full"] == "x" * 8000 and "t" not in info.tags
        assert info.params["long"].startswith("日" * 5000) and "(6001 characters" in info.params["long"]

    def test_artifact_paths(self, tracker: Tracker, tmp_path: Path):
        # Servers of MLflow before 3.13 refuse artifacts with such names, which trtops itself does not use.
        odd = "日本/ü #1?.txt" if int(version("mlflow").split(".")[1]) >= 13 else "odd/name.txt"
        paths = [odd, "gpu_0:1.bin", "a b/c%20d", "with'quote", "a/b"]
        run = start(tracker)
        for path in paths:
            run.log_text(path, path)
        for path in ("", "/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b", "n\0l", "x" * 300, "manifest.json"):
            with pytest.raises(errors.LogError, match="Artifact path"):
                run.log_bytes(b"x", path)
        for path in ("a", "a/b/c"):
            with pytest.raises(errors.LogError, match="folder"):
                run.log_bytes(b"x", path)
        for file, message in (
            (tmp_path / "missing.plan", r"missing\.plan.*found nothing"),
            (tmp_path, "found a folder"),
        ):
            with pytest.raises(errors.LogError, match=message):
                run.log_file(file, "engine/x.plan")
        run.finish()

        stored = tracker.load(run.id)

        assert {entry.path for entry in stored.manifest.artifacts} == set(paths)
        for path in paths:
            assert stored.read_bytes(path).decode() == path == stored.local_path(path).read_text()

    # Incomplete runs

    def test_running_and_failed_runs_are_incomplete(self, tracker: Tracker):
        run = start(tracker)
        with pytest.raises(errors.IncompleteRunError, match=run.id):
            tracker.load(run.id)
        run.fail(errors.EngineBuildError("no kernel for 'Foo'; expected one of ..."))
        with pytest.raises(errors.IncompleteRunError, match=r"manifest\.json"):
            tracker.load(run.id)

        info = tracker.info(run.id)
        assert (info.status, info.verdict) == ("failed", "error") and info.end_time is not None
        assert info.tags[Tag.ERROR] == "EngineBuildError: no kernel for 'Foo'; expected one of ..."
        for message in ("", "x" * 100_000, "\ud800", "日\n" * 9000):
            (run := start(tracker)).fail(ValueError(message))
            info = tracker.info(run.id)
            assert info.status == "failed" and info.tags[Tag.ERROR].startswith("ValueError: ")

    def test_tracked_runs_always_end_once(self, tracker: Tracker):
        for error, ended in (
            (errors.EngineBuildError("no"), ("failed", "error", "trtops inspect run")),
            (KeyboardInterrupt(), ("killed", None, "trtops debug build --resume")),
            (SystemExit(0), ("killed", None, "trtops debug build --resume")),
        ):
            kind: Kind = "build" if ended[0] == "failed" else "debug_build"
            with pytest.raises(type(error)), tracked(tracker, "m", "r", kind=kind) as run:
                raise error
            info = tracker.info(run.id)
            assert (info.status, info.verdict) == ended[:2] and f"{ended[2]} {run.id}" in info.tags[Tag.NOTE]
        with tracked(tracker, "m", "a", kind="build") as first, tracked(tracker, "m", "b", kind="build") as second:
            second.finish("bad")
            second.finish("good")
        second.fail("late")
        assert tracker.load(first.id).info.verdict is None
        info = tracker.load(second.id).info
        assert (info.verdict, info.status) == ("bad", "finished")

    def test_ended_runs_accept_nothing(self, tracker: Tracker):
        finished, failed = start(tracker), start(tracker)
        finished.finish()
        failed.fail("x")
        for run in (finished, failed):
            calls = ((run.log_params, {"a": 1}), (run.set_tags, {"a": "1"}), (run.log_metrics, {("a",): 1.0}))
            for log, values in (*calls, (lambda data, run=run: run.log_bytes(data, "a"), b"")):
                with pytest.raises(errors.LogError, match="has ended"):
                    log(values)  # type: ignore[operator]

    def test_dropped_files_stay_in_the_manifest(self, tracker: Tracker):
        run = start(tracker)
        run.log_bytes(b"plan", "engine/x.plan")
        run.log_bytes(b"kept", "kept.bin")
        run.finish("good")
        run_id = run.id
        del run  # an offline tracker keeps the files of a live run object
        tracker.drop(run_id, ["engine/x.plan"])

        stored = tracker.load(run_id)
        assert tracker.peek(run_id, "engine/x.plan") is None
        assert [entry.path for entry in stored.manifest.dropped] == ["engine/x.plan"]
        with pytest.raises(errors.IncompleteRunError, match="runs prune"):
            stored.read_bytes("engine/x.plan")
        assert stored.read_bytes("kept.bin") == b"kept"

    def test_changed_files_are_noticed(self, tracker: Tracker, tamper):
        run = start(tracker)
        run.log_bytes(b"engine", "engine/x.plan")
        run.log_bytes(b"fine", "fine.txt")
        run.finish("good")

        for data in (b"ENGINE", b"engine and more", b"", None):
            tamper(run.id, "engine/x.plan", data)
            stored = tracker.load(run.id)
            for read in (stored.read_bytes, stored.local_path):
                with pytest.raises(errors.IncompleteRunError, match=r"engine/x\.plan"):
                    read("engine/x.plan")
            assert stored.read_bytes("fine.txt") == b"fine"
        with pytest.raises(errors.IncompleteRunError, match=r"Did you mean 'engine/x\.plan'"):
            stored.read_bytes("engine/y.plan")
        with pytest.raises(errors.IncompleteRunError):
            stored.local_path("manifest.json")
        outside = b'{"artifacts": [{"path": "../../x", "size": 1, "sha256": "00"}]}'
        for manifest in (b"", b"{", b"[]", b'{"artifacts": 3}', outside, None):
            tamper(run.id, "manifest.json", manifest)
            with pytest.raises(errors.IncompleteRunError, match=run.id):
                tracker.load(run.id)

    # Finding

    def test_unknown_runs_are_not_found(self, tracker: Tracker):
        for run_id in ("nope", "0" * 32, "", "../../etc", "' or 1=1"):
            for ask in (tracker.info, tracker.load, tracker.reopen, lambda run_id: tracker.close(run_id, "why")):
                with pytest.raises(errors.RunNotFoundError):
                    ask(run_id)

    def test_find_by_tags_parent_and_status(self, tracker: Tracker):
        def made(name: str, experiment: str = "m", **kwargs) -> str:
            time.sleep(0.003)  # a store may know start times to the millisecond only
            run = tracker.start(experiment, name, kind="build", **kwargs)
            run.finish("good" if name < "c" else "bad")
            return run.id

        parent = made("a")
        b = made("b", parent=parent, tags={"x": "1", "y": "1"})
        c = made("c", parent=parent, tags={"x": "1", "y": "2"})
        d = made("d", experiment="n", tags={"x": "1"})
        running = tracker.start("m", "z", kind="accuracy").id

        def ids(*args, **kwargs) -> list[str]:
            return [info.id for info in tracker.find(*args, **kwargs)]

        assert ids(tags={"x": "1"}) == [d, c, b]
        assert ids("m", tags={"x": "1"}) == ids(parent=parent) == [c, b]
        assert ids("m", tags={"x": "1", "y": "1"}) == [b]
        assert ids("m", tags={"x": "1"}, limit=1) == [c] and ids("m", limit=0) == []
        assert ids("m", tags={Tag.VERDICT: "good"}) == [b, parent]
        assert ids(id_prefix=b[:8]) == [b] and ids("n", id_prefix=b[:8]) == []
        assert ids("m", status="running") == ids("m", tags={Tag.KIND: "accuracy"}) == [running]
        assert ids("m", tags={"x": "none"}) == ids("m", tags={"none": "1"}) == ids("none") == ids(parent="none") == []

    def test_invalid_kinds_and_names_are_refused(self, tracker: Tracker):
        with pytest.raises(errors.ConfigError, match="Did you mean 'build'"):
            start(tracker, kind="bild")
        for experiment, name in (("", "r"), ("m", ""), ("m" * 501, "r"), ("m", "r" * 251)):
            with pytest.raises(errors.ConfigError, match="name has"):
                tracker.start(experiment, name, kind="build")
        assert tracker.find("m") == []

    def test_threads_do_not_mix_runs(self, tracker: Tracker):
        shared = tracker.start("m", "shared", kind="build")

        def work(i: int) -> str:
            with tracked(tracker, f"m{i % 2}", f"run {i}", kind="iteration") as run:
                for target_run in (run, shared):
                    target_run.log_params({f"p{i}": i})
                    target_run.log_metrics({("m", str(i)): float(i)})
                    target_run.log_text(str(i), f"files/{i}.txt")
            return run.id

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(work, range(12)))
        shared.finish()

        for run_id, numbers in (*((run_id, [i]) for i, run_id in enumerate(ids)), (shared.id, range(12))):
            stored = tracker.load(run_id)
            assert stored.info.params == {f"p{i}": str(i) for i in numbers}
            assert stored.info.metrics == {("m", str(i)): float(i) for i in numbers}
            assert [stored.read_bytes(f"files/{i}.txt") for i in numbers] == [str(i).encode() for i in numbers]

    # Interrupted runs

    def test_close_ends_runs_by_their_state(self, tracker: Tracker, tamper):
        running, ended, sealed = (start(tracker) for _ in range(3))
        closed = tracker.close(running.id, "its worker died")
        assert (closed.status, closed.tags[Tag.ERROR]) == ("killed", "its worker died")
        assert closed == tracker.info(running.id) and closed.end_time is not None
        ended.finish("good")
        before = tracker.info(ended.id)
        assert tracker.close(ended.id, "why") == before == tracker.info(ended.id)
        tamper(sealed.id, "manifest.json", b'{"artifacts": []}')  # killed before its status was set
        assert tracker.close(sealed.id, "why").status == "finished"
        assert tracker.load(sealed.id).manifest.artifacts == ()

    def test_reopened_run_keeps_what_it_had(self, tracker: Tracker):
        first = start(tracker, "r", kind="debug_build", tags={Tag.OWNER: DEAD.text()})
        first.log_bytes(b"early", "deep/early.bin")
        first.log_metrics({("a[b]", "c"): 1.0, ("d",): 2.0})
        first.log_params({"p": 1})

        again = tracker.reopen(first.id)
        again.log_bytes(b"late", "late.bin")
        again.log_metrics({("d",): 1.5})
        again.finish("good")
        stored = tracker.load(again.id)
        assert {stored.read_bytes("deep/early.bin"), stored.read_bytes("late.bin")} == {b"early", b"late"}
        assert stored.info.metrics == {("a[b]", "c"): 1.0, ("d",): 1.5}
        assert (stored.info.status, stored.info.verdict, stored.info.params) == ("finished", "good", {"p": "1"})
        assert owner.Owner.read(stored.info.tags[Tag.OWNER]) == owner.current()
        failed, closed = (start(tracker, name, kind="debug_build") for name in ("failed", "closed"))
        failed.fail("boom")
        tracker.close(closed.id, "gone")
        for run in (failed, closed):
            tracker.reopen(run.id).finish()
            info = tracker.info(run.id)
            assert (info.status, info.verdict) == ("finished", None) and Tag.ERROR not in info.tags

    def test_complete_and_live_runs_are_not_reopened(self, tracker: Tracker):
        elsewhere = {Tag.OWNER: dataclasses.replace(HERE, host="elsewhere").text()}
        whole, mine, remote = start(tracker), start(tracker), start(tracker, tags=elsewhere)
        whole.finish()
        for run_id, message in ((whole.id, "complete"), (mine.id, "may still be writing"), (remote.id, "elsewhere")):
            with pytest.raises(errors.LogError, match=message):
                tracker.reopen(run_id)

    def test_only_runs_of_dead_processes_are_reaped(self, tracker: Tracker):
        remote = dataclasses.replace(DEAD, host="elsewhere")
        owners = {"mine": HERE.text(), "dead": DEAD.text(), "far": remote.text(), "foreign": "not ours"}
        runs = {name: start(tracker, name, tags={Tag.OWNER: tag}) for name, tag in owners.items()}

        assert [info.name for info in reap(tracker)] == ["dead"]
        for name, run in runs.items():
            assert tracker.info(run.id).status == ("killed" if name == "dead" else "running")

    # The registry

    def test_aliases_point_to_the_newest_version(self, tracker: Tracker):
        runs = [start(tracker), start(tracker)]
        for run in runs:
            run.log_bytes(run.id.encode(), "e.ort")
            run.finish("good")

        first = tracker.register("net", runs[0].id, "e.ort", alias="cpu_1", tags={"who": "me"})
        other = tracker.register("net", runs[0].id, "e.ort", alias="cpu_2", tags={"from": runs[0].id})
        second = tracker.register("net", runs[1].id, "e.ort", alias="cpu_1")

        assert [first.version, other.version, second.version] == ["1", "2", "3"]
        assert first.tags == {"who": "me"}
        assert tracker.registered("net", "cpu_1") == second and tracker.registered("net", "cpu_2") == other
        assert tracker.aliases("net") == {"cpu_1": "3", "cpu_2": "2"}
        assert (second.run_id, second.path) == (runs[1].id, "e.ort")
        assert tracker.registered("nothing", "cpu") is None
        assert tracker.aliases("nothing") == {} == tracker.aliases("a/b")
        assert tracker.accepted({"from": runs[0].id}) == [("cpu_2", other)] and len(tracker.accepted()) >= 2

    def test_invalid_registrations_are_refused(self, tracker: Tracker):
        running, whole = start(tracker), start(tracker)
        for run in (running, whole):
            run.log_bytes(b"x", "engine.ort")
        whole.finish()

        for run_id, path in ((running.id, "engine.ort"), (whole.id, "other.ort")):
            with pytest.raises(errors.IncompleteRunError):
                tracker.register("never registered", run_id, path, alias="cpu")
        for alias in ("", "latest", "v3", "a/b", "a" * 256):
            with pytest.raises(errors.ConfigError, match="Alias"):
                tracker.register("never registered", whole.id, "engine.ort", alias=alias)
        with pytest.raises(errors.ConfigError, match="Registered model"):
            tracker.register("a/b", whole.id, "engine.ort", alias="cpu")
        assert tracker.aliases("never registered") == {}


class InMemoryContract(TrackerContract):
    """The contract for trackers whose runs end up in the fixture ``memory``."""

    @pytest.fixture
    def tamper(self, memory):
        def change(run_id: str, path: str, data: bytes | None) -> None:
            artifacts = memory._data(run_id).artifacts
            if data is None:
                artifacts.pop(path, None)
            else:
                artifacts[path] = data

        return change
