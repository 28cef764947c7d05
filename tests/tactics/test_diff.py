"""The diff of a campaign, and its words."""

import numpy as np
import pytest

from tests.tactics.synthetic import campaign, layer_table, record
from trtops import errors
from trtops.tactics.diff import builds_with, diff, set_difference
from trtops.tactics.findings import TacticDiff
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tactics.table import CampaignTable

GELU, FAST = "Gelu", "com.microsoft.FastGelu"


def gelu_campaign(builds: int = 40) -> CampaignTable:
    """A transformer whose GELU is approximated if a setting allows it, while other settings change other layers."""
    rng = np.random.default_rng(1)
    table = CampaignTable()
    for i in range(builds):
        approximate, blocked, threads = (bool(x) for x in rng.random(3) < 0.4)
        fused = {} if approximate else {"block0/bias": "Add"}
        tactic_record = record(
            {
                "optimization.enable_gelu_approximation": str(int(approximate)),
                "optimization.nchwc": str(int(blocked)),
                "threads": str(1 + threads),
            },
            conv="nchwc.Conv" if blocked else "Conv",
            **{"block0/gelu": FAST if approximate else GELU, "block1/gelu": FAST if approximate else GELU},
            **fused,
            head=str(rng.choice(["MatMul", "FusedMatMul"])),
        )
        table.append(f"run-{i}", "bad" if approximate else "good", tactic_record)
    return table


def test_layers_of_one_setting_are_one_suspect():
    difference = diff(gelu_campaign())

    assert difference.conclusion == "confirmed"
    (culprit,) = difference.confirmed
    assert culprit.settings == (("optimization.enable_gelu_approximation", "1"),)
    assert [(c.layer, c.choice) for c in culprit.choices] == [("block0/gelu", FAST), ("block1/gelu", FAST)]
    assert culprit.probability > 0.95 and (culprit.bad, culprit.good) == (difference.bad, 0)
    assert "optimization.enable_gelu_approximation=1" in difference.summary


def test_two_that_fail_together_are_one_clause():
    played = campaign(4, 200, culprit="together", noise=0.03)
    difference = diff(played.table)

    assert difference.explanation is not None and difference.explanation.clauses == ((0, 1),)
    first = {(c.layer, c.choice) for suspect in difference.suspects[:2] for c in suspect.choices}
    assert set(played.culprits) <= first
    assert "which fail only together" in difference.summary
    page = difference.markdown(limit=5)
    assert page.startswith("# Confirmed\n") and all(layer in page for layer, _ in played.culprits)
    assert "more, less suspicious." in page


def test_layers_that_part_once_are_both_named():
    rng = np.random.default_rng(5)
    table = CampaignTable()
    for i in range(60):
        a, b = (bool(rng.random() < 0.4),) * 2
        if i == 7:
            a, b = True, False
        bad = a != (i in (11, 20, 33, 41, 50, 58))
        others = {f"layer{k}": str(rng.integers(3)) for k in range(10)}
        table.append(f"run-{i}", "bad" if bad else "good", record(a=f"t{int(a)}", b=f"t{int(b)}", **others))
    difference = diff(table)

    assert difference.conclusion == "narrowed down" and not difference.decided
    assert "most likely a: t1" in difference.summary and "or instead b: t1" in difference.summary


def test_crashed_builds_are_no_evidence():
    table = gelu_campaign()
    before = diff(table)
    table.append("crashed", "error", record(gelu=FAST))
    table.append("hung", "error")
    after = diff(table)

    (culprit,) = after.confirmed
    assert builds_with(table, culprit).tolist() == table.with_verdict("bad").tolist()
    assert after.errors == ("crashed", "hung")
    assert (after.good, after.bad, after.suspects) == (before.good, before.bad, before.suspects)


