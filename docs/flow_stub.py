"""Writes trtops/flows/__init__.pyi, the signatures of the flows for type checkers: ``python -m docs.flow_stub``."""

import inspect
import os
import textwrap
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import trtops.flows

FILE = Path(__file__).resolve().parents[1] / "trtops" / "flows" / "__init__.pyi"


def stub() -> str:
    """Return the text of the file."""
    imports: set[tuple[str, str]] = set()

    def name_of(kind: Any) -> str:
        if kind.__module__ != "builtins":
            imports.add((kind.__module__, kind.__qualname__))
        return str(kind.__qualname__)

    def text_of(annotation: Any) -> str:
        """Return an annotation as source. As in Prefect, text is accepted for a path, and a list for a tuple."""
        origin, args = get_origin(annotation), get_args(annotation)
        if annotation in (None, type(None)):
            return "None"
        if annotation is Path:
            return f"str | {name_of(os.PathLike)}[str]"
        if origin in (Union, types.UnionType):
            return " | ".join(map(text_of, args))
        if origin is typing.Literal:
            imports.add(("typing", "Literal"))
            return f"Literal[{', '.join(map(repr, args))}]"
        if origin is tuple and args[-1] is ...:
            return f"{name_of(Sequence)}[{text_of(args[0])}]"
        return name_of(annotation if origin is None else origin) + (
            f"[{', '.join(map(text_of, args))}]" if args else ""
        )

    classes: list[str] = []
    for name in trtops.flows.__all__:
        function = getattr(trtops.flows, name).fn
        op = function.__wrapped__
        annotated = types.SimpleNamespace(__annotations__={"result": inspect.signature(op).return_annotation})
        result = text_of(typing.get_type_hints(annotated, op.__globals__)["result"])
        parts = ["self"]
        for parameter in inspect.signature(function).parameters.values():
            parts += ["*"] if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts else []
            default = "" if parameter.default is parameter.empty else " = ..."
            parts.append(f"{parameter.name}: {text_of(parameter.annotation)}{default}")
        kind = "".join(map(str.capitalize, name.split("_"))) + "Flow"
        lines = textwrap.wrap(", ".join(parts), 112, break_long_words=False, break_on_hyphens=False)
        classes += [
            f"\nclass {kind}(OpFlow[..., {result}]):",
            "    def __call__(  # type: ignore[override, unused-ignore]",
            *(f"        {line}" for line in lines),
            f"    ) -> {result}: ...\n\n{name}: {kind}",
        ]
    head = ["# Written by `python -m docs.flow_stub` from the signatures of the flows.", "# ruff: noqa", "# fmt: off"]
    origins = [f"from {module} import {kind}" for module, kind in sorted(imports)]
    return "\n".join([*head, *origins, "from trtops.flows.flow_of import OpFlow", *classes, ""])


if __name__ == "__main__":
    FILE.write_text(stub(), encoding="utf-8")
