"""Where the weights of models go that ops write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops.record import Record

if TYPE_CHECKING:
    import onnx


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


def write_model(model: onnx.ModelProto, path: str | Path, config: SaveConfig | None = None) -> None:
    """Write a model, with its weights where the config says."""
    from trtops.backend.onnx.save import save_model

    config = SaveConfig() if config is None else config
    save_model(
        model,
        path,
        external_data_path=config.external_data,
        size_threshold=config.size_threshold,
        all_tensors_to_one_file=config.one_file,
    )
