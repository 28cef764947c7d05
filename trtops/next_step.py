"""The usual command after a result; the only module with the shell spelling of trtops commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from trtops.record import Record, option_fields, to_jsonable
from trtops.spec import IN_MEMORY, BuildConfig, OnnxRuntimeOptions, TensorRTOptions
from trtops.system.allowed import split_script
from trtops.system.processes import is_temporary
from trtops.terminal import escaped

_SAVED = "arrays.npz"  # stands for data from memory, which no command line can have
_POSITIONAL = ("model", "run")
# Options whose name is not that of their field.
_OPTIONS = {
    "workspace_bytes": "--workspace",
    "optimization_level": "--builder-optimization-level",
    "timeout_seconds": "--build-timeout",
    "use_deny_list": "--deny-list",
    "replay": "--load-tactics",
    "timing_cache": "--load-timing-cache",
    "max_iterations": "--max-builds",
    "campaign_builds": "--max-builds",
}
# Fields that command lines have no option for.
_FIELDS_ONLY = frozenset((
    "kind", "tactics", "timing_iterations", "intra_op_threads", "tactic_seed", "record_tactics", "calibration_samples",
    "calibration_fit", "mark", "command",
))  # fmt: skip

_BUILDS = (BuildConfig, OnnxRuntimeOptions, TensorRTOptions)
_BUILD = frozenset(("backend", *(field.name for config in _BUILDS for field in fields(config))))
_DATA = frozenset(("data", "input_shapes", "input_dtypes", "iterations", "seed", "val_range"))
# Options that a command shares with others.
_TAKEN: Mapping[str, frozenset[str]] = {
    "calibrate": _DATA | {"calibration_data"},
    "convert": _DATA | {"tolerances", "profiles"},
    "debug accuracy": _BUILD | _DATA | {"tolerances"},
    "debug accuracy --emulate": _DATA | {"tolerances"},
    "debug precision": _DATA | {"tolerances", "profiles"},
    "sensitivity": _DATA,
    "triage": _BUILD | _DATA | {"tolerances", "golden", "calibration_data", "calibration_cache", "replay"},
}


@dataclass(frozen=True)
class NextStep(Record):
    """A command, and its arguments by the names of config fields; ``str()`` is a line for a shell.

    Each argument is given once, so steps are made by merging mappings: ``{**arguments, "keep": names}``. An argument
    that is None is left out. ``model`` and ``run`` are positional.

    >>> print(NextStep("convert", {"model": "a b.onnx", "precision": "fp16", "input_shapes": {"x": (2, 3)}}))
    trtops convert 'a b.onnx' --fp16 --input-shapes 'x:[2,3]'
    """

    verb: str  # the words of the command, such as ``runs promote``
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def after(cls, options: Mapping[str, Any], verb: str, arguments: Mapping[str, Any]) -> NextStep:
        """The step with a command's options known to its verb, replaced by ``arguments``."""
        taken = _TAKEN[f"{verb} --emulate" if "emulate" in arguments else verb]
        return cls(verb, {**{name: value for name, value in options.items() if name in taken}, **arguments})

    def __str__(self) -> str:
        return " ".join(map(quoted, self.words()))

    def lines(self, width: int) -> list[str]:
        """Return the command in lines of at most ``width`` characters if words allow it, to be pasted together.

        Each but the last ends in a backslash. An option stays with its values.
        """
        groups: list[list[str]] = [[]]
        for word in map(quoted, self.words()):
            if word.startswith("--"):
                groups.append([])
            groups[-1].append(word)
        lines = [""]
        for group in groups:
            whole = " ".join(group)
            for part in [whole] if len(whole) + 2 <= width else group:
                if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
                    lines.append(part)
                else:
                    lines[-1] = f"{lines[-1]} {part}".lstrip()
        return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]

    @property
    def first(self) -> str:
        """What has to be done before the command can run, as a sentence; empty if nothing."""
        return f"Save the arrays: numpy.savez({_SAVED!r}, **arrays)" if _SAVED in self.words() else ""

    def words(self) -> list[str]:
        """The words of the command line, unquoted."""
        positional = (str(self.arguments[name]) for name in _POSITIONAL if self.arguments.get(name) is not None)
        words = ["trtops", *self.verb.split(), *map(_path, positional)]
        for name, value in self.arguments.items():
            if name not in _POSITIONAL and value is not None:
                words += _option(name, value)
        return words

    def in_store(self, store: str | None) -> NextStep:
        """The step for the store of the command line; unchanged if the step uses none."""
        reads = any(isinstance(value, str) and value.startswith("run:") for value in self.arguments.values())
        used = reads or not {"run", "resume", "experiment"}.isdisjoint(self.arguments)
        return replace(self, arguments={**self.arguments, "store": store}) if store and used else self


