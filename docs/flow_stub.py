"""Writes the signatures of flows and ops for type checkers, with all options: ``python -m docs.flow_stub``."""

import inspect
import os
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import trtops.flows
from trtops import verbs
from trtops.backend.onnx.model import Model
from trtops.backend.torch import TorchObject
from trtops.calibration import data
from trtops.ops.keywords import option_keywords, takes_backend
from trtops.record import Record
from trtops.spec import BackendName

FOLDER = Path(__file__).resolve().parents[1] / "trtops"
HEAD = ["# Written by `python -m docs.flow_stub`.", "# ruff: noqa", "# fmt: off"]


class Annotations:
    """Writes annotations as source, and collects what has to be imported for them."""

    def __init__(self) -> None:
        """Begin without imports."""
        self.imports: set[tuple[str, str]] = set()

    def name_of(self, kind: Any) -> str:
        """Return the name of a class."""
        module, name = kind.__module__, str(kind.__qualname__)
        if module == "builtins":
            return name
        if any(name == other and module != origin for origin, other in self.imports):
            self.imports.add((module, ""))
            return f"{module}.{name}"
        self.imports.add((module, name))
        return name

    def text_of(self, annotation: Any) -> str:
        """Return an annotation as source. Text is accepted for a path, and a list for a tuple."""
        origin, args = get_origin(annotation), get_args(annotation)
        if annotation in (None, type(None)):
            return "None"
        if annotation is Any:
            return self.name_of(Any)
        if annotation is Path:
            return f"str | {self.name_of(os.PathLike)}[str]"
        if origin in (Union, types.UnionType):
            if Path in args:  # its text has `str`
                args = tuple(part for part in args if part is not str)
            return " | ".join(map(self.text_of, args))
        if origin is typing.Literal:
            self.imports.add(("typing", "Literal"))
            return f"Literal[{', '.join(map(repr, args))}]"
        if origin is tuple and args[-1] is ...:
            return f"{self.name_of(Sequence)}[{self.text_of(args[0])}]"
        if origin is Callable and isinstance(args[0], list):
            return f"{self.name_of(Callable)}[[{', '.join(map(self.text_of, args[0]))}], {self.text_of(args[1])}]"
        return self.name_of(annotation if origin is None else origin) + (
            f"[{', '.join(map(self.text_of, args))}]" if args else ""
        )

    def result_of(self, op: Any) -> str:
        """Return the type of an op's result as source."""
        annotated = types.SimpleNamespace(__annotations__={"result": inspect.signature(op).return_annotation})
        return self.text_of(typing.get_type_hints(annotated, inspect.unwrap(op).__globals__)["result"])

    def head(self) -> list[str]:
        """Return the first lines of a stub."""
        imports = [
            f"from {module} import {kind}" if kind else f"import {module}" for module, kind in sorted(self.imports)
        ]
        return [*HEAD, *imports]


def flows_stub() -> str:
    """Return the text of trtops/flows/__init__.pyi."""
    annotations, classes = Annotations(), []
    for name in trtops.flows.__all__:
        function = getattr(trtops.flows, name).fn
        result = annotations.result_of(function.__wrapped__)
        parts = ["self"]
        for parameter in inspect.signature(function).parameters.values():
            parts += ["*"] if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts else []
            default = "" if parameter.default is parameter.empty else " = ..."
            parts.append(f"{parameter.name}: {annotations.text_of(parameter.annotation)}{default}")
        kind = "".join(map(str.capitalize, name.split("_"))) + "Flow"
        classes += [
            f"\nclass {kind}(OpFlow[..., {result}]):",
            "    def __call__(  # type: ignore[override, unused-ignore]",
            *(f"        {line}" for line in _wrapped(parts)),
            f"    ) -> {result}: ...\n\n{name}: {kind}",
        ]
    return "\n".join([*annotations.head(), "from trtops.flows.flow_of import OpFlow", *classes, ""])


def verbs_stub() -> str:
    """Return the text of trtops/verbs.pyi."""
    annotations, functions = Annotations(), []
    for name in verbs.VERBS:
        op = inspect.unwrap(getattr(verbs, name))
        options, parts = option_keywords(op), []
        for parameter in inspect.signature(op).parameters.values():
            if parameter.name in options:
                continue
            parts += ["*"] if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts else []
            hint = _hint(op, parameter)
            kind = annotations.text_of(hint | TorchObject if Model in get_args(hint) else hint)
            kind = f"{kind} | str" if parameter.name == "config" and not parts else kind  # a run, for example
            is_required = parameter.default is parameter.empty and parameter.name != "config"
            parts.append(f"{parameter.name}: {kind}" + ("" if is_required else " = ..."))
        parts += [] if "*" in parts else ["*"]
        for keyword, option in options.items():
            kind = annotations.text_of(option.type)
            if "convert" in option.metadata:
                annotations.imports.add((data.__name__, "DataSource"))
                kind = "DataSource | None"
            elif any(isinstance(part, type) and issubclass(part, Record) for part in get_args(option.type)):
                kind += f" | {annotations.text_of(Mapping[str, Any])}"
            parts.append(f"{keyword}: {kind} = ...")
        if takes_backend(op):
            parts.append(f"backend: {annotations.text_of(BackendName)} = ...")
        functions += [
            f"\ndef {name}(",
            *(f"    {line}" for line in _wrapped(parts)),
            f") -> {annotations.result_of(op)}: ...",
        ]
    return "\n".join([*annotations.head(), *functions, ""])


def _hint(op: Any, parameter: inspect.Parameter) -> Any:
    """Return the type of an op's parameter; Any if it is imported for type checkers only."""
    annotated = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(annotated, inspect.unwrap(op).__globals__)[parameter.name]
    except NameError:
        return Any


def _wrapped(parameters: Sequence[str]) -> list[str]:
    return textwrap.wrap(", ".join(parameters), 112, break_long_words=False, break_on_hyphens=False)


STUBS = {FOLDER / "flows" / "__init__.pyi": flows_stub, FOLDER / "verbs.pyi": verbs_stub}

if __name__ == "__main__":
    for file, stub in STUBS.items():
        file.write_text(stub(), encoding="utf-8")
