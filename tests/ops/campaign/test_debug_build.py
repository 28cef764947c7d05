"""Campaigns on real ONNX Runtime and a real store: culprits found, proved, pinned, avoided; and crashes, hangs and
kills."""

import dataclasses
import gc
import os
import platform
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests import models
from tests.campaigns import FAST, GELUS, config, of_one_node
from tests.dying import run_until_spent, seconds_of
from tests.forking import ForkedProcess
from tests.long_runs import amount
from tests.waiting import workers_time_out_when
from trtops import errors
from trtops.backend.base import Engine
from trtops.cli.main import main
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import CampaignProgress, DebugBuildResult, debug_build
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, diff_tactics
from trtops.ops.campaign.iteration import CampaignBuilder
from trtops.ops.campaign.open_campaign import open_campaign
from trtops.ops.campaign.prove import ProofTrial, ProveConfig, conclude, prove
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.deny import deny, deny_list, pardon
from trtops.ops.search.command import CommandCheck
from trtops.spec import Environment, OnnxRuntimeOptions
from trtops.system.locks import held
from trtops.system.worker import close_workers
from trtops.tactics.table import CampaignTable
from trtops.tracking import campaigns
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag


@pytest.fixture(scope="module")
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture(scope="module")
def decided(model: Path, data: Path, tracker: MemoryTracker) -> tuple[DebugBuildResult, list[CampaignProgress]]:
    """A campaign that ran until it was decided, and its progress."""
    reports: list[CampaignProgress] = []
    return debug_build(model, config(data, bisect=False), tracker=tracker, progress=reports.append), reports


def test_campaign_confirms_only_the_approximation(decided) -> None:
    result, reports = decided

    [culprit] = result.diff.confirmed
    assert {(c.layer, c.choice) for c in culprit.choices} == {(layer, FAST) for layer in GELUS}
    assert ("GeluApproximation", "on") in culprit.settings  # what decides them
    assert result.diff.explanation.clauses == ((0,),)
    assert result.verdict == "bad" and result.good > 0 and result.bad > 0 and result.errors == 0
    assert [p.done for p in reports] == list(range(result.iterations + 1))
    assert (reports[-1].good, reports[-1].bad) == (result.good, result.bad)
    assert not any(p.diff.decided for p in reports[:-1])


def test_iterations_are_complete_runs(decided, tracker) -> None:
    result, _ = decided

    runs = tracker.find("blocks", parent=result.run_id, tags={Tag.KIND: "iteration"})
    parent = tracker.load(result.run_id)
    assert sorted(int(info.tags[Tag.ITERATION]) for info in runs) == list(range(result.iterations))
    assert Counter(info.verdict for info in runs) == {"good": result.good, "bad": result.bad}
    for info in runs:
        held_ = {entry.path for entry in tracker.load(info.id).manifest.artifacts}
        assert held_ >= {
            "engine/engine.ort", "tactics/replay.json", "tactics/layers.json", "caches/timing.cache",
            "accuracy/results.json", "spec.json", "environment.json", "build.log",
        }  # fmt: skip
        assert info.params["options.tactic_seed"] == info.tags[Tag.ITERATION]
        assert ("build", "seconds") in info.metrics and ("error", "max_abs") in info.metrics
        step = f"trtops runs promote {info.id}" if info.verdict == "good" else "trtops debug accuracy "
        assert step in info.tags[Tag.NOTE]
    assert {entry.path for entry in parent.manifest.artifacts} >= {
        Artifact.CAMPAIGN, Artifact.CAMPAIGN_TABLE, Artifact.GOLDEN, Artifact.DIFF, Artifact.DIFF_PAGE,
        Artifact.CAMPAIGN_RESULT, "model/blocks.onnx",
    }  # fmt: skip


def test_builds_that_drew_tactics_are_counted(model, data) -> None:
    own_tracker = MemoryTracker()
    result = debug_build(model, config(data, random_tactics=False, max_iterations=2), tracker=own_tracker)

    runs = own_tracker.find("blocks", parent=result.run_id, tags={Tag.KIND: "iteration"})
    assert [info.params.get("options.tactic_seed") is None for info in runs].count(False) == result.drawn == 1
    assert "Tactics of 1 were drawn at random; timing may never choose them." in result.page()


