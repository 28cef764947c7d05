"""Loaders of a command's options: run here, or written as a Python script by ``--gen-script``.

Both start from the loaders themselves, which are dataclasses.
"""

# What needs TensorRT, a user's script or a file is a `Late` or a `Name` inside a loader: it is made when the work
# starts, so that wrong usage is reported first and scripts are written on machines without a GPU.

import dataclasses
import importlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtops import errors

# Scripts import from these packages, as Polygraphy's do, not from the modules in them.
_PUBLIC_PACKAGES = ("trtops.backend.onnxrt", "trtops.backend.onnx", "trtops.backend.trt", "trtops.comparator")

# Mappings that are written as calls of their `add`, with the arguments of each call.
_ADDED = {"Profile": ("min", "opt", "max"), "TensorMetadata": ("dtype", "shape")}


@dataclass(frozen=True)
class Late:
    """A call deferred until the work starts, of a function such as ``trtops.backend.trt.Calibrator``."""

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Name:
    """An attribute of a module, looked up when the work starts: ``Name("trt", "TacticSource.CUBLAS")``.

    The module ``trt`` is TensorRT, or TensorRT-RTX where that is used.
    """

    module: str
    path: str


class Unresolved:
    """Holds a loader for a child process, unresolved: TensorRT's objects cannot be sent.

    Calling it resolves the loader and calls that.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        """Call the loader after resolving it."""
        return load(self.value)


class Shared:
    """Holds a loader for a number of runners: loaded for the first, and released with the last."""

    def __init__(self, loader: Any, uses: int) -> None:
        self.loader, self.uses, self.made = loader, uses, None

    def __call__(self) -> Any:
        """Return the product."""
        product = load(self.loader) if self.made is None else self.made
        self.uses -= 1
        self.made = product if self.uses > 0 else None
        return product

    def __eq__(self, other: object) -> bool:
        """Jobs of the same options are equal."""
        return isinstance(other, Shared) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def late(function: str, /, *args: Any, **kwargs: Any) -> Late:
    """Return a deferred call, without the keyword arguments set to None or False."""
    return Late(function, args, given(**kwargs))


def given(**options: Any) -> dict[str, Any]:
    """Return the specified options: neither None nor False."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


