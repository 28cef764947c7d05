"""Read records from YAML. All errors of a file are reported together, each with its line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

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

    def line(self, key_path: Place) -> int:
        """The line of a value, or of the innermost value around it."""
        while key_path and key_path not in self.lines:
            key_path = key_path[:-1]
        return self.lines.get(key_path, 1)

    def complain(self, key_path: Place, text: str) -> None:
        """Add a problem with a value."""
        self.problems.append(f"{self.path}:{self.line(key_path)}: {text}")

    def raise_problems(self) -> None:
        """Raise FormatError with all problems, by line, if there are any."""
        if self.problems:
            start = len(self.path) + 1
            by_line = sorted(dict.fromkeys(self.problems), key=lambda text: int(text[start:].split(":")[0]))
            raise errors.FormatError("\n".join(by_line))

    def record(self, kind: type[R], key_path: Place, value: Any) -> R | None:
        """Read a value, possibly merged with defaults, as a record; on failure add problems and return None."""
        import pydantic

        try:
            # As JSON, a list is accepted for a tuple, although "3" is not accepted for 3 in strict mode.
            return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except pydantic.ValidationError as exc:
            for problem in exc.errors(include_url=False):
                where = key_path
                for part in problem["loc"]:  # parts that are not in the file name the alternative of a union
                    where = (*where, part) if (*where, part) in self.lines else where
                name = ".".join(map(str, where[len(key_path) :]))
                if problem["type"] == "missing":
                    name = str(problem["loc"][-1])
                if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
                    self.complain(where, f"unknown key {name!r}.")
                    continue
                text = str(problem["msg"]).removeprefix("Value error, ")
                excerpt = "" if problem["type"] in ("missing", "value_error") else f" (found {problem['input']!r:.60})"
                self.complain(where, f"{name}: {text}{excerpt}" if name else f"{text}{excerpt}")
            return None


def read_yaml(path: str | Path) -> Document:
    """Read a YAML file of text, numbers, truth values, lists and mappings; FormatError with the line if it is bad."""
    import yaml  # type: ignore[import-untyped]

    try:
        node = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.FormatError(f"{path} cannot be read: {exc}.") from None
    except (yaml.YAMLError, RecursionError) as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise errors.FormatError(f"{where}: not YAML: {getattr(exc, 'problem', None) or exc}.") from None
    lines: dict[Place, int] = {}
    document = Document(str(path), None, lines)
    data = None if node is None else _plain_value(node, (), document, lines)
    document.raise_problems()
    return Document(str(path), data, lines)


def merge(below: Any, above: Any) -> Any:
    """Merge nested mappings; anything else in ``above`` replaces the value in ``below``."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}


def _plain_value(node: Any, key_path: Place, document: Document, lines: dict[Place, int]) -> Any:
    """The value of a node; the lines of all values in it are added to ``lines``."""
    import yaml

    if len(lines) > _MOST_VALUES or len(key_path) > 50:
        raise errors.FormatError(f"{document.path}: its aliases stand for more values than a file of this kind has.")
    lines[key_path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_plain_value(item, (*key_path, i), document, lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        if node.tag.rpartition(":")[2] not in ("str", "int", "float", "bool", "null"):
            document.complain(key_path, f"{node.value!r} is read as a {node.tag.rpartition(':')[2]}. Put it in quotes.")
            return None
        return yaml.SafeLoader("").construct_object(node)
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            document.complain(key_path, "a key is not text.")
            continue
        inner = (*key_path, key.value)
        if key.value in mapping:
            document.complain(key_path, f"{key.value!r} is here twice, again in line {key.start_mark.line + 1}.")
            continue
        mapping[key.value] = _plain_value(value, inner, document, lines)
        lines[inner] = key.start_mark.line + 1  # of the key, because a long value begins later
    return mapping