def test_proof_confirms_and_denies_the_culprit(decided, model, data, tracker) -> None:
    result, _ = decided

    proved = prove(result.run_id, ProveConfig(repeats=2), tracker=tracker)

    assert proved.outcome == "confirmed" and "2 of 2 bad" in proved.summary
    controls, swaps = [("good as it was", "good"), ("bad as it was", "bad")], [("in", "bad"), ("out", "good")]
    assert [(t.swap, t.verdict) for t in proved.trials] == controls + 2 * swaps
    assert all(t.followed and not t.also_changed for t in proved.trials)
    assert {info.id for info in tracker.find("blocks", parent=proved.run_id)} == {t.run_id for t in proved.trials}

    # Later builds keep off it, and say so; until somebody pardons it.
    # The model's own limits find these builds bad as well, so it is denied without a request.
    assert proved.backend == "onnxruntime" and proved.denied and not proved.own_limits
    assert f"trtops runs pardon {proved.deny_run}" in proved.page()
    entry = tracker.info(proved.deny_run)
    assert entry.tags[Tag.EVIDENCE] == proved.run_id
    again_config = config(data, until=5, use_deny_list=True)
    again = debug_build(model, again_config, tracker=tracker, experiment="avoided")
    assert (again.good, again.bad) == (5, 0)
    logs = [
        tracker.load(info.id).read_bytes(Artifact.BUILD_LOG).decode()
        for info in tracker.find("avoided", tags={Tag.KIND: "iteration"})
    ]
    assert any(
        f"denied by run {proved.deny_run} (`trtops runs pardon" in log and "taking the next" in log for log in logs
    )
    drawn = again_config.build_of(int(tracker.info(proved.bad_run).tags[Tag.ITERATION]))
    as_bad = ConvertConfig(build=drawn, check=again_config.check)  # draws what the bad iteration drew
    avoiding = convert(model, as_bad, tracker=tracker, experiment="avoided")
    converted = tracker.load(avoiding.run_id)
    assert FAST not in converted.read_bytes(Artifact.TACTICS).decode()
    left_out = f"{FAST} of one/e4 is denied by run {proved.deny_run} (`trtops runs pardon` with this run allows it)"
    assert f"1 setting left out: {left_out}" in avoiding.page()
    assert "1 choice left out, since denied" in avoiding.evaluation.evidence.sentence()
    assert left_out in converted.info.params["evidence.denied"]
    reused = convert(model, as_bad, tracker=tracker, experiment="avoided")
    assert reused.reused_from == avoiding.run_id and reused.left_out == avoiding.left_out

    pardon(proved.deny_run, tracker=tracker, why="the tolerance was too strict")
    assert deny_list(tracker, Environment.from_json(converted.read_bytes(Artifact.ENVIRONMENT))).entries == ()
    free = convert(model, as_bad, tracker=tracker, experiment="avoided")
    assert FAST in tracker.load(free.run_id).read_bytes(Artifact.TACTICS).decode()


def test_own_limits_deny_nothing_without_a_request(decided, model, data, tracker) -> None:
    result, _ = decided
    campaign = open_campaign(tracker, result.run_id)
    runs = tracker.find("blocks", parent=result.run_id, tags={Tag.KIND: "iteration"})
    good, bad = (tracker.load(next(i.id for i in runs if i.verdict == verdict)) for verdict in ("good", "bad"))

    builder = CampaignBuilder(campaign, tracker)
    assert builder.bad_by_default_limits(bad)
    assert not CampaignBuilder(campaign, tracker, print).bad_by_default_limits(bad)
    # A good build stands for one that nothing but limits of one's own would find bad.
    assert not builder.bad_by_default_limits(good)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CampaignBuilder, "bad_by_default_limits", lambda *_: False)
        proved = prove(result.run_id, ProveConfig(repeats=1), tracker=tracker)
    close_workers()
    environment = Environment.from_json(bad.read_bytes(Artifact.ENVIRONMENT))
    assert proved.own_limits and proved.deny_run is None and deny_list(tracker, environment).entries == ()
    assert f"trtops runs deny {proved.run_id}" in proved.page()
    requested = deny(proved.run_id, tracker=tracker)
    assert [entry.evidence for entry in deny_list(tracker, environment).entries] == [proved.run_id]
    pardon(requested.run_id, tracker=tracker, why="a test")


