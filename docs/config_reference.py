"""The page of all configs, from their types: fields, types, defaults, and what their docstrings say.

It is written when the documentation is built (``pages.py``).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from trtops import ops
from trtops.comparator.report import OutputTolerances, Tolerances
from trtops.record import Record
from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile, ShapeRange, TensorRTOptions
from trtops.tables import markdown_table

HEAD = """# Configs

Every op takes one frozen config: the same in Python, on the command line and in Prefect's form.
A field that is left out has its default; a name that does not exist is refused. This page is made from the types.

```python
from trtops import BuildConfig, ConvertConfig

config = ConvertConfig(build=BuildConfig(precision="fp16"))
assert ConvertConfig.from_json(config.to_json()) == config
```
"""


def text() -> str:
    """The page."""
    return "\n\n".join([HEAD.rstrip(), *map(section, configs())]) + "\n"


def configs() -> list[type[Record]]:
    """Every config of an op, and what stands in them."""
    named = [getattr(ops, name) for name in ops.__all__ if name.endswith("Config")]
    parts = [
        BuildConfig,
        OptimizationProfile,
        ShapeRange,
        OnnxRuntimeOptions,
        TensorRTOptions,
        Tolerances,
        OutputTolerances,
    ]
    return sorted({*named, *parts}, key=lambda kind: kind.__name__)


def section(kind: type[Record]) -> str:
    """One config: what it is, and a row for each field."""
    about = inspect.getdoc(kind) or ""
    first = about.partition("\n\n")[0].replace("\n", " ")
    said = {name: words for each in reversed(kind.__mro__) for name, words in attributes(each).items()}
    rows = [
        (f"`{field.name}`", f"`{type_text(field.type)}`", default_text(field), said.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]
    return (
        f"## {kind.__name__}\n\n{plain(first)}\n\n{markdown_table(('field', 'type', 'default', 'what it says'), rows)}"
    )


def attributes(kind: type) -> dict[str, str]:
    """What the section "Attributes" of a docstring says of each name."""
    part = (inspect.cleandoc(kind.__doc__ or "") + "\n").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |^\S|\Z)", part, re.MULTILINE | re.DOTALL)
    return {name: plain(" ".join(words.split())) for name, words in found}


def plain(words: str) -> str:
    """Words of a docstring in Markdown."""
    words = re.sub(r":\w+:`~?([^`<]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", words)
    return words.replace("``", "`")


def type_text(annotation: Any) -> str:
    """A type as it is written."""
    return str(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", annotation))


def default_text(field: dataclasses.Field[Any]) -> str:
    """A default as Python writes it; of a config of its own, its name."""
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return f"`{type(made).__name__}()`" if dataclasses.is_dataclass(made) else f"`{made!r}`"
    return "must be given"
