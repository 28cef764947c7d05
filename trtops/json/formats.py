"""Writes and reads both formats: Polygraphy's JSON with arrays as base64 text, and archives of ``.npy`` files."""

from __future__ import annotations

import binascii
import functools
import io
import json
import secrets
import zipfile
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Any

from trtops import errors
from trtops.json import base64_text
from trtops.json.numpy_files import array_of_archive, array_of_npy, damage_reported, read_member, write_npy
from trtops.json.objects import MARKER, Encoder, decode_object
from trtops.torch_tensors import is_torch

if TYPE_CHECKING:
    from trtops.json.numpy_files import Array

ARCHIVE_FORMAT = "trtops.npz"
ARCHIVE_VERSION = 1

# 250 levels of nesting: Python's own JSON parser ends at its recursion limit of about 1,000 calls.
_MAX_MARGIN = 1000
_LONG_TEXT = 1 << 12


class TextWriter:
    """Writes an object as JSON text, arrays in blocks."""

    def __init__(self, file: IO[bytes]) -> None:
        self.out = file.write

    def write(self, obj: Any, indent: str = "\n") -> None:
        """Write one value; ``indent`` is its line break and margin."""
        if (registration := Encoder.registered.get(type(obj))) is not None:
            name, encode = registration
            self.write({**encode(obj), MARKER: name}, indent)
        elif isinstance(obj, dict):
            self._write_items("{", "}", ((_key_text(key), value) for key, value in obj.items()), indent)
        elif isinstance(obj, (list, tuple)):
            self._write_items("[", "]", (("", value) for value in obj), indent)
        elif obj is None or (isinstance(obj, (str, int, float)) and type(obj).__module__ == "builtins"):
            self.out(json.dumps(obj).encode("ascii"))
        else:
            self._write_other(obj, indent)

    def _write_other(self, obj: Any, indent: str) -> None:
        import numpy as np  # a slow import, which files without arrays do not need

        if isinstance(obj, np.generic):
            self.write(obj.item() if obj.dtype.kind in "biufU" else np.asarray(obj), indent)
        elif isinstance(obj, np.ndarray) and obj.dtype.isbuiltin == 2:  # types of ml_dtypes, unknown to .npy files
            bits = obj.view(f"u{obj.itemsize}")
            self.write({"bits": bits, "dtype": obj.dtype.name, MARKER: "ExtendedArray"}, indent)
        elif isinstance(obj, np.ndarray):
            are_texts = obj.dtype.kind in "OT" and all(isinstance(item, str) for item in obj.flat)
            self.write_array(obj.astype(np.str_) if are_texts else obj, indent)
        elif is_torch(obj):
            import torch

            data = io.BytesIO()
            torch.save(obj, data)
            text = binascii.b2a_base64(data.getbuffer(), newline=False).decode("ascii")
            self.write({"tensor": text, MARKER: "Tensor"}, indent)
        else:
            raise errors.FormatError(
                f"A {type(obj).__name__} cannot be saved. Save numbers, strings, lists, dicts and numpy arrays, "
                "or register the type with trtops.json.Encoder."
            )

    def _write_items(self, opening: str, closing: str, items: Iterable[tuple[str, Any]], indent: str) -> None:
        inner = indent + "    "
        if len(inner) > _MAX_MARGIN:
            raise errors.FormatError("The object is nested more than 250 deep, or contains itself; it cannot be saved.")
        mark = opening
        for key, value in items:
            self.out((mark + inner + key).encode("ascii"))
            self.write(value, inner)
            mark = ","
        self.out((indent + closing if mark == "," else opening + closing).encode("ascii"))

    def write_array(self, array: Array, indent: str) -> None:
        """Write an array of a dtype supported by ``.npy`` files."""
        inner = indent + "    "
        self.out(f'{{{inner}"array": "'.encode("ascii"))
        encoded = _Base64Writer(self.out)
        write_npy(encoded, array)
        encoded.finish()
        self.out(f'",{inner}"{MARKER}": "ndarray"{indent}}}'.encode("ascii"))


class _Base64Writer:
    """Encodes written bytes as base64."""

    def __init__(self, out: Callable[[bytes], Any]) -> None:
        self.out = out
        self.rest = b""

    def write(self, data: bytes) -> None:
        # Three bytes are encoded together; the rest waits for the next block.
        start = -len(self.rest) % 3
        whole = len(data) - (len(data) - start) % 3
        self.out(binascii.b2a_base64(self.rest + data[:start], newline=False))
        self.out(binascii.b2a_base64(memoryview(data)[start:whole], newline=False))
        self.rest = data[whole:]

    def finish(self) -> None:
        self.out(binascii.b2a_base64(self.rest, newline=False))


def _key_text(key: object) -> str:
    if key is None or isinstance(key, (bool, int, float)):
        key = json.dumps(key)  # as Python's own encoder does
    if not isinstance(key, str):
        raise errors.FormatError(f"{key!r} is a key, but keys of saved dicts must be strings.")
    return json.dumps(key) + ": "