def test_cleared_suspect_is_refuted(decided, tracker) -> None:
    result, _ = decided
    cleared = next(
        i
        for i, suspect in enumerate(result.diff.suspects)
        if {name for name, _ in suspect.settings} == {"MatMulScaleFusion"}
    )

    proved = prove(result.run_id, ProveConfig(suspect=cleared, repeats=1), tracker=tracker)

    assert proved.outcome == "refuted" and proved.deny_run is None
    with pytest.raises(errors.ConfigError, match="only confirmed culprits can be denied"):
        deny(proved.run_id, tracker=tracker)


def test_diff_of_all_sources_agrees(decided, tracker, tmp_path: Path) -> None:
    result, _ = decided
    for info in tracker.find("blocks", parent=result.run_id, tags={Tag.KIND: "iteration"}):
        verdict_folder = tmp_path / info.verdict
        verdict_folder.mkdir(exist_ok=True)
        (verdict_folder / f"{info.id}.json").write_bytes(tracker.load(info.id).read_bytes(Artifact.TACTICS))

    by_run = diff_tactics(DiffTacticsConfig(runs=(result.run_id,)), tracker=tracker)
    by_experiment = diff_tactics(
        DiffTacticsConfig(experiment="blocks", tags={"trtops.kind": "iteration"}), tracker=tracker
    )
    by_folder = diff_tactics(DiffTacticsConfig(folder=str(tmp_path)), tracker=tracker)
    by_files = diff_tactics(
        DiffTacticsConfig(good=str(tmp_path / "good"), bad=str(tmp_path / "bad")), tracker=tracker, experiment="files"
    )

    assert by_run.diff == result.diff
    assert tracker.info(by_run.run_id).parent == result.run_id
    assert by_experiment.builds == result.iterations  # proofs' builds were prescribed and do not count
    assert by_experiment.diff.confirmed[0].choices == result.diff.confirmed[0].choices
    # Files have no order of arrival, but name the same suspect.
    assert by_folder.diff == by_files.diff and not by_folder.diff.ordered
    assert {(c.layer, c.choice) for c in by_folder.diff.suspects[0].choices} == {(layer, FAST) for layer in GELUS}
    assert by_files.experiment == "files" and by_folder.experiment == "tactics"


def test_diff_needs_one_source(tracker) -> None:
    with pytest.raises(errors.ConfigError, match="one source"):
        DiffTacticsConfig()
    with pytest.raises(errors.ConfigError, match="one source"):
        DiffTacticsConfig(runs=("a",), folder="b")
    with pytest.raises(errors.ConfigError, match="no evaluated build"):
        diff_tactics(DiffTacticsConfig(experiment="empty"), tracker=tracker)
    with pytest.raises(errors.RunNotFoundError):
        diff_tactics(DiffTacticsConfig(runs=("0" * 32,)), tracker=tracker)


@pytest.mark.parametrize("until", ["good", "bad"])
def test_campaign_stops_at_first_verdict(model, data, until: str) -> None:
    reports: list[CampaignProgress] = []

    result = debug_build(model, config(data, until=until), tracker=MemoryTracker(), progress=reports.append)

    assert getattr(result, until) == 1
    assert reports[-1].last.verdict == until
    assert result.diff.summary


def test_campaign_stops_at_its_limit(model, data) -> None:
    exact = dataclasses.replace(config(data).build, options=OnnxRuntimeOptions(intra_op_threads=1))

    result = debug_build(model, config(data, build=exact, max_iterations=4), tracker=MemoryTracker())

    assert (result.verdict, result.iterations, result.diff.conclusion) == ("good", 4, "no bad builds")


def test_last_build_starts_within_the_time_limit(model, data, monkeypatch: pytest.MonkeyPatch) -> None:
    late, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])

    def evaluate(engine: Engine) -> bool:
        late[0] += 60
        return b"FastGelu" not in engine.plan

    result = debug_build(model, config(data, max_minutes=6.5), tracker=MemoryTracker(), evaluate=evaluate)

    assert result.mixtures and result.iterations + result.mixtures == 7


