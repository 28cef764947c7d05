"""What a campaign builds next: mixtures of which two builds, builds without what was convicted, or nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from trtops.ops.campaign.bisected import BisectResult, Culprit, Outcome, Trial
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.guilty import joined, kept_out
from trtops.ops.campaign.mixture import Key, Unit
from trtops.ops.campaign.turning import Pair, Turning, summaries
from trtops.ops.campaign.weighing import with_mixtures
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tactics.table import CampaignTable, Choice
from trtops.tracking import schema
from trtops.tracking.base import Verdict
from trtops.tracking.memory import MemoryTracker


def table(rows: Sequence[str], verdicts: str) -> CampaignTable:
    """Builds "0", "1", ...; a digit per layer; g, b or e per build."""
    words = {"g": "good", "b": "bad", "e": "error"}
    return CampaignTable.from_columns(
        names=[str(number) for number in range(len(rows))],
        verdicts=[words[letter] for letter in verdicts],  # type: ignore[misc]
        layers=[f"layer-{layer}" for layer in range(len(rows[0]))],
        choices=[Choice(tactic=f"tactic-{code}", op="Conv") for code in range(5)],
        codes=np.array([list(map(int, row)) for row in rows], np.int32),
    )


def unit(layer: int, bad: int = 1) -> Unit:
    return Unit(kind="layer", name=f"layer-{layer}", good="tactic-0", bad=f"tactic-{bad}")


def choices_of(units: Iterable[Unit]) -> frozenset[Key]:
    return frozenset(unit.choice for unit in units)


def bisection(
    good: str,
    bad: str,
    *convicted: tuple[Unit, ...],
    outcome: Outcome = "convicted",
    given: tuple[Unit, ...] = (),
    together: tuple[Unit, ...] = (),
) -> BisectResult:
    culprits = tuple(
        Culprit(units=units, clauses=(tuple(range(len(units))),), probability=0.99, log10_e_value=1.5, builds=8)
        for units in convicted
    )
    return BisectResult(
        outcome=outcome,
        summary="",
        culprits=culprits,
        complete=True,
        good_run=good,
        bad_run=bad,
        units=3,
        consequences=(),
        given=given,
        together=together,
        trials=(),
        seconds=0.0,
        overhead_seconds=0.0,
    )


def turning(*done: BisectResult, clean: int = 3, after: int = 0) -> Turning:
    return Turning(DebugBuildConfig(clean_builds=clean), list(done), after=after)


def test_the_good_and_the_bad_build_that_are_most_alike_are_mixed_as_soon_as_there_are_both():
    assert turning().pair(table(["000", "011"], "gg")) is None
    assert turning().pair(table(["111", "000", "011"], "ggb")) == Pair("0", "2")


def test_a_bad_build_without_what_was_convicted_is_mixed_too_and_may_well_be_misclassified():
    found = turning(bisection("0", "1", (unit(0),)))

    pair = found.pair(table(["000", "100", "110", "010"], "gbbb"))

    assert pair is not None and (pair.good, pair.bad) == ("0", "3")
    assert pair.chance > Pair("", "").chance


def test_what_was_convicted_is_put_into_the_good_build_that_lacks_most_of_what_it_may_need():
    found = turning(bisection("0", "1", (unit(0),)))

    # Builds 0 and 1 share the last three layers, one of which the first may need.
    pair = found.pair(table(["00111", "11111", "01101", "01000"], "gbgg"))

    assert pair == Pair("3", "1", given=(unit(0),))


def test_a_good_build_with_what_was_convicted_says_that_something_is_needed_beside():
    found = turning(bisection("0", "1", (unit(0),)))
    seen = table(["0111", "1111", "1101"], "gbg")
    assert found.pair(seen) == Pair("2", "1", given=(unit(0),))

    found.take(bisection("2", "1", (unit(2),), given=(unit(0),)), 3)

    (guilty,) = joined(found.done)
    assert set(guilty.units) == {unit(0), unit(2)} and guilty.settled
    assert found.pair(seen) is None
    assert guilty.held_by(seen).tolist() == [False, True, False]


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


def test_what_a_culprit_needs_is_looked_for_in_the_bad_mixture_with_the_least_else_of_the_bad_build():
    # The bad build may have been misclassified, and lack what the culprit needs; the good build of the pair has it then.
    convicted = bisection("0", "1", (unit(0),), (unit(1),))
    trials = mixtures((0, 2, 3), (0, 2), (0,), (0, 1), verdicts="bbgb")
    found = turning(replace(convicted, trials=trials))

    assert found.pair(table(["0011", "1111", "1001"], "gbg")) == Pair("2", "mixture-1", given=(unit(0),))
    assert convicted.bad_mixture((unit(0),)) == ""


def test_what_is_guilty_alone_needs_nothing_that_was_convicted_with_it_before():
    found = joined([bisection("0", "1", (unit(0), unit(1))), bisection("0", "2", (unit(0),))])

    assert [guilty.units for guilty in found] == [(unit(0),)]


def test_what_is_guilty_is_known_by_its_bad_choice_whatever_good_builds_had_in_its_place():
    other = Unit(kind="layer", name="layer-0", good="tactic-2", bad="tactic-1")

    assert len(joined([bisection("0", "1", (unit(0),)), bisection("2", "3", (other,))])) == 1
    assert [g.units for g in joined([bisection("0", "1", (unit(0), unit(1))), bisection("2", "3", (other,))])] == [
        (other,)
    ]


TWO_PAIRS = (
    # Two of the first three layers' choices make a build bad; the pair that nobody has met is the last two.
    bisection("0", "1", (unit(0), unit(1))),
    bisection("0", "2", (unit(0), unit(2))),
)


def test_choices_that_were_convicted_with_others_are_tried_with_one_another():
    found = turning(*TWO_PAIRS)
    seen = table(["0000", "1101", "1011", "0101", "0010", "0001"], "gbbggg")

    pair = found.pair(seen)

    # Build 3 has the second layer's choice, and lacks the third one's, which build 2 has.
    assert pair is not None and choices_of(pair.together) == choices_of((unit(1), unit(2)))
    assert set(pair.given) <= set(pair.together) and pair.good in "034" and pair.bad in "12"
    assert all(u.taken_by(seen)[int(pair.bad)] for u in pair.given)
    assert all(u.taken_by(seen)[int(pair.good)] != (u in pair.given) for u in pair.together)
    assert not found.is_answered(seen)

    bad, good = (
        turning(*found.done, bisection(pair.good, pair.bad, outcome=outcome, given=pair.given, together=pair.together))
        for outcome in ("enough", "not repeatable")
    )
    assert {g.choices for g in joined(bad.done)} == {
        choices_of((unit(a), unit(b))) for a, b in ((0, 1), (0, 2), (1, 2))
    }
    assert len(joined(good.done)) == 2
    for asked in (bad, good):
        again = asked.pair(seen)
        assert again is None or choices_of(again.together) != choices_of(pair.together)


def test_one_that_is_bad_with_either_of_two_is_convicted_with_each():
    given = Culprit(units=(unit(1), unit(2)), clauses=((0,), (1,)), probability=0.99, log10_e_value=1.5, builds=8)
    first = bisection("0", "1", (unit(0),))
    second = replace(bisection("2", "1", given=(unit(0),)), culprits=(given,))

    found = joined([first, second])

    assert [g.choices for g in found] == [choices_of((unit(0), unit(n))) for n in (1, 2)]
    assert all(guilty.settled for guilty in found)


def test_what_seems_guilty_alone_is_put_into_a_good_build_without_what_was_convicted_with_others():
    """Of four choices two make a build bad; nearly every build has one, so that another one seems to be guilty alone."""
    pairs = [(unit(a), unit(b)) for a, b in ((0, 1), (0, 2), (1, 2))]
    known = [bisection("0", "1", outcome="enough", given=pair, together=pair) for pair in pairs]
    found = turning(*known, bisection("3", "4", (unit(3),)))
    seen = table(["0000", "1100", "1010", "1000", "1001", "0100", "0000"], "gbbgbgg")

    asked = found.pair(seen)

    assert asked == Pair("0", "4", given=(unit(3),))  # builds 3 and 5 have one of the others
    twice = [bisection(good, "4", given=(unit(3),), outcome="enough") for good in "06"]
    assert turning(*found.done, *twice).pair(seen) == replace(asked, good="5")  # the last one that it was not put into


def test_where_mixtures_followed_nothing_the_good_build_lacks_what_bad_builds_share():
    """The good builds most like bad ones have the culprit, and failed by chance not to be bad."""
    seen = table(["1100", "1101", "1110", "0012", "0021"], "gbbgg")
    first = turning().pair(seen)
    assert first is not None and first.good == "0"

    after = turning(bisection(first.good, first.bad, outcome="not repeatable")).pair(seen)

    assert after is not None and after.good in "34"


def test_a_campaign_waits_for_builds_that_say_what_choices_do_with_one_another():
    pair = (unit(0), unit(1))
    settled = bisection("0", "1", outcome="enough", given=pair, together=pair)
    enough = ["0000"] * 3
    alone = ["1000"] * 3 + ["0100"] * 3
    found = turning(settled, clean=3, after=0)

    assert not replace(found, after=4).is_answered(table(["0000", "1100", *enough], "gb" + "ggg"))
    assert replace(found, after=10).is_answered(table(["0000", "1100", *enough, *alone], "gb" + "g" * 9))
    # Not for ever: what was convicted may keep them out.
    assert replace(found, after=2).is_answered(table(["0000", "1100", *enough], "gb" + "ggg"))


def test_one_choice_keeps_out_as_many_culprits_as_can_be():
    found = joined([bisection("0", str(n), (unit(first), unit(4))) for n, first in enumerate((0, 1, 2), 1)])

    assert kept_out(found) == [unit(4)] * 3
    assert kept_out(joined([bisection("0", "1", (unit(3),))])) == [unit(3)]


def test_a_choice_that_is_guilty_alone_is_not_tried_with_others():
    found = turning(bisection("0", "1", (unit(0),)), bisection("0", "2", (unit(1),)), clean=1)
    seen = table(["000", "101", "010"], "gbb")

    pair = found.pair(seen)

    assert pair is None or not pair.together


def test_what_was_good_in_more_builds_than_bad_is_not_guilty():
    convicted = bisection("0", "1", (unit(0),))
    good = [bisection(name, "1", outcome="not repeatable", given=(unit(0),)) for name in "234"]
    bad = [bisection(name, "1", outcome="enough", given=(unit(0),)) for name in "56"]

    assert joined([convicted, good[0]])
    assert joined([convicted, *good[:2]]) == []
    assert joined([convicted, *bad, *good[:2]]) and joined([convicted, *good, *bad]) == []


def test_where_most_bad_builds_follow_nothing_a_conviction_among_them_is_withdrawn():
    convicted = bisection("0", "1", (unit(0),))
    chance = [bisection("0", str(number), outcome="not repeatable") for number in range(2, 8)]

    assert joined([convicted, *chance[:5]])
    assert joined([convicted, *chance]) == []

    # Where a good build is bad each time that it is put in, and next to no other mixture is, chance did not convict it.
    seen_again = [bisection(str(number), "1", outcome="enough", given=(unit(0),)) for number in (20, 21)]
    rare = [replace(result, trials=mixtures(*[()] * 9, verdicts="bgggggggg")) for result in chance]
    often = [replace(result, trials=mixtures(*[()] * 9, verdicts="bbggggggg")) for result in chance]
    assert joined([convicted, *seen_again, *rare])
    assert not joined([convicted, *seen_again[:1], *rare])
    assert not joined([convicted, *seen_again, *often])


@pytest.mark.parametrize(("bad", "guilty"), [(0, 1), (1, 1), (4, 0)])
def test_what_was_convicted_is_withdrawn_where_builds_without_it_are_bad_by_chance_quite_often(bad, guilty):
    trials = tuple(
        Trial(run_id="", taken=(), verdict="bad" if number < bad else "good", counted=True) for number in range(10)
    )
    followed_nothing = [
        replace(bisection("0", str(number), outcome="not repeatable"), trials=trials) for number in (2, 3, 4)
    ]

    found = joined([bisection("0", "1", (unit(0),)), *followed_nothing])

    assert len(found) == guilty
    # Before the conviction, good builds may have had the culprit.
    assert len(joined([*followed_nothing, bisection("0", "1", (unit(0),))])) == 1


def test_a_campaign_ends_with_enough_good_builds_in_several_of_which_the_culprit_was_bad_too():
    found = turning(bisection("0", "1", (unit(0),)))
    rows, verdicts = ["0011", "1111"], "gb"
    asked = 0
    while not found.is_answered(seen := table(rows, verdicts)):
        pair = found.pair(seen)
        if pair is None:
            rows.append("0100" if len(rows) % 2 else "0001")
            verdicts += "g"
            continue
        assert pair.given == (unit(0),) and pair.good != "0"
        found.take(bisection(pair.good, pair.bad, outcome="enough", given=pair.given), len(rows))
        asked += 1

    assert verdicts.count("g") >= 3 and 2 <= asked <= 5


def test_where_mixtures_of_three_pairs_follow_nothing_choices_do_not_decide():
    found = turning()
    rows = ["000", "100", "010", "001", "110", "101"]
    seen = table(rows, "gbgbgb")
    goods = []
    for _ in range(3):
        assert not found.is_answered(seen)
        pair = found.pair(seen)
        assert pair is not None
        goods.append(pair.good)
        found.take(bisection(pair.good, pair.bad, outcome="not repeatable"), len(rows))

    assert found.is_answered(seen)
    assert len(set(goods)) == 3  # another good build each time: one may have a culprit that fails only sometimes
    assert found.confidence() > 0.95


def build_of(tracker: MemoryTracker, verdict: Verdict, tactics: str) -> str:
    """The run of a build whose layers have these tactics, a digit each."""
    run = tracker.start("e", verdict, kind="iteration")
    choices = tuple(TacticChoice(layer=f"layer-{n}", op="Conv", tactic=f"tactic-{of}") for n, of in enumerate(tactics))
    run.log_json(
        TacticRecord(mechanism="algorithm_selector", backend_version="8.6", device_sha256="d", choices=choices),
        schema.Artifact.TACTICS,
    )
    run.finish(verdict)
    return run.id


def test_of_two_that_are_bad_together_the_one_that_the_good_build_had_is_kept_out_as_well():
    tracker = MemoryTracker()
    good, bad, other = (build_of(tracker, *of) for of in (("good", "100"), ("bad", "011"), ("bad", "101")))
    pair = (unit(1), unit(0))
    asked = bisection(good, bad, outcome="enough", given=pair[:1], together=pair)
    found = turning(asked, bisection(good, other, (unit(0), unit(2))), after=2)

    entries = found.denied(tracker, table(["100", "011", "101"], "gbb")).entries

    assert [[(c.layer, c.tactic) for c in entry.choices] for entry in entries] == [[("layer-0", "tactic-1")]] * 2


def test_what_was_convicted_is_kept_out_of_further_builds_unless_they_fail_for_it():
    tracker = MemoryTracker()
    bad = build_of(tracker, "bad", "11")
    found = turning(bisection("0", bad, (unit(0), unit(1))), after=2)

    entries = [found.denied(tracker, table(["00", "11", *["00"] * more], "gb" + more * "g")).entries for more in (1, 2)]

    # Either of the two keeps both from coming together; by turns, so that each is seen without the other.
    assert sorted(choice.layer for (entry,) in entries for choice in entry.choices) == ["layer-0", "layer-1"]
    ((entry,), _) = entries
    assert (entry.backend_version, entry.device_sha256) == ("8.6", "d")
    assert found.denied(tracker, table(["00", "11", "00"], "gbe")).entries == ()
    assert turning().denied(tracker, table(["00"], "g")).entries == ()


def test_one_choice_alone_is_convicted_sooner_unless_chance_was_seen_at_work():
    pair = Pair("0", "1")

    assert turning().confidence_of_one(pair) == pytest.approx(0.8)
    assert turning().confidence_of_one(replace(pair, given=(unit(0),))) is None
    assert turning(bisection("0", "1", outcome="not repeatable")).confidence_of_one(pair) is None


def test_what_was_convicted_is_guilty_if_all_builds_and_mixtures_together_bear_it_out():
    convicted = replace(
        bisection("0", "1", (unit(0),)), trials=mixtures((0,), (0, 1), (1, 2), (2,), (0,), verdicts="bbggb")
    )
    found = turning(convicted)
    clean = ["0011"] * 8

    # Three suspects, one of which has to beat chance by 60 to 1.
    assert found.guilty(table(["0000", "1111", *clean], "gb" + "g" * 8)) == joined([convicted])
    assert found.guilty_and_doubted(table(["0000", "1111", *clean], "gb" + "gbgbgbgb")) == ([], joined([convicted]))
    # What has it is good as often as bad, though its mixtures were bad.
    assert found.guilty(table(["0000", "1111", *["1011"] * 8], "gb" + "g" * 8)) == []
    assert found.guilty(table(["0000", "1111", *["1011"] * 8], "gb" + "e" * 8)) == []
    assert turning(replace(convicted, trials=())).guilty(table(["0000", "1111"], "gb")) == []


def test_mixtures_are_builds_with_the_layers_that_they_were_to_have():
    strayed = replace(mixtures((3,), verdicts="b")[0], run_id="other", strayed=("layer-3",))
    first = replace(bisection("0", "1", (unit(0),)), trials=(*mixtures((1, 3), verdicts="b"), strayed))
    second = replace(
        bisection("2", "mixture-0", outcome="enough", given=(unit(1),)),
        trials=(replace(mixtures((0,), verdicts="g")[0], run_id="second"),),
    )

    together = with_mixtures(table(["0000", "1111", "2222"], "gbg"), [first, second])

    assert together.names == ("0", "1", "2", "mixture-0", "second")
    assert together.codes[3:].tolist() == [[0, 1, 0, 1], [0, 1, 2, 2]]
    assert (together.named("bad"), together.named("good")) == (("1", "mixture-0"), ("0", "2", "second"))


def test_the_page_names_what_mixtures_convicted_and_all_builds_do_not_bear_out():
    lines = list(summaries([], ["a"], ["b"]))

    assert lines[0] == "**Guilty**: a" and lines[1].startswith("**In doubt**: b.") and lines[2] == ""
    assert list(summaries([], [])) == []
