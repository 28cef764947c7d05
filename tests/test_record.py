"""Records: JSON both ways, strict reading, and digests that depend on values alone."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops import errors
from trtops.record import Record, canonical_json, digest, option_fields, sha256, sha256_file, to_jsonable, with_options


class Color(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner(Record):
    """A record within another."""

    color: Color = Color.RED
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer(Record):
    """A record with a field of each kind."""

    name: str
    count: int = 1
    ratio: float = 0.5
    flag: bool = False
    maybe: int | None = None
    path: Path | None = None
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    table: dict[str, float] = field(default_factory=dict)


inners = st.builds(Inner, sizes=st.lists(st.integers(-(2**63), 2**64)).map(tuple))
outers = st.builds(
    Outer,
    name=st.text(),
    count=st.integers(),
    ratio=st.floats(allow_nan=False),
    flag=st.booleans(),
    maybe=st.none() | st.integers(),
    inner=inners,
    many=st.lists(inners, max_size=3).map(tuple),
    table=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=4),
)


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(Outer(name="a", inner=Inner(sizes=(1,)))) == "Outer(name='a', inner=Inner(sizes=(1,)))"
    assert eval(repr(Outer(name="a"))) == Outer(name="a")


@given(outers)
def test_records_round_trip(record: Outer) -> None:
    text = record.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    copy = Outer.from_json(text)

    assert copy == record and copy.digest == record.digest
    assert Outer.from_dict(record.to_dict()) == record


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_nan_and_infinities_round_trip(text: str) -> None:
    record = Outer(name="x", ratio=float(text))

    assert json.loads(record.to_json())["ratio"] == text
    assert repr(Outer.from_json(record.to_json()).ratio) == text


def test_digest_ignores_the_order_of_keys() -> None:
    first = Outer(name="x", table={"a": 1.0, "b": 2.0})
    second = Outer(name="x", table={"b": 2.0, "a": 1.0})

    assert first.digest == second.digest
    assert digest({"b": [1, {"d": 2, "c": 3}], "a": None}) == digest({"a": None, "b": [1, {"c": 3, "d": 2}]})
    assert digest({3, 1, 2}) == digest({2, 3, 1})


def test_the_digest_is_stable_across_processes(tmp_path: Path) -> None:
    code = """
