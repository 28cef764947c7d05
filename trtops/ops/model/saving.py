"""Where the weights of models go that ops write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class SaveConfig(Record):
    """Where weights go when a model is written.

    Attributes:
        external_data: A path beside the model file for the weights; ``""`` takes the model file's name with ``.data``
            behind it. None keeps them in the model file, unless it would get too large for protobuf (2 GiB).
        size_threshold: Tensors with fewer bytes than this stay in the model file.
        one_file: Whether all weights share one data file; else ``external_data`` is a folder.
    """

    external_data: str | None = None
    size_threshold: int = 1024
    one_file: bool = True

    def to_options(self) -> dict[str, Any]:
        """The options of :meth:`trtops.backend.onnx.submodel.SubModel.save`."""
        return {
            "external_data_path": self.external_data,
            "size_threshold": self.size_threshold,
            "one_file": self.one_file,
        }

    def for_another(self) -> dict[str, Any]:
        """The same for a second model, whose weights must not be written over those of the first."""
        return {**self.to_options(), "external_data_path": None if self.external_data is None else ""}
