"""Tactic replays: Polygraphy's file both ways, trtops' record both ways, and errors of replays."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.backend.trt import api
from trtops import errors
from trtops.backend.base import Caches
from trtops.backend.trt import Algorithm, TacticReplayData, TensorInfo, library
from trtops.backend.trt.choices import editable, selector
from trtops.backend.trt.choices.selector import Restriction, restriction_for
from trtops.backend.trt.lines import release_line
from trtops.spec import Layer
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticRecord

# As Polygraphy 0.53 writes it.
POLYGRAPHY_FILE = """{
    "replay": {
        "conv0 + relu0": {
            "implementation": 2147483657,
            "tactic": -3946921629105938337,
            "inputs": [{"dtype": "DataType.HALF", "strides": [4096, 64, 8, 1], "vectorized_dim": 1,
                        "components_per_element": 8, "polygraphy_class": "TensorInfo"}],
            "outputs": [{"dtype": "DataType.FLOAT", "strides": [8, 1], "vectorized_dim": -1,
                         "components_per_element": 1, "polygraphy_class": "TensorInfo"}],
            "polygraphy_class": "Algorithm"
        },
        "a": {"implementation": 0, "tactic": 0, "inputs": [], "outputs": [], "polygraphy_class": "Algorithm"}
    },
    "polygraphy_class": "TacticReplayData"
}"""
WHERE = {"backend_version": "8.6.0", "device_sha256": "d" * 64}


@pytest.fixture
def replay() -> TacticReplayData:
    return TacticReplayData.from_json(POLYGRAPHY_FILE)


def test_polygraphys_files_are_read_and_written(replay):
    assert list(replay) == ["conv0 + relu0", "a"]
    assert replay["conv0 + relu0"].tactic == -3946921629105938337
    assert replay["conv0 + relu0"].inputs == (TensorInfo("DataType.HALF", (4096, 64, 8, 1), 1, 8),)
    assert json.loads(replay.to_json()) == json.loads(POLYGRAPHY_FILE)
    text = POLYGRAPHY_FILE  # older releases mark objects in another way
    for kind in ("TensorInfo", "Algorithm", "TacticReplayData"):
        text = text.replace(
            f'"polygraphy_class": "{kind}"', f'"__polygraphy_encoded_{kind}": "polygraphy_serialized_json_type"'
        )

    assert TacticReplayData.from_json(text) == replay


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"replay": 3, "polygraphy_class": "TacticReplayData"}', POLYGRAPHY_FILE[:200], "[" * 10000],
)
def test_other_or_damaged_files_are_refused(text):
    with pytest.raises(errors.FormatError):
        TacticReplayData.from_json(text)


def test_record_holds_replayable_and_other_layers(replay):
    layers = (Layer(name="conv0 + relu0", op="CaskConvolution"), Layer(name="myelin", op="ForeignNode", tactic="fused"))

    record = selector.to_record(replay, layers=layers, **WHERE)

    assert record.mechanism == "algorithm_selector"
    replayable = {"conv0 + relu0": True, "a": True, "myelin": False}
    assert {c.layer: c.replayable for c in record.choices} == replayable
    assert record.coverage == pytest.approx(2 / 3)
    assert selector.from_record(TacticRecord.from_json(record.to_json())) == replay
    other, old = TacticReplayData(replay), replay["conv0 + relu0"]
    formats = (TensorInfo("DataType.FLOAT", (64, 64, 8, 1)),)
    other["conv0 + relu0"] = Algorithm(old.implementation, old.tactic, formats, old.outputs)
    assert record.differing_layers(selector.to_record(other, layers=layers, **WHERE)) == ("conv0 + relu0",)


def test_replay_gets_the_timing_cache_when_needed(replay):
    record = selector.to_record(replay, **WHERE)

    assert Caches.replaying(record, b"timings") == Caches(replay=record, timing=b"timings")
    assert Caches.replaying(replace(record, mechanism="editable_timing_cache"), b"timings").timing == b"timings"
    assert Caches.replaying(replace(record, mechanism="onnxruntime"), b"timings").timing is None


def test_changed_or_missing_layers_are_listed(replay):
    fewer = TacticReplayData({"conv0 + relu0": replay["conv0 + relu0"]})
    differing = {"conv0 + relu0": "TensorRT chose something else"}

    selector.check_followed(SimpleNamespace(data=replay, chosen=replay, mismatches={}))
    selector.check_followed(object())  # another selector, which says nothing
    with pytest.raises(errors.TacticMismatchError, match=r"2 of 2 layers") as caught:
        selector.check_followed(SimpleNamespace(data=replay, chosen=fewer, mismatches=differing))

    assert caught.value.layers == ("conv0 + relu0", "a")
    assert "no such layer in this build" in str(caught.value)


def test_record_is_not_replayed_by_another_mechanism(replay, monkeypatch):
    monkeypatch.setattr(library, "line", lambda: release_line(api.stand_in("11.4.0")))

    with pytest.raises(errors.FormatError, match=r"algorithm_selector.*11\.4\.0"):
        editable.entries_of(selector.to_record(replay, **WHERE))
    with pytest.raises(errors.FormatError, match="editable_timing_cache"):
        selector.from_record(editable.to_record({}, layers=(), **WHERE))


def test_replay_text_is_that_of_polygraphy():
    info = TensorInfo("DataType.FLOAT", (2, 1), -1, 1)
    replay = TacticReplayData().add("conv0", Algorithm(3, -7, (info,), ()))

    class Member:  # of trt.DataType, which prints as this
        def __str__(self):
            return "DataType.FLOAT"

    assert str(replay) == (
        "Layer: conv0\n    Algorithm: (Implementation: 3, Tactic: -7) | "
        "Inputs: (TensorInfo(DataType.FLOAT, (2, 1), -1, 1),) | Outputs: ()"
    )
    assert info.dtype.name == "FLOAT" and info.dtype != "DataType.HALF" and info.dtype == Member()
    assert TacticReplayData.from_json(replay.to_json()) == replay


OFFERED = [Algorithm(1, tactic, (), ()) for tactic in range(7)]


def test_denied_tactic_is_not_offered() -> None:
    record = selector.to_record(TacticReplayData({"conv": OFFERED[2]}), **WHERE)
    denied = DenyList(entries=(DeniedTactic(**WHERE, choices=record.choices, run="ab12"),))
    keep = restriction_for(denied, None)

    assert keep("conv", OFFERED) == [0, 1, 3, 4, 5, 6]
    assert keep("fc", OFFERED) == list(range(7))
    assert keep("conv", OFFERED[2:3]) == [0]  # a layer keeps its only tactic
    assert keep.notes[0] == "conv: 1 of 7 tactics are on the deny-list" and "all 1 tactics" in keep.notes[1]
    [left_out] = keep.left_out
    assert left_out.startswith(record.choices[0].tactic) and "of conv is denied by run ab12 (" in left_out


def test_recorded_tactic_is_preferred_where_offered() -> None:
    record = selector.to_record(TacticReplayData({"conv": OFFERED[2], "gone": OFFERED[0]}), **WHERE)
    prefer = selector.preferring(record, Restriction({("conv", OFFERED[1]): "denied"}))

    assert prefer("conv", OFFERED) == [2] and prefer("new", OFFERED) == list(range(len(OFFERED)))
    assert prefer("conv", OFFERED[:2]) == [0]  # the other one is denied


def test_seed_selects_half_of_the_tactics() -> None:
    offers = {seed: tuple(Restriction(seed=seed)("conv", OFFERED)) for seed in range(30)}

    assert all(len(offer) == 4 for offer in offers.values())
    assert len(set(offers.values())) > 10
    assert set().union(*offers.values()) == set(range(7))
    assert offers[3] == tuple(Restriction(seed=3)("conv", OFFERED))
    assert Restriction(seed=3)("conv", OFFERED[:1]) == [0]
