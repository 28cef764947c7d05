"""Ops called from Python: options as keywords, arrays from memory, and what is refused by name."""

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import trtops
from tests import models
from trtops import errors, verbs
from trtops.calibration.data import data_source
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.data import open_feeds
from trtops.ops.keywords import config_class_of, configured, option_keywords
from trtops.record import Config, OptionField, Record

QUICK: dict[str, Any] = {"latency_runs": 1, "warm_up": 1, "plots": "never"}
FEED = models.conv_net().feed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.conv_net().write(tmp_path_factory.mktemp("keywords"))


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        pytest.param(FEED, "2 samples in 1 feed", id="arrays"),
        pytest.param([FEED, FEED], "(of 4 rows", id="a list"),
        pytest.param((FEED for _ in range(3)), "(of 6 rows", id="a generator"),
        pytest.param(lambda: [FEED], "2 samples in 1 feed", id="a function"),
    ],
)
def test_data_comes_from_memory(data: Any, samples: str, model: Path) -> None:
    tracker = trtops.MemoryTracker()
    result = trtops.convert(model, data=data, tolerances={"atol": 1e-3}, tracker=tracker, **QUICK)
    assert result.verdict == "good" and samples in result.evidence
    assert re.search("arrays in memory [0-9a-f]{12}", result.evidence)
    assert result.evaluation.report.tolerances.atol == 1e-3
    params = tracker.info(result.run_id).params
    assert params["evidence.source"].startswith("arrays in memory ") and params["evidence.margin"].endswith("of 0.001")


def test_equal_arrays_have_equal_names() -> None:
    assert data_source(FEED) == data_source([dict(FEED)]) != data_source([FEED, FEED])


def test_data_of_another_process_are_refused_with_a_remedy() -> None:
    config = trtops.CheckConfig(data=FEED)  # type: ignore[arg-type]
    read = trtops.CheckConfig.from_dict(config.to_dict())
    assert read.data == config.data
    with pytest.raises(errors.ConfigError, match="of another process"):
        open_feeds(read.data, TensorMetadata())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: trtops.convert(m, "fp16"), errors.ConfigError, "config is 'fp16'; .* such as precision="),
        (lambda m: trtops.convert(m, presicion="fp16"), TypeError, "no option 'presicion'. Did you mean 'precision'"),
        (lambda m: trtops.convert(m, precision="fp17"), errors.ConfigError, "precision: found 'fp17'; .*mean 'fp16'"),
        (lambda m: trtops.convert(m, data=[FEED["image"]]), errors.ConfigError, "data: item 1 is a ndarray"),
        (lambda m: trtops.convert(m, data=3), errors.ConfigError, "data: found int; expected a path"),
        (lambda m: trtops.convert(m, data={"imge": FEED["image"]}), errors.InputError, "imge"),
        (lambda m: trtops.convert(m, tolerances={"atoll": 1}), errors.ConfigError, "'atoll'. Did you mean 'atol'"),
        (lambda m: trtops.convert(m, latency_runs="many"), errors.ConfigError, "latency_runs: found 'many' .* int"),
        (lambda m: trtops.convert(m, shapes={"image": "big"}), errors.ConfigError, "input_shapes: found 'big'"),
        (lambda m: trtops.diff_tactics("nosuchrun"), errors.RunNotFoundError, "nosuchrun"),
    ],
)  # fmt: skip
def test_mistakes_name_the_option(
    call: Callable[[Path], object], error: type[Exception], message: str, model: Path
) -> None:
    with pytest.raises(error, match=message):
        call(model)


def test_values_are_brought_to_the_types_of_their_fields() -> None:
    tolerances = trtops.Tolerances(atol=1, rtol=np.float32(0.5), per_output={"y": {"atol": 0}})  # type: ignore[dict-item]
    assert [type(tolerances.atol), type(tolerances.rtol), type(tolerances.per_output["y"].atol)] == [float] * 3
    assert tolerances.digest == dataclasses.replace(tolerances, atol=1.0).digest
    build = trtops.BuildConfig(keep=["a", "b"], calibration_samples=np.int64(8))  # type: ignore[arg-type]
    assert build.keep == ("a", "b") and type(build.calibration_samples) is int
    with pytest.raises(errors.ConfigError, match="tags: found 3 values"):
        trtops.AuditConfig(experiment="e", tags=(("a", "b", "c"),))  # type: ignore[arg-type]
    assert trtops.CheckConfig(data=Path("a.npz")).data == "a.npz"  # type: ignore[arg-type]


def test_keywords_are_those_of_the_flows() -> None:
    flows = pytest.importorskip("trtops.flows")
    for name in {"convert", "calibrate", "triage", "debug_build"}:
        parameters = set(flows.__getattr__(name).fn.__signature__.parameters)
        assert set(option_keywords(verbs.__getattr__(name).__wrapped__)) <= parameters, name


def test_a_config_and_keywords_are_merged(model: Path) -> None:
    config = trtops.ConvertConfig(rebuild=True, check=trtops.CheckConfig(iterations=1, **QUICK))
    result = trtops.convert(model, config, precision="fp16", data=FEED, tracker=trtops.MemoryTracker())
    assert result.precision == "fp16" and result.verdict == "good"


