"""Outputs and labels of a task: outputs by sample, and files of labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array
from trtops.json.numpy_files import load_numpy

LABEL_FILES = ".npy, .npz, .json or .txt (a line per sample)"


@dataclass(frozen=True)
class TaskOutputs:
    """The outputs of all feeds, and the known axes of classes."""

    iterations: Sequence[Mapping[str, Array]]
    class_axes: Mapping[str, int] = field(default_factory=dict)

    def rows(self, name: str) -> list[Array]:
        """Return an output of each sample; samples lie along the first axis."""
        return [row for outputs in self.iterations for row in np.atleast_1d(outputs[name])]

    def array(self, name: str) -> Array:
        """Return an output of all samples along the first axis; as objects if their shapes differ."""
        arrays = [np.atleast_1d(outputs[name]) for outputs in self.iterations]
        if all(array.shape[1:] == arrays[0].shape[1:] for array in arrays):
            return np.concatenate(arrays)
        rows = self.rows(name)
        joined = np.empty(len(rows), object)
        joined[:] = rows
        return joined

    def first(self, accepts: Callable[[Array], bool], description: str) -> Array:
        """Return the first output that is accepted, of all samples; ComparisonError without one."""
        for name in self.iterations[0]:
            array = self.array(name)
            if (array.dtype != object or isinstance(array.flat[0], str)) and accepts(array):
                return array
        names = ", ".join(f"{name} {np.shape(array)}" for name, array in self.iterations[0].items())
        raise errors.ComparisonError(f"No output holds {description}. The outputs are {names}.")

    def named(self, *words: str) -> str | None:
        """Return the name of the first output that contains one of the words."""
        return next((name for name in self.iterations[0] if any(word in name.lower() for word in words)), None)


def load_labels(path: str) -> Any:
    """Load labels: an array, a dictionary of arrays, a JSON value or lines of text."""
    file = Path(path)
    if not file.is_file():
        raise errors.ConfigError(
            f"Labels {str(file.absolute())!r} do not exist; expected a file of labels ({LABEL_FILES})."
        )
    if file.suffix in (".npy", ".npz"):
        return load_numpy(file)
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            return json.loads(text)
        if file.suffix == ".txt":
            return text.removesuffix("\n").split("\n")
    except ValueError as exc:  # of JSON and of UTF-8
        raise errors.FormatError(f"{path} cannot be read as {file.suffix[1:]}: {exc}") from None
    raise errors.ConfigError(f"Labels {path!r} have an unknown suffix; expected {LABEL_FILES}.")


def integers(labels: Any) -> Array:
    """Return labels as an array of integers from 0 on; ComparisonError if they are something else."""
    array = np.asarray(labels)
    if not np.issubdtype(array.dtype, np.integer):
        content = {"O": type(labels).__name__, "U": "text"}.get(array.dtype.kind, array.dtype)
        raise errors.ComparisonError(f"The labels are of type {content}; expected integers, the class of each sample.")
    if (least := array.min(initial=0)) < 0:
        raise errors.ComparisonError(
            f"A label is {least}; expected classes from 0 on. Leave out samples without one; in maps, 255 is ignored."
        )
    return array


def check_count(samples: int, labels: int) -> None:
    """Raise ComparisonError unless there is a label for each sample."""
    if samples != labels:
        raise errors.ComparisonError(f"The outputs have {samples} samples, and there are {labels} labels.")
