"""Bisections of real campaigns on ONNX Runtime: only the culprit is confirmed, within a dozen builds."""

import dataclasses
import itertools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models
from tests.campaigns import config
from tests.forking import ForkedProcess
from tests.long_runs import amount
from tests.tactics.synthetic import record
from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.campaign import iteration
from trtops.ops.campaign.bisect import bisect, suspected_units
from trtops.ops.campaign.bisect_result import BisectConfig, BisectResult, Unit
from trtops.ops.campaign.bisection_planner import have_all, merge_culprits
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import DebugBuildResult, debug_build
from trtops.ops.campaign.mixture import Mixture
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.precision_check import PrecisionCheck
from trtops.ops.registry.deny import deny
from trtops.spec import BuildConfig, BuildSpec, TensorRTOptions
from trtops.system.worker import Worker
from trtops.tracking.base import StoredRun
from trtops.tracking.campaigns import load_record, load_table
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.tracker import MlflowRun
from trtops.tracking.schema import Artifact, Tag

# Of an engine that does not compute in the requested precision.
NARROW = PrecisionCheck(requested="int8", kernels=(("fp32", 4),))


@pytest.fixture(scope="module")
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture(scope="module")
def campaign(model: Path, data: Path, tracker: MemoryTracker) -> str:
    return debug_build(model, config(data, until=8), tracker=tracker).run_id


@pytest.fixture(scope="module")
def bisected(campaign: str, tracker: MemoryTracker) -> BisectResult:
    return bisect(*drawn_pair(campaign, tracker), tracker=tracker)


def drawn_pair(campaign: str, tracker: MemoryTracker) -> tuple[str, str]:
    """A good and a bad build that differ in several settings: the first two builds differ in one."""
    table = load_table(tracker, campaign)
    bad = table.named("bad")[0]
    good = [name for name in table.named("good") if table.names.index(name) > 1]
    return max(good, key=lambda name: len(Mixture(tracker.load(name), tracker.load(bad)).units)), bad


def is_right(result: BisectResult) -> bool:
    """Whether all culprits take part in approximating a GELU, which is what fails here."""
    names = {unit.name for culprit in result.culprits for unit in culprit.units}
    return bool(names) and names <= {"GeluApproximation", "GeluFusionL2", "BiasGeluFusion"}


def test_culprit_is_confirmed_and_logged(bisected, tracker):
    assert (bisected.outcome, bisected.verdict) == ("confirmed", "good")
    assert is_right(bisected) and len(bisected.trials) <= 12

    run = tracker.load(bisected.run_id)
    assert BisectResult.from_json(run.read_bytes(Artifact.BISECTION)).culprits == bisected.culprits
    assert {info.id for info in tracker.find(parent=bisected.run_id)} == {trial.run_id for trial in bisected.trials}
    assert run.info.tags[Tag.EVIDENCE] == f"{bisected.good_run} {bisected.bad_run}"


def test_page_says_how_chance_was_excluded(bisected):
    pages = {
        repeatability: dataclasses.replace(bisected, repeatability=repeatability).page()
        for repeatability in ("unknown", "repeats", "contradicted")
    }

    assert [repeatability for repeatability, page in pages.items() if "to the last bit" in page] == ["repeats"]
    assert [repeatability for repeatability, page in pages.items() if "no larger errors" in page] == ["contradicted"]


def test_confirmed_culprits_are_asked_first(bisected, tracker):
    again = bisect(bisected.good_run, bisected.bad_run, tracker=tracker)

    assert {unit.choice for unit in again.suspected} == {
        u.choice for culprit in bisected.culprits for u in culprit.units
    }
    assert again.culprits[0].units == bisected.culprits[0].units and bisected.suspected == ()
    names, others = {unit.name for unit in again.suspected}, again.units - len(again.suspected)
    assert any(set(t.taken) == names or (len(t.taken) == others and not names & set(t.taken)) for t in again.trials[:4])
    assert len(again.trials) <= len(bisected.trials) + 1 and "Asked first" in again.page()


