"""A campaign in one table."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tactics.synthetic import campaign
from trtops import errors
from trtops.tactics.record import TacticChoice, TacticRecord, TensorFormat
from trtops.tactics.table import CampaignTable, merge


def record(settings: dict[str, str] | None = None, **tactics: str) -> TacticRecord:
    formats = (TensorFormat(dtype="float32", strides=(8, 1), vectorized_dim=1, components_per_element=4),)
    return TacticRecord(
        mechanism="onnxruntime",
        backend_version="1.20",
        device_sha256="d",
        settings=tuple(sorted((settings or {}).items())),
        choices=tuple(TacticChoice(layer=k, op="Conv", tactic=v, inputs=formats) for k, v in tactics.items()),
    )


def same(a: CampaignTable, b: CampaignTable) -> bool:
    attributes = ("names", "layers", "settings", "choices", "values", "ordered")
    arrays = ("codes", "setting_codes", "verdicts")
    return all(getattr(a, n) == getattr(b, n) for n in attributes) and all(
        np.array_equal(getattr(a, n), getattr(b, n)) for n in arrays
    )


def test_layers_may_appear_late():
    table = CampaignTable()
    table.append("r0", "good", record(a="x", b="y"))
    table.append("r1", "error")
    table.append("r2", "bad", record(a="y", c="x"))

    assert table.names == ("r0", "r1", "r2") and table.layers == ("a", "b", "c")
    assert [c.tactic for c in table.choices] == ["x", "y"]
    assert table.codes.tolist() == [[0, 1, -1], [-1, -1, -1], [1, -1, 0]]
    assert table.named("error") == ("r1",)


def test_append_refuses_duplicates_and_missing_records():
    table = CampaignTable()
    table.append("r0", "good", record(a="x"))

    with pytest.raises(errors.ConfigError, match="'r0' is in the table already"):
        table.append("r0", "bad", record(a="x"))
    with pytest.raises(errors.ConfigError, match="is bad but has no tactic record"):
        table.append("r1", "bad")
    assert len(table) == 1


def test_layers_of_one_name_are_kept():
    choices = tuple(TacticChoice(layer="fc", op="Gemm", tactic=t) for t in "xyz")
    table = CampaignTable()
    table.append(
        "r", "good", TacticRecord(mechanism="inspector", backend_version="", device_sha256="", choices=choices)
    )

    assert table.layers == ("fc", "fc#2", "fc#3")


def test_saved_table_continues_to_grow():
    straight, saved = CampaignTable(), CampaignTable()
    rows = [
        ("r0", "good", record(a="x", b="y")),
        ("r1", "error", None),
        ("r2", "bad", record({"fusion": "1"}, a="y", c="x")),
        ("r3", "good", record({"fusion": "0"}, a="x", d="ü")),
    ]
    for row in rows:
        straight.append(*row)
        saved.append(*row)
        saved = CampaignTable.from_bytes(saved.to_bytes())

    assert same(straight, saved)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 40), st.booleans())
def test_bytes_round_trip(seed, builds, ordered):
    table = campaign(seed, builds, culprit="none", ordered=ordered).table

    assert same(CampaignTable.from_bytes(table.to_bytes()), table)


def test_merged_table_is_ordered_if_all_are():
    campaigns = campaign(1, 4).table
    files = CampaignTable(ordered=False)
    files.append("file", "good", record(a="x"))

    assert merge([(campaigns, None), (CampaignTable(ordered=False), None)]).ordered
    assert not merge([(campaigns, None), (files, None)]).ordered
    assert merge([(campaigns, None), (files, ["another"])]).ordered


def test_file_takes_under_a_byte_per_choice():
    table = campaign(1, 10_000, layers=200, culprit="none").table

    assert len(table.to_bytes()) < table.codes.size


@pytest.mark.parametrize("cut", [0, 1, 30, 100, -1])
def test_truncated_table_is_refused(cut):
    data = campaign(1, 20, culprit="none").table.to_bytes()

    with pytest.raises(errors.FormatError, match=r"[Cc]ampaign table"):
        CampaignTable.from_bytes(data[:cut])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_byte_is_refused(data):
    """A few bits of compressed data can be changed and unpack to the same."""
    sound = campaign(1, 12, culprit="none", layers=20).table.to_bytes()
    whole = bytearray(sound)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))

    try:
        found = CampaignTable.from_bytes(bytes(whole))
    except errors.FormatError:
        return
    assert found.to_bytes() == sound


def packed(body: bytes, version: int = 1, size: int | None = None) -> bytes:
    return b"trtops-campaign %d %d\n" % (version, len(body) if size is None else size) + zlib.compress(body)


def test_newer_version_is_refused():
    with pytest.raises(errors.FormatError, match="Not a campaign table of version 1"):
        CampaignTable.from_bytes(packed(b"12345678{}", version=2))


@pytest.mark.parametrize(
    "head",
    [
        b"{}",
        b"[]",
        b'{"names":["a"],"layers":["l"],"settings":[],"choices":[],"values":[]}',
        b'{"names":["a","a"],"layers":[],"settings":[],"choices":[],"values":[]}',
        b'{"names":[],"layers":[],"settings":[],"choices":[{"tactic":"x"}],"values":[]}',
        b'{"names":[],"layers":[],"settings":[],"choices":[{"tactic":"x","inputs":[{}],"outputs":[]}],"values":[]}',
    ],
)
def test_contradicting_content_is_refused(head):
    body = len(head).to_bytes(8, "little") + head + bytes(2)

    with pytest.raises(errors.FormatError):
        CampaignTable.from_bytes(packed(body))


def test_code_out_of_range_is_refused():
    with pytest.raises(errors.FormatError, match="codes hold 3; expected -1 to 0"):
        CampaignTable.from_columns(names=["r"], verdicts=["good"], layers=["a"], choices=_one_choice(), codes=[[3]])


def _one_choice():
    table = CampaignTable()
    table.append("r", "good", record(a="x"))
    return table.choices


def test_impossible_size_is_refused():
    with pytest.raises(errors.FormatError, match="impossible"):
        CampaignTable.from_bytes(packed(b"x" * 100, size=10**12))
