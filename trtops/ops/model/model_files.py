"""Models for ops (by path, loaded, or as protobuf messages), and files for the weights of written models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.backend.onnx.messages import ModelProto
from trtops.backend.onnx.model import Model
from trtops.metadata import Shape, TensorMetadata
from trtops.record import Config, setting

if TYPE_CHECKING:
    import onnx

Source: TypeAlias = "str | Path | Model | onnx.ModelProto"
"""The path of a model file, or a model in memory, which is not changed."""


def open_model(source: Source) -> Model:
    """Load a model; a loaded one is returned as it is."""
    return Model.from_proto(source) if isinstance(source, ModelProto) else Model.load(source)


def inputs_with_shapes(inputs: TensorMetadata, shapes: Mapping[str, Shape]) -> TensorMetadata:
    """A model's inputs, some with other shapes; ConfigError if there is no input with the name of a shape."""
    changed = TensorMetadata.of(inputs.values())
    for name, shape in shapes.items():
        errors.check_known(name, inputs, "The model has no input")
        changed[name] = dataclasses.replace(inputs[name], shape=tuple(shape))
    return changed


@dataclass(frozen=True, kw_only=True)
class SaveConfig(Config):
    """Where weights go when a model is written; see :func:`trtops.backend.onnx.save.save_model`."""

    # A path next to the model file; "" is its name with .data appended.
    external_data: str | None = setting(None, file="weights")
    size_threshold: int = 1024  # tensors with fewer bytes stay in the model file
    one_file: bool = True  # otherwise external_data is a folder

    def to_options(self) -> dict[str, Any]:
        """The options of :func:`trtops.backend.onnx.save.save_model`."""
        return {
            "external_data_path": self.external_data,
            "size_threshold": self.size_threshold,
            "all_tensors_to_one_file": self.one_file,
        }

    def for_another(self) -> dict[str, Any]:
        """The options for a second model, to avoid overwriting the first one's weights."""
        return {**self.to_options(), "external_data_path": None if self.external_data is None else ""}
