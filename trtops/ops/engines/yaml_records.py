"""Read records from YAML. All errors of a file are reported together, each with its line."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from trtops import errors
from trtops.record import Record

R = TypeVar("R", bound=Record)
Place: TypeAlias = tuple["str | int", ...]

_MOST_VALUES = 100_000  # aliases of aliases can stand for more values than memory holds


@dataclass(frozen=True)
class Document:
    """A YAML file: its values, their lines, and the problems found so far."""

    path: str
    data: Any
    lines: Mapping[Place, int]
    problems: list[str] = field(default_factory=list)

    def line(self, place: Place) -> int:
        """The line of a value, or of the innermost value around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def complain(self, place: Place, text: str) -> None:
        """Add a problem with a value."""
        self.problems.append(f"{self.path}:{self.line(place)}: {text}")

    def raise_problems(self) -> None:
        """Raise FormatError with all problems, by line, if there are any."""
        if self.problems:
            start = len(self.path) + 1
            by_line = sorted(dict.fromkeys(self.problems), key=lambda text: int(text[start:].split(":")[0]))
            raise errors.FormatError("\n".join(by_line))

    def record(self, kind: type[R], place: Place, value: Any) -> R | None:
        """Read a value as a record; None, after adding problems, if that fails.

        Args:
            kind: The record's class.
            place: Where the value is in the file.
            value: The value of ``place``, possibly merged with defaults.
        """
        import pydantic

        try:
            # As JSON, a list is accepted for a tuple, although "3" is not accepted for 3 in strict mode.
            return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except pydantic.ValidationError as exc:
            for problem in exc.errors(include_url=False):
                self._add_problem(kind, place, problem)
            return None

    def _add_problem(self, kind: type[Any], place: Place, problem: Any) -> None:
        where = place
        for part in problem["loc"]:  # parts that are not in the file name the alternative of a union
            where = (*where, part) if (*where, part) in self.lines else where
        name = problem["loc"][-1] if problem["loc"] else ""
        if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = _fields_at(kind, problem["loc"][:-1])
            self.complain(where, f"unknown key {name!r}. {errors.near(str(name), known)}")
            return
        text = str(problem["msg"]).removeprefix("Value error, ")
        found = "" if problem["type"] in ("missing", "value_error") else f" (found {problem['input']!r:.60})"
        hint = ""
        if problem["type"] == "literal_error":
            hint = " " + errors.near(str(problem["input"]), re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
            if name == "[key]":  # pydantic's place of a key that is not among the choices of a mapping
                self.complain(where, f"unknown key {problem['input']!r}.{hint}")
                return
        name = name if problem["type"] == "missing" else ".".join(map(str, where[len(place) :]))
        self.complain(where, f"{name}: {text}{found}{hint}" if name else f"{text}{found}{hint}")


def _fields_at(kind: Any, place: Sequence[Any]) -> list[str]:
    """The fields of the record at a place inside a record's class; empty if there is no record."""
    for part in place:
        if dataclasses.is_dataclass(kind):
            kind = get_type_hints(kind).get(str(part))
        else:
            kind = next((each for each in reversed(get_args(kind)) if each is not Ellipsis), None)
        if get_origin(kind) in (Union, types.UnionType):
            kind = next((each for each in get_args(kind) if dataclasses.is_dataclass(each)), kind)
    return [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def read_yaml(path: str | Path) -> Document:
    """Read a YAML file of plain values.

    Raises:
        FormatError: If the file cannot be read, is not YAML, or holds anything but text, numbers, truth values, lists
            and mappings; the message has the line.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        node = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as exc:
        raise errors.FormatError(f"{path} cannot be read: {exc.strerror}.") from None
    except UnicodeDecodeError as exc:
        raise errors.FormatError(f"{path} is not UTF-8 text: {exc.reason} at byte {exc.start}.") from None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise errors.FormatError(f"{where}: not YAML: {exc.problem or exc.context}.") from None
    except (yaml.YAMLError, RecursionError) as exc:
        raise errors.FormatError(f"{path}: not YAML: {exc}.") from None
    lines: dict[Place, int] = {}
    document = Document(str(path), None, lines)
    data = None if node is None else _plain_value(node, (), document, lines)
    document.raise_problems()
    return Document(str(path), data, lines)


def _plain_value(node: Any, place: Place, document: Document, lines: dict[Place, int]) -> Any:
    """The value of a node; the lines of all values in it are added to ``lines``."""
    import yaml

    if len(lines) > _MOST_VALUES or len(place) > 50:
        raise errors.FormatError(f"{document.path}: its aliases stand for more values than a file of this kind has.")
    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_plain_value(item, (*place, i), document, lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        if node.tag.rpartition(":")[2] not in ("str", "int", "float", "bool", "null"):
            document.complain(place, f"{node.value!r} is read as a {node.tag.rpartition(':')[2]}. Put it in quotes.")
            return None
        return yaml.SafeLoader("").construct_object(node)
    found: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            document.complain(place, "a key is not text.")
            continue
        inner = (*place, key.value)
        if key.value in found:
            document.complain(place, f"{key.value!r} is here twice, again in line {key.start_mark.line + 1}.")
            continue
        found[key.value] = _plain_value(value, inner, document, lines)
        lines[inner] = key.start_mark.line + 1  # of the key, because a long value begins later
    return found
