"""Records from YAML, with the number of a line in every complaint.

What people write by hand is checked as a whole: all that is wrong is said at once, each with file and line.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from trtops import errors
from trtops.record import Record

R = TypeVar("R", bound=Record)
Place: TypeAlias = tuple["str | int", ...]

_MOST_VALUES = 100_000  # a few aliases of aliases stand for more than any memory holds


@dataclass(frozen=True)
class Document:
    """A YAML file: its values, where each stands, and what was found wrong so far.

    Attributes:
        path: The file, as it was named.
        data: The values.
        lines: The line, from 1 on, of each value by its place.
        problems: Complaints, each with its line.
    """

    path: str
    data: Any
    lines: Mapping[Place, int]
    problems: list[str] = field(default_factory=list)

    def line(self, place: Place) -> int:
        """The line of a value, or of the innermost one around it that is there."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def complain(self, place: Place, text: str) -> None:
        """Note what is wrong with a value."""
        self.problems.append(f"{self.path}:{self.line(place)}: {text}")

    def raise_problems(self) -> None:
        """Raise if there are complaints.

        Raises:
            FormatError: With all of them, by line.
        """
        if self.problems:
            by_line = sorted(
                dict.fromkeys(self.problems), key=lambda text: int(text[len(self.path) + 1 :].split(":")[0])
            )
            raise errors.FormatError("\n".join(by_line))

    def record(self, kind: type[R], place: Place, value: Any) -> R | None:
        """Read a value as a record; None, with complaints, if it is not one.

        Args:
            kind: The record's class.
            place: Where the value stands in the file.
            value: The value: that of ``place``, or one with defaults put in.
        """
        import pydantic

        before = len(self.problems)
        self._check_keys(kind, place, value)
        if len(self.problems) > before:
            return None
        try:
            # As JSON, a list is fine for a tuple, though in strict mode "3" is not for 3.
            return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except pydantic.ValidationError as exc:
            for problem in exc.errors(include_url=False):
                self._complain_of_value(place, problem)
            return None

    def _complain_of_value(self, place: Place, problem: Any) -> None:
        where = place
        for part in problem["loc"]:  # parts that are no places say which of several types was tried
            where = (*where, part) if (*where, part) in self.lines else where
        text = str(problem["msg"]).removeprefix("Value error, ")
        found = "" if problem["type"] in ("missing", "value_error") else f" (found {problem['input']!r:.60})"
        hint = ""
        if problem["type"] == "literal_error":
            hint = " " + errors.near(str(problem["input"]), re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
        name = problem["loc"][-1] if problem["type"] == "missing" else ".".join(map(str, where[len(place) :]))
        self.complain(where, f"{name}: {text}{found}{hint}" if name else f"{text}{found}{hint}")

    def _check_keys(self, kind: Any, place: Place, value: Any) -> None:
        """Complain of keys that no field, or no choice, has the name of."""
        for part, inner, known in _inner_types(kind, value):
            if known is not None and part not in known:
                self.complain((*place, part), f"unknown key {part!r}. {errors.near(str(part), known)}")
            else:
                self._check_keys(inner, (*place, part), value[part])


def _inner_types(kind: Any, value: Any) -> Iterator[tuple[Any, Any, Sequence[str] | None]]:
    """Of a value of some type: each key or index, the type of what is there, and the keys that there may be (None: any)."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for choice in arguments:
            yield from _inner_types(choice, value)
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        known = [f.name for f in dataclasses.fields(kind)]
        yield from ((key, hints.get(key), known) for key in value)
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        choices = list(get_args(arguments[0])) if get_origin(arguments[0]) is Literal else None
        yield from ((key, arguments[1], choices) for key in value)
    elif origin is tuple and isinstance(value, list):
        yield from ((index, arguments[0], None) for index in range(len(value)))


def read_yaml(path: str | Path) -> Document:
    """Read a YAML file of plain values.

    Raises:
        FormatError: If it is not there, no YAML, or holds something that is no text, number, truth value, list or mapping;
            the message has the line.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        node = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as exc:
        raise errors.FormatError(f"{path} cannot be read: {exc.strerror}.") from None
    except UnicodeDecodeError as exc:
        raise errors.FormatError(f"{path} is no UTF-8 text: {exc.reason} at byte {exc.start}.") from None
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
    """The value of a node, with the lines of all that is in it noted."""
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
            document.complain(place, "a key is no text.")
            continue
        inner = (*place, key.value)
        if key.value in found:
            document.complain(place, f"{key.value!r} stands here twice, again in line {key.start_mark.line + 1}.")
            continue
        found[key.value] = _plain_value(value, inner, document, lines)
        lines[inner] = key.start_mark.line + 1  # where a long value begins is not where one looks for it
    return found
