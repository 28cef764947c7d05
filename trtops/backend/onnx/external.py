"""Weights stored outside the model file: located, bounded, and read in blocks.

ONNX lets a tensor name a file next to the model, with an offset and a length (``TensorProto.external_data``). Models
are untrusted, so the file must lie inside the model's folder after links are resolved.

A tensor in memory can also be *anchored*: it names a file by an absolute path that was checked before. A model of many
gigabytes can then be cut, rewritten and run while its weights stay in their files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import copying, walk
from trtops.backend.onnx.messages import TensorProto
from trtops.system.processes import SHARED_SECRET

if TYPE_CHECKING:
    import onnx

BLOCK = 1 << 20

STRIPPED = "TRT_WEIGHTLESS"  # with which the comment of a removed weight begins

# Bytes; readers that map the file want weights aligned for vector instructions.
_ALIGNMENT = 64
_SMALL_BYTES = 1 << 16
# A random number, which no file can name: an anchor is valid in this process and its children only.
_ANCHOR = f"anchor-{SHARED_SECRET}:"


@dataclass(frozen=True, kw_only=True)
class ExternalData:
    """The place of one tensor's bytes."""

    tensor: str
    path: Path  # absolute, with links resolved
    offset: int
    length: int

    def blocks(self, at_most: int = BLOCK) -> Iterator[bytes]:
        """Yield the bytes in blocks (default: 1 MiB); InvalidModelError if the file ends early."""
        left = self.length
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                while left:
                    block = file.read(min(at_most, left))
                    if not block:
                        raise errors.InvalidModelError(
                            f"Tensor {self.tensor!r}: {self.path.name} ends {left} bytes early; copy it again."
                        )
                    left -= len(block)
                    yield block
        except OSError as exc:
            raise errors.InvalidModelError(f"Tensor {self.tensor!r}: {self.path.name} cannot be read: {exc}.") from exc

    def read(self) -> bytes:
        """All the bytes at once; errors as in :meth:`blocks`."""
        return b"".join(self.blocks())


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's bytes lie outside the model file."""
    return tensor.data_location == TensorProto.EXTERNAL


def is_stripped(tensor: onnx.TensorProto) -> bool:
    """Whether a weight was removed by :func:`trtops.backend.onnx.weights.strip_weights`, or by Polygraphy."""
    return tensor.doc_string.startswith(STRIPPED) and not tensor.raw_data


def anchor(model: onnx.ModelProto, folder: Path) -> None:
    """Anchor the large external tensors of a model from ``folder``, in place; the files must outlive the model.

    Tensors of up to 64 KiB are loaded: shapes and axes may be among them, whose values are needed.
    """
    for tensor in walk.tensors(model):
        if not is_external(tensor) or is_anchored(tensor):
            continue
        if (copying.expected_bytes(tensor) or 0) > _SMALL_BYTES:
            location = locate(tensor, folder)
            put_place(tensor, f"{_ANCHOR}{location.path}", location.offset, location.length)
        else:
            load(tensor, folder)


def write_anchored(tensor: onnx.TensorProto, data: bytes, file: Path) -> None:
    """Append a tensor's raw bytes to a file and anchor the tensor there; the file must outlive the tensor."""
    with open(file, "ab") as target:
        append(target, data, tensor, f"{_ANCHOR}{file.resolve()}")


def append(file: IO[bytes], data: bytes, tensor: onnx.TensorProto, location: str) -> None:
    """Append a tensor's raw bytes to an open file, aligned, and name the place in the tensor."""
    file.write(bytes(-file.tell() % _ALIGNMENT))
    put_place(tensor, location, file.tell(), len(data))
    file.write(data)


def is_anchored(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is anchored to a file."""
    return is_external(tensor) and any(
        entry.key == "location" and entry.value.startswith(_ANCHOR) for entry in tensor.external_data
    )


def put_place(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Set the location of an external tensor's bytes."""
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def locate(tensor: onnx.TensorProto, folder: Path | None = None) -> ExternalData:
    """Find an external tensor's bytes in the model's folder; a model in memory has None, and only anchored tensors.

    InvalidModelError if the place is outside the folder, is not a file, or is too short for the tensor.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if location.startswith(_ANCHOR):
        path = Path(location.removeprefix(_ANCHOR))
        if not path.is_file():
            raise errors.InvalidModelError(
                f"Tensor {tensor.name!r} has its data in {path}, which is gone. Load it again."
            )
    elif folder is None:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} has its data in another file, but this model is in memory. Load the model by its "
            "path, or its external data with onnx.load_external_data_for_model first."
        )
    else:
        path = _path_inside(tensor.name, location, folder)
    offset = _byte_count(tensor.name, "offset", entries.get("offset", "0"))
    file_bytes = path.stat().st_size
    expected = copying.expected_bytes(tensor)
    default = max(file_bytes - offset, 0) if expected is None else expected
    length = _byte_count(tensor.name, "length", entries.get("length") or str(default))
    if expected is not None and length != expected:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} has {length} bytes in {path.name!r}; expected {expected} for shape "
            f"{tuple(tensor.dims)}."
        )
    if offset + length > file_bytes:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} needs bytes {offset} to {offset + length} of {path.name!r}, which has "
            f"{file_bytes}. It is truncated: copy it again."
        )
    return ExternalData(tensor=tensor.name, path=path, offset=offset, length=length)


def _path_inside(tensor: str, location: str, folder: Path) -> Path:
    """Return the file at a location; InvalidModelError if it is outside the folder or missing."""
    pure = PurePosixPath(location)
    if not location or "\0" in location or pure.is_absolute() or PureWindowsPath(location).drive or ".." in pure.parts:
        raise errors.InvalidModelError(
            f"Tensor {tensor!r} names {location!r} as its data file; expected a path inside the model's folder."
        )
    root = folder.resolve()
    try:
        path = (root / location).resolve()
    except (OSError, RuntimeError):  # before Python 3.13, a link to itself is a RuntimeError
        raise errors.InvalidModelError(
            f"Tensor {tensor!r} names {location!r} as its data file, a link to itself."
        ) from None
    if not path.is_relative_to(root):
        raise errors.InvalidModelError(
            f"Tensor {tensor!r} names {location!r} as its data file, a link to outside the model's folder. Put the "
            "file itself next to the model."
        )
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise errors.InvalidModelError(
            f"Tensor {tensor!r} has its data in {location!r}, which {problem} in {folder}. Copy it next to the model."
        )
    return path


def _byte_count(tensor: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise errors.InvalidModelError(
            f"Tensor {tensor!r} has external data with {key} {text!r}; expected a number of bytes."
        )
    return int(text)


def load_external_data(model: onnx.ModelProto, folder: Path) -> None:
    """Load all external data of a model from ``folder`` into it, in place."""
    outside = [tensor for tensor in walk.tensors(model) if is_external(tensor)]
    needed = sum(copying.expected_bytes(tensor) or 0 for tensor in outside)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        sizes = f"{needed / (1 << 30):.3g} GiB, and this machine has {memory / (1 << 30):.3g} GiB of memory"
        raise errors.InvalidModelError(f"The model's external data takes {sizes}.")
    for tensor in outside:
        load(tensor, folder)


def load(tensor: onnx.TensorProto, folder: Path | None = None) -> None:
    """Load one tensor's external data into it; without a folder the tensor must be anchored."""
    tensor.raw_data = locate(tensor, folder).read()
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