class ArchiveWriter(TextWriter):
    """Writes an object as an uncompressed archive of ``.npy`` files and their index in JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self.index = io.BytesIO()
        super().__init__(self.index)
        self.archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)
        self.count = 0

    def write_archive(self, obj: Any) -> None:
        """Write the archive as a whole."""
        with self.archive:
            self.write({"format": ARCHIVE_FORMAT, "version": ARCHIVE_VERSION, "content": obj})
            self.archive.writestr(zipfile.ZipInfo("index.json"), self.index.getvalue())

    def write_array(self, array: Array, indent: str) -> None:
        """Write an array as a member, and its name into the index."""
        name = f"{self.count:06d}.npy"
        self.count += 1
        with self.archive.open(zipfile.ZipInfo(name), "w", force_zip64=array.nbytes > 1 << 30) as member:
            write_npy(member, array)
        self.out(json.dumps({"array": name, MARKER: "ndarray"}).encode("ascii"))


def load_text(content: bytes, name: str) -> Any:
    """Read JSON; ``name`` appears in errors."""
    try:
        text, arrays = _without_long_arrays(content)

        def decode(members: dict[str, Any]) -> Any:
            value = members.get("array")
            if isinstance(value, str) and value in arrays:
                base64 = arrays.pop(value)
                members["array"] = base64 if members.get(MARKER) == "ndarray" else str(base64, "utf-8")
            return decode_object(members, _array_from_text)

        return json.loads(text.decode("utf-8", "surrogatepass"), object_hook=decode)
    except errors.FormatError as exc:
        raise errors.FormatError(f"{name}: {exc}") from None
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"{name} is not valid JSON, or is cut short: {exc}.") from None


def _without_long_arrays(content: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """Replace the long texts of arrays by unguessable names."""
    # Python's JSON parser takes half of the time of loading on them. Quotes inside a JSON string are escaped, so the
    # member that is searched for cannot be a part of one.
    prefix, start, pieces = secrets.token_hex(16), b'"array": "', []
    arrays: dict[str, memoryview] = {}
    done = 0
    at = content.find(start)
    while at >= 0:
        begin = at + len(start)
        end = content.find(b'"', begin)
        if end - begin > _LONG_TEXT and content.find(b"\\", begin, end) < 0:
            key = f"{prefix}{len(arrays)}"
            arrays[key] = memoryview(content)[begin:end]
            pieces += [content[done:begin], key.encode()]
            done = end
        at = content.find(start, max(begin, end))
    return b"".join([*pieces, content[done:]]), arrays


def _array_from_text(text: str | memoryview) -> Array:
    """An array from base64, or from the latin-1 text of old releases of Polygraphy."""
    if not isinstance(text, (str, memoryview)):
        raise errors.FormatError(f"an array is a {type(text).__name__}; expected text")
    decoded = base64_text.decode(text) if isinstance(text, memoryview) else None
    if decoded is not None and bytes(decoded[:6]) == b"\x93NUMPY":
        return array_of_npy(decoded)
    try:
        data = binascii.a2b_base64(text)
        if data[:6] != b"\x93NUMPY" and data[:2] != b"PK":
            raise ValueError
    except ValueError:
        try:
            data = (text if isinstance(text, str) else str(text, "utf-8")).encode("latin-1")
        except UnicodeError:
            raise errors.FormatError("an array is neither base64 nor latin-1 text") from None
    return array_of_archive(data) if data[:2] == b"PK" else array_of_npy(data)


def load_archive(file: IO[bytes], name: str) -> Any:
    """Read an archive; ``name`` appears in errors."""
    size = file.seek(0, io.SEEK_END)
    with damage_reported(f"{name} is not a complete archive of trtops"), zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        # Members are stored uncompressed, so together they cannot be larger than the file.
        if sum(info.file_size for info in members.values()) > size:
            raise errors.FormatError("its members claim to be larger than the whole archive")
        if "index.json" not in members:
            raise errors.FormatError("it has no index.json")
        text = archive.read(members["index.json"])
        head = json.loads(text)
        if not isinstance(head, dict) or head.get("format") != ARCHIVE_FORMAT:
            raise errors.FormatError("its index.json was not written by trtops")
        if head.get("version") != ARCHIVE_VERSION:
            version = f"{head.get('version')!r:.20}"
            raise errors.FormatError(f"it has version {version}; expected {ARCHIVE_VERSION}. Update trtops")

        def read_array(member: object) -> Array:
            info = members.pop(member, None) if isinstance(member, str) else None
            if info is None:
                raise errors.FormatError(f"its index names {member!r:.80}, which is missing or was used before")
            return read_member(archive, info)

        return json.loads(text, object_hook=functools.partial(decode_object, read_array=read_array))["content"]