def arguments_of(config: Record) -> dict[str, Any]:
    """The changed options of a config by name, as JSON, with the back end and its options.

    Files in temporary folders of this process are left out, since they will be gone.
    """
    arguments: dict[str, Any] = {}
    for option in option_fields(type(config)):
        value: Any = config
        for name in option.path:
            value = getattr(value, name)
        if option.name == "options":
            arguments |= {"backend": value.kind, **arguments_of(value)}
        elif isinstance(value, str) and is_temporary(value):
            continue
        elif value != option.default and option.name not in _FIELDS_ONLY:
            arguments[option.name] = to_jsonable(value)
    return arguments


def _option(name: str, value: Any) -> Iterator[str]:
    """Yield the words of one argument."""
    option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
    if name == "backend":
        yield {"tensorrt": "--trt", "onnxruntime": "--onnxrt"}[value]
    elif name in ("precision", "also"):
        precisions = (value,) if isinstance(value, str) else value
        yield from (f"--{precision}" for precision in precisions if precision != "fp32")
    elif isinstance(value, str) and value.startswith(IN_MEMORY):
        yield from ("--load-inputs" if name == "data" else option, _SAVED)
    elif name == "data":
        yield "--data-loader-script" if split_script(value)[0].endswith(".py") else "--load-inputs"
        yield _path(value)
    elif name == "profiles":
        yield from _profiles(value)
    elif name == "tolerances":
        yield from _tolerances(value)
    elif isinstance(value, bool):
        yield option if value else f"--no-{option.removeprefix('--')}"
    else:
        values = [*_values(value)]
        # A value that begins with a dash would be read as an option.
        yield from (f"{option}={values[0]}",) if len(values) == 1 and values[0][:1] == "-" else (option, *values)


def _path(word: str) -> str:
    """Return a path that is not read as an option."""
    return f"./{word}" if word[:1] == "-" else word


def _values(value: Any) -> Iterable[str]:
    """The words after an option: several of a sequence, ``name:[dims]`` of shapes and ranges, ``name:type``."""
    if isinstance(value, Mapping):
        texts = {name: item if isinstance(item, str) else _dims(item) for name, item in value.items()}
        return (f"{name}:{text}" if name else text for name, text in texts.items())
    if not isinstance(value, (tuple, list)):
        return (str(value),)
    return (":".join(entry) if isinstance(entry, list) else str(entry) for entry in value)


def _profiles(profiles: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for profile in profiles:
        for bound in ("min", "opt", "max"):
            yield f"--trt-{bound}-shapes"
            yield from (f"{shape['name']}:{_dims(shape[bound])}" for shape in profile["shapes"])


def _tolerances(tolerances: Mapping[str, Any]) -> Iterator[str]:
    from trtops.comparator.report import Tolerances
    from trtops.comparator.table import LIMITED

    options = {name: name for name in ("atol", "rtol", "check_error_stat", "error_quantile")}
    options |= {str(metric.tolerance): metric.option for metric in LIMITED if metric.limit}
    usual = Tolerances().to_dict()
    for name, option in options.items():
        values = [] if tolerances[name] == usual[name] else [str(tolerances[name])]
        for output, single in tolerances["per_output"].items():
            if single[name] is not None:
                values.append(f"{output}:{single[name]}")
        if values:
            yield from (f"--{option.replace('_', '-')}", *values)


def option_text(name: str, value: Any) -> str:
    """Return one option as a line for a shell has it, such as ``--keep conv_0 conv_1``."""
    return " ".join(map(quoted, _option(name, value)))


def quoted(word: str) -> str:
    r"""Return a word as bash and zsh read it back, in printable characters of one line.

    >>> print(quoted("a b.onnx"), quoted("two\nlines"))
    'a b.onnx' $'two\012lines'
    """
    if "\n" not in word and "\t" not in word and escaped(word) == word:
        return f"'{word}'" if word[:1] == "=" else shlex.quote(word)  # zsh replaces =name by a path
    # In a shell that lacks this form of quoting, nothing in it ends the quotes either.
    parts = [chr(b) if 32 <= b < 127 and chr(b) not in "'\\" else f"\\{b:03o}" for b in os.fsencode(word)]
    return f"$'{''.join(parts)}'"


def _dims(shape: Sequence[float]) -> str:
    return f"[{','.join(map(str, shape))}]"
