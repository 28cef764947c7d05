"""Bisections of real campaigns on ONNX Runtime: the guilty setting convicted within a dozen builds, and nothing innocent."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.amounts import amount
from tests.campaigns import config, two_blocks
from tests.dying import run_until_spent, seconds_of
from tests.forking import ForkedProcess
from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.campaign import iteration
from trtops.ops.campaign.bisect import bisect
from trtops.ops.campaign.bisected import BisectConfig, BisectPlan, BisectResult
from trtops.ops.campaign.debug_build import DebugBuildResult, debug_build
from trtops.ops.campaign.guilty import joined
from trtops.ops.campaign.mixture import Mixture, Unit
from trtops.ops.evaluation.precision_check import PrecisionCheck
from trtops.tactics.sizes import welch
from trtops.tactics.table import CampaignTable, Choice
from trtops.tracking.campaigns import load_table
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.run import MlflowRun
from trtops.tracking.schema import Artifact, Tag

NARROW = PrecisionCheck(asked="int8", kernels=(("fp32", 4),))  # of an engine that is none of the precision asked for


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return two_blocks(tmp_path_factory.mktemp("bisect"))


@pytest.fixture(scope="module")
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture(scope="module")
def campaign(model: tuple[Path, Path], tracker: MemoryTracker) -> str:
    return debug_build(model[0], config(model[1], until=8), tracker=tracker).run_id


@pytest.fixture(scope="module")
def bisected(campaign: str, tracker: MemoryTracker) -> BisectResult:
    return bisect(*drawn_pair(campaign, tracker), tracker=tracker)


def drawn_pair(campaign: str, tracker: MemoryTracker) -> tuple[str, str]:
    """A good and a bad build that differ in several settings: the first two builds differ in one."""
    table = load_table(tracker, campaign)
    bad = table.named("bad")[0]
    good = [name for name in table.named("good") if table.names.index(name) > 1]
    return max(good, key=lambda name: len(Mixture(tracker.load(name), tracker.load(bad)).units)), bad


def is_guilty(result: BisectResult) -> bool:
    """Whether all that was convicted takes part in approximating a GELU, which is what fails here."""
    names = {unit.name for culprit in result.culprits for unit in culprit.units}
    return bool(names) and names <= {"GeluApproximation", "GeluFusionL2", "BiasGeluFusion"}


def test_the_guilty_setting_is_convicted_and_nothing_else_makes_the_build_bad(bisected: BisectResult):
    assert (bisected.outcome, bisected.verdict, bisected.complete) == ("convicted", "good", True)
    assert is_guilty(bisected)
    assert len(bisected.trials) <= 12
    assert bisected.overhead_seconds < bisected.seconds


def test_the_size_of_the_effect_stands_beside_the_probability(bisected: BisectResult):
    (culprit,) = bisected.culprits
    assert culprit.effect is not None
    assert 100 < culprit.effect.low <= culprit.effect.ratio <= culprit.effect.high
    assert "times larger" in bisected.page()


@pytest.mark.parametrize("seed", range(amount(10, in_every_run=3)))
def test_a_pair_that_differs_in_several_settings_takes_about_a_dozen_builds(model, seed):
    tracker = MemoryTracker()
    found = debug_build(model[0], config(model[1], until=8, seed=seed), tracker=tracker)

    result = bisect(*drawn_pair(found.run_id, tracker), tracker=tracker)

    assert result.outcome == "convicted" and result.complete
    assert result.units > 1 and is_guilty(result)
    assert len(result.trials) <= 16


@pytest.mark.parametrize("seed", range(amount(20, in_every_run=3)))
def test_until_decided_the_approximation_is_convicted_within_a_dozen_builds(model, seed):
    result = debug_build(model[0], config(model[1], seed=seed), tracker=MemoryTracker())

    first = result.bisections[0]
    assert [c.describe() for c in first.culprits] == ["GeluApproximation=on"]
    assert 2 + len(first.trials) <= 12
    assert result.guilty and all("GeluApproximation=on" in text for text in result.guilty)


def test_of_a_campaign_the_good_and_the_bad_build_most_alike_are_mixed(campaign, tracker, bisected):
    result = bisect(campaign, config=BisectConfig(seed=3), tracker=tracker)

    assert result.units == 1 < bisected.units
    assert [c.describe() for c in result.culprits] == ["GeluApproximation=on"]


def test_everything_is_kept(bisected, tracker):
    run = tracker.load(bisected.run_id)

    assert BisectResult.from_json(run.read_bytes(Artifact.BISECTION)).culprits == bisected.culprits
    assert {info.id for info in tracker.find(parent=bisected.run_id)} == {trial.run_id for trial in bisected.trials}
    assert run.info.tags[Tag.EVIDENCE] == f"{bisected.good_run} {bisected.bad_run}"


def test_a_conviction_can_be_denied_unless_good_builds_have_it_too(bisected, campaign, tracker):
    from trtops.ops.engines.deny import deny

    table = load_table(tracker, campaign)
    (culprit,) = bisected.culprits
    having = np.logical_and.reduce([unit.taken_by(table) for unit in culprit.units])
    held = {name for name, has in zip(table.names, having) if has}

    if held & set(table.named("good")):  # it needs something beside, and is not guilty by itself
        with pytest.raises(errors.ConfigError):
            deny(bisected.run_id, tracker=tracker)
        return
    entry = deny(bisected.run_id, tracker=tracker).entry
    assert entry.settings == tuple((unit.name, unit.bad) for unit in culprit.units)
    assert (entry.evidence, entry.tolerance) == (bisected.run_id, "atol 0.0001, rtol 0.0001")
    assert entry.model_sha256 and "times larger" in entry.effect
    assert deny(bisected.run_id, tracker=tracker).entry.digest == entry.digest


def test_a_budget_that_is_too_small_is_said_and_nobody_convicted(campaign, tracker):
    result = bisect(campaign, config=BisectConfig(max_builds=2), tracker=tracker)

    assert (result.outcome, result.culprits, len(result.trials)) == ("cannot be told", (), 2)
    assert "larger budget" in result.summary and result.verdict == "bad"


def test_verdicts_that_choices_do_not_decide_convict_nobody(campaign, tracker):
    rng = np.random.default_rng(5)

    result = bisect(campaign, tracker=tracker, evaluate=lambda engine: bool(rng.random() < 0.5))

    assert (result.outcome, result.culprits) == ("not repeatable", ())


def test_a_mixture_is_told_what_it_is_to_have_and_says_what_it_got(campaign, tracker, bisected):
    mixture = Mixture(tracker.load(bisected.good_run), tracker.load(bisected.bad_run))
    everything, nothing = np.ones(len(mixture.units), bool), np.zeros(len(mixture.units), bool)
    from trtops.tracking.campaigns import load_record

    for wanted, run in ((everything, bisected.bad_run), (nothing, bisected.good_run)):
        record = load_record(tracker.load(run))
        got = mixture.outcome(wanted, record)
        assert got.taken is not None and (got.taken == wanted).all() and not got.strayed
        assert dict(mixture.order(wanted).replay.settings).items() <= dict(record.settings).items()
    assert mixture.outcome(everything, None).taken is None
    assert set(mixture.outcome(everything, load_record(tracker.load(bisected.good_run))).strayed) == {
        unit.name for unit in mixture.units
    }


def test_campaigns_without_a_bad_build_and_builds_of_two_campaigns_are_refused(model, tracker, campaign, bisected):
    loose = config(model[1], until=2, seed=1)
    loose = dataclasses.replace(
        loose, check=dataclasses.replace(loose.check, tolerances=Tolerances(atol=1.0, rtol=1.0))
    )
    good = debug_build(model[0], loose, tracker=tracker)

    with pytest.raises(errors.ConfigError, match="no bad build yet"):
        bisect(good.run_id, tracker=tracker)
    child = tracker.find(parent=good.run_id)[0].id
    with pytest.raises(errors.ConfigError, match="not builds of one campaign"):
        bisect(child, bisected.bad_run, tracker=tracker)
    with pytest.raises(errors.ConfigError, match="expected a good build"):
        bisect(bisected.bad_run, bisected.good_run, tracker=tracker)


@pytest.mark.parametrize("n", [3, 6, 20])
def test_the_interval_of_the_effect_is_welch_s(n):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(n)
    a, b = rng.normal(3, 0.4, n), rng.normal(1, 0.2, n + 1)

    effect = welch(a.tolist(), b.tolist())

    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert effect is not None
    assert math.log(effect.ratio) == pytest.approx(a.mean() - b.mean())
    assert (math.log(effect.low), math.log(effect.high)) == pytest.approx((interval.low, interval.high), rel=1e-5)


def until_decided(tracker: MlflowTracker, model: tuple[Path, Path], resume: str | None, experiment: str) -> None:
    debug_build(
        None if resume else model[0], config(model[1], seed=200), tracker=tracker, experiment=experiment, resume=resume
    )


@pytest.fixture(scope="module")
def undisturbed(model: tuple[Path, Path]) -> DebugBuildResult:
    return debug_build(model[0], config(model[1], seed=200), tracker=MemoryTracker())


def test_a_campaign_turns_to_mixtures_and_killed_at_any_moment_takes_the_same_way_again(model, tmp_path, undisturbed):
    store = MlflowTracker(tmp_path / "mlruns")
    whole = seconds_of(lambda: debug_build(model[0], config(model[1], seed=200), tracker=MemoryTracker()))
    moments = random.Random(3)
    resume = None

    for _ in range(amount(4, in_every_run=1)):
        run_until_spent(moments.uniform(0.2, 0.5) * whole, until_decided, store, model, resume, "killed")
        found = store.find("killed", tags={Tag.KIND: "debug_build"})
        resume = found[0].id if found else None
    result = debug_build(model[0], config(model[1], seed=200), tracker=store, experiment="killed", resume=resume)

    assert result.headline == "convicted" and result.verdict == "bad"
    assert way_of(result) == way_of(undisturbed)
    assert result.mixtures == sum(Tag.TRIAL in i.tags for i in store.find("killed", status="finished"))
    assert {i.status for i in store.find("killed")} <= {"finished", "killed"}
    assert debug_build(resume=result.run_id, tracker=store) == result
    for bisection in result.bisections:
        assert bisect(bisection.run_id, tracker=store) == bisection  # ended: nothing to do


def dying_at(method: str, call: int, run: Callable[[], object], only: str = "") -> None:
    """Run a function in a child that is killed at a certain call of a method of MLflow's runs, before it does anything."""

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


