"""What every tracker does, whatever keeps its runs. Subclass :class:`TrackerContract` and supply its fixtures."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trtops import errors
from trtops.record import sha256
from trtops.spec import BuildConfig
from trtops.tracking import owner
from trtops.tracking.base import RunInfo, Tracker, tracked
from trtops.tracking.check import reap
from trtops.tracking.schema import MAX_TEXT, Tag

ODD_NAMES = [
    "gpu_0/softmax:1",
    "日本",
    "",
    ".",
    "..",
    "..hidden",
    "/",
    "//",
    "a//b/",
    " spaced out ",
    "tab\tnewline\n",
    "out[0](1){2}",
    "100%",
    "-",
    "--",
    "-2d-",
    "-empty-",
    "a-cut-0123456789abcdef-",
    "🚀",
    "e\u0301 combining",
    "nul\0",
    "quote'\"`\\",
    "\ud800 lone surrogate",
    "n" * 250,
    "n" * 500,
    "[" * 500,
    "日" * 9000,
]


class TrackerContract:
    """Behaviours; ``tracker`` is over an empty store, ``tamper`` changes a stored artifact, ``set_id`` a run's id."""

    @pytest.fixture
    def tracker(self) -> Tracker:
        raise NotImplementedError

    @pytest.fixture
    def tamper(self, tracker):
        """A function ``(run_id, path, data)`` that overwrites an artifact behind the tracker's back; None removes it."""
        raise NotImplementedError

    @pytest.fixture
    def set_id(self, tracker):
        """A function ``(run_id, new_id)`` that gives a run another id behind the tracker's back."""
        raise NotImplementedError

    # One run, whole

    def test_a_finished_run_gives_back_what_was_logged(self, tracker: Tracker, tmp_path: Path):
        (tmp_path / "model.plan").write_bytes(b"plan" * 1000)
        before = time.time()

        parent = tracker.start("resnet", "campaign", kind="debug_build")
        run = tracker.start("resnet", "fp16", kind="build", tags={"team": "vision"}, parent=parent.id)
        run.log_params({"precision": "fp16"})
        run.log_metrics({("build", "seconds"): 1.5, ("error", "gpu_0/softmax:1", "max_abs"): 1e-3})
        run.log_file(tmp_path / "model.plan", "engine/model.plan")
        run.log_bytes(b"\0\1", "caches/timing.cache")
        run.log_text("größe", "build.log")
        run.log_json({"b": [1, math.inf]}, "accuracy/results.json")
        run.log_json(BuildConfig(precision="fp16"), "config.json")
        run.finish("good")
        stored = tracker.load(run.id)

        info = stored.info
        assert (info.id, info.experiment, info.name, info.parent) == (run.id, "resnet", "fp16", parent.id)
        assert (info.status, info.verdict) == ("finished", "good")
        assert before - 1 < info.start_time <= (info.end_time or 0) < time.time() + 1
        assert info.tags["team"] == "vision"
        assert info.tags[Tag.KIND] == "build"
        assert info.params == {"precision": "fp16"}
        assert info.metrics == {("build", "seconds"): 1.5, ("error", "gpu_0/softmax:1", "max_abs"): 1e-3}
        assert info.url == run.url
        assert stored.read_bytes("engine/model.plan") == b"plan" * 1000
        assert stored.local_path("engine/model.plan").read_bytes() == b"plan" * 1000
        assert stored.local_path("engine/model.plan").name == "model.plan"
        assert stored.read_bytes("caches/timing.cache") == b"\0\1"
        assert stored.read_bytes("build.log").decode() == "größe"
        assert json.loads(stored.read_bytes("accuracy/results.json")) == {"b": [1, "inf"]}
        assert BuildConfig.from_json(stored.read_bytes("config.json")) == BuildConfig(precision="fp16")
        assert tracker.info(parent.id).status == "running"

    def test_the_manifest_names_every_artifact_in_order_with_its_size_and_digest(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_bytes(b"bb", "b.bin")
        run.log_bytes(b"", "a/empty.bin")
        run.finish()

        entries = tracker.load(run.id).manifest.artifacts

        assert [(e.path, e.size, e.sha256) for e in entries] == [
            ("a/empty.bin", 0, sha256(b"")),
            ("b.bin", 2, sha256(b"bb")),
        ]

    def test_a_run_without_anything_in_it_is_whole_when_finished(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="compare")
        run.finish()

        assert tracker.load(run.id).manifest.artifacts == ()
        assert tracker.info(run.id).verdict is None

    def test_params_are_kept_as_text_and_nested_ones_as_json(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_params({"s": "x", "i": 3, "f": 0.1, "b": True, "n": None, "l": (1, 2), "d": {"b": 1, "a": 2}, "e": ""})

        assert tracker.info(run.id).params == {
            "s": "x",
            "i": "3",
            "f": "0.1",
            "b": "true",
            "n": "null",
            "l": "[1,2]",
            "d": '{"a":2,"b":1}',
            "e": "",
        }

    # Logging again

    def test_logging_the_same_twice_changes_nothing(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")

        def log() -> RunInfo:
            run.log_params({"a": 1})
            run.set_tags({"t": "x"})
            run.log_metrics({("x",): 1.0, ("nan",): math.nan, ("inf",): math.inf})
            run.log_bytes(b"data", "a.bin")
            return dataclasses.replace(tracker.info(run.id), metrics={})

        assert log() == log()
        assert tracker.info(run.id).metrics.keys() == {("x",), ("nan",), ("inf",)}

    def test_a_param_cannot_change_and_the_error_names_it(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_params({"precision": "fp16"})

        with pytest.raises(errors.LogError, match="precision"):
            run.log_params({"precision": "int8", "other": 1})

        assert tracker.info(run.id).params == {"precision": "fp16"}

    def test_tags_and_metrics_can_change(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        for value in (2.0, 1.0, math.nan, -5.0, math.inf, -math.inf, 0.5):
            run.set_tags({"t": str(value)})
            run.log_metrics({("x",): value})

            info = tracker.info(run.id)

            assert info.tags["t"] == str(value)
            assert info.metrics[("x",)] == pytest.approx(value, rel=0, abs=0, nan_ok=True)

    def test_an_artifact_logged_again_is_replaced(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_bytes(b"first", "a.bin")
        run.log_bytes(b"second", "a.bin")
        run.finish()

        stored = tracker.load(run.id)

        assert stored.read_bytes("a.bin") == b"second"
        assert len(stored.manifest.artifacts) == 1

    # Odd numbers, names and sizes

    def test_metrics_keep_nan_infinities_and_extremes(self, tracker: Tracker):
        values = [0.0, 5e-324, 1e-9, -1.5, 1e308, -1e308, math.inf, -math.inf, math.nan]
        run = tracker.start("m", "r", kind="build")
        run.log_metrics({("v", str(i)): value for i, value in enumerate(values)})

        metrics = tracker.info(run.id).metrics

        for i, value in enumerate(values):
            assert repr(metrics["v", str(i)]) == repr(value)

    def test_any_text_can_name_a_metric_a_param_or_a_tag(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_metrics({("error", name, "max_abs"): float(i) for i, name in enumerate(ODD_NAMES)})
        run.log_metrics({(name,): float(i) for i, name in enumerate(ODD_NAMES)})
        run.log_metrics({tuple(ODD_NAMES): 7.0})
        run.log_params({name: i for i, name in enumerate(ODD_NAMES)})
        run.set_tags({name: str(i) for i, name in enumerate(ODD_NAMES)})
        run.finish()

        info = tracker.info(run.id)

        assert info.metrics == {
            **{("error", name, "max_abs"): float(i) for i, name in enumerate(ODD_NAMES)},
            **{(name,): float(i) for i, name in enumerate(ODD_NAMES)},
            tuple(ODD_NAMES): 7.0,
        }
        assert info.params == {name: str(i) for i, name in enumerate(ODD_NAMES)}
        assert {name: info.tags.get(name) for name in ODD_NAMES} == {name: str(i) for i, name in enumerate(ODD_NAMES)}
        assert not [tag for tag in info.tags if tag not in ODD_NAMES and not tag.startswith(("mlflow.", "trtops."))]

    def test_any_text_can_name_an_experiment(self, tracker: Tracker):
        for experiment in ("a/b", "..", "日本 🚀 [x]", "'quoted\"", "e" * 500, "日" * 500):
            run = tracker.start(experiment, "r 🚀/'", kind="build")
            run.log_bytes(b"x", "a.bin")
            run.finish()

            assert [info.experiment for info in tracker.find(experiment)] == [experiment]
            assert tracker.info(run.id).name == "r 🚀/'"
            assert tracker.load(run.id).read_bytes("a.bin") == b"x"

    def test_long_values_are_kept_whole_and_too_long_ones_refused(self, tracker: Tracker):
        long = "日" * 6001 + "x" * 20000
        run = tracker.start("m", "r", kind="build", tags={"first": long})
        run.log_params({"p": long})
        run.set_tags({"t": long, "full": "x" * 8000})
        with pytest.raises(errors.LogError, match="artifact"):
            run.log_params({"huge": "x" * (MAX_TEXT + 1)})
        with pytest.raises(errors.LogError, match="artifact"):
            run.set_tags({"huge": "x" * (MAX_TEXT + 1)})

        info = tracker.info(run.id)

        assert info.params == {"p": long}
        assert (info.tags["first"], info.tags["t"], info.tags["full"]) == (long, long, "x" * 8000)
        assert "huge" not in info.tags
        assert [found.id for found in tracker.find("m", tags={"t": long})] == [run.id]

    def test_many_params_tags_and_metrics_are_taken_at_once(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_params({f"p{i}": "日" * 500 for i in range(250)})
        run.set_tags({f"t{i}": "日" * 2000 for i in range(150)})
        run.log_metrics({("m", str(i)): float(i) for i in range(2500)})

        info = tracker.info(run.id)

        assert len(info.params) == 250
        assert sum(tag.startswith("t") and tag[1:].isdecimal() for tag in info.tags) == 150
        assert info.metrics == {("m", str(i)): float(i) for i in range(2500)}

    def test_a_metric_that_is_no_number_is_refused(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")

        for value in ("x", None, 10**400):
            with pytest.raises(errors.LogError, match="expected a number"):
                run.log_metrics({("good",): 1.0, ("bad",): value})  # type: ignore[dict-item]

        assert tracker.info(run.id).metrics == {}

    def test_artifact_names_may_be_odd(self, tracker: Tracker):
        paths = ["日本/ü #1?.txt", "gpu_0:1.bin", "a b/c%20d", "with'quote"]
        run = tracker.start("m", "r", kind="build")
        for path in paths:
            run.log_text(path, path)
        run.finish()

        stored = tracker.load(run.id)

        for path in paths:
            assert stored.read_bytes(path).decode() == path
            assert stored.local_path(path).read_text() == path

    def test_artifact_paths_that_leave_the_run_or_break_it_are_refused(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")

        for path in ("", "/x", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b", "n\0l", "x" * 300, "manifest.json"):
            with pytest.raises(errors.LogError, match="Artifact path"):
                run.log_bytes(b"x", path)

        run.finish()
        assert tracker.load(run.id).manifest.artifacts == ()

    def test_an_artifact_cannot_be_a_folder_too(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_bytes(b"x", "a/b")

        with pytest.raises(errors.LogError, match="folder"):
            run.log_bytes(b"x", "a")
        with pytest.raises(errors.LogError, match="folder"):
            run.log_bytes(b"x", "a/b/c")

    def test_a_file_that_is_not_there_is_refused_by_name(self, tracker: Tracker, tmp_path: Path):
        run = tracker.start("m", "r", kind="build")

        with pytest.raises(errors.LogError, match=r"missing\.plan.*found nothing"):
            run.log_file(tmp_path / "missing.plan", "engine/x.plan")
        with pytest.raises(errors.LogError, match="found a folder"):
            run.log_file(tmp_path, "engine/x.plan")

    # Runs that are not whole

    def test_a_running_and_a_failed_run_are_incomplete(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_bytes(b"x", "a.bin")

        with pytest.raises(errors.IncompleteRunError, match=run.id):
            tracker.load(run.id)
        run.fail("gave up")
        with pytest.raises(errors.IncompleteRunError, match=r"manifest\.json"):
            tracker.load(run.id)

    def test_a_failed_run_keeps_the_message(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.fail(errors.EngineBuildError("no kernel for 'Foo'; expected one of ..."))

        info = tracker.info(run.id)

        assert (info.status, info.verdict) == ("failed", "error")
        assert info.tags[Tag.ERROR] == "EngineBuildError: no kernel for 'Foo'; expected one of ..."
        assert info.end_time is not None

    def test_any_message_can_fail_a_run(self, tracker: Tracker):
        for message in ("", "x" * 100_000, "\ud800", "日\n" * 9000):
            run = tracker.start("m", "r", kind="build")
            run.fail(ValueError(message))

            info = tracker.info(run.id)

            assert info.status == "failed"
            assert info.tags[Tag.ERROR].startswith("ValueError: ")

    @pytest.mark.parametrize("error", [errors.EngineBuildError("no"), KeyboardInterrupt(), SystemExit(0)])
    def test_tracked_fails_the_run_of_a_block_that_raises(self, tracker: Tracker, error: BaseException):
        with pytest.raises(type(error)), tracked(tracker, "m", "r", kind="build") as run:
            raise error

        assert tracker.info(run.id).status == "failed"

    def test_tracked_finishes_the_run_unless_the_block_did(self, tracker: Tracker):
        with tracked(tracker, "m", "a", kind="build") as first:
            pass
        with tracked(tracker, "m", "b", kind="build") as second:
            second.finish("bad")

        assert tracker.load(first.id).info.verdict is None
        assert tracker.load(second.id).info.verdict == "bad"

    def test_a_run_ends_once(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.finish("good")
        run.finish("bad")
        run.fail("late")

        assert tracker.load(run.id).info.verdict == "good"
        assert tracker.info(run.id).status == "finished"

    @pytest.mark.parametrize("end", ["finish", "fail"])
    def test_nothing_can_be_logged_after_the_end(self, tracker: Tracker, end: str):
        run = tracker.start("m", "r", kind="build")
        run.finish() if end == "finish" else run.fail("x")

        for log in (
            lambda: run.log_params({"a": 1}),
            lambda: run.set_tags({"a": "1"}),
            lambda: run.log_metrics({("a",): 1.0}),
            lambda: run.log_bytes(b"", "a"),
        ):
            with pytest.raises(errors.LogError, match="has ended"):
                log()

    def test_a_changed_artifact_is_noticed(self, tracker: Tracker, tamper):
        run = tracker.start("m", "r", kind="build")
        run.log_bytes(b"engine", "engine/x.plan")
        run.log_bytes(b"fine", "fine.txt")
        run.finish("good")

        for data in (b"ENGINE", b"engine and more", b"", None):
            tamper(run.id, "engine/x.plan", data)
            stored = tracker.load(run.id)

            with pytest.raises(errors.IncompleteRunError, match=r"engine/x\.plan"):
                stored.read_bytes("engine/x.plan")
            with pytest.raises(errors.IncompleteRunError, match=r"engine/x\.plan"):
                stored.local_path("engine/x.plan")
            assert stored.read_bytes("fine.txt") == b"fine"

    def test_a_damaged_manifest_makes_a_run_incomplete(self, tracker: Tracker, tamper):
        run = tracker.start("m", "r", kind="build")
        run.finish()

        outside = b'{"artifacts": [{"path": "../../x", "size": 1, "sha256": "00"}]}'
        for manifest in (b"", b"{", b"[]", b'{"artifacts": 3}', outside, None):
            tamper(run.id, "manifest.json", manifest)
            with pytest.raises(errors.IncompleteRunError, match=run.id):
                tracker.load(run.id)

    def test_an_artifact_that_was_never_logged_is_not_read(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.log_bytes(b"x", "engine/x.plan")
        run.finish()

        with pytest.raises(errors.IncompleteRunError, match=r"Did you mean 'engine/x\.plan'"):
            tracker.load(run.id).read_bytes("engine/y.plan")
        with pytest.raises(errors.IncompleteRunError):
            tracker.load(run.id).local_path("manifest.json")

    # Finding

    def test_an_unknown_run_is_not_found(self, tracker: Tracker):
        for run_id in ("nope", "0" * 32, "", "../../etc", "' or 1=1"):
            for ask in (tracker.info, tracker.load, lambda run_id: tracker.close(run_id, "why")):
                with pytest.raises(errors.RunNotFoundError):
                    ask(run_id)

    def test_a_run_is_known_by_what_its_id_begins_with_in_whatever_experiment_it_is(self, tracker: Tracker, set_id):
        near, far = "abcd" + "1" * 28, "abcd" + "2" * 28
        for experiment, run_id in (("m", near), ("n", far)):
            set_id(tracker.start(experiment, "r", kind="build").id, run_id)

        for given in ("abcd1", "run:abcd1", "ABCD1", near[:31]):
            assert tracker.whole_id(given) == near
        assert tracker.whole_id("abcd2") == far
        assert tracker.info(tracker.whole_id("abcd2")).experiment == "n"

    def test_a_whole_id_is_given_back_without_a_look_at_the_store(self, tracker: Tracker):
        assert tracker.whole_id("0" * 32) == tracker.whole_id("run:" + "0" * 32) == "0" * 32

    def test_runs_whose_ids_begin_alike_are_listed_the_newest_first_and_ten_at_most(self, tracker: Tracker, set_id):
        day = time.strftime("%Y-%m-%d")
        ids = [f"abcd{n:02}" + "0" * 26 for n in range(12)]
        for n, run_id in enumerate(ids):
            time.sleep(0.003)
            set_id(tracker.start("m" if n % 2 else "n", f"build {n}", kind="build").id, run_id)

        with pytest.raises(errors.ConfigError, match=r"More than 10 runs .* 'abcd'; give more digits") as many:
            tracker.whole_id("abcd")
        lines = str(many.value).splitlines()[1:]
        assert [line.split()[0] for line in lines] == [*reversed(ids[2:]), "..."]
        assert lines[0].split()[1] >= day and lines[0].endswith("build 11")
        with pytest.raises(errors.ConfigError, match=r"^2 runs have ids") as two:
            tracker.whole_id("abcd1")
        assert [line.split()[0] for line in str(two.value).splitlines()[1:]] == [ids[11], ids[10]]

    def test_what_is_no_beginning_of_a_run_s_id_is_not_found(self, tracker: Tracker, set_id):
        set_id(tracker.start("m", "r", kind="build").id, "abcd" + "3" * 28)

        for given in ("abcd2", "bcd1", "1111"):
            with pytest.raises(errors.RunNotFoundError, match=f"begins with '{given}'"):
                tracker.whole_id(given)
        odd = ("", "run:", "abc", "abcdefgh", "abcd%", "%%%%", "abc_", "____", "abcd' or 1=1", "../../etc", "a" * 33)
        for given in odd:
            with pytest.raises(errors.RunNotFoundError, match=r"expected the 32 hexadecimal digits .* first 4"):
                tracker.whole_id(given)

    def test_runs_are_found_by_tags_parent_and_status_newest_first(self, tracker: Tracker):
        def start(name: str, experiment: str = "m", **kwargs) -> str:
            time.sleep(0.003)  # a store may know start times to the millisecond only
            run = tracker.start(experiment, name, kind="build", **kwargs)
            run.finish("good" if name < "c" else "bad")
            return run.id

        parent = start("a")
        b = start("b", parent=parent, tags={"x": "1", "y": "1"})
        c = start("c", parent=parent, tags={"x": "1", "y": "2"})
        d = start("d", experiment="n", tags={"x": "1"})
        running = tracker.start("m", "z", kind="accuracy").id

        def ids(*args, **kwargs) -> list[str]:
            return [info.id for info in tracker.find(*args, **kwargs)]

        assert ids(tags={"x": "1"}) == [d, c, b]
        assert ids("m", tags={"x": "1"}) == [c, b]
        assert ids("m", tags={"x": "1", "y": "1"}) == [b]
        assert ids("m", tags={"x": "1"}, limit=1) == [c]
        assert ids("m", limit=0) == []
        assert ids(parent=parent) == [c, b]
        assert ids("m", tags={Tag.VERDICT: "good"}) == [b, parent]
        assert ids("m", status="running") == [running]
        assert ids("m", tags={Tag.KIND: "accuracy"}) == [running]
        assert ids("m", tags={"x": "none"}) == ids("m", tags={"none": "1"}) == ids("none") == ids(parent="none") == []

    def test_a_found_run_says_the_same_as_when_asked_for(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build", tags={"t": "x"})
        run.log_params({"p": 1})
        run.log_metrics({("gpu_0/a:1",): math.inf})
        run.finish("good")

        assert tracker.find("m") == [tracker.info(run.id)]

    def test_tags_with_odd_values_are_found_and_only_they(self, tracker: Tracker):
        values = ["it's", 'say "x"', "'\"", "`tick`", "back\\slash", "100%", "%", "_", "", "日本 🚀", "a\nb", "A", "a"]
        runs = {value: tracker.start("m", "r", kind="build", tags={"odd [key]'": value}).id for value in values}

        for value, run_id in runs.items():
            assert [info.id for info in tracker.find("m", tags={"odd [key]'": value})] == [run_id]

    def test_an_unknown_kind_and_impossible_names_are_refused(self, tracker: Tracker):
        with pytest.raises(errors.ConfigError, match="Did you mean 'build'"):
            tracker.start("m", "r", kind="bild")
        for experiment, name in (("", "r"), ("m", ""), ("m" * 501, "r"), ("m", "r" * 251)):
            with pytest.raises(errors.ConfigError, match="name has"):
                tracker.start(experiment, name, kind="build")

        assert tracker.find("m") == []

    # Many at once

    def test_runs_in_many_threads_do_not_mix(self, tracker: Tracker):
        def work(i: int) -> str:
            with tracked(tracker, f"m{i % 2}", f"run {i}", kind="iteration", tags={"i": str(i)}) as run:
                run.log_params({"i": i})
                run.log_metrics({("i",): float(i)})
                run.log_text(str(i), "i.txt")
            return run.id

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(work, range(12)))

        for i, run_id in enumerate(ids):
            stored = tracker.load(run_id)
            assert stored.info.name == f"run {i}"
            assert stored.info.params == {"i": str(i)}
            assert stored.info.metrics == {("i",): float(i)}
            assert stored.read_bytes("i.txt") == str(i).encode()

    def test_many_threads_can_log_to_one_run(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")

        def work(i: int) -> None:
            run.log_params({f"p{i}": i})
            run.set_tags({f"t{i}": str(i)})
            run.log_metrics({("m", str(i)): float(i)})
            run.log_text(str(i), f"files/{i}.txt")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(16)))
        run.finish()
        stored = tracker.load(run.id)

        assert stored.info.params == {f"p{i}": str(i) for i in range(16)}
        assert stored.info.metrics == {("m", str(i)): float(i) for i in range(16)}
        assert [stored.read_bytes(f"files/{i}.txt") for i in range(16)] == [str(i).encode() for i in range(16)]

    def test_interleaved_asyncio_tasks_do_not_mix(self, tracker: Tracker):
        async def work(i: int) -> str:
            with tracked(tracker, "m", f"task {i}", kind="iteration") as run:
                run.log_params({"i": i})
                await asyncio.sleep(0.01 * (i % 3))
                await asyncio.to_thread(run.log_metrics, {("i",): float(i)})
                await asyncio.sleep(0)
                run.set_tags({"i": str(i)})
            return run.id

        async def main() -> list[str]:
            return await asyncio.gather(*(work(i) for i in range(6)))

        for i, run_id in enumerate(asyncio.run(main())):
            info = tracker.load(run_id).info
            assert (info.name, info.params, info.metrics, info.tags["i"]) == (
                f"task {i}",
                {"i": str(i)},
                {("i",): float(i)},
                str(i),
            )

    # Runs of dead processes

    def test_closing_a_run_that_was_left_open_marks_it_killed_and_says_why(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")

        closed = tracker.close(run.id, "its worker died")

        assert (closed.status, closed.tags[Tag.ERROR]) == ("killed", "its worker died")
        assert closed == tracker.info(run.id)
        assert closed.end_time is not None

    def test_closing_a_run_that_has_ended_does_nothing(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="build")
        run.finish("good")
        before = tracker.info(run.id)

        assert tracker.close(run.id, "why") == before == tracker.info(run.id)

    def test_a_run_killed_between_its_manifest_and_its_end_is_closed_as_finished(self, tracker: Tracker, tamper):
        run = tracker.start("m", "r", kind="build")
        tamper(run.id, "manifest.json", b'{"artifacts": []}')

        assert tracker.close(run.id, "why").status == "finished"
        assert tracker.load(run.id).manifest.artifacts == ()

    # Going on with interrupted runs

    def dead_owner(self) -> str:
        child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        return dataclasses.replace(owner.current(), pid=int(child.stdout), started=1).to_json()

    def test_a_run_whose_process_is_gone_is_gone_on_with_and_keeps_what_it_had(self, tracker: Tracker):
        first = tracker.start("m", "r", kind="debug_build", tags={Tag.OWNER: self.dead_owner()})
        first.log_bytes(b"early", "deep/early.bin")
        first.log_metrics({("a[b]", "c"): 1.0, ("d",): 2.0})
        first.log_params({"p": 1})

        again = tracker.reopen(first.id)
        again.log_bytes(b"late", "late.bin")
        again.log_metrics({("d",): 1.5})
        again.finish("good")

        stored = tracker.load(first.id)
        assert again.id == first.id
        assert {stored.read_bytes("deep/early.bin"), stored.read_bytes("late.bin")} == {b"early", b"late"}
        assert stored.info.metrics == {("a[b]", "c"): 1.0, ("d",): 1.5}
        assert json.loads(stored.read_bytes("outputs.json")) == {"a-5b-b-5d-/c": ["a[b]", "c"]}
        assert (stored.info.status, stored.info.verdict, stored.info.params) == ("finished", "good", {"p": "1"})
        assert owner.Owner.from_json(stored.info.tags[Tag.OWNER]) == owner.current()

    def test_a_failed_or_closed_run_can_be_gone_on_with_and_its_error_goes(self, tracker: Tracker):
        failed, closed = (tracker.start("m", name, kind="debug_build") for name in ("failed", "closed"))
        failed.fail("boom")
        tracker.close(closed.id, "gone")

        for run in (failed, closed):
            tracker.reopen(run.id).finish()

            info = tracker.info(run.id)
            assert info.status == "finished"
            assert info.verdict is None and Tag.ERROR not in info.tags

    def test_a_run_that_is_whole_or_may_be_written_by_another_is_not_reopened(self, tracker: Tracker):
        whole = tracker.start("m", "whole", kind="debug_build")
        whole.finish()
        mine = tracker.start("m", "mine", kind="debug_build")
        elsewhere = dataclasses.replace(owner.current(), host="elsewhere").to_json()
        far = tracker.start("m", "far", kind="debug_build", tags={Tag.OWNER: elsewhere})

        with pytest.raises(errors.LogError, match="complete"):
            tracker.reopen(whole.id)
        with pytest.raises(errors.LogError, match="may still be writing"):
            tracker.reopen(mine.id)
        with pytest.raises(errors.LogError, match="elsewhere"):
            tracker.reopen(far.id)
        with pytest.raises(errors.RunNotFoundError):
            tracker.reopen("0" * 32)

    def test_artifacts_of_a_running_run_can_be_peeked_at(self, tracker: Tracker):
        run = tracker.start("m", "r", kind="debug_build")
        run.log_bytes(b"one", "a/b.bin")
        seen = [tracker.peek(run.id, "a/b.bin")]
        run.log_bytes(b"two", "a/b.bin")
        seen.append(tracker.peek(run.id, "a/b.bin"))

        assert seen == [b"one", b"two"]
        assert tracker.peek(run.id, "a/c.bin") is None and tracker.peek(run.id, "nowhere/at.all") is None
        with pytest.raises(errors.RunNotFoundError):
            tracker.peek("0" * 32, "a/b.bin")

    # The registry

    def test_an_alias_points_to_the_version_that_was_registered_last_under_it(self, tracker: Tracker):
        runs = []
        for data in (b"one", b"two"):
            run = tracker.start("m", "r", kind="build")
            run.log_bytes(data, "engine/engine.ort")
            run.finish("good")
            runs.append(run.id)

        first = tracker.register("net", runs[0], "engine/engine.ort", alias="cpu_1", tags={"who": "me" * 5000})
        other = tracker.register("net", runs[0], "engine/engine.ort", alias="cpu_2")
        second = tracker.register("net", runs[1], "engine/engine.ort", alias="cpu_1")

        assert [first.version, other.version, second.version] == ["1", "2", "3"]
        assert first.tags == {"who": "me" * 5000}
        assert tracker.registered("net", "cpu_1") == second
        assert tracker.registered("net", "cpu_2") == other
        assert tracker.aliases("net") == {"cpu_1": "3", "cpu_2": "2"}
        assert second.run_id == runs[1] and second.path == "engine/engine.ort"

    def test_what_was_never_registered_is_not_found(self, tracker: Tracker):
        assert tracker.registered("nothing", "cpu") is None
        assert tracker.aliases("nothing") == {} == tracker.aliases("a/b")

    def test_only_whole_runs_artifacts_and_possible_aliases_are_registered(self, tracker: Tracker):
        running = tracker.start("m", "r", kind="build")
        running.log_bytes(b"x", "engine.ort")
        whole = tracker.start("m", "r", kind="build")
        whole.log_bytes(b"x", "engine.ort")
        whole.finish()

        with pytest.raises(errors.IncompleteRunError):
            tracker.register("never registered", running.id, "engine.ort", alias="cpu")
        with pytest.raises(errors.IncompleteRunError, match="other"):
            tracker.register("never registered", whole.id, "other.ort", alias="cpu")
        for alias in ("", "latest", "v3", "a/b", "a" * 256):
            with pytest.raises(errors.ConfigError, match="Alias"):
                tracker.register("never registered", whole.id, "engine.ort", alias=alias)
        with pytest.raises(errors.ConfigError, match="Registered model"):
            tracker.register("a/b", whole.id, "engine.ort", alias="cpu")
        assert tracker.aliases("never registered") == {}

    def test_only_runs_whose_process_is_gone_are_reaped(self, tracker: Tracker):
        child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
        here = owner.current()
        dead = dataclasses.replace(here, pid=int(child.stdout), started=1)
        runs = {
            name: tracker.start("m", name, kind="build", tags={Tag.OWNER: tag})
            for name, tag in {
                "mine": here.to_json(),
                "dead": dead.to_json(),
                "elsewhere": dataclasses.replace(dead, host="elsewhere").to_json(),
                "foreign": "not ours",
            }.items()
        }

        closed = reap(tracker)

        assert [info.name for info in closed] == ["dead"]
        assert {name: tracker.info(run.id).status for name, run in runs.items()} == {
            "mine": "running",
            "dead": "killed",
            "elsewhere": "running",
            "foreign": "running",
        }