@pytest.mark.usefixtures("children")
def test_crash_and_hang_are_error_verdicts(model, data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The data script runs in the child that builds; golden outputs are made here, where it does nothing.
    script = tmp_path / "loader.py"
    script.write_text(
        f"""
import os, sys, time
import numpy as np
def load_data():
    if os.getpid() != {os.getpid()}:
        with open({str(tmp_path / "calls")!r}, "a") as file:
            file.write("x")
        call = os.path.getsize({str(tmp_path / "calls")!r})
        if call == 2:
            print("about to crash", flush=True)
            os.abort()
        if call == 3:
            print("about to hang", flush=True)
            open({str(tmp_path / "hanging")!r}, "w").close()
            time.sleep(3600)
    with np.load({str(data)!r}) as feed:
        return [dict(feed)]
"""
    )
    memory = MemoryTracker()
    check = dataclasses.replace(config(data).check, data=str(script))
    hanging = tmp_path / "hanging"

    def hangs() -> bool:
        begun = hanging.exists()
        hanging.unlink(missing_ok=True)
        return begun

    workers_time_out_when(monkeypatch, hangs)

    result = debug_build(model, config(data, check=check, until=4, timeout_seconds=15.0), tracker=memory)

    runs = {int(i.tags[Tag.ITERATION]): i for i in memory.find("blocks", tags={Tag.KIND: "iteration"})}
    assert [runs[n].verdict == "error" for n in range(4)] == [False, True, True, False]
    assert result.errors == 2 and result.iterations == 4
    assert "Aborted" in runs[1].tags[Tag.ERROR] and "about to crash" in runs[1].tags[Tag.ERROR]
    assert "did not finish within 15 s" in memory.load(runs[2].id).read_bytes(Artifact.BUILD_LOG).decode()
    assert set(result.diff.errors) == {runs[1].id, runs[2].id}
    assert all(info.status == "finished" for info in runs.values())


def test_command_evaluates_by_code_and_output(model, data) -> None:
    # The engine of a build with the approximation names the op; what names neither GELU is another failure.
    evaluate = (
        "import sys; plan = open(sys.argv[1], 'rb').read(); "
        "sys.exit(print('approximate') or 1 if b'FastGelu' in plan else 0 if b'BiasGelu' in plan else 3)"
    )
    command = CommandCheck(
        command=(sys.executable, "-c", evaluate, "{engine}"), fail_regex=("approx",), fail_codes=(1,)
    )
    memory = MemoryTracker()

    with pytest.raises(
        errors.ConfigError, match=r"debug_build with a command does not use check.tolerances=Tolerances"
    ):
        config(data, command=command)
    check = CheckConfig(data=str(data))
    result = debug_build(model, config(data, check=check, command=command, until=8), tracker=memory)

    runs = memory.find("blocks", tags={Tag.KIND: "iteration"})
    for info in runs:
        plan = memory.load(info.id).read_bytes("engine/engine.ort")
        expected = "bad" if b"FastGelu" in plan else "good" if b"BiasGelu" in plan else "error"
        assert info.verdict == expected
    assert result.good + result.bad + result.errors == 8
    assert memory.peek(result.run_id, Artifact.GOLDEN) is None  # not requested


def test_python_callable_evaluates_engines(model, data) -> None:
    answers = iter([True, False, "error"])
    memory = MemoryTracker()

    result = debug_build(model, config(data, until=3), tracker=memory, evaluate=lambda engine: next(answers))

    assert (result.good, result.bad, result.errors) == (1, 1, 1)
    with pytest.raises(errors.ConfigError, match="answered 7"):
        debug_build(model, config(data, until=1), tracker=memory, evaluate=lambda engine: 7, experiment="seven")
    assert {info.status for info in memory.find("seven")} == {"failed"}


def test_bad_machine_is_named_while_the_campaign_runs(model, data, monkeypatch) -> None:
    hosts = iter("ab" * 20)
    monkeypatch.setattr(campaigns, "made_on", lambda info: next(hosts))
    answers = iter([True, False] * 20)

    result = debug_build(model, config(data, until=16), tracker=MemoryTracker(), evaluate=lambda engine: next(answers))

    assert (result.good, result.bad) == (8, 8) and not result.diff.confirmed
    assert result.diff.confounder.endswith("0 of 8 bad in a, 8 of 8 bad in b.")


def test_resume_may_extend_but_not_change_builds(model, data) -> None:
    memory = MemoryTracker()
    with pytest.raises(KeyboardInterrupt):  # after three builds
        progress = Mock(side_effect=[None, None, None, KeyboardInterrupt])
        debug_build(model, config(data, until=5), tracker=memory, progress=progress)
    [parent] = memory.find("blocks", tags={Tag.KIND: "debug_build"})
    first = {i.id for i in memory.find("blocks", parent=parent.id, status="finished")}

    with pytest.raises(errors.ConfigError, match="nothing that decides a build"):
        debug_build(resume=parent.id, config=config(data, seed=7), tracker=memory)
    result = debug_build(resume=parent.id, config=config(data, until=6), tracker=memory)

    whole = {i.id for i in memory.find("blocks", parent=parent.id, status="finished")}
    assert len(first) == 3 and first < whole and len(whole) == 6
    assert result.run_id == parent.id and result.iterations == 6
    assert debug_build(resume=parent.id, tracker=memory) == result  # ended: nothing to do


def test_resume_needs_the_same_model_and_the_lock(model, data, tmp_path: Path) -> None:
    memory = MemoryTracker()
    with pytest.raises(errors.ConfigError):
        debug_build(model, config(data, until=1), tracker=memory, evaluate=lambda engine: None)
    [parent] = memory.find("blocks", tags={Tag.KIND: "debug_build"})
    other = models.conv_net().write(tmp_path, "other")

    with held(f"campaign {parent.id}"), pytest.raises(errors.LogError, match="working on"):
        debug_build(resume=parent.id, tracker=memory)
    with pytest.raises(errors.ConfigError, match="digest"):
        debug_build(other, resume=parent.id, tracker=memory)
    with pytest.raises(errors.ConfigError, match="No model"):
        debug_build(tracker=memory)


def trial(swap: str, verdict: str, **fields: object) -> ProofTrial:
    return ProofTrial(swap=swap, run_id="r", verdict=verdict, **({"followed": True} | fields))  # type: ignore[arg-type]


SOUND, BROKEN = trial("good as it was", "good"), trial("bad as it was", "bad")


@pytest.mark.parametrize(
    ("trials", "outcome", "words"),
    [
        ([trial("in", "bad"), trial("out", "good")], "confirmed", "1 of 1 bad"),
        ([trial("in", "bad"), trial("out", "bad")], "confirmed", "something else wrong as well"),
        ([trial("in", "good"), trial("out", "bad")], "refuted", "0 of 1 bad"),
        ([trial("in", "good"), trial("out", "good")], "not isolable", "only together"),
        ([trial("in", "error", reason="mismatch"), trial("out", "good")], "not isolable", "mismatch"),
        ([trial("in", "bad", followed=False), trial("out", "good")], "not isolable", "not followed"),
        ([trial("in", "bad", also_changed=("gelu",)), trial("out", "good")], "not isolable", "was not swapped alone"),
        ([trial("in", "bad"), trial("in", "good"), trial("out", "good")], "not isolable", "check repeatable"),
        ([trial("good as it was", "bad"), trial("in", "bad")], "not isolable", "do not decide the verdict"),
    ],
)
def test_conclusions_of_proofs(trials, outcome: str, words: str) -> None:
    conclusion, summary = conclude((*trials, SOUND, BROKEN))

    assert conclusion == outcome and words in summary


# Killed at any moment


def live(
    tracker: MlflowTracker, model: Path, campaign: DebugBuildConfig, resume: str | None, experiment: str = "killed"
) -> None:
    debug_build(None if resume else model, campaign, tracker=tracker, experiment=experiment, resume=resume)


def test_campaign_killed_at_random_gives_same_result(model, data, tmp_path: Path) -> None:
    tracker = MlflowTracker(tmp_path / "mlruns")
    kills = amount(20, in_every_run=1)
    campaign = config(data, until=2 * kills + 5, keep_model=False)
    undisturbed = debug_build(model, campaign, tracker=MemoryTracker(), experiment="killed")
    short = seconds_of(live, tracker, model, dataclasses.replace(campaign, until=1), None, "short")
    moments = random.Random(6)
    resume = None

    for _ in range(kills):
        run_until_spent(moments.uniform(0.0, 2.5 * short), live, tracker, model, campaign, resume)
        parents = tracker.find("killed", tags={Tag.KIND: "debug_build"})
        assert len(parents) <= 1
        resume = parents[0].id if parents else None
    result = debug_build(model, campaign, tracker=tracker, experiment="killed", resume=resume)

    runs = tracker.find("killed", parent=result.run_id)
    whole = [info for info in runs if info.status == "finished"]
    assert sorted(int(info.tags[Tag.ITERATION]) for info in whole) == list(range(campaign.until))
    assert {info.status for info in runs} <= {"finished", "killed"}
    assert {info.id for info in runs if info.status == "killed"} == set(result.interrupted)
    assert tracker.find("killed", status="running") == []
    assert all(info.tags[Tag.ERROR] for info in runs if info.status == "killed")
    assert tracker.info(result.run_id).status == "finished"
    assert (result.good, result.bad, result.diff) == (undisturbed.good, undisturbed.bad, undisturbed.diff)
    table = CampaignTable.from_bytes(tracker.load(result.run_id).read_bytes(Artifact.CAMPAIGN_TABLE))
    assert set(table.names) == {info.id for info in whole}


def test_campaign_leaves_no_garbage_in_memory(tmp_path: Path) -> None:
    counts: list[int] = []
    gc.collect()
    gc.disable()  # as on the command line, whose threshold is never reached

    try:
        debug_build(
            models.identity().write(tmp_path),
            of_one_node(5),
            tracker=MlflowTracker(tmp_path / "mlruns"),
            progress=lambda _: counts.append(len(gc.get_objects())),
        )
    finally:
        gc.enable()

    assert counts[5] - counts[3] < 1000  # it was 5,000


def test_closed_campaign_of_another_host_is_resumed(tmp_path: Path) -> None:
    """As a container is killed, and the next one has another host name and not the model's file."""
    tracker = MlflowTracker(tmp_path / "mlruns")
    model = models.identity().write(tmp_path)

    def live_and_die() -> None:
        platform.node = lambda: "container-1"

        def die(progress: CampaignProgress) -> None:
            if progress.done == 1:
                [run] = tracker.find("identity", tags={Tag.KIND: "debug_build"})
                tracker.start("identity", "iteration 1", kind="iteration", parent=run.id, tags={Tag.ITERATION: "1"})
                os.kill(os.getpid(), signal.SIGKILL)

        debug_build(model, dataclasses.replace(of_one_node(3), keep_model=True), tracker=tracker, progress=die)

    child = ForkedProcess(target=live_and_die)
    child.start()
    child.join()
    [run] = tracker.find("identity", tags={Tag.KIND: "debug_build"})
    assert (child.exitcode, run.status, run.tags[Tag.OWNER][-11:]) == (-signal.SIGKILL, "running", "container-1")
    with pytest.raises(errors.LogError, match=r"on container-1.*trtops runs close"):
        debug_build(resume=run.id, tracker=tracker)

    assert main(["runs", "close", run.id, "--force", "--store", str(tracker.store.root)]) == 0
    model.unlink()
    result = debug_build(resume=run.id, tracker=tracker, tags={Tag.PREFECT_FLOW_RUN: "second"})

    assert (result.iterations, result.good) == (3, 3)
    assert tracker.info(run.id).tags[Tag.PREFECT_FLOW_RUN] == "second"
    ends = sorted((info.tags[Tag.ITERATION], info.status) for info in tracker.find("identity", parent=run.id))
    assert ends == [("0", "finished"), ("1", "finished"), ("1", "killed"), ("2", "finished")]
    assert tracker.info(run.id).status == "finished" and tracker.find("identity", status="running") == []


def test_missing_table_rows_come_from_runs(model, data) -> None:
    memory = MemoryTracker()
    result = debug_build(model, config(data, until=4), tracker=memory)
    info = memory.info(result.run_id)
    whole = campaigns.iterations(memory, info).whole
    stored_run = memory._runs[result.run_id]
    written = CampaignTable.from_bytes(stored_run.artifacts[Artifact.CAMPAIGN_TABLE])

    first_two = CampaignTable()
    first_two.take(written, written.names[:2])
    for data_ in (None, b"damaged", first_two.to_bytes()):
        stored_run.artifacts.pop(Artifact.CAMPAIGN_TABLE, None)
        if data_ is not None:
            stored_run.artifacts[Artifact.CAMPAIGN_TABLE] = data_
        again = campaigns.table_of(memory, info, whole.values())
        assert again.names == written.names and list(again.verdicts) == list(written.verdicts)
        assert [again.choices[c] for c in again.codes.ravel()] == [written.choices[c] for c in written.codes.ravel()]
