"""Help and forms of flows say what holds where a number or a choice is not given, and say it truly."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import trtops.flows

FLOWS = sorted(
    path.stem
    for path in Path(trtops.flows.__path__[0]).glob("*.py")
    if f'@trtops_flow(name="{path.stem.replace("_", "-")}")' in path.read_text()
    or f"\ndef {path.stem}(\n" in path.read_text()
)


def numbers_and_choices(function: Any) -> dict[str, str]:
    """The parameters that take a number or a choice and are None unless given, with what is said of them."""
    hints = get_type_hints(function)
    said = inspect.getdoc(function) or ""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = [each for each in get_args(hints.get(name)) if each is not type(None)]
        if parameter.default is None and any(k in (int, float) or get_origin(k) is Literal for k in kinds):
            text = re.search(rf"^    {name}: (.*?)(?=^    \w+: |^\S|\Z)", said, re.MULTILINE | re.DOTALL)
            found[name] = " ".join(text[1].split()) if text else ""
    return found


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_says_what_holds_where_nothing_is_given(name: str) -> None:
    flow = getattr(importlib.import_module(f"trtops.flows.{name}"), name)
    function = getattr(flow, "fn", flow)
    hints = get_type_hints(function)
    config = next((k for k in get_args(hints.get("config")) if dataclasses.is_dataclass(k)), None)
    fields = {f.name: f.default for f in dataclasses.fields(config)} if config else {}
    for parameter, text in numbers_and_choices(function).items():
        assert re.search(r"unless given|without|where", text), f"{name}: {parameter}: {text}"
        told = re.search(r"(\S+) unless given\.", text)
        if told and isinstance(fields.get(parameter), (int, float, str)):
            assert told[1] == str(fields[parameter]), f"{name}: {parameter}: {text}"


def test_every_flow_is_looked_at() -> None:
    assert {"triage", "convert", "gate", "noise"} <= set(FLOWS) and len(FLOWS) > 16
