"""A campaign in one table."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tactics.synthetic import campaign, record
from trtops import errors
from trtops.tactics.table import CampaignTable


def same(a: CampaignTable, b: CampaignTable) -> bool:
    attributes = ("names", "columns", "choices", "ordered")
    return all(getattr(a, n) == getattr(b, n) for n in attributes) and all(
        np.array_equal(getattr(a, n), getattr(b, n)) for n in ("codes", "verdicts")
    )


def test_layers_may_appear_late():
    table = CampaignTable()
    table.append("r0", "good", record(a="x", b="y"))
    table.append("r1", "error")
    table.append("r2", "bad", record(a="y", c="x"))

    assert table.names == ("r0", "r1", "r2") and table.layers == ("a", "b", "c")
    names = [[None if code < 0 else getattr(table.choices[code], "tactic", "") for code in row] for row in table.codes]
    assert names == [["x", "y", "", "", None], [None] * 5, ["y", None, "", "", "x"]]
    assert table.named("error") == ("r1",)
    assert table.has(("layer", "a"), "y").tolist() == [False, False, True]
    assert table.has(("setting", "backend_version"), "1.20").tolist() == [True, False, True]
    assert not table.has(("layer", "missing"), "x").any()


def test_append_refuses_duplicates_and_missing_records():
    table = CampaignTable()
    table.append("r0", "good", record(a="x"))

    with pytest.raises(errors.ConfigError, match="'r0' is in the table already"):
        table.append("r0", "bad", record(a="x"))
    with pytest.raises(errors.ConfigError, match="is bad but has no tactic record"):
        table.append("r1", "bad")
    assert len(table) == 1


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


def test_taken_builds_keep_their_choices():
    first, second = CampaignTable(), CampaignTable(ordered=False)
    first.append("a", "good", record(x="1"))
    second.append("a", "bad", record(x="2"))
    second.append("b", "bad", record(y="3", x="2"))
    second.append("c", "good", record(x="1"))
    table = CampaignTable()
    table.take(first, first.names)
    table.take(CampaignTable(ordered=False), ())
    assert table.ordered and same(table, first)

    table.take(second, ["c", "b", "a", "unknown"])

    assert (table.names, table.named("good"), table.ordered) == (("a", "c", "b"), ("a", "c"), False)
    assert table.has(("layer", "x"), "1").tolist() == [True, True, False]
    assert table.has(("layer", "y"), "3").tolist() == [False, False, True]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_byte_never_changes_the_content(data):
    """A table that is cut off is refused. Some bytes of an archive, such as times of its members, have no meaning."""
    sound = campaign(1, 12, culprit="none", layers=20).table
    whole = bytearray(sound.to_bytes())
    position = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(errors.FormatError, match=r"[Cc]ampaign table"):
        CampaignTable.from_bytes(bytes(whole[:position]))
    whole[position] ^= data.draw(st.integers(1, 255))

    try:
        loaded = CampaignTable.from_bytes(bytes(whole))
    except errors.FormatError:
        return
    assert same(loaded, sound)


@pytest.mark.parametrize(
    ("head", "codes"),
    [
        (b"", [[0]]),
        (b"{}", [[0]]),
        (b"[]", [[0]]),
        (b'{"names":["a","a"],"columns":[],"choices":[],"ordered":true}', [[], []]),
        (b'{"names":["a"],"columns":[["layer"]],"choices":["x"],"ordered":true}', [[0]]),
        (b'{"names":["a"],"columns":[["layer","l"]],"choices":[{"tactic":1}],"ordered":true}', [[0]]),
        (b'{"names":["a"],"columns":[["layer","l"]],"choices":["x"],"ordered":true}', [[0, 0]]),
        (b'{"names":["a"],"columns":[["layer","l"]],"choices":["x"],"ordered":true}', [[-2]]),
    ],
)
def test_contradicting_content_is_refused(head, codes):
    file = io.BytesIO()
    np.savez_compressed(
        file, head=np.frombuffer(head, np.uint8), verdicts=np.zeros(len(codes), np.uint8), codes=np.array(codes)
    )

    with pytest.raises(errors.FormatError, match=r"Campaign table|Choice"):
        CampaignTable.from_bytes(file.getvalue())


def test_archive_of_impossible_size_is_refused():
    file = io.BytesIO()
    np.savez_compressed(file, head=np.zeros(1 << 27, np.uint8))

    with pytest.raises(errors.FormatError, match="far more than its size"):
        CampaignTable.from_bytes(file.getvalue())