@pytest.mark.parametrize(("of_first", "suspects"), [(1e-6, ["b"]), (1e-2, [])])
def test_first_diverging_tensor_is_asked_first(of_first, suspects):
    good, bad = dict.fromkeys("abc", 1e-6), {"a": of_first, "b": 1e-2, "c": 1e-2}
    infos = [SimpleNamespace(metrics={("error", n, "max_abs"): v for n, v in e.items()}) for e in (good, bad)]
    mixture: Any = SimpleNamespace(
        good=SimpleNamespace(info=infos[0]),
        bad=SimpleNamespace(info=infos[1]),
        bad_tactics=record(a="x", b="x", c="x"),
        units=tuple(Unit(kind="layer", name=name, good="y", bad="x") for name in "abc"),
    )

    assert [unit.name for unit in suspected_units(MemoryTracker(), mixture)] == suspects


@pytest.mark.parametrize("seed", range(amount(20, in_every_run=1)))
def test_until_decided_takes_a_dozen_builds(model, data, seed):
    result = debug_build(model, config(data, seed=seed), tracker=MemoryTracker())

    first = result.bisections[0]
    assert [c.describe() for c in first.culprits] == ["GeluApproximation=on"]
    assert 2 + len(first.trials) <= 12
    assert result.confirmed and all("GeluApproximation=on" in text for text in result.confirmed)


def test_timed_builds_of_one_verdict_draw_others(tmp_path: Path):
    # Blocked convolutions are always faster, and exact only to rounding.
    weights = {f"w{n}": models.random(16, i, 3, 3, seed=n, scale=0.3) for n, i in enumerate((3, 16))}
    proto = models.model(
        """(float[1,3,24,24] x) => (float[1,16,24,24] y) {
        c0 = Conv<pads = [1,1,1,1]>(x, w0)
        r0 = Relu(c0)
        y = Conv<pads = [1,1,1,1]>(r0, w1)
    }""",
        weights,
    )
    onnx.save(proto, tmp_path / "convolutions.onnx")
    check = CheckConfig(tolerances=Tolerances(atol=1e-12, rtol=0), plots="never", latency_runs=0)
    timed = DebugBuildConfig(check=check, max_iterations=20)

    result = debug_build(tmp_path / "convolutions.onnx", timed, tracker=MemoryTracker())

    assert result.confirmed == ("NchwcTransformer=on",)
    assert result.iterations <= 3 and result.iterations + result.mixtures <= 10


def test_culprit_can_be_denied_unless_good_too(bisected, campaign, tracker):
    table = load_table(tracker, campaign)
    (culprit,) = bisected.culprits
    have = have_all(table, culprit.units)

    if (have & table.with_verdict("good")).any():  # it needs something else, and does not fail by itself
        with pytest.raises(errors.ConfigError):
            deny(bisected.run_id, tracker=tracker)
        return
    entry = deny(bisected.run_id, tracker=tracker).entry
    assert entry.settings == tuple((unit.name, unit.bad) for unit in culprit.units)
    assert entry.evidence == bisected.run_id
    assert deny(bisected.run_id, tracker=tracker).entry.digest == entry.digest


def test_too_small_budget_is_undecided(campaign, tracker):
    result = bisect(campaign, config=BisectConfig(max_builds=2), tracker=tracker)

    assert (result.outcome, result.culprits, len(result.trials)) == ("undecided", (), 2)
    assert "larger budget" in result.summary and result.verdict == "bad"


def test_random_verdicts_confirm_nothing(campaign, tracker):
    rng = np.random.default_rng(5)

    result = bisect(campaign, tracker=tracker, evaluate=lambda engine: bool(rng.random() < 0.5))

    assert (result.outcome, result.culprits) == ("not repeatable", ())


def test_mixture_reports_request_and_outcome(campaign, tracker, bisected):
    mixture = Mixture(tracker.load(bisected.good_run), tracker.load(bisected.bad_run))
    everything, nothing = np.ones(len(mixture.units), bool), np.zeros(len(mixture.units), bool)

    for requested, run in ((everything, bisected.bad_run), (nothing, bisected.good_run)):
        record = load_record(tracker.load(run))
        outcome = mixture.outcome(requested, record)
        assert outcome.taken is not None and (outcome.taken == requested).all() and not outcome.strayed
        assert dict(mixture.request(requested).replay.settings).items() <= dict(record.settings).items()
    assert mixture.outcome(everything, None).taken is None
    assert set(mixture.outcome(everything, load_record(tracker.load(bisected.good_run))).strayed) == {
        unit.name for unit in mixture.units
    }


