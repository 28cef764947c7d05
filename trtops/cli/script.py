"""Calls of the public API as values: made from options, compared in tests, carried out, or written down as a script.

One description serves both, so that the script of ``--gen-script`` does what the command would have done.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtops import errors
from trtops.backend.common import InvokeFromScript

_WIDTH = 110
"""Longest line of a script."""

Pairs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Call:
    """One call: ``name(*args, **kwargs)`` of a module, then methods of what it returns.

    Attributes:
        module: Where the name is imported from.
        name: What is called.
        args: Arguments by place; they may hold calls.
        kwargs: Arguments by name, those that are None left out.
        then: Methods called on the result, each returning what the next one is called on, as name, arguments and named arguments.
        variable: What a script names the result; none writes it where it is used.
    """

    module: str
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Pairs = ()
    then: tuple[tuple[str, tuple[Any, ...], Pairs], ...] = ()
    variable: str = ""

    def option(self, name: str) -> Any:
        """The value of an argument by name, or None."""
        return dict(self.kwargs).get(name)


@dataclass(frozen=True)
class Name:
    """Something that a module has, or TensorRT itself: ``Name("trt", "TacticSource.CUBLAS")``.

    Attributes:
        module: The module; ``trt`` is TensorRT, or TensorRT-RTX where that is used.
        path: The name, with dots.
    """

    module: str
    path: str


@dataclass(frozen=True)
class Function:
    """A function that a user's script defines.

    Attributes:
        path: The script.
        name: The function.
    """

    path: str
    name: str


@dataclass(frozen=True)
class Deferred:
    """A loader that is made where it is called, such as in a child process: before, it holds nothing of TensorRT's.

    Attributes:
        call: Makes the loader.
    """

    call: Call

    def __call__(self) -> Any:
        """Make the loader, and call it."""
        return Maker()(self.call)()


def call(module: str, name: str, /, *args: Any, variable: str = "", **kwargs: Any) -> Call:
    """A call without the options that are None, False, empty, or not asked for."""
    given = tuple((k, v) for k, v in kwargs.items() if v is not None and v is not False)
    return Call(module, name, args, given, variable=variable)


class Maker:
    """Carries calls out. One call that is used twice is made once."""

    def __init__(self) -> None:
        """Begin with nothing made."""
        self._made: dict[int, Any] = {}
        self._held: list[Call] = []

    def __call__(self, value: Any) -> Any:
        """What a value stands for: calls become their results, also inside lists, tuples and dicts.

        Raises:
            ConfigError: If TensorRT does not have a name.
            BackendUnavailableError: If TensorRT is needed, and missing.
        """
        if isinstance(value, Call):
            if id(value) not in self._made:
                self._held.append(value)  # ids are only theirs for as long as they live
                self._made[id(value)] = self._make(value)
            return self._made[id(value)]
        if isinstance(value, Name):
            return _find_name(value)
        if isinstance(value, Function):
            return InvokeFromScript(value.path, value.name)
        if isinstance(value, (list, tuple)):
            return type(value)(self(item) for item in value)
        if isinstance(value, Mapping):
            return {self(key): self(item) for key, item in value.items()}
        return value

    def _make(self, call: Call) -> Any:
        made = getattr(importlib.import_module(call.module), call.name)(
            *self(call.args), **{name: self(value) for name, value in call.kwargs}
        )
        for method, args, kwargs in call.then:
            made = getattr(made, method)(*self(args), **{name: self(value) for name, value in kwargs})
        return made


def loaded(model: str | Call) -> Any:
    """A model as ops take it: its path, or what a loader gives."""
    return model if isinstance(model, str) else Maker()(model)()


def _find_name(name: Name) -> Any:
    """What a name stands for."""
    if name.module == "trt":
        from trtops.backend.trt import library  # which most command lines have no use for

        found, parts = library.load(), name.path.split(".")
    else:
        found, parts = importlib.import_module(name.module), name.path.split(".")
    for place, part in enumerate(parts):
        names = getattr(found, "__members__", None)
        if not hasattr(found, part):
            raise errors.ConfigError(
                f"{'.'.join(parts[:place]) or 'TensorRT'} has no {part!r} in this release. {errors.near(part, names or dir(found))}"
            )
        found = getattr(found, part)
    return found


@dataclass
class Source:
    """A script being written: imports, variables in order, and lines."""

    imports: dict[str, set[str]] = field(default_factory=dict)
    uses_trt: bool = False
    lines: list[str] = field(default_factory=list)
    _variables: list[tuple[Call, str]] = field(default_factory=list)

    def use(self, module: str, name: str) -> str:
        """Import a name, and return it."""
        self.imports.setdefault(module, set()).add(name)
        return name

    def use_module(self, module: str) -> None:
        """Import a module of another package."""
        self.imports.setdefault(module, set())

    def add(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def expression(self, value: Any) -> str:
        """A value as Python writes it; calls that have variables are written before."""
        if isinstance(value, Call):
            return self._call(value)
        if isinstance(value, Name):
            return self._name(value)
        if isinstance(value, Function):
            return (
                f"{self.use('trtops.backend.common', 'InvokeFromScript')}({quoted(value.path)}, {quoted(value.name)})"
            )
        if isinstance(value, list):
            return f"[{', '.join(map(self.expression, value))}]"
        if isinstance(value, tuple):
            inner = ", ".join(map(self.expression, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, Mapping):
            pairs = (f"{self.expression(key)}: {self.expression(item)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, str):
            return quoted(value)
        return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)

    def _name(self, name: Name) -> str:
        if name.module == "trt":
            self.uses_trt = True
            return f"trt.{name.path}"
        if not name.module.startswith("trtops"):
            self.use_module(name.module)
            return f"{name.module}.{name.path}"
        return self.use(name.module, name.path)

    def _call(self, call: Call) -> str:
        for held, variable in self._variables:
            # What makes something when it is called may be used twice; what a function gave may be used up.
            if held is call or (held == call and call.name[:1].isupper()):
                return variable
        text = f"{self.use(call.module, call.name)}({self._arguments(call.args, call.kwargs)})"
        for method, args, kwargs in call.then:
            text += f".{method}({self._arguments(args, kwargs)})"
        if not call.variable:
            return text
        taken = {variable for _, variable in self._variables}
        variable = next(v for v in _numbered_names(call.variable) if v not in taken)
        self._variables.append((call, variable))
        self.add(folded(f"{variable} = {text}"))
        return variable

    def _arguments(self, args: Iterable[Any], kwargs: Pairs) -> str:
        return ", ".join([*map(self.expression, args), *(f"{name}={self.expression(v)}" for name, v in kwargs)])

    def _import(self, module: str) -> str:
        names = ", ".join(sorted(self.imports[module]))
        line = f"from {module} import {names}" if names else f"import {module}"
        return line if len(line) <= _WIDTH else folded(f"from {module} import ({names})")

    def text(self, about: str) -> str:
        """The whole script."""
        head = ["#!/usr/bin/env python3", f'"""{about}"""', ""]
        if self.uses_trt:
            self.use("trtops.mod.trt_importer", "lazy_import_trt")
        others = [module for module in sorted(self.imports) if not module.startswith("trtops")]
        ours = [module for module in sorted(self.imports) if module.startswith("trtops")]
        head += [*map(self._import, others), *([""] if others else []), *map(self._import, ours)]
        head += ["", *(["trt = lazy_import_trt()", ""] if self.uses_trt else [])]
        return "\n".join([*head, *self.lines]) + "\n"


def quoted(text: str) -> str:
    """A string as Python writes it, in double quotes where it has none."""
    shown = repr(text)
    return shown if '"' in shown else f'"{shown[1:-1]}"'


def _numbered_names(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def folded(line: str, indent: str = "", width: int = _WIDTH) -> str:
    """A long line that ends with a call or a list, with what is in its brackets one per line."""
    if len(indent) + len(line) <= width or line[-1] not in ")]":
        return indent + line
    opened: list[tuple[int, list[int]]] = []  # where each bracket is, and the commas right inside
    quoted = last = ""
    for place, character in enumerate(line[:-1]):
        if quoted:
            quoted = "" if character == quoted and last != "\\" else quoted
        elif character in "'\"":
            quoted = character
        elif character in "([{":
            opened.append((place, []))
        elif character in ")]}":
            opened.pop()
        elif character == "," and opened:
            opened[-1][1].append(place)
        last = character
    start, commas = opened[0]
    ends = [start, *commas, len(line) - 1]
    inside = (line[begin + 1 : end].strip() for begin, end in itertools.pairwise(ends))
    parts = [folded(part, f"{indent}    ", width - 1) for part in inside if part]
    return "\n".join([f"{indent}{line[: start + 1]}", *(f"{part}," for part in parts), f"{indent}{line[-1]}"])
