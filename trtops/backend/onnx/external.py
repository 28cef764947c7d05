"""Weights kept outside the model file: found, bounded, read in blocks, and written.

ONNX lets a tensor name a file beside the model, with an offset and a length (``TensorProto.external_data``). A model
is input from strangers, so such a file must lie inside the model's folder, with links followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.messages import TensorProto

if TYPE_CHECKING:
    import onnx

BLOCK = 1 << 20

# Types with fewer than eight bits are packed (TensorProto.raw_data in onnx.proto).
_ELEMENT_BITS = {
    "BOOL": 8, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "INT32": 32, "UINT32": 32, "INT64": 64, "UINT64": 64,
    "FLOAT16": 16, "BFLOAT16": 16, "FLOAT": 32, "DOUBLE": 64, "COMPLEX64": 64, "COMPLEX128": 128,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
    "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExternalData:
    """Where one tensor's bytes lie.

    Attributes:
        tensor: The tensor's name.
        path: The file, absolute, with links followed.
        offset: First byte.
        length: Number of bytes.
    """

    tensor: str
    path: Path
    offset: int
    length: int

    def blocks(self, at_most: int = BLOCK) -> Iterator[bytes]:
        """The bytes, in blocks of at most 1 MiB, or as many bytes as asked for.

        Raises:
            ExternalDataError: If the file ends early or cannot be read.
        """
        left = self.length
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                while left:
                    block = file.read(min(at_most, left))
                    if not block:
                        raise errors.ExternalDataError(
                            f"Tensor {self.tensor!r}: {self.path.name} ends {left} bytes early; copy it anew."
                        )
                    left -= len(block)
                    yield block
        except OSError as exc:
            raise errors.ExternalDataError(f"Tensor {self.tensor!r}: {self.path.name} cannot be read: {exc}.") from exc

    def read(self) -> bytes:
        """All the bytes at once; errors as in :meth:`blocks`."""
        return b"".join(self.blocks())


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's bytes lie outside the model file."""
    return tensor.data_location == TensorProto.EXTERNAL


def mark_left_out(tensor: onnx.TensorProto) -> None:
    """Say of a tensor without values that they are elsewhere, as ONNX's checks and inference want to hear it.

    The file named is nowhere: nobody is to load it.
    """
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="left-out")


def expected_bytes(tensor: onnx.TensorProto) -> int | None:
    """Number of bytes that a tensor's raw data must have; None for strings and unknown types."""
    try:
        bits = _ELEMENT_BITS.get(TensorProto.DataType.Name(tensor.data_type))
    except ValueError:
        return None
    return None if bits is None else (math.prod(tensor.dims) * bits + 7) // 8


def locate(tensor: onnx.TensorProto, folder: Path) -> ExternalData:
    """Find an external tensor's bytes, and check that they can be there.

    Args:
        tensor: A tensor with external data.
        folder: The model's folder.

    Raises:
        ExternalDataError: If the place is outside the folder, is no file, or is too short for the tensor.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _path_inside(tensor.name, entries.get("location", ""), folder)
    offset = _byte_count(tensor.name, "offset", entries.get("offset", "0"))
    file_bytes = path.stat().st_size
    expected = expected_bytes(tensor)
    length = _byte_count(
        tensor.name,
        "length",
        entries.get("length") or str(max(file_bytes - offset, 0) if expected is None else expected),
    )
    if expected is not None and length != expected:
        raise errors.ExternalDataError(
            f"Tensor {tensor.name!r} has {length} bytes in {path.name!r}; expected {expected} for shape {tuple(tensor.dims)}."
        )
    if offset + length > file_bytes:
        raise errors.ExternalDataError(
            f"Tensor {tensor.name!r} needs bytes {offset} to {offset + length} of {path.name!r}, which has {file_bytes}. "
            "It is cut short: copy it anew."
        )
    return ExternalData(tensor=tensor.name, path=path, offset=offset, length=length)


def _path_inside(tensor: str, location: str, folder: Path) -> Path:
    """The file at a location, which must stay inside the folder."""
    pure = PurePosixPath(location)
    if not location or "\0" in location or pure.is_absolute() or PureWindowsPath(location).drive or ".." in pure.parts:
        raise errors.ExternalDataError(
            f"Tensor {tensor!r} names {location!r} as its data file; expected a path inside the model's folder. Refused."
        )
    root = folder.resolve()
    path = (root / location).resolve()
    if not path.is_relative_to(root):
        raise errors.ExternalDataError(
            f"Tensor {tensor!r} names {location!r} as its data file, a link to outside the model's folder. Refused: "
            "put the file itself beside the model."
        )
    if not path.is_file():
        found = "is not a file" if path.exists() else "does not exist"
        raise errors.ExternalDataError(
            f"Tensor {tensor!r} has its data in {location!r}, which {found} in {folder}. Copy it beside the model."
        )
    return path


def _byte_count(tensor: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise errors.ExternalDataError(
            f"Tensor {tensor!r} has external data with {key} {text!r}; expected a number of bytes."
        )
    return int(text)


def load_external_data(model: onnx.ModelProto, folder: Path) -> None:
    """Read all external data into the model, which is changed in place.

    Args:
        model: A model whose file lies in ``folder``.
        folder: Where its data files lie.

    Raises:
        ExternalDataError: As :func:`locate` and :meth:`ExternalData.blocks` raise it. The model is then half loaded.
    """
    for tensor in walk.tensors(model):
        if is_external(tensor):
            load(tensor, folder)


def load(tensor: onnx.TensorProto, folder: Path) -> None:
    """Read one tensor's external data into it; arguments and errors as for :func:`load_external_data`."""
    tensor.raw_data = locate(tensor, folder).read()
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
