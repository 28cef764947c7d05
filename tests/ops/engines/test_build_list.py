"""Building a list: one entry's failure stops no other, and what is known already is left out."""

import errno
import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from tests import models
from tests.long_runs import amount
from trtops import errors
from trtops.ops.engines.board import board
from trtops.ops.engines.build_list import BuildListConfig, BuildListResult, BuildOutcome, build_list
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.model_list import ListedModel, Policy, folder_list
from trtops.tracking import owner
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Tag

NEW = BuildListConfig(only_new=True)


@pytest.fixture
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.conv_net().fixed().write(tmp_path)
    models.identity().write(tmp_path)
    return tmp_path


START = 1893456000.0  # 2030-01-01


class Clock:
    """The time of day 0, and a second later at each reading."""

    def __init__(self) -> None:
        self.days, self.read = 0, itertools.count()

    def __call__(self) -> float:
        return START + 86400 * self.days + next(self.read)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr("time.time", fake_clock)
    return fake_clock


def listed(folder: Path, text: str) -> Path:
    file = folder / "nets.yaml"
    file.write_text(f"defaults: {{policy: {{isolated: false}}}}\nmodels:\n{text}")
    return file


def watch(folder: Path, tracker: MemoryTracker, config: BuildListConfig = NEW) -> BuildListResult:
    entry = ListedModel(model="", policy=Policy(isolated=False))
    return build_list(folder_list(folder, "*.onnx", entry), config, tracker=tracker)


def outcomes(result: BuildListResult) -> dict[str, str]:
    return {Path(build.model).stem: build.outcome for build in result.builds}


def test_failing_builds_do_not_stop_others(folder: Path, tracker: MemoryTracker):
    models.no_kernel().write(folder)
    text = """  - model: no_kernel.onnx
  - {model: conv_net.onnx, precisions: [fp32, fp16], tolerances: {fp16: {atol: 0.0, rtol: 0.0}}}
  - model: identity.onnx
  - model: identty.onnx
  - {model: conv_net.onnx, precisions: [fp16], tolerances: {fp16: {atol: 0.0, rtol: 0.0}}, policy: {bad: report}}
"""
    result = build_list(listed(folder, text), tracker=tracker)

    assert [(Path(b.model).stem, b.precision, b.outcome, b.failed) for b in result.builds] == [
        ("no_kernel", "fp32", "error", True),
        ("conv_net", "fp32", "good", False),
        ("conv_net", "fp16", "bad", True),
        ("identity", "fp32", "good", False),
        ("identty", "fp32", "error", True),
        ("conv_net", "fp16", "bad", False),
    ]
    assert (result.verdict, result.headline) == (
        "bad",
        "3 of 6 failed (2 good, 2 bad, 2 error): no_kernel, conv_net, identty",
    )
    page = result.page()
    assert "- no_kernel.onnx fp32 onnxruntime: error. Op 'custom:Frobnicate'" in page
    assert "nets.yaml:6)" in page and "identty.onnx matches no file" in page