def test_killed_at_its_seams_a_campaign_builds_nothing_twice(model, tmp_path, undisturbed):
    store = MlflowTracker(tmp_path / "mlruns")

    def on(resume: str | None = None) -> Callable[[], None]:
        return lambda: until_decided(store, model, resume, "killed")

    dying_at("_end", 2, on())  # a build of the campaign that is whole and has no end
    (campaign,) = store.find("killed", tags={Tag.KIND: "debug_build"})
    dying_at("log_json", 1, on(campaign.id), Artifact.BISECTION_PLAN)  # a bisection that has not begun
    dying_at("_end", 2, on(campaign.id))  # a mixture
    dying_at("_end", len(undisturbed.bisections[0].trials) - 1, on(campaign.id))  # the bisection itself
    result = debug_build(resume=campaign.id, tracker=store)

    assert way_of(result) == way_of(undisturbed)
    runs = store.find("killed")
    assert Counter((i.kind, i.status) for i in runs) == {
        ("debug_build", "finished"): 1,
        ("iteration", "finished"): result.iterations + result.mixtures,
        ("bisect", "finished"): len(result.bisections),
        ("bisect", "killed"): 1,
    }


def test_what_was_convicted_is_kept_out_of_the_builds_that_follow_which_are_good(model):
    tracker = MemoryTracker()

    result = debug_build(model[0], config(model[1], seed=200, clean_builds=6), tracker=tracker)

    seen = load_table(tracker, result.run_id)
    guilty, first = joined(result.bisections), result.bisections[0]
    after = 1 + max(seen.names.index(name) for name in (first.good_run, first.bad_run))
    held = np.logical_or.reduce([one.held_by(seen) for one in guilty])
    assert len(guilty) == 1 and held[:after].any()
    assert len(seen) > after and not held[after:].any()
    assert seen.named("bad") == tuple(name for name, has in zip(seen.names, held) if has)
    assert result.good >= 6