def test_unusable_pairs_are_refused(model, data, tracker, campaign, bisected):
    loose = dataclasses.replace(config(data).check, tolerances=Tolerances(atol=1.0, rtol=1.0))
    good = debug_build(model, config(data, check=loose, until=2, seed=1), tracker=tracker)

    with pytest.raises(errors.ConfigError, match="no bad build yet"):
        bisect(good.run_id, tracker=tracker)
    child = tracker.find(parent=good.run_id)[0].id
    with pytest.raises(errors.ConfigError, match="not builds of one campaign"):
        bisect(child, bisected.bad_run, tracker=tracker)
    with pytest.raises(errors.ConfigError, match="expected a good build"):
        bisect(bisected.bad_run, bisected.good_run, tracker=tracker)


@pytest.fixture(scope="module")
def undisturbed(model: Path, data: Path) -> DebugBuildResult:
    return debug_build(model, config(data, seed=200), tracker=MemoryTracker())


def dying_at(method: str, call: int, run: Callable[[], object], only: str = "") -> None:
    """Run a function in a child that is killed at a certain call of a method of MLflow's runs, before it does
    anything."""

    def die_there() -> None:
        left, original = call, getattr(MlflowRun, method)

        def die(run: MlflowRun, *args: Any, **options: Any) -> object:
            nonlocal left
            left -= not only or only in args
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(run, *args, **options)

        setattr(MlflowRun, method, die)
        run()

    child = ForkedProcess(target=die_there)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_kill_between_steps_builds_nothing_twice(model, data, tmp_path, undisturbed):
    store = MlflowTracker(tmp_path / "mlruns")

    def on(resume: str | None = None) -> Callable[[], None]:
        where = {"tracker": store, "experiment": "killed", "resume": resume}
        return lambda: debug_build(None if resume else model, config(data, seed=200), **where)

    dying_at("_end", 2, on())  # a build of the campaign that is whole and has no end
    (campaign,) = store.find("killed", tags={Tag.KIND: "debug_build"})
    dying_at("log_json", 1, on(campaign.id), Artifact.BISECTION_PLAN)  # a bisection that has not begun
    dying_at("_end", 2, on(campaign.id))  # a mixture
    dying_at("_end", len(undisturbed.bisections[0].trials) - 1, on(campaign.id))  # the bisection itself
    result = debug_build(resume=campaign.id, tracker=store)

    assert way_of(result) == way_of(undisturbed)
    assert debug_build(resume=result.run_id, tracker=store) == result  # ended: nothing to do
    for bisection in result.bisections:
        assert bisect(bisection.run_id, tracker=store) == bisection
    runs = store.find("killed")
    assert Counter((i.kind, i.status) for i in runs) == {
        ("debug_build", "finished"): 1,
        ("iteration", "finished"): result.iterations + result.mixtures,
        ("bisect", "finished"): len(result.bisections),
        ("bisect", "killed"): 1,
    }


@pytest.mark.usefixtures("children")
def test_later_builds_avoid_the_culprit(model, data, monkeypatch):
    tracker, starts, start_child = MemoryTracker(), list[Worker](), Worker._start_child
    monkeypatch.setattr(Worker, "_start_child", lambda worker: starts.append(worker) or start_child(worker))

    result = debug_build(model, config(data, seed=200, complete=True, clean_builds=6), tracker=tracker)

    assert len(starts) == 1  # iterations and bisections share a child
    seen = load_table(tracker, result.run_id)
    culprits, first = merge_culprits(result.bisections), result.bisections[0]
    after = 1 + max(seen.names.index(name) for name in (first.good_run, first.bad_run))
    held = np.logical_or.reduce([culprit.is_in(seen) for culprit in culprits])
    assert len(culprits) == 1 and held[:after].any()
    assert len(seen) > after and not held[after:].any()
    assert seen.named("bad") == tuple(name for name, has in zip(seen.names, held) if has)
    assert result.good >= 6