def test_unproven_builds_count_as_good():
    table = gelu_campaign()
    unproven = CampaignTable(
        names=table.names,
        verdicts=["bad" if name in table.named("bad") else "unproven" for name in table.names],
        columns=table.columns,
        choices=table.choices,
        codes=table.codes,
    )
    difference, expected = diff(unproven), diff(table)

    assert unproven.named("good") == () and len(unproven.named("good", "unproven")) == difference.good == expected.good
    assert [suspect.describe() for suspect in difference.confirmed] == [
        suspect.describe() for suspect in expected.confirmed
    ]
    assert set_difference(unproven) == set_difference(table)
    assert CampaignTable.from_bytes(unproven.to_bytes()).named("unproven") == unproven.named("unproven")


@pytest.mark.parametrize(
    ("builds", "conclusion", "words"),
    [
        ([], "no builds", "No build has a verdict"),
        ([("good", "x")] * 20, "no bad builds", "fewer than 13.9 % are bad"),
        ([("bad", "x")] * 5, "no good builds", "unless their tactics were drawn at random"),
        ([("good", "x"), ("bad", "y")], "not enough runs", "Not enough runs"),
        ([("good", "x"), ("bad", "x")] * 10, "no single tactic explains this", "same choices"),
    ],
)
def test_conclusions_without_an_answer(builds, conclusion, words):
    table = CampaignTable()
    for i, (verdict, tactic) in enumerate(builds):
        table.append(f"run-{i}", verdict, record(a=tactic))
    difference = diff(table)

    assert difference.conclusion == conclusion and words in difference.summary
    assert not difference.decided
    assert difference.markdown()


def test_precision_and_format_differ_under_one_tactic():
    table = CampaignTable()
    rng = np.random.default_rng(0)
    for i in range(40):
        half = bool(rng.random() < 0.4)
        table.append(f"run-{i}", "bad" if half else "good", record(dtype="float16" if half else "float32", fc="gemm"))

    assert diff(table).suspects == ()
    for by, choice in (("precision", " -> float16"), ("format", " -> float16[8, 1] by 4 in 1")):
        assert diff(table, by=by).confirmed[0].choices[0].choice == choice
    assert [d.layer for d in set_difference(table)] == ["fc"], "the plain difference compares formats"


def test_equal_tactic_names_are_numbered():
    table = CampaignTable()
    for i in range(30):
        choice = TacticChoice(layer="fc", op="", tactic="gemm", implementation=1, tactic_id=i % 2)
        tactic_record = TacticRecord(
            mechanism="algorithm_selector", backend_version="", device_sha256="", choices=(choice,)
        )
        table.append(f"run-{i}", "bad" if i % 2 else "good", tactic_record)

    assert diff(table).confirmed[0].choices[0].choice == "gemm (implementation 1, tactic 1)"


def shuffled(table: CampaignTable, seed: int, *, ordered: bool) -> CampaignTable:
    rows = np.random.default_rng(seed).permutation(len(table))
    return layer_table(table.codes[rows], table.verdicts[rows], ordered=ordered)


def test_unordered_builds_ignore_their_order():
    table = campaign(7, 24, culprit="together", noise=0.05).table

    difference = diff(shuffled(table, 0, ordered=False))
    assert not difference.ordered
    assert all(diff(shuffled(table, seed, ordered=False)) == difference for seed in range(1, 6))
    in_order = (diff(shuffled(table, seed, ordered=True)) for seed in (0, 1))
    assert len({ordered.e_value_log10 for ordered in in_order}) == 2


def test_invalid_arguments_are_refused():
    with pytest.raises(errors.ConfigError, match="confidence is 95"):
        diff(CampaignTable(), confidence=95)
    with pytest.raises(errors.ConfigError, match="by is 'kernel'"):
        diff(CampaignTable(), by="kernel")  # type: ignore[arg-type]


def test_missing_layer_is_a_suspect():
    table = CampaignTable()
    for i in range(30):
        table.append(f"run-{i}", *(("good", record(a="x", cast="y")) if i % 3 else ("bad", record(a="x"))))
    difference = diff(table)

    (culprit,) = difference.confirmed
    assert culprit.choices[0].layer == "cast" and culprit.choices[0].choice is None
    assert TacticDiff.from_json(difference.to_json()) == difference
