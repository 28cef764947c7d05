"""Models as ops are given them: by path, loaded, or as protobuf messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trtops import errors
from trtops.backend.onnx.messages import ModelProto
from trtops.backend.onnx.model import Model
from trtops.metadata import Shape, TensorMetadata
from trtops.ops.result import model_file

if TYPE_CHECKING:
    import onnx

Source: TypeAlias = "str | Path | Model | onnx.ModelProto"
"""A model: the path of its file, or the model in memory, which stays the caller's and is copied."""


def open_model(source: Source) -> Model:
    """The model that is meant; one that is loaded already is returned as it is.

    Raises:
        ModelError: If it cannot be read.
    """
    if isinstance(source, Model):
        return source
    return Model.from_proto(source) if isinstance(source, ModelProto) else Model.load(source)


@dataclass(frozen=True)
class Subject:
    """What people and runs call the model that an op is about.

    Attributes:
        name: Its name: the file's, without the ending.
        file: Its file; None for a model in memory.
    """

    name: str
    file: Path | None = None

    @classmethod
    def of(cls, model: Source, file: str | Path | None = None) -> Subject:
        """Name a model, without reading it.

        Args:
            model: The model.
            file: The file that a model in memory was made from.

        Raises:
            InvalidModelError: If the model is a path, and there is no such file.
        """
        if file is None and not isinstance(model, ModelProto):
            file = model.path if isinstance(model, Model) else model_file(model)
        if file is not None:
            return cls(Path(file).stem, Path(file))
        return cls(model.name if isinstance(model, Model) else "model")

    def __str__(self) -> str:
        return self.name if self.file is None else self.file.name


def inputs_with_shapes(inputs: TensorMetadata, shapes: Mapping[str, Shape]) -> TensorMetadata:
    """A model's inputs, some with other shapes.

    Raises:
        ConfigError: If a shape is given for no input.
    """
    changed = TensorMetadata.of(inputs.values())
    for name, shape in shapes.items():
        if name not in inputs:
            raise errors.ConfigError(f"The model has no input {name!r}. {errors.near(name, inputs)}")
        changed[name] = dataclasses.replace(inputs[name], shape=tuple(shape))
    return changed
