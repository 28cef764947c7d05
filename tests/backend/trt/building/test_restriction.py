"""What an algorithm selector keeps from TensorRT: denied tactics, and all but a random half of them."""

from __future__ import annotations

from trtops.backend.trt.choices.selector import Algorithm, Restriction, TacticReplayData, restriction, to_record
from trtops.tactics.denied import DeniedTactic, DenyList

OFFERED = [Algorithm(1, tactic, (), ()) for tactic in range(7)]


def test_denied_tactic_is_not_offered() -> None:
    record = to_record(TacticReplayData({"conv": OFFERED[2]}), backend_version="8.6.0", device_sha256="d")
    denied = DenyList(entries=(DeniedTactic(backend_version="8.6.0", device_sha256="d", choices=record.choices),))
    keep = restriction(denied, None)

    assert keep("conv", OFFERED) == [0, 1, 3, 4, 5, 6]
    assert keep("fc", OFFERED) == list(range(7))
    assert keep.notes == ["conv: 1 of 7 tactics are on the deny-list"]


def test_layer_keeps_its_only_tactic() -> None:
    keep = Restriction(frozenset({("conv", OFFERED[0])}))

    assert keep("conv", OFFERED[:1]) == [0]
    assert "all 1 tactics" in keep.notes[0]


def test_seed_selects_half_of_the_tactics() -> None:
    offers = {seed: tuple(Restriction(seed=seed)("conv", OFFERED)) for seed in range(30)}

    assert all(len(offer) == 4 for offer in offers.values())
    assert len(set(offers.values())) > 10
    assert set().union(*offers.values()) == set(range(7))
    assert offers[3] == tuple(Restriction(seed=3)("conv", OFFERED))
    assert Restriction(seed=3)("conv", OFFERED[:1]) == [0]
