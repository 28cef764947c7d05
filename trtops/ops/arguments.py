"""Arguments of ops, checked for all callers: types, empty names, and files that an op would read and overwrite."""

from __future__ import annotations

import functools
import inspect
import mmap
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from trtops import errors
from trtops.backend.torch import is_torch_model
from trtops.ops.keywords import config_class_of
from trtops.record import Record, check_bounds, file_fields, fitted
from trtops.spec import BuildConfig
from trtops.system.allowed import split_script

P = ParamSpec("P")
R = TypeVar("R")

_MAX_STRUCTURE = 1 << 28  # bytes of a model file; a larger one has its weights inside
_MODELS = ("model", "actual", "golden")  # parameters that may be PyTorch models
_WRITTEN = ("output", "output_dir")  # parameters of ops that name what is written


def checked_arguments(op: Callable[P, R], *, reports_bad_export: bool = False) -> Callable[P, R]:
    """Decorate an op: a ConfigError names an argument of another type, or a file that is read and would be overwritten.

    Parameters annotated as paths or models are read; ``output`` is written. Fields of a config say themselves what they
    are (:class:`trtops.record.Config`). An export that does not repeat its PyTorch model raises InvalidModelError,
    unless the op's result ``reports_bad_export``.
    """
    signature = inspect.signature(op)

    @functools.wraps(op)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        for name in _MODELS:
            if name in arguments and is_torch_model(arguments[name]):
                _export(op, arguments, name, reports_bad_export)
        reads, writes = list[tuple[str, Any]](), list[tuple[str, Any, Collection[str]]]()
        data_name = None  # of the weights next to the output
        for name, value in arguments.items():
            parameter = signature.parameters[name]
            if value is parameter.default or parameter.kind is parameter.VAR_KEYWORD:
                continue
            try:
                arguments[name] = value = _typed(parameter_type(op, parameter), value)
            except errors.ConfigError as exc:
                raise errors.ConfigError(f"{op.__name__}: {name}: {exc}") from None
            if isinstance(value, Record):
                for field, paths, use, continued in file_fields(value):
                    if use == "reads":
                        reads.append((field, paths))
                    elif use == "writes":
                        writes.append((field, paths, (continued,)))
                    else:
                        data_name = paths
            elif name in _WRITTEN:
                writes.append((name, value, ()))
            elif re.search("Path|Source", str(parameter.annotation)):
                reads.append((name, value))
        output = next((path for name, path, _ in writes if name == "output"), None)
        if output is not None and "save_as" in signature.parameters:
            writes.append(("its file of weights", data_path(output, data_name or ""), ()))
        refuse_overwriting(reads, writes)
        return op(*bound.args, **bound.kwargs)

    return checked


def checked_with_export(op: Callable[P, R]) -> Callable[P, R]:
    """Decorate an op as :func:`checked_arguments`, whose result reports a bad export."""
    return checked_arguments(op, reports_bad_export=True)


def _export(op: Callable[..., Any], arguments: dict[str, Any], name: str, allow_bad: bool) -> None:
    """Put the ONNX model in the place of a PyTorch model, and its opened data into the config."""
    from trtops.ops.evaluation.data import DataConfig  # these import what evaluates engines
    from trtops.ops.evaluation.torch_models import exported, exported_model

    config_class = config_class_of(op)
    config = arguments.get("config") or (config_class() if config_class else types.SimpleNamespace(**arguments))
    if not isinstance(getattr(config, "check", config), DataConfig):  # an op that evaluates nothing
        arguments[name] = exported(arguments[name], config)[0].path
        return
    build = next((value for value in arguments.values() if isinstance(value, BuildConfig)), None)
    arguments[name], config = exported_model(arguments[name], config, build, allow_bad=allow_bad)
    if arguments.get("resume") is None:  # a resumed campaign has a config of its own
        arguments["config"] = config


def parameter_type(op: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; its text if it names types that are imported for type checkers only."""
    annotated = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(annotated, inspect.unwrap(op).__globals__)[parameter.name]
    except (NameError, TypeError):
        return str(parameter.annotation)


def _typed(hint: Any, value: Any) -> Any:
    """Return a value in the type of a parameter; ConfigError for another type, an empty text, or a negative number."""
    if not isinstance(hint, str):
        value = fitted(hint, value)
    elif isinstance(value, (bool, int, float, bytes)) and "Any" not in hint:
        raise errors.ConfigError(f"found {value!r:.80} ({type(value).__name__}); expected {hint}")
    if value == "" and isinstance(value, str):
        raise errors.ConfigError("found an empty text; leave it out for the default")
    check_bounds(value, {})
    return value


def refuse_overwriting(reads: Iterable[tuple[str, Any]], writes: Iterable[tuple[str, Any, Collection[str]]]) -> None:
    """Raise ConfigError if a path to be written cannot be, or is one to be read, or a file or weights of one.

    Args:
        reads: Names of options or arguments, and their paths, lists of paths, or None. Links are resolved.
        writes: Likewise, with the names of options whose file may be replaced, such as a search's earlier answers.
    """
    read_files = [(name, path) for name, value in reads for path in _paths(value)]
    for name, value, continued in writes:
        for output in _paths(value):
            folder = next(parent for parent in output.absolute().parents if parent.exists())
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                problem = "is read-only" if folder.is_dir() else "is not a folder"
                raise errors.ConfigError(f"{name}: {str(output)!r} cannot be written: {str(folder)!r} {problem}.")
            for read_name, source in read_files:
                if read_name in continued:
                    continue
                if _is_same(output, source) or (source.is_dir() and output.is_file() and _is_within(output, source)):
                    raise errors.ConfigError(
                        f"{name} would overwrite {str(output)!r}, which {read_name} reads. Give another path."
                    )
                are_files = output.is_file() and source.is_file() and source.suffix == ".onnx"
                if not are_files or not _is_within(output, source.parent):
                    continue
                state = source.stat()
                if output.resolve() in _weight_files(source, state.st_size, state.st_mtime_ns):
                    raise errors.ConfigError(
                        f"{name} would overwrite {str(output)!r}, which has weights of {read_name} {str(source)!r}. "
                        "Give another path."
                    )


def data_path(output: str | os.PathLike[str], name: str) -> Path:
    """Return the path of the weights that are written next to a model, if they are too large for it or are named."""
    return Path(output).parent / (name or f"{Path(output).name}.data")


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, (str, os.PathLike)):
        text, _ = split_script(os.fspath(value))
        if text not in ("", "-") and not text.startswith("run:") and "\0" not in text:
            yield Path(text)
    elif isinstance(getattr(value, "path", None), Path):  # a loaded model
        yield value.path
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths(item)


def _is_same(output: Path, source: Path) -> bool:
    """True for one existing file or folder, by links and hard links too; False for devices and pipes."""
    try:
        return (source.is_file() or source.is_dir()) and output.samefile(source)
    except OSError:
        return False


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


@functools.lru_cache(maxsize=1)  # a command and its op both ask
def _weight_files(model: Path, size: int, changed_ns: int) -> set[Path]:
    """Return the files with a model's weights; none if the model cannot be read, which is reported later."""
    from trtops.backend.onnx import external, walk
    from trtops.backend.onnx.model import read_proto

    try:
        if size > _MAX_STRUCTURE:
            return set()
        # The key of each path of weights. To search is much less than to parse weights inside the file.
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"location") < 0:
                return set()
        proto, folder = read_proto(model), model.absolute().parent
        return {external.locate(t, folder).path for t in walk.tensors(proto) if external.is_external(t)}
    except (errors.TrtopsError, OSError, ValueError):  # an empty file cannot be mapped
        return set()
