"""Readers of option values. Each function takes one word and raises ``ValueError`` for a wrong one."""

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from trtops.errors import near
from trtops.metadata import DataType
from trtops.system.allowed import split_script

Shape: TypeAlias = tuple[int | str, ...]

# Binary, as in TensorRT's own tools: 1G is 2**30 bytes.
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(-?\d+(?:\.\d*)?(?:e\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def size(text: str) -> int:
    """Return a number of bytes: ``1G``, ``512M``, ``1.5GiB``, ``1e9``, ``4096``; units are binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; expected something like 1G, 512M or 4096")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def number(text: str) -> float:
    """Return a number, an int if it is written so."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def shape(text: str) -> tuple[str, Shape]:
    """Return an input's shape from ``name:[1,3,h]``, or trtexec's ``name:1x3x224``; other words are dynamic."""
    if by_x := re.fullmatch(r"(.+):(-?\d+(?:x-?\d+)*)", text):
        return by_x[1], tuple(map(int, by_x[2].split("x")))
    name, dims = split_named(text, "[")
    return name, dimensions(dims)


def dimensions(text: str) -> Shape:
    """Return dimensions from ``[1,3,h]``."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(f"{text!r} is not a shape; expected something like name:[1,3,224,224]")
    words = [word.strip() for word in text[1:-1].split(",") if word.strip()]
    dims = tuple(int(word) if re.fullmatch(r"-?\d+", word) else word.strip("'\"") for word in words)
    if any(isinstance(dim, int) and dim < -1 for dim in dims):
        raise ValueError(f"{text!r} has a negative size; expected sizes, or -1 for an open one")
    return dims


def split_named(text: str, begins: str) -> tuple[str, str]:
    """Split at the last colon before ``begins``; names may contain colons."""
    name, separator, rest = text.rpartition(f":{begins}")
    if not separator or not name:
        raise ValueError(f"{text!r} has no name; expected name:{begins}...")
    return name, begins + rest


def named(text: str) -> tuple[str, str]:
    """Split ``name:value``; the name may be missing."""
    # The last colon: names of tensors may contain colons, as TensorFlow's do.
    name, _, value = text.rpartition(":")
    return name, value


def named_number(text: str) -> tuple[str, float]:
    """Read ``1e-3``, or ``output:1e-3`` for one output."""
    name, value = named(text)
    try:
        return name, number(value)
    except ValueError:
        raise ValueError(f"{text!r}: expected a number, or output:number") from None


def named_whole(text: str) -> tuple[str, int]:
    """Read ``2``, or ``output:2`` for one output."""
    name, value = named_number(text)
    if value != int(value):
        raise ValueError(f"{text!r}: expected a whole number, or output:number")
    return name, int(value)


def statistic(text: str) -> tuple[str, str]:
    """Read ``max``, or ``output:max`` for one output."""
    statistics = ("elemwise", "max", "mean", "median", "quantile")
    name, value = named(text)
    if value not in statistics:
        raise ValueError(f"{value!r} is not an error statistic; expected one of {', '.join(statistics)}")
    return name, value


def value_range(text: str) -> tuple[str, tuple[float, float]]:
    """Read ``[0,1]``, or ``input:[0,1]`` for one input."""
    name, bounds = ("", text) if text.startswith("[") else split_named(text, "[")
    words = bounds.strip("[]").split(",")
    if len(words) != 2 or not bounds.endswith("]"):
        problem = f"expected to receive exactly 2 values, but received {len(words)}"
        raise ValueError(f"{text!r}: {problem}, in brackets as in [0,1] or name:[-1,1]")
    low, high = number(words[0].strip()), number(words[1].strip())
    if not low <= high:
        raise ValueError(f"{text!r}: its start exceeds its end, or one is not a number")
    return name, (low, high)


def pool_limit(text: str) -> tuple[str, int]:
    """Read ``workspace:1G``."""
    name, value = split_named(text, "")
    return name, size(value)


def budget(text: str) -> tuple[str, float]:
    """Read a weight streaming budget, ``1G``, ``-1`` or ``50%``, as unit and number."""
    if text.endswith("%"):
        return "percent", float(text[:-1])
    return "bytes", size(text)


def script(default: str) -> Callable[[str], tuple[str, str]]:
    """Return a reader of ``file.py`` or ``file.py:function``, with a default function."""

    def convert(text: str) -> tuple[str, str]:
        path, function = split_script(text)
        return path, function or default

    return convert


def top_k(text: str) -> tuple[str, tuple[int, int]]:
    """Read ``top-5``, ``top-5,axis=1`` or ``output:top-5``."""
    name, function = named(text)
    match = re.fullmatch(r"top-(\d+)(?:,axis=(-?\d+))?", function.replace(" ", ""))
    if match is None:
        raise ValueError(f"{function!r} is not a postprocessing function; expected top-<k> or top-<k>,axis=<axis>")
    return name, (int(match[1]), int(match[2] or -1))


def attribute(text: str) -> tuple[str, object]:
    """Read a node's attribute: ``axis=1``, ``name="text"`` or ``perm=[0,2,1]``."""
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r} is not an attribute; expected name=value")
    if value.startswith("["):
        return name, tuple(_attribute_value(word.strip()) for word in value.strip("[]").split(",") if word.strip())
    return name, _attribute_value(value)


def _attribute_value(text: str) -> int | float | str:
    try:
        return number(text)
    except ValueError:
        return text.strip("'\"")


def tensor(text: str) -> tuple[str, str, Shape | None]:
    """Read a tensor as name, dtype and shape: ``name:[1,3]:float32``. Shape and dtype may be left out, or ``auto``."""
    match = re.fullmatch(r"(.+?)(?::(\[[^\]]*\]|auto))?(?::([a-z]+\d*\w*))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a tensor; expected name, name:shape:dtype or name:dtype")
    dims = None if match[2] in (None, "auto") else dimensions(match[2])
    return match[1], "" if match[3] in (None, "auto") else match[3], dims


def per_name(pairs: Iterable[tuple[str, object]] | None) -> object:
    """Return one value if no name is given, otherwise a dict by name with ``""`` for the others; None stays."""
    if not pairs:
        return None
    by_name = dict(pairs)
    return by_name[""] if list(by_name) == [""] else by_name


def optimization_level(text: str) -> str:
    """Read an optimization level: ``basic``, or ``ORT_ENABLE_BASIC``."""
    name = text.lower().removeprefix("ort_").removeprefix("enable_").removesuffix("_all")
    if name not in ("disable", "basic", "extended", "all"):
        raise ValueError(f"{text!r}: expected disable, basic, extended or all")
    return name


def until(text: str) -> int | str:
    """Read ``good``, ``bad``, or a number of iterations."""
    if text in ("good", "bad", "decided"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r}: expected good, bad or a number of iterations")
    return int(text)


# Polygraphy's names of types next to numpy's.
_DTYPE_BY_ALIAS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16", "float": "float32"}


def _dtype(word: str) -> str:
    """Return the name of a data type; those without a counterpart in numpy are TensorRT's own."""
    name = _DTYPE_BY_ALIAS.get(word.lower(), word)
    names = [*(dtype.name.lower() for dtype in DataType), "fp8", "fp4", "e8m0"]
    if name.lower() not in names:
        raise ValueError(f"{word!r} is not a data type. {near(word, names)}")
    return name


def layer_type(text: str) -> tuple[str, str]:
    """Read a layer's or tensor's data type: ``conv1:float16``, or ``conv1:fp16``."""
    name, value = split_named(text, "")
    return name, _dtype(value)


CONSTRAINTS = ("prefer", "obey", "none")


def constraint(text: str) -> tuple[str, str]:
    """Read ``prefer``, ``obey`` or ``none``, or one layer's precision: ``layer:fp16``."""
    name, value = named(text)
    if not name and value not in CONSTRAINTS:
        raise ValueError(f"{text!r}: expected prefer, obey or none, or a layer's precision such as conv1:fp16")
    return name, _dtype(value) if name else value


# How the value of an option is read, by what help calls it; other values are text.
READERS: dict[str, Callable[[str], Any]] = {
    "N": int,
    "OPTIMIZATION": optimization_level,
    "MODE|LAYER:TYPE": constraint,
    "CODE": int,
    "PORT": int,
    "X": float,
    "SECONDS": float,
    "MINUTES": float,
    "DAYS": float,
    "SIZE": size,
    "BYTES": size,
    "SIZE|PERCENT%": budget,
    "POOL:SIZE": pool_limit,
    "NAME:[DIMS]": shape,
    "[LO,HI]": value_range,
    "[OUTPUT:]X": named_number,
    "[OUTPUT:]Q": named_number,
    "[OUTPUT:]N": named_whole,
    "[TENSOR:]N": named_whole,
    "[OUTPUT:]STAT": statistic,
    "[OUTPUT:]top-K": top_k,
    "LAYER:TYPE": layer_type,
    "NAME:TYPE": layer_type,
    "TENSOR:TYPE": layer_type,
    "TENSOR:FORMAT": named,
    "NAME[:SHAPE[:TYPE]]": tensor,
    "NAME[:TYPE]": tensor,
}
