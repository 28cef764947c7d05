"""The next step of a campaign: mixtures of two builds, builds without the culprits, or the end."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from tests.tactics.synthetic import layer_table, record
from trtops.ops.campaign.bisect_result import BisectCulprit, BisectResult, ChoiceKey, Trial, Unit
from trtops.ops.campaign.bisection_planner import (
    BuildPair,
    Planner,
    merge_culprits,
)
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.tactics.bisection import SearchOutcome
from trtops.tactics.table import CampaignTable
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker


def table(rows: Sequence[str], verdicts: str) -> CampaignTable:
    """Builds "0", "1", ...; a digit per layer; g, b, e or u per build."""
    return layer_table([list(map(int, row)) for row in rows], ["gbeu".index(letter) for letter in verdicts])


def unit(layer: int, bad: int = 1) -> Unit:
    return Unit(kind="layer", name=f"layer-{layer}", good="tactic-0", bad=f"tactic-{bad}")


def choices_of(units: Iterable[Unit]) -> frozenset[ChoiceKey]:
    return frozenset(unit.choice for unit in units)


def bisection(
    good: str,
    bad: str,
    *confirmed: tuple[Unit, ...],
    outcome: SearchOutcome = "confirmed",
    held_units: tuple[Unit, ...] = (),
) -> BisectResult:
    culprits = tuple(
        BisectCulprit(units=units, clauses=(tuple(range(len(units))),), probability=0.99, builds=8)
        for units in confirmed
    )
    return BisectResult(
        outcome=outcome, culprits=culprits, good_run=good, bad_run=bad, units=3, held=held_units, trials=()
    )


def planner(*done: BisectResult, clean: int = 3, after: int = 0) -> Planner:
    return Planner(DebugBuildConfig(complete=True, clean_builds=clean), list(done), after=after)


def mixtures(*taken: Sequence[int], verdicts: str) -> tuple[Trial, ...]:
    """Mixtures with these layers of the bad build, named "mixture-0" and so on."""
    return tuple(
        Trial(
            run_id=f"mixture-{number}",
            taken=tuple(f"layer-{layer}" for layer in layers),
            verdict="bad" if verdict == "b" else "good",
            counted=True,
        )
        for number, (layers, verdict) in enumerate(zip(taken, verdicts))
    )


def test_most_similar_builds_are_mixed_first():
    assert planner().pair(table(["000", "011"], "gg")) is None
    assert planner().pair(table(["111", "000", "011"], "ggb")) == BuildPair("0", "2")
    assert planner().pair(table(["111", "000", "011"], "uub")) == BuildPair("0", "2")


def test_unexplained_bad_build_is_mixed_too():
    plan = planner(bisection("0", "1", (unit(0),)))

    pair = plan.pair(table(["000", "100", "110", "010"], "gbbb"))

    assert pair is not None and (pair.good, pair.bad) == ("0", "3")


def test_culprit_is_put_into_the_most_different_build():
    plan = planner(bisection("0", "1", (unit(0),)))

    # Builds 0 and 1 share the last three layers, and the first may need one of them.
    pair = plan.pair(table(["00111", "11111", "01101", "01000"], "gbgg"))

    assert pair == BuildPair("3", "1", held=(unit(0),))


def test_good_build_with_a_culprit_shows_another_need():
    plan = planner(bisection("0", "1", (unit(0),)))
    builds = table(["0111", "1111", "1101"], "gbg")
    assert plan.pair(builds) == BuildPair("2", "1", held=(unit(0),))

    plan.add(bisection("2", "1", (unit(2),), held_units=(unit(0),)), 3)

    (culprit,) = plan.culprits
    assert set(culprit.units) == {unit(0), unit(2)} and culprit.settled
    assert plan.pair(builds) is None
    assert culprit.is_in(builds).tolist() == [False, True, False]


def test_single_culprit_replaces_pairs_that_contain_it():
    other = Unit(kind="layer", name="layer-0", good="tactic-2", bad="tactic-1")
    pair = bisection("0", "1", (unit(0), unit(1)))

    assert [c.units for c in merge_culprits([pair, bisection("0", "2", (unit(0),))])] == [(unit(0),)]
    assert [c.units for c in merge_culprits([pair, bisection("2", "3", (other,))])] == [(other,)]
    assert len(merge_culprits([bisection("0", "1", (unit(0),)), bisection("2", "3", (other,))])) == 1


def test_culprit_with_either_of_two_becomes_two_pairs():
    either_culprit = BisectCulprit(units=(unit(1), unit(2)), clauses=((0,), (1,)), probability=0.99, builds=8)
    second = replace(bisection("2", "1", held_units=(unit(0),)), culprits=(either_culprit,))

    merged = merge_culprits([bisection("0", "1", (unit(0),)), second])

    assert [c.choices for c in merged] == [choices_of((unit(0), unit(n))) for n in (1, 2)]
    assert all(culprit.settled for culprit in merged)


def test_culprit_good_in_more_builds_is_dropped():
    confirmed = bisection("0", "1", (unit(0),))
    good = [bisection(name, "1", outcome="not repeatable", held_units=(unit(0),)) for name in "234"]
    bad = [bisection(name, "1", outcome="sufficient", held_units=(unit(0),)) for name in "56"]

    assert merge_culprits([confirmed, good[0]])
    assert merge_culprits([confirmed, *good[:2]]) == []
    assert merge_culprits([confirmed, *bad, *good[:2]]) and merge_culprits([confirmed, *good, *bad]) == []


def test_campaign_ends_with_enough_good_builds():
    plan = planner(bisection("0", "1", (unit(0),)))
    rows, verdicts = ["0011", "1111"], "gb"
    transfers = 0
    while not plan.is_answered(builds := table(rows, verdicts)):
        pair = plan.pair(builds)
        if pair is None:
            rows.append("0100" if len(rows) % 2 else "0001")
            verdicts += "g"
            continue
        assert pair.held == (unit(0),) and pair.good != "0"
        plan.add(bisection(pair.good, pair.bad, outcome="sufficient", held_units=pair.held), len(rows))
        transfers += 1

    assert verdicts.count("g") >= 3 and 1 <= transfers <= 5


def test_campaign_ends_with_the_first_confirmed_culprit():
    confirmed = replace(
        bisection("0", "1", (unit(0),)), trials=mixtures((0,), (0, 1), (1, 2), (2,), (0,), (3,), verdicts="bbggbg")
    )
    plan = Planner(DebugBuildConfig(), [confirmed])

    assert plan.is_answered(table(["0000", "1111"], "gb"))
    assert not plan.is_answered(table(["0000", "1111", "1000"], "gbg"))  # a good build has it
    assert not planner(confirmed).is_answered(table(["0000", "1111"], "gb"))
    sums = replace(bisection("0", "1"), outcome="contributions")
    assert Planner(DebugBuildConfig(), [sums]).is_answered(table(["00", "11"], "gb"))


@pytest.mark.parametrize(("outcome", "pairs"), [("not repeatable", 4), ("units missing", 8), ("combination", 4)])
def test_campaign_ends_after_pairs_without_culprits(outcome, pairs):
    plan = planner()
    rows = [f"{row:04b}" for row in range(16)]
    builds = table(rows, "gb" * 8)
    goods = []
    for _ in range(pairs):
        assert not plan.is_answered(builds)
        pair = plan.pair(builds)
        assert pair is not None
        goods.append(pair.good)
        plan.add(bisection(pair.good, pair.bad, outcome=outcome), len(rows))

    assert plan.is_answered(builds)
    assert plan.confidence() > 0.95
    if outcome == "not repeatable":  # another good build each time: one may have a culprit that fails only sometimes
        assert len(set(goods)) == 4


def test_culprits_are_denied_unless_builds_fail():
    tracker = MemoryTracker()
    run = tracker.start("e", "bad", kind="iteration")
    run.log_json(record(**{"layer-0": "tactic-1", "layer-1": "tactic-1"}), schema.Artifact.TACTICS)
    run.finish("bad")
    plan = planner(bisection("0", run.id, (unit(0), unit(1))), after=2)

    (entry,) = plan.denied(tracker, table(["00", "11", "00"], "gbg")).entries

    # Without the first of the two they do not occur together, and builds show the second one alone.
    assert [choice.layer for choice in entry.choices] == ["layer-0"]
    assert (entry.backend_version, entry.device_sha256) == ("1.20", "d")
    assert plan.denied(tracker, table(["00", "11", "00"], "gbe")).entries == ()


def test_one_verdict_calls_for_settings_not_built_yet():
    tracker, first = MemoryTracker(), CampaignTable()
    built = record({"GeluApproximation": "on", "NchwcTransformer": "on"})
    run = tracker.start("e", "bad", kind="iteration")
    run.log_json(built, schema.Artifact.TACTICS)
    run.finish("bad")
    first.append(run.id, "bad", built)

    (entry,) = planner().denied(tracker, first).entries

    assert planner().draws(first) and (entry.choices, entry.settings) == ((), built.settings)
    first.append("other", "good", record({"GeluApproximation": "off", "NchwcTransformer": "on"}))
    assert not planner().draws(first) and planner().denied(tracker, first).entries == ()
    assert not Planner(DebugBuildConfig(until=5)).draws(first)
    assert DebugBuildConfig(seed=1).build_of(1, draws=True) == DebugBuildConfig(seed=1, random_tactics=True).build_of(0)