def test_unproven_builds_leave_the_list_unproven(folder: Path, tracker: MemoryTracker):
    def unproven(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
        outcome = convert(model, config, tracker=tracker, experiment=experiment, tags=tags)
        return replace(outcome, verdict="unproven" if "conv_net" in model else outcome.verdict)

    for policy in ("fail", "report"):
        text = f"  - {{model: conv_net.onnx, policy: {{bad: {policy}}}}}\n  - model: identity.onnx\n"
        result = build_list(listed(folder, text), tracker=tracker, convert_one=unproven)

        assert (result.verdict, result.headline) == ("unproven", "1 good, 1 unproven")
        assert not result.failed and "- conv_net.onnx fp32 onnxruntime: unproven." in result.page()
        assert tracker.info(result.run_id).metrics["builds", "unproven"] == 1


def test_builds_and_summary_are_runs(folder: Path, tracker: MemoryTracker):
    result = build_list(listed(folder, "  - model: conv_net.onnx\n"), tracker=tracker, tags={"night": "1"})

    (build,) = tracker.find("conv_net")
    (summary,) = tracker.find("nets")
    assert (result.run_id, result.builds[0].run_id) == (summary.id, build.id)
    assert (summary.tags["trtops.kind"], summary.verdict, summary.tags["night"]) == ("build_list", "good", "1")
    assert summary.metrics["builds", "good"] == 1 and summary.metrics["builds", "failed"] == 0
    assert build.tags["night"] == "1"
    stored = tracker.load(summary.id)
    assert BuildListResult.from_json(stored.read_bytes("build_list.json")).builds == result.builds
    assert "| conv_net.onnx | onnxruntime | FP32 | good |" in result.page()


def test_library_crashes_are_errors_of_one_build(folder: Path, tracker):
    def broken(model: str, *rest: object):
        if "conv" in model:
            raise ZeroDivisionError("a defect")
        raise KeyboardInterrupt

    text = "  - model: conv_net.onnx\n"
    result = build_list(listed(folder, text), tracker=tracker, convert_one=broken)
    assert result.builds[0].reasons[0] == "ZeroDivisionError: a defect"

    with pytest.raises(KeyboardInterrupt):
        build_list(listed(folder, text + "  - model: identity.onnx\n"), tracker=tracker, convert_one=broken)
    assert tracker.find("nets")[0].status in ("failed", "killed")


def test_new_models_are_found_by_content(folder: Path, tracker: MemoryTracker):
    assert outcomes(watch(folder, tracker)) == {"conv_net": "good", "identity": "good"}

    for file in folder.glob("*.onnx"):
        os.utime(file, (1, 1))
    (folder / "conv_net.onnx").rename(folder / "renamed.onnx")
    again = watch(folder, tracker)
    assert outcomes(again) == {"identity": "skipped", "renamed": "skipped"}
    assert (again.headline, again.run_id) == ("2 skipped", "")
    assert "2 skipped: The tracking store has it." in again.page()

    models.transformer().fixed().write(folder, "identity")
    assert outcomes(watch(folder, tracker)) == {"identity": "good", "renamed": "skipped"}


def test_failed_builds_are_repeated_up_to_limit(folder: Path, tracker: MemoryTracker, clock: Clock):
    (folder / "identity.onnx").write_bytes(b"no model")
    config = BuildListConfig(only_new=True, attempts=2)

    for count in (1, 2, 2, 2):
        result = watch(folder, tracker, config)
        assert (outcomes(result)["identity"], result.verdict) == ("error", "bad")
        assert result.headline.endswith("): identity") and "Broken since 2030-01-01" in result.page()
        [broken] = result.failed
        assert tracker.find("identity")[0].id == broken.run_id and len(tracker.find("identity")) == count
    assert result.run_id == ""  # nothing was built
    clock.days += 1
    watch(folder, tracker, config)
    assert len(tracker.find("identity")) == 3


FAILURES: dict[str, BaseException] = {
    "no kernel": errors.EngineBuildError("Op 'custom:Frobnicate' has no kernel"),
    "defect": ZeroDivisionError("a defect"),
    "store away": errors.TrackingUnavailableError("the store does not answer"),
    "disk full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "disk full in the builder": errors.EngineBuildError(f"cannot write: {os.strerror(errno.ENOSPC)}"),
    "interrupted": KeyboardInterrupt(),
    "killed": KeyboardInterrupt(),  # without an end of its run
}
BROKEN, TRANSIENT = ("bad", "unproven", *[*FAILURES][:2]), [*FAILURES][2:]


class Nights:
    """Four models in a folder, and a stand-in for the builder with known outcomes."""

    def __init__(self, folder: Path, tracker: MemoryTracker, clock: Clock) -> None:
        self.folder, self.tracker, self.clock = folder, tracker, clock
        self.states: dict[str, str] = {}  # by content: a verdict, or a failure
        self.transient: dict[str, str] = {}  # failures of this visit, by model
        self.seen: dict[str, list[tuple[str, int, str, str]]] = {f"net{number}": [] for number in range(4)}

    def content(self, name: str) -> str:
        return (self.folder / f"{name}.onnx").read_text()

    def write(self, name: str, state: str) -> None:
        content = f"version {len(self.states)}"
        self.states[content] = state
        (self.folder / f"{name}.onnx").write_text(content)

    def convert(self, model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
        name, content = Path(model).stem, Path(model).read_text()
        state = self.transient.get(name, self.states[content])
        run = self.tracker.start(experiment, name, kind="build", tags=tags)
        if state == "killed":  # nothing ends the run
            run.set_tags({Tag.OWNER: replace(owner.current(), pid=1 << 22, started=0).text()})
            raise KeyboardInterrupt
        if state not in TRANSIENT:
            self.seen[name].append((state, self.clock.days, content, run.id))
        if state in FAILURES:
            run.fail(FAILURES[state])
            raise copy(FAILURES[state])  # without the traceback, which would grow
        run.set_tags({Tag.HEADLINE: f"it is {state}"})
        run.finish(state)  # type: ignore[arg-type]
        facts = {"url": "", "called": "FP32", "reused_from": None, "engine_bytes": 1, "reasons": (f"it is {state}",)}
        return SimpleNamespace(verdict=state, run_id=run.id, evaluation=SimpleNamespace(latency=None), **facts)

    def visit(self, only_new: bool) -> BuildListResult:
        models = folder_list(self.folder, "*.onnx", ListedModel(model="", policy=Policy(isolated=False)))
        return build_list(models, BuildListConfig(only_new=only_new), tracker=self.tracker, convert_one=self.convert)

    def check(self, build: BuildOutcome) -> None:
        """Whether the history of a broken build is true."""
        seen = self.seen[Path(build.model).stem]
        streak = [*itertools.takewhile(lambda entry: entry[0] != "good", reversed(seen))]
        good = seen[-len(streak) - 1] if len(seen) > len(streak) else None
        _, night, content, _ = streak[-1]
        text = " ".join(build.reasons)
        since = datetime.fromtimestamp(START + 86400 * night, timezone.utc)
        assert f"Broken since {since:%Y-%m-%d} 00:" in text
        assert ("No good run of it is known here." if good is None else f"Last good: run {good[3][:8]} of ") in text
        changes = "the model's bytes" if good and good[2] != content else "nothing that is recorded"
        assert good is None or f"Changed in between: {changes}." in text
        assert build.run_id == streak[0][3] and (f"is {seen[-1][0]}" in text or seen[-1][0] in FAILURES)


@pytest.mark.parametrize("only_new", [True, False])
def test_no_broken_model_is_hidden(only_new: bool, tmp_path: Path, tracker: MemoryTracker, clock: Clock, monkeypatch):
    """Many nights: models break, are repaired, reverted and copied, and builds fail for transient reasons."""
    monkeypatch.setattr("trtops.backend.environment.git_commit", lambda: None)  # takes half of the time
    random, nights = np.random.default_rng(only_new), Nights(tmp_path, tracker, clock)
    for name in nights.seen:
        nights.write(name, "good")
    verdicts = Counter[str]()
    for clock.days in range(amount(100, in_every_run=40)):
        for name in random.choice([*nights.seen], 2, replace=False):
            change = random.integers(6)
            if change < 4:
                nights.write(name, "good" if change else random.choice(BROKEN))
            elif change == 4:  # an earlier version of any model
                (tmp_path / f"{name}.onnx").write_text(random.choice([*nights.states]))
            elif nights.states[nights.content(name)] != "good" or not only_new:  # the cause is not in the file
                nights.states[nights.content(name)] = random.choice(("good", *BROKEN))
        for is_last in (False, True):
            hit = [name for name in nights.seen if not is_last and random.random() < 0.3]
            nights.transient = {name: random.choice(TRANSIENT) for name in hit}
            with suppress(KeyboardInterrupt):
                result = nights.visit(only_new)
                for build in result.builds:
                    state = nights.states[nights.content(Path(build.model).stem)]
                    assert state == "good" or build.outcome not in ("good", "skipped"), build
        for build in result.builds:
            state = nights.states[nights.content(Path(build.model).stem)]
            assert (build.outcome in ("good", "skipped")) == (state == "good"), build
            if state != "good":
                nights.check(build)
                assert f"- {Path(build.model).name} fp32 onnxruntime: " in result.page() and not build.transient
        states = {nights.states[nights.content(name)] for name in nights.seen}
        expected = "bad" if states - {"good", "unproven"} else "unproven" if "unproven" in states else "good"
        assert result.verdict == expected
        verdicts[result.verdict] += 1
        shown = board(tracker=tracker, nights=3)
        current_states = {name: nights.states[nights.content(name)] for name in nights.seen}
        broken = {name: "error" if state in FAILURES else state for name, state in current_states.items()}
        assert {Path(row.last.model).stem: row.last.outcome for row in shown.rows} == broken
        assert shown.verdict == expected and max(len(row.nights) for row in shown.rows) <= 3
    assert min(verdicts[verdict] for verdict in ("good", "bad", "unproven")) > 1


def test_missing_model_is_on_the_board(tmp_path: Path, tracker: MemoryTracker, clock: Clock):
    nights = Nights(tmp_path, tracker, clock)
    nights.write("net0", "good")
    models = listed(tmp_path, "  - {model: net0.onnx, policy: {isolated: false}}\n")

    for clock.days, verdict in enumerate(("good", "bad", "good")):
        if verdict == "bad":
            (tmp_path / "net0.onnx").rename(tmp_path / "moved")
        elif clock.days:
            (tmp_path / "moved").rename(tmp_path / "net0.onnx")
        for _ in range(3):
            build_list(models, NEW, tracker=tracker, convert_one=nights.convert)
        assert board(tracker=tracker).verdict == verdict
    assert len(tracker.find(tags={Tag.KIND: "build_list"})) == 3  # a visit that finds nothing new leaves none
    board(tracker=tracker, output=tmp_path / "board.html")
    assert "✓!✓" in (tmp_path / "board.html").read_text()
    with tracked(tracker, "nets", "damaged", kind="build_list") as run:
        run.log_text("{", "build_list.json")
    damaged = board(tracker=tracker)
    assert (damaged.verdict, len(damaged.rows)) == ("unproven", 1)


@pytest.mark.parametrize("failure", TRANSIENT)
def test_transient_failures_are_not_the_models(failure: str, tmp_path: Path, tracker: MemoryTracker, clock: Clock):
    nights = Nights(tmp_path, tracker, clock)
    nights.write("net0", "good")
    nights.transient = {"net0": failure}
    for count in range(1, 6):
        with suppress(KeyboardInterrupt):
            result = nights.visit(only_new=True)
            assert (result.verdict, result.failed[0].transient) == ("error", True) and "Broken" not in result.page()
        limit = 3 if failure in ("interrupted", "killed") else 5  # its process may be killed because of the model
        assert len(tracker.find("net0")) == min(count, limit)
    nights.transient, clock.days = {}, 1
    assert nights.visit(only_new=True).verdict == "good"
    nights.write("net0", "bad")
    count = len(tracker.find("net0"))
    assert [nights.visit(only_new=True).verdict for _ in range(3)] == ["bad"] * 3
    assert len(tracker.find("net0")) == count + 1  # evaluated once a day


def test_files_and_builds_in_progress_are_skipped(folder: Path, tracker: MemoryTracker):
    os.utime(folder / "identity.onnx", (time.time() - 3600,) * 2)
    result = watch(folder, tracker, BuildListConfig(only_new=True, settle_seconds=600))
    assert outcomes(result) == {"conv_net": "skipped", "identity": "good"}

    seen: list[str] = []

    def build(model: str, config, experiment: str, tags):
        with pytest.raises(ZeroDivisionError), tracked(tracker, experiment, "r", kind="build", tags=tags):
            seen.append(outcomes(watch(folder, tracker))["conv_net"])
            raise ZeroDivisionError
        raise errors.BackendError("enough")

    entry = ListedModel(model="", policy=Policy(isolated=False))
    build_list(folder_list(folder, "conv_net.onnx", entry), NEW, tracker=tracker, convert_one=build)

    assert seen == ["skipped"]


def test_machines_with_equal_paths_stay_apart(tmp_path: Path, tracker: MemoryTracker, clock: Clock, monkeypatch):
    nights = Nights(tmp_path, tracker, clock)
    nights.write("net0", "good")
    for host, verdict in (("a", "good"), ("b", "bad")) * 3:
        environment = SimpleNamespace(backend_version=f"1.{host}", build_digest=lambda host=host: host)
        monkeypatch.setattr("platform.node", lambda host=host: host)
        backend = SimpleNamespace(environment=Mock(return_value=environment))
        monkeypatch.setattr("trtops.ops.engines.build_list.engine_backend", Mock(return_value=backend))
        nights.transient = {"net0": verdict}
        assert nights.visit(only_new=True).verdict == verdict
    assert len(tracker.find("net0")) == 2
    assert sorted(row.last.outcome for row in board(tracker=tracker).rows) == ["bad", "good"]


def test_entries_with_other_options_stay_apart(tmp_path: Path, tracker: MemoryTracker, clock: Clock):
    nights = Nights(tmp_path, tracker, clock)
    nights.write("net0", "good")
    text = "".join(f"  - {{model: net0.onnx, iterations: {count}}}\n" for count in (1, 2))

    def convert_one(model: str, config: ConvertConfig, *rest: object) -> ConvertResult:
        nights.transient = {"net0": "bad" if config.check.iterations == 2 else "good"}
        return nights.convert(model, config, *rest)

    for _ in range(3):
        result = build_list(listed(tmp_path, text), NEW, tracker=tracker, convert_one=convert_one)
        assert [build.failed for build in result.builds] == [False, True]
    assert len(tracker.find("net0")) == 2
    assert [row.last.outcome for row in board(tracker=tracker).rows] == ["bad", "good"]
