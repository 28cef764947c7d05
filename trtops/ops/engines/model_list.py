"""Model lists: YAML files of models to build, how to build them, and when an engine is good enough.

``models`` lists :class:`ListedModel`, and ``defaults`` has values for all of them; see ``docs/pages/howto/nightly.md``.
"""

import glob
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.yaml_records import merge, read_yaml
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import DataConfig
from trtops.record import Record, setting
from trtops.spec import (
    BackendName,
    BackendOptions,
    BuildConfig,
    OnnxRuntimeOptions,
    OptimizationProfile,
    Precision,
    TensorRTOptions,
)
from trtops.system.allowed import split_script

_PATHS = ("data", "labels", "golden", "calibration_data", "calibration_cache")


@dataclass(frozen=True, kw_only=True)
class Policy(Record):
    """How the builds of a model are treated.

    Attributes:
        bad: Whether a bad engine makes the whole list ``fail``, or is only ``report``-ed. With an unproven engine, the
            whole list is unproven in both cases.
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
class ListedModel(DataConfig):
    """One entry of a list, with the defaults merged in.

    Attributes:
        model: A model's file, a PyTorch model (``script.py:function``), or a pattern of files (``*``, ``?``, ``[...]``,
            ``**`` for any folders); relative to the list.
        precisions: Precisions to build.
        backends: Back ends to build for; each with each precision.
        profiles: Shapes to build for; the model's own by default.
        metric: Task metrics; see :class:`~trtops.ops.evaluation.check.CheckConfig`.
        labels: The file of labels.
        loss: What an engine may lose of each metric, such as ``0.5%``.
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
    metric: tuple[str, ...] = ()
    labels: str | None = setting(None, file="reads")
    loss: str | None = None
    golden: str | None = setting(None, file="reads")
    calibration_data: str | None = None
    calibration_samples: int = setting(64, least=1)
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

    def config(self, precision: Precision, backend: BackendName) -> ConvertConfig:
        """The convert config of one build."""
        options: BackendOptions = self.onnxruntime if backend == "onnxruntime" else self.tensorrt
        minutes = self.policy.timeout_minutes
        names = (
            "data", "input_shapes", "input_dtypes", "iterations", "seed", "val_range", "metric", "labels", "loss",
            "golden",
        )  # fmt: skip
        same = {name: getattr(self, name) for name in names}
        return ConvertConfig(
            build=BuildConfig(
                precision=precision,
                profiles=self.profiles,
                calibration_samples=self.calibration_samples,
                keep=self.keep,
                options=options,
            ),
            check=CheckConfig(tolerances=self.tolerances.get(precision), **same),
            calibration_data=self.calibration_data,
            calibration_cache=self.calibration_cache,
            rebuild=self.policy.rebuild,
            keep_model=self.policy.keep_model,
            isolated=self.policy.isolated,
            timeout_seconds=None if minutes is None else minutes * 60,
        )


@dataclass(frozen=True, kw_only=True)
class ListedBuild(Record):
    """One engine of a list."""

    model: str  # the ONNX file, absolute; the pattern, if no file matches it
    precision: Precision
    backend: BackendName
    entry: ListedModel
    location: str  # file and line of the entry
    missing: str = ""  # why it cannot be built


@dataclass(frozen=True, kw_only=True)
class ModelList(Record):
    """A checked list with absolute paths."""

    path: str
    models: tuple[ListedModel, ...]
    lines: tuple[int, ...]

    def builds(self) -> tuple[ListedBuild, ...]:
        """Every engine of the list, in its order."""
        listed_builds = []
        # Expanded here and not when the list is read: an entry may name files that a job writes later.
        for entry, line in zip(self.models, self.lines):
            # The pattern without the escapes of glob.escape()
            plain = Path(re.sub(r"\[([*?[])\]", r"\1", entry.model))
            is_one = Path(split_script(str(plain))[0]).is_file()
            files = [str(plain)] if is_one else sorted(glob.glob(entry.model, recursive=True))
            missing = [] if files else [f"model: {plain} matches no file."]
            for key in _PATHS:
                path, _ = split_script(getattr(entry, key) or "")
                if path and not Path(path).exists():
                    missing.append(f"{key}: {path} does not exist.")
            for file, backend, precision in itertools.product(files or [str(plain)], entry.backends, entry.precisions):
                location = f"{self.path}:{line}" if line else self.path
                shared: dict[str, Any] = {"entry": entry, "location": location, "missing": " ".join(missing)}
                listed_builds.append(ListedBuild(model=file, precision=precision, backend=backend, **shared))
        return tuple(listed_builds)

    def problems(self) -> tuple[str, ...]:
        """Missing files, with file and line."""
        return tuple(dict.fromkeys(f"{build.location}: {build.missing}" for build in self.builds() if build.missing))


def read_model_list(path: str | Path) -> ModelList:
    """Read a list; FormatError if it is not YAML, or has unknown keys or invalid values, with the line of each.

    Missing files are not errors, because the other models can be built (:meth:`ModelList.problems`).
    """
    document = read_yaml(path)
    top = document.data if document.data is not None else {}
    if not isinstance(top, dict) or not isinstance(top.get("models"), (list, type(None))):
        document.complain((), "expected a mapping with a list called 'models'.")
        document.raise_problems()
    for key in set(top) - {"defaults", "models"}:
        document.complain((key,), f"unknown key {key!r}. {errors.near(key, ('defaults', 'models'))}")
    defaults = top.get("defaults") or {}
    if not isinstance(defaults, dict) or "model" in defaults:
        document.complain(("defaults",), "expected keys and values like a model's, without 'model'.")
        defaults = {}
    elif document.record(ListedModel, ("defaults",), {**defaults, "model": "-"}) is None:
        defaults = {}  # so that the entries do not repeat these problems
    folder, models, lines = Path(path).resolve().parent, [], []
    # Every entry is read before errors are raised, so that a list is corrected in one go.
    for number, entry in enumerate(top.get("models") or []):
        key_path = ("models", number)
        if not isinstance(entry, dict):
            document.complain(key_path, f"expected keys and values, such as 'model: a.onnx' (found {entry!r:.60}).")
            continue
        model = document.record(ListedModel, key_path, merge(defaults, entry))
        if model is not None:
            models.append(_with_absolute_paths(model, folder))
            lines.append(document.line(key_path))
    document.raise_problems()
    return ModelList(path=str(path), models=tuple(models), lines=tuple(lines))


def folder_list(folder: str | Path, pattern: str, entry: ListedModel) -> ModelList:
    """A list of a folder's models matching a pattern; ``entry`` has the options of each build."""
    absolute = Path(folder).resolve()
    absolute_entry = _with_absolute_paths(replace(entry, model=f"{glob.escape(str(absolute))}/{pattern}"), Path.cwd())
    return ModelList(path=str(absolute), models=(absolute_entry,), lines=(0,))


def _with_absolute_paths(entry: ListedModel, folder: Path) -> ListedModel:
    # The folder's name may have characters that are special in a pattern.
    model = entry.model if Path(entry.model).is_absolute() else f"{glob.escape(str(folder))}/{entry.model}"
    changes: dict[str, Any] = {name: str(folder / path) for name in _PATHS if (path := getattr(entry, name))}
    return replace(entry, model=model, **changes)