@pytest.fixture(scope="module")
def at_times_narrow(model: Path, data: Path) -> tuple[MemoryTracker, str]:
    """A campaign, where half of the builds does not compute in the requested precision."""
    fine = PrecisionCheck(requested="fp32", kernels=())
    tracker, drawn = MemoryTracker(), itertools.cycle([fine, NARROW, NARROW, fine])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iteration, "check_precision", lambda *args: next(drawn))
        return tracker, debug_build(model, config(data, until=8), tracker=tracker).run_id


@pytest.mark.parametrize("bad_in", ["outputs", "outputs precision"])
def test_mixture_bad_in_precision_counts_as_good(bad_in, at_times_narrow, monkeypatch):
    """As where outputs are wrong with certain FP16 kernels, and a mixture happens to have FP32 kernels alone."""
    tracker, campaign = at_times_narrow
    table = load_table(tracker, campaign)
    bad = next(name for name in table.named("bad") if tracker.info(name).tags[Tag.BAD_IN] == bad_in)
    monkeypatch.setattr(iteration, "check_precision", lambda *args: NARROW)

    result = bisect(table.named("good")[0], bad, tracker=tracker)

    evaluated = {trial.run_id: tracker.info(trial.run_id) for trial in result.trials}
    assert {info.verdict for info in evaluated.values()} == {"bad"}
    assert {info.tags[Tag.BAD_IN] for info in evaluated.values()} == {"outputs precision", "precision"}
    assert {trial.verdict for trial in result.trials} == {"good", "bad"}
    assert result.outcome == "confirmed" and is_right(result)
    aspects = {name: tracker.info(name).tags.get(Tag.BAD_IN, "") for name in table.names}
    assert set(aspects.values()) == {"", "outputs", "precision", "outputs precision"}


@pytest.mark.parametrize(("mechanism", "editable"), [("algorithm_selector", False), ("editable_timing_cache", True)])
def test_other_choices_need_an_editable_timing_cache(mechanism, editable):
    """A mixture is made with the timing cache of the run whose choices it makes, where it makes no others."""
    tracker = MemoryTracker()

    def build(last: str) -> StoredRun:
        run = tracker.start("e", "build", kind="build")
        config = BuildConfig(precision="fp16", options=TensorRTOptions(tactic_seed=3))
        run.log_json(BuildSpec(model_sha256="m", config=config), Artifact.SPEC)
        run.log_json(dataclasses.replace(record(conv0="a", conv1=last), mechanism=mechanism), Artifact.TACTICS)
        run.finish("good")
        return tracker.load(run.id)

    good, bad = map(build, "bc")
    good_request, bad_request = (Mixture(good, bad).request(np.array([taken])) for taken in (False, True))

    assert good_request.replayed_run == good.info.id
    assert good_request.build.options == TensorRTOptions()  # no longer drawn at random
    assert bool(bad_request.replayed_run) is editable
    assert bad_request.replay is not None and [choice.tactic for choice in bad_request.replay.choices] == ["a", "c"]


def test_setting_of_one_build_is_a_unit():
    """A build that had no time for a setting has its default."""
    tracker = MemoryTracker()

    def build(**settings: str) -> StoredRun:
        run = tracker.start("e", "build", kind="build")
        run.log_json(BuildSpec(model_sha256="m", config=BuildConfig()), Artifact.SPEC)
        tactic_record = dataclasses.replace(record(), mechanism="onnxruntime", settings=tuple(sorted(settings.items())))
        run.log_json(tactic_record, Artifact.TACTICS)
        run.finish("good")
        return tracker.load(run.id)

    other = {"GeluFusionL2": "on", "LayerNormFusionL1": "on"}
    mixture = Mixture(build(**other), build(**other | {"GeluFusionL2": "off", "GeluApproximation": "on"}))

    assert {unit.name for unit in mixture.units} == {"GeluFusionL2", "GeluApproximation"}
    replay = mixture.request(np.array([unit.name == "GeluApproximation" for unit in mixture.units])).replay
    assert replay is not None and dict(replay.settings) == other | {"GeluApproximation": "on"}
    assert mixture.outcome(np.array([True, False]), mixture.bad_tactics).taken is not None


def way_of(result: DebugBuildResult) -> object:
    trials = [(trial.taken, trial.verdict, trial.counted) for b in result.bisections for trial in b.trials]
    culprits = [culprit.units for b in result.bisections for culprit in b.culprits]
    return result.iterations, result.good, result.bad, trials, culprits
