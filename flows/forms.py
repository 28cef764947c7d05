"""The forms that Prefect's UI makes of flow parameters: titles, choices and ranges in words, since the UI shows no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect.utilities.callables import ParameterSchema

_KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "yes or no",
    "array": "list",
    "null": "not given",
}
_RANGES = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minItems": "{} or more of them",
}


def form_of(flow: Any) -> ParameterSchema:
    """The schema that Prefect's form for a flow is made of.

    Descriptions are those of the docstrings: of the flow, and of the records among its parameters.
    """
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(flow)
    for parts in (schema.properties, *(each.get("properties", {}) for each in schema.definitions.values())):
        for name, part in parts.items():
            part["title"] = name.replace("_", " ").capitalize()
            if "description" in part:
                part["description"] += _range_sentence(part)
            for way in part.get("anyOf", ()):
                if "$ref" not in way:
                    way["title"] = _title_of_way(way)
    return schema


def _title_of_way(way: Mapping[str, Any]) -> str:
    """What stands on the button for one of several kinds of value: the form shows neither choices nor ranges before."""
    if choices := way.get("enum") or ([way["const"]] if "const" in way else []):
        return " | ".join(map(str, choices))
    kind = "path" if way.get("format") == "path" else _KINDS.get(way.get("type", ""), "value")
    return f"{kind}, {limits}" if (limits := _range_in_words(way)) else kind


def _range_in_words(part: Mapping[str, Any]) -> str:
    return " and ".join(words.format(f"{part[key]:g}") for key, words in _RANGES.items() if key in part)


def _range_sentence(part: Mapping[str, Any]) -> str:
    return f" ({limits})" if (limits := _range_in_words(part)) else ""
