"""A campaign in one table."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tactics.synthetic import campaign
from trtops import errors
from trtops.tactics.merge import merge
from trtops.tactics.record import TacticChoice, TacticRecord, TensorFormat
from trtops.tactics.table import CampaignTable


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


def test_builds_become_rows_and_layers_columns_that_may_appear_late():
    table = CampaignTable()
    table.append("r0", "good", record(a="x", b="y"))
    table.append("r1", "error")
    table.append("r2", "bad", record(a="y", c="x"))

    assert table.names == ("r0", "r1", "r2") and table.layers == ("a", "b", "c")
    assert [c.tactic for c in table.choices] == ["x", "y"]
    assert table.codes.tolist() == [[0, 1, -1], [-1, -1, -1], [1, -1, 0]]
    assert table.named("error") == ("r1",)


def test_a_build_counts_once_and_only_an_error_may_lack_a_record():
    table = CampaignTable()
    table.append("r0", "good", record(a="x"))

    with pytest.raises(errors.ConfigError, match="'r0' is in the table already"):
        table.append("r0", "bad", record(a="x"))
    with pytest.raises(errors.ConfigError, match="evaluated bad but has no tactic record"):
        table.append("r1", "bad")
    assert len(table) == 1


def test_layers_of_the_same_name_are_both_kept():
    choices = tuple(TacticChoice(layer="fc", op="Gemm", tactic=t) for t in "xyz")
    table = CampaignTable()
    table.append(
        "r", "good", TacticRecord(mechanism="inspector", backend_version="", device_sha256="", choices=choices)
    )

    assert table.layers == ("fc", "fc#2", "fc#3")


def test_a_table_grows_the_same_whether_it_was_saved_in_between_or_not():
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
def test_every_table_survives_its_bytes(seed, builds, ordered):
    table = campaign(seed, builds, culprit="none", ordered=ordered).table

    assert same(CampaignTable.from_bytes(table.to_bytes()), table)


def test_a_table_that_does_not_say_whether_it_is_ordered_is():
    head = b'{"names":[],"layers":[],"settings":[],"choices":[],"values":[]}'

    assert CampaignTable.from_bytes(packed(len(head).to_bytes(8, "little") + head)).ordered


def test_a_merged_table_is_ordered_if_all_are_that_builds_came_from():
    campaigns = campaign(1, 4).table
    files = CampaignTable(ordered=False)
    files.append("file", "good", record(a="x"))

    assert merge([(campaigns, None), (CampaignTable(ordered=False), None)]).ordered
    assert not merge([(campaigns, None), (files, None)]).ordered
    assert merge([(campaigns, None), (files, ["another"])]).ordered


def test_ten_thousand_builds_of_two_hundred_layers_take_less_than_a_byte_per_choice():
    table = campaign(1, 10_000, layers=200, culprit="none").table

    assert len(table.to_bytes()) < table.codes.size


@pytest.mark.parametrize("cut", [0, 1, 30, 100, -1])
def test_a_table_that_is_cut_short_is_refused(cut):
    data = campaign(1, 20, culprit="none").table.to_bytes()

    with pytest.raises(errors.FormatError, match=r"[Cc]ampaign table"):
        CampaignTable.from_bytes(data[:cut])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_table_with_a_changed_byte_is_refused_unless_it_says_the_same(data):
    """A few bits of compressed data can be otherwise and unpack to the same, whose digest is right."""
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
    line = f"trtops-campaign {version} {hashlib.sha256(body).hexdigest()} {len(body) if size is None else size}\n"
    return line.encode() + zlib.compress(body)


def test_a_newer_version_is_refused_by_name():
    with pytest.raises(errors.FormatError, match="version 2; this trtops reads 1"):
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
def test_content_that_contradicts_itself_is_refused_even_with_a_right_digest(head):
    body = len(head).to_bytes(8, "little") + head + bytes(2)

    with pytest.raises(errors.FormatError):
        CampaignTable.from_bytes(packed(body))


def test_a_code_that_points_nowhere_is_refused():
    with pytest.raises(errors.FormatError, match="codes hold 3; expected -1 to 0"):
        CampaignTable.from_columns(names=["r"], verdicts=["good"], layers=["a"], choices=_one_choice(), codes=[[3]])


def _one_choice():
    table = CampaignTable()
    table.append("r", "good", record(a="x"))
    return table.choices


def test_a_size_that_no_compression_reaches_is_refused_before_anything_is_unpacked():
    with pytest.raises(errors.FormatError, match="cannot be"):
        CampaignTable.from_bytes(packed(b"x" * 100, size=10**12))
