"""Models as ops are given them: by path, loaded, or as protobuf messages."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import onnx

from trtops.backend.onnx.model import Model

Source: TypeAlias = "str | Path | Model | onnx.ModelProto"


def open_model(source: Source) -> Model:
    """The model that is meant; one that is loaded already is returned as it is.

    Raises:
        ModelError: If it cannot be read.
    """
    if isinstance(source, Model):
        return source
    return Model.from_proto(source) if isinstance(source, onnx.ModelProto) else Model.load(source)
