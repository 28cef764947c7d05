"""Records: frozen values with JSON both ways and a digest of the values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from trtops import errors

if TYPE_CHECKING:
    from typing_extensions import Self

R = TypeVar("R", bound="Record")
T = TypeVar("T")
JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"


def sha256(data: bytes | bytearray | memoryview) -> str:
    """The SHA-256 of bytes, as 64 hexadecimal digits."""
    import hashlib  # it loads OpenSSL, which most commands never need

    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits."""
    import hashlib

    hasher = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 18):
            hasher.update(block)
    return hasher.hexdigest()


def to_jsonable(value: object) -> JSONValue:
    """Reduce a value to JSON types; TypeError if it has no JSON form.

    Dataclasses become objects, enums their value, sets sorted lists, tuples lists and paths strings. NaN and infinities
    become ``"nan"``, ``"inf"`` and ``"-inf"``, which strict JSON cannot spell.
    """
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if isinstance(value, str):
        return str(value)  # plain text, also of data from memory
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_jsonable(item) for item in value), key=canonical_json)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def canonical_json(value: object) -> str:
    """The one JSON text of a value: keys sorted, no spaces, ASCII only. Equal values give equal texts."""
    return json.dumps(to_jsonable(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 of :func:`canonical_json`, as 64 hexadecimal digits."""
    return sha256(canonical_json(value).encode("ascii"))


class Record:
    """Mixin for dataclasses declared ``@dataclass(frozen=True, kw_only=True)``."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, which wants a plain dict
    uses: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, uses: Mapping[str, str] | None = None, **options: Any) -> None:
        """Declare the fields of shared records used by an op.

        ``uses`` has their names by the field that holds the record, or by ``""`` for inherited fields. Others are no
        options of the op (:func:`option_fields`), and a config with one is refused (:func:`refuse_unused`).
        """
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # `dataclass` would write one
            cls.__repr__ = Record.__repr__  # type: ignore[method-assign]
        if uses is None:
            return
        cls.uses, own_checks = uses, getattr(cls, "__post_init__", lambda self: None)

        def check(self: Record) -> None:
            refuse_unused(self)
            own_checks(self)

        cls.__post_init__ = check  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        # Only what differs from the defaults, so that signatures with a config fit on a screen.
        changed: list[str] = []
        for member in _members(self):
            value = getattr(self, member.name)
            default = _default_of(member, None)
            if member.repr and (default is MISSING or value != default):
                changed.append(f"{member.name}={value!r}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def to_dict(self) -> dict[str, JSONValue]:
        """The record as JSON values, in the order of its fields."""
        return typing.cast("dict[str, JSONValue]", to_jsonable(self))

    def to_json(self, *, indent: int | None = 2) -> str:
        """The record as strict JSON text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of :meth:`to_dict`; FormatError for unknown or missing keys, and wrong types."""
        import pydantic  # 30 ms, and only needed for reading

        try:
            record: Self = _adapter_of(cls).validate_python(dict(data))  # type: ignore[arg-type]
        except pydantic.ValidationError as exc:
            lines = []
            for error in exc.errors(include_url=False):
                where = ".".join(map(str, error["loc"])) or cls.__name__
                if error["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
                    names = [f.name for f in _members(cls)] if "." not in where else []
                    lines.append(f"unknown field {where!r}. {errors.near(where, names)}".rstrip())
                else:
                    lines.append(f"{where}: {error['msg']} (found {error.get('input')!r:.80})")
            raise errors.FormatError(f"{cls.__name__}: " + "; ".join(lines)) from None
        # pydantic would take "64" for 64 and "yes" for true; its strict mode would refuse the lists of JSON.
        if (changed := _first_change(to_jsonable(data), to_jsonable(record))) is not None:
            where, original, read = changed
            raise errors.FormatError(
                f"{cls.__name__}: {where}: expected {type(read).__name__} (found {original!r:.80})"
            )
        return record

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the result of :meth:`to_json`; FormatError if it is not JSON, or refused by :meth:`from_dict`."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise errors.FormatError(f"{cls.__name__}: not JSON ({exc}).") from None
        if not isinstance(data, dict):
            raise errors.FormatError(f"{cls.__name__}: expected a JSON object, found {type(data).__name__}.")
        return cls.from_dict(data)

    def deciding(self) -> JSONValue:
        """The part of the record for its digest (default: all)."""
        return self.to_dict()

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over :meth:`deciding`, as 64 hexadecimal digits."""
        return digest(self.deciding())


class Config(Record):
    """A record that users fill in: each value is checked against the type of its field, and brought to it.

    Lists become tuples, integers floats, paths text, and mappings the record that a field holds. A field whose metadata
    have a function ``convert`` is what it returns. No number is NaN, or infinite unless the metadata have ``infinite``;
    none is less than 0, or than their ``least`` (None for no bound), or more than their ``most``. An optional text is
    not empty. ``file`` is what an op does with the path in a field: ``reads``, ``writes``, or writes the
    ``weights`` of its output there (if empty, by the usual name). ``continues`` names a read file that a written one
    may replace.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the fields before ``__post_init__``."""
        super().__init_subclass__(**options)
        own_checks = getattr(cls, "__post_init__", lambda self: None)

        def check(self: Config) -> None:
            # A subclass's own check runs first, and has seen to all fields.
            if type(self) is cls:
                _bring_to_types(self)
            own_checks(self)

        cls.__post_init__ = check  # type: ignore[attr-defined]


def setting(default: T, **metadata: Any) -> T:
    """Declare a field of a :class:`Config` with metadata: a ``count`` of 1 or more is ``setting(1, least=1)``."""
    return dataclasses.field(default=default, metadata=metadata)


def _bring_to_types(config: Config) -> None:
    hints = _hints(type(config))  # type: ignore[arg-type]  # a class is hashable
    for member in _members(config):
        value = getattr(config, member.name)
        if value is member.default:
            continue
        try:
            convert = member.metadata.get("convert")
            typed = convert(value) if convert and value is not None else fitted(hints[member.name], value)
            check_bounds(typed, member.metadata)
            if typed == "" and member.default is None and member.metadata.get("file") != "weights":
                raise errors.ConfigError("found an empty text; leave it out for the default")
        except errors.ConfigError as exc:
            raise errors.ConfigError(f"{type(config).__name__}.{member.name}: {exc}") from None
        if typed is not value:
            object.__setattr__(config, member.name, typed)


def file_fields(config: Record) -> Iterator[tuple[str, Any, str, str]]:
    """Yield name, value, use and continued field of each field of a config, and of its records, that is a file."""
    for member in _members(config):
        value = getattr(config, member.name)
        if isinstance(value, Record):
            yield from file_fields(value)
        elif use := member.metadata.get("file"):
            yield member.name, value, use, member.metadata.get("continues", "")


def check_bounds(value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise ConfigError for a number that is NaN, or out of the bounds of a field's metadata; see :class:`Config`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    least, most = metadata.get("least", 0), metadata.get("most")
    is_number = not math.isnan(value) and (metadata.get("infinite") or not math.isinf(value))
    if is_number and (least is None or value >= least) and (most is None or value <= most):
        return
    bounds = [] if is_number else ["a number" if metadata.get("infinite") else "a finite number"]
    bounds += [] if least is None else [f"{least} or more"]
    bounds += [] if most is None else [f"at most {most}"]
    raise errors.ConfigError(f"found {value}; expected {', '.join(bounds)}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def fitted(kind: Any, value: Any) -> Any:
    """Return a value as the type of a field or parameter has it; ConfigError if it is of another type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        refusals = []
        for member in sorted(args, key=lambda member: not _is_of(member, value)):
            try:
                return fitted(member, value)
            except errors.ConfigError as exc:
                refusals.append(str(exc))
        raise errors.ConfigError(refusals[0] if len(args) == 2 and type(None) in args else _refusal(kind, value))
    if origin is typing.Literal:
        if value in args:
            return value
        hint = errors.near(value, map(str, args)) if isinstance(value, str) else ""
        raise errors.ConfigError(f"found {value!r:.80}; expected one of {', '.join(map(repr, args))}. {hint}".rstrip())
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = args[:1] * len(value) if args[1:] == (...,) else args
        if len(kinds) != len(value):
            raise errors.ConfigError(f"found {len(value)} values, {value!r:.80}; expected {len(kinds)}")
        return tuple(fitted(item_kind, item) for item_kind, item in zip(kinds, value))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {fitted(args[0], key): fitted(args[1], entry) for key, entry in value.items()}
    if _is_of(kind, value):
        return value
    if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(kind, type) and issubclass(kind, Record) and isinstance(value, Mapping):
        names = [member.name for member in fields(kind) if member.init]  # type: ignore[arg-type]
        for name in value:
            if name not in names:
                raise errors.ConfigError(f"unknown field {name!r}. {errors.near(str(name), names)}".rstrip())
        return kind(**value)
    raise errors.ConfigError(_refusal(kind, value))


def _is_of(kind: Any, value: Any) -> bool:
    """True for a value of a class. Truth values are not numbers here, and a text is not a sequence of letters.

    Any value but a number or bytes may be of a kind that cannot be checked, such as a protocol.
    """
    origin = typing.get_origin(kind) or kind
    if origin in (typing.Union, types.UnionType, typing.Literal):
        return False
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return not isinstance(value, (int, float, bytes))
    if isinstance(value, (str, bytes)) and kind is not origin:
        return False
    return isinstance(value, origin) and not (isinstance(value, bool) and origin in (int, float))


def _refusal(kind: Any, value: Any) -> str:
    name = str(kind) if typing.get_origin(kind) else getattr(kind, "__name__", str(kind))
    expected = re.sub(r"\b(?:\w+\.)+", "", name)  # without modules
    return f"found {value!r:.80} ({type(value).__name__}); expected {expected}"


@dataclass(frozen=True)
class OptionField:
    """One option of a config: a field of it, or of a record inside it."""

    name: str
    path: tuple[str, ...]  # names of the fields that lead to it, such as ("check", "min_precision_share")
    type: Any  # with forward references resolved
    default: Any  # dataclasses.MISSING if it is required
    help: str  # its sentence in the docstring's "Attributes:" section, on one line
    metadata: Mapping[str, Any]  # "names" lists further spellings on the command line


def option_fields(cls: type[Record], base: Record | None = None) -> Iterator[OptionField]:
    """Yield the options of a config class, in the order of declaration; defaults are the values of ``base``, if given.

    Fields whose type is a record are replaced by that record's own options, as far as :attr:`Record.uses` names them.
    Unions of records, such as a build's back end options, stay one option.
    """
    # Command line flags, flow parameters and help texts are derived from these, so that an option is written once.
    hints, texts = typing.get_type_hints(cls), _attribute_texts(cls)
    used = {owner: names.split() for owner, names in cls.uses.items()}
    for member in _members(cls):
        kind, default = hints[member.name], _default_of(member, base)
        if isinstance(kind, type) and issubclass(kind, Record):
            for inner in option_fields(kind, default if isinstance(default, kind) else None):
                if inner.path[0] in used.get(member.name, inner.path):
                    yield replace(inner, path=(member.name, *inner.path))
        elif member.init and member.name in used.get("", (member.name,)):
            yield OptionField(member.name, (member.name,), kind, default, texts.get(member.name, ""), member.metadata)


def with_options(base: R | type[R], values: Mapping[tuple[str, ...], Any]) -> R:
    """Return a config, or the default one of a class, with some options set, by :attr:`OptionField.path`.

    A path may also name a whole nested record, whose own options are then applied to it.
    """
    cls, base_config = (base, None) if isinstance(base, type) else (type(base), base)
    changed = {}
    for member in _members(cls):
        inner = {path[1:]: value for path, value in values.items() if path[0] == member.name}
        if inner:
            whole = inner.pop((), _default_of(member, base_config))
            whole = typing.get_type_hints(cls)[member.name] if whole is MISSING else whole
            changed[member.name] = with_options(whole, inner) if inner else whole
    return cls(**changed) if base_config is None else replace(base_config, **changed)  # type: ignore[type-var]


def refuse_unused(config: Record, uses: Mapping[str, str] | None = None, *, op: str = "") -> None:
    """Raise ConfigError for a changed field without use in an op.

    Args:
        config: The op's config.
        uses: The used fields, as in :attr:`Record.uses` (default: those of the config's class).
        op: The op's name in the message (default: from the config's class).
    """
    op = op or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(config).__name__.removesuffix("Config")).lower()
    for part, names in (config.uses if uses is None else uses).items():
        shared = getattr(config, part) if part else config
        if shared is None:
            continue
        preset = next((_default_of(f, None) for f in _members(config) if f.name == part), None)
        for member in _members(shared):
            value = getattr(shared, member.name)
            usual = _default_of(member, None), getattr(preset, member.name, None)
            # A value that switches something off, such as no plots, is respected by an op that does not have it.
            if member.name in names.split() or not value or value == "never" or value in usual:
                continue
            raise errors.ConfigError(
                f"{op} does not use {f'{part}.' * bool(part)}{member.name}={value!r:.60}. Leave it out; used are: "
                f"{', '.join(names.split())}."
            )


def _members(record: Any) -> tuple[dataclasses.Field[Any], ...]:
    return fields(record)


def _default_of(field: dataclasses.Field[Any], base: Record | None) -> Any:
    if base is not None:
        return getattr(base, field.name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _attribute_texts(cls: type) -> dict[str, str]:
    """Return the sentence on each attribute from the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")[2]
        entries = re.split(r"^    (\w+):", section, flags=re.MULTILINE)[1:]
        for name, text in zip(entries[::2], entries[1::2]):
            # In one line, with names instead of references to them (:class:`x.Name`).
            plain = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", " ".join(text.split()))
            texts[name] = plain.replace("``", "'")
    return texts


def _first_change(before: JSONValue, after: JSONValue, where: str = "") -> tuple[str, JSONValue, JSONValue] | None:
    """The first value of another type after reading: its place, the value before, and the value after."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(f"{where}.{key}", value, after.get(key)) for key, value in before.items()]
    elif isinstance(before, list) and isinstance(after, list):
        pairs = [(f"{where}.{i}", g, r) for i, (g, r) in enumerate(zip(before, after))]
    elif type(before) is type(after) or {type(before), type(after)} == {int, float}:
        return None
    else:
        return where.removeprefix("."), before, after
    return next(filter(None, (_first_change(g, r, path) for path, g, r in pairs)), None)


@functools.cache
def _adapter_of(cls: type) -> Any:
    import pydantic

    return pydantic.TypeAdapter(cls)