def resolve(value: Any) -> Any:
    """Return a value with all its :class:`Late` and :class:`Name` parts resolved."""
    if isinstance(value, Late):
        module, _, name = value.function.rpartition(".")
        return getattr(importlib.import_module(module), name)(*resolve(value.args), **resolve(value.kwargs))
    if isinstance(value, Name):
        return _find_name(value)
    if type(value) in (list, tuple):
        return type(value)(map(resolve, value))
    if type(value) is dict:
        return {resolve(key): resolve(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        new = {name: resolve(item) for name, item in old.items()}
        # `replace` loses what `__init__` does not take, so it is called only where something changes.
        return dataclasses.replace(value, **new) if any(new[name] is not old[name] for name in old) else value
    return value


def load(loader: Any) -> Any:
    """Call a loader after resolving it; child processes call loaders without TensorRT objects."""
    return resolve(loader)()


def loaded(model: Any) -> Any:
    """Return a model for an op: its path, or the product of a loader."""
    resolved = resolve(model)
    return resolved() if callable(resolved) else resolved


def _find_name(name: Name) -> Any:
    if name.module == "trt":
        # Most command lines do not need TensorRT.
        from trtops.backend.trt import library

        value, parts = library.load(), name.path.split(".")
    else:
        value, parts = importlib.import_module(name.module), name.path.split(".")
    for depth, part in enumerate(parts):
        if not hasattr(value, part):
            near = errors.near(part, getattr(value, "__members__", None) or dir(value))
            raise errors.ConfigError(f"{'.'.join(parts[:depth]) or 'TensorRT'} has no {part!r} in this release. {near}")
        value = getattr(value, part)
    return value


@dataclass
class Source:
    """A Python script being written: imports, variables in order, and lines."""

    imports: dict[str, set[str]] = field(default_factory=dict)
    uses_trt: bool = False
    lines: list[str] = field(default_factory=list)
    _variables: list[tuple[Any, str]] = field(default_factory=list)

    def use(self, module: str, *names: str) -> str:
        """Import names from a module, or the module itself; return the last."""
        self.imports.setdefault(module, set()).update(names)
        return names[-1] if names else module

    def expression(self, value: Any) -> str:
        """Return a value as a Python expression. Loaders become variables."""
        if isinstance(value, Name):
            return self._name(value)
        if isinstance(value, Late):
            module, _, name = value.function.rpartition(".")
            if name.endswith("DataLoader"):
                return self._variable(value, "data_loader", module, name, value.args, value.kwargs)
            return f"{self.use(module, name)}({self._arguments(value.args, value.kwargs)})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._loader(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.expression, value))}]"
        if isinstance(value, tuple):
            inner = ", ".join(map(self.expression, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if type(value).__name__ in _ADDED:
            return self._added(value)
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
            return f"{self.use(name.module)}.{name.path}"
        return self.use(name.module, name.path)

    def _loader(self, value: Any) -> str:
        """Write a dataclass as a call, without fields at their defaults."""
        cls = type(value)
        args, kwargs = [], {}
        for member in dataclasses.fields(cls):
            item = getattr(value, member.name)
            if member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING:
                args.append(item)
            elif item != member.default:
                kwargs[member.name] = item
        # Polygraphy's names are in the packages; those that only trtops has are in modules.
        module = next((p for p in _PUBLIC_PACKAGES if cls.__module__.startswith(f"{p}.")), cls.__module__)
        if not hasattr(importlib.import_module(module), cls.__name__):
            module = cls.__module__
        if cls.__name__.endswith("Func") or cls.__name__ in ("InvokeFromScript", "BytesFromPath", "LoadRuntime"):
            return f"{self.use(module, cls.__name__)}({self._arguments(args, kwargs)})"
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        return self._variable(value, f"{snake}_loader", module, cls.__name__, args, kwargs)

    def _variable(self, value: Any, name: str, module: str, called: str, args: Any, kwargs: Mapping[str, Any]) -> str:
        """Write a call once, as a variable, and return its name."""
        # A list: not all values can be keys of a dict.
        for held, variable in self._variables:
            if held == value:
                return variable
        text = f"{self.use(module, called)}({self._arguments(args, kwargs)})"
        taken = {variable for _, variable in self._variables}
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        variable = next(candidate for candidate in names if candidate not in taken)
        self._variables.append((value, variable))
        self.lines.append(f"{variable} = {text}")
        return variable

    def _added(self, value: Mapping[str, Any]) -> str:
        name = type(value).__name__
        module = "trtops.common" if name == "TensorMetadata" else "trtops.backend.trt"
        text = f"{self.use(module, name)}()"
        for key, item in value.items():
            values = {attribute: getattr(item, attribute) for attribute in _ADDED[name]}
            plain = {attribute: tuple(v) if isinstance(v, (list, tuple)) else v for attribute, v in values.items()}
            text += f".add({self._arguments([key], plain)})"
        return text

    def _arguments(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        named = (f"{name}={self.expression(value)}" for name, value in kwargs.items())
        return ", ".join([*map(self.expression, args), *named])

    def text(self, about: str) -> str:
        """Return the whole script."""
        if self.uses_trt:
            self.use("trtops.mod.trt_importer", "lazy_import_trt")
        blocks: dict[bool, list[str]] = {False: [], True: []}
        for module, names in sorted(self.imports.items()):
            imported = f"from {module} import {', '.join(sorted(names))}" if names else f"import {module}"
            blocks[module.startswith("trtops")].append(imported)
        head = ["#!/usr/bin/env python3", f'"""{about}"""', ""]
        head += [*blocks[False], *([""] if blocks[False] else []), *blocks[True], ""]
        return "\n".join([*head, *(["trt = lazy_import_trt()", ""] if self.uses_trt else []), *self.lines]) + "\n"


def quoted(text: str) -> str:
    """Return a string as Python writes it, in double quotes unless it has some."""
    shown = repr(text)
    return shown if '"' in shown else f'"{shown[1:-1]}"'