from trtops.record import digest
from trtops.spec import *
profile = OptimizationProfile.fixed(b=(1, 2), a=(3,))
config = BuildConfig(precision="int8", profiles=(profile,), options=TensorRTOptions(also=("fp16", "bf16")))
print(BuildSpec(model_sha256="ab" * 32, config=config).digest, digest({"x", "y", "z", "日本"}))
"""
    command = [sys.executable, "-c", code]
    outputs = {
        subprocess.check_output(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}) for seed in "17"
    }
    assert len(outputs) == 1


def test_json_forms() -> None:
    @dataclass(frozen=True)
    class Hiding(Record):
        shown: int
        _hidden: int = 0

    assert canonical_json({"é": (1, 2.5), "a": Color.RED}) == '{"a":"red","\\u00e9":[1,2.5]}'
    assert Hiding(1, 2).to_dict() == {"shown": 1}
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_jsonable({"x": [object()]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "Outer: name: Field required"),
        ({"name": "x", "cuont": 2}, r"unknown field 'cuont'\. Did you mean 'count'"),
        ({"name": "x", "count": True}, "Outer: count: expected int .found True"),
        ({"name": "x", "count": 2.5}, "Outer: count: "),
        ({"name": "x", "flag": "yes"}, "Outer: flag: expected bool .found 'yes'"),
        ({"name": 3}, "Outer: name: "),
        ({"name": "x", "ratio": "1e3"}, "Outer: ratio: expected float .found '1e3'"),
        ({"name": "x", "inner": {"color": "blue"}}, "inner.color: .*found 'blue'"),
        ({"name": "x", "inner": {"sizes": [1, "2"]}}, "inner.sizes.1: expected int .found '2'"),
        ({"name": "x", "many": [{}, {"size": []}]}, "unknown field 'many.1.size'"),
    ],
)
def test_reading_is_strict_and_names_the_field(data: dict[str, object], message: str) -> None:
    with pytest.raises(errors.FormatError, match=message):
        Outer.from_dict(data)
    with pytest.raises(errors.FormatError, match=message):
        Outer.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', "\x00", "[" * 100_000, '{"name": "x"} tail'])
def test_json_that_is_not_an_object_is_rejected(text: str) -> None:
    with pytest.raises(errors.FormatError, match="Outer: "):
        Outer.from_json(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_raises_only_format_errors(data: object) -> None:
    for document in (data, {"name": data}, {"name": "x", "table": data}):
        try:
            outer = Outer.from_json(json.dumps(document))
        except errors.FormatError as exc:
            assert "Outer" in str(exc)
        else:
            assert Outer.from_json(outer.to_json()) == outer


def test_files_and_bytes_have_one_sha256(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "f").write_bytes(data)

    assert sha256_file(tmp_path / "f") == sha256(data) == sha256(memoryview(data))
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    """A part.

    Attributes:
        share: The share
            that must pass.
        names: Names.
    """

    share: float = 0.5
    names: tuple[str, ...] = field(default=(), metadata={"names": ("--name",)})


@dataclass(frozen=True, kw_only=True)
class Whole(Record):
    """A whole.

    Attributes:
        part: Its part.
        count: How many.
    """

    part: Part = field(default_factory=lambda: Part(share=0.25))
    count: int


def test_options_of_nested_records_have_paths():
    options = {option.path: option for option in option_fields(Whole)}

    assert list(options) == [("part", "share"), ("part", "names"), ("count",)]
    share, names, count = options.values()
    assert (share.type, share.default, share.help) == (float, 0.25, "The share that must pass.")
    assert names.metadata["names"] == ("--name",) and names.name == "names"
    assert count.default is dataclasses.MISSING
    assert next(option_fields(Whole, Whole(count=1, part=Part(share=1.0)))).default == 1.0


def test_fields_that_an_op_does_not_use_are_refused():
    @dataclass(frozen=True, kw_only=True)
    class SomeOpConfig(Record, uses={"part": "names"}):
        part: Part = field(default_factory=lambda: Part(share=0.25))

    assert [option.path for option in option_fields(SomeOpConfig)] == [("part", "names")]
    for part in (Part(), Part(share=0.25, names=("a",)), Part(share=0.0)):  # the defaults of both, and nothing of it
        assert SomeOpConfig(part=part).part == part
    with pytest.raises(errors.ConfigError, match=r"some_op does not use part.share=0.75. .* used are: names."):
        SomeOpConfig(part=Part(share=0.75))
    with pytest.raises(errors.ConfigError, match=r"part.share=0.75"):
        with_options(SomeOpConfig, {("part", "share"): 0.75})
    with pytest.raises(errors.FormatError, match=r"part.share=0.75"):
        SomeOpConfig.from_dict({"part": {"share": 0.75}})

    @dataclass(frozen=True, kw_only=True)
    class OtherOpConfig(Part, uses={"": "names"}):
        """Inherits what it does not use."""

    assert [option.name for option in option_fields(OtherOpConfig)] == ["names"]
    with pytest.raises(errors.ConfigError, match="other_op does not use share"):
        OtherOpConfig(share=0.75)


def test_options_are_set_by_path():
    whole = with_options(Whole, {("count",): 3, ("part", "names"): ("a",)})

    assert whole == Whole(count=3, part=Part(share=0.25, names=("a",)))
    assert with_options(whole, {("part", "share"): 0.0}).part == Part(share=0.0, names=("a",))
    assert with_options(whole, {("part",): Part(), ("part", "names"): ()}).part == Part()