def test_what_was_convicted_is_tried_in_another_good_build_too(campaign, bisected, tracker):
    seen = load_table(tracker, campaign)
    (culprit,) = bisected.culprits
    having = np.logical_and.reduce([unit.taken_by(seen) for unit in culprit.units])
    other = next(
        name for name in seen.named("good") if not having[seen.names.index(name)] and name != bisected.good_run
    )

    result = bisect(other, bisected.bad_run, tracker=tracker, given=culprit.units)

    names = {unit.name for unit in culprit.units}
    assert result.trials and names & set(result.trials[0].taken)
    assert result.outcome == "enough" or all(is_guilty(result) and c.units for c in result.culprits)
    assert result.outcome == "enough" or {u.name for c in result.culprits for u in c.units}.isdisjoint(names)
    if result.outcome == "enough":
        assert result.trials[-1].verdict == "bad" and not result.culprits and "needs nothing beside" in result.summary


@pytest.fixture(scope="module")
def at_times_narrow(model: tuple[Path, Path]) -> tuple[MemoryTracker, str]:
    """A campaign, two of five builds of which are none of the precision asked for."""
    fine = PrecisionCheck(asked="fp32", kernels=())
    tracker, drawn = MemoryTracker(), itertools.cycle([fine, fine, fine, NARROW, NARROW])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iteration, "computed", lambda *args: next(drawn))
        return tracker, debug_build(model[0], config(model[1], until=8), tracker=tracker).run_id