def test_results_are_short_as_text_and_whole_as_html_and_tables(model: Path) -> None:
    result = trtops.convert(model, data=FEED, tracker=trtops.MemoryTracker(), **QUICK)
    text = str(result)
    assert text.startswith("verdict: good\nbecause: ") and f"next:    trtops runs promote {result.run_id}" in text
    assert len(text.splitlines()) <= 12 and max(map(len, text.splitlines())) <= 80
    html = result._repr_html_()
    assert "<h1>convert conv_net.onnx: good</h1>" in html and "<table>" in html
    frame = result.to_frame()
    assert list(frame.index) == ["scores"] and frame.loc["scores", "verdict"] == "good"
    assert 0 < frame.loc["scores", "max_abs"] < 1e-5


def configs_of_ops() -> Iterator[tuple[str, Callable[..., Any], type[Config]]]:
    for name in dir(trtops):
        op = getattr(trtops, name)
        if inspect.isfunction(op) and (cls := config_class_of(op)) is not None:
            yield name, op, cls  # type: ignore[misc]


def test_equal_numbers_have_equal_digests() -> None:
    """0 and 0.0 are one value, from Python and flows, which share this path, and from YAML and stored JSON."""
    checked = 0
    for name, op, cls in configs_of_ops():
        for key, option in option_keywords(op).items():
            if float not in {option.type, *typing.get_args(option.type)}:
                continue
            for number in (0, 1, 2):
                try:
                    config = configured(cls, {option.path: number})
                except (errors.ConfigError, TypeError):  # out of range, or a required field is missing
                    continue
                values = config.to_dict()
                part: Any = values
                for field in option.path[:-1]:
                    part = part[field]
                part[option.path[-1]] = number
                written = [configured(cls, {option.path: float(number)}), cls.from_dict(values)]
                written.append(cls.from_dict(yaml.safe_load(yaml.safe_dump(json.loads(config.to_json())))))
                assert {other.digest for other in written} == {config.digest}, (name, key, number)
                checked += 1
    assert checked > 50


def test_everything_in_a_config_is_a_config() -> None:
    """Any other record would keep 0 where its field is a float, and take a text for a number."""

    def records(kind: Any) -> Iterator[type[Record]]:
        if isinstance(kind, type) and issubclass(kind, Record):
            yield kind
        for part in typing.get_args(kind):
            yield from records(part)

    unread, seen = [cls for _, _, cls in configs_of_ops()], set()
    for cls in unread:  # it grows
        seen.add(cls)
        for hint in typing.get_type_hints(cls).values():
            unread += {*records(hint)} - seen
    assert [cls.__name__ for cls in seen if not issubclass(cls, Config)] == []
    assert len(seen) > 20


def wrong_values(option: OptionField) -> Iterator[object]:
    """Values that an option must refuse."""
    origin, members = typing.get_origin(option.type), typing.get_args(option.type)
    is_union = origin in (typing.Union, types.UnionType)
    kinds = [kind for kind in (members if is_union else (option.type,)) if kind is not type(None)]
    if option.metadata.get("convert"):
        yield 5
    elif kinds == [bool]:
        yield "yes"
    elif kinds in ([int], [float]):
        yield "word"
        if option.metadata.get("least", 0) is not None:
            yield -1
        if kinds == [float]:
            yield float("nan")
    elif kinds == [str]:
        yield 3
        if option.default != "" and option.metadata.get("file") != "weights":
            yield ""
    elif len(kinds) == 1 and typing.get_origin(kinds[0]) in (tuple, typing.Literal):
        yield 3


@pytest.mark.parametrize("name", verbs.VERBS)
def test_wrong_values_are_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    verb = verbs.__getattr__(name)
    parameters = inspect.signature(verb).parameters.values()
    required: dict[str, Any] = {p.name: "m.onnx" for p in parameters if p.default is p.empty and p.name != "config"}
    required |= {
        "inspect_engines": {"a": "a", "b": "b"}, "diff_tactics": {"folder": "f"},
        "gate_all": {"models": ["m.onnx"]}, "choose_all": {"models": ["m.onnx"]},
        "accuracy": {"actual": trtops.BuildConfig()}, "reduce": {"check": lambda part: True},
    }.get(name, {})  # fmt: skip
    wrong = [
        (keyword, option.name, value)
        for keyword, option in option_keywords(verb).items()
        for value in wrong_values(option)
    ]
    wrong += [(parameter, parameter, 3) for parameter in required]
    wrong += [(p.name, p.name, "") for p in parameters if p.name == "experiment"]
    assert wrong
    for keyword, field, value in wrong:
        with pytest.raises(errors.TrtopsError, match=field):
            verb(**{**required, "tracker": trtops.MemoryTracker(), keyword: value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        lambda: trtops.sanitize("m.onnx", "m.onnx"),
        lambda: trtops.extract("m.onnx", "other.onnx", save_as=trtops.SaveConfig(external_data="m.onnx")),
        lambda: trtops.calibrate("m.onnx", data="d.npz", output="d.npz"),
        lambda: trtops.reduce("m.onnx", lambda part: True, output="m.onnx"),
        lambda: trtops.precision("m.onnx", data="d.npz", save_replay="d.npz"),
        lambda: trtops.concat(["d.npz"], "link.npz"),
    ],
)
def test_outputs_that_are_read_are_refused(
    call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models.conv_net().write(tmp_path, "m")
    np.savez("d.npz", **FEED)
    Path("link.npz").hardlink_to("d.npz")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(errors.ConfigError, match="would overwrite"):
        call()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
