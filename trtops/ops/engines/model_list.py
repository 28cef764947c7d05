"""Model lists: YAML files of models to build, how to build them, and when an engine is good enough.

An example::

defaults:                          # for all models, unless they say otherwise
  precisions: [fp32, fp16]
  tolerances:
    fp16: {atol: 0.01, rtol: 0.01}
  policy: {bad: report}

models:
  - model: resnet50.onnx           # relative to the list, or an absolute path
    data: images/
    labels: labels.npy
    precisions: [fp16, int8]
    calibration_data: calibration/
  - model: detectors/*.onnx        # each file of a pattern
    backends: [tensorrt]
    tensorrt: {workspace_bytes: 2147483648}
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.yaml_records import Document, Place, read_yaml
from trtops.ops.evaluation.check import CheckConfig
from trtops.record import Record
from trtops.spec import (
    BackendName,
    BackendOptions,
    BuildConfig,
    OnnxRuntimeOptions,
    OptimizationProfile,
    Precision,
    TensorRTOptions,
)

_MERGED = ("policy", "tolerances", "onnxruntime", "tensorrt")
"""Keys whose values are merged with the defaults; any other key replaces its default."""


@dataclass(frozen=True, kw_only=True)
class Policy(Record):
    """How the builds of a model are treated.

    Attributes:
        bad: Whether a bad engine makes the whole list ``fail``, or is only ``report``-ed.
        rebuild: Build even if the tracking store has the engine.
        isolated: Build in a child process, so that a crash affects this build only.
        timeout_minutes: Time limit of a build; None sets no limit.
        keep_model: Log the model file to the run.
    """

    bad: Literal["fail", "report"] = "fail"
    rebuild: bool = False
    isolated: bool = True
    timeout_minutes: float | None = None
    keep_model: bool = True

    def __post_init__(self) -> None:
        if self.timeout_minutes is not None and not self.timeout_minutes > 0:
            raise errors.ConfigError(f"timeout_minutes is {self.timeout_minutes}; expected more than 0.")


@dataclass(frozen=True, kw_only=True)
class ListedModel(Record):
    """One entry of a list, with the defaults merged in.

    Attributes:
        model: An ONNX file, or a pattern of files (``*``, ``?``, ``[...]``, ``**`` for any folders); relative to the
            list.
        precisions: Precisions to build.
        backends: Back ends to build for; each with each precision.
        profiles: Shapes to build for; the model's own by default.
        data: Where inputs come from (:func:`trtops.ops.evaluation.feeds.open_feeds`); random by default.
        iterations: Number of random feeds.
        seed: Seed of the random data.
        labels: The class of each sample, as ``.npy``.
        golden: Saved outputs to compare with; the model's own by default.
        calibration_data: Data to calibrate INT8 with; ``data`` by default.
        calibration_samples: Number of its feeds to use.
        calibration_cache: A calibration cache to use instead.
        keep: Layers that INT8 leaves in higher precision.
        tolerances: When an engine is good enough, by precision; the precision's default unless given.
        onnxruntime: Options of that back end.
        tensorrt: Options of that back end.
        experiment: MLflow experiment; the model's name by default.
        policy: How the builds are treated.
    """

    model: str
    precisions: tuple[Precision, ...] = ("fp32",)
    backends: tuple[BackendName, ...] = ("onnxruntime",)
    profiles: tuple[OptimizationProfile, ...] = ()
    data: str | None = None
    iterations: int = 1
    seed: int = 1
    labels: str | None = None
    golden: str | None = None
    calibration_data: str | None = None
    calibration_samples: int = 64
    calibration_cache: str | None = None
    keep: tuple[str, ...] = ()
    tolerances: Mapping[Precision, Tolerances] = field(default_factory=dict)
    onnxruntime: OnnxRuntimeOptions = field(default_factory=OnnxRuntimeOptions)
    tensorrt: TensorRTOptions = field(default_factory=TensorRTOptions)
    experiment: str | None = None
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        for name in ("precisions", "backends"):
            if not getattr(self, name):
                raise errors.ConfigError(f"{name} is empty; name one or more, or leave it out.")
        if self.calibration_samples < 1 or self.iterations < 1:
            raise errors.ConfigError("calibration_samples and iterations must be 1 or more.")

    def files(self) -> dict[str, str]:
        """The files and folders that the entry needs in addition to the model, by key."""
        keys = ("data", "labels", "golden", "calibration_data", "calibration_cache")
        named = {key: getattr(self, key) for key in keys}
        scripts = {key: path.rpartition(":")[0] for key, path in named.items() if path is not None}
        return {key: s if s.endswith(".py") else named[key] for key, s in scripts.items()}

    def config(self, precision: Precision, backend: BackendName) -> ConvertConfig:
        """The convert config of one build."""
        options: BackendOptions = self.onnxruntime if backend == "onnxruntime" else self.tensorrt
        minutes = self.policy.timeout_minutes
        return ConvertConfig(
            build=BuildConfig(
                precision=precision,
                profiles=self.profiles,
                calibration_samples=self.calibration_samples,
                keep=self.keep,
                options=options,
            ),
            check=CheckConfig(
                data=self.data,
                iterations=self.iterations,
                seed=self.seed,
                labels=self.labels,
                golden=self.golden,
                tolerances=self.tolerances.get(precision),
            ),
            calibration_data=self.calibration_data,
            calibration_cache=self.calibration_cache,
            rebuild=self.policy.rebuild,
            keep_model=self.policy.keep_model,
            isolated=self.policy.isolated,
            timeout_seconds=None if minutes is None else minutes * 60,
        )


@dataclass(frozen=True, kw_only=True)
class ListedBuild(Record):
    """One engine of a list.

    Attributes:
        model: The ONNX file, absolute; the pattern, if no file matches it.
        precision: Its precision.
        backend: Its back end.
        entry: Its entry in the list.
        place: File and line of that entry.
        missing: Why it cannot be built; empty if nothing is missing.
    """

    model: str
    precision: Precision
    backend: BackendName
    entry: ListedModel
    place: str
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelList(Record):
    """A checked list with absolute paths."""

    path: str
    models: tuple[ListedModel, ...]
    lines: tuple[int, ...]

    def builds(self) -> tuple[ListedBuild, ...]:
        """Every engine of the list, in its order; patterns are expanded now."""
        return tuple(
            ListedBuild(
                model=file,
                precision=precision,
                backend=backend,
                entry=entry,
                place=f"{self.path}:{line}" if line else self.path,
                missing=missing,
            )
            for entry, line in zip(self.models, self.lines)
            for file, missing in _found_files(entry)
            for backend in entry.backends
            for precision in entry.precisions
        )

    def problems(self) -> tuple[str, ...]:
        """Missing files, with file and line."""
        return tuple(dict.fromkeys(f"{build.place}: {build.missing}" for build in self.builds() if build.missing))


def read_model_list(path: str | Path) -> ModelList:
    """Read a list. Missing files are not errors, because the other models can be built (:meth:`ModelList.problems`).

    Raises:
        FormatError: If it is not YAML, or has unknown keys or invalid values; with the line of each.
    """
    document = read_yaml(path)
    top = document.data if document.data is not None else {}
    if not isinstance(top, dict) or not isinstance(top.get("models"), (list, type(None))):
        document.complain((), "expected a mapping with a list called 'models'.")
        document.raise_problems()
    for key in set(top) - {"defaults", "models"}:
        document.complain((key,), f"unknown key {key!r}. {errors.near(key, ('defaults', 'models'))}")
    defaults = _checked_defaults(document, top.get("defaults") or {})
    folder = Path(path).resolve().parent
    models = [
        _read_entry(document, ("models", i), entry, defaults, folder) for i, entry in enumerate(top.get("models") or [])
    ]
    document.raise_problems()
    lines = tuple(document.line(("models", i)) for i in range(len(models)))
    return ModelList(path=str(path), models=tuple(model for model in models if model is not None), lines=lines)


def folder_list(folder: str | Path, pattern: str, entry: ListedModel) -> ModelList:
    """A list of the models in a folder that match a pattern; ``entry`` says how to build each."""
    absolute = Path(folder).resolve()
    own = _with_absolute_paths(replace(entry, model=f"{glob.escape(str(absolute))}/{pattern}"), Path.cwd())
    return ModelList(path=str(absolute), models=(own,), lines=(0,))


def _checked_defaults(document: Document, defaults: Any) -> dict[str, Any]:
    """The defaults; empty, after adding problems, if they are invalid."""
    place: Place = ("defaults",)
    if not isinstance(defaults, dict):
        document.complain(place, "expected keys and values, like a model's.")
        return {}
    if "model" in defaults:
        document.complain((*place, "model"), "'model' cannot have a default.")
    elif document.record(ListedModel, place, {**defaults, "model": "-"}) is not None:
        return defaults
    return {}


def _read_entry(
    document: Document, place: Place, entry: Any, defaults: dict[str, Any], folder: Path
) -> ListedModel | None:
    if not isinstance(entry, dict):
        document.complain(place, f"expected keys and values, such as 'model: a.onnx' (found {entry!r:.60}).")
        return None
    own = document.record(ListedModel, place, entry)
    if own is None:
        return None
    merged = {**defaults, **entry}
    for key in set(_MERGED) & set(defaults) & set(entry):
        merged[key] = {**defaults[key], **entry[key]}
    whole = document.record(ListedModel, place, merged)
    return None if whole is None else _with_absolute_paths(whole, folder)


def _with_absolute_paths(entry: ListedModel, folder: Path) -> ListedModel:
    def absolute(path: str | None) -> str | None:
        return None if path is None else str(folder / path)

    # The folder's name may have characters that are special in a pattern.
    model = entry.model if Path(entry.model).is_absolute() else f"{glob.escape(str(folder))}/{entry.model}"
    paths = ("data", "labels", "golden", "calibration_data", "calibration_cache")
    changes: dict[str, Any] = {name: absolute(getattr(entry, name)) for name in paths}
    return replace(entry, model=model, **changes)


def _found_files(entry: ListedModel) -> list[tuple[str, str]]:
    """The model files of an entry, each with a message about missing files."""
    lacking = [
        f"{key}: {path} does not exist. {_near_file(Path(path))}".rstrip()
        for key, path in entry.files().items()
        if not Path(path).exists()
    ]
    # The pattern without the escapes of glob.escape()
    plain = Path(re.sub(r"\[([*?[])\]", r"\1", entry.model))
    files = [str(plain)] if plain.is_file() else sorted(filter(os.path.isfile, glob.glob(entry.model, recursive=True)))
    if files:
        return [(file, " ".join(lacking)) for file in files]
    problem = "matches no file" if glob.has_magic(str(plain)) else "does not exist"
    return [(str(plain), " ".join([f"model: {plain} {problem}. {_near_file(plain)}".rstrip(), *lacking]))]


def _near_file(path: Path) -> str:
    """A hint to a file of a similar name; empty without one."""
    try:
        names = sorted(other.name for other in path.parent.iterdir())
    except OSError:
        return f"There is no folder {path.parent}."
    hint = errors.near(path.name, names)
    return hint if hint.startswith("Did") else ""
