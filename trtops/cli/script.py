"""Loaders of a command's options: run here, or written as a Python script by ``--gen-script``.

Both start from the loaders themselves, which are dataclasses.
"""

import dataclasses
import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtops import errors
from trtops.backend.common import BytesFromPath, InvokeFromScript
from trtops.backend.loader import BaseLoader
from trtops.metadata import DataType

# Scripts import from these packages, as Polygraphy's do, not from the modules in them.
_PUBLIC_PACKAGES = ("trtops.backend.onnxrt", "trtops.backend.onnx", "trtops.backend.trt", "trtops.comparator")

# Mappings that are written as calls of their `add`, with the arguments of each call.
_ADDED = {"Profile": ("min", "opt", "max"), "TensorMetadata": ("dtype", "shape")}

# Data types that TensorRT has under another name.
_TYPES_OF_TRT = {"float8e4m3fn": "fp8", "float4": "fp4"}


@dataclass(frozen=True)
class Call(BaseLoader[Any]):
    """Calls a function when the work starts, after the calls among its arguments.

    What needs TensorRT, a user's script or a file is a call: wrong usage is reported first, and scripts are written on
    machines without a GPU.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def call_impl(self) -> Any:
        """Call the function."""
        return self.function(*map(_called, self.args), **{name: _called(value) for name, value in self.kwargs.items()})


def _called(value: Any) -> Any:
    return value() if isinstance(value, Call) else value


def product(value: Any) -> Any:
    """Return the product of a loader, or another value itself."""
    return value() if isinstance(value, BaseLoader) else value


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
    """Return a call, without the keyword arguments set to None or False."""
    return Call(function, args, given(**kwargs))


def given(**options: Any) -> dict[str, Any]:
    """Return the specified options: neither None nor False."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


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
        if isinstance(value, Call):
            return self._call(value)
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

    def _names(self, names: str, value: Any) -> str:
        """Return names of an enum such as ``trt.TacticSource``, or of types (``trt``), as an expression."""
        if isinstance(value, list):
            return f"[{', '.join(self._names(names, item) for item in value)}]"
        if isinstance(value, Mapping):
            pairs = []
            for key, item in value.items():
                if isinstance(item, int):  # bytes by memory pool
                    pairs.append(f"{self._names(names, key)}: {item}")
                else:
                    pairs.append(f"{self.expression(key)}: {self._names(names, item)}")
            return f"{{{', '.join(pairs)}}}"
        if names != "trt":
            name = value.strip().upper().replace("-", "_")
        else:
            try:
                dtype_name = DataType.of(value).name
            except errors.ConfigError:
                return quoted(value)  # TensorRT rejects it
            name = _TYPES_OF_TRT.get(dtype_name, dtype_name)
        if names.startswith("trt"):
            self.uses_trt = True
        else:
            self.use(names.partition(".")[0])
        return f"{names}.{name}"

    def _call(self, call: Call) -> str:
        module, name = _public_module(call.function), call.function.__name__
        if name.endswith("DataLoader"):
            return self._variable(call, "data_loader", module, name, self._arguments(call.args, call.kwargs))
        kwargs = dict(call.kwargs)
        base = kwargs.pop("BaseClass", None)  # of a calibrator, by its name
        arguments = self._arguments(call.args, kwargs)
        if base is not None:
            self.uses_trt = True
            arguments += f", BaseClass=trt.{base}"
        return f"{self.use(module, name)}({arguments})"

    def _loader(self, value: Any) -> str:
        """Write a dataclass as a call, without fields at their defaults."""
        cls = type(value)
        arguments = []
        for member in dataclasses.fields(cls):
            item = getattr(value, member.name)
            required = member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING
            if required or item != member.default:
                names = member.metadata.get("names")
                text = self._names(names, item) if names else self.expression(item)
                arguments.append(text if required else f"{member.name}={text}")
        module, text = _public_module(cls), ", ".join(arguments)
        if cls.__name__.endswith("Func") or cls in (InvokeFromScript, BytesFromPath) or cls.__name__ == "LoadRuntime":
            return f"{self.use(module, cls.__name__)}({text})"
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        return self._variable(value, f"{snake}_loader", module, cls.__name__, text)

    def _variable(self, value: Any, name: str, module: str, called: str, arguments: str) -> str:
        """Write a call once, as a variable, and return its name."""
        # A list: not all values can be keys of a dict.
        for held, variable in self._variables:
            if held == value:
                return variable
        taken = {variable for _, variable in self._variables}
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        variable = next(candidate for candidate in names if candidate not in taken)
        self._variables.append((value, variable))
        self.lines.append(f"{variable} = {self.use(module, called)}({arguments})")
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


def _public_module(definition: Any) -> str:
    """Return the module to import a class or function from: a package with Polygraphy's names, if it is there."""
    home: str = definition.__module__
    for package in _PUBLIC_PACKAGES:
        if home.startswith(f"{package}.") and hasattr(importlib.import_module(package), definition.__name__):
            return package
    return home


def quoted(text: str) -> str:
    """Return a string as Python writes it, in double quotes unless it has some."""
    shown = repr(text)
    return shown if '"' in shown else f'"{shown[1:-1]}"'