@pytest.mark.parametrize("bad_in", ["outputs", "outputs precision"])
def test_a_mixture_that_is_bad_for_another_reason_says_that_outputs_can_be_right(bad_in, at_times_narrow, monkeypatch):
    """As where outputs are wrong with certain FP16 kernels, and a mixture happens to have FP32 kernels alone."""
    tracker, campaign = at_times_narrow
    table = load_table(tracker, campaign)
    bad = next(name for name in table.named("bad") if tracker.info(name).tags[Tag.BAD_IN] == bad_in)
    monkeypatch.setattr(iteration, "computed", lambda *args: NARROW)

    result = bisect(table.named("good")[0], bad, tracker=tracker)

    evaluated = {trial.run_id: tracker.info(trial.run_id) for trial in result.trials}
    assert {info.verdict for info in evaluated.values()} == {"bad"}
    assert {info.tags[Tag.BAD_IN] for info in evaluated.values()} == {"outputs precision", "precision"}
    assert {trial.verdict for trial in result.trials} == {"good", "bad"}
    assert [trial.bad_otherwise for trial in result.trials] == [trial.verdict == "good" for trial in result.trials]
    assert (result.outcome, result.asked) == ("convicted", "outputs") and is_guilty(result)
    assert "bad for another reason: No INT8 engine" in result.page()


def test_builds_that_are_bad_for_another_reason_are_good_ones_for_a_bisection(at_times_narrow):
    tracker, campaign = at_times_narrow
    table = load_table(tracker, campaign)
    told = {name: tracker.info(name).tags.get(Tag.BAD_IN, "") for name in table.names}
    bad = next(name for name in table.named("bad") if told[name] == "outputs")

    result = bisect(table.named("good")[0], bad, BisectConfig(max_builds=1), tracker=tracker)

    plan = BisectPlan.from_json(tracker.load(result.run_id).read_bytes(Artifact.BISECTION_PLAN))
    assert set(told.values()) == {"", "outputs", "precision", "outputs precision"}
    assert [is_bad for _, is_bad in plan.seen] == ["outputs" in told[name] for name in table.names]


def test_a_build_that_is_bad_in_precision_alone_is_asked_why_it_is(at_times_narrow):
    tracker, campaign = at_times_narrow
    table = load_table(tracker, campaign)
    bad = next(name for name in table.named("bad") if tracker.info(name).tags[Tag.BAD_IN] == "precision")

    result = bisect(table.named("good")[0], bad, BisectConfig(max_builds=1), tracker=tracker)

    assert result.asked == "precision" and "why it does not compute in the precision" in result.page()


def test_a_bisection_is_told_what_neither_of_its_builds_has(tracker):
    """Of the third choice of a layer nobody knows whether it is bad as well."""
    choices = [Choice(tactic=name, op="Conv") for name in ("a", "b", "c")]
    table = CampaignTable.from_columns(
        names=["good", "bad", "other"],
        verdicts=["good", "bad", "bad"],
        layers=["conv"],
        choices=choices,
        codes=np.array([[0], [1], [2]], np.int32),
        settings=["level"],
        values=["1", "2", "3"],
        setting_codes=np.array([[0], [1], [2]], np.int32),
    )
    layer = Unit(kind="layer", name="conv", good="a", bad="b")
    setting = Unit(kind="setting", name="level", good="1", bad="2")

    for unit in (layer, setting):
        assert unit.taken_by(table).tolist() == [False, True, False]
        assert unit.kept_by(table).tolist() == [True, False, False]


def test_whether_two_choices_are_bad_together_is_asked_and_nothing_else_is_searched_for(campaign, bisected, tracker):
    mixture = Mixture(tracker.load(bisected.good_run), tracker.load(bisected.bad_run))
    guilty = bisected.culprits[0].units
    innocent = tuple(unit for unit in mixture.units if unit not in guilty)

    found = bisect(bisected.good_run, bisected.bad_run, tracker=tracker, given=guilty, together=guilty)
    assert (found.outcome, [t.verdict for t in found.trials]) == ("enough", ["bad", "bad"])
    assert "bad as well" in found.summary and found.together == guilty and not found.culprits
    if innocent:
        found = bisect(bisected.good_run, bisected.bad_run, tracker=tracker, given=innocent, together=innocent)
        assert (found.outcome, {t.verdict for t in found.trials}) == ("not repeatable", {"good"})
        assert len(found.trials) == 2 and "not bad" in found.summary and not found.culprits


def way_of(result: DebugBuildResult) -> object:
    trials = [(trial.taken, trial.verdict, trial.counted) for b in result.bisections for trial in b.trials]
    culprits = [culprit.units for b in result.bisections for culprit in b.culprits]
    return result.iterations, result.good, result.bad, trials, culprits
